"""Searches over tiny nets, and runs made by hand."""

from asymtrain.lab.runs import Epoch, Run, RunSpec
from asymtrain.lab.search import replay
from small_backbones import SMALL

DATA = {"classes": 4, "size": 64, "test_size": 16, "image_size": 8}


def base_of(arch="mlp", **fields):
    """A final Asymmetric run that trains in a blink."""
    given = {"dataset_options": DATA, "arch_options": SMALL[arch], "batch": 16, "epochs": 4, **fields}
    return RunSpec(arch=arch, **given)


def run_of(spec, *validation, outcome="finished"):
    """A run whose epochs had these validation accuracies."""
    history = [
        Epoch(
            epoch=i,
            main_loss=1.0,
            auxiliary_loss=None,
            train_accuracy=0.5,
            validation_accuracy=accuracy,
            test_accuracy=None,
            cosine=None,
            cosine_min=None,
            cosine_max=None,
            seconds=0.0,
        )
        for i, accuracy in enumerate(validation, 1)
    ]
    return Run(spec, tuple(history), outcome)


class Laboratory(dict):
    """Runs by spec id, made by a rule as they are asked for: what training would give, without training."""

    def __init__(self, rule):
        super().__init__()
        self.rule = rule

    def train(self, result):
        """The runs that a result misses."""
        for spec in result.missing:
            self[spec.id] = run_of(spec, *self.rule(spec))


def finish(search, rule):
    """Go through a search with runs that follow a rule from spec to validation accuracies by epoch."""
    runs = Laboratory(rule)
    while not (result := replay(search, runs)).complete:
        runs.train(result)
    return result
