"""The whole measurement: what is shared, what is paired, what is predicted, what is refused."""

import dataclasses
import functools
import json

import numpy as np
import pytest
import torch
from landscape_examples import moved, slow_loss, spec_of, states_of, tiny_dataset

from asymtrain import models
from asymtrain.errors import UsageError
from asymtrain.lab.engine import train_reference
from asymtrain.lab.engine.setup import build_backbone
from asymtrain.lab.engine.states import State, states_at
from asymtrain.lab.instruments.landscape.measure import measure_landscape, measure_losses
from asymtrain.lab.instruments.landscape.result import LandscapeSettings
from asymtrain.lab.instruments.landscape.states import draw_sample, states_of_redundancies
from asymtrain.lab.instruments.landscape.surface import gaussian_direction, idle_squared_norm, squared_norm

SETTINGS = LandscapeSettings(grid=5, sample=20, draws=2, directions=("all", "live", "filter"))


def measured(states, **changed):
    return measure_landscape(states, tiny_dataset(), dataclasses.replace(SETTINGS, **changed), device="cpu")


def row_of(result, **wanted):
    (found,) = [
        row
        for row in result.rows
        if all(getattr(row, name, getattr(row.level, name, None)) == value for name, value in wanted.items())
    ]
    return found


def test_a_surface_of_unit_norm_by_hand():
    """Redundancy 20: the direction's norm is that of all entries, idle ones included."""
    (state,) = states_of("mlp", (20,))
    result = measured([state], draws=1)
    sample = draw_sample(state.spec, tiny_dataset(), 20, torch.device("cpu"))
    directions = [gaussian_direction(state.parameters, 42, 0, axis) for axis in (0, 1)]
    one_branch = 3 * (12 + 16)
    squares = [
        squared_norm(d) + idle_squared_norm(42, 0, axis, branches=19, size=one_branch)
        for axis, d in enumerate(directions)
    ]
    center = state.backbone
    found = result.surfaces[0, 20, "all", "norm"]
    for i in range(5):
        for j in range(5):
            a, b = (SETTINGS.norm_step * (k - 2) / square**0.5 for k, square in zip((i, j), squares, strict=True))
            slow = slow_loss(state.spec, moved(center, directions, a, b), sample.images, sample.targets)
            assert found[i, j] == pytest.approx(slow, rel=3e-6)
    level = result.rows[0].level
    backbone = sum(p.numel() for p in build_backbone(state.spec, tiny_dataset()).parameters())
    assert (level.live_parameters, level.parameters) == (backbone + one_branch, backbone + 20 * one_branch)


def test_more_idle_branches_cost_nothing_and_change_nothing_but_the_norm():
    once, many = (measured(states_of("mlp", (n,)), directions=("all",)) for n in (1, 300))
    assert once.evaluations == many.evaluations == 2 * 2 * 25
    assert np.array_equal(once.surfaces[0, 1, "all", "variance"], many.surfaces[0, 300, "all", "variance"])
    scales = [row_of(r, scaling="norm", draw=0).scale[0] for r in (once, many)]
    assert scales[1] < scales[0]


@pytest.mark.parametrize("loss", ["main", "total"])
def test_equal_surfaces_are_computed_once(loss):
    """One of unit variance, one of unit norm for each redundancy (live is that of 1), one by filters."""
    result = measured(states_of("mlp", (0, 1, 20, 300)), loss=loss)
    assert result.evaluations == 2 * (1 + 4 + 1) * 25
    assert len(result.rows) == 2 * 4 * 5


@pytest.mark.parametrize("arch", models.BACKBONES)
def test_both_losses_from_one_pass_are_those_of_each_alone(arch):
    states, few = states_of(arch, (0, 1, 20), alpha=0.7), {"grid": 3, "draws": 1, "directions": ("all", "filter")}
    settings = dataclasses.replace(SETTINGS, **few)
    main, total = measure_losses(states, tiny_dataset(), settings, ["main", "total"], device="cpu")
    for together in (main, total):
        alone = measured(states, **few, loss=together.settings.loss)
        assert together.settings == alone.settings
        assert together.evaluations == alone.evaluations == (1 + 3 + 1) * 9
        assert [row.scale for row in together.rows] == [row.scale for row in alone.rows]
        for key, losses in alone.surfaces.items():
            assert together.surfaces[key] == pytest.approx(losses, rel=1e-6)
    for key, losses in total.surfaces.items():
        assert np.array_equal(losses, main.surfaces[key]) == (key[1] == 0)  # without branches there is one loss


def test_branches_that_differ_move_on_planes_of_their_own():
    """All of them active, they are as many as the redundancy; Plain is on the plane of the first."""
    result = measured(states_of("mlp", (0, 1, 3), activation="all"), draws=1, directions=("all",), loss="total")
    assert result.evaluations == (2 + 3) * 25
    for redundancy in (0, 1, 3):
        alone = measured(states_of("mlp", (redundancy,), activation="all"), draws=1, directions=("all",), loss="total")
        for key, losses in alone.surfaces.items():
            assert losses == pytest.approx(result.surfaces[key], rel=1e-7)


def test_the_flattening_is_what_the_parameter_count_predicts_and_gone_over_live_parameters():
    result = measured(states_of("mlp", (0, 1, 20, 300)), draws=8, norm_step=1e-3)
    by_view = {(s.redundancy, s.directions, s.scaling): s for s in result.summaries()}
    for redundancy in (1, 20, 300):
        flat = by_view[redundancy, "all", "norm"]
        ratio = (by_view[0, "all", "norm"].parameters / flat.parameters) ** 0.5
        assert flat.predicted_change == pytest.approx(100 * (ratio - 1))
        assert flat.changes["std"].mean == pytest.approx(flat.predicted_change, abs=1.5)
        live = by_view[redundancy, "live", "norm"]
        ratio = (by_view[0, "live", "norm"].parameters / live.live_parameters) ** 0.5
        assert live.predicted_change == pytest.approx(100 * (ratio - 1))
        assert live.changes["std"].mean == pytest.approx(live.predicted_change, abs=1.5)
        assert live.changes == by_view[1, "live", "norm"].changes
        for view in (("all", "variance"), ("live", "variance"), ("filter", "filter")):
            assert by_view[(redundancy, *view)].changes["std"].mean == 0
            assert by_view[(redundancy, *view)].predicted_change == 0
    assert by_view[300, "all", "norm"].changes["std"].mean < -20
    assert by_view[0, "all", "norm"].changes == {}


@pytest.mark.parametrize(
    ("schedule", "shares"), [("linear", {0: 1.0, 1: 0.75, 3: 0.25, 4: 0.25}), ("early", {0: 1.0, 1: 1.0, 2: 0.0})]
)
def test_the_total_loss_has_the_alpha_of_its_epoch(schedule, shares):
    """The same weights at several epochs, so that alpha alone differs; the state after the last epoch has its alpha."""
    (state,) = states_of("mlp", (1,), epochs=4, alpha=3.0, alpha_schedule=schedule)
    states = [State(state.spec, epoch, state.parameters) for epoch in shares]
    main, total = (measured(states, draws=1, directions=("live",), loss=loss).surfaces for loss in ("main", "total"))
    sample = draw_sample(state.spec, tiny_dataset(), 20, torch.device("cpu"))
    auxiliary = total[0, 1, "live", "variance"] - main[0, 1, "live", "variance"]
    assert auxiliary.min() > 1
    for epoch, share in shares.items():
        found = total[epoch, 1, "live", "variance"]
        assert found == pytest.approx(main[epoch, 1, "live", "variance"] + share * auxiliary, rel=1e-6)
        then = dataclasses.replace(state.spec, alpha=3.0 * share)
        slow = slow_loss(then, state.parameters, sample.images, sample.targets, total=True)
        assert found[2, 2] == pytest.approx(slow, rel=3e-6)


def test_the_surfaces_kept_are_those_of_the_first_draw_of_the_first_seed():
    first, second = (states_of("mlp", (0, 1), seed=seed) for seed in (2, 1))
    alone, both = measured(first, draws=1), measured([*first, *second], draws=2)
    assert both.surfaces.keys() == alone.surfaces.keys()
    for key, losses in alone.surfaces.items():
        assert np.array_equal(both.surfaces[key], losses), key
    spreads = [row.statistics.std for row in both.rows if row.level.redundancy == 0 and row.directions == "filter"]
    assert len(set(spreads)) == 4  # other draws and seeds do have other surfaces


def test_several_seeds_are_summarised_over_their_means():
    result = measured([*states_of("mlp", (0, 1), seed=1), *states_of("mlp", (0, 1), seed=2)], directions=("all",))
    summary = next(s for s in result.summaries() if s.redundancy == 1 and s.scaling == "variance")
    rows = [r for r in result.rows if r.level.redundancy == 1 and r.scaling == "variance"]
    means = [np.mean([r.statistics.std for r in rows if r.level.seed == seed]) for seed in (1, 2)]
    assert (summary.seeds, summary.draws, summary.statistics["std"].n) == (2, 2, 2)
    assert summary.statistics["std"].mean == pytest.approx(np.mean(means))
    assert (summary.statistics["std"].low, summary.changes["std"].low) >= (0, -100)
    every = np.quantile([r.statistics.std for r in rows], 0.975)
    assert summary.statistics["std"].percentile_high == pytest.approx(every)  # of single draws, not of seeds


def test_a_loss_that_is_not_finite_is_reported():
    (state,) = states_of("mlp", (0,))
    broken = {**state.parameters, "head.bias": torch.full_like(state.parameters["head.bias"], torch.inf)}
    result = measured([State(state.spec, 0, broken)])
    summary = result.summaries()[0]
    assert summary.non_finite == 2
    assert (summary.statistics["std"].n, summary.statistics["std"].mean) == (0, None)
    assert all(row.statistics.non_finite == 25 for row in result.rows)
    json.dumps(result.to_dict(), allow_nan=False)


def test_bad_states():
    (state,) = states_of("mlp", (1,))
    (other,) = states_of("cnn", (1,))
    with pytest.raises(UsageError, match="the state is from another backbone"):
        measured([State(state.spec, 0, other.parameters)])
    with pytest.raises(UsageError, match="one backbone"):
        measured([state, other])
    with pytest.raises(UsageError, match="twice"):
        measured([state, State(dataclasses.replace(state.spec, alpha=3.0), 0, state.parameters)])
    with pytest.raises(UsageError, match="live branches"):
        measured([State(state.spec.plain(), 0, state.parameters)])
    with pytest.raises(UsageError, match="at least one"):
        measured([])
    with pytest.raises(UsageError, match="larger than the 48 training images"):
        measured([state], sample=49)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"grid": 1}, "3 or more"),
        ({"sample": 0}, "sample must be 1"),
        ({"draws": 0}, "draws must be 1"),
        ({"step": 0.0}, "step must be above 0"),
        ({"norm_step": float("nan")}, "norm_step must be above 0"),
        ({"loss": "mian"}, "did you mean 'main'"),
        ({"directions": ("filters",)}, "did you mean 'filter'"),
        ({"directions": ()}, "at least one"),
        ({"precision": "fp16"}, "precision"),
    ],
)
def test_bad_settings(changed, said):
    with pytest.raises(UsageError, match=said):
        LandscapeSettings(**changed)


def test_the_key_names_what_differs():
    assert LandscapeSettings().key == "landscape"
    changed = LandscapeSettings(grid=21, step=1e-3, loss="total", directions=("filter", "filter"))
    assert changed.key == "landscape grid=21 step=0.001 loss=total directions=filter"
    assert LandscapeSettings(norm_step=1.0).key == "landscape norm_step=1"  # as stored names have it


def test_trained_states_of_every_redundancy_share_their_surfaces():
    states = states_of_redundancies(
        [spec_of("mlp", batch=16, epochs=1)], (0, 1, 20), 1, functools.partial(states_at, device="cpu")
    )
    result = measured(states, directions=("live",))
    assert np.array_equal(result.surfaces[1, 1, "live", "norm"], result.surfaces[1, 20, "live", "norm"])
    assert not np.array_equal(result.surfaces[1, 0, "live", "variance"], result.surfaces[1, 1, "live", "variance"])
    assert result.evaluations == 2 * 4 * 25


@pytest.mark.parametrize("fields", [{}, {"activation": "all"}])
def test_states_of_redundancies_are_the_initial_states(fields):
    found = states_of_redundancies([spec_of("mlp", **fields)], (0, 2, 5))
    for state, expected in zip(found, states_of("mlp", (0, 2, 5), **fields), strict=True):
        assert state.spec == expected.spec
        assert state.parameters.keys() == expected.parameters.keys()
        assert all(torch.equal(value, expected.parameters[name]) for name, value in state.parameters.items())
    with pytest.raises(UsageError, match="0 \\(Plain\\) or more"):
        states_of_redundancies([spec_of("mlp")], (-1,))


def test_measuring_leaves_the_next_training_steps_bit_identical():
    """In the middle of training, on the very tensors that are trained."""
    spec, weights = spec_of("cnn", redundancy=0, epochs=1, batch=16), []

    def keep(step, backbone, *, measure):
        if measure and step == 1:
            measured([State(spec, 1, {name: value.detach() for name, value in backbone.named_parameters()})])
        weights.append({name: value.detach().clone() for name, value in backbone.named_parameters()})

    for measure in (False, True):
        train_reference(spec, tiny_dataset(), on_step=functools.partial(keep, measure=measure))
    half = len(weights) // 2
    assert half == 3
    for first, second in zip(weights[:half], weights[half:], strict=True):
        assert all(torch.equal(value, second[name]) for name, value in first.items())
