"""The probe of our own backbones: the paired runs are specs, and train as one stack of the engine."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from asymtrain.lab import executors
from asymtrain.lab.data import Dataset
from asymtrain.lab.engine import Progress, default_device
from asymtrain.lab.engine.schedule import steps_of
from asymtrain.lab.engine.setup import build_backbone, run_data
from asymtrain.lab.probe.budget import Clock, Plan, ShadowLimit
from asymtrain.lab.probe.inputs import gather
from asymtrain.lab.probe.probing import FIRST_SEED, conduct, shadow_of_model
from asymtrain.lab.probe.result import Probe, Shadow, Trial
from asymtrain.lab.probe.rule import RULE, Rule, kept_places
from asymtrain.lab.probe.sources import ImageBatches
from asymtrain.lab.probe.training import Settings
from asymtrain.lab.runs import Run, RunSpec, grid
from asymtrain.streams import random_state_kept

LEAST_EPOCHS = 2  # the runs are compared halfway and at the end


def probe_backbone(
    base: RunSpec,
    dataset: Dataset,
    *,
    alphas: Sequence[float] = (0.1, 1.0),
    seeds: int = 3,
    steps: int = 300,
    minutes: float | None = None,
    every: int = 5,
    device: str | None = None,
    store: Path | None = None,
    data_root: Path | None = None,
    rule: Rule = RULE,
    progress: Callable[[str], None] = lambda _: None,
    on_epochs: Callable[[Progress], None] | None = None,
) -> Probe:
    """`probe` of a spec's backbone, with its data, batch size, learning rate and weight decay.

    `on_epochs` is told of the paired runs as they train.
    """
    clock = Clock(minutes)

    def train_shadow(limit: ShadowLimit) -> Shadow:
        return shadow_of(base, dataset, steps=steps, every=every, device=device, limit=limit, progress=progress)

    def train_pairs(plan: Plan, shadow: Shadow) -> list[Trial]:
        progress(f"paired runs: {len(plan.seeds)} seeds at alpha {', '.join(f'{a:g}' for a in plan.alphas)}")
        kept = kept_places(shadow)
        spec = base if len(kept) == len(shadow.places) else with_places(base, kept)
        specs = trial_specs(spec, dataset, alphas=plan.alphas, seeds=plan.seeds, steps=plan.steps)
        left = None if minutes is None else max(0.01, clock.left() / 60)
        runs = executors.execute(
            specs, store=store, device=device, minutes=left, data_root=data_root, progress=on_epochs
        )
        return read_trials(list(runs), plan.alphas, dataset, plan.steps)

    return conduct(clock, train_shadow, train_pairs, alphas, seeds, steps, rule)


def shadow_of(
    base: RunSpec,
    dataset: Dataset,
    *,
    steps: int,
    every: int = 5,
    device: str | None = None,
    limit: ShadowLimit | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Shadow:
    """The shadow training of a spec's backbone, of all steps where there is no limit."""
    spec = dataclasses.replace(base, seed=FIRST_SEED, redundancy=max(1, base.redundancy))
    images = ImageBatches(dataset, spec.batch, seed=FIRST_SEED, indices=run_data(spec, dataset).train)

    optimizer = partial(torch.optim.AdamW, lr=spec.learning_rate, weight_decay=spec.weight_decay)
    with random_state_kept():
        backbone = build_backbone(spec, dataset)
        options = {"layout": backbone.layout, "pool": backbone.pool, "class_reduction": spec.over_classes}
        settings = Settings(dataset.classes, optimizer=optimizer, every=every, branch_options=options)
        model, batches = backbone.to(default_device(device)).train(), gather(images, most=2 * steps + 16)
        return shadow_of_model(
            model, batches, list(backbone.points), settings, steps=steps,
            limit=limit or ShadowLimit(Clock(None), 0, lambda _: Plan(0, (), ())), progress=progress,
        )  # fmt: skip


def trial_specs(
    base: RunSpec, dataset: Dataset, *, alphas: Sequence[float], seeds: Sequence[int], steps: int
) -> list[RunSpec]:
    """Plain and Asymmetric of each seed and alpha, of about `steps` steps and at least two epochs.

    Where that is less than two passes over the training images, the runs get fewer images of each class. The test
    images are not touched: a probe compares on validation images.
    """
    first = dataclasses.replace(
        base, seed=FIRST_SEED, validation="split", test="never", redundancy=max(1, base.redundancy)
    )
    epoch_steps, _ = steps_of(first, len(run_data(first, dataset).train))
    per_class = base.per_class
    if steps < LEAST_EPOCHS * epoch_steps:
        wanted = max(1, steps * base.batch // (LEAST_EPOCHS * dataset.classes))
        # No more than the smallest class has, in the split that has the fewest of it.
        splits = [run_data(dataclasses.replace(first, seed=seed, label_noise=0.0), dataset) for seed in seeds]
        counts = [np.bincount(split.labels[split.train], minlength=dataset.classes) for split in splits]
        per_class = min(wanted, int(np.min(counts)))
    epochs = max(LEAST_EPOCHS, round(steps / epoch_steps))
    specs = grid(dataclasses.replace(first, epochs=epochs, per_class=per_class), seed=seeds, alpha=alphas)
    return list(dict.fromkeys(run for spec in specs for run in (spec.plain(), spec)))


def read_trials(runs: Sequence[Run], alphas: Sequence[float], dataset: Dataset, steps: int) -> list[Trial]:
    """Trials of the seeds whose runs are all there."""
    chance = 1 / dataset.classes
    by_key = {(run.spec.alpha if run.spec.redundancy else 0.0, run.spec.seed): _accuracies(run, chance) for run in runs}
    seeds = [s for s in dict.fromkeys(run.spec.seed for run in runs) if all((a, s) in by_key for a in (0.0, *alphas))]
    if not seeds:
        return []
    plain = tuple(by_key[0.0, seed] for seed in seeds)
    held_out = len(run_data(runs[0].spec, dataset).validation)
    return [Trial(a, tuple(seeds), plain, tuple(by_key[a, seed] for seed in seeds), steps, held_out) for a in alphas]


def with_places(spec: RunSpec, places: Sequence[str]) -> RunSpec:
    numbers = tuple(int(name.rpartition(".")[2]) for name in places)
    return dataclasses.replace(spec, arch_options={**dict(spec.arch_options), "points": numbers})  # type: ignore[arg-type]


def _accuracies(run: Run, chance: float) -> tuple[float, float]:
    if run.outcome == "diverged":
        return chance, chance
    seen = [epoch.validation_accuracy or 0.0 for epoch in run.history]
    return seen[len(seen) // 2 - 1], seen[-1]
