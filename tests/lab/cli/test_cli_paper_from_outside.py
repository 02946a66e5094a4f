"""A table of the paper is one file with its `RECIPES` and one line in a list: here one is added from the outside."""

import json
import sys
import types

import pytest

from asymtrain.lab.report.figure import Figure, Line, Lines
from asymtrain.lab.report.table import Cell, Column, Range, Table
from asymtrain.lab.studies.paper import recipes
from asymtrain.lab.studies.paper.recipe import Recipe, RecipeOutput
from asymtrain.lab.studies.paper.study import plain_spec, table_values
from asymtrain.lab.studies.paper.tables import arch_cell, number
from asymtrain.lab.studies.study import Needs


def spec_of(study):
    return plain_spec(study, "mlp", "cifar100", table_values(study, "mlp", 1))


def make(study, known):
    run = known.runs.get(spec_of(study).id)
    cell = Cell(missing=True) if run is None else Cell(Range(0.25, 0.5), (run.spec.id,))
    table = Table("table18", "Table 18", (Column("Backbone"), number("Span", 2)), ((arch_cell("mlp"), cell),))
    line = Line("MLP", "mlp", (1.0, 2.0), (0.1, 0.2))
    figure = Figure("figure10", "Figure 10", (Lines("", "x", "y", (line,)),), caption="A caption.")
    return RecipeOutput((table,), (figure,))


RECIPE = Recipe("table18", ("table18", "figure10"), "Table 18: of a user", "Why?", "By hand.", (),
                lambda study, known: Needs((spec_of(study),)), make)  # fmt: skip


@pytest.fixture
def added(monkeypatch):
    """The file and the line, and the recipes read from the list again."""
    module = types.ModuleType(f"{recipes.__name__}.table18")
    module.RECIPES = (RECIPE,)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(recipes, "FILES", (*recipes.FILES, "table18"))
    for name in reversed(list(recipes.RECIPES)):  # so that they are put back in their order
        monkeypatch.delitem(recipes.RECIPES, name)
    for name, recipe in recipes.read_recipes().items():
        monkeypatch.setitem(recipes.RECIPES, name, recipe)


def test_a_recipe_is_listed_run_shown_and_exported(added, cli, tmp_path):
    names = list(recipes.RECIPES)
    assert names.index("table16") + 1 == names.index("table18") == names.index("figure3") - 1
    assert "table18" in cli("paper", "list").out
    result = cli("paper", "run", "figure 10", "--epochs", "1", "--seeds", "42,", "--out", "page", "--json")
    assert result.code == 0, result.err
    (shown,) = json.loads(result.out)["results"]
    (cell,) = (row[1] for row in shown["tables"][0]["rows"])
    assert (cell["text"], cell["low"], cell["high"], len(cell["spec_ids"])) == ("0.25 to 0.50", 0.25, 0.5, 1)
    assert (tmp_path / "page" / "paper-figure10.svg").read_text().startswith("<svg")
    assert (tmp_path / "page" / "paper-table18.csv").read_text() == "Backbone,Span: low,Span: high\nMLP,0.25,0.50\n"
    assert "Table 18: of a user" in (tmp_path / "page" / "paper.html").read_text()
    assert cli("paper", "show", "table18", "--arch", "cnn").code == 2
