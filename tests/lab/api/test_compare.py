"""`asymtrain.compare`: what `asymtrain run` does, from Python."""

import itertools
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from api_examples import CLASSES, net, points
from torch import nn

import asymtrain
from asymtrain import UsageError
from asymtrain.__main__ import main
from asymtrain.lab import executors
from asymtrain.lab.candidates import RECOMMENDED, Candidate
from asymtrain.lab.data import Dataset, load, registry
from asymtrain.lab.engine import load_for
from asymtrain.lab.recipes import RECIPES
from asymtrain.lab.report import rows_frame
from asymtrain.lab.report.run_report import FILES
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.store import Store

NETS = """
from torch import nn

def net(classes, channels, image_size, width=4):
    first = nn.Linear(channels * image_size**2, width)
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(3)))
    return nn.Sequential(nn.Flatten(), first, blocks, nn.Linear(width, classes))
"""


@pytest.fixture(autouse=True)
def folder(workplace, one_core, monkeypatch):
    monkeypatch.setattr("asymtrain.lab.sources.building._CHECKED", set())
    return workplace


def compare(build=None, data=None, **options):
    """One pair of runs of one epoch each, by the paper's recipe, which is for inputs of any kind."""
    options = {"seeds": 1, "recipe": "paper", "epochs": 1, "at": "1", "progress": False} | options
    return asymtrain.compare(build or (lambda classes: net(classes)), points() if data is None else data, **options)


@pytest.mark.slow
def test_it_gives_what_the_command_gives(own_module, folder, monkeypatch):
    import pandas as pd

    own_module("compared_nets", NETS)
    monkeypatch.syspath_prepend(folder)
    command = ["run", "--arch", "compared_nets:net", "--data", "shapes", "--seeds", "2", "--epochs", "1"]
    command += ["--recipe", "ordinary", "--alpha", "0.5", "--batch", "16", "--arch-option", "width=3"]
    for option in ("classes=3", "size=40", "test_size=20"):
        command += ["--data-option", option]
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--out", "typed"])
    assert not stopped.value.code
    import compared_nets

    sizes = {"classes": 3, "size": 40, "test_size": 20}
    options = {"seeds": 2, "epochs": 1, "alpha": 0.5, "batch": 16, "build_options": {"width": 3}, "data_options": sizes}
    for build in ("compared_nets:net", compared_nets.net):
        result = asymtrain.compare(build, "shapes", **options, out="called", fresh=True, progress=False)
        written = [pd.read_csv(folder / name / FILES["rows"]) for name in ("typed", "called")]
        assert list(written[0]["id"]) == list(result.rows["id"])
        pd.testing.assert_frame_equal(*(rows.drop(columns="seconds") for rows in written))
    # The page differs in the command that it shows, and in how long things took.
    pages = [(folder / name / FILES["report"]).read_text() for name in ("typed", "called")]
    assert "asymtrain.compare(&#39;compared_nets:net&#39;, &#39;shapes&#39;, seeds=2" in pages[1]
    assert len(pages[0].splitlines()) == len(pages[1].splitlines())
    with Store("typed/runs.sqlite", read_only=True) as typed, Store("called/runs.sqlite", read_only=True) as called:
        assert [run.answers for run in typed.runs()] == [run.answers for run in called.runs()]


def test_the_result(folder):
    result = compare(seeds=2, epochs=2, learning_rate=0.01)
    assert list(result.rows["seed"]) == [42, 42, 43, 43]
    assert set(result.rows["variant"]) == {"plain", "asymmetric"}
    assert set(result.rows["classes"]) == {CLASSES}
    assert len(result.history) == 8
    row = result.comparison
    assert row["n"] == len(result.pairs) == 2
    assert row["points"] == pytest.approx(100 * (result.pairs["asymmetric"] - result.pairs["plain"]).mean())
    assert str(result) == result.sentence == row["sentence"]
    assert result.sentence.startswith("here:lambda-")
    assert result.sentence in repr(result)
    shown = result._repr_html_()
    assert shown.count("<tr>") == 2
    assert "<th>Plain</th>" in shown
    with pytest.raises(AttributeError):
        result.runs = ()
    assert not list(folder.iterdir())
    page = result.page("page")
    assert page.read_bytes() == result.page("again").read_bytes()
    assert "asymtrain.compare" in page.read_text()
    assert result.command.endswith("seeds=2, recipe='paper', epochs=2, learning_rate=0.01, at='1')")
    assert ", recipe=None, " in compare(recipe=None).command


def test_branches_that_nobody_names_are_the_recommended_ones(capsys):
    def label(**options):
        return Candidate.of(compare(**options).runs[1].spec).label

    assert label() == RECOMMENDED.label
    assert label(strength=0.1, objective="softmax") == "softmax with prior bias, strength 0.1"
    assert label(objective="softmax") == label(objective="softmax", recipe="paper") == "softmax, alpha 0.1"
    assert capsys.readouterr().err == ""
    result = compare(progress=True, strength=0.1)
    assert "Recommended branches: sigmoid with prior bias, strength 0.1 (here:lambda-" in capsys.readouterr().err
    assert "strength=0.1" in result.command


@pytest.mark.parametrize(
    ("recipe", "words"), [("ordinary", "flip_shift"), ("strong", "trivial, erasing, mixup and cutmix")]
)
def test_vectors_are_trained_without_what_a_recipe_does_to_images(recipe, words, capsys):
    result = compare(recipe=recipe, progress=True)
    assert f"\nWithout the recipe's {words}, made for images: data holds vectors.\n" in capsys.readouterr().err
    for run in result.runs:
        assert (run.spec.augmentation, run.spec.erasing, run.spec.mixup, run.spec.cutmix) == ("none", 0, 0, 0)
        assert (run.spec.schedule, run.spec.label_smoothing) == ("cosine", RECIPES[recipe]["label_smoothing"])


def test_a_run_that_names_the_largest_class_alone_is_at_chance():
    """Of labels that nothing tells, four in five are 0: an accuracy of 0.8 is far above one in three classes."""
    x, y = points(200)
    result = compare(data=(x, np.where(np.arange(200) % 5, 0, y)), epochs=5, learning_rate=0.03)
    (share,) = {run.largest_class for run in result.runs}
    assert share == pytest.approx(0.87, abs=0.05)
    assert set(result.rows["largest_class"]) == {share}
    assert result.rows["test_accuracy"].min() > 0.5
    assert (result.comparison["plain_at_chance"], result.comparison["asymmetric_at_chance"]) == (1, 1)


def test_data_in_every_form():
    x, y = points()
    forms = [(x, y), [torch.from_numpy(x), y.tolist()], {"x": x, "y": y}]
    results = [compare(data=form) for form in forms]
    assert len({name for result in results for name in result.rows["dataset"]}) == 1
    assert len({result.runs[0].history[0].main_loss for result in results}) == 1
    tested = compare(data=(x, y, *points(30, seed=1)))
    assert len(tested.runs[0].answers) == 4  # 30 bits
    assert set(tested.rows["dataset"]).isdisjoint(results[0].rows["dataset"])
    shapes = load("shapes", classes=3, size=30, test_size=12)
    assert isinstance(shapes, Dataset)
    images = compare(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 3)), shapes, at="2",
                     data_options={"image_size": 8})  # fmt: skip
    assert images.rows["dataset"][0].startswith("here:shapes-")


def test_functions_that_build_other_models_have_other_names():
    names = set()
    for layer in (nn.ReLU, nn.GELU, nn.Tanh):  # the same parameters
        result = compare(lambda classes, layer=layer: nn.Sequential(nn.Linear(4, 8), layer(), nn.Linear(8, classes)))
        names |= set(result.rows["arch"])
    assert len(names) == 3
    assert set(compare().rows["arch"]) == set(compare().rows["arch"])


def test_with_a_store_what_is_trained_is_not_trained_again(capsys, monkeypatch):
    first = compare(store="runs.sqlite", progress=True)
    assert capsys.readouterr().err.count("test accuracy") == 2
    again = compare(store="runs.sqlite", seeds=2, progress=True)
    assert capsys.readouterr().err.count("test accuracy") == 2
    assert again.rows["seconds"][0] == first.rows["seconds"][0]
    compare(store="runs.sqlite", fresh=True)
    with Store("runs.sqlite", read_only=True) as store:
        assert sorted(record.attempt for record in store.records(every_attempt=True)) == [1, 1, 1, 1, 2, 2]
    # Another process reads the runs of a function that it does not have, and cannot train them.
    monkeypatch.setattr(registry, "_LOADED", {})
    with Store("runs.sqlite", read_only=True) as store:
        rows = rows_frame(store.runs())
    assert set(rows["classes"]) == {CLASSES}
    spec = again.runs[0].spec
    assert RunSpec.from_dict(spec.to_dict()) == spec
    with pytest.raises(UsageError, match="was a function of another process"):
        executors.execute([spec])
    load_for.__globals__["_LOADED"].clear()  # as in a new process
    with pytest.raises(UsageError, match="were arrays of another process"):
        executors.execute([spec])


def test_ctrl_c_keeps_what_was_measured(ctrl_c_after):
    with ctrl_c_after(1), pytest.raises(KeyboardInterrupt) as stop:
        compare(store="runs.sqlite")
    assert "1 of 2 runs were trained; they are in runs.sqlite; call it again" in stop.value.__notes__[0]
    assert len(compare(store="runs.sqlite").rows) == 2


def test_runs_that_fail_are_said(monkeypatch):
    real = executors.outcomes.train_stack
    calls = []

    def failing(plan, *args, **options):
        calls.append(plan)
        if len(calls) > 2:
            raise ArithmeticError("the third stack breaks")
        return real(plan, *args, **options)

    monkeypatch.setattr(executors.outcomes, "train_stack", failing)
    with pytest.warns(UserWarning, match=r"2 of 4 runs were trained: 1 run failed: ArithmeticError: the third stack"):
        assert compare(seeds=2).comparison["n"] == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"build": nn.Linear(4, 3)}, "build must make a new model at each call: give a function or a name, not a Lin"),
        ({"build": lambda classes, depth: net(classes)}, "cannot be built"),
        ({"build": lambda: net(7)}, "gives logits of shape (2, 7) for two inputs, and the data has 3 classes"),
        ({"build": lambda model=net(3): model}, "gave the same model when it was called again"),  # noqa: B008
        ({"build": lambda: nn.Linear(5, 3)}, "does not take vectors of 4"),
        ({"data": 5}, "data is a int: give (x, y)"),
        ({"data": points()[:1]}, "data is 1 value: give (x, y)"),
        ({"data_options": {"size": 3}}, "unknown option of the data 'size'"),
        ({"seeds": "3"}, "seeds must be how many"),
        ({"recipe": "ordinary", "augmentation": "flip_shift"},
         "changes images, and data holds vectors: leave it out (augmentation='none')"),
        (
            {"augmentation": "trivial", "mixup": 0.2},
            "trivial and mixup change images, and data holds vectors: leave them out (augmentation='none', mixup=0)",
        ),
        ({"seeds": itertools.count()}, "seeds must be how many, from 1 to 10000"),
        ({"lr": 0.1}, "did you mean 'layer_reduction' or 'learning_rate'?"),
        ({"strength": "1"}, "strength must be a finite number of 0 or more, got '1'"),
        ({"strength": 1, "alpha": 1}, "leave out strength=, or alpha="),
        ({"head": "tower"}, "head='tower' reads maps"),
        ({"redundancy": 0}, "pairs need redundancy 1 or more"),
        ({"at": "blocks.*"}, "no module matches 'blocks.*'"),
        ({"arch": "mlp"}, "arch is given as build= here"),
        pytest.param(
            {"device": "cuda"}, "use device='cpu'",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
        (
            {"build": "hf:ViTConfig", "data": "shapes", "build_options": {"hidden_size": "wide"}, "at": None},
            "check build_options= (its names",
        ),
        ({"build": "vit", "data": points(), "at": None, "recipe": None}, "choose another model with build="),
        ({"data": (np.zeros((60, 3, 8, 3)), points()[1]), "recipe": None}, "data_options={'layout': 'nchw'} or data_o"),
        ({"store": "."}, "is a folder: give the path of a file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)  # fmt: skip
def test_bad_input_is_one_line_and_leaves_nothing_behind(folder, options, text):
    options = {"store": "runs.sqlite", **options}
    with pytest.raises(UsageError, match=re.escape(text)) as refusal:
        compare(**options)
    assert len(str(refusal.value).splitlines()) == 1
    assert "--" not in str(refusal.value)
    assert not list(folder.iterdir())


def test_a_missing_extra_is_named():
    program = "import sys; sys.modules['pandas'] = None; import asymtrain; asymtrain.compare('mlp', 'shapes')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert 'asymtrain.compare needs pandas: pip install -e ".[lab]"' in ended.stderr.splitlines()[-1]


def test_other_machines_cannot_train_what_this_process_holds():
    spec = RunSpec(dataset="here:data-0", arch="here:net-0")
    with pytest.raises(UsageError, match="here:data-0 is of this process, and ray trains in others"):
        executors.execute([spec], executor="ray")
