"""`asymtrain tune`: do branches help this model?"""

import json
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from asymtrain import UsageError
from asymtrain.lab.api.common import base_spec, of_full_size
from asymtrain.lab.candidates import Candidate
from asymtrain.lab.cli.tune import Effort, parse_candidates
from asymtrain.lab.data.own import load_arrays
from asymtrain.lab.data.registry import kept_dataset
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.statistics import VERDICTS
from asymtrain.lab.tune import Question, run_tune, running

NETS = """
from torch import nn

def tiny(classes, image_size):
    print("a word of the model's own")
    layers = [nn.Flatten(), nn.Linear(3 * image_size**2, 8), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, classes))
"""
# At a given learning rate at which a single epoch teaches nothing, which ends it after a pair.
TINY = ["tune", "mlp", "--arch-option", "widths=[8, 8]", "--epochs", "1", "--learning-rate", "0.01", "--minutes", "9"]
TINY += ["--candidate", "objective=softmax,alpha=0.3", "--candidate", "alpha=0"]


@pytest.fixture
def many_photos(tmp_path):
    """Two classes of 65 images, of which thirteen are tested on: 104 to train on."""
    image = pytest.importorskip("PIL.Image")
    for name, colour in (("red", (180, 30, 30)), ("blue", (30, 30, 180))):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(65):
            image.new("RGB", (8, 8), tuple(c + i for c in colour)).save(tmp_path / "photos" / name / f"{i}.png")
    return "folder:photos"


def test_it_answers_and_the_same_command_trains_nothing_again(cli, tmp_path):
    first = cli(*TINY)
    assert first.code == 0, first
    assert any(line.startswith(("Likely helps", "Inconclusive")) for line in first.out.splitlines())
    assert "trained with batch 16, learning rate 0.01, 1 epoch and fp32" in " ".join(first.out.split())
    assert "\nNext: " in first.out
    for stage in ("Timing: softmax, alpha 0.3 and the baseline, 1 epoch\n", "Plan: pairs of 1 epoch", "Pairs: softmax"):
        assert stage in first.err
    assert first.err.endswith("Page: asymtrain-tune/report.html\n")
    folder = tmp_path / "asymtrain-tune"
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".html", ".json", ".svg")}
    again = cli(*TINY)
    assert again.out == first.out
    assert "Pairs:" not in again.err
    assert files == {path.name: path.read_bytes() for path in folder.iterdir() if path.name in files}
    other = cli(*TINY, "--learning-rate", "0.5")
    assert other.code == 2
    assert "asymtrain-tune holds a tune that differs in learning rate: give another folder with --out" in other.err


def test_very_few_minutes_give_an_answer_and_json_has_every_number(cli, tmp_path):
    result = cli(*TINY[:-6], "--minutes", "0.02", "--json")
    assert result.code == 0, result.err
    shown = json.loads(result.out)
    assert shown == json.loads((tmp_path / "asymtrain-tune" / "tune.json").read_bytes()) | {"files": shown["files"]}
    assert shown["verdict"] in VERDICTS
    assert shown["default"]["label"] == "sigmoid with prior bias, strength 0.5"
    assert shown["more"][-1].startswith("Next: ")


@pytest.mark.parametrize(
    ("data", "options"),
    [("cifar100", ()), ("shapes", (("hidden", (64,)), ("pool_after", (0, 1, 2)), ("widths", (12, 24, 32))))],
)
def test_a_backbone_is_small_on_drawn_shapes_alone(data, options):
    own = {"widths": (8, 8)}
    base = base_spec("cnn", data, fields={})
    assert of_full_size(base, {}).arch_options == options
    assert dict(of_full_size(base_spec("cnn", data, fields={}, arch_options=own), own).arch_options)["widths"] == (8, 8)
    assert of_full_size(base, {}).per_class is None


def test_it_can_be_watched(cli):
    result = cli(*TINY, "--watch")
    assert result.code == 0, result.err
    assert "Watch it train: http://" in result.err


def test_a_module_and_a_folder_of_one_s_own(cli, many_photos, own_module, tmp_path):
    own_module("tuned_nets", NETS)
    command = f"tune tuned_nets:tiny --data {many_photos} --epochs 1 --at 2 --at 4 --minutes 9".split()
    command += ["--learning-rate", "1e-7"]  # at chance, which ends it after a pair
    result = cli(*command, "--candidate", "objective=softmax,alpha=1,layers=later", "--json")
    assert result.code == 0, result
    assert "a word of the model's own" in result.err
    shown = json.loads(result.out)
    assert shown == json.loads((tmp_path / "asymtrain-tune" / "tune.json").read_bytes()) | {"files": shown["files"]}
    assert shown["files"]["page"] == "asymtrain-tune/report.html"
    assert shown["verdict"] in VERDICTS
    assert shown["images"] == {"validation": 21, "test": 26}
    assert shown["layers"] == ["4"]
    assert shown["question"]["base"]["schedule"] == "cosine"  # of the ordinary recipe
    # Nothing is left to train, and yet another model by the same name is not answered with these runs.
    own_module("tuned_nets", NETS.replace("nn.Linear(8, 8)", "nn.Linear(8, 8, bias=False)"))
    changed = cli(*command, "--candidate", "objective=softmax,alpha=1,layers=later")
    assert changed.code == 2
    assert "the model tuned_nets:tiny changed since" in changed.err


def test_ctrl_c_gives_the_answer_so_far(cli, monkeypatch, tmp_path):
    def interrupted(question, *, on_run, **options):
        def stop(run, done, total):
            on_run(run, done, total)
            raise KeyboardInterrupt

        return run_tune(question, on_run=stop, **options)

    with monkeypatch.context() as patch:
        patch.setattr("asymtrain.lab.tune.run_tune", interrupted)
        stopped = cli(*TINY)
    assert stopped.code == 130
    assert (stopped.out + stopped.err).count("Inconclusive: no pair is finished yet") == 1
    assert re.search(r"Stopped, with 1 run in asymtrain-tune/runs\.sqlite\. Give the same command", stopped.err)
    assert (tmp_path / "asymtrain-tune" / "report.html").exists()
    assert cli(*TINY).code == 0


def test_candidates():
    assert parse_candidates(None) is None
    given = parse_candidates(["objective=softmax, alpha=0.3, layers=later, alpha_schedule=cosine"])
    assert given == [{"objective": "softmax", "alpha": 0.3, "layers": "later", "alpha_schedule": "cosine"}]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param(["--minutes", "0"], "--minutes must be above 0", id="no time"),
        pytest.param(["--minutes", "9", "--whole"], "leave out --whole, or --minutes", id="a limit and none"),
        pytest.param(["--candidate", "softmax"], "such as objective=softmax,alpha=0.3", id="a word"),
        pytest.param(["--candidate", "alpha=much"], "alpha is a number", id="alpha"),
        pytest.param(["--set", "objective=softmax"], "write --candidate objective=", id="a setting of candidates"),
        pytest.param(["--set", "redundancy=0"], "tune needs redundancy 1 or more", id="no branches"),
        pytest.param(["--data-option", "size=50"], "at least 100 training images", id="few images"),
        pytest.param(["--address", "here"], "--executor ray", id="an address"),
    ],
)
def test_bad_input(refused, options, said):
    assert said in refused("tune", "mlp", *options)


@pytest.mark.parametrize(
    ("given", "minutes"),
    [({}, 30.0), ({"minutes": 9.0}, 9.0), ({"whole": True}, None)],
    ids=["nothing is said", "minutes", "the whole"],
)
def test_the_limit_of_time(given, minutes):
    assert Effort(**given).limit() == minutes


def test_a_model_without_blocks_asks_for_the_option(refused, own_module):
    built = "return nn.Sequential(nn.Flatten(), nn.Linear(3072, classes))"
    own_module("flat_nets", f"from torch import nn\ndef flat(classes):\n    {built}\n")
    assert "name layers with --at, for example --at 'layers.*'" in refused("tune", "flat_nets:flat")


def test_a_folder_of_few_images_hears_how_many_are_needed_in_all(refused, photos):
    assert "or 125 images in all" in refused("tune", "mlp", "--data", photos)
    pages = {name: (Path(__file__).parents[3] / "docs" / name).read_text() for name in ("tune.md", "data.md")}
    assert all("needs 125 images or more" in page for page in pages.values())
    assert "100 to train on" in pages["tune.md"]


@pytest.mark.parametrize(("images", "enough"), [(125, True), (120, False)])
def test_the_least_images_are_enough(images, enough):
    x, y = np.zeros((images, 3, 8, 8), dtype=np.uint8), np.arange(images) % 3
    with kept_dataset(load_arrays((x, y))) as name:
        question = Question(RunSpec(arch="mlp", dataset=name), (Candidate(),))
        with nullcontext() if enough else pytest.raises(UsageError, match="training images"):
            running.check_data(question)


@pytest.mark.parametrize("model", ["mlp,cnn", "resnet", "nowhere:net", ""])
def test_models_that_are_none(refused, model):
    assert refused("tune", model)
