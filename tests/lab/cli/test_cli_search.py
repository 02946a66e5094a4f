import json
import re

import pytest

from asymtrain.lab.store import Store

TINY = ["--arch", "mlp", "--epochs", "1", "--learning-rates", "1e-3"]
TINY += ["--weight-decays", "1e-3,1e-1", "--alphas", "0.1,1"]


def stored(folder):
    with Store(folder / "asymtrain-search" / "runs.sqlite", read_only=True) as store:
        return store.records(every_attempt=True)


def test_a_search_prints_what_was_tried_and_chosen_and_writes_a_page(cli, tmp_path):
    result = cli("search", *TINY)
    assert result.code == 0, result.err
    assert (
        len(re.findall(r"^(?:learning rate|weight decay|alpha) +(?:Plain|Asymmetric)", result.out, re.MULTILINE)) == 5
    )
    assert result.out.count("chosen") == 3  # a trial of each stage
    assert "Chosen values" in result.out
    words = " ".join(result.out.split())  # a long sentence is wrapped
    assert re.search(r"MLP on shapes, N = 1: Plain learning rate 0\.001, weight decay \S+; Asymmetric .* alpha", words)
    assert "best validation accuracy 0." in result.err
    assert "test accuracy" not in result.err
    page = (tmp_path / "asymtrain-search" / "search.html").read_text(encoding="utf-8")
    assert "asymtrain search --arch mlp" in page
    assert page.count("<svg") == 2  # weight decay and alpha: one value of the learning rate is no curve
    assert {record.run.spec.seed for record in stored(tmp_path)} == {1000}


@pytest.mark.slow
def test_json_holds_every_trial_and_the_second_call_trains_nothing(cli, tmp_path):
    first = cli("search", *TINY, "--json", "--seeds", "2", "--strategy", "dual", "--alpha", "0.5")
    assert first.code == 0, first.err
    (found,) = json.loads(first.out)["searches"]
    assert (found["strategy"], found["seeds"], found["complete"]) == ("dual", [1000, 1001], True)
    assert [stage["trains"] for stage in found["stages"]] == ["plain", "asymmetric"] * 2 + ["asymmetric"]
    best = [max(stage["trials"], key=lambda trial: trial["mean"]) for stage in found["stages"]]
    assert [stage["chosen"] for stage in found["stages"]] == [trial["settings"] for trial in best]
    again = cli("search", *TINY, "--json", "--seeds", "2", "--strategy", "dual", "--alpha", "0.5")
    assert again.out == first.out
    assert "best validation accuracy" in first.err
    assert "best validation accuracy" not in again.err
    assert {record.attempt for record in stored(tmp_path)} == {1}
    assert all(record.run.test_accuracy is None for record in stored(tmp_path))


def test_a_time_limit_and_ctrl_c_say_what_is_left(cli, ctrl_c_after, tmp_path):
    for _ in range(2):
        result = cli("search", *TINY, "--minutes", "0.0000001")
        assert result.code == 0, result.err
        assert "at most 5 runs are left. Starting took all of this time: give the same command with more" in result.err
    with ctrl_c_after(2):
        result = cli("search", *TINY)
    assert result.code == 130
    assert "Stopped: at most" in result.err
    result = cli("search", *TINY)
    assert result.code == 0
    assert "left" not in result.err
    assert sorted(record.attempt for record in stored(tmp_path)) == [1] * 4


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--strategy", "gould"), "did you mean 'gold'"),
        (("--alphas", "few"), "--alphas few: write numbers"),
        (("--activation", "some"), ": --activation must be one of"),
        (("--final-epochs", "0"), "final-epochs must be 1 or more"),
        (("--at", "blocks.*"), "mlp has layers and pooling of its own"),
        (("--initial-weights", "w.safetensors"), ": --initial-weights is for models by name"),
        (("--set", "weight_decay=1"), "an option of its own, --weight-decays"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(refused, arguments, text):
    assert text in refused("search", "--arch", "mlp", *arguments)


@pytest.mark.slow
def test_what_a_search_chose_is_trained_by_run(cli, tmp_path):
    given = ("--recipe", "ordinary", "--final-epochs", "3", "--batch", "16", "--set", "clip=1")
    assert cli("search", *TINY, *given).code == 0
    (found,) = json.loads((tmp_path / "asymtrain-search" / "search.json").read_text())["searches"]
    result = cli("run", "--from-search", "asymtrain-search", "--seeds", "1", "--json")
    assert result.code == 0, result.err
    (comparison,) = json.loads(result.out)["comparisons"]
    assert comparison["n"] == 1
    with Store(tmp_path / "asymtrain-report" / "runs.sqlite", read_only=True) as store:
        specs = {record.run.spec.variant: record.run.spec for record in store.records()}
    for variant, spec in specs.items():
        assert {name: getattr(spec, name) for name in found["chosen"][variant]} == found["chosen"][variant]
        assert (spec.seed, spec.schedule, spec.augmentation, spec.test) == (42, "cosine", "flip_shift", "last")
        assert (spec.epochs, spec.warmup, spec.batch, spec.clip) == (3, 0.3, 16, 1.0)


def test_a_search_that_cannot_be_trained_is_refused(cli, refused, tmp_path):
    folder = tmp_path / "found"
    folder.mkdir()
    call = ("run", "--from-search", "found")
    assert "found has no search.json: give the folder that asymtrain search wrote to" in refused(*call)
    document = {"complete": True, "base": {"epochs": 2}, "chosen": {"plain": {"learning_rate": 0.1}, "asymmetric": {}}}
    for content, text in [
        ("{", "found/search.json cannot be read (JSONDecodeError): run the search again"),
        ("[]", "found/search.json cannot be read (TypeError)"),
        (json.dumps({"searches": [{**document, "complete": False}]}), "the search in found is not finished"),
        (json.dumps({"searches": [{**document, "base": {"mood": 1}}]}), "unknown field of a run"),
        (json.dumps({"searches": [document]}), "chose another learning_rate for Plain than for Asymmetric"),
    ]:
        (folder / "search.json").write_text(content)
        assert text in refused(*call)
    for option in (("--learning-rate", "0.1"), ("--recipe", "strong"), ("--set", "clip=1")):
        assert f"names runs with all their settings: leave out {option[0]}" in refused(*call, *option)
