"""What `asymtrain paper` does with a store's rows: the plan, the results, what is printed."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from asymtrain.errors import UsageError
from asymtrain.lab.cli.options import Workers
from asymtrain.lab.cli.screen import show_json, show_table, stdout
from asymtrain.lab.report import duration
from asymtrain.lab.report.table import Column, Table, make_rows
from asymtrain.lab.studies.paper import blocks
from asymtrain.lab.studies.paper.recipe import Recipe, RecipeResult, build_result, needs_of, of_archs
from asymtrain.lab.studies.paper.recipes import RECIPES
from asymtrain.lab.studies.paper.running import START, Missing, estimate, is_timed, measurement_seconds, missing_of
from asymtrain.lab.studies.paper.snapshot import Snapshot
from asymtrain.lab.studies.paper.study import SIZES, Study
from asymtrain.lab.studies.paper.verdicts import Judgement, judge_results, tested_by
from asymtrain.lab.texts import counted

SHOWN_WHOLE = 3  # recipes that are printed in full unasked: all of them have 900 lines


def judge_recipes(
    recipes: Iterable[Recipe], study: Study, known: Snapshot
) -> tuple[list[RecipeResult], list[Judgement]]:
    """What a store's rows make of recipes, and the verdicts on the claims that these test."""
    results = [build_result(recipe, study, known) for recipe in recipes]
    return results, tested_by(results, judge_results(results))


def ask_once(recipe: Recipe, study: Study, known: Snapshot) -> Recipe:
    """The recipe with its answer to what it needs: a list asks twice, and the specs take most of its time."""
    needs = recipe.needs(study, known)
    return dataclasses.replace(recipe, needs=lambda study, known: needs)


def listing(
    study: Study, known: Snapshot, recipes: Iterable[Recipe], workers: Workers, archs: Collection[str]
) -> Iterator[dict[str, Any]]:
    """Each recipe with what it needs of these backbones, what is stored, and how long the rest takes."""
    for recipe in recipes:
        needs = of_archs(recipe.needs(study, known), archs)
        yield {
            "name": recipe.name,
            "covers": list(recipe.covers),
            "title": recipe.title,
            "beyond_the_paper": recipe.beyond,
            "claims": list(recipe.claims),
            **needs.progress(known),
            "seconds_left": seconds_left(missing_of(needs, known), study, known, workers)[0],
        }


def listing_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    columns = (
        *map(Column, ("Name", "Covers", "Claims")),
        *(Column(name, "number") for name in ("Trainings", "Measurements", "Time left")),
    )
    cells = (
        (
            row["name"],
            "beyond the paper" if row["beyond_the_paper"] else ", ".join(row["covers"]),
            ", ".join(row["claims"]) or None,
            f"{row['runs_there']}/{row['runs_needed']}",
            f"{row['measurements_there']}/{row['measurements_needed']}",
            duration(row["seconds_left"]),
        )
        for row in rows
    )
    return Table("recipes", "", columns, make_rows(cells))


def blocks_listing(study: Study, known: Snapshot, workers: Workers) -> list[dict[str, Any]]:
    """Each block of the reproduction: how far it is, how long the rest takes, and the command that does it."""
    device = workers[0]
    timed = {run.spec.precision for run in known.runs.values() if is_timed(run, device)}
    rated = {"bf16" if device == "cuda" else "fp32", *timed}
    rows = []
    for block in blocks.BLOCKS.values():
        own, needs = block.study(study), block.needs(study, known)
        left, row = missing_of(needs, known), {"name": block.name, "title": block.title, **needs.progress(known)}
        seconds = seconds_left(left, own, known, workers)[0] if own.precision in rated or left.is_empty else None
        rows.append({**row, "command": block.command, "seconds_left": seconds})
    return rows


def seconds_left(left: Missing, study: Study, known: Snapshot, workers: Workers) -> tuple[float, str]:
    """Wall time of what is missing, and what that rests on. What cannot be named yet is taken for an average run."""
    small = study.sizes.scale == "quick"
    trainings = estimate(left.specs, known, *workers, small)
    seconds = 0.0 if left.is_empty else START[workers[0]]
    seconds += trainings.seconds + measurement_seconds(left.measurements, known, *workers, small)
    if left.specs:
        seconds += trainings.seconds / len(left.specs) * left.later
    return seconds, trainings.basis if left.specs else "by a rule of thumb"


def plan_sentence(left: Missing, study: Study, known: Snapshot, workers: Workers) -> str:
    if left.is_empty:
        return "Nothing is missing."
    seconds, basis = seconds_left(left, study, known, workers)
    later = f", up to {left.later} more once a search has chosen" if left.later else ""
    device, count = workers
    return (
        f"Missing: {len(left.specs)} trainings{later}, {len(left.measurements)} measurements. "
        f"About {duration(seconds)} "
        f"on {counted(count, 'core' if device == 'cpu' else 'GPU')}, {basis}."
    )


def study_sentence(study: Study) -> str:
    """How large a study is: who typed 42 for one seed sees here that it means 42 of them."""
    seeds = study.seeds
    names = ", ".join(map(str, seeds))
    if len(seeds) > 2 and seeds == tuple(range(seeds[0], seeds[-1] + 1)):
        names = f"{seeds[0]} to {seeds[-1]}"
    counts = [f"{counted(len(seeds), 'seed')} ({names})"]
    counts += [counted(study.epochs, "epoch"), study.precision]
    return f"Scale {study.sizes.scale}: {', '.join(counts)}{f', {study.stand_in}' if study.stand_in else ''}."


def elsewhere(known: Snapshot, study: Study) -> str:
    """What else the store holds; it is never mixed in."""
    mine = {spec.id: spec for spec in needs_of(RECIPES.values(), study, known).specs}
    others = [run.spec for run in known.runs.values() if run.spec.id not in mine]
    if not others:
        return ""
    fields = ("dataset", "epochs", "precision")
    theirs, ours = ([{getattr(spec, name) for spec in specs} for name in fields] for specs in (others, mine.values()))
    if all(their <= our for their, our in zip(theirs, ours, strict=True)):
        differ = "another reading or recipe (`--reading every` shows those of readings)"
    else:
        data, epochs, precisions = (", ".join(map(str, sorted(values))) for values in theirs)
        differ = f"another scale, reading, length or precision ({data}; {epochs} epochs; {precisions})"
    return f"The store also holds {counted(len(others), 'run')} of {differ}, which are not part of this."


def check_stored(results: Sequence[RecipeResult], study: Study, known: Snapshot, parts: Sequence[Recipe]) -> None:
    """Refuse to show tables of dashes: name the options under which the store has rows, or what else it holds."""
    if any(result.runs_there or result.measurements_there for result in results):
        return
    found = {}
    for scale, precision in product(SIZES, sorted({run.spec.precision for run in known.runs.values()})):
        other = dataclasses.replace(study, sizes=SIZES[scale], precision=precision, seeds=(), epochs=0)
        there = needs_of(parts, other, known).progress(known)
        found[f"--scale {scale} --precision {precision}"] = there["runs_there"] + there["measurements_there"]
    best = max(found, key=lambda options: found[options], default="")
    names = ", ".join(result.name for result in results) if len(results) <= SHOWN_WHOLE else "these recipes"
    remedy = elsewhere(known, study) or "Train them with `asymtrain paper run`."
    if best and found[best]:
        remedy = f"Add {best} to see {counted(found[best], 'row')} of it."
    raise UsageError(f"the store has no rows of {names} for this study. {study_sentence(study)} {remedy}")


def _rows_there(result: RecipeResult) -> str:
    """How many of its rows there are: trainings, or measurements where it has no others."""
    if result.runs_needed:
        return f"{result.runs_there}/{result.runs_needed} trainings"
    return f"{result.measurements_there}/{result.measurements_needed} measurements"


def _show_overview(results: Sequence[RecipeResult], judgements: Sequence[Judgement], rest: str) -> None:
    """A line for each recipe, the claims by verdict, and where the rest is."""
    console = stdout()
    columns = (Column("Recipe"), Column("Title"), Column("Rows", "number"), Column("Claims"))
    rows = ((result.name, result.title, _rows_there(result), ", ".join(result.claims) or None) for result in results)
    show_table(Table("overview", "", columns, make_rows(rows)))
    console.print()
    verdicts: dict[str, list[str]] = {}
    for judgement in judgements:
        verdicts.setdefault(judgement.words, []).append(judgement.claim.id)
    for words, claims in sorted(verdicts.items(), key=lambda item: -len(item[1])):
        console.print(f"{words} ({len(claims)}): {', '.join(claims)}")
    console.print(f"Every table, note and verdict: {rest}.", soft_wrap=True)


def show_results(
    results: Sequence[RecipeResult], judgements: Sequence[Judgement], study: Study, rest: str, *, full: bool, json: bool
) -> None:
    """Tables with their notes, figures by name, then the verdicts; or all as JSON.

    Of several recipes an overview, unless they are asked for in full: `rest` is where the rest is.
    """
    if json:
        from asymtrain.lab.studies.paper.page import document

        show_json(document(results, judgements, study))
        return
    if len(results) > SHOWN_WHOLE and not full:
        _show_overview(results, judgements, rest)
        return
    console = stdout()
    for result in results:
        console.print(f"{result.title} ({_rows_there(result)})")
        for table in result.tables:
            if _says_nothing(table):
                console.print(f"{table.title}: no rows yet")
            else:
                show_table(table)
        for figure in result.figures:
            console.print(f"{figure.title}: {figure.caption if figure.missing else 'drawn in the report'}")
        for line in (*result.notes, ""):
            console.print(line)
    for judgement in judgements:
        console.print(f"{judgement.claim.id} {judgement.claim.text}: {judgement.sentence}")


def _says_nothing(table: Table) -> bool:
    """Does every row wait for its runs, with no number of the paper's beside?"""
    waits = [any(cell.missing for cell in row) and not any(cell.spec_ids for cell in row) for row in table.rows]
    return bool(waits) and all(waits) and not any(column.papers for column in table.columns)
