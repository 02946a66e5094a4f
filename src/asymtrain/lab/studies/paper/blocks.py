"""The reproduction in blocks, by information a minute: parts of recipes, and their readings or precision."""

import dataclasses
from collections.abc import Collection, Mapping
from functools import partial

from asymtrain.lab.studies.paper.recipe import Recipe, part_of
from asymtrain.lab.studies.paper.recipes import RECIPES
from asymtrain.lab.studies.paper.recipes.variants import needs_for
from asymtrain.lab.studies.paper.study import ARCHS, parse_readings
from asymtrain.lab.studies.study import Block

LARGE = ("cnn", "vit")


def _parts(names: str, archs: Collection[str] = ARCHS) -> tuple[Recipe, ...]:
    return tuple(part_of(RECIPES[name], archs) for name in names.split())


def _variants(name: str, *labels: str) -> Recipe:
    """The recipe with only some of its runs: variants such as `cnn/softmax`, and Plain."""
    return dataclasses.replace(RECIPES[name], needs=partial(needs_for, name, labels))


BLOCKS: Mapping[str, Block] = {
    block.name: block
    for block in (
        Block("fitting", "MLP: Tables 7, 8, 11 and 12 over all of training, at three alphas", _parts("fitting")),
        Block(
            "equal-alpha",
            "CNN and ViT: Table 1, and the ViT at the CNN's smallest alpha",
            (*_parts("table1", LARGE), _variants("alphas", "vit/0.1")),
        ),
        Block(
            "mechanism",
            "CNN: bias at the prior, random labels; ViT: random labels, softmax",
            (
                _variants(
                    "controls",
                    *("cnn/paper", "cnn/prior-bias", "cnn/random-labels"),
                    *("vit/paper", "vit/random-labels", "vit/softmax"),
                ),
            ),
        ),
        Block("attention", "ViT: Table 14, Figures 4, 7 and 9", _parts("table14 figure4 figure9")),
        Block("frozen", "CNN and ViT: Table 2 with frozen and detached branches", _parts("table2", LARGE)),
        Block("landscapes", "CNN and ViT: Table 6, main and total loss", _parts("table5", LARGE)),
        Block(
            "cifar10",
            "ViT: Table 9; CNN and ViT: Table 10 with its searches; MLP: Table 5",
            (*_parts("table9"), *_parts("table10", LARGE), *_parts("table5", ("mlp",))),
        ),
        Block(
            "all-active",
            "CNN and ViT: Tables 1 to 4 with all branches active; Table 16",
            (*_parts("table1 table2 table3 table4", LARGE), *_parts("table16")),
            {"readings": parse_readings(["all"])},
        ),
        Block(
            "ordinary",
            "Tables 1 and 3 with a cosine schedule, flips and shifts",
            _parts("table1 table3"),
            {"readings": parse_readings(["ordinary"])},
        ),
        Block("precision", "CNN and ViT: Table 3 in TF32", _parts("table3", LARGE), {"precision": "tf32"}),
    )
}
