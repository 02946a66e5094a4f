"""`asymtrain measure landscape` and its figures."""

import inspect
import json

import numpy as np
import pytest
from landscape_examples import spec_of, tiny_dataset

from asymtrain.errors import UsageError
from asymtrain.lab.cli.measure import command_of
from asymtrain.lab.engine import train
from asymtrain.lab.instruments.landscape import INSTRUMENT, QUICK, LandscapeOptions
from asymtrain.lab.instruments.landscape.measure import measure_landscape
from asymtrain.lab.instruments.landscape.result import Landscape, LandscapeSettings
from asymtrain.lab.instruments.landscape.show import landscape_figures
from asymtrain.lab.instruments.landscape.states import REDUNDANCIES, states_of_redundancies
from asymtrain.lab.report.drawing import draw
from asymtrain.lab.store import Store

SMALL = ("--draws", "2", "--grid", "5", "--sample", "20", "--device", "cpu")
INDEX = np.arange(7) - 3.0
PLAIN, FLATTER = 2.3 + 1e-3 * INDEX[:, None] + 1e-4 * INDEX**2, 2.3 + 5e-4 * INDEX[:, None] + 0 * INDEX


@pytest.fixture
def call(call_of):
    def run(*arguments, code=0):
        found = call_of(INSTRUMENT)(*arguments)
        assert found.exit_code == code, found.output
        return found.stdout if code == 0 else " ".join(found.stderr.split())

    return run


@pytest.mark.slow
def test_a_fresh_spec_with_figures_and_a_page(call, tmp_path):
    found = json.loads(call(*SMALL, "--directions", "live,filter", "--redundancy", "0,1,300", "--json"))
    (measured,) = found["landscapes"].values()
    views = {(s["directions"], s["scaling"]) for s in measured["summaries"]}
    assert views == {("live", "variance"), ("live", "norm"), ("filter", "filter")}
    assert {s["redundancy"] for s in measured["summaries"]} == {0, 1, 300}
    assert measured["settings"]["grid"] == 5
    assert np.array(measured["surfaces"][0]["losses"]).shape == (5, 5)
    page = (tmp_path / "asymtrain-measure" / "landscape.html").read_text()
    assert page.count("<figure") == 2 * 3 + 1
    assert "Change against Plain" in page
    assert all((tmp_path / path).exists() for path in found["files"].values())


def test_stored_runs_trained_again_and_kept_beside_them(call, tmp_path):
    spec = spec_of("mlp", epochs=1, batch=16)
    specs = [spec.plain(), spec]
    with Store(tmp_path / "runs.sqlite") as store:
        for run in train(specs, device="cpu"):
            store.add(run)
    call(*SMALL, "--run", "all", "--store", "runs.sqlite", "--at", 1, "--redundancy", "0,1", "--directions", "filter")
    key = LandscapeSettings(grid=5, sample=20, draws=2, directions=("filter",)).key
    with Store(tmp_path / "runs.sqlite") as store:
        kept = store.measurements(key)
    assert {(m.spec_id, m.epoch) for m in kept} == {(one.id, 1) for one in specs}
    assert {len(m.value["rows"]) for m in kept} == {2}
    with pytest.raises(UsageError, match="Plain run has no alpha"):
        call(*SMALL, "--run", spec.plain().id, "--store", "runs.sqlite", "--at", 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--redundancy", "one"), "write levels with commas"),
        (("--directions", "al"), "did you mean 'all'"),
        (("--arch", "mpl"), "did you mean 'mlp'"),
        (("--at", 99), "between 0 and"),
    ],
)
def test_bad_options(call, arguments, said):
    with pytest.raises(UsageError, match=said):
        call(*arguments, "--device", "cpu")


@pytest.mark.parametrize("whole", [0, 1])
def test_an_interrupt_leaves_the_whole_landscapes_and_says_so(call, tmp_path, monkeypatch, whole):
    calls = []

    def stop(*arguments, **keywords):
        calls.append(arguments)
        if len(calls) > whole:
            raise KeyboardInterrupt
        return measure_landscape(*arguments, **keywords)

    monkeypatch.setattr("asymtrain.lab.instruments.landscape.measure.measure_landscape", stop)
    said = call(*SMALL, "--arch", "mlp,vit", "--redundancy", "0,1", "--directions", "filter", code=130)
    assert f"Stopped: {whole} of 2 landscapes are measured; of an unfinished one no draw is kept." in said
    page = tmp_path / "asymtrain-measure" / "landscape.html"
    assert page.exists() == bool(whole)
    if whole:
        assert "Deviation of the surface, mlp on shapes" in page.read_text()
        assert "1: mlp on shapes, seeds 42" in page.read_text()


def test_runs_of_other_settings_are_told_apart(call, tmp_path):
    specs = [spec_of("mlp", epochs=1, batch=16, alpha=alpha) for alpha in (1.0, 3.0)]
    with Store(tmp_path / "runs.sqlite") as store:
        for run in train(specs, device="cpu"):
            store.add(run)
    options = ("--run", "all", "--store", "runs.sqlite", "--redundancy", "1", "--directions", "filter", "--json")
    found = json.loads(call(*SMALL, *options))
    assert list(found["landscapes"]) == ["mlp on shapes, alpha 1.0", "mlp on shapes, alpha 3.0"]


def test_levels_and_defaults():
    assert LandscapeOptions(redundancy="0, 1,20,1").levels() == (0, 1, 20)
    assert LandscapeOptions().levels() == REDUNDANCIES
    assert LandscapeOptions().settings() == LandscapeSettings()
    assert all(LandscapeOptions().settings(**sizes).key != LandscapeSettings().key for sizes in QUICK.values())
    assert LandscapeOptions(draws=7).settings(draws=3).draws == 7
    typed = inspect.signature(command_of(INSTRUMENT)).parameters
    for name in ("draws", "grid", "sample"):
        assert f"Default: {getattr(LandscapeSettings(), name)}," in typed[name].annotation.__metadata__[0].help


@pytest.mark.parametrize("kind", ["contours", "surfaces"])
def test_figures_have_a_panel_for_each_level_and_the_same_bytes_again(kind):
    figure = figure_of({0: PLAIN, 20: FLATTER}, kind)
    assert [panel.title for panel in figure.panels] == ["Plain", "N = 20"]
    assert [panel.relief for panel in figure.panels] == [kind == "surfaces"] * 2
    assert {panel.group for panel in figure.panels} == {"loss"}  # one scale
    heights = np.array(figure.panels[0].values)
    assert heights[3, 3] == 0
    np.testing.assert_allclose(heights, PLAIN - PLAIN[3, 3])
    svg = draw(figure)
    assert svg == draw(figure)
    assert all(f">{panel.title}<" in svg for panel in figure.panels)


@pytest.mark.parametrize("kind", ["contours", "surfaces"])
@pytest.mark.parametrize("losses", [np.full((4, 4), 2.0), np.full((4, 4), np.nan), np.where(INDEX > 2, np.inf, 1.0)])
def test_figures_of_odd_surfaces(kind, losses):
    losses = losses if losses.ndim == 2 else np.tile(losses, (7, 1))
    figure = figure_of({0: losses}, kind)
    assert all(value is None or np.isfinite(value) for row in figure.panels[0].values for value in row)
    assert "<svg" in draw(figure)


def figure_of(surfaces, kind):
    """The contours or the surfaces of losses by redundancy."""
    made = Landscape(
        LandscapeSettings(), (), {(0, n, "all", "norm"): losses for n, losses in surfaces.items()}, 0, 0, ""
    )
    return next(figure for figure in landscape_figures("a b", made) if figure.name == f"{kind}-a-b-0-all-norm")


def test_the_figure_of_changes_shows_measured_and_predicted():
    states = states_of_redundancies([spec_of("mlp")], (0, 1, 300))
    settings = LandscapeSettings(grid=3, draws=2, sample=10)
    measured = measure_landscape(states, tiny_dataset(), settings, device="cpu")
    figure = landscape_figures("mlp", measured)[0]
    (panel,) = figure.panels
    assert panel.tick_labels == ("1", "300")
    assert [(line.label, line.colour, line.hollow) for line in panel.lines] == [
        ("all parameters", "asymmetric", False), ("predicted", "ink", True),
        ("live parameters", "plain", False), ("predicted", "ink", True),
    ]  # fmt: skip
    summaries = [s for s in measured.summaries() if (s.directions, s.scaling) == ("all", "norm") and s.redundancy]
    assert panel.lines[0].y == tuple(s.changes["std"].mean for s in summaries)
    assert panel.lines[1].y == tuple(s.predicted_change for s in summaries)
    assert ">300<" in draw(figure)
