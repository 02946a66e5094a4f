"""The page of the reproduction: verdicts, then every table and figure, from the results of recipes.

One self-contained file that needs nothing from elsewhere. It depends on what it is given and on nothing else: written
again from the same rows it has the same bytes. Beside it lie the numbers as JSON, each table as Markdown, LaTeX and
CSV, and each figure as SVG.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from asymtrain.lab.paper.claims_page import MEANINGS, filters, shown_claims, shown_contradictions
from asymtrain.lab.paper.exports import FORMATS, number_columns
from asymtrain.lab.paper.result import Cell, RecipeResult, ResultFigure, ResultTable
from asymtrain.lab.paper.spec_index import NOT_RUN, SpecsUsed, index_specs
from asymtrain.lab.paper.study import Study
from asymtrain.lab.paper.verdicts import Judgement
from asymtrain.lab.report.measurement import WIDE
from asymtrain.lab.report.page import render_template, write_files
from asymtrain.lab.report.summary import duration

NAME = "paper"
PAPERS = "Paper: "  # columns that hold the paper's numbers begin with this
READING = "Reading"


@dataclass(frozen=True)
class Place:
    """One place of a table on the page: a cell, or several missing ones side by side as one."""

    cell: Cell
    column: int
    span: int = 1


def write_paper(
    out: Path,
    results: Sequence[RecipeResult],
    judgements: Sequence[Judgement],
    study: Study,
    command: str,
    document: Mapping[str, Any],
    behind: SpecsUsed | None = None,
) -> dict[str, Path]:
    """Write the page and its files into `out`; the paths by kind.

    Kinds are "page" (paper.html), "json" (paper.json: `document`), the name of each figure, and for each table its name
    with .md, .tex and .csv. `behind` holds the specs; without it the page has their ids alone.
    """
    results = [with_useful_columns(result) for result in results]
    texts = {
        "page": (f"{NAME}.html", render_paper(results, judgements, study, command, behind or SpecsUsed())),
        "json": (f"{NAME}.json", json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"),
    }
    for result in results:
        for table in result.tables:
            for ending, (_, write) in FORMATS.items():
                texts[f"{table.name}.{ending}"] = (f"{NAME}-{table.name}.{ending}", write(table))
        for figure in result.figures:
            if not figure.missing:
                texts[figure.name] = (f"{NAME}-{figure.name}.svg", figure.svg)
    write_files(out, dict(texts.values()))
    return {kind: out / file for kind, (file, _) in texts.items()}


def render_paper(
    results: Sequence[RecipeResult], judgements: Sequence[Judgement], study: Study, command: str, behind: SpecsUsed
) -> str:
    """The page as text."""
    results = [with_useful_columns(result) for result in results]
    claims = shown_claims(results, judgements)
    there = {result.name: _there(result, behind) for result in results}
    used = [one.judgement.spec_ids for one in claims]
    used += [cell.spec_ids for result in results for table in result.tables for row in table.rows for cell in row]
    used += [result.diverged for result in results]
    index = index_specs([*used, *there.values()], behind)
    return render_template(
        "paper.html.j2",
        name=NAME,
        lead=lead(study),
        claims=claims,
        filters=filters(claims),
        meanings=MEANINGS,
        contradictions=shown_contradictions(results),
        results=results,
        there=there,
        facts=_facts(results, study, command),
        index=index,
        formats={ending: words for ending, (words, _) in FORMATS.items()},
        texts=_texts(results),
        numbers={table.name: number_columns(table) for result in results for table in result.tables},
        places=lambda row: list(merged(row)),
        heading=_heading,
        embedded=_embedded,
        duration=duration,
        versions=_versions,
        progress=_progress,
        not_run=NOT_RUN,
    )


def lead(study: Study) -> str:
    """What was run, in a sentence or two."""
    seeds = f"{len(study.seeds)} seed{'s' if len(study.seeds) > 1 else ''}"
    epochs = f"{study.epochs} epoch{'s' if study.epochs > 1 else ''}"
    text = f"Each number of the paper beside ours: {seeds}, {epochs}."
    if study.stand_in:
        text += f" Here {study.stand_in} stand in for the paper's, so no number says anything about the paper."
    return text


def with_useful_columns(result: RecipeResult) -> RecipeResult:
    """The result without the columns that name one and the same reading in every row."""

    def useful(table: ResultTable) -> ResultTable:
        kept = [
            i
            for i, column in enumerate(table.columns)
            if column != READING or len({row[i].text for row in table.rows}) > 1
        ]
        rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
        return dataclasses.replace(table, columns=tuple(table.columns[i] for i in kept), rows=rows)

    return dataclasses.replace(result, tables=tuple(map(useful, result.tables)))


def merged(row: Sequence[Cell]) -> Iterator[Place]:
    """The row's places; missing cells side by side become one, which says it once."""
    at = 0
    while at < len(row):
        span = 1
        while row[at].missing and at + span < len(row) and row[at + span].missing:
            span += 1
        yield Place(row[at], at, span)
        at += span


def _there(result: RecipeResult, behind: SpecsUsed) -> tuple[str, ...]:
    """Ids of the recipe's specs that have been trained or measured."""
    named = behind.specs.get(result.name, ())
    return tuple(spec.id for spec in named if behind.outcomes.get(spec.id) != NOT_RUN)


def _facts(results: Sequence[RecipeResult], study: Study, command: str) -> dict[str, str]:
    devices = sorted({device for result in results for device in result.devices})
    versions = dict.fromkeys(f"{name} {text}" for result in results for name, text in result.versions.items())
    return {
        "Command": command,
        "Scale": study.sizes.scale,
        "Seeds": ", ".join(map(str, study.seeds)),
        "Epochs": str(study.epochs),
        "Precision": study.precision,
        "Readings": ", ".join(reading.title for reading in study.readings),
        "Devices": ", ".join(devices) or "none yet",
        "Versions": ", ".join(versions) or "none yet",
    }


def _texts(results: Sequence[RecipeResult]) -> Markup:
    """What the buttons copy, as JSON that cannot end the script element that it stands in."""
    texts = {
        table.name: {ending: write(table) for ending, (_, write) in FORMATS.items()}
        for result in results
        for table in result.tables
    }
    return Markup(json.dumps(texts, ensure_ascii=False).replace("<", "\\u003c"))


def _heading(column: str) -> tuple[str, str]:
    """A column's heading as whose number it is, and what."""
    if column.startswith(PAPERS):
        what = column.removeprefix(PAPERS)
        return PAPERS.rstrip(": "), what[:1].upper() + what[1:]
    return "", column


def _progress(result: RecipeResult) -> str:
    """`whole`, `part` or `none`: how much of what it rests on is there."""
    if result.is_complete:
        return "whole"
    return "part" if result.runs_there or result.measurements_there else "none"


def _versions(result: RecipeResult) -> str:
    return ", ".join(f"{name} {text}" for name, text in result.versions.items())


def _embedded(figure: ResultFigure) -> tuple[Markup, bool]:
    """The figure with ids of its own on this page, and whether it is wide."""
    svg = figure.svg[figure.svg.index("<svg") :]
    found = re.search(r'viewBox="\S+ \S+ ([\d.]+) ', svg)
    svg = re.sub(r'\bid="', f'id="{figure.name}.', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{figure.name}.", svg)
    return Markup(svg), found is not None and float(found[1]) > WIDE
