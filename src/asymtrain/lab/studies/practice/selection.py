"""Which candidates go on, and what a task needs next: from validation accuracies of stored runs alone."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from asymtrain.lab.candidates import Candidate
from asymtrain.lab.data import class_count
from asymtrain.lab.runs import Run
from asymtrain.lab.studies.practice import protocol
from asymtrain.lab.studies.practice.protocol import (
    AHEAD,
    CONFIGURATIONS,
    CONTROLS,
    ELSEWHERE,
    FALLING,
    LASTING,
    MODELS,
    NONE,
    SELECTED,
    TUNED_BRANCHES,
    Arm,
    Extent,
    Task,
    arm_of,
)
from asymtrain.lab.studies.study import Needs

RunsById = Mapping[str, Run]  # by spec id


@dataclass(frozen=True)
class ArmTrial:
    """An arm of a selection, with the validation accuracy of each of its seeds after the last epoch."""

    arm: Arm
    accuracies: tuple[float, ...]
    spec_ids: tuple[str, ...]

    @property
    def mean(self) -> float:
        return math.fsum(self.accuracies) / len(self.accuracies)

    @cached_property
    def candidate(self) -> Candidate | None:
        fields = self.arm.fields
        return Candidate(**{name: fields[name] for name in Candidate().fields()}) if fields["redundancy"] else None


@dataclass(frozen=True)
class Selection:
    """The finished trials of a task, in the order of the protocol."""

    task: Task
    first: tuple[ArmTrial, ...]
    second: tuple[ArmTrial, ...] = ()
    complete: bool = False

    @property
    def trials(self) -> tuple[ArmTrial, ...]:
        return (*self.first, *self.second)

    def best(self, name: str) -> ArmTrial:
        """The best trial; ties go to the first: the smaller alpha, and the simpler configuration."""
        return max((trial for trial in self.trials if trial.arm.name == name), key=lambda trial: trial.mean)

    @property
    def configurations(self) -> dict[str, Candidate]:
        """The best candidate of each configuration."""
        return {name: candidate for name in CONFIGURATIONS if (candidate := self.best(name).candidate) is not None}

    @property
    def selected(self) -> str:
        """The configuration with the best of all trials with branches."""
        return max(CONFIGURATIONS, key=lambda name: self.best(name).mean)


def select(study: Extent, task: Task, runs: RunsById) -> Selection | None:
    """What the stored runs select for the model of a task; None before the first wave is finished."""
    first = _trials(study, task, protocol.first_wave(), runs)
    if first is None:
        return None
    half = Selection(task, first)
    second = _trials(study, task, protocol.second_wave(half.configurations), runs)
    return half if second is None else Selection(task, first, second, complete=True)


def _on_top(tuned: Arm, candidate: Candidate) -> Arm:
    """A configuration of branches on top of a tuned baseline."""
    changes = dict(tuned.settings[len(NONE.settings) :])
    arm = arm_of(TUNED_BRANCHES, candidate, **changes)
    return dataclasses.replace(arm, label=f"{candidate.label}; {tuned.label.removeprefix('Plain, ')}")


def _trials(study: Extent, task: Task, arms: Iterable[Arm], runs: RunsById) -> tuple[ArmTrial, ...] | None:
    trials = []
    for arm in arms:
        specs = protocol.selection_specs(study, task, [arm])
        if not all(spec.id in runs for spec in specs):
            return None
        trials.append(ArmTrial(arm, tuple(validated(runs[s.id]) for s in specs), tuple(s.id for s in specs)))
    return tuple(trials)


def validated(run: Run) -> float:
    """Validation accuracy after the last epoch; a diverged run counts at chance."""
    return _or_chance(run, run.history[-1].validation_accuracy if run.history else None)


def tested(run: Run) -> float:
    """Test accuracy after the last epoch; a diverged run counts at chance."""
    return _or_chance(run, run.test_accuracy)


def _or_chance(run: Run, accuracy: float | None) -> float:
    if run.outcome == "diverged":
        classes = class_count(run.spec.dataset, dict(run.spec.dataset_options)) or run.classes
        return 1 / classes if classes else 0.0
    assert accuracy is not None, f"{run.spec.id} has no such accuracy"
    return accuracy


def mean_ranks(selections: Sequence[Selection]) -> list[float]:
    """For each setting of the first wave, including none, the mean rank over models; ties share their mean rank."""
    ranks = [0.0] * len(selections[0].first)
    for selection in selections:
        means = [trial.mean for trial in selection.first]
        for i, mean in enumerate(means):
            ranks[i] += 1 + sum(other > mean for other in means) + (means.count(mean) - 1) / 2
    return [rank / len(selections) for rank in ranks]


def fixed_setting(selections: Sequence[Selection]) -> Arm:
    """The setting of the first wave with the best mean rank; ties go to the first: none, then the smaller alpha."""
    ranks = mean_ranks(selections)
    return selections[0].first[ranks.index(min(ranks))].arm


def needs(study: Extent, task: Task, runs: RunsById) -> Needs:
    """What a task needs, as far as the stored runs tell."""
    return (_study_needs if task.part == "study" else _other_needs)(study, task, runs)


def _study_needs(study: Extent, task: Task, runs: RunsById) -> Needs:
    first = protocol.selection_specs(study, task, protocol.first_wave())
    second_like = protocol.selection_specs(study, task, protocol.second_wave(CONFIGURATIONS))
    final_like = protocol.final_specs(study, task, [NONE, *itertools.starmap(arm_of, CONFIGURATIONS.items())])
    selection = select(study, task, runs)
    if selection is None:
        return Needs(tuple(first), stand_ins=(*second_like, *final_like))
    if not selection.complete:
        half = protocol.second_wave(selection.configurations)
        return Needs((*first, *protocol.selection_specs(study, task, half)), stand_ins=tuple(final_like))
    second = protocol.selection_specs(study, task, [trial.arm for trial in selection.second])
    return Needs((*first, *second, *protocol.final_specs(study, task, final_arms(study, task, runs) or ())))


def _other_needs(study: Extent, task: Task, runs: RunsById) -> Needs:
    trials = protocol.selection_specs(study, task, protocol.plain_trials(task))
    arms = final_arms(study, task, runs)
    if arms is not None:
        return Needs((*trials, *protocol.final_specs(study, task, arms)))
    # How many of a task's arms no other task trains.
    new = {"transfer": 3, "strong": 2, "fixed": 2, "controls": 3, "tuned": 2, "signal": 4, "length": 3, "seeds": 2}
    alike = [arm_of(f"{i}", protocol.at_alpha("sigmoid", 1.0 + i)) for i in range(new[task.part])]
    waits = tuple(origin for origin in _origins(task) if not _is_selected(study, origin, runs))
    alike_specs = protocol.final_specs(study, task, alike)
    return Needs(tuple(trials), stand_ins=tuple(alike_specs), waits_for=waits)


def _origins(task: Task) -> list[Task]:
    """The tasks of the study whose selection this one takes; for `fixed` those of all models."""
    return [Task(model) for model in MODELS] if task.part == "fixed" else [task.origin]


def _is_selected(study: Extent, task: Task, runs: RunsById) -> bool:
    selection = select(study, task, runs)
    return selection is not None and selection.complete


def final_arms(study: Extent, task: Task, runs: RunsById) -> list[Arm] | None:
    """The arms of a task's final runs, Plain first; None until they are selected."""
    if task.part == "published":
        return [NONE, arm_of(task.arm, AHEAD[task.arm])]
    selection = select(study, task.origin, runs)
    if selection is None or not selection.complete:
        return None
    configurations = selection.configurations
    selected = configurations[selection.selected]
    own = arm_of(SELECTED, selected)
    if task.part == "study":
        return [NONE, *itertools.starmap(arm_of, configurations.items())]
    if task.part == "transfer":
        return [NONE, own, protocol.recommended_arm(task.model)]
    if task.part in ("strong", "seeds"):
        return [NONE, own]
    if task.part == "length":
        return [NONE, own, arm_of(FALLING, LASTING)]
    if task.part in ("controls", "tuned", "signal"):
        trials = _trials(study, task, [NONE, *protocol.plain_trials(task)], runs)
        if trials is None:
            return None
        best = max(trials, key=lambda trial: trial.mean).arm
        changed = [] if best is NONE else [best]
        if task.part == "tuned":
            return [NONE, own, *changed, *(_on_top(arm, selected) for arm in changed)]
        names = ("random labels", "frozen branches") if task.part == "controls" else tuple(CONTROLS)
        return [NONE, own, *(arm_of(name, selected, **CONTROLS[name]) for name in names), *changed]
    if not all(_is_selected(study, origin, runs) for origin in _origins(task)):
        return None
    every = [other for origin in _origins(task) if (other := select(study, origin, runs)) is not None]
    family = MODELS[task.model].family
    others = [other for other in every if MODELS[other.task.model].family != family]
    settings = {"chosen by all models": fixed_setting(every), ELSEWHERE: fixed_setting(others)}
    return [NONE, *(dataclasses.replace(arm, name=name) for name, arm in settings.items())]
