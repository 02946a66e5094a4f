"""Runs and epochs with invented numbers, for tables and pages: they do not care how a run was made."""

import math
import random

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
