"""The shadow training against slow loops that know nothing of it."""

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from probe_models import CLASSES, build, learnable

from asymtrain import alignment, attach
from asymtrain.lab.probe import probe
from asymtrain.lab.probe.inputs import gather
from asymtrain.lab.probe.training import Settings, shadow_training

PLACES = [f"blocks.{i}" for i in range(4)]
STEPS = 24


def trained_in_shadow(every=3, **options):
    model = build()
    settings = Settings(CLASSES, every=every, **options)
    batches = gather(learnable(), 100)
    order = batches.order(5, STEPS)
    branches = settings.attach(model, PLACES, learnable()[0][0], 7)
    torch.manual_seed(11)
    shadow = shadow_training(model, branches, batches, settings, order=order)
    return model, branches, shadow, [batches.items[number] for number in order]


def test_the_trunk_trains_as_if_there_were_no_branches():
    found, _, _, batches = trained_in_shadow()
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(11)
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, rtol=0, atol=0, msg=name)


def test_the_branches_learn_from_detached_features():
    _, found, shadow, batches = trained_in_shadow()
    model = build()
    weights = [head.detach().clone().requires_grad_() for head in attach_weights(model)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    own = torch.optim.AdamW(weights, lr=1e-3)
    torch.manual_seed(11)
    seen = []
    for x, y in batches:
        hidden, features = model.stem(x), []
        for block in model.blocks:
            hidden = block(hidden)
            features.append(hidden.detach())
        logits = [feature @ weight.T for feature, weight in zip(features, weights, strict=True)]
        losses = [F.binary_cross_entropy_with_logits(z, F.one_hot(y, CLASSES).float()) for z in logits]
        main = F.cross_entropy(model.head(hidden), y)
        seen.append([(z.argmax(1) == y).float().mean().item() for z in logits])
        own.zero_grad()
        optimizer.zero_grad()
        (sum(losses) + main).backward()
        own.step()
        optimizer.step()
    for place, weight in zip(PLACES, weights, strict=True):
        torch.testing.assert_close(found.head(place).live, weight, rtol=1e-4, atol=1e-6)
    last = np.mean(seen[-(STEPS // 4) :], axis=0)
    assert [one.accuracy for one in shadow.places] == pytest.approx(list(last))
    speeds = (last - 1 / CLASSES) / (shadow.accuracy - 1 / CLASSES)
    assert [one.speed for one in shadow.places] == pytest.approx(list(speeds), rel=1e-5)


def attach_weights(model):
    with attach(copy.deepcopy(model), PLACES, learnable()[0][0], CLASSES, seed=7) as branches:
        return [branches.head(place).live for place in PLACES]


def test_cosines_and_norms_are_those_of_alignment():
    _, _, shadow, batches = trained_in_shadow()
    assert shadow.together.steps == tuple(range(0, STEPS, 3))
    model = build()
    branches = attach(model, PLACES, batches[0][0], CLASSES, seed=7)
    torch.manual_seed(11)
    x, y = batches[0]
    main = F.cross_entropy(model(x), y)
    losses = branches.losses(y)
    for finding in shadow.places:
        expected = alignment(main, losses[finding.place], model)
        assert finding.cosines[0] == pytest.approx(expected.cosine, abs=1e-6)
    whole = alignment(main, branches.loss(y), model)
    assert shadow.together.cosines[0] == pytest.approx(whole.cosine, abs=1e-6)
    _, _, once, _ = trained_in_shadow(every=STEPS)
    assert once.together.ratio == pytest.approx(whole.auxiliary_norm / whole.main_norm, rel=1e-5)


def test_measuring_more_often_changes_nothing_else():
    often, _, _, _ = trained_in_shadow(every=1)
    seldom, _, _, _ = trained_in_shadow(every=10)
    for name, value in often.state_dict().items():
        assert torch.equal(value, seldom.state_dict()[name]), name


def test_the_model_and_every_random_state_are_as_before():
    model = build().eval()
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    found = probe(model, learnable(), steps=12, seeds=2, alphas=(0.5,), every=2)
    assert len(found.trials) == 1
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()
    assert not model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_probe_repeats_itself():
    first, second = (probe(build(), learnable(), steps=10, seeds=2, alphas=(1.0,), every=2) for _ in range(2))
    assert first.shadow.together == second.shadow.together
    assert first.trials == second.trials


def test_frozen_parameters_are_left_out_and_a_place_before_them_has_no_cosine():
    model = build()
    for part in (model.stem, model.blocks[0]):
        part.requires_grad_(False)
    found = probe(model, learnable(), at=["blocks.0", "blocks.3"], steps=10, alphas=(), every=2)
    assert found.shadow.places[0].alignment is None
    assert found.shadow.places[1].alignment is not None
