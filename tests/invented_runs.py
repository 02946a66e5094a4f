"""Runs and epochs with invented numbers, for tables and pages: they do not care how a run was made."""

import base64
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from asymtrain.lab.paper.measurements import attentions_wanted
from asymtrain.lab.paper.recipe import Measuring
from asymtrain.lab.paper.study import Study
from asymtrain.lab.runs import Epoch, Run, RunSpec


def invented_epoch(number: int, accuracy: float, test: float | None, cosine: float | None) -> Epoch:
    """An epoch of an Asymmetric run, or of Plain where there is no cosine."""
    return Epoch(
        epoch=number,
        main_loss=2 / number,
        auxiliary_loss=None if cosine is None else 1 / number,
        train_accuracy=accuracy,
        validation_accuracy=accuracy - 0.01,
        test_accuracy=test,
        cosine=cosine,
        cosine_min=None if cosine is None else cosine - 0.2,
        cosine_max=None if cosine is None else cosine + 0.2,
        seconds=1.5,
    )


def invent(spec: RunSpec, gain: float = 0.04, epochs: int | None = None, diverged: bool = False) -> Run:
    """A run whose accuracy rises, by `gain` further with branches; noise depends on the spec alone."""
    noise, branches = random.Random(spec.id), spec.redundancy > 0
    count = spec.epochs if epochs is None else epochs

    def epoch(number: int) -> Epoch:
        accuracy = 0.2 + 0.4 * (1 - math.exp(-number / 3)) + gain * branches + noise.gauss(0, 0.005)
        cosine = 0.3 / number + noise.gauss(0, 0.02) if branches else None
        return invented_epoch(number, accuracy, accuracy if number == count else None, cosine)

    history = tuple(epoch(number) for number in range(1, count + 1))
    return Run(spec, history, outcome="diverged" if diverged else "finished")


def invented_attention(
    study: Study, gain: Callable[[int, int], float] = lambda seed, epoch: 0.05
) -> Iterator[tuple[Measuring, dict[int, Any]]]:
    """The measurements of the attention block, on pictures and maps of noise, which no packing makes small.

    `gain` is by how much the metrics of a seed at an epoch are larger with branches.
    """
    chance = np.random.default_rng(0)
    layers = [f"blocks.{i}.attention" for i in range(6)]
    for reading in study.readings:
        if reading.changes == "accuracy":
            continue
        for variant in ("plain", "asymmetric"):
            for wanted in attentions_wanted(study, reading, variant):
                values = {}
                for epoch in wanted.epochs:
                    level = 0.3 + chance.normal(0, 0.01) + gain(wanted.spec.seed, epoch) * (variant == "asymmetric")
                    metrics = ("peak_strength", "entropy", "gini", "coverage_above")
                    value = {"layers": layers, "scopes": {"mean": {name: [level, None, None, 5] for name in metrics}}}
                    if wanted.keep:
                        maps = chance.dirichlet(np.ones(64), (len(layers), wanted.keep)).round(5)
                        pixels = chance.integers(0, 256, (wanted.keep, 3 * 32 * 32), np.uint8)
                        value["maps"] = {layer: of.tolist() for layer, of in zip(layers, maps, strict=True)}
                        value["pixels"] = [base64.b64encode(picture.tobytes()).decode() for picture in pixels]
                        value["labels"] = ["chimpanzee"] * wanted.keep
                    values[epoch] = value
                yield wanted, values
