"""Stores of the practice study with invented numbers: what is trained does not matter to what is selected and shown."""

import math
import random

from asymtrain.lab.runs import Run
from asymtrain.lab.studies.frame import missing
from asymtrain.lab.studies.practice import STUDY
from asymtrain.lab.studies.snapshot import Snapshot
from invented_runs import invented_epoch


def invented_run(spec, gain):
    """A run whose accuracy rises to 0.5 and what `gain` says of its spec; noise depends on the seed alone, and a little
    on the spec."""
    noise = random.Random(spec.seed).gauss(0, 0.01) + random.Random(spec.id).gauss(0, 0.001)

    def epoch(number):
        accuracy = 0.5 * (1 - math.exp(-3 * number / spec.epochs)) + gain(spec) + noise
        test = accuracy if spec.test == "every" else None
        made = invented_epoch(number, accuracy, test, 0.1 if spec.redundancy else None)
        return made._replace(validation_accuracy=accuracy if spec.validation == "split" else None)

    history = tuple(epoch(number) for number in range(1, spec.epochs + 1))
    return Run(spec, history, calibration_error=0.1 - gain(spec) if spec.test == "every" else None)


def softmax_helps(spec):
    """Softmax helps by 2 points at alpha 1, and by one more at the later layers; sigmoid hurts."""
    if not spec.redundancy:
        return 0.0
    if spec.objective == "softmax":
        return 0.02 - 0.005 * abs(math.log10(spec.alpha)) + 0.01 * (spec.layers == "later")
    return -0.01 * spec.alpha


def invented_study(study, tasks, gain=softmax_helps, known=()):
    """Runs of the tasks by spec id, wave after wave."""
    known, tasks = dict(known), list(tasks)
    while specs := missing(STUDY, tasks, study, Snapshot(known)).specs:
        known |= {spec.id: invented_run(spec, gain) for spec in specs}
    return known
