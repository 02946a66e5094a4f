"""What `asymtrain paper` does with a store's rows: results, the page, what is printed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from asymtrain.cli.options import typed_command
from asymtrain.cli.paper_screen import document, show_results
from asymtrain.cli.screen import show_json
from asymtrain.paper.judging import judge_results
from asymtrain.paper.known import read_store
from asymtrain.paper.recipe import Recipe, cook
from asymtrain.paper.result import RecipeResult
from asymtrain.paper.study import Study
from asymtrain.report import duration
from asymtrain.report.paper_figures import draw
from asymtrain.report.paper_page import write_paper
from asymtrain.report.paper_specs import Behind, specs_behind
from asymtrain.store import Store


def cook_all(recipes: Sequence[Recipe], study: Study, store: Path) -> tuple[list[RecipeResult], Behind]:
    """The recipes' results from what the store holds, and the specs behind them."""
    known = read_store(store)
    return [cook(recipe, study, known, draw) for recipe in recipes], specs_behind(recipes, study, known)


def write_page(
    context: typer.Context, out: Path, results: Sequence[RecipeResult], study: Study, behind: Behind
) -> dict[str, Path]:
    """The page with its tables and figures; paths by kind."""
    judgements = judge_results(results)
    whole = document(results, judgements, study)
    return write_paper(out, results, judgements, study, typed_command(context), whole, behind)


def show_all(results: Sequence[RecipeResult], study: Study, *, json: bool) -> None:
    """Print tables and verdicts, or everything as JSON."""
    judgements = judge_results(results)
    if json:
        show_json(document(results, judgements, study))
    else:
        show_results(results, judgements)


def list_row(row: dict[str, Any]) -> list[str]:
    """A line of `paper list`."""
    runs = f"{row['runs_there']}/{row['runs_needed']}"
    measured = f"{row['measurements_there']}/{row['measurements_needed']}"
    claims = ", ".join(row["claims"]) or "—"
    covers = "beyond the paper" if row["beyond_the_paper"] else ", ".join(row["covers"])
    return [row["name"], covers, claims, runs, measured, duration(row["seconds_left"])]


def reasons(store: Path, ids: set[str]) -> list[str]:
    """Why trainings failed."""
    if not store.exists():
        return []
    with Store(store, read_only=True) as opened:
        return sorted({failure.reason for failure in opened.failures() if failure.spec.id in ids})
