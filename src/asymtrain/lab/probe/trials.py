"""Short paired runs of any model, one after the other: without branches and with them, from the same start.

The runs of a seed share initial weights, batches and their order, and torch's random state (dropout), so a pair differs
in the branches alone. All runs of a seed come before the next seed's: where time ends, whole seeds are kept.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from asymtrain.lab.probe.batches import Batches
from asymtrain.lab.probe.copying import Source, fresh_model
from asymtrain.lab.probe.findings import Trial
from asymtrain.lab.probe.settings import Settings, finite, trained

Accuracies = tuple[float, float]


def paired_trials(
    source: Source,
    batches: Batches,
    settings: Settings,
    *,
    places: list[str],
    alphas: Sequence[float],
    seeds: Sequence[int],
    steps: int,
    go_on: Callable[[], bool] = lambda: True,
    told: Callable[[str], None] = lambda _: None,
) -> list[Trial]:
    """One trial for each alpha, with the seeds that were finished before `go_on` became false."""
    finished: dict[int, list[Accuracies]] = {}
    for seed in seeds:
        rows = []
        for alpha in (0.0, *alphas):
            told(f"paired runs: seed {seed}, alpha {alpha:g}")
            row = _short_run(source, batches, settings, places, alpha, seed, steps, go_on)
            if row is None:
                break
            rows.append(row)
        if len(rows) <= len(alphas):
            break
        finished[seed] = rows
    if not finished:
        return []
    held_out = batches.held_out_size()
    return [
        Trial(
            alpha,
            tuple(finished),
            tuple(rows[0] for rows in finished.values()),
            tuple(rows[i] for rows in finished.values()),
            steps,
            held_out,
        )
        for i, alpha in enumerate(alphas, 1)
    ]


def _short_run(
    source: Source,
    batches: Batches,
    settings: Settings,
    places: list[str],
    alpha: float,
    seed: int,
    steps: int,
    go_on: Callable[[], bool],
) -> Accuracies | None:
    """Held-out accuracy halfway and at the end; None where the time was over."""
    model = fresh_model(source, seed)
    device = next(model.parameters()).device
    parameters = trained(model)
    branches = None
    if alpha > 0:
        sample = batches.batch(batches.train_numbers[0], device).inputs
        branches = settings.attach(model, places, sample, seed)
        parameters += branches.parameters()
    optimizer = settings.make_optimizer(parameters)
    torch.manual_seed(seed)
    halfway = chance = 1 / settings.classes
    for step, number in enumerate(batches.order(seed, steps)):
        if not go_on():
            return None
        batch = batches.batch(number, device)
        _, loss = settings.forward(model, batch)
        if branches is not None:
            with settings.precision(device):
                loss = loss + alpha * branches.loss(batch.targets)
        if not finite(loss):
            return chance, chance
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step + 1 == steps // 2:
            halfway = held_out_accuracy(model, batches, settings, device)
    return halfway, held_out_accuracy(model, batches, settings, device)


@torch.no_grad()
def held_out_accuracy(model: nn.Module, batches: Batches, settings: Settings, device: torch.device) -> float:
    """Share of held-out samples that the model gets right, in eval mode."""
    model.eval()
    right = count = 0
    # Evaluation must not move the random state that the next training step draws from.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for batch in batches.held_out(device):
            logits, _ = settings.forward(model, batch)
            right += int((logits.argmax(-1) == batch.targets).sum())
            count += len(batch.targets)
    model.train()
    return right / count
