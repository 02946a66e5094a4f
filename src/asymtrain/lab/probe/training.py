"""The short trainings of a probe: a shadow training, whose branches do not touch the network, and paired runs.

A step of the shadow training:

    forward                                   once
    gradient of the main loss                 trains the network, as it would without branches
    gradient of the branches' own weights     trains the branches: the same as on detached features
    gradient of each place's loss             measured at every so many steps, and thrown away

The paired runs of a seed, without branches and with them, share initial weights, batches and their order, and torch's
random state (dropout), so a pair differs in the branches alone. All runs of a seed come before the next seed's: where
time ends, whole seeds are kept.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from asymtrain.branches import Branches, attach
from asymtrain.branches._dry_run import call
from asymtrain.branches._nested import Selector, read_logits
from asymtrain.errors import UsageError
from asymtrain.gradients._intervals import batch_means, mean
from asymtrain.lab.probe.budget import Plan
from asymtrain.lab.probe.evidence import median, trend
from asymtrain.lab.probe.inputs import Batch, Batches, Source, fresh_model
from asymtrain.lab.probe.result import TOGETHER, PlaceFinding, Shadow, Trial
from asymtrain.objectives import check_targets, softmax_loss

MOST_SKIPPED = 0.1  # of the steps may have a loss or gradient that is not finite
LAST_PART = 4  # accuracies are of the last quarter of the steps

Loss = Callable[[Tensor, Tensor], Tensor]
Gradient = Sequence[Tensor | None]
Accuracies = tuple[float, float]  # halfway, at the end


@dataclass(frozen=True)
class Settings:
    """What the user chose."""

    classes: int
    loss_fn: Loss | None = None
    logits: Selector | None = None
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None
    learning_rate: float = 1e-3
    autocast: torch.dtype | None = None
    every: int = 5
    branch_options: Mapping[str, Any] = field(default_factory=dict)  # of `attach`

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        return self.optimizer(parameters) if self.optimizer else torch.optim.AdamW(parameters, lr=self.learning_rate)

    def attach(self, model: nn.Module, places: list[str], sample: object, seed: int) -> Branches:
        return attach(model, places, sample, self.classes, seed=seed, **self.branch_options)

    def precision(self, device: torch.device) -> AbstractContextManager[object]:
        return nullcontext() if self.autocast is None else torch.autocast(device.type, self.autocast)

    def forward(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits (B, C) in float32 and the main loss: the user's, or softmax cross-entropy."""
        with self.precision(batch.targets.device):
            logits = read_logits(call(model, batch.inputs), self.logits)
        logits = logits.float()
        if self.loss_fn is not None:
            return logits, self.loss_fn(logits, batch.targets)
        check_targets(logits, batch.targets)
        return logits, softmax_loss(logits, batch.targets)


class _Record:
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
    optimizers = [settings.make_optimizer(_trained(model)), settings.make_optimizer(branches.parameters())]
    record, start = _Record(branches.places), time.perf_counter()
    for step, number in enumerate(order):
        if not go_on(step, record.seconds[False] or record.seconds[True]):
            break
        begun = time.perf_counter()
        batch = batches.batch(number, device)
        if _shadow_step(model, branches, batch, settings, record, step):
            for optimizer in optimizers:
                optimizer.step()
        else:
            record.skipped += 1
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        record.seconds[step % settings.every == 0].append(time.perf_counter() - begun)
    steps = sum(map(len, record.seconds.values()))
    if not steps:
        raise UsageError("the time was over before the first step: give more minutes")
    if record.skipped > MOST_SKIPPED * steps:
        kind = settings.autocast
        cure = "probe in torch.bfloat16 or without autocast" if kind == torch.float16 else "lower the learning rate"
        raise UsageError(
            f"the loss or its gradient was not finite in {record.skipped} of {steps} steps"
            f"{'' if kind is None else f' under autocast to {kind}'}: {cure}, or check the data"
        )
    return _summary(record, steps, settings.classes, time.perf_counter() - start)


def _shadow_step(
    model: nn.Module, branches: Branches, batch: Batch, settings: Settings, record: _Record, step: int
) -> bool:
    """Gradients into `.grad`, of the network by the main loss and of the branches by theirs; False where not finite."""
    parameters, branch_parameters = _trained(model), list(branches.parameters())
    device = batch.targets.device
    logits, main = settings.forward(model, batch)
    with settings.precision(device):
        losses = branches.losses(batch.targets)
    if not _finite(main):
        return False
    auxiliary = torch.stack([loss.to(device) for loss in losses.values()]).sum()
    own = torch.autograd.grad(auxiliary, branch_parameters, retain_graph=True)
    main_gradient = torch.autograd.grad(main, parameters, retain_graph=True, allow_unused=True)
    squares = [g.detach().float().square().sum() for g in main_gradient if g is not None]
    if squares and not _finite(torch.stack(squares).sum()):
        return False
    if step % settings.every == 0:
        record.measured.append(step)
        record.products.append(_products(main_gradient, list(losses.values()), parameters))
    accuracies = branches.accuracies(batch.targets)
    scores = [(loss, accuracies[name]) for name, loss in losses.items()]
    scores.append((main, (logits.detach().argmax(-1) == batch.targets).double().mean()))
    record.scores.append(torch.stack([torch.stack([loss.detach().double(), right.double()]) for loss, right in scores]))
    record.sizes.append(len(batch.targets))
    for parameter, g in zip([*parameters, *branch_parameters], [*main_gradient, *own], strict=True):
        parameter.grad = g
    return True


def _products(main: Gradient, losses: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """For each place and for their sum: g.h, g.g and h.h over the parameters that both reach, (K + 1, 3)."""
    total: list[Tensor | None] = [None] * len(parameters)
    rows = []
    for loss in losses:
        if not loss.requires_grad:
            rows.append(loss.new_zeros(3, dtype=torch.float64))
            continue
        gradient = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        rows.append(_product_row(main, gradient))
        total = [h if t is None else t if h is None else t + h for t, h in zip(total, gradient, strict=True)]
    return torch.stack([*rows, _product_row(main, total)])


def _product_row(main: Gradient, auxiliary: Gradient) -> Tensor:
    device = next(g.device for g in main if g is not None)
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    for g, h in zip(main, auxiliary, strict=True):
        if g is not None and h is not None:
            g, h = g.detach().double(), h.detach().double()
            square = h.square().sum()
            # A gradient of exactly zero counts as not reached, as in `alignment`.
            sums += torch.stack([(g * h).sum(), g.square().sum() * (square > 0), square])
    return sums


def _summary(record: _Record, steps: int, classes: int, seconds: float) -> Shadow:
    last = max(1, len(record.scores) // LAST_PART)
    *scores, (main_loss, main_accuracy) = torch.stack(record.scores[-last:]).mean(0).tolist()
    scores.append((sum(loss for loss, _ in scores), None))
    products = torch.stack(record.products, 1).tolist()  # (K + 1, measured, 3)
    chance, findings = 1 / classes, []
    for name, (loss, accuracy), rows in zip([*record.places, TOGETHER], scores, products, strict=True):
        known = accuracy is not None and main_accuracy > chance
        speed = (accuracy - chance) / (main_accuracy - chance) if known else None
        gradients = _gradient_fields(record.measured, rows)
        findings.append(PlaceFinding(place=name, **gradients, accuracy=accuracy, loss=loss, speed=speed))
    if all(value is None for value in findings[-1].cosines):
        reached = "no place is behind a trained parameter that the main loss reaches"
        raise UsageError(f"{reached}: choose deeper places, or unfreeze layers")
    return Shadow(
        places=tuple(findings[:-1]),
        together=findings[-1],
        steps=steps,
        accuracy=main_accuracy,
        loss=main_loss,
        chance=chance,
        images=sum(record.sizes[-last:]),
        skipped=record.skipped,
        seconds=seconds,
        step_seconds=median(record.seconds[False]) or median(record.seconds[True]) or 0.0,
    )


def _gradient_fields(measured: Sequence[int], products: Sequence[Sequence[float]]) -> dict[str, Any]:
    """What a `PlaceFinding` says of the gradients of one place."""
    cosines = [_cosine(*row) for row in products]
    seen = [value for value in cosines if value is not None]
    low, high, _, _ = batch_means(seen)
    change, change_low, change_high = trend(seen)
    return {
        "steps": tuple(measured), "cosines": tuple(cosines), "alignment": mean(seen), "low": low, "high": high,
        "trend": change, "trend_low": change_low, "trend_high": change_high,
        "conflict": mean([float(value < 0) for value in seen]),
        "ratio": median([(h / g) ** 0.5 for _, g, h in products if g > 0]),
    }  # fmt: skip


def _cosine(product: float, main: float, auxiliary: float) -> float | None:
    scale = (main * auxiliary) ** 0.5
    value = product / scale if scale > 0 else float("nan")
    return max(-1.0, min(1.0, value)) if value == value else None


class _TimeOverError(Exception):
    pass


def paired_trials(
    source: Source,
    batches: Batches,
    settings: Settings,
    places: list[str],
    plan: Plan,
    go_on: Callable[[], bool] = lambda: True,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Trial]:
    """One trial for each alpha, with the seeds that were finished before `go_on` became false."""

    def short_run(alpha: float, seed: int) -> Accuracies:
        progress(f"paired runs: seed {seed}, alpha {alpha:g}")
        model = fresh_model(source, seed)
        device = next(model.parameters()).device
        branches = settings.attach(model, places, batches.sample(device), seed) if alpha > 0 else None
        optimizer = settings.make_optimizer([*_trained(model), *(branches.parameters() if branches else ())])
        torch.manual_seed(seed)
        halfway = chance = 1 / settings.classes
        for step, number in enumerate(batches.order(seed, plan.steps), 1):
            if not go_on():
                raise _TimeOverError
            batch = batches.batch(number, device)
            _, loss = settings.forward(model, batch)
            if branches is not None:
                with settings.precision(device):
                    loss = loss + alpha * branches.loss(batch.targets)
            if not _finite(loss):
                return chance, chance
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if step == plan.steps // 2:
                halfway = _held_out_accuracy(model, batches, settings, device)
        return halfway, _held_out_accuracy(model, batches, settings, device)

    finished: dict[int, list[Accuracies]] = {}
    with suppress(_TimeOverError):
        for seed in plan.seeds:
            finished[seed] = [short_run(alpha, seed) for alpha in (0.0, *plan.alphas)]
    if not finished:
        return []
    plain, *asymmetric = zip(*finished.values(), strict=True)
    seeds, held_out = tuple(finished), batches.held_out_size()
    pairs = zip(plan.alphas, asymmetric, strict=True)
    return [Trial(alpha, seeds, plain, rows, plan.steps, held_out) for alpha, rows in pairs]


@torch.no_grad()
def _held_out_accuracy(model: nn.Module, batches: Batches, settings: Settings, device: torch.device) -> float:
    model.eval()
    right = count = 0
    # Evaluation must not move the random state that the next training step draws from.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for number in batches.held_out_numbers:
            batch = batches.batch(number, device)
            logits, _ = settings.forward(model, batch)
            right += int((logits.argmax(-1) == batch.targets).sum())
            count += len(batch.targets)
    model.train()
    return right / count


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _finite(value: Tensor) -> bool:
    return math.isfinite(float(value.detach()))
