"""Small runs for exact tests: trained in milliseconds by the reference or by a stack, and compared bit by bit."""

import pytest
import torch

from asymtrain import models
from asymtrain.lab.engine import Stack, train_reference
from asymtrain.lab.runs import RunSpec
from small_backbones import SMALL

STRATEGIES = ["batched", "side_by_side"]
every_arch = pytest.mark.parametrize("arch", models.BACKBONES)
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
TRAINERS = ["reference", *STRATEGIES]
# torch warns of its own while it compiles.
compiles = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def spec_of(arch="mlp", **fields):
    return RunSpec(
        arch=arch, **{"arch_options": SMALL.get(arch, {}), "batch": 24, "epochs": 2, "redundancy": 2, **fields}
    )


def stack_of(specs, dataset, strategy="batched", device="cpu"):
    stack = Stack(specs, dataset, device=device, strategy=strategy)
    while not stack.finished:
        stack.advance()
    return stack


def weights_of(stack, run=0):
    """The backbone of one run."""
    return {
        name: view[run].clone() for name, view in stack.parameters.views(stack.weights).items() if "branch" not in name
    }


def trained(spec, dataset, trainer):
    """The run and its final backbone."""
    if trainer != "reference":
        stack = stack_of([spec], dataset, trainer)
        return stack.results()[0], weights_of(stack)
    seen = {}

    def keep(step, backbone):
        seen.update({name: value.detach().clone() for name, value in backbone.named_parameters()})

    return train_reference(spec, dataset, on_step=keep), seen


def without_time(run):
    return [epoch._replace(seconds=0.0) for epoch in run.history]


def assert_same_bits(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def differ(first, second):
    return any(not torch.equal(first[name], second[name]) for name in first)
