"""The page of the reproduction: verdicts, then every table and figure, from the results of recipes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asymtrain.paper.result import RecipeResult
from asymtrain.paper.study import Study
from asymtrain.paper.verdicts import Judgement
from asymtrain.report.measurement import Drawn, Listed, write_measurement
from asymtrain.report.summary import duration

NAME = "paper"


def write_paper(
    out: Path,
    results: Sequence[RecipeResult],
    judgements: Sequence[Judgement],
    study: Study,
    command: str,
    document: Mapping[str, Any],
) -> dict[str, Path]:
    """Write paper.html, paper.json (`document`) and a file for each figure into `out`; the paths by kind."""
    wanted = {name for result in results for name in result.claims}
    shown = [one for one in judgements if one.claim.id in wanted]
    claims = Listed(
        "Claims",
        ("Claim", "What the paper says", "Paper", "Verdict", "What was seen"),
        [(one.claim.id, one.claim.text, one.claim.paper_value, one.words, one.sentence) for one in shown],
    )
    tables = [
        Listed(table.title, table.columns, [tuple(cell.text for cell in row) for row in table.rows], table.note)
        for result in results
        for table in result.tables
    ]
    figures = [
        Drawn(figure.name, figure.title, figure.svg, figure.caption)
        for result in results
        for figure in result.figures
        if not figure.missing
    ]
    waiting = [figure.title for result in results for figure in result.figures if figure.missing]
    return write_measurement(
        out,
        NAME,
        title="The paper, reproduced",
        lead=lead(results, study, waiting),
        tables=[*([claims] if shown else []), *tables],
        figures=figures,
        facts=_facts(results, study, command),
        document=document,
    )


def lead(results: Sequence[RecipeResult], study: Study, waiting: Sequence[str]) -> str:
    """What was run, in a few sentences."""
    seeds = f"{len(study.seeds)} seed{'s' if len(study.seeds) > 1 else ''}"
    text = f"Each number of the paper beside ours: {seeds}, {study.epochs} epochs."
    if study.stand_in:
        text += f" Here {study.stand_in} stand in for the paper's, so no number says anything about the paper."
    if waiting:
        text += f"\n\nNot drawn yet: {', '.join(waiting)}."
    return text


def _facts(results: Sequence[RecipeResult], study: Study, command: str) -> dict[str, str]:
    versions = dict.fromkeys(f"{name} {text}" for result in results for name, text in result.versions.items())
    devices = sorted({device for result in results for device in result.devices})
    return {
        "Command": command,
        "Readings": ", ".join(reading.title for reading in study.readings),
        "Trainings": "; ".join(f"{one.name} {one.runs_there}/{one.runs_needed}" for one in results if one.runs_needed),
        "Training time": "; ".join(f"{one.name} {duration(one.seconds)}" for one in results if one.seconds),
        "Devices": ", ".join(devices) or "none yet",
        "Versions": ", ".join(versions) or "none yet",
    }
