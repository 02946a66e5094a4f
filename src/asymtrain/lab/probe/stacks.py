"""The probe of our own backbones: the paired runs are specs, and train as one stack of the engine."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from asymtrain.lab import executors
from asymtrain.lab.data import Dataset
from asymtrain.lab.engine import default_device
from asymtrain.lab.engine.setup import build_backbone, run_data
from asymtrain.lab.probe.batches import gather
from asymtrain.lab.probe.budget import Clock, Plan, ShadowLimit, notes_on_time, plan_trials
from asymtrain.lab.probe.copying import random_state_kept
from asymtrain.lab.probe.findings import Probe, Shadow, Trial
from asymtrain.lab.probe.probing import FIRST_SEED, shadow_of_model
from asymtrain.lab.probe.rule import RULE, Rule, advise, kept_places
from asymtrain.lab.probe.settings import Settings
from asymtrain.lab.probe.sources import ImageBatches
from asymtrain.lab.runs import Run, RunSpec, grid

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
) -> Probe:
    """`probe` of a spec's backbone, with its data, batch size, learning rate and weight decay."""
    clock = Clock(minutes)

    def fitting(each: float) -> Plan:
        return plan_trials(steps, range(FIRST_SEED, FIRST_SEED + seeds), alphas, each, clock.left())

    limit = ShadowLimit(clock, rule.least_steps // 2, lambda each: bool(fitting(each).alphas))
    shadow = shadow_of(base, dataset, steps=steps, every=every, device=device, limit=limit, progress=progress)
    plan = fitting(shadow.step_seconds)
    trials: list[Trial] = []
    if plan.alphas:
        progress(f"paired runs: {len(plan.seeds)} seeds at alpha {', '.join(f'{a:g}' for a in plan.alphas)}")
        kept = [one.place for one in kept_places(shadow)]
        spec = base if len(kept) == len(shadow.places) else with_places(base, kept)
        specs = trial_specs(spec, dataset, alphas=plan.alphas, seeds=plan.seeds, steps=plan.steps)
        left = None if minutes is None else max(0.01, clock.left() / 60)
        runs = executors.execute(specs, store=store, device=device, minutes=left, data_root=data_root)
        trials = read_trials(list(runs), plan.alphas, dataset, plan.steps)
    seeds_done = len(trials[0].seeds) if trials else 0
    notes = notes_on_time(plan, seeds_done, shadow.steps, steps)
    return Probe(shadow, tuple(trials), advise(shadow, trials, rule), notes, clock.passed())


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
    place = default_device(device)
    spec = dataclasses.replace(base, seed=FIRST_SEED, redundancy=max(1, base.redundancy))
    images = ImageBatches(dataset, spec.batch, seed=FIRST_SEED, indices=run_data(spec, dataset).train)

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=spec.learning_rate, weight_decay=spec.weight_decay)

    with random_state_kept():
        backbone = build_backbone(spec, dataset)
        options = {"layout": backbone.layout, "pool": backbone.pool, "over_classes": spec.over_classes}
        settings = Settings(dataset.classes, optimizer=optimizer, every=every, branch_options=options)
        return shadow_of_model(
            backbone.to(place).train(), gather(images, most=2 * steps + 16), list(backbone.points), settings,
            steps=steps, limit=limit or ShadowLimit(Clock(None), 0, lambda _: True), progress=progress,
        )  # fmt: skip


def trial_specs(
    base: RunSpec, dataset: Dataset, *, alphas: Sequence[float], seeds: Iterable[int], steps: int
) -> list[RunSpec]:
    """Plain and Asymmetric of each seed and alpha, of about `steps` steps and at least two epochs.

    Where that is less than two passes over the training images, the runs get fewer images of each class. The test
    images are not touched: a probe compares on validation images.
    """
    first = dataclasses.replace(
        base, seed=FIRST_SEED, validation="split", test="never", redundancy=max(1, base.redundancy)
    )
    data = run_data(first, dataset)
    epoch_steps = -(-len(data.train) // base.batch)
    fields: dict[str, int | None] = {
        "epochs": max(LEAST_EPOCHS, round(steps / epoch_steps)),
        "per_class": base.per_class,
    }
    if steps < LEAST_EPOCHS * epoch_steps:
        wanted = max(1, steps * base.batch // (LEAST_EPOCHS * dataset.classes))
        fields["per_class"] = min(wanted, _least_of_a_class(first, dataset, list(seeds)))
    specs = grid(dataclasses.replace(first, **fields), seed=seeds, alpha=alphas)  # type: ignore[arg-type]
    return list(dict.fromkeys(one for spec in specs for one in (spec.plain(), spec)))


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
    """The spec with branches at these blocks only."""
    numbers = tuple(int(name.rpartition(".")[2]) for name in places)
    return dataclasses.replace(spec, arch_options={**dict(spec.arch_options), "points": numbers})  # type: ignore[arg-type]


def _accuracies(run: Run, chance: float) -> tuple[float, float]:
    if run.outcome == "diverged":
        return chance, chance
    seen = [epoch.validation_accuracy or 0.0 for epoch in run.history]
    return seen[len(seen) // 2 - 1], seen[-1]


def _least_of_a_class(spec: RunSpec, dataset: Dataset, seeds: Sequence[int]) -> int:
    """How many training images the smallest class has, in the split that has the fewest of it."""
    counts = [
        np.bincount(data.labels[data.train], minlength=dataset.classes).min()
        for data in (run_data(dataclasses.replace(spec, seed=seed, label_noise=0.0), dataset) for seed in seeds)
    ]
    return int(min(counts))
