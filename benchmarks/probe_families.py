"""The families of benchmarks/probe.py: backbones on datasets, and the models of examples/.

A family is probed once and trained fully at every alpha, so it gives as many cases as there are alphas. The rule's
constants come from the part `tune`; it is scored on the part `score`, which shares no family with it.
"""

from dataclasses import dataclass, field
from typing import Any

from asymtrain.lab.paper.running import RULE, image_steps
from asymtrain.lab.runs import RunSpec

ALPHAS = (0.1, 1.0, 10.0)
START_SECONDS = 45.0  # of a process on a GPU, by rule of thumb: imports, the shadow training, compilation


@dataclass(frozen=True)
class Family:
    """A backbone on a dataset, `fields` being those of its specs; or a model of examples/, named by `example`."""

    name: str
    part: str  # tune or score
    fields: dict[str, Any] = field(default_factory=dict)
    example: str = ""


@dataclass(frozen=True)
class Size:
    """How much is trained: epochs are the family's times `length`."""

    families: tuple[Family, ...]
    seeds: int
    probe_seeds: int  # equal counts make stacks of one shape, which compile once
    steps: int  # of the shadow training and the short runs
    length: float
    example_steps: tuple[int, int]  # short and full, of the models of examples/


def base_spec(family: Family, length: float, precision: str) -> RunSpec:
    """What the family's full runs share."""
    epochs = max(2, round(family.fields["epochs"] * length))
    return RunSpec(**{**family.fields, "epochs": epochs}, precision=precision)


def estimated_seconds(family: Family, size: Size) -> tuple[float, float]:
    """Seconds on one H200 that other families can fill, and seconds of the GPU itself.

    By rule of thumb: at the speed of the paper's networks, which smaller ones exceed.
    """
    if family.example:
        short, full = size.example_steps
        return 0.01 * (size.seeds * full + size.probe_seeds * short) * (1 + len(ALPHAS)), 0.0
    spec = base_spec(family, size.length, "bf16")
    short = size.steps * spec.batch * size.probe_seeds
    images = (short + image_steps(spec) * size.seeds) * (1 + len(ALPHAS))
    return START_SECONDS, images / RULE["cuda"][spec.arch]


# Epochs are chosen so that a full training takes about 1,500 steps. It needs no validation: test accuracy is compared.
WHOLE = {"validation": "none"}
C100 = {"dataset": "cifar100", "per_class": 200, "epochs": 10, **WHOLE}
C10 = {"dataset": "cifar10", "per_class": 2000, "epochs": 10, **WHOLE}
FEW = {"dataset": "cifar100", "per_class": 50, "epochs": 40, **WHOLE}


def shapes(classes: int, size: int) -> dict[str, Any]:
    options = {"classes": classes, "size": size, "test_size": 4000}
    return {"dataset": "shapes", "dataset_options": options, "epochs": 16, **WHOLE}


def family(name: str, part: str, arch: str, data: dict[str, Any], rate: float, **options: Any) -> Family:
    return Family(name, part, {"arch": arch, "arch_options": options, "learning_rate": rate, **data})


SMALL_CNN = {"widths": (32, 64, 64, 64, 64, 32), "hidden": (128, 64)}
TEXT = Family("text transformer", "score", example="text_classification")
GRAPH = Family("graph network", "score", example="graph_classification")
FULL = (
    # The MLP is the paper's.
    family("mlp cifar100", "tune", "mlp", C100, 1e-4),
    family("small cnn cifar100", "tune", "cnn", C100, 1e-3, **SMALL_CNN),
    family("small vit cifar100", "tune", "vit", C100, 1e-3, depth=4, width=64),
    family("wide mlp shapes", "tune", "mlp", shapes(20, 12000), 1e-3, widths=(256, 256, 256, 256, 128)),
    family("small cnn shapes", "tune", "cnn", shapes(20, 12000), 1e-3, **SMALL_CNN),
    family("mean vit shapes", "tune", "vit", shapes(20, 12000), 1e-3, depth=4, width=96, branch_input="mean"),
    # The first two are the paper's.
    family("cnn cifar100", "score", "cnn", C100, 3e-4),
    family("vit cifar100", "score", "vit", C100, 1e-3),
    family("wide mlp cifar100", "score", "mlp", C100, 3e-4, widths=(512, 512, 512, 256, 128)),
    family("cnn without dropout cifar100", "score", "cnn", C100, 1e-3, **SMALL_CNN, dropout=0.0),
    family("few-shot vit cifar100", "score", "vit", FEW, 1e-3, depth=6, width=96),
    family("deep mlp shapes", "score", "mlp", shapes(49, 12000), 1e-3, widths=(128,) * 8),
    family("wide cnn shapes", "score", "cnn", shapes(49, 12000), 1e-3, widths=(48, 96, 96, 96, 64), pool_after=(0, 1)),
    family("vit shapes", "score", "vit", shapes(49, 12000), 1e-3, depth=6, width=64),
    family("mlp cifar10", "score", "mlp", C10, 3e-4),
    family("small cnn cifar10", "score", "cnn", C10, 1e-3, **SMALL_CNN),
    family("deep vit cifar10", "score", "vit", C10, 1e-3, depth=8, width=64),
    TEXT,
    GRAPH,
)
_LITTLE = {"dataset": "shapes", "dataset_options": {"classes": 6, "size": 900, "test_size": 400}, "batch": 32}
TINY = (
    *(
        Family(name, part, {**_LITTLE, "arch": arch, "arch_options": options, "epochs": 4, "learning_rate": rate})
        for name, part, arch, rate, options in (
            ("mlp", "tune", "mlp", 1e-3, {"widths": (32, 32, 32)}),
            ("narrow mlp", "tune", "mlp", 1e-3, {"widths": (16, 16, 16, 16)}),
            ("vit", "tune", "vit", 2e-3, {"depth": 2, "width": 24, "patch": 8}),
            ("deep mlp", "score", "mlp", 1e-3, {"widths": (32,) * 5}),
            ("wide mlp", "score", "mlp", 1e-3, {"widths": (96, 96, 64)}),
            ("mlp at a low rate", "score", "mlp", 3e-4, {"widths": (48, 48, 48)}),
            ("vit of three blocks", "score", "vit", 2e-3, {"depth": 3, "width": 24, "patch": 8}),
        )
    ),
    TEXT,
    GRAPH,
)
SIZES = {
    "full": Size(FULL, 5, 5, 300, 1.0, (120, 600)),
    "small": Size(FULL, 5, 5, 150, 0.5, (60, 300)),
    "tiny": Size(TINY, 3, 3, 80, 1.0, (15, 30)),
}
