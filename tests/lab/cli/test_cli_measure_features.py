"""`asymtrain measure features` as a user calls it."""

import json

import pytest

from asymtrain.lab.engine import load_for
from asymtrain.lab.engine.reference import train_reference
from asymtrain.lab.instruments.features import measure as following
from asymtrain.lab.instruments.features.measure import follow_features
from asymtrain.lab.scales import get_scale, scaled_spec
from asymtrain.lab.store import Store

SMALL = ("measure", "features", "--arch", "mlp", "--seeds", 2, "--steps", "0,2", "--images", 20, "--device", "cpu")


def test_the_command_shows_stores_and_goes_on(cli, tmp_path, monkeypatch):
    calls = []

    def counted(spec, *arguments, **options):
        calls.append(spec)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return train_reference(spec, *arguments, **options)

    monkeypatch.setattr(following, "train_reference", counted)
    stopped = cli(*SMALL)
    assert (stopped.code, len(calls)) == (130, 4)
    assert "Stopped: 3 of 6 runs" in " ".join(stopped.err.split())
    done = cli(*SMALL)
    assert done.code == 0, done.err
    assert len(calls) == 4 + 3  # the first three were kept
    assert "Features in the first steps" in done.out
    assert "Point by point" not in done.out
    page = (tmp_path / "asymtrain-measure" / "features.html").read_text()
    assert "Point by point" in page
    assert page.count("<figure") == 3
    again = cli(*SMALL, "--json")
    assert len(calls) == 7
    document = json.loads(again.out)
    assert [group["variant"] for group in document["groups"]] == ["plain", "trained", "prior"]
    assert [run["seed"] for run in document["groups"][0]["runs"]] == [42, 43]
    spec = scaled_spec(get_scale("quick"), "mlp")
    kept = follow_features(spec, load_for(spec), [2], images=20)[2]
    (run, _) = document["groups"][1]["runs"]
    assert run["steps"]["2"] == [point.to_dict() for point in kept]
    with Store(tmp_path / "asymtrain-measure" / "runs.sqlite", read_only=True) as store:
        assert store.summary().total.pending == 0  # looked at, not asked for


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--steps", "soon"), "write steps with commas"),
        (("--steps", "99999999"), "steps must lie in"),
        (("--images", 1), "--images must lie in 2.."),
        (("--variant", "biased"), "'biased'"),
        (("--redundancy", 10**9), "give a smaller redundancy"),
    ],
)
def test_what_cannot_be_measured_is_said_and_nothing_is_written(cli, tmp_path, options, said):
    result = cli("measure", "features", "--arch", "mlp", *options)
    assert result.code == 2
    assert said in " ".join(result.err.split())
    assert "seed 42" not in result.err  # before anything is trained
    assert not (tmp_path / "asymtrain-measure").exists()
