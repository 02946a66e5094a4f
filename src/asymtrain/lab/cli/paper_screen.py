"""What `asymtrain paper` prints: the plan, tables beside the paper's, verdicts, JSON."""

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from asymtrain.lab.cli.screen import Display, stdout
from asymtrain.lab.paper.recipe import Recipe
from asymtrain.lab.paper.recipes import RECIPES
from asymtrain.lab.paper.result import Cell, RecipeResult, ResultTable
from asymtrain.lab.paper.running import Missing, estimate, measurement_seconds, missing, needs_of, of_archs
from asymtrain.lab.paper.snapshot import Snapshot
from asymtrain.lab.paper.study import Study
from asymtrain.lab.paper.verdicts import Judgement
from asymtrain.lab.report import duration
from asymtrain.lab.runs import Run

WORDS = 16  # columns that words get before a table is divided


def listing(
    study: Study, known: Snapshot, recipes: Iterable[Recipe], device: str, workers: int, archs: Collection[str]
) -> list[dict[str, Any]]:
    """Each recipe with what it needs of these backbones, what is there, and how long the rest takes."""
    rows = []
    small = study.sizes.scale == "quick"
    for recipe in recipes:
        needs = of_archs(recipe.needs(study, known), archs)
        left = missing([recipe], study, known, archs)
        rows.append(
            {
                "name": recipe.name,
                "covers": list(recipe.covers),
                "title": recipe.title,
                "beyond_the_paper": recipe.beyond,
                "claims": list(recipe.claims),
                "runs_needed": len(needs.specs) + sum(needs.later.values()),
                "runs_there": len(known.of(needs.specs)),
                "measurements_needed": len(needs.measurements),
                "measurements_there": len(needs.measurements) - len(left.measurements),
                "seconds_left": seconds_left(left, known, device, workers, small=small)[0],
            }
        )
    return rows


def seconds_left(left: Missing, known: Snapshot, device: str, workers: int, *, small: bool) -> tuple[float, str]:
    """Wall time of what is missing, and what that rests on. What cannot be named yet is taken for an average run."""
    found = estimate(left.specs, known, device, workers, small)
    seconds = found.seconds + measurement_seconds(left.measurements, known, device, workers, small)
    if left.specs:
        seconds += found.seconds / len(left.specs) * left.later
    return seconds, found.basis if left.specs else "by a rule of thumb"


def plan_sentence(left: Missing, known: Snapshot, device: str, workers: int, *, small: bool) -> str:
    """How much is missing, and how long it will take."""
    if not (left.specs or left.measurements or left.later):
        return "Nothing is missing."
    seconds, basis = seconds_left(left, known, device, workers, small=small)
    later = f", up to {left.later} more once a search has chosen" if left.later else ""
    return (
        f"Missing: {len(left.specs)} trainings{later}, {len(left.measurements)} measurements. "
        f"About {duration(seconds)} "
        f"on {workers} {'core' if device == 'cpu' else 'GPU'}{'s' if workers > 1 else ''}, {basis}."
    )


def study_sentence(study: Study) -> str:
    """How large a study is: who typed 42 for one seed sees here that it means 42 of them."""
    seeds = study.seeds
    names = ", ".join(map(str, seeds))
    if len(seeds) > 2 and seeds == tuple(range(seeds[0], seeds[-1] + 1)):
        names = f"{seeds[0]} to {seeds[-1]}"
    counts = [f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''} ({names})"]
    counts += [f"{study.epochs} epoch{'s' if study.epochs > 1 else ''}", study.precision]
    return f"Scale {study.sizes.scale}: {', '.join(counts)}{f', {study.stand_in}' if study.stand_in else ''}."


def elsewhere(known: Snapshot, study: Study) -> str:
    """What else the store holds; it is never mixed in."""
    mine = {spec.id for spec in needs_of(RECIPES.values(), study, known).specs}
    others = [run.spec for run in known.runs.values() if run.spec.id not in mine]
    if not others:
        return ""
    epochs = ", ".join(map(str, sorted({spec.epochs for spec in others})))
    data, precisions = (
        ", ".join(sorted({getattr(spec, name) for spec in others})) for name in ("dataset", "precision")
    )
    return (
        f"The store also holds {len(others)} runs of another scale, reading, length or precision "
        f"({data}; {epochs} epochs; {precisions}): they are not part of this."
    )


def show_results(results: Sequence[RecipeResult], judgements: Sequence[Judgement]) -> None:
    """Tables with their notes, figures by name, then the verdicts of the claims that they test."""
    console = stdout()
    for result in results:
        console.print(f"{result.title} ({result.runs_there}/{result.runs_needed} trainings)")
        for table in result.tables:
            _show_table(table)
        for figure in result.figures:
            console.print(f"{figure.title}: {figure.caption if figure.missing else 'drawn in the report'}")
        for note in result.notes:
            console.print(note)
        console.print()
    wanted = {name for result in results for name in result.claims}
    for judgement in judgements:
        if judgement.claim.id in wanted:
            console.print(f"{judgement.claim.id} {judgement.claim.text}: {judgement.sentence}")


def show_trial(display: Display, run: Run, done: int, total: int) -> None:
    """A line for a run of a search, which has no test accuracy."""
    if not display.console.is_terminal:
        best = run.best_validation
        text = "diverged" if best is None else f"best validation accuracy {best.validation_accuracy or 0:.3f}"
        spec = run.spec
        display.console.print(f"{done}/{total} search: {spec.arch} {spec.variant} seed {spec.seed}: {text}")


def document(results: Sequence[RecipeResult], judgements: Sequence[Judgement], study: Study) -> dict[str, Any]:
    """Everything as JSON values; figures by name."""
    wanted = {name for result in results for name in result.claims}
    return {
        "study": {
            "scale": study.sizes.scale,
            "seeds": list(study.seeds),
            "epochs": study.epochs,
            "precision": study.precision,
            "readings": [reading.name for reading in study.readings],
            "hyperparameters": study.hyperparameters,
            "fair": study.fair,
            "stand_in": study.stand_in,
        },
        "claims": [
            {
                "id": one.claim.id,
                "claim": one.claim.text,
                "paper": one.claim.paper_value,
                "verdict": one.words,
                "sentence": one.sentence,
                "effect": one.effect,
                "low": one.low,
                "high": one.high,
                "n": one.n,
                "reading": one.reading,
                "preliminary": one.preliminary,
                "lacks": one.lacks,
                "spec_ids": list(one.spec_ids),
            }
            for one in judgements
            if one.claim.id in wanted
        ],
        "results": [_result(result) for result in results],
    }


def _result(result: RecipeResult) -> dict[str, Any]:
    plain = {name: getattr(result, name) for name in (
        "name", "title", "question", "how", "runs_needed", "runs_there", "measurements_needed", "measurements_there",
        "seconds", "devices", "versions", "claims", "diverged", "notes")}  # fmt: skip
    tables = [
        {
            "name": table.name,
            "title": table.title,
            "columns": table.columns,
            "rows": [[dataclasses.asdict(cell) for cell in row] for row in table.rows],
            "note": table.note,
        }
        for table in result.tables
    ]
    figures = [
        {"name": one.name, "title": one.title, "caption": one.caption, "missing": one.missing} for one in result.figures
    ]
    return {**plain, "tables": tables, "figures": figures}


def _show_table(table: ResultTable) -> None:
    """The table as it fits a terminal: where it is too wide, in parts that repeat the first columns."""
    console = stdout()
    console.print(table.title)
    headings = [_heading(name) for name in table.columns]
    rows = [[cell.text.replace(" ± ", "±").replace("% to ", " to ") for cell in row] for row in table.rows]
    numbers = [any(_is_number(row[i]) for row in table.rows) for i in range(len(headings))]
    least = [
        _least_width([heading, *(row[i] for row in rows)], number)
        for i, (heading, number) in enumerate(zip(headings, numbers, strict=True))
    ]
    for part in _parts(least, numbers.index(True) if True in numbers else 1, console.width):
        shown = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 0, 0, 1))
        for i in part:
            shown.add_column(
                headings[i],
                justify="right" if numbers[i] else "left",
                no_wrap=numbers[i],
                overflow="fold",
                min_width=least[i] - 1,
            )
        for row in rows:
            shown.add_row(*(row[i] for i in part))
        console.print(shown)
    console.print(table.note)


def _least_width(texts: Sequence[str], number: bool) -> int:
    """Numbers and intervals are never broken; words are, where a line is longer than `WORDS` and its longest word."""
    line = max(len(line) for text in texts for line in text.split("\n"))
    if number:
        return 1 + line
    return 1 + max(min(line, WORDS), *(len(word) for text in texts for word in text.split() or [""]))


def _is_number(cell: Cell) -> bool:
    return cell.value is not None or cell.missing or " to " in cell.text


def _parts(least: Sequence[int], first: int, room: int) -> list[list[int]]:
    """Columns of each part: the first ones, and as many others as there is room for."""
    lead = list(range(first))
    parts: list[list[int]] = [[]]
    for i in range(first, len(least)):
        # Between two columns rich puts one more space than is counted.
        if parts[-1] and sum(1 + least[j] for j in (*lead, *parts[-1], i)) - 1 > room:
            parts.append([])
        parts[-1].append(i)
    return [[*lead, *part] for part in parts]


def _heading(name: str) -> str:
    for long, short in (("Asymmetric", "Asymm."), ("Improvement", "Change"), ("improvement", "change")):
        name = name.replace(long, short)
    return name.replace(": ", "\n").replace(" of ", " of\n")
