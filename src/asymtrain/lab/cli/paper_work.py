"""What `asymtrain paper` does with a store's rows: results, the page, what is printed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from asymtrain.lab.cli.options import typed_command
from asymtrain.lab.cli.paper_screen import document, show_results
from asymtrain.lab.cli.screen import show_json
from asymtrain.lab.paper.drawing import draw
from asymtrain.lab.paper.page import write_paper
from asymtrain.lab.paper.recipe import Recipe, build_result
from asymtrain.lab.paper.result import RecipeResult
from asymtrain.lab.paper.snapshot import read_store
from asymtrain.lab.paper.spec_index import SpecsUsed, specs_behind
from asymtrain.lab.paper.study import Study
from asymtrain.lab.paper.verdicts import judge_results
from asymtrain.lab.report import duration
from asymtrain.lab.store import Store


def build_results(recipes: Sequence[Recipe], study: Study, store: Path) -> tuple[list[RecipeResult], SpecsUsed]:
    """The recipes' results from what the store holds, and the specs behind them."""
    known = read_store(store)
    return [build_result(recipe, study, known, draw) for recipe in recipes], specs_behind(recipes, study, known)


def write_page(
    context: typer.Context, out: Path, results: Sequence[RecipeResult], study: Study, behind: SpecsUsed
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
