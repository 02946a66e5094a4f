"""The results of the study of a default: its conditions, differences on fresh seeds, the forest plot, the selection."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from asymtrain.lab.report.figure import Figure, Headline, Page
from asymtrain.lab.report.table import Column, Table, make_rows, table_json
from asymtrain.lab.statistics import Verdict
from asymtrain.lab.studies.default.protocol import (
    BLOCKS,
    CANDIDATES,
    KEPT,
    LEAST_HELPED,
    OWN_GAIN,
    DefaultTask,
    Kind,
    Part,
    candidate_for,
)
from asymtrain.lab.studies.default.selection import (
    DEFAULT,
    OTHERS,
    OWN,
    choices,
    final_arms,
    gains,
    needs,
    seeds,
    selecting,
)
from asymtrain.lab.studies.practice.analysis import ArmEffect, compare_arms, corrected, unfinished
from asymtrain.lab.studies.practice.page import RULE, effects_table, forest, missing_table
from asymtrain.lab.studies.practice.protocol import NONE, Extent
from asymtrain.lab.studies.practice.selection import RunsById
from asymtrain.lab.texts import counted

SAFE: frozenset[Verdict] = frozenset({"helps", "no meaningful difference", "harmless"})
KINDS: tuple[Kind, ...] = ("tokens", "convolutions")


@dataclass(frozen=True)
class Arms:
    """One arm of all tasks of a part: its effects, and whether every task has them."""

    effects: tuple[ArmEffect, ...]
    complete: bool


@dataclass(frozen=True)
class Condition:
    """Something that the default must meet; `met` is None while rows are missing."""

    title: str
    met: bool | None
    why: str


def judged_page(study: Extent, runs: RunsById) -> Page:
    others, own = (arms_of(study, "confirm", arm, runs) for arm in (OTHERS, OWN))
    default, unseen = (arms_of(study, part, DEFAULT, runs) for part in ("confirm", "unseen"))
    rows, main = conditions(others, own, unseen), [*others.effects, *unseen.effects]
    every = [*others.effects, *default.effects, *own.effects]
    tables = [
        effects_table("confirmed", "On models, data and seeds that played no part in the choice", main, study, RULE),
        _conditions_table(rows),
        _choices_table(study, runs),
        effects_table("arms", "Every configuration on fresh seeds", every, study, detail=True),
        _gains_table(study, runs),
        missing_table(unfinished(BLOCKS, lambda task: needs(study, task, runs), runs)),
    ]
    tables = [table for table in tables if table.rows]
    document = {
        "conditions": [dataclasses.asdict(one) for one in rows],
        "tables": [table_json(table) for table in tables],
    }
    lead = "Each model is trained, on fresh seeds, with the configuration that the models of other families chose."
    sentences = [f"{one.title}: {_answer(one)}. {one.why}".strip() for one in rows]
    return Page(
        "A default for branches", lead if main else "No model is finished yet.", tables, document, _figures(main),
        sentences, _headline(rows),
    )  # fmt: skip


def arms_of(study: Extent, part: Part, arm: str, runs: RunsById) -> Arms:
    """The effects of one arm against the baseline, corrected as a family; empty for a task that chose no branches."""
    effects, complete = list[ArmEffect](), True
    for task in _tasks(part):
        all_seeds = seeds(study, task, runs)
        chosen = [one for one in final_arms(study, task, runs) or () if one.name == arm]
        all_effects = compare_arms(study, [(task, one, NONE) for one in chosen], runs)
        effects += [dataclasses.replace(effect, seeds_needed=len(all_seeds)) for effect in all_effects]
        complete &= choices(study, task, runs) is not None
        complete &= not chosen or any(effect.row["n"] >= len(all_seeds) for effect in all_effects)
    return Arms(tuple(corrected(effects)), complete)


def conditions(others: Arms, own: Arms, unseen: Arms) -> list[Condition]:
    """The conditions of docs/default-protocol.md for the default, one by one."""
    points = {effect.task.model: effect.row["points"] for effect in others.effects}
    harmed, missed = (_those(arms, lambda effect: effect.verdict not in SAFE) for arms in (others, unseen))
    helped = _those(others, lambda effect: effect.verdict == "helps")
    lost = _those(
        own,
        lambda effect: (
            effect.row["points"] >= OWN_GAIN and points.get(effect.task.model, 0.0) < KEPT * effect.row["points"]
        ),
    )
    few = len(helped) < LEAST_HELPED
    return [
        _condition("Helps or is harmless on every model", others.complete, harmed, "Not on"),
        Condition(
            f"Helps at least {LEAST_HELPED} models",
            not few if others.complete else None,
            _with_titles("It helps", helped),
        ),
        _condition(
            f"Keeps {KEPT:.0%} of what a model's own choice gains", others.complete and own.complete, lost, "Not on"
        ),
        _condition("Helps or is harmless on unseen models and data", unseen.complete, missed, "Not on"),
    ]


def _those(arms: Arms, is_one: Callable[[ArmEffect], bool]) -> list[str]:
    return [f"{effect.task.title} ({effect.verdict})" for effect in arms.effects if is_one(effect)]


def _condition(title: str, complete: bool, failed: Sequence[str], word: str) -> Condition:
    # Missing rows cannot undo a failure.
    return Condition(title, False if failed else True if complete else None, _with_titles(word, failed))


def _with_titles(word: str, titles: Iterable[str]) -> str:
    return f"{word} {', '.join(titles)}." if titles else ""


def _answer(condition: Condition) -> str:
    return {None: "not known yet", True: "yes", False: "no"}[condition.met]


def _headline(rows: Sequence[Condition]) -> Headline | None:
    if any(one.met is None for one in rows):
        return None
    met = sum(bool(one.met) for one in rows)
    earned = met == len(rows)
    return "good" if earned else "soft", f"The default meets {met} of {counted(len(rows), 'condition')}"


def _tasks(part: Part) -> list[DefaultTask]:
    return [task for block in BLOCKS.values() for task in block.parts if task.part == part]


def _conditions_table(conditions: Sequence[Condition]) -> Table:
    rows = make_rows((one.title, _answer(one), one.why) for one in conditions)
    return Table("conditions", "What the default must meet", (Column("Condition"), Column("Met"), Column("Why")), rows)


def _choices_table(study: Extent, runs: RunsById) -> Table:
    """What the other families choose for each family, and what all models of a kind choose."""
    columns = (Column("Blocks"), Column("For"), Column("Configuration"))
    rows = []
    for kind in KINDS:
        tasks = [task for task in _tasks("confirm") if task.kind == kind]
        by_family = {task.family: choices(study, task, runs) for task in tasks}
        for family, chosen in by_family.items():
            if chosen is not None:
                rows.append((kind, family, _label(kind, chosen[OTHERS])))
        every = next(iter(by_family.values()))
        if every is not None:
            rows.append((kind, "any other model", _label(kind, every[DEFAULT])))
    note = "A family's configuration is chosen by the models of the other families with blocks of the same kind."
    return Table("choices", "What is attached", columns, make_rows(rows), note)


def _label(kind: Kind, name: str | None) -> str:
    return "no branches" if name is None else candidate_for(kind, name).label


def _gains_table(study: Extent, runs: RunsById) -> Table:
    """Validation accuracy of every candidate as a difference from the baseline, in points."""
    columns = (Column("Model"), *(Column(name, "number", digits=1, signed=True) for name in CANDIDATES))
    rows = list[tuple[str | float, ...]]()
    for kind in KINDS:
        for task in selecting(kind):
            own = gains(study, task, runs)
            if own is not None:
                rows.append((task.title, *own.values()))
    note = "Points of validation accuracy after the last epoch, mean over two seeds, less the baseline's."
    return Table("gains", "Selection", columns, make_rows(rows), note, detail=True)


def _figures(main: Sequence[ArmEffect]) -> list[Figure]:
    if not main:
        return []
    ordered = sorted(main, key=lambda effect: -effect.row["points"])
    return [forest("forest", "Difference to the baseline, with the default", {"": ordered})]
