"""Questions that are answered in seconds: invented runs, and a network that only branches can teach."""

from dataclasses import replace

import numpy as np
from torch import nn

from asymtrain.lab.candidates import Candidate
from asymtrain.lab.engine import load_for
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.tune import Plan, Question, Timing, replay
from asymtrain.lab.tune.running import describe, write_json
from invented_runs import invent

GOOD, FAIR, BAD = Candidate("softmax", alpha=1.0), Candidate("softmax", alpha=0.1), Candidate(alpha=1.0)
NOTHING = Candidate(alpha=0.0)  # branches without any weight: exactly the baseline
BASE = RunSpec(
    arch="mlp", arch_options={"widths": (8, 8, 8, 8)}, dataset_options={"classes": 4, "size": 400, "image_size": 8},
    epochs=9, warmup=0.9,
)  # fmt: skip
PLAN, TIMING = Plan(9, 5), Timing(epoch=0.1, start=1.0)


def question(*candidates, **changes):
    return Question(BASE, candidates or (GOOD, FAIR, BAD), **changes)


def invented(spec, gains):
    """An invented run; `gains` are those of candidates over the baseline, None is the baseline itself."""
    side = Candidate.of(spec) if spec.redundancy else None
    return replace(invent(spec, gains.get(side, 0.0) if side else 0.0), classes=4)


def all_runs(asked, plan, gains, **options):
    """Runs of everything that a question comes to."""
    runs = {}
    while missing := replay(asked, plan, runs, **options).missing:
        runs |= {spec.id: invented(spec, gains) for spec in missing}
    return runs


def answer(gains, *candidates, left_out=0, plan=PLAN, **changes):
    """An answer from invented runs, the last of them left out."""
    asked = question(*candidates, **changes)
    runs = dict(list(all_runs(asked, plan, gains).items()))
    runs = dict(list(runs.items())[: len(runs) - left_out])
    return describe(replay(asked, plan, runs), TIMING, runs, load_for(asked.base, None), check=True)


def prepare(out, asked, plan):
    """A folder in which a call with this question goes on with this plan, however fast the machine is."""
    data = load_for(asked.base, None)
    write_json(out, describe(replay(asked, plan, {}), TIMING, {}, data, check=False))


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
