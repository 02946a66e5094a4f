"""The sizes at which tests build backbones, in one place.

A backbone without an entry takes those of the scale `quick`: its line in `models.BACKBONES` is enough for the tests
that all backbones share.
"""

from typing import Any

from asymtrain.lab.runs import RunSpec
from asymtrain.lab.scales import SCALES


class Sizes(dict[str, dict[str, Any]]):
    """Options of each backbone, as `models.build` and `RunSpec.arch_options` take them."""

    def __missing__(self, arch: str) -> dict[str, Any]:
        return dict(SCALES["quick"].archs.get(arch, {}).get("arch_options", {}))


# A step takes a millisecond.
SMALL = Sizes(
    mlp={"widths": (12, 16, 12)},
    cnn={"widths": (4, 6, 4), "hidden": (12,), "pool_after": (1,)},
    vit={"depth": 2, "width": 8, "heads": 2, "patch": 4},
)

TINY_DATA = {"classes": 4, "size": 64, "test_size": 16, "image_size": 8}


def tiny_spec(arch: str = "mlp", **fields: Any) -> RunSpec:
    """An Asymmetric run of four steps an epoch, where tests do not care what is trained."""
    return RunSpec(arch=arch, **{"dataset_options": TINY_DATA, "arch_options": SMALL[arch], "batch": 16, **fields})


# Large enough to learn something, or to drift apart from a wrong twin.
LEARNING = Sizes(
    mlp={"widths": (16, 24, 16)},
    cnn={"widths": (6, 8, 8, 4), "hidden": (16, 12)},
    vit={"depth": 2, "width": 16, "heads": 2, "patch": 4},
)

# As many attachment points as in the paper but for the transformer's, and the least that can be trained.
THIN = Sizes(
    mlp={"widths": (8, 8, 8, 8, 8)},
    cnn={"widths": (2, 2, 2, 2, 2, 2), "hidden": (8, 8), "pool_after": (0, 1)},
    vit={"depth": 2, "width": 8, "heads": 2, "patch": 16, "mlp_ratio": 1},
)
THIN_FIELDS = {arch: {"arch_options": options} for arch, options in THIN.items()}
"""For `Sizes.archs` of the paper's studies."""

# Shapes at the least of every part: several for each backbone, for what holds of all of them.
SHAPES: dict[str, list[dict[str, Any]]] = {
    "mlp": [
        {"image_size": 8, "widths": (12, 10, 8)},
        {"image_size": 4, "widths": (6,), "channels": 1},
        {"image_size": 4, "widths": (6, 9, 7), "points": (2, 0), "initialisation": "trunc_normal"},
    ],
    "cnn": [
        {"image_size": 8, "widths": (4, 6, 5, 3), "hidden": (9, 8), "pool_after": (1, 3)},
        {"image_size": 8, "widths": (4, 6), "hidden": (), "pool_after": (), "dropout": 0.25, "channels": 1},
        {"image_size": 12, "widths": (4, 3, 2), "hidden": (7,), "pool_after": (0,), "points": (2, 0), "dropout": 0},
    ],
    "vit": [
        {"image_size": 8, "patch": 4, "width": 12, "heads": 2, "depth": 2},
        {"image_size": 8, "patch": 2, "width": 8, "heads": 4, "depth": 3, "branch_input": "mean", "points": (2, 1)},
        {"image_size": 4, "patch": 4, "width": 6, "heads": 1, "depth": 1, "mlp_ratio": 2, "channels": 1},
    ],
}
