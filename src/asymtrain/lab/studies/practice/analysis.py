"""What the final runs say: differences to Plain with verdicts, epochs and time to Plain's accuracy, calibration.

The rules are in docs/practice-protocol.md. An effect belongs to one arm of one task; its p is corrected over the models
of its table by Holm's method.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from asymtrain.errors import UsageError
from asymtrain.lab.runs import Run, from_stored
from asymtrain.lab.statistics import Verdict, decide, holm
from asymtrain.lab.statistics.estimates import DIFFERENCES, Estimate, estimate
from asymtrain.lab.studies.frame import Left, joined, missing_of
from asymtrain.lab.studies.practice.protocol import (
    BLOCKS,
    CONFIGURATIONS,
    ELSEWHERE,
    MODELS,
    NETWORKS,
    NONE,
    Arm,
    Extent,
    Part,
    StudyTask,
    Task,
    final_seeds,
    final_specs,
)
from asymtrain.lab.studies.practice.selection import RunsById, Selection, final_arms, needs, select, tested
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Block, Needs

MARGIN = 0.5  # points of accuracy: an interval within it shows no meaningful difference
_COMPARED = ["id", "seed", "outcome", "classes", "test_accuracy", "mean_cosine"]  # all take much longer to read

_CONFIGURATION = ("objective", "bias", "layers")  # a step's cost depends on these: alpha and its schedule cost nothing
_MODES = ("eager", "compiled")

ArmPair = tuple[StudyTask, Arm, Arm]  # the second arm is compared with the third


@dataclass(frozen=True)
class StepCost:
    """A training step with branches relative to a plain step of the model, timed by `benchmarks/overhead.py`."""

    model: str
    mode: str  # of _MODES
    branches: Mapping[str, str]  # by the names of _CONFIGURATION
    attached: int  # layers that have a branch
    plain_seconds: float
    ratio: float  # of the step with branches to the plain one
    plain_ratio: float  # of one build of the plain step to another, which shows the measurement error
    device: str
    torch: str


def read_step_costs(files: Iterable[Path]) -> tuple[StepCost, ...]:
    """The rows of `benchmarks/overhead.py --only practice --json FILE`; of equal cases the last row counts."""
    costs: dict[tuple[object, ...], StepCost] = {}
    for file in files:
        try:
            for row in json.loads(file.read_bytes()):
                if row["group"] == "practice":
                    cost = _step_cost(row)
                    costs[cost.model, cost.mode, *(cost.branches[name] for name in _CONFIGURATION)] = cost
        except OSError as error:
            raise UsageError(f"cannot read the costs of steps in {file}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(
                f"{file} does not hold costs of steps, or is damaged: make it with "
                "`python benchmarks/overhead.py --only practice --json FILE`"
            ) from error
    return tuple(costs.values())


def _step_cost(row: Mapping[str, Any]) -> StepCost:
    cost = StepCost(**{field.name: row[field.name] for field in dataclasses.fields(StepCost)})
    cost = dataclasses.replace(cost, branches=from_stored(cost.branches))
    numbers = (cost.plain_seconds, cost.ratio, cost.plain_ratio, cost.attached)
    if cost.mode not in _MODES or not all(math.isfinite(number) and number > 0 for number in numbers):
        raise ValueError(f"no cost of a step: {row}")
    return cost


@dataclass(frozen=True)
class ArmEffect:
    """An arm against another, Plain by default, seed by seed."""

    task: StudyTask
    arm: Arm
    row: Mapping[str, Any]  # of `comparisons.compare`
    differences: tuple[float, ...]  # in points, of each seed
    epochs: tuple[tuple[int | None, int | None], ...]  # by seed, until Plain and the arm reach Plain's last accuracy
    calibration: Estimate  # of the differences of calibration errors
    calibration_errors: tuple[float | None, float | None]  # means of Plain and of the arm, over pairs that have both
    spec_ids: tuple[str, ...]
    seeds_needed: int  # seeds of the protocol
    p_holm: float | None = None
    # The costs of this configuration on this model, one for each mode, if known.
    step_costs: tuple[StepCost, ...] = ()
    against: Arm = NONE
    courses: tuple[tuple[float | None, ...], ...] = ()  # in points, of each seed at each epoch

    @property
    def reached(self) -> list[tuple[int, int]]:
        """Epochs until Plain and the arm reach Plain's last accuracy, for the seeds whose arm reaches it."""
        return [(own, other) for own, other in self.epochs if own is not None and other is not None]

    @property
    def mean_epochs(self) -> tuple[float | None, float | None]:
        """The means for Plain and for the arm, over the same seeds."""
        reached = self.reached
        return (fmean(own for own, _ in reached), fmean(other for _, other in reached)) if reached else (None, None)

    def relative_time(self, cost: StepCost) -> float | None:
        """Time until Plain's last accuracy, in steps alone: with branches, over Plain's."""
        plain, other = self.mean_epochs
        return None if plain is None or other is None else other * cost.ratio / plain

    @property
    def verdict(self) -> Verdict:
        estimate, low, high, n = (self.row[name] for name in ("points", "points_low", "points_high", "n"))
        return decide(estimate, low, high, n, p=self.p_holm, fewest=self.seeds_needed, margin=MARGIN).verdict


@dataclass(frozen=True)
class Reached:
    """What a network of a published table reaches, after its last epoch and at its best one."""

    task: Task
    arm: Arm
    last: Estimate
    best: float  # a mean too
    spec_ids: tuple[str, ...]


@dataclass(frozen=True)
class Results:
    """What the stored runs say."""

    study: Extent
    selections: tuple[Selection, ...]  # only the first wave, if the second is missing
    # The main table: each model's configuration that validation selected, on CIFAR-100 by the ordinary recipe.
    selected: tuple[ArmEffect, ...]
    configurations: Mapping[str, tuple[ArmEffect, ...]]  # the best candidate of each objective on every model
    parts: Mapping[Part, tuple[ArmEffect, ...]]  # of the other blocks
    reached: tuple[Reached, ...]  # by the networks of published tables
    plain: tuple[str, ...]  # arms of the part `fixed` that are Plain, since no setting with branches has the best rank
    unfinished: tuple[tuple[Block, Left], ...]


def analyse(study: Extent, runs: RunsById, costs: Sequence[StepCost] = ()) -> Results:
    """Selections and effects. The main table is a family of tests, and so is each arm on one dataset of a part.

    `costs` of steps are added to the effects of the main table.
    """
    comparisons = {part: _comparisons(study, part, runs) for part in get_args(Part)}
    plain = dict.fromkeys(arm.name for _, arm, _ in comparisons["fixed"] if not arm.fields["redundancy"])
    effects = {part: _part_effects(study, comparisons[part], runs) for part in comparisons}
    selections = [select(study, task, runs) for task in _tasks("study")]
    complete = tuple(selection for selection in selections if selection is not None)
    chosen = {(selection.task, selection.selected) for selection in complete}
    studied = effects.pop("study")
    configurations = {name: tuple(effect for effect in studied if effect.arm.name == name) for name in CONFIGURATIONS}
    selected = corrected([effect for effect in studied if (effect.task, effect.arm.name) in chosen])
    for i, effect in enumerate(selected):
        branches = {name: effect.arm.fields[name] for name in _CONFIGURATION}
        own = tuple(cost for cost in costs if (cost.model, cost.branches) == (effect.task.model, branches))
        selected[i] = dataclasses.replace(effect, step_costs=own)
    reached, left = _reached(study, runs), unfinished(BLOCKS, lambda task: needs(study, task, runs), runs)
    return Results(study, complete, tuple(selected), configurations, effects, reached, tuple(plain), left)


def unfinished(
    blocks: Mapping[str, Block], needs_of: Callable[[Any], Needs], runs: RunsById
) -> tuple[tuple[Block, Left], ...]:
    """The blocks with missing runs, and what they lack."""
    left = [(block, missing_of(joined(map(needs_of, block.parts)), Snapshot(runs))) for block in blocks.values()]
    return tuple(pair for pair in left if not pair[1].is_empty)


def is_recommended(results: Results) -> bool | None:
    """May the setting for all models be a preset? None while models or seeds are missing.

    The setting that other families chose must be harmless or help on every model, and help on at least one. If Plain
    has the best rank, there is no such setting.
    """
    effects = [effect for effect in results.parts["fixed"] if effect.arm.name == ELSEWHERE]
    if results.plain:
        return False
    if len(effects) < len(MODELS) or any(effect.row["n"] < effect.seeds_needed for effect in effects):
        return None
    verdicts = {effect.verdict for effect in effects}
    return "helps" in verdicts and verdicts <= {"helps", "no meaningful difference", "harmless"}


def _tasks(part: Part) -> list[Task]:
    """Tasks of all blocks that ask for this part, models in the order of the protocol."""
    tasks = [task for block in BLOCKS.values() for task in block.parts if task.part == part]
    datasets, models = list(dict.fromkeys(task.data for task in tasks)), list(NETWORKS)
    return sorted(tasks, key=lambda task: (datasets.index(task.data), models.index(task.model)))


def _comparisons(study: Extent, part: Part, runs: RunsById) -> list[ArmPair]:
    """Each arm with the arm that it is compared with."""
    arms = [(task, final_arms(study, task, runs) or []) for task in _tasks(part)]
    if part == "signal":  # without a control, the selected configuration would only repeat the main table
        arms = [(task, own) for task, own in arms if any(spec.id in runs for spec in final_specs(study, task, own[2:]))]
    if part != "tuned":
        return [(task, arm, NONE) for task, own in arms for arm in own[1:]]
    compared = []
    for task, own in arms:
        if len(own) == 4:  # fewer if no change tunes the baseline
            none, selected, tuned, both = own
            compared.append([(task, both, tuned), (task, tuned, none), (task, selected, tuned)])
    return [comparison for same in zip(*compared, strict=True) for comparison in same]


def _part_effects(study: Extent, comparisons: Iterable[ArmPair], runs: RunsById) -> tuple[ArmEffect, ...]:
    """Effects, corrected over the models that have the same arm on the same data."""
    effects = compare_arms(study, comparisons, runs)
    families: dict[tuple[str, str], list[int]] = {}
    for i, effect in enumerate(effects):
        families.setdefault((effect.arm.name, effect.task.data), []).append(i)
    for members in families.values():
        for i, effect in zip(members, corrected([effects[i] for i in members]), strict=True):
            effects[i] = effect
    return tuple(effects)


def corrected(effects: Sequence[ArmEffect]) -> list[ArmEffect]:
    """The effects as one family, with Holm's p. An effect without p takes no part."""
    tested = [effect.row["p"] for effect in effects if effect.row["p"] is not None]
    adjusted = iter(holm(tested))
    return [
        effect if effect.row["p"] is None else dataclasses.replace(effect, p_holm=next(adjusted)) for effect in effects
    ]


def compare_arms(study: Extent, comparisons: Iterable[ArmPair], runs: RunsById) -> list[ArmEffect]:
    """The effect of each comparison over the seeds with both arms stored; one without such a seed is left out."""
    from asymtrain.lab.comparisons import paired, summarised
    from asymtrain.lab.report.frames import rows_frame
    from asymtrain.lab.report.summary import records

    sides = []  # task, arm, what it is compared with, and the two runs of each seed
    for task, arm, against in comparisons:
        first, other = (
            {spec.seed: runs[spec.id] for spec in final_specs(study, task, [side]) if spec.id in runs}
            for side in (against, arm)
        )
        pairs = [(first[seed], other[seed]) for seed in final_seeds(study, task) if seed in first and seed in other]
        if pairs and pairs[0][0].spec != pairs[0][1].spec:  # an arm may turn out to be Plain
            sides.append((task, arm, against, pairs))
    if not sides:
        return []
    rows = rows_frame([run for *_, pairs in sides for pair in pairs for run in pair])[_COMPARED]
    # By number, so that a Plain run can be in several; and by side, since Plain with label smoothing is an arm too.
    layers = [
        (number, variant, run.spec.id)
        for number, (*_, pairs) in enumerate(sides)
        for pair in pairs
        for variant, run in zip(("plain", "asymmetric"), pair, strict=True)
    ]
    numbers, variants, ids = zip(*layers, strict=True)
    frame = rows.set_index("id", drop=False).loc[list(ids)].reset_index(drop=True)
    frame = frame.assign(comparison=numbers, variant=variants)
    seeds, by = paired(frame, ["comparison"])
    differences = 100 * (seeds["asymmetric"] - seeds["plain"])
    effects = []
    for number, row in enumerate(records(summarised(seeds, by))):
        task, arm, against, pairs = sides[number]
        errors = [(plain.calibration_error, other.calibration_error) for plain, other in pairs]
        both = [(a, b) for a, b in errors if a is not None and b is not None]
        effects.append(
            ArmEffect(
                task,
                arm,
                row,
                tuple(map(float, differences[seeds["comparison"] == number])),
                tuple(epochs_to_plain(*pair) for pair in pairs),
                estimate([b - a for a, b in both], within=DIFFERENCES),
                (estimate(a for a, _ in both).mean, estimate(b for _, b in both).mean),
                tuple(run.spec.id for pair in pairs for run in pair),
                len(final_seeds(study, task)),
                against=against,
                courses=tuple(_course(*pair) for pair in pairs),
            )
        )
    return effects


def _reached(study: Extent, runs: RunsById) -> tuple[Reached, ...]:
    """The baseline and each arm for each network of a published table, as far as they are stored."""
    tasks = _tasks("published")
    arms = {(task.model, arm.name): (task, arm) for task in tasks for arm in final_arms(study, task, runs) or ()}
    reached = []
    for task, arm in arms.values():
        finished = [runs[spec.id] for spec in final_specs(study, task, [arm]) if spec.id in runs]
        if finished:
            best = (max((epoch.test_accuracy or 0.0 for epoch in run.history), default=0.0) for run in finished)
            ids = tuple(run.spec.id for run in finished)
            reached.append(Reached(task, arm, estimate(map(tested, finished)), fmean(best), ids))
    return tuple(reached)


def _course(plain: Run, other: Run) -> tuple[float | None, ...]:
    """The difference by epoch, up to the end of the longer run; None where one of them was not tested."""
    both = zip_longest(*([epoch.test_accuracy for epoch in run.history] for run in (plain, other)))
    return tuple(None if before is None or after is None else 100 * (after - before) for before, after in both)


def epochs_to_plain(plain: Run, other: Run) -> tuple[int | None, int | None]:
    """The first epoch at which each reaches the final test accuracy of the seed's Plain run; None if it never does."""
    target = plain.test_accuracy
    if target is None or plain.outcome == "diverged":
        return None, None
    return _first_epoch(plain, target), None if other.outcome == "diverged" else _first_epoch(other, target)


def _first_epoch(run: Run, target: float) -> int | None:
    reached = (epoch.epoch for epoch in run.history if (epoch.test_accuracy or 0.0) >= target)
    return next(reached, None)
