"""What is chosen, and what a task needs next: from stored validation accuracies alone, except for the number of seeds.

The number of a confirmation's seeds depends on the width of its interval, never on its sign.
"""

from collections.abc import Iterable, Mapping
from statistics import fmean

from asymtrain.lab.candidates import Candidate
from asymtrain.lab.runs import Run
from asymtrain.lab.statistics import t_interval
from asymtrain.lab.studies.default import protocol
from asymtrain.lab.studies.default.protocol import (
    CANDIDATES,
    CHOOSING,
    LARGEST_LOSS,
    MODELS,
    DefaultTask,
    Kind,
    candidate_for,
)
from asymtrain.lab.studies.practice.protocol import NONE, Arm, Extent, arm_of, final_specs, selection_specs
from asymtrain.lab.studies.practice.selection import RunsById, tested, validated
from asymtrain.lab.studies.study import Needs

OTHERS, DEFAULT, OWN = "chosen by other families", "the default", "its own"  # names of the arms of a confirmation
Gains = Mapping[str, float]  # by candidate: points of validation accuracy above the baseline


def selecting(kind: Kind) -> list[DefaultTask]:
    """The tasks whose models choose for this kind."""
    tasks = [DefaultTask(model, "select") for model in CHOOSING]
    return [task for task in tasks if task.kind == kind]


def gains(study: Extent, task: DefaultTask, runs: RunsById) -> Gains | None:
    """The gain of each candidate, mean over the seeds of the selection; None until all are trained."""
    means = {}
    for arm in protocol.arms(task.kind):
        ids = [spec.id for spec in selection_specs(study, task, [arm])]
        if not all(spec_id in runs for spec_id in ids):
            return None
        means[arm.name] = fmean(validated(runs[spec_id]) for spec_id in ids)
    return {name: 100 * (means[name] - means[NONE.name]) for name in CANDIDATES}


def choice(by_model: Mapping[str, Gains]) -> str | None:
    """The candidate with the largest mean gain, families counted equally; None if none gains.

    A candidate that costs one of these models more than `LARGEST_LOSS` cannot be chosen. Ties go to the first.
    """
    families: dict[str, list[Gains]] = {}
    for model, own in by_model.items():
        families.setdefault(MODELS[model].family, []).append(own)
    safe = [name for name in CANDIDATES if min(own[name] for own in by_model.values()) >= -LARGEST_LOSS]
    scores = {name: fmean(fmean(own[name] for own in members) for members in families.values()) for name in safe}
    best = max(scores, key=scores.__getitem__, default=None)
    return best if best is not None and scores[best] > 0 else None


def choices(study: Extent, task: DefaultTask, runs: RunsById) -> dict[str, str | None] | None:
    """By arm, the candidate that a task trains on fresh seeds (None: no branches); None until all is selected."""
    gains_of = {other: gains(study, other, runs) for other in selecting(task.kind)}
    by_model = {other.model: own for other, own in gains_of.items() if own is not None}
    if len(by_model) < len(gains_of):
        return None
    default = choice(by_model)
    if task.part == "unseen":
        return {DEFAULT: default}
    others = choice({model: own for model, own in by_model.items() if MODELS[model].family != task.family})
    return {OTHERS: others, DEFAULT: default, OWN: choice({task.model: by_model[task.model]})}


def final_arms(study: Extent, task: DefaultTask, runs: RunsById) -> list[Arm] | None:
    """The arms of a task on fresh seeds, the baseline first; an arm without branches is left out."""
    chosen = choices(study, task, runs)
    if chosen is None:
        return None
    return [NONE, *(arm_of(arm, candidate_for(task.kind, name)) for arm, name in chosen.items() if name is not None)]


def seeds(study: Extent, task: DefaultTask, runs: RunsById) -> tuple[int, ...]:
    """The seeds of a task: more if the interval of its first arm is too wide to say anything."""
    arms, count = final_arms(study, task, runs), protocol.FIRST_SEEDS
    while arms is not None and len(arms) > 1 and count < len(study.seeds):
        own = study.seeds[:count]
        plain, other = (
            {spec.seed: runs.get(spec.id) for spec in final_specs(study, task, [arm]) if spec.seed in own}
            for arm in arms[:2]
        )
        pairs = [(a, b) for a, b in zip(plain.values(), other.values(), strict=True) if a is not None and b is not None]
        if len(pairs) < count or not _is_wide(pairs):
            break
        count += protocol.MORE_SEEDS
    return study.seeds[:count]


def _is_wide(pairs: Iterable[tuple[Run, Run]]) -> bool:
    points = [100 * (tested(other) - tested(plain)) for plain, other in pairs]
    if len(set(points)) == 1:
        return False
    interval = t_interval(points)
    return (interval.high - interval.low) / 2 > protocol.WIDE


def needs(study: Extent, task: DefaultTask, runs: RunsById) -> Needs:
    """What a task needs, as far as the stored runs tell."""
    if task.part == "select":
        return Needs(tuple(selection_specs(study, task, protocol.arms(task.kind))))
    arms = final_arms(study, task, runs)
    if arms is None:
        alike = [NONE, *(arm_of(str(i), Candidate(alpha=1.0 + i)) for i in range(1 if task.part == "unseen" else 3))]
        first = study.seeds[: protocol.FIRST_SEEDS]
        missing = tuple(other for other in selecting(task.kind) if gains(study, other, runs) is None)
        like = tuple(spec for spec in final_specs(study, task, alike) if spec.seed in first)
        return Needs(stand_ins=like, waits_for=missing)
    own = seeds(study, task, runs)
    return Needs(tuple(spec for spec in final_specs(study, task, arms) if spec.seed in own))
