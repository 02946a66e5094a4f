"""The results of the study of a default: its conditions, differences on fresh seeds, the forest plot, the selection."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asymtrain.lab.report.figure import Figure, Headline
from asymtrain.lab.report.table import Cell, Column, Table, make_rows, table_json
from asymtrain.lab.statistics import Verdict
from asymtrain.lab.studies.default import protocol
from asymtrain.lab.studies.default.protocol import BLOCKS, CANDIDATES, KEPT, LEAST_HELPED, OWN_GAIN, Kind, Task
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
from asymtrain.lab.studies.frame import joined, missing_of
from asymtrain.lab.studies.practice.analysis import ArmEffect, compare_arms, corrected
from asymtrain.lab.studies.practice.page import RULE, effects_table, forest
from asymtrain.lab.studies.practice.protocol import NONE, Arm, Extent
from asymtrain.lab.studies.practice.selection import Known
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import JudgedPage

SAFE: frozenset[Verdict] = frozenset({"helps", "no meaningful difference", "harmless"})
KINDS: tuple[Kind, ...] = ("tokens", "convolutions")


@dataclass(frozen=True)
class Condition:
    """Something that the default must meet; None while rows are missing."""

    title: str
    is_met: bool | None
    why: str


def judged_page(study: Extent, known: Known) -> JudgedPage:
    effects = {arm: _effects(study, arm, known) for arm in (OTHERS, DEFAULT, OWN)}
    unseen = [effect for effect in effects[DEFAULT] if effect.task.part == "unseen"]
    main = [*effects[OTHERS], *corrected(unseen)]
    met = conditions(study, effects[OTHERS], effects[OWN], unseen, known)
    made = [
        effects_table("confirmed", "On models and seeds that played no part in the choice", main, study, RULE),
        _conditions_table(met),
        _choices_table(study, known),
        dataclasses.replace(
            effects_table("arms", "All configurations that were confirmed", _every(effects), study), detail=True
        ),
        _gains_table(study, known),
        _missing_table(study, known),
    ]
    tables = [table for table in made if table.rows]
    said = [f"{condition.title}: {_answer(condition)}. {condition.why}" for condition in met]
    document = {"conditions": [dataclasses.asdict(one) for one in met], "tables": [table_json(t) for t in tables]}
    figures = _figures(main)
    return JudgedPage("A default for branches", _lead(main), tables, document, figures, said, _headline(met))


def conditions(
    study: Extent, others: Sequence[ArmEffect], own: Sequence[ArmEffect], unseen: Sequence[ArmEffect], known: Known
) -> list[Condition]:
    """What docs/default-protocol.md asks of the default, one by one."""
    # A kind whose other families chose no branches has no rows: what is not attached does no harm.
    wanted = [task for task in _tasks("confirm") if (choices(study, task, known) or {}).get(OTHERS, "unknown") is not None]
    complete = _are_complete(wanted, others)
    seen = _are_complete([t for t in _tasks("unseen") if (choices(study, t, known) or {}).get(DEFAULT, "") is not None], unseen)
    harmed = [effect for effect in others if effect.verdict not in SAFE]
    helped = [effect for effect in others if effect.verdict == "helps"]
    default = {effect.task.model: effect.row["points"] for effect in others}
    lost = [
        effect
        for effect in own
        if effect.row["points"] >= OWN_GAIN and default.get(effect.task.model, 0.0) < KEPT * effect.row["points"]
    ]
    missed = [effect for effect in unseen if effect.verdict not in SAFE]
    return [
        Condition("Helps or is harmless on every model", not harmed if complete else None, _named(harmed, "Not on")),
        Condition(
            f"Helps at least {LEAST_HELPED} models", len(helped) >= LEAST_HELPED if complete else None, _named(helped, "Helps")
        ),
        Condition(f"Keeps {KEPT:.0%} of a model's own gain", not lost if complete else None, _named(lost, "Not on")),
        Condition("The unseen models agree", not missed if seen else None, _named(missed, "Not")),
    ]
