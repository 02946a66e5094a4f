"""Named recipes: what they hold, and what wins over them."""

import dataclasses
import re
from pathlib import Path

import pytest

from asymtrain import UsageError
from asymtrain.lab.recipes import (
    FIELDS,
    NAMED_FIELDS,
    RECIPES,
    complete,
    fitting_batch,
    recipe_fields,
    with_recipe,
)
from asymtrain.lab.runs import DEFAULTS, RunSpec

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


def test_the_paper_s_recipe_is_what_a_spec_does_by_itself():
    spec = RunSpec(arch="cnn", learning_rate=3e-4, weight_decay=1e-3, epochs=200)
    assert with_recipe(spec, "paper") == spec
    assert with_recipe(spec, "paper").id == spec.id


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_says_all_that_one_of_them_says_and_makes_a_spec(name):
    of_the_scale = {"learning_rate", "weight_decay", "batch"} if name == "paper" else set()
    assert RECIPES[name].keys() | of_the_scale == set(FIELDS)
    for epochs in (1, 5, 200):
        spec = with_recipe(RunSpec(epochs=epochs), name)
        assert all(getattr(spec, field) == value for field, value in RECIPES[name].items() if field != "warmup")
        assert spec.warmup == min(RECIPES[name]["warmup"], epochs / 10)


def test_the_recipes_differ_as_their_names_promise():
    ordinary, strong = RECIPES["ordinary"], RECIPES["strong"]
    assert (ordinary["schedule"], ordinary["schedule_by"], ordinary["decay"]) == ("cosine", "step", "matrices")
    assert not any(ordinary[name] for name in ("label_smoothing", "mixup", "cutmix", "erasing", "clip", "averaging"))
    assert all(strong[name] for name in ("label_smoothing", "mixup", "cutmix", "erasing", "clip", "averaging"))


def test_what_is_given_wins():
    spec = with_recipe(RunSpec(epochs=100), "strong", learning_rate=0.5, mixup=0, warmup=7, seed=3)
    assert (spec.learning_rate, spec.mixup, spec.warmup, spec.seed, spec.cutmix) == (0.5, 0.0, 7.0, 3, 1.0)
    assert with_recipe(RunSpec(epochs=100), "ordinary", epochs=20).warmup == 2


@pytest.mark.parametrize(
    ("images", "batch"), [(50_000, 128), (39 * 128 + 1, 128), (39 * 128, 64), (2000, 32), (100, 16)]
)
def test_a_batch_is_halved_where_an_epoch_has_few(images, batch):
    assert fitting_batch(RECIPES["ordinary"]["batch"], images) == batch


def test_what_nobody_gave_is_told():
    specs = [RunSpec(arch=arch, learning_rate=rate) for arch, rate in (("mlp", 0.1), ("cnn", 0.2), ("vit", 0.1))]
    same, (line,) = complete(specs, None, ["batch", "alpha"], scale="quick", seeds=None)
    assert same == specs
    assert line.startswith(
        "Defaults: scale quick, data shapes, epochs 10, learning rate 0.1 (mlp, vit) and 0.2 (cnn), "
    )
    assert not [word for word in ("batch", "alpha", "seeds", "None") if word in line]
    assert complete(specs, None, NAMED_FIELDS) == (specs, [])


def test_the_size_that_photos_are_scaled_to_is_told_unless_it_was_given():
    photos = RunSpec(dataset="folder:photos")
    told = "Each image is scaled to 32 x 32 pixels: the data's option image_size sets another size."
    assert complete([photos, photos.plain()], None, NAMED_FIELDS) == ([photos, photos.plain()], [told])
    sized = RunSpec(dataset="folder:photos", dataset_options={"image_size": 64})
    assert complete([sized], None, NAMED_FIELDS) == ([sized], [])


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(UsageError, match="unknown recipe 'ordinery': did you mean 'ordinary'"):
        recipe_fields("ordinery", 10, {})


def test_plain_and_asymmetric_of_a_recipe_are_a_pair():
    spec = with_recipe(RunSpec(redundancy=4), "strong")
    assert dataclasses.replace(spec.plain(), redundancy=4, alpha=spec.alpha) == spec


def test_the_page_has_every_field_of_every_recipe():
    shown = re.search(r"<!-- recipes -->\n(.*)\n<!-- end of recipes -->", PAGE.read_text(), re.DOTALL)
    assert shown is not None
    rows = [["field", *RECIPES], ["---"] * (1 + len(RECIPES))]
    for field in DEFAULTS:
        values = [recipe.get(field) for recipe in RECIPES.values()]
        words = ["the scale's" if v is None else f"{v:g}" if isinstance(v, float) else str(v) for v in values]
        rows += [[f"`{field}`", *words]] if any(field in recipe for recipe in RECIPES.values()) else []
    assert shown[1].strip() == "\n".join(f"| {' | '.join(row)} |" for row in rows)
