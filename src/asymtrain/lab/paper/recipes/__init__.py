"""The recipes: a small file for each table, or for those that share their rows.

`RECIPES` has the paper's order; what goes beyond the paper comes last.
"""

from collections.abc import Iterable

from asymtrain.errors import UsageError
from asymtrain.lab.paper.recipe import Recipe
from asymtrain.lab.paper.recipes import (
    alphas,
    attention,
    controls,
    few_shot,
    identity,
    noise,
    schedules,
    table01,
    table02,
    table05,
    table10,
    table13,
    table16,
    trajectories,
)

_ORDER = (
    "table1", "table2", "table3", "table4", "table5", "table7", "table8", "table9", "table10", "table11", "table12",
    "table13", "table14", "table16", "figure3", "figure4", "figure8", "figure9", "identity",
    "alphas", "schedules", "controls",
)  # fmt: skip
_ALL = {
    recipe.name: recipe
    for recipe in (
        table01.RECIPE,
        table02.RECIPE,
        *trajectories.RECIPES,
        table05.RECIPE,
        *few_shot.RECIPES,
        table10.RECIPE,
        *noise.RECIPES,
        table13.RECIPE,
        *attention.RECIPES,
        table16.RECIPE,
        identity.RECIPE,
        alphas.RECIPE,
        schedules.RECIPE,
        controls.RECIPE,
    )
}
RECIPES: dict[str, Recipe] = {name: _ALL[name] for name in _ORDER}
ALIASES = {alias: recipe.name for recipe in RECIPES.values() for alias in recipe.covers}


def choose(names: Iterable[str]) -> tuple[Recipe, ...]:
    """Recipes by the paper's names (table 15, Table15, figure2), or `all`; an unknown one shows the list."""
    found: dict[str, Recipe] = {}
    for name in names:
        wanted = name.lower().replace(" ", "").replace("_", "").replace("-", "")
        wanted = wanted.replace("table0", "table").replace("figure0", "figure")
        if wanted == "all":
            return tuple(RECIPES.values())
        if wanted not in ALIASES:
            raise UsageError(f"the paper has no {name!r}: choose among all, {', '.join(ALIASES)}")
        found[ALIASES[wanted]] = RECIPES[ALIASES[wanted]]
    return tuple(found.values())
