"""`asymtrain.search`: what `asymtrain search` does, from Python."""

import json

import pytest
from api_examples import net, points

import asymtrain
from asymtrain import UsageError
from asymtrain.__main__ import main
from asymtrain.lab import executors

pytestmark = pytest.mark.usefixtures("workplace", "one_core")


def search(**options):
    grids = {"learning_rates": [0.01], "weight_decays": [0.1], "alphas": [0.3, 1.0]}
    return asymtrain.search(
        net, points(), **grids | {"recipe": "paper", "epochs": 1, "at": "1", "progress": False} | options
    )


def test_it_gives_what_the_command_gives_and_goes_on(workplace, monkeypatch):
    command = "search --arch mlp --data shapes --recipe paper --epochs 1 --learning-rates 0.01 --weight-decays 0.1"
    sizes = {"classes": 3, "size": 40, "test_size": 20}
    words = [*command.split(), "--alphas", "0.3,1"]
    words += [word for name, value in sizes.items() for word in ("--data-option", f"{name}={value}")]
    with pytest.raises(SystemExit):
        main([*words, "--out", "typed"])
    grids = {"learning_rates": [0.01], "weight_decays": [0.1], "alphas": [0.3, 1.0]}
    options = {"recipe": "paper", "epochs": 1, "data_options": sizes, "out": "called", "progress": False}
    called = asymtrain.search("mlp", "shapes", **grids, **options)
    typed, written = (json.loads((workplace / name / "search.json").read_text()) for name in ("typed", "called"))
    assert typed == written
    assert called.to_dict() == written["searches"][0]
    assert "asymtrain.search(&#39;mlp&#39;" in (workplace / "called" / "search.html").read_text()
    monkeypatch.setattr(executors.outcomes, "train_stack", None)  # nothing is trained again
    assert asymtrain.search("mlp", "shapes", **grids, **options).to_dict() == called.to_dict()


def test_ctrl_c_says_what_is_kept(ctrl_c_after):
    for options, note in (({"store": "runs.sqlite"}, "call it again"), ({}, "")):
        with ctrl_c_after(0), pytest.raises(KeyboardInterrupt) as stop:
            search(**options)
        assert note in "".join(getattr(stop.value, "__notes__", [""]))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"strategy": "gould"}, "did you mean 'gold'"),
        ({"seeds": [42]}, "seed 42 is one of the final runs"),
        ({"weight_decays": 0.1}, "weight_decays must be a list of numbers"),
        ({"learning_rates": "0.1"}, "learning_rates must be a list of numbers"),
        ({"alphas": ["a"]}, "alphas must be a list of numbers"),
        ({"learning_rate": 0.1}, "learning_rate is given as learning_rates= here"),
        ({"epoch": 1}, "unknown argument of search"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_bad_input(workplace, options, text):
    with pytest.raises(UsageError, match=text) as refusal:
        search(store="runs.sqlite", **options)
    assert "--" not in str(refusal.value)
    assert not list(workplace.iterdir())
