"""`asymtrain.tune`: what `asymtrain tune` does, from Python."""

import numpy as np
import pytest
from api_examples import net, points
from torch import nn

import asymtrain
from asymtrain import UsageError
from asymtrain.lab.statistics import VERDICTS
from asymtrain.lab.tune import run_tune

pytestmark = pytest.mark.usefixtures("workplace", "one_core")
TRIED = [{"objective": "softmax", "alpha": 1.0}]


def tune(build=None, data=None, **options):
    options = {"minutes": 9, "epochs": 1, "candidates": TRIED, "recipe": "paper", "at": "1"} | options
    build = build or (lambda classes: net(classes))
    return asymtrain.tune(build, points(160) if data is None else data, progress=False, **options)


def test_functions_and_arrays_and_a_folder_that_goes_on(workplace):
    result = tune(out="kept")
    assert result.verdict in VERDICTS
    assert result.reason in result.sentence
    assert result.candidate.label == "softmax, alpha 1"
    assert result.layers == ("1",)
    assert set(result.rows["classes"]) == {3}
    assert result.verdict in repr(result)
    assert "asymtrain.tune(&#39;here:lambda-" in (workplace / "kept" / "report.html").read_text()
    with pytest.raises(AttributeError):
        result.runs = ()
    page = (workplace / "kept" / "report.html").read_bytes()
    again = tune(out="kept")
    assert [run.seconds for run in again.runs] == [run.seconds for run in result.runs]  # nothing was trained again
    assert (workplace / "kept" / "report.html").read_bytes() == page
    assert result.page("other").read_bytes() == page
    with pytest.raises(UsageError, match="differs in learning rate"):
        tune(out="kept", learning_rate=0.5)


@pytest.mark.parametrize("function", ["compare", "tune"])
def test_a_recipe_has_its_batch_and_what_is_not_given_is_told_first(function, capsys):
    x = np.random.default_rng(0).integers(0, 255, (9000, 1, 5, 5), dtype=np.uint8)
    data = (x, np.arange(len(x)) % 3)
    options = {"compare": {"seeds": 1}, "tune": {"minutes": 0.05, "candidates": TRIED}}[function]

    def flat(classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(25, 8), nn.ReLU(), nn.Linear(8, classes))

    result = getattr(asymtrain, function)(flat, data, epochs=1, at="2", **options)
    assert set(result.rows["batch"]) == {128}
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("Defaults: recipe ordinary, batch 128, learning rate 0.001, ")
    for word in ("epochs", "alpha", "redundancy"):  # epochs were given, and branches have a line of their own
        assert word not in first


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({}, "no run is kept; give out= to go on", id="nowhere"),
        pytest.param({"store": "my.sqlite"}, "runs are in my.sqlite; give out= to go on", id="a store"),
        pytest.param({"out": "kept"}, "runs are in kept/runs.sqlite; call it again", id="a folder"),
    ],
)
def test_an_interruption_says_what_is_kept(options, said, monkeypatch):
    def interrupted(question, *, on_run, **options):
        def stop(*_):
            raise KeyboardInterrupt

        return run_tune(question, on_run=stop, **options)

    monkeypatch.setattr("asymtrain.lab.tune.run_tune", interrupted)
    with pytest.raises(KeyboardInterrupt) as stop:
        tune(**options)
    assert said in stop.value.__notes__[0]
    assert "Inconclusive: no pair is finished yet" in stop.value.__notes__[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({"alpha": 1.0}, "alpha is given as candidates= here", id="alpha"),
        pytest.param({"seed": 3}, "seed is given as minutes= here", id="seed"),
        pytest.param({"build": net(3)}, "build must make a new model at each call", id="a model"),
        pytest.param({"data": [points(8)] * 20}, r"data is 20 values: give \(x, y\)", id="batches"),
        pytest.param({"validation": "none"}, "validation cannot be set", id="validation"),
        pytest.param({"epoch": 3}, "argument of tune, or field of a run, 'epoch'", id="a typo"),
        pytest.param({"minutes": 0}, "minutes must be a number above 0", id="no time"),
        pytest.param({"candidates": []}, "nothing to try", id="no candidates"),
        pytest.param({"data": points(60)}, "at least 100 training images", id="few examples"),
        pytest.param({"augmentation": "trivial"}, r"\(augmentation='none'\)", id="what is for images"),
    ],
)
def test_bad_input(options, said, workplace):
    with pytest.raises(UsageError, match=said) as refusal:
        tune(**options)
    assert "--" not in str(refusal.value)
    assert not list(workplace.iterdir())
