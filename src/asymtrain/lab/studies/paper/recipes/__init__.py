"""The recipes: a file for each table, or for tables that are made alike or share their rows.

A new recipe is a file with its `RECIPES`, and its name in `FILES`.
"""

import importlib
import re
from collections.abc import Iterable

from asymtrain.errors import UsageError
from asymtrain.lab.studies.paper.recipe import Recipe

FILES = ("accuracy", "training", "table05", "table13", "attention", "identity", "variants", "fitting")


def _paper_order(recipe: Recipe) -> tuple[int, int]:
    """Tables, then figures, by number; then what goes beyond the paper, in the order of the files."""
    numbered = re.fullmatch(r"(table|figure)(\d+)", recipe.name)
    return (2, 0) if numbered is None else (numbered[1] == "figure", int(numbered[2]))


def read_recipes() -> dict[str, Recipe]:
    listed = [recipe for file in FILES for recipe in importlib.import_module(f"{__name__}.{file}").RECIPES]
    return {recipe.name: recipe for recipe in sorted(listed, key=_paper_order)}


RECIPES = read_recipes()


def aliases() -> dict[str, str]:
    return {alias: recipe.name for recipe in RECIPES.values() for alias in recipe.covers}


def choose(names: Iterable[str]) -> tuple[Recipe, ...]:
    """Recipes by the paper's names (table 15, Table15, figure2), or `all`; an unknown one shows the list."""
    recipe_names, recipes = aliases(), dict[str, Recipe]()
    for name in names:
        key = name.lower().replace(" ", "").replace("_", "").replace("-", "")
        key = key.replace("table0", "table").replace("figure0", "figure")
        if key == "all":
            return tuple(RECIPES.values())
        if key not in recipe_names:
            raise UsageError(f"the paper has no {name!r}: choose among all, {', '.join(recipe_names)}")
        recipes[recipe_names[key]] = RECIPES[recipe_names[key]]
    return tuple(recipes.values())
