"""Runs made of numbers instead of training, the same for the same spec."""

import random

from asymtrain.lab.runs import Epoch, Run, RunSpec


def example_spec(seed, epochs=3, **fields):
    return RunSpec(seed=seed, epochs=epochs, **fields)


def example_run(spec, *, epochs=None, salt="", **fields):
    """A run whose every float has all its digits."""
    draw = random.Random(f"{spec.id}{salt}").random
    plain = spec.redundancy == 0
    history = tuple(
        Epoch(
            epoch=number,
            main_loss=draw() * 4,
            auxiliary_loss=None if plain else draw(),
            train_accuracy=draw(),
            validation_accuracy=draw() if spec.validation == "split" else None,
            test_accuracy=draw() if number == spec.epochs else None,
            cosine=None if plain else draw() - 0.5,
            cosine_min=None if plain else -draw(),
            cosine_max=None if plain else draw(),
            seconds=draw() / 7,
            cosine_std=None if plain else draw(),
            conflict=None if plain else draw(),
            main_norm=draw() * 10,
            auxiliary_norm=None if plain else draw(),
        )
        for number in range(1, (spec.epochs if epochs is None else epochs) + 1)
    )
    others = {}
    if spec.seed % 2:
        others |= {"answers": random.Random(f"{spec.id}{salt} answers").randbytes(13), "calibration_error": draw()}
    if spec.seed % 3:
        others |= {"model_fingerprint": f"{spec.id}:1:2", "data_fingerprint": spec.id}
        others |= {"classes": 7, "largest_class": draw()}
    return Run(spec=spec, history=history, **{**others, **fields})
