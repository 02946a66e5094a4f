"""benchmarks/overhead.py times the study's models, and `practice show` reads what it wrote."""

import sys
from pathlib import Path

import pytest
from invented_study import invented_study

from asymtrain.lab.studies.practice.analysis import read_step_costs
from asymtrain.lab.studies.practice.protocol import FULL, Task

sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))
import overhead


def test_a_step_of_a_model_of_the_study_is_timed_and_read(monkeypatch, tmp_path, capsys):
    options = {
        "device": "cpu",
        "only": "practice",
        "model": "mlp",
        "mode": "eager",
        "batch": 2,
        "turn": 0.0001,
        "turns": 1,
        "builds": 1,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", ["overhead.py", *words, "--json", str(tmp_path / "costs.json")])
    overhead.main()
    (cost,) = read_step_costs([tmp_path / "costs.json"])
    assert (cost.model, cost.mode, cost.attached) == ("mlp", "eager", 4)
    assert cost.branches == {"objective": "sigmoid", "bias": "none", "layers": "all"}
    assert f"{cost.ratio:.3f}x" in capsys.readouterr().out


def test_one_odd_build_of_several_does_not_make_the_ratio():
    builds = [1.0, 1.0, 1.3, 1.05, 1.05, 1.05]  # three plain ones, three with branches
    turns = [[slow * seconds for seconds in builds] for slow in (1.0, 2.0, 1.0)]
    timed = overhead.summarise(turns, [3, 3])
    (ratio,) = timed.ratios
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.05, 1.05 / 1.3, 1.05))
    assert (timed.seconds, timed.error) == pytest.approx((1.1, 1.3))


def test_the_form_that_rows_select_is_timed():
    known = invented_study(FULL, [Task("mlp")])
    assert overhead.practice_form(Task("mlp"), known).label == "softmax, alpha 1, later layers"
    assert overhead.practice_form(Task("cnn"), known).label == "sigmoid, alpha 0.1"
