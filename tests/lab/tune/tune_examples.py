"""Questions that are answered in seconds: invented runs, and a network that only branches can teach."""

import numpy as np
from torch import nn

from asymtrain.lab.candidates import Candidate
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.tune import Question, RacePlan, Rung, Timing, replay
from asymtrain.lab.tune.running import describe, write_json
from invented_runs import invent

GOOD, FAIR, BAD = Candidate("softmax", alpha=1.0), Candidate("softmax", alpha=0.1), Candidate(alpha=1.0)
NOTHING = Candidate(alpha=0.0)  # branches without any weight: exactly Plain
BASE = RunSpec(
    arch="mlp", arch_options={"widths": (8, 8, 8, 8)}, dataset_options={"classes": 4, "size": 400, "image_size": 8},
    epochs=9, warmup=0.9,
)  # fmt: skip
PLAN = RacePlan((Rung(3, 3, 3), Rung(9, 2, 3)), epochs=9, seeds=5, seconds=60.0, needed=1.0)
TIMING = Timing(epoch=0.1, start=1.0, runs=4)


def question(*candidates, **changes):
    return Question(BASE, candidates or (GOOD, FAIR, BAD), **changes)


def runs_of(specs, gains):
    """Invented runs by id; `gains` are those of candidates over Plain."""
    return {spec.id: invent(spec, gains.get(Candidate.of(spec), 0.0) if spec.redundancy else 0.0) for spec in specs}


def all_runs(asked, plan, gains):
    """Runs of everything that a race comes to, whichever its plan is."""
    runs = {}
    while missing := replay(asked, plan, runs).missing:
        runs |= runs_of(missing, gains)
    return runs


def prepare(out, asked, plan, data_root=None):
    """A folder in which a call with this question goes on with this plan, however fast the machine is."""
    write_json(out, describe(replay(asked, plan, {}), TIMING, {}, data_root))


class Cut(nn.Module):
    """The gradient of the main loss ends before the trunk, so only branches teach it: a network that they help."""

    def __init__(self, classes):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(20, 6), nn.ReLU())
        self.head = nn.Linear(6, classes)

    def forward(self, x):
        return self.head(self.trunk(x).detach())


def points(count=600):
    """Vectors of three classes; most of their values say nothing."""
    x = np.random.default_rng(0).normal(size=(count, 20)).astype(np.float32)
    return x, x[:, :3].argmax(1)


def without_times(document):
    """A document as it would be on any machine."""
    return {name: value for name, value in document.items() if name not in ("measured", "plan")} | {
        "plan": {name: value for name, value in document["plan"].items() if name not in ("seconds", "needed")}
    }
