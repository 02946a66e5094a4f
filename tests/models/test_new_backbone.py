"""A backbone from the outside: a class and a line in `BACKBONES` are all that attach, the engine and tables need."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from asymtrain import attach, models
from asymtrain.lab.cli.options import parse_archs
from asymtrain.lab.data import load
from asymtrain.lab.engine import train, train_reference
from asymtrain.lab.runs import RunSpec, pairs
from asymtrain.lab.scales import get_scale, scaled_spec
from asymtrain.models._backbone import Backbone, stacked_linear


class Funnel(Backbone):
    """One hidden layer with a branch on it."""

    layout = "BD"

    def __init__(self, classes, *, width=12, image_size=32, channels=3):
        super().__init__()
        self.classes = classes
        self.hidden = nn.Sequential(nn.Linear(channels * image_size**2, width), nn.Tanh())
        self.head = nn.Linear(width, classes)
        self.points, self.widths = ("hidden",), (width,)

    def forward(self, images):
        return self.head(self.hidden(images.flatten(1)))

    def stacked(self, parameters, images, keep=None):
        hidden = torch.tanh(stacked_linear(parameters, "hidden.0", images.flatten(2)))
        return stacked_linear(parameters, "head", hidden), [hidden]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(models.BACKBONES, "funnel", Funnel)


def test_attach_sees_its_features():
    model = models.build("funnel", classes=4, seed=0, image_size=8)
    x, y = torch.rand(6, 3, 8, 8), torch.arange(6) % 4
    branches = attach(model, x, 4, at=list(model.points), head="linear")
    logits, (features,) = model.features(x)
    assert torch.allclose(model(x), logits)
    assert torch.allclose(branches.logits()["hidden"], features @ branches.head("hidden").live.T)
    (F.cross_entropy(logits, y) + branches.loss(y)).backward()


def test_it_learns_in_a_stack_as_in_the_reference():
    data = {"classes": 4, "size": 80, "test_size": 40, "image_size": 8}
    base = RunSpec(arch="funnel", arch_options={"width": 8}, dataset_options=data, batch=16, epochs=3, redundancy=2)
    specs, dataset = pairs(base, [1, 2]), load("shapes", **data)
    stacked = {run.spec: run for run in train(specs, device="cpu")}
    for spec in specs:
        alone, together = train_reference(spec, dataset), stacked[spec]
        assert (alone.outcome, together.outcome) == ("finished", "finished")
        losses = [[epoch.main_loss for epoch in run.history] for run in (alone, together)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-4)
        assert losses[0][-1] < losses[0][0]


def test_commands_scales_and_tables_know_it():
    assert parse_archs(["funnel"]) == ("funnel",)
    assert parse_archs(None)[-1] == "funnel"
    assert models.display_name("funnel") == "Funnel"
    spec = scaled_spec(get_scale("quick"), "funnel")
    assert spec.id != dataclasses.replace(spec, arch="mlp").id
