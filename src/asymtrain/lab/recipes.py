"""Training recipes by name: `paper`, `ordinary`, `strong` and two published ones, and functions that apply them.

A recipe is a set of fields of a spec. Fields that a user gives override the recipe, and the recipe overrides a scale.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asymtrain.errors import unknown_name
from asymtrain.lab.runs import DEFAULTS, RunSpec
from asymtrain.lab.texts import listing

if TYPE_CHECKING:
    from asymtrain.lab.data import Dataset

_NOTHING: dict[str, Any] = {
    "label_smoothing": 0.0, "clip": 0.0, "averaging": 0.0, "passes": 1, "erasing": 0.0, "erased_area": 1 / 3,
    "mixup": 0.0, "cutmix": 0.0, "mixing": 1.0,
}  # fmt: skip
_ORDINARY: dict[str, Any] = {
    "learning_rate": 1e-3,
    "weight_decay": 0.05,
    "batch": 128,
    "decay": "matrices",
    "schedule": "cosine",
    "schedule_by": "step",
    "warmup": 5.0,
    "augmentation": "flip_shift",
    **_NOTHING,
}
RECIPES: dict[str, Mapping[str, Any]] = {
    # Rates, decay and batch come from the scale, which has the paper's rates and decay for each backbone.
    "paper": {
        "decay": "all",
        "schedule": "constant",
        "schedule_by": "epoch",
        "warmup": 0.0,
        "augmentation": "none",
        **_NOTHING,
    },
    "ordinary": _ORDINARY,
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
    # As published for ViT-Lite-7/4 (Compact Transformers, 200 epochs), and for the ViT of SPT + LSA (100 epochs).
    "vit_lite": {
        **_ORDINARY,
        "learning_rate": 5e-4,
        "weight_decay": 0.03,
        "decay": "all",
        "schedule_by": "epoch",
        "augmentation": "policy_first",
        "label_smoothing": 0.1,
    },
    "small_vit": {
        **_ORDINARY,
        "decay": "all",
        "warmup": 10.0,
        "passes": 3,
        "augmentation": "policy",
        "label_smoothing": 0.1,
        "erasing": 0.25,
        "erased_area": 0.4,
        "mixup": 1.0,
        "cutmix": 1.0,
        "mixing": 0.5,
    },
}
FIELDS = tuple(dict.fromkeys(field for recipe in RECIPES.values() for field in recipe))
"""The fields that a recipe sets."""
LEAST_EPOCHS = 10  # of the run for each epoch of warm-up: in shorter runs the warm-up is a tenth
LEAST_BATCHES, SMALLEST_BATCH = 40, 16  # the batch is halved until an epoch has so many, down to the smallest
# Fields that affect a result: a command's first line names those that the user did not give.
NAMED_FIELDS = {
    "dataset": "data", "per_class": "images a class", "epochs": "epochs", "batch": "batch",
    "learning_rate": "learning rate", "weight_decay": "weight decay", "precision": "precision", "alpha": "alpha",
    "redundancy": "redundancy",
}  # fmt: skip


def recipe_fields(name: str, epochs: int, named_fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a recipe for a run of this number of epochs; given fields override them."""
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    fields = dict(RECIPES[name])
    fields["warmup"] = min(fields["warmup"], epochs / LEAST_EPOCHS)
    return {**fields, **named_fields}


def with_recipe(spec: RunSpec, name: str, **fields: Any) -> RunSpec:
    """The spec with a recipe's fields; further given fields override them."""
    return dataclasses.replace(spec, **recipe_fields(name, fields.get("epochs", spec.epochs), fields))


def complete(
    specs: Sequence[RunSpec],
    by: str | None,
    named_fields: Collection[str],
    data_root: Path | None = None,
    **others: Any,
) -> tuple[list[RunSpec], list[str]]:
    """Specs with batch and augmentation fitted to their data, and lines about the settings that the user did not give.

    `by` is the recipe, `named_fields` are the fields that the user gave, and `others` are further defaults; None is
    not listed.
    """
    from asymtrain.lab.data.folder import IMAGE_SIZE

    fitted, reasons = list(specs), dict[str, None]()
    if "batch" in RECIPES.get(by or "", {}):
        for number, spec in enumerate(specs):
            fitted[number], lines = _fitted_to_data(spec, named_fields, data_root)
            reasons |= dict.fromkeys(lines)
    defaults = [f"{name} {_text(value)}" for name, value in others.items() if value is not None]
    defaults += [
        f"{word} {_of_each(fitted, field)}" for field, word in NAMED_FIELDS.items() if field not in named_fields
    ]
    defaults = [words for words in defaults if not words.endswith(" None")]
    if any(spec.dataset.startswith("folder:") and "image_size" not in dict(spec.dataset_options) for spec in fitted):
        side = f"{IMAGE_SIZE} x {IMAGE_SIZE} pixels"
        reasons[f"Each image is scaled to {side}: the data's option image_size sets another size."] = None
    return fitted, [*([f"Defaults: {', '.join(defaults)}."] if defaults else []), *reasons]


def fitting_batch(batch: int, images: int) -> int:
    """The batch, halved until an epoch has enough batches, or the batch is the smallest allowed."""
    while batch > SMALLEST_BATCH and math.ceil(images / batch) < LEAST_BATCHES:
        batch //= 2
    return batch


def _fitted_to_data(spec: RunSpec, named_fields: Collection[str], data_root: Path | None) -> tuple[RunSpec, list[str]]:
    """The spec without its recipe's image augmentation if the data are not images, and with a batch for enough steps.

    Given fields stay. Also returns lines about what differs from the recipe.
    """
    from asymtrain.lab.engine import load_for
    from asymtrain.lab.engine.setup import OF_IMAGES

    lines = []
    parts = [name for name in OF_IMAGES if name not in named_fields and getattr(spec, name) != DEFAULTS[name]]
    plain = dataclasses.replace(spec, **{name: DEFAULTS[name] for name in parts})
    dataset = load_for(plain, data_root)
    if parts and dataset.kind != "images":
        words = listing(spec.augmentation if name == "augmentation" else name for name in parts)
        lines.append(f"Without the recipe's {words}, made for images: {dataset.name} holds {dataset.kind}.")
        spec = plain
    batch = spec.batch
    if "batch" not in named_fields:
        images = _training_size(spec, dataset)
        batch = fitting_batch(spec.batch, images)
        if batch != spec.batch:
            few = f"of {images:,} training examples it makes only {math.ceil(images / spec.batch)} batches an epoch"
            lines.append(f"Batch {batch}, not the recipe's {spec.batch}: {few}.")
    return dataclasses.replace(spec, batch=batch), lines


def _training_size(spec: RunSpec, dataset: "Dataset") -> int:
    """The number of examples that a run trains on."""
    from asymtrain.lab.data.subsets import split

    if spec.per_class is not None:
        return spec.per_class * dataset.classes
    labels = dataset.train.labels
    return len(split(labels, spec.seed)[0] if spec.validation == "split" else labels)


def _of_each(specs: Sequence[RunSpec], field: str) -> str:
    """The value that all specs share, or each value with its models."""
    archs: dict[str, list[str]] = {}
    for spec in specs:
        archs.setdefault(_text(getattr(spec, field)), []).append(spec.arch)
    if len(archs) == 1:
        return next(iter(archs))
    return " and ".join(f"{value} ({', '.join(names)})" for value, names in archs.items())


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
