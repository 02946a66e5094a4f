"""Attention of training states: against a loop over images, unchanged states, intervals, bad input."""

import dataclasses

import numpy as np
import pytest
import torch
from attention_zoo import Fused, Tower, pictures
from scipy import stats

from asymtrain.errors import UsageError
from asymtrain.lab.engine import load_for
from asymtrain.lab.engine.setup import build_backbone, run_data
from asymtrain.lab.engine.states import State, initial_state
from asymtrain.lab.instruments.attention import measure as measuring
from asymtrain.lab.instruments.attention.measure import measure_model, measure_states
from asymtrain.lab.instruments.attention.metrics import METRICS
from asymtrain.lab.instruments.attention.result import AttentionSettings, summarise
from asymtrain.lab.instruments.attention.show import map_figures, maps_figure, metric_figures
from asymtrain.lab.runs import RunSpec
from small_backbones import LEARNING

SPEC = RunSpec(
    arch="vit",
    arch_options=LEARNING["vit"],
    dataset_options={"classes": 4, "size": 60, "test_size": 40, "image_size": 16},
    epochs=2,
)
SETTINGS = AttentionSettings(sample=7)


def measure_attention(state, *arguments):
    return measure_states([state], *arguments)[0]


@pytest.fixture(scope="module")
def dataset():
    return load_for(SPEC)


def sharpened(state, factor=6.0):
    """Larger queries and keys, so that the maps are far from uniform."""
    changed = {n: v * factor if "attention.qkv" in n else v for n, v in state.parameters.items()}
    return dataclasses.replace(state, parameters=changed)


@pytest.fixture(scope="module")
def state(dataset):
    return sharpened(initial_state(SPEC, dataset))


def slow_metrics(p, mask):
    rows = np.asarray(p, float)
    n = len(rows)
    return {
        "peak_strength": rows.max(),
        "entropy": -(rows * np.log(rows)).sum(),
        "gini": np.abs(rows[:, None] - rows).sum() / (2 * n * rows.sum()),
        "coverage_above": (rows > 0.5 / n).mean(),
        "coverage_of_mask": (rows * mask).sum(),
    }


def slow(state, dataset, index):
    """One image through the module itself, in numpy from its attention matrices on: {scope: {metric: value}}."""
    vit, data = build_backbone(SPEC, dataset), run_data(SPEC, dataset)
    vit.load_state_dict(state.backbone)
    image = torch.from_numpy(dataset.test.images[index]).float() / 255
    image = (image - data.mean[:, None, None]) / data.std[:, None, None]
    with torch.no_grad():
        matrices = [m[0].double().numpy() for m in vit.attention_maps(image[None])[1]]
    mask = np.array([[dataset.test.masks[index][y : y + 4, x : x + 4].mean() for x in range(0, 16, 4)]
                     for y in range(0, 16, 4)]).reshape(-1)  # fmt: skip
    flow, found = np.eye(17), {}
    for layer, heads in enumerate(matrices):
        name = f"blocks.{layer}.attention"
        rows = {name: heads.mean(0)[0, 1:], **{f"{name}:{h}": heads[h][0, 1:] for h in range(len(heads))}}
        found |= {scope: slow_metrics(row / row.sum(), mask) for scope, row in rows.items()}
        flow = (0.5 * heads.mean(0) + 0.5 * np.eye(17)) @ flow
    found["rollout"] = slow_metrics(flow[0, 1:] / flow[0, 1:].sum(), mask)
    names = ["blocks.0.attention", "blocks.1.attention"]
    found["mean"] = {m: np.mean([found[name][m] for name in names]) for m in found[names[0]]}
    return found


def test_against_one_image_at_a_time(state, dataset):
    result = measure_attention(state, dataset, SETTINGS, "cpu")
    assert list(result.values) == list(METRICS)
    assert result.layers == ("blocks.0.attention", "blocks.1.attention")
    assert result.patches == 16
    assert len(set(result.images)) == 7
    for i, index in enumerate(result.images):
        expected = slow(state, dataset, index)
        assert set(expected) == set(result.scopes)
        for scope, metrics in expected.items():
            for metric, value in metrics.items():
                assert result.of(metric, scope)[i] == pytest.approx(value, rel=2e-4, abs=1e-5), (scope, metric)
    assert result.shares["mask"] == pytest.approx(dataset.test.masks[list(result.images)].mean())
    assert result.shares["saliency"] == pytest.approx(0.25)
    assert result.of("gini").min() > 0.2  # the maps are not near uniform, where everything would agree


def test_the_interval_over_images_is_the_t_interval(state, dataset):
    result = measure_attention(state, dataset, SETTINGS)
    values = result.of("entropy", "rollout")
    low, high = stats.t.interval(0.95, 6, values.mean(), stats.sem(values))
    found = result.estimate("entropy", "rollout")
    assert (found.mean, found.low, found.high) == pytest.approx((values.mean(), low, high))
    assert result.to_dict()["scopes"]["rollout"]["entropy"] == [found.mean, found.low, found.high, 7]


def test_nothing_is_changed(state, dataset):
    before = {name: value.clone() for name, value in state.parameters.items()}
    drawn = torch.random.get_rng_state()
    first, again = (measure_attention(state, dataset, SETTINGS) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert all(torch.equal(before[name], value) for name, value in state.parameters.items())
    assert all(np.array_equal(first.values[m], again.values[m]) for m in METRICS)


def test_a_training_step_after_a_measurement_is_bit_identical():
    """Modes, buffers, gradients and random numbers of the model that is trained are left alone."""
    weights = []
    for looks in (True, False):
        torch.manual_seed(3)
        model = Tower(lambda width: Fused(width, 4))
        model.blocks[1].eval()  # a user may have frozen a part
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(3):
            optimizer.zero_grad()
            model(pictures(seed=step)).square().sum().backward()
            if looks:
                measure_model(model, pictures())
            optimizer.step()
        assert model.blocks[0].training
        assert not model.blocks[1].training
        weights.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_many_states_and_chunks_give_what_each_gives_alone(state, dataset, monkeypatch):
    other = sharpened(initial_state(dataclasses.replace(SPEC.plain(), seed=43), dataset), 9.0)
    together = measure_states([state, other], dataset, SETTINGS, keep=2)
    monkeypatch.setattr(measuring, "CHUNK", 3)
    for result, one in zip(together, (state, other), strict=True):
        alone = measure_states([one], dataset, SETTINGS, keep=5)[0]
        assert (result.spec, result.epoch) == (one.spec, 0)
        for metric in METRICS:
            np.testing.assert_allclose(alone.values[metric], result.values[metric], rtol=1e-4, atol=1e-6)
        assert {name: maps.shape for name, maps in alone.maps.items()} == dict.fromkeys(
            ["blocks.0.attention", "blocks.1.attention", "rollout"], (5, 16)
        )
        np.testing.assert_allclose(alone.maps["rollout"][:2], result.maps["rollout"], rtol=1e-4)
        np.testing.assert_allclose(alone.maps["rollout"].sum(1), 1, rtol=1e-5)


def test_queries_averaged(state, dataset):
    usual = measure_attention(state, dataset, SETTINGS)
    mean = measure_attention(state, dataset, dataclasses.replace(SETTINGS, query="mean"))
    assert (mean.of("entropy") > usual.of("entropy")).mean() > 0.8  # an average is more even than its parts


def test_chosen_layers_are_reported_and_the_rollout_stays_whole(state, dataset):
    whole = measure_attention(state, dataset, SETTINGS)
    part = measure_attention(state, dataset, dataclasses.replace(SETTINGS, layers=["blocks.1.attention"]))
    assert part.layers == ("blocks.1.attention",)
    np.testing.assert_array_equal(part.of("gini", "mean"), whole.of("gini", "blocks.1.attention"))
    np.testing.assert_array_equal(part.of("gini", "rollout"), whole.of("gini", "rollout"))


def test_a_diverged_state_is_undefined_and_enters_no_mean(state, dataset):
    broken = dataclasses.replace(
        state, parameters={n: torch.full_like(v, torch.nan) for n, v in state.parameters.items()}
    )
    result = measure_attention(broken, dataset, SETTINGS)
    for scope in result.scopes:
        for metric in METRICS:
            found = result.estimate(metric, scope)
            assert (found.mean, found.n) == (None, 0), (scope, metric)


def test_seeds_are_summarised_and_paired(dataset):
    specs = [dataclasses.replace(SPEC, seed=seed) for seed in (1, 2, 3)]
    states = [sharpened(initial_state(spec, dataset), 4.0 + i) for i, spec in enumerate(specs)]
    states += [sharpened(initial_state(spec.plain(), dataset), 3.0 + i**2 / 4) for i, spec in enumerate(specs)]
    results = measure_states(states, dataset, SETTINGS)
    found = {(s.group, s.metric): s for s in summarise(results, ["mean"])}
    means = {
        "Asymmetric": [r.of("gini").mean() for r in results[:3]],
        "Plain": [r.of("gini").mean() for r in results[3:]],
    }
    means["Asymmetric - Plain"] = list(np.subtract(means["Asymmetric"], means["Plain"]))
    for group, values in means.items():
        one = found[group, "gini"]
        low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
        assert (one.estimate.mean, one.estimate.low, one.estimate.high) == pytest.approx((np.mean(values), low, high))
        assert (one.over, one.estimate.n, one.epoch) == ("seeds", 3, 0)
    single = {(s.group, s.metric): s for s in summarise([results[0], results[3]])}
    difference = single["Asymmetric - Plain", "gini"]
    assert (difference.over, difference.estimate.n) == ("images", 7)


def test_groups_of_one_variant_are_told_apart(dataset):
    specs = [SPEC, dataclasses.replace(SPEC, redundancy=20), SPEC.plain()]
    results = measure_states([initial_state(spec, dataset) for spec in specs], dataset, SETTINGS)
    groups = list(dict.fromkeys(s.group for s in summarise(results, ["mean"])))
    one, twenty = "Asymmetric, redundancy 1", "Asymmetric, redundancy 20"
    assert groups == [one, twenty, "Plain", f"{one} - Plain", f"{twenty} - Plain"]
    (figure,) = metric_figures(summarise(results), results[0].layers)
    assert [line.label for line in figure.panels[0].lines] == [one, twenty, "Plain"]
    assert len({line.colour for line in figure.panels[0].lines}) == 3
    assert f" Shown: {one}; Plain." in maps_figure("maps", "title", results, dataset, [("", 0, "rollout")]).caption
    assert "Shown" not in maps_figure("maps", "title", results[1:], dataset, [("", 0, "rollout")]).caption


def test_pictures_hold_the_images_and_their_maps(dataset):
    states = [
        dataclasses.replace(initial_state(spec, dataset), epoch=e) for spec in (SPEC, SPEC.plain()) for e in (2, 1)
    ]
    results = measure_states(states, dataset, SETTINGS, keep=3)
    figure, layers = map_figures(results, dataset, images=3)
    assert (figure.columns, len(figure.panels)) == (5, 15)
    order = ["", "Plain\nepoch 1", "Asymmetric\nepoch 1", "Plain\nepoch 2", "Asymmetric\nepoch 2"]
    assert [panel.title for panel in figure.panels[:5]] == order
    assert [panel.apart for panel in figure.panels[:5]] == [False, True, False, True, False]
    pixels, last = figure.panels[5], figure.panels[9]
    assert np.array_equal(pixels.pixels * 255, dataset.test.images[results[0].images[1]].transpose(1, 2, 0))
    weights = results[0].maps["blocks.1.attention"][1]
    assert np.array_equal(last.heat.ravel(), weights * len(weights))  # Asymmetric at epoch 2, in multiples of uniform
    assert [panel.label for panel in layers.panels[::5]] == ["layer 1", "layer 2"]
    weights = results[3].maps["blocks.0.attention"][0]
    assert np.array_equal(layers.panels[1].heat.ravel(), weights * len(weights))
    lacking = maps_figure("maps", "title", results, dataset, [("", 4, "rollout")])  # of three images maps are kept
    assert [panel.pixels is None for panel in lacking.panels] == [False, True, True, True, True]


def test_each_measured_state_is_told(state, dataset):
    counts = []
    measure_states([state, state], dataset, SETTINGS, progress=lambda *count: counts.append(count))
    assert counts == [(1, 2), (2, 2)]


def test_the_key_names_what_is_not_the_default():
    assert AttentionSettings().key == "attention"
    chosen = AttentionSettings(query="mean", sample=20, layers=("a", "b"))
    assert chosen.key == "attention:sample=20:query=mean:layers=a+b"
    assert AttentionSettings(threshold=3.0).key == "attention:threshold=3.0"  # as stored names have it
    assert AttentionSettings(sample=5).indices(40) == AttentionSettings(sample=9).indices(40)[:5]


def test_bad_input_says_what_to_do(state, dataset):
    with pytest.raises(UsageError, match="unknown attention layer 'blocks"):
        measure_attention(state, dataset, dataclasses.replace(SETTINGS, layers=("blocks.9.attention",)))
    wide = dataclasses.replace(SPEC, arch_options={**dict(SPEC.arch_options), "width": 32})
    for parameters in (initial_state(wide, dataset).parameters, {}):
        with pytest.raises(UsageError, match="the state is from another backbone"):
            measure_attention(State(SPEC, 0, parameters), dataset, SETTINGS)
    with pytest.raises(UsageError, match="unknown metric of attention 'ginni': did you mean 'gini'"):
        measure_attention(state, dataset, SETTINGS).of("ginni")
