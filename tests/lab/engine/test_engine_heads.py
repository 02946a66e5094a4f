"""A head is one entry of `NAMED_HEADS` and its name in `RunSpec.head`: reference and stack build it from there."""

import dataclasses

import pytest
from near_reference import assert_stack_is_near
from small_runs import STRATEGIES, spec_of, stack_of
from torch import nn

from asymtrain import UsageError
from asymtrain.branches import _heads
from asymtrain.lab import runs
from asymtrain.lab.engine import train_reference


def gated(width, outputs):
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GLU(), nn.Linear(width, outputs))


def bent(width, outputs):
    """Its parameters have the names and shapes of those of the head `mlp`."""
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))


def normalised(width, outputs):
    return nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, outputs))


@pytest.fixture
def spec_with(monkeypatch):
    """A spec whose head was added from outside."""

    def made(head, **fields):
        monkeypatch.setitem(_heads.NAMED_HEADS, head.__name__, lambda positions, width, outputs: head(width, outputs))
        monkeypatch.setitem(runs._LITERALS, "head", ("linear", "mlp", head.__name__))
        return spec_of(head=head.__name__, **fields)

    return made


@pytest.mark.parametrize("head", [gated, bent])
def test_a_head_from_outside_trains_in_a_stack_as_in_the_reference(head, spec_with, dataset):
    spec = spec_with(head, activation="all")
    specs = [spec, dataclasses.replace(spec, seed=7, alpha=0.3), spec.plain()]
    assert_stack_is_near(specs, dataset, *STRATEGIES, steps=8)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("activation", ["last", pytest.param("all", marks=pytest.mark.slow)])
def test_towers_on_the_maps_of_a_backbone_train_in_a_stack_as_in_the_reference(activation, strategy, dataset):
    spec = spec_of("cnn", head="tower", activation=activation, decay="matrices", weight_decay=0.5)
    specs = [spec, dataclasses.replace(spec, seed=7, alpha=0.3, layers="later", objective="distill"), spec.plain()]
    assert_stack_is_near(specs, dataset, strategy, steps=8)


@pytest.mark.parametrize("arch", ["mlp", "vit"])
def test_towers_are_refused_where_there_are_no_maps(arch, dataset):
    for train in (train_reference, lambda spec, dataset: stack_of([spec.plain(), spec], dataset)):
        with pytest.raises(UsageError, match=f"head='tower' reads maps, and the layers of {arch} give none"):
            train(spec_of(arch, head="tower"), dataset)


def test_a_head_with_buffers_is_refused_by_stacks(spec_with, dataset):
    spec = spec_with(normalised)
    with pytest.raises(UsageError, match="has buffers"):
        stack_of([spec], dataset)
    train_reference(spec, dataset)
