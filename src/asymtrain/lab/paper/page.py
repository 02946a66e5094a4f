"""The page of the reproduction: verdicts, then every table and figure, from the results of recipes.

One self-contained file that needs nothing from elsewhere. It depends on what it is given and on nothing else: written
again from the same rows it has the same bytes. Beside it lie the numbers as JSON, each table as Markdown, LaTeX and
CSV, and each figure as SVG.
"""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from asymtrain.lab.paper.contradictions import Contradiction, contradictions, single_activation
from asymtrain.lab.paper.evidence import Quantity
from asymtrain.lab.paper.exports import FORMATS, number_columns
from asymtrain.lab.paper.result import Cell, RecipeResult, ResultFigure, ResultTable
from asymtrain.lab.paper.spec_index import NOT_RUN, SpecsUsed, index_specs
from asymtrain.lab.paper.study import Study
from asymtrain.lab.paper.verdicts import (
    BAND,
    NULL,
    WEAKEST_LAST,
    JudgedPart,
    Judgement,
    number,
    ours_words,
    paper_words,
    part_words,
)
from asymtrain.lab.report.measurement import WIDE
from asymtrain.lab.report.page import render_template, write_files
from asymtrain.lab.report.summary import duration
from asymtrain.lab.statistics import NAMES

WIDTH, HEIGHT, EDGE = 200.0, 26.0, 8.0
REACH = 1.7  # of the larger of the two numbers: an interval that goes farther ends in an arrow
BANDED = ("effect", "difference")
WITHOUT = ("significant", "zero", "agreement")  # their numbers are of another kind than the paper's


def strip(one: JudgedPart) -> Markup:
    """The strip of a ruled part; empty where there is nothing to compare."""
    paper, ours = one.part.paper, one.estimate
    if paper is None or ours is None or one.part.how in WITHOUT or not max(abs(paper), abs(ours)):
        return Markup()
    reach = REACH * max(abs(paper), abs(ours))

    def x(value: float) -> float:
        inside = max(-1.0, min(1.0, value / reach))
        return round(WIDTH / 2 + inside * (WIDTH / 2 - EDGE), 1)

    middle = HEIGHT / 2
    parts = []
    if one.part.how in BANDED:
        left, right = sorted(x(share * paper) for share in BAND)
        parts.append(f'<rect class="band" x="{left}" y="3" width="{right - left:.1f}" height="{HEIGHT - 6:g}"/>')
    parts.append(f'<path class="zero" d="M{x(0):g} 1V{HEIGHT - 1:g}"/>')
    if one.low is not None and one.high is not None:
        parts.append(f'<path class="bar" d="M{x(one.low):g} {middle:g}H{x(one.high):g}"/>')
        parts += [_arrow(x(end), middle, end) for end in (one.low, one.high) if abs(end) > reach]
    at = x(paper)
    parts.append(f'<path class="papers" d="M{at:g} {middle - 6:g}l6 6l-6 6l-6 -6z"/>')
    parts.append(f'<circle class="ours" cx="{x(ours):g}" cy="{middle:g}" r="4"/>')
    return Markup(f'<svg class="strip" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" aria-hidden="true">{"".join(parts)}</svg>')


def _arrow(x: float, middle: float, end: float) -> str:
    ahead = 5 if end > 0 else -5
    return f'<path class="arrow" d="M{x:g} {middle - 4:g}l{ahead} 4l{-ahead} 4z"/>'


HEADLINE = "c06"
MEANINGS: Mapping[str, str] = {
    "Reproduced": f"the interval excludes 0 in the paper's sign and meets {BAND[0]:g} to {BAND[1]:g} times its number",
    "Sign only": "the interval excludes 0 in the paper's sign and misses that band",
    "Only under": "the primary reading of the paper fails, another passes, corrected for every reading and cell",
    "Inconclusive": "the interval allows more than one answer",
    "Null": f"the interval lies within {NULL['change']:g}% of 0",
    "Contradicted": "the interval excludes 0 in the other sign",
    "Not yet run": "not in full: fewer seeds or epochs than the claim asks for, missing cells, or other data standing "
    "in; what did run stands beside it as preliminary",
}


@dataclass(frozen=True)
class ShownClaim:
    """One claim in words: the paper's number, ours with interval and n, verdict, sentence, and where it is tested.

    Of a claim with several parts both numbers are of the part that decides, which `of` names.
    """

    judgement: Judgement
    paper: str
    ours: str
    of: str
    interval: str
    so_far: str
    tags: str
    strip: Markup
    recipe: str
    place: str

    @property
    def look(self) -> str:
        """The verdict as a class of the style sheet."""
        return slug(self.judgement.verdict)


@dataclass(frozen=True)
class Filter:
    """A choice of claims: its tag, its words, and how many claims have it."""

    tag: str
    words: str
    count: int


def shown_claims(results: Sequence[RecipeResult], judgements: Sequence[Judgement]) -> list[ShownClaim]:
    """The claims that these recipes test: the headline, then by verdict, then in the paper's order."""
    recipes = {name: result for result in results for name in result.claims}
    order = list(MEANINGS)
    wanted = [one for one in judgements if one.claim.id in recipes]
    wanted.sort(key=lambda one: (one.claim.id != HEADLINE, order.index(one.verdict)))
    return [_shown(one, recipes[one.claim.id]) for one in wanted]


def filters(claims: Sequence[ShownClaim]) -> list[Filter]:
    """All claims, then each verdict that occurs, then what the numbers so far would say."""
    verdicts: Counter[str] = Counter(one.judgement.verdict for one in claims)
    early = Counter(one.judgement.preliminary for one in claims if one.judgement.preliminary)
    found = [Filter("", "All", len(claims))]
    found += [Filter(slug(name), name, verdicts[name]) for name in MEANINGS if verdicts[name]]
    found += [Filter(f"so-far-{slug(name)}", f"so far {name.lower()}", early[name]) for name in WEAKEST_LAST
              if early[name]]  # fmt: skip
    return found


def shown_contradictions(results: Sequence[RecipeResult]) -> list[Contradiction]:
    """The paper's own contradictions, and what our runs say of single activation where they can."""
    sentence, holds = single_activation(_identities(results))
    found = list(contradictions())
    if holds is not None:
        found.append(Contradiction("what N can do under single activation", "our runs", sentence, 0.0, holds))
    return found


def slug(words: str) -> str:
    """Words as a class or tag."""
    return words.lower().replace(" ", "-")


def _shown(one: Judgement, result: RecipeResult) -> ShownClaim:
    part = _deciding(one)
    interval = ""
    if part is not None and part.low is not None and part.high is not None:
        interval = f"{number(part.low, part).removesuffix(' points')} to {number(part.high, part)}"
    several = part is not None and len(one.claim.parts) > 1
    tags = [slug(one.verdict), *([f"so-far-{slug(one.preliminary)}"] if one.preliminary else [])]
    return ShownClaim(
        one,
        paper_words(one.claim, part) if part is not None and several else one.claim.paper_value.replace(";", "; "),
        "" if part is None else ours_words(part),
        part_words(part) if part is not None and several else "",
        interval,
        one.preliminary or "",
        " ".join(tags),
        Markup() if part is None else strip(part),
        result.name,
        result.title.partition(":")[0],
    )


def _deciding(one: Judgement) -> JudgedPart | None:
    """The part whose numbers the judgement carries."""
    ruling = "Reproduced" if one.verdict == "Only under" else one.preliminary or one.verdict
    return next((part for part in one.parts if part.ruling == ruling), None)


def _identities(results: Sequence[RecipeResult]) -> dict[str, Quantity]:
    """How far weights of N = 1 and N = 20 are apart, from the last column of the recipe `identity`."""
    archs = {name: arch for arch, name in NAMES.items()}
    rows = [row for one in results if one.name == "identity" for table in one.tables for row in table.rows]
    return {
        archs[row[0].text]: Quantity(f"identity/{archs[row[0].text]}", (row[-1].value,), 1, row[-1].spec_ids, (0,))
        for row in rows
        if row[-1].value is not None
    }


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
