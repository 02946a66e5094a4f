"""Values of every field of a spec, for tests that try many."""

from hypothesis import strategies as st

from asymtrain import models
from asymtrain.lab.runs import DEFAULTS, choices

# Every field at another value than its default: those that specs had from the start, and later ones.
FIRST_FIELDS = {
    "dataset": "cifar100",
    "dataset_options": {"download": False},
    "per_class": 5,
    "label_noise": 0.3,
    "validation": "none",
    "arch": "cnn",
    "arch_options": {"widths": [8, 16, 16, 8, 8, 4], "dropout": 0.25},
    "redundancy": 20,
    "activation": "all",
    "alpha": 46.416,
    "class_reduction": "sum",
    "learning_rate": 3e-4,
    "weight_decay": 1e-5,
    "decay": "matrices",
    "batch": 64,
    "epochs": 200,
    "schedule": "cosine",
    "augmentation": "flip_shift",
    "precision": "bf16",
    "seed": 51,
    "test": "never",
    "cosine_every": 0,
}
LATER_FIELDS = {
    "alpha_schedule": "early",
    "objective": "softmax",
    "branch_labels": "random",
    "bias": "prior",
    "branch_weights": "frozen",
    "signal": "noise",
    "label_smoothing": 0.1,
}
RECIPE_FIELDS = {
    "schedule_by": "step",
    "warmup": 0.5,
    "clip": 1.0,
    "averaging": 0.99,
    "erasing": 0.25,
    "mixup": 0.2,
    "cutmix": 1.0,
}
MODEL_FIELDS = {
    "initial_weights": "weights.safetensors",
    "at": ("blocks.0",),
    "pool": "class_token",
    "layout": "BTD",
    "head": "mlp",
    "last_batch": "drop",
}
LAST_FIELDS = {"layers": "later"}
PUBLISHED_FIELDS = {"passes": 3, "erased_area": 0.4, "mixing": 0.5}
STRENGTH_FIELDS = {"layer_reduction": "mean", "balance": "norms"}
ALL_FIELDS = (
    FIRST_FIELDS | LATER_FIELDS | RECIPE_FIELDS | MODEL_FIELDS | LAST_FIELDS | STRENGTH_FIELDS | PUBLISHED_FIELDS
)
# What a field needs beside it.
NAMED = {"arch": "timm:resnet18", "arch_options": {}}
NEEDS = {"initial_weights": NAMED, "at": NAMED, "pool": NAMED, "layout": NAMED}

# Named choices, added below, and values of every other field.
VALUES = {
    "dataset": st.sampled_from(["shapes", "cifar10", "folder:./très loin"]),
    "dataset_options": st.dictionaries(st.sampled_from(["classes", "size", "seed"]), st.integers(0, 10**6)),
    "per_class": st.none() | st.integers(1, 5000),
    "label_noise": st.floats(0, 1),
    "arch": st.sampled_from(sorted(models.BACKBONES)),
    "arch_options": st.fixed_dictionaries(
        {}, optional={"image_size": st.integers(8, 64), "points": st.lists(st.integers(0, 5))}
    ),
    "initial_weights": st.sampled_from(["", "weights.safetensors"]),
    "at": st.lists(st.sampled_from(["blocks.*", "layer1"])),
    "layout": st.sampled_from(["", "BTD"]),
    "redundancy": st.integers(0, 300),
    "alpha": st.floats(0, 1e6),
    "learning_rate": st.floats(1e-12, 1e3),
    "weight_decay": st.floats(0, 10),
    "batch": st.integers(1, 4096),
    "epochs": st.integers(1, 1000),
    "seed": st.integers(0, 2**70),
    "cosine_every": st.integers(0, 1000),
    "label_smoothing": st.floats(0, 0.999),
    "warmup": st.floats(0, 0.999),
    "clip": st.floats(0, 100),
    "averaging": st.floats(0, 0.9999),
    "erasing": st.floats(0, 1),
    "mixup": st.floats(0, 10),
    "cutmix": st.floats(0, 10),
    "passes": st.integers(1, 5),
    "erased_area": st.floats(0.02, 1),
    "mixing": st.floats(0, 1),
}
for _name in DEFAULTS:
    if choices(_name):
        VALUES[_name] = st.sampled_from(choices(_name))


def _fitting(values):
    """Without what a backbone lacks."""
    lacks = {"initial_weights", "at", "pool", "layout"}  # of models by name
    lacks |= {"head"} if values.get("bias") == "prior" else set()
    lacks |= {"balance"} if values.get("signal", "gradient") != "gradient" else set()
    return {name: value for name, value in values.items() if name not in lacks}


fields = st.fixed_dictionaries({}, optional=VALUES).map(_fitting)
