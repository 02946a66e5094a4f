"""An objective is one entry of the registry: the reference loop, the stack and the initial bias read it from there."""

import dataclasses

import pytest
import torch
from near_reference import assert_stack_is_near
from small_runs import STRATEGIES, spec_of, trained

from asymtrain import UsageError, objectives
from asymtrain.lab.engine import train_reference
from asymtrain.lab.engine.setup import prior_bias, run_data
from asymtrain.lab.runs import choices
from asymtrain.objectives import RowObjective


@dataclasses.dataclass(frozen=True)
class Hinge(RowObjective):
    """One-against-all squared hinge: another objective, which nobody has thought of."""

    class_reduction: str = "mean"

    def rows(self, logits, targets):
        sign = 2 * (targets[..., None] == torch.arange(logits.shape[-1])).to(logits.dtype) - 1
        losses = (1 - sign * logits).relu().square()
        return losses.mean(-1) if self.class_reduction == "mean" else losses.sum(-1)

    def bias_at(self, shares):
        return 2 * shares - 1


@pytest.fixture
def hinge(monkeypatch):
    monkeypatch.setitem(objectives.OBJECTIVES, "hinge", Hinge)
    return spec_of(objective="hinge", bias="prior", activation="all")


def test_a_third_objective_trains_in_a_stack_as_in_the_reference(hinge, dataset):
    specs = [hinge, dataclasses.replace(hinge, seed=7, alpha=0.3), hinge.plain()]
    assert_stack_is_near(specs, dataset, *STRATEGIES, steps=8)


@pytest.mark.parametrize("trainer", ["reference", "batched"])
def test_no_objective_gets_the_loss_of_another(trainer, hinge, dataset):
    specs = [dataclasses.replace(hinge, objective=name) for name in choices("objective")]
    losses = {trained(spec, dataset, trainer)[0].history[0].auxiliary_loss for spec in specs}
    assert len(losses) == len(specs) > 4


def test_the_initial_bias_is_that_of_the_objective(hinge, dataset):
    data = run_data(hinge, dataset)
    sigmoid = prior_bias(dataclasses.replace(hinge, objective="sigmoid"), data, 4)
    torch.testing.assert_close(prior_bias(hinge, data, 4), 2 * sigmoid.sigmoid() - 1)


def test_an_objective_that_is_not_registered_is_refused(dataset):
    with pytest.raises(UsageError, match=r"objective must be one of 'sigmoid', 'softmax', .*, got 'hinge'"):
        spec_of(objective="hinge")
    smuggled = spec_of()
    object.__setattr__(smuggled, "objective", "hinge")  # such as from a registry that has lost it since
    with pytest.raises(UsageError, match="unknown objective 'hinge'"):
        train_reference(smuggled, dataset)
