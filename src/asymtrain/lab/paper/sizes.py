"""How large a reproduction is, beside what `scales` says of a run: grids, samples, epochs that are looked at. Data.

`quick` keeps the shape of every table (its rows, its variants, its seeds as pairs) and shrinks what a row costs. Its
numbers say that the machinery works and nothing about the paper.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asymtrain.errors import unknown_name

ARCHS = ("mlp", "cnn", "vit")


@dataclass(frozen=True)
class Sizes:
    """What a scale of the reproduction means.

    Attributes:
        scale: name in `scales.SCALES`, whose backbones and batch are taken.
        seeds: of final results.
        epochs: of final results.
        search_epochs: of each trial of a search.
        search_seeds: disjoint from those of final results.
        learning_rates: of the search; the first two stages.
        weight_decays: of the search.
        alphas: of the search; `alphas_mlp_cifar10` is the linear grid of the CIFAR-10 MLP.
        learning_rate: by backbone where the paper's is not taken.
        archs: fields of the specs of each backbone that win over the scale's.
        stands_for: dataset fields that stand for each of the paper's datasets; empty where it is taken itself.
        few_shot: images a class that stand for the paper's, by the paper's dataset and number; empty: the same.
        landscape: settings of `LandscapeSettings`.
        attention: settings of `AttentionSettings`.
        attention_images: in the figures of maps.
    """

    scale: str
    seeds: tuple[int, ...]
    epochs: int
    search_epochs: int
    search_seeds: tuple[int, ...]
    learning_rates: tuple[float, ...]
    weight_decays: tuple[float, ...]
    alphas: tuple[float, ...]
    alphas_mlp_cifar10: tuple[float, ...]
    learning_rate: Mapping[str, float] = field(default_factory=dict)
    archs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stands_for: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    few_shot: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    landscape: Mapping[str, Any] = field(default_factory=dict)
    attention: Mapping[str, Any] = field(default_factory=dict)
    attention_images: int = 6


SIZES: dict[str, Sizes] = {
    "quick": Sizes(
        scale="quick",
        seeds=(42, 43),
        epochs=6,
        search_epochs=2,
        search_seeds=(1000,),
        learning_rates=(1e-3, 3e-3),
        weight_decays=(1e-1, 1e-3),
        alphas=(0.1, 1.0, 10.0),
        alphas_mlp_cifar10=(0.0, 25.0, 50.0),
        learning_rate={"mlp": 1e-3, "cnn": 2e-3, "vit": 1e-3},
        stands_for={
            "cifar10": {"dataset": "shapes", "dataset_options": {"classes": 4, "size": 1000, "test_size": 500}},
            "cifar100": {"dataset": "shapes", "dataset_options": {"classes": 9, "size": 1000, "test_size": 500}},
        },
        few_shot={
            "cifar10": {10: 2, 50: 5, 100: 10, 500: 25, 1000: 50},
            "cifar100": {5: 2, 10: 3, 20: 5, 50: 10, 100: 25, 200: 50},
        },
        landscape={"grid": 11, "sample": 50, "draws": 2},
        attention={"sample": 50},
        attention_images=3,
    ),
    "paper": Sizes(
        scale="paper",
        seeds=tuple(range(42, 52)),
        epochs=200,
        search_epochs=150,
        search_seeds=(1000,),
        learning_rates=(1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
        weight_decays=(1e-1, 1e-2, 1e-3, 1e-4, 1e-5),
        alphas=(0.1, 0.215, 0.464, 1.0, 2.154, 4.642, 10.0, 21.544, 46.416, 100.0),
        alphas_mlp_cifar10=tuple(float(alpha) for alpha in range(0, 55, 5)),
        landscape={"draws": 1},  # of each of the initial networks: ten in all; the CNN's surfaces take minutes
        attention={"sample": 100},
    ),
}


def get_sizes(name: str) -> Sizes:
    """The sizes of this name."""
    if name not in SIZES:
        raise unknown_name("scale", name, SIZES)
    return SIZES[name]
