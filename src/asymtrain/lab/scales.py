"""The size of a study: `quick` for minutes on a small machine, `paper` as published. Data, and one function.

Everything here is a default, which options on the command line override.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asymtrain.errors import unknown_name
from asymtrain.lab.runs import RunSpec


@dataclass(frozen=True)
class Scale:
    """Defaults of a study."""

    dataset: str  # the default dataset
    seeds: tuple[int, ...]
    fields: Mapping[str, Any]  # for every spec
    archs: Mapping[str, Mapping[str, Any]]  # for the specs of each backbone
    datasets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # for the specs on each dataset


SCALES: dict[str, Scale] = {
    "quick": Scale(
        dataset="shapes",
        seeds=tuple(range(42, 47)),
        fields={"epochs": 5, "batch": 32, "redundancy": 1},
        archs={
            "mlp": {"learning_rate": 1e-3, "weight_decay": 1e-3, "alpha": 0.1},
            "cnn": {
                "arch_options": {"widths": (12, 24, 32), "hidden": (64,), "pool_after": (0, 1, 2)},
                "learning_rate": 2e-3,
                "weight_decay": 1e-3,
                "alpha": 0.1,
            },
            "vit": {
                "arch_options": {"depth": 3, "width": 48, "heads": 4, "patch": 8},
                "learning_rate": 1e-3,
                "weight_decay": 1e-2,
                "alpha": 1.0,
            },
        },
        datasets={
            "shapes": {"dataset_options": {"classes": 9, "size": 2500, "test_size": 1000}},
            "cifar10": {"per_class": 200},
            "cifar100": {"per_class": 20},
        },
    ),
    # Table 13 at N = 20.
    "paper": Scale(
        dataset="cifar100",
        seeds=tuple(range(42, 52)),
        fields={"epochs": 200, "redundancy": 20},
        archs={
            "mlp": {"learning_rate": 1e-4, "weight_decay": 1e-3, "alpha": 0.1},
            "cnn": {"learning_rate": 3e-4, "weight_decay": 1e-3, "alpha": 0.1},
            "vit": {"learning_rate": 1e-3, "weight_decay": 1e-2, "alpha": 1.0},
        },
    ),
}


# For a model by name, such as timm:resnet18: values that train most networks acceptably with AdamW.
OTHER_ARCHS: Mapping[str, Any] = {"learning_rate": 1e-3, "weight_decay": 1e-2, "alpha": 0.1}


def get_scale(name: str) -> Scale:
    if name not in SCALES:
        raise unknown_name("scale", name, SCALES)
    return SCALES[name]


def scaled_spec(scale: Scale, arch: str, dataset: str | None = None, **chosen: Any) -> RunSpec:
    """The Asymmetric spec of a backbone at a scale; given fields override defaults, except None."""
    dataset = dataset or scale.dataset
    named_fields = {name: value for name, value in chosen.items() if value is not None}
    fields = {**scale.fields, **scale.archs.get(arch, OTHER_ARCHS), **scale.datasets.get(dataset, {}), **named_fields}
    return RunSpec(arch=arch, dataset=dataset, **fields)
