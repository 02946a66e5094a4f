"""The page of the reproduction: verdicts, then every table and figure, from the results of recipes.

One self-contained file. It depends only on its inputs: written again from the same rows it has the same bytes. Beside
it are the numbers as JSON, each table as Markdown, LaTeX and CSV, and each figure as SVG.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from asymtrain.lab.report.export import FORMATS
from asymtrain.lab.report.figure import Figure, Headline
from asymtrain.lab.report.table import Table, duration, table_json
from asymtrain.lab.studies.paper import verdicts
from asymtrain.lab.studies.paper.contradictions import Contradiction, contradictions, single_activation
from asymtrain.lab.studies.paper.evidence import Quantity
from asymtrain.lab.studies.paper.numbers import texts
from asymtrain.lab.studies.paper.recipe import Recipe, RecipeResult, build_result
from asymtrain.lab.studies.paper.spec_index import NOT_RUN, SpecsUsed, index_specs
from asymtrain.lab.studies.paper.study import PRIMARY, Scope
from asymtrain.lab.studies.paper.summary import (
    BANDED,
    HEADLINE,
    conclusion,
    forest,
    history_table,
    verdict_counts,
    verdict_table,
)
from asymtrain.lab.studies.paper.tables import READING
from asymtrain.lab.studies.paper.verdicts import LIMITS, JudgedPart, Judgement, tested_by
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.texts import counted

NAME = "paper"
MEANINGS: Mapping[str, str] = {  # of verdicts
    words: meaning.format(**dataclasses.asdict(LIMITS)) for words, meaning in texts()["meanings"].items()
}


def write_paper(
    out: Path,
    results: Sequence[RecipeResult],
    judgements: Sequence[Judgement],
    study: Scope,
    command: str,
    specs: SpecsUsed | None = None,
) -> dict[str, Path]:
    """Write the page and its files into `out`; the paths by kind.

    Kinds are "page" (paper.html), "json" (paper.json: the `document`), the name of each figure, and for each table its
    name with .md, .tex and .csv. Without the `specs` behind the results the page has only their ids.
    """
    from asymtrain.lab.report.page import json_text, write_files

    document_text = json_text(document(results, judgements, study))
    results = [with_useful_columns(result) for result in results]
    judgements_shown = tested_by(results, judgements)
    drawings = _drawings([*(figure for result in results for figure in result.figures), forest(judgements_shown)])
    page = render_paper(results, judgements, study, command, specs or SpecsUsed(), drawings)
    texts = {"page": (f"{NAME}.html", page), "json": (f"{NAME}.json", document_text)}
    texts |= _files([*_tables(results), verdict_table(judgements_shown)], drawings)
    write_files(out, dict(texts.values()))
    return {kind: out / file for kind, (file, _) in texts.items()}


def judge_recipes(
    recipes: Iterable[Recipe], study: Scope, snapshot: Snapshot, *, with_tables: bool = True
) -> tuple[list[RecipeResult], list[Judgement]]:
    """Results of recipes from a store's rows, and verdicts on the claims that they test, which need no tables."""
    results = [build_result(recipe, study, snapshot, with_tables=with_tables) for recipe in recipes]
    return results, tested_by(results, verdicts.judge_results(results))


def write_verdicts(out: Path, judgements: Sequence[Judgement]) -> None:
    """The verdicts and their history as tables, and the figure of effects, as `write_paper` names them."""
    from asymtrain.lab.report.page import write_files

    tables = (verdict_table(judgements), history_table(judgements))
    write_files(out, dict(_files(tables, _drawings([forest(judgements)])).values()))


def _files(tables: Iterable[Table], drawings: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The names and texts of the files of tables and figures, by kind."""
    from asymtrain.lab.report.drawing import as_file  # here: matplotlib is loaded to draw, not to print

    texts = {
        f"{table.name}.{ending}": (f"{NAME}-{table.name}.{ending}", write(table))
        for table in tables
        for ending, (_, write) in FORMATS.items()
    }
    return texts | {name: (f"{NAME}-{name}.svg", as_file(svg)) for name, svg in drawings.items()}


# Fields that `paper.json` takes over unchanged
CLAIM_FIELDS = ("sentence", "effect", "low", "high", "n", "reading", "preliminary", "lacks", "spec_ids")
RESULT_FIELDS = (
    *("name", "title", "question", "how", "runs_needed", "runs_there", "measurements_needed", "measurements_there"),
    *("seconds", "devices", "versions", "claims", "diverged", "notes"),
)
FIGURE_FIELDS = ("name", "title", "caption", "missing")


def document(results: Sequence[RecipeResult], judgements: Sequence[Judgement], study: Scope) -> dict[str, Any]:
    return {
        "study": {
            "scale": study.sizes.scale,
            "seeds": list(study.seeds),
            "epochs": study.epochs,
            "precision": study.precision,
            "readings": [reading.name for reading in study.readings],
            "hyperparameters": study.hyperparameters,
            "stand_in": study.stand_in,
        },
        "claims": [
            {
                "id": judgement.claim.id,
                "claim": judgement.claim.text,
                "paper": judgement.claim.paper_value,
                "verdict": judgement.words,
                **{name: getattr(judgement, name) for name in CLAIM_FIELDS},
            }
            for judgement in tested_by(results, judgements)
        ],
        "results": [
            {
                **{name: getattr(result, name) for name in RESULT_FIELDS},
                "tables": [table_json(table) for table in result.tables],
                "figures": [{name: getattr(figure, name) for name in FIGURE_FIELDS} for figure in result.figures],
            }
            for result in results
        ],
    }


def render_paper(
    results: Sequence[RecipeResult],
    judgements: Sequence[Judgement],
    study: Scope,
    command: str,
    specs: SpecsUsed,
    drawings: Mapping[str, str] | None = None,
) -> str:
    """The page as HTML; `drawings` are its figures by name if they are already drawn."""
    from asymtrain.lab.report.drawing import is_wide
    from asymtrain.lab.report.live import embed, packed_script
    from asymtrain.lab.report.page import render_template

    results = [with_useful_columns(result) for result in results]
    claims = shown_claims(results, judgements)
    trained = {  # ids of trained or measured specs, for recipes that have no numbers to link to them
        name: tuple(spec.id for spec in specs.specs.get(name, ()) if specs.outcomes.get(spec.id) != NOT_RUN)
        for name in (result.name for result in results if not result.tables)
    }
    used = [claim.judgement.spec_ids for claim in claims]
    used += [cell.spec_ids for table in _tables(results) for row in table.rows for cell in row]
    used += [result.diverged for result in results]
    drawings = drawings or {}
    judgements_shown = tested_by(results, judgements)
    overview = forest(judgements_shown)
    figures = [overview, *(figure for result in results for figure in result.figures)]
    complete = [figure for figure in figures if not figure.missing]
    tables = _tables(results)
    texts = {ending: {table.name: write(table) for table in tables} for ending, (_, write) in FORMATS.items()}
    return render_template(
        "paper.html.j2",
        name=NAME,
        title=TITLE,
        headline=headline(judgements_shown),
        lead=[part for part in (conclusion(judgements_shown, counted=False), lead(study)) if part],
        shares=shares(judgements_shown),
        plots=[] if overview.missing else [(overview, None, embed(overview, drawings.get(overview.name)))],
        lacking={name: LACKING[name] for name in LACKING if name in map(_progress, results)},
        label=contents_label,
        claims=claims,
        filters=filters(claims),
        meanings=MEANINGS,
        contradictions=shown_contradictions(results),
        results=results,
        trained=trained,
        facts=_facts(results, study, command),
        index=index_specs([*used, *trained.values()], specs),
        formats={ending: words for ending, (words, _) in FORMATS.items()},
        texts=packed_script(texts, 'id="texts"'),
        figures=complete,
        forms={figure.name: embed(figure, drawings.get(figure.name)) for figure in complete if figure is not overview},
        primary=primary_rows,
        reading=(READING.name, PRIMARY.title),
        folded=is_folded,
        is_wide=is_wide,
        duration=duration,
        versions=lambda result: ", ".join(f"{name} {text}" for name, text in result.versions.items()),
        progress=_progress,
        not_run=NOT_RUN,
    )


def _tables(results: Sequence[RecipeResult]) -> list[Table]:
    return [table for result in results for table in result.tables]


def _drawings(figures: Iterable[Figure]) -> dict[str, str]:
    from asymtrain.lab.report.drawing import draw

    return {figure.name: draw(figure) for figure in figures if not figure.missing}


TITLE = "Reproduction of the paper"


def headline(judgements: Sequence[Judgement]) -> Headline | None:
    """How many claims were reproduced, if any has a verdict."""
    counts = verdict_counts(judgements)
    count = len(judgements) - counts["Not yet run"]
    return ("soft", f"{counts['Reproduced']} of {count} judged claims reproduced") if count else None


def shares(judgements: Sequence[Judgement]) -> list[tuple[str, str, str, str, int]]:
    """For each verdict: its words, its style sheet class, its meaning, its first claim, and how many claims have it."""
    if headline(judgements) is None:
        return []
    return [
        (words, slug(ones[0].verdict), MEANINGS[ones[0].verdict], ones[0].claim.id, len(ones))
        for words in verdict_counts(judgements)
        for ones in [[one for one in judgements if one.words == words]]
    ]


def lead(study: Scope) -> str:
    size = f"{counted(len(study.seeds), 'seed')}, {counted(study.epochs, 'epoch')}"
    text = f"Each number of the paper beside ours: {size}."
    if study.stand_in:
        text += f" Here {study.stand_in} stand in for the paper's, so no number says anything about the paper."
    return text


def with_useful_columns(result: RecipeResult) -> RecipeResult:
    """The result without optional columns that have the same value in every row."""

    def useful(table: Table) -> Table:
        columns = [
            i
            for i, column in enumerate(table.columns)
            if not column.only_if_varied or len({row[i].value for row in table.rows}) > 1
        ]
        rows = tuple(tuple(row[i] for i in columns) for row in table.rows)
        return dataclasses.replace(table, columns=tuple(table.columns[i] for i in columns), rows=rows)

    return dataclasses.replace(result, tables=tuple(map(useful, result.tables)))


def primary_rows(table: Table) -> Table:
    """The table without the rows of other readings, if it has rows of several."""
    if READING not in table.columns:
        return table
    at = table.columns.index(READING)
    rows = tuple(row for row in table.rows if row[at].value == PRIMARY.title)
    return dataclasses.replace(table, rows=rows or table.rows)


def is_folded(table: Table, result: RecipeResult) -> bool:
    """Does the table accompany another one of its recipe, as `table1-sizes` accompanies `table1`?"""
    return any(table.name.startswith(f"{other.name}-") for other in result.tables)


def _facts(results: Sequence[RecipeResult], study: Scope, command: str) -> dict[str, str]:
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


LACKING = {"part": "is there in part", "none": "is missing"}  # by `_progress`


def contents_label(result: RecipeResult) -> str:
    """The result's tables, else its figures, as short names: the whole list of contents should stay in sight."""
    return result.title.partition(":")[0].partition(", Figure")[0].replace(" and ", ", ")


def _progress(result: RecipeResult) -> str:
    """`whole`, `part` or `none`: how much of a result's rows is stored."""
    if result.is_complete:
        return "whole"
    return "part" if result.runs_there or result.measurements_there else "none"


# Claims: verdict first, the headline before all others


@dataclass(frozen=True)
class ShownClaim:
    """One claim: its judgement, and where it is tested.

    For a claim with several parts, the numbers belong to the deciding part. `of` names it, or what the numbers are.
    """

    judgement: Judgement
    of: str
    chosen_by: str  # words of its `Filter`
    strip: Markup
    recipe: str
    tested_in: str

    @property
    def look(self) -> str:
        return slug(self.judgement.verdict)  # a class of the style sheet

    @property
    def tag(self) -> str:
        return slug(self.chosen_by)


@dataclass(frozen=True)
class Filter:
    """A choice of claims: its tag, its words, and how many claims have it. A claim has one besides "All"."""

    tag: str
    words: str
    count: int


def shown_claims(results: Sequence[RecipeResult], judgements: Sequence[Judgement]) -> list[ShownClaim]:
    """The claims that these recipes test: the headline claim, then by verdict, then in the paper's order."""
    recipes = {name: result for result in results for name in result.claims}
    order = list(MEANINGS)
    judgements_shown = tested_by(results, judgements)
    judgements_shown.sort(key=lambda judgement: (judgement.claim.id != HEADLINE, order.index(judgement.verdict)))
    return [_shown_claim(judgement, recipes[judgement.claim.id]) for judgement in judgements_shown]


def filters(claims: Sequence[ShownClaim]) -> list[Filter]:
    """All claims, then each verdict that occurs, and finally what the numbers so far would say."""
    order = list(MEANINGS)
    by_verdict = sorted(claims, key=lambda claim: (order.index(claim.judgement.verdict), claim.chosen_by))
    counts = Counter(claim.chosen_by for claim in by_verdict)
    return [Filter("", "All", len(claims)), *(Filter(slug(words), words, count) for words, count in counts.items())]


def shown_contradictions(results: Sequence[RecipeResult]) -> list[Contradiction]:
    """The paper's own contradictions, and what our runs say about single activation if they can."""
    identities = {
        label.partition("/")[2]: numbers
        for result in results
        for label, numbers in result.evidence.get(PRIMARY.name, {}).items()
        if label.startswith("identity/") and isinstance(numbers, Quantity)
    }
    sentence, holds = single_activation(identities)
    if holds is None:
        return list(contradictions())
    ours = Contradiction("what N can do under single activation", "our runs", sentence, holds)
    return [*contradictions(), ours]


def slug(words: str) -> str:
    return re.sub(r"\W+", "-", words.lower())


def _shown_claim(judgement: Judgement, result: RecipeResult) -> ShownClaim:
    part, claim, so_far = judgement.part, judgement.claim, judgement.preliminary
    of = claim.quantity.removesuffix(" %").replace(";", "; ")
    return ShownClaim(
        judgement,
        of=of if part is None or len(claim.parts) == 1 else verdicts.part_words(part),
        chosen_by=f"{judgement.words}, so far {so_far.lower()}" if so_far else judgement.words,
        strip=Markup() if part is None else strip(part),
        recipe=result.name,
        tested_in=result.title.partition(":")[0],
    )


# A claim at a glance: the paper's number and ours with its interval on one small axis

WIDTH, HEIGHT, EDGE = 200.0, 26.0, 8.0
REACH = 1.7  # of the larger of the two numbers: an interval that goes farther ends in an arrow
WITHOUT = ("significant", "zero", "agreement")  # parts whose numbers are of another kind than the paper's


def strip(part: JudgedPart) -> Markup:
    """The strip of a judged part as SVG; empty if there is nothing to compare."""
    paper, ours, how = part.part.paper, part.estimate, part.part.how
    if paper is None or ours is None or how in WITHOUT or not max(abs(paper), abs(ours)):
        return Markup()
    reach = REACH * max(abs(paper), abs(ours))

    def x(value: float) -> float:
        inside = max(-1.0, min(1.0, value / reach))
        return round(WIDTH / 2 + inside * (WIDTH / 2 - EDGE), 1)

    middle = HEIGHT / 2
    parts = []
    if how in BANDED:
        left, right = sorted(x(share * paper) for share in (LIMITS.band_low, LIMITS.band_high))
        parts.append(f'<rect class="band" x="{left}" y="3" width="{right - left:.1f}" height="{HEIGHT - 6:g}"/>')
    parts.append(f'<path class="zero" d="M{x(0):g} 1V{HEIGHT - 1:g}"/>')
    if part.low is not None and part.high is not None:
        parts.append(f'<path class="bar" d="M{x(part.low):g} {middle:g}H{x(part.high):g}"/>')
        for end in (part.low, part.high):
            if abs(end) > reach:
                ahead = 5 if end > 0 else -5
                parts.append(f'<path class="arrow" d="M{x(end):g} {middle - 4:g}l{ahead} 4l{-ahead} 4z"/>')
    parts.append(f'<path class="papers" d="M{x(paper):g} {middle - 6:g}l6 6l-6 6l-6 -6z"/>')
    parts.append(f'<circle class="ours" cx="{x(ours):g}" cy="{middle:g}" r="4"/>')
    return Markup(f'<svg class="strip" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" aria-hidden="true">{"".join(parts)}</svg>')
