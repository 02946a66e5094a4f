"""Shadow training: branches learn beside the network without touching it, and what they would do to it is measured.

forward                                   once
gradient of the main loss                 trains the network, as it would without branches
gradient of the branches' own weights     trains the branches: the same as on detached features
gradient of each place's loss             measured at every so many steps, and thrown away
"""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from asymtrain.branches import Branches
from asymtrain.errors import UsageError
from asymtrain.gradients._intervals import batch_means, mean
from asymtrain.lab.probe.batches import Batch, Batches
from asymtrain.lab.probe.evidence import median, trend
from asymtrain.lab.probe.findings import TOGETHER, PlaceFinding, Shadow
from asymtrain.lab.probe.settings import Settings, finite, refuse_overflow, trained

LAST_PART = 4  # accuracies are of the last quarter of the steps

Gradient = Sequence[Tensor | None]


class Record:
    """What was seen step by step, on the device until it is asked for."""

    def __init__(self, places: Sequence[str]) -> None:
        self.places = list(places)
        self.measured: list[int] = []
        self.products: list[Tensor] = []  # (K + 1, 3) each: g.h, g.g, h.h of every place, then of their sum
        self.scores: list[Tensor] = []  # (K + 1, 2) each: loss and accuracy of every place, then of the network
        self.sizes: list[int] = []
        self.skipped = 0
        self.seconds: dict[bool, list[float]] = {True: [], False: []}  # of each step: was it measured?


def shadow_training(
    model: nn.Module,
    branches: Branches,
    batches: Batches,
    settings: Settings,
    *,
    order: Sequence[int],
    go_on: Callable[[int, Sequence[float]], bool] = lambda _, __: True,
) -> Shadow:
    """Train `model` for as many steps as `order` has batches, or until `go_on(step, seconds)` is false.

    The seconds are of earlier steps; of those without a measurement, as paired runs have them, once there are any.
    """
    device = next(model.parameters()).device
    optimizers = [settings.make_optimizer(trained(model)), settings.make_optimizer(branches.parameters())]
    record, start, steps = Record(branches.places), time.perf_counter(), 0
    for step, number in enumerate(order):
        if not go_on(step, record.seconds[False] or record.seconds[True]):
            break
        begun = time.perf_counter()
        batch = batches.batch(number, device)
        steps += 1
        if _step(model, branches, batch, settings, record, step):
            for optimizer in optimizers:
                optimizer.step()
        else:
            record.skipped += 1
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        record.seconds[step % settings.every == 0].append(time.perf_counter() - begun)
    if not steps:
        raise UsageError("the time was over before the first step: give more minutes")
    refuse_overflow(record.skipped, steps, settings.autocast)
    return _summary(record, steps, settings.classes, time.perf_counter() - start)


def _step(model: nn.Module, branches: Branches, batch: Batch, settings: Settings, record: Record, step: int) -> bool:
    """Gradients into `.grad`, of the network by the main loss and of the branches by theirs; False where not finite."""
    parameters, branch_parameters = trained(model), list(branches.parameters())
    device = batch.targets.device
    logits, main = settings.forward(model, batch)
    with settings.precision(device):
        losses = branches.losses(batch.targets)
    if not finite(main):
        return False
    auxiliary = torch.stack([loss.to(device) for loss in losses.values()]).sum()
    own = torch.autograd.grad(auxiliary, branch_parameters, retain_graph=True)
    main_gradient = torch.autograd.grad(main, parameters, retain_graph=True, allow_unused=True)
    if not _all_finite(main_gradient):
        return False
    if step % settings.every == 0:
        record.measured.append(step)
        record.products.append(_products(main_gradient, list(losses.values()), parameters))
    record.scores.append(_scores(branches, losses, main, logits, batch.targets))
    record.sizes.append(len(batch.targets))
    for parameter, g in zip([*parameters, *branch_parameters], [*main_gradient, *own], strict=True):
        parameter.grad = g
    return True


def _all_finite(gradient: Gradient) -> bool:
    sums = [g.detach().float().square().sum() for g in gradient if g is not None]
    return not sums or bool(torch.isfinite(torch.stack(sums).sum()))


def _products(main: Gradient, losses: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """For each place and for their sum: g.h, g.g and h.h over the parameters that both reach, (K + 1, 3)."""
    total: list[Tensor | None] = [None] * len(parameters)
    rows = []
    for loss in losses:
        if not loss.requires_grad:
            rows.append(loss.new_zeros(3, dtype=torch.float64))
            continue
        found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        rows.append(_row(main, found))
        total = [h if t is None else t if h is None else t + h for t, h in zip(total, found, strict=True)]
    return torch.stack([*rows, _row(main, total)])


def _row(main: Gradient, auxiliary: Gradient) -> Tensor:
    device = next(g.device for g in main if g is not None)
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    for g, h in zip(main, auxiliary, strict=True):
        if g is not None and h is not None:
            g, h = g.detach().double(), h.detach().double()
            square = h.square().sum()
            # A gradient of exactly zero counts as not reached, as in `alignment`.
            sums += torch.stack([(g * h).sum(), g.square().sum() * (square > 0), square])
    return sums


def _scores(branches: Branches, losses: dict[str, Tensor], main: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
    accuracies = branches.accuracies(targets)
    rows = [torch.stack([losses[name].detach().double(), accuracies[name].double()]) for name in losses]
    own = (logits.detach().argmax(-1) == targets).double().mean()
    return torch.stack([*rows, torch.stack([main.detach().double(), own])])


def _summary(record: Record, steps: int, classes: int, seconds: float) -> Shadow:
    last = max(1, len(record.scores) // LAST_PART)
    scores = torch.stack(record.scores[-last:]).mean(0).tolist()
    products = torch.stack(record.products).tolist()  # (measured, K + 1, 3)
    chance, own = 1 / classes, scores[-1]
    found = []
    for k, name in enumerate([*record.places, TOGETHER]):
        loss, accuracy = (sum(row[0] for row in scores[:-1]), None) if name == TOGETHER else scores[k]
        found.append(_finding(name, record.measured, [row[k] for row in products], loss, accuracy, own[1], chance))
    if all(value is None for value in found[-1].cosines):
        raise UsageError(
            "no place is behind a trained parameter that the main loss reaches: choose deeper places, or unfreeze "
            "layers"
        )
    each = median(record.seconds[False]) or median(record.seconds[True]) or 0.0
    return Shadow(
        tuple(found[:-1]), found[-1], steps, own[1], own[0], chance, sum(record.sizes[-last:]), record.skipped,
        seconds, each,
    )  # fmt: skip


def _finding(
    name: str,
    measured: Sequence[int],
    products: Sequence[Sequence[float]],
    loss: float,
    accuracy: float | None,
    own: float,
    chance: float,
) -> PlaceFinding:
    cosines = [_cosine(*row) for row in products]
    seen = [value for value in cosines if value is not None]
    low, high, _, _ = batch_means(seen)
    change, change_low, change_high = trend(seen)
    ratios = [(h / g) ** 0.5 for _, g, h in products if g > 0]
    return PlaceFinding(
        place=name,
        steps=tuple(measured),
        cosines=tuple(cosines),
        alignment=mean(seen),
        low=low,
        high=high,
        trend=change,
        trend_low=change_low,
        trend_high=change_high,
        conflict=mean([float(value < 0) for value in seen]),
        ratio=median(ratios),
        accuracy=accuracy,
        loss=loss,
        speed=None if accuracy is None or own <= chance else (accuracy - chance) / (own - chance),
    )


def _cosine(product: float, main: float, auxiliary: float) -> float | None:
    scale = (main * auxiliary) ** 0.5
    value = product / scale if scale > 0 else float("nan")
    return max(-1.0, min(1.0, value)) if value == value else None
