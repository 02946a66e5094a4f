"""How a run is trained, by name: `paper`, `ordinary`, `strong`. Data, and the functions that apply it.

A recipe is fields of a spec. What a user gives wins over the recipe, and the recipe wins over a scale.
`python -m asymtrain.lab.recipes` prints the table of docs/recipes.md.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from asymtrain.errors import unknown_name
from asymtrain.lab.runs import DEFAULTS, RunSpec, lacks_momentum

_NOTHING: dict[str, Any] = {
    "label_smoothing": 0.0, "clip": 0.0, "averaging": 0.0, "erasing": 0.0, "mixup": 0.0, "cutmix": 0.0,
}  # fmt: skip
_ORDINARY: dict[str, Any] = {
    "optimizer": "adamw",
    "learning_rate": 1e-3,
    "weight_decay": 0.05,
    "decay": "matrices",
    "schedule": "cosine",
    "schedule_by": "step",
    "warmup": 5.0,
    "augmentation": "flip_shift",
}
RECIPES: dict[str, Mapping[str, Any]] = {
    # Rates and decay are those of the scale, the paper's own for each backbone.
    "paper": {
        "optimizer": "adamw",
        "decay": "all",
        "schedule": "constant",
        "schedule_by": "epoch",
        "warmup": 0.0,
        "augmentation": "none",
        **_NOTHING,
    },
    "ordinary": {**_ORDINARY, **_NOTHING},
    "strong": {
        **_ORDINARY,
        "augmentation": "trivial",
        "label_smoothing": 0.1,
        "clip": 1.0,
        "averaging": 0.999,
        "erasing": 0.25,
        "mixup": 0.2,
        "cutmix": 1.0,
    },
}
FIELDS = (*dict.fromkeys(field for recipe in RECIPES.values() for field in recipe), "momentum")
"""What a recipe is made of."""
SGD: Mapping[str, Any] = {"learning_rate": 0.05, "weight_decay": 5e-4}
"""What stands in the place of a recipe's rate and decay where sgd is chosen."""
LEAST_EPOCHS = 10  # for each of warm-up: of a short run it is a part


def check_given(given: Mapping[str, Any]) -> None:
    """Refuse what the optimizer lacks. A spec cannot tell a default that was given from one that was not."""
    optimizer = given.get("optimizer", DEFAULTS["optimizer"])
    if "momentum" in given and optimizer != "sgd":
        raise lacks_momentum(optimizer)


def recipe_fields(name: str, epochs: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a recipe for a run of so many epochs; those that are given win."""
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    fields = dict(RECIPES[name])
    if given.get("optimizer") == "sgd" and "learning_rate" in fields:
        fields |= SGD
    fields["warmup"] = min(fields["warmup"], epochs / LEAST_EPOCHS)
    return {**fields, **given}


def with_recipe(spec: RunSpec, name: str, **given: Any) -> RunSpec:
    """The spec trained by a recipe; further fields that are given win over it."""
    return dataclasses.replace(spec, **recipe_fields(name, given.get("epochs", spec.epochs), given))


def recipe_table() -> str:
    """What each recipe holds, in Markdown."""
    names = [field for field in DEFAULTS if any(field in recipe for recipe in RECIPES.values())]
    rows = [["field", *RECIPES], ["---"] * (len(RECIPES) + 1)]
    for field in names:
        values = [recipe.get(field) for recipe in RECIPES.values()]
        rows.append([f"`{field}`", *("the scale's" if value is None else _text(value) for value in values)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    print(recipe_table())
