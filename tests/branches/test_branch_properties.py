"""What holds for every model and every activation."""

import copy
import io
import random

import pytest
import torch
import torch.nn.functional as F
from branch_zoo import BATCH, CLASSES, Case, assert_same_bits, bits_of, build, call, hooks_in, targets

from asymtrain.branches import Branches, Parallel, attach

ACTIVATIONS = ["last", "all"]


def attached(case: Case, model: torch.nn.Module, sample: object, **options: object) -> Branches:
    return attach(model, sample, CLASSES, at=case.at, **{**case.options, **options})


def train(case: Case, model: torch.nn.Module, sample: object, branches: Branches | None, steps: int = 2) -> None:
    """The loop of the design page."""
    torch.manual_seed(1)
    auxiliary = [] if branches is None else [*branches.parameters()]
    optimizer = torch.optim.AdamW([*model.parameters(), *auxiliary], lr=1e-2)
    model.train()
    for _ in range(steps):
        output = call(model, sample)
        loss = F.cross_entropy(output, targets())
        if branches is not None:
            loss = loss + 0.5 * branches.loss(targets())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_layers_and_widths_are_found(case: Case) -> None:
    model, sample = build(case)
    branches = attached(case, model, sample, head=Parallel(3))
    assert branches.layers == case.layers
    assert tuple(branches.head(name).width for name in branches.layers) == case.widths
    assert branches.num_weights() == 3 * CLASSES * sum(case.widths)


def test_the_dry_run_leaves_no_trace(case: Case) -> None:
    model, sample = build(case)
    model.train()
    next(model.children()).eval()  # a mixed state must come back as it was
    modes = [module.training for module in model.modules()]
    before, state, python_state = bits_of(model), torch.get_rng_state(), random.getstate()
    attached(case, model, sample)
    assert_same_bits(bits_of(model), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python_state
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_attached_model_computes_what_it_computed(case: Case, activation: str) -> None:
    model, sample = build(case)
    torch.manual_seed(5)
    plain = call(model.train(), sample)
    model, sample = build(case)
    branches = attached(case, model, sample, head=Parallel(2, activation=activation))
    torch.manual_seed(5)
    assert torch.equal(call(model.train(), sample), plain)
    assert not branches.stripped


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_training_step_reaches_model_and_live_branches(case: Case, activation: str) -> None:
    model, sample = build(case)
    branches = attached(case, model, sample, head=Parallel(3, activation=activation))
    call(model.train(), sample)
    logits = branches.logits()
    shape = (3, BATCH, CLASSES) if activation == "all" else (BATCH, CLASSES)
    assert [tuple(one.shape) for one in logits.values()] == [shape] * len(case.layers)
    losses = branches.losses(targets())
    loss = branches.loss(targets())
    assert list(losses) == list(case.layers)
    assert torch.allclose(loss, branches.strength * sum(losses.values()) / len(losses))
    loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in branches.parameters())
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    accuracies = branches.accuracies(targets())
    assert all(0 <= value <= 1 and not value.requires_grad for value in accuracies.values())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_states_load_strictly_both_ways(case: Case, activation: str) -> None:
    model, sample = build(case)
    keys = list(model.state_dict())
    branches = attached(case, model, sample, head=Parallel(2, activation=activation))
    assert list(model.state_dict()) == keys
    assert all(key.startswith("heads.") for key in branches.state_dict())
    train(case, model, sample, branches)
    model_state, branch_state = bits_of(model), bits_of(branches)
    fresh, _ = build(case, seed=9)
    again = attached(case, fresh, sample, head=Parallel(2, activation=activation))
    fresh.load_state_dict(model_state, strict=True)
    again.load_state_dict(branch_state, strict=True)
    # Continuing from the loaded pair is continuing.
    train(case, model, sample, branches)
    train(case, fresh, sample, again)
    assert_same_bits(bits_of(fresh), bits_of(model))
    assert_same_bits(bits_of(again), bits_of(branches))
    branches.strip()
    assert list(model.state_dict()) == keys


def test_strip_gives_the_model_back(case: Case) -> None:
    model, sample = build(case)
    branches = attached(case, model, sample, head=Parallel(2))
    train(case, model, sample, branches)
    never, _ = build(case)
    never.load_state_dict(model.state_dict(), strict=True)
    assert hooks_in(model)
    branches.strip()
    assert not hooks_in(model)
    assert torch.equal(call(model.eval(), sample), call(never.eval(), sample))
    train(case, model, sample, None)
    train(case, never, sample, None)
    assert_same_bits(bits_of(model), bits_of(never))


def test_n_of_1_and_20_train_the_same_backbone(case: Case) -> None:
    ends = []
    for redundancy in (1, 20):
        model, sample = build(case)
        branches = attached(case, model, sample, head=Parallel(redundancy))
        train(case, model, sample, branches, steps=5)
        ends.append(bits_of(model))
    assert_same_bits(*ends)


def test_copies_of_the_model_are_plain_models(case: Case) -> None:
    model, sample = build(case)
    branches = attached(case, model, sample)
    call(model.eval(), sample)
    before = branches.logits()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        other = case.sample()
        assert torch.equal(call(twin.eval(), other), call(copy.deepcopy(model), other))
        after = branches.logits()
        assert all(torch.equal(after[name], before[name]) for name in before)
        attached(case, twin, sample)  # a copy carries no branches, so it can have its own
