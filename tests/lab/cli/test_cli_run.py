import csv
import itertools
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch

from asymtrain.lab import executors
from asymtrain.lab.candidates import RECOMMENDED, RECOMMENDED_ON_CONVOLUTIONS, Candidate
from asymtrain.lab.executors.outcomes import Job
from asymtrain.lab.report.run_report import FILES
from asymtrain.lab.scales import SCALES
from asymtrain.lab.store import Store, stored_runs

TINY = ("run", "--arch", "mlp", "--seeds", "2", "--epochs", "1")
ONE_PAIR = ("run", "--arch", "mlp", "--seeds", "1", "--epochs", "1")
ONCE = ("--epochs", "1", "--seeds", "1")


def rows(folder):
    with (folder / "rows.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_study_prints_a_table_and_a_sentence_and_writes_the_report(cli, tmp_path, monkeypatch):
    enough = {"dataset_options": {"classes": 9, "size": 2500, "test_size": 1000}}
    monkeypatch.setitem(SCALES["quick"].datasets, "shapes", enough)  # runs at chance are flagged, in a wider table
    result = cli(*TINY, "--out", "report")
    assert result.code == 0, result.err
    for heading in ("Backbone", "Plain", "Asymmetric", "Difference (points)", "95% interval", "p", "n", "cosine"):
        assert heading in result.out
    assert re.search(r"^MLP +0\.\d{3} ± 0\.\d{3} +0\.\d{3} ± 0\.\d{3} ", result.out, re.MULTILINE)
    assert re.search(r"\bMLP: .*\(95% interval .*, 2 seeds\).*\.", " ".join(result.out.split()))
    assert {path.name for path in (tmp_path / "report").iterdir()} >= {*FILES.values(), "runs.sqlite"}
    assert {(row["variant"], row["seed"]) for row in rows(tmp_path / "report")} == {
        (variant, seed) for variant in ("plain", "asymmetric") for seed in ("42", "43")
    }
    assert "report/report.html" in result.err
    page = (tmp_path / "report" / "report.html").read_text()
    assert "asymtrain run --arch mlp --seeds 2 --epochs 1 --out report" in page


def test_json_is_all_there_is_on_stdout(cli, tmp_path):
    result = cli(*TINY, "--json", "--alpha", "0.5", "--redundancy", "3")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    (row,) = found["comparisons"]
    assert (row["arch"], row["n"]) == ("mlp", 2)
    assert [seed["seed"] for seed in row["seeds"]] == [42, 43]
    # Equal where both seeds gained the same: accuracies are shares of 1000 images.
    assert row["low"] <= row["improvement"] <= row["high"]
    plain, asymmetric = (sum(seed[side] for seed in row["seeds"]) / 2 for side in ("plain", "asymmetric"))
    assert row["improvement"] == pytest.approx(100 * (asymmetric - plain) / plain)
    assert found["runs"] == {"wanted": 4, "finished": 4}
    for path in found["files"].values():
        assert (tmp_path / path).is_file()
    trained = [one for one in rows(tmp_path / "asymtrain-report") if one["variant"] == "asymmetric"]
    assert {(one["alpha"], one["redundancy"]) for one in trained} == {("0.5", "3")}


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ((), {"mlp": RECOMMENDED.label, "cnn": RECOMMENDED_ON_CONVOLUTIONS.label}),
        (("--strength", "0.2"), dict.fromkeys(("mlp", "cnn"), "sigmoid with prior bias, strength 0.2")),
        (("--strength", "0.2", "--set", "head=mlp"), dict.fromkeys(("mlp", "cnn"), "sigmoid, strength 0.2, MLP head")),
        (("--set", "signal=noise"), {"mlp": RECOMMENDED.label, "cnn": RECOMMENDED_ON_CONVOLUTIONS.label}),
        (("--alpha", "3"), dict.fromkeys(("mlp", "cnn"), "sigmoid, alpha 3")),
        (("--set", "objective=softmax"), dict.fromkeys(("mlp", "cnn"), "softmax, alpha 0.1")),
        (("--redundancy", "2"), dict.fromkeys(("mlp", "cnn"), "sigmoid, alpha 0.1")),
    ],
    ids=" ".join,
)
def test_branches_that_nobody_names_are_the_recommended_ones(cli, options, labels, monkeypatch):
    asked = []
    monkeypatch.setattr(executors, "execute", lambda specs, **options: iter(asked.extend(specs) or ()))
    result = cli("run", "--arch", "mlp,cnn", "--data-option", "size=100", *ONCE, *options)
    assert {spec.arch: Candidate.of(spec).label for spec in asked if spec.redundancy} == labels
    told = [line for line in result.err.splitlines() if line.startswith("Recommended branches: ")]
    assert len(told) == (1 if "--strength" in options or labels["mlp"] == RECOMMENDED.label else 0)
    assert all(label in told[0] for label in labels.values() if told)
    assert ("alpha" in result.err) == (labels["mlp"].endswith("alpha 0.1"))


def test_at_the_scale_of_the_paper_branches_are_the_paper_s(cli, monkeypatch):
    monkeypatch.setattr(executors, "execute", lambda specs, **options: pytest.fail(Candidate.of(specs[1]).label))
    with pytest.raises(pytest.fail.Exception, match=r"sigmoid, alpha 0\.1$"):
        cli("run", "--arch", "mlp", "--scale", "paper", "--data", "shapes", *ONCE)


@pytest.mark.slow
def test_called_again_nothing_is_trained_and_the_report_is_the_same(cli, tmp_path):
    assert cli(*TINY).code == 0
    folder = tmp_path / "asymtrain-report"
    before = {name: (folder / name).read_bytes() for name in FILES.values()}
    again = cli(*TINY)
    assert again.code == 0
    assert {name: (folder / name).read_bytes() for name in FILES.values()} == before
    store = "asymtrain-report/runs.sqlite"
    assert again.err.splitlines()[2] == f"4 of 4 runs are in {store} already: nothing is left to train."
    assert "seed 4" not in again.err
    # More seeds: only the new ones are trained and told, the old rows stay.
    more = cli("run", "--arch", "mlp", "--seeds", "42..44", "--epochs", "1")
    assert more.code == 0
    assert more.err.splitlines()[2] == f"4 of 6 runs are in {store} already."
    assert re.findall(r"^(\d/6) mlp .* seed (\d+): ", more.err, re.MULTILINE) == [("5/6", "44"), ("6/6", "44")]
    old = before["rows.csv"].decode().splitlines()
    assert set(old) < set((folder / "rows.csv").read_text().splitlines())


def test_ctrl_c_leaves_what_was_finished_and_says_how_to_go_on(cli, ctrl_c_after, tmp_path):
    with ctrl_c_after(2):
        result = cli(*TINY)
    assert result.code == 130
    assert "2 of 4 runs" in result.err
    assert "same command again" in result.err
    assert "Traceback" not in result.err
    assert len(rows(tmp_path / "asymtrain-report")) == 2
    result = cli(*TINY)
    assert result.code == 0
    assert len(rows(tmp_path / "asymtrain-report")) == 4


def test_a_time_limit_that_is_over_at_once_is_not_an_error(cli, tmp_path):
    for _ in range(2):
        result = cli(*ONE_PAIR, "--minutes", "0.00001")
        assert result.code == 0, result.err
        assert re.search(
            r"0 of 2 runs are in \S+\. Starting took all of this time: give the same command with more", result.err
        )
    assert cli(*ONE_PAIR).code == 0
    assert len(rows(tmp_path / "asymtrain-report")) == 2


def test_a_store_that_a_full_disk_left_without_tables_is_begun_anew(cli, tmp_path):
    folder = tmp_path / "asymtrain-report"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "runs.sqlite")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")  # makes the first page, and nothing on it
    assert "nothing was stored in it yet" in cli("status").err
    result = cli(*ONE_PAIR)
    assert result.code == 0, result.err
    assert len(rows(folder)) == 2


def test_fresh_trains_again_and_promises_nothing_with_a_time_limit(cli, tmp_path):
    assert cli(*ONE_PAIR).code == 0
    result = cli(*ONE_PAIR, "--fresh", "--minutes", "0.00001")
    assert result.code == 0, result.err
    assert "With --fresh every call begins anew" in result.err
    assert "again to go on" not in result.err
    assert cli(*ONE_PAIR, "--fresh").code == 0
    with Store(tmp_path / "asymtrain-report" / "runs.sqlite", read_only=True) as store:
        assert sorted(record.attempt for record in store.records(every_attempt=True)) == [1, 1, 2, 2]


def test_a_time_limit_in_which_no_run_is_finished_says_what_is_kept_and_what_is_left(cli, tmp_path, monkeypatch):
    """A stack that has begun trains an epoch, however short the limit: the same command comes to its end."""
    pair = ("run", "--arch", "mlp", "--seeds", "1", "--epochs", "3")
    for epochs in (2, 4):  # the pair is one stack
        answers = itertools.chain([False], itertools.repeat(True))  # time is over once a stack has begun
        with monkeypatch.context() as patch:
            patch.setattr(Job, "is_over", lambda self, answers=answers: next(answers))
            result = cli(*pair, "--minutes", "0.00001")
        assert result.code == 0, result.err
        kept = f"No run was finished in this time: {epochs} of 6 epochs are trained and kept"
        assert re.search(rf"^Not finished: 0 of 2 .*\. {kept}.*\. Give the same", result.err, re.MULTILINE)
    last = cli(*pair, "--minutes", "10")
    assert last.err.splitlines()[2] == "2 runs go on from a checkpoint."
    assert "Not finished" not in last.err
    assert len(rows(tmp_path / "asymtrain-report")) == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--data", "cifar10"), "--data-root"),
        (("--store", "."), ". is a folder: give the path of a file"),
        (("--data", "folder:nowhere"), "nowhere is not a folder"),
        (("--arch", "cnnn"), "did you mean 'cnn'"),
        (("--arch", "cnn", "--data-option", "image_size=12"), "12 cannot be halved 3 times: give a multiple of 8"),
        (("--alpha=-1",), "asymtrain: --alpha must be 0 or more, got -1.0"),
        (("--set", "clip=-1"), "asymtrain: --set clip must be 0 or more, got -1.0"),
        (("--strength", "-1"), "strength must be a finite number of 0 or more, got -1.0"),
        (("--strength", "1", "--alpha", "1"), "leave out --strength, or --alpha"),
        (("--set", "head=tower"), "--set head=tower reads maps, and the layers of mlp give none: use --set head=mlp"),
        (("--redundancy", "0"), "asymtrain: --redundancy must be 1 or more"),
        (("--set", "signl=noise"), "no such field; write one of layers=all|later|middle, pool=mean|class_token, head="),
        (("--set", "signal=loud"), "write signal=gradient|detached|noise|gated"),
        (("--set", "alpha=3"), "an option of its own, --alpha"),
        (("--set", "cosine_every=3"), "no such field"),
        (("--set", "learning_rate=1"), "an option of its own, --learning-rate"),
        (("--set", "clip=much"), "--set clip=much: write a number, such as clip=0.5"),
        (("--initial-weights", "w.safetensors"), ": --initial-weights is for models by name, and mlp is a backbone"),
        (("--recipe", "strng"), "unknown recipe 'strng': did you mean 'strong'"),
        (("--from-search", "nowhere"), "--from-search names runs with all their settings: leave out --arch"),
        (("--set", "signal=noise", "--set", "signal=gated"), "signal is already set to noise"),
        (("--precision", "fp8"), "asymtrain: --precision must be one of"),
        (("--executor", "lokal"), "did you mean 'local'"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(refused, monkeypatch, arguments, text):
    monkeypatch.setattr("asymtrain.lab.data.archives.download", _offline)
    assert text in refused("run", "--arch", "mlp", "--epochs", "1", *arguments)


def _offline(*args, **kwargs):
    from asymtrain.lab.data.archives import Unavailable

    raise Unavailable("the network is off in tests")


@pytest.mark.parametrize("option", ["--out", "--store"])
def test_an_unwritable_layer_is_found_before_training(refused, tmp_path, monkeypatch, option):
    (tmp_path / "file").write_text("in the way")

    def never(*args, **kwargs):
        raise AssertionError("training began")

    monkeypatch.setattr(executors, "execute", never)
    assert "cannot write" in refused(*TINY, option, "file/below")


# As fast as any when it is checked; as slow as an import or a compilation once stacks are planned.
SLOW_START = """
import math
import time
from pathlib import Path
from torch import nn

def build(classes, input_shape):
    if any(Path.cwd().rglob("plans-*.json")):
        Path("slow").touch()
        time.sleep(600)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), 8), nn.ReLU(), nn.Linear(8, classes))
"""


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_ctrl_c_while_training_starts_is_answered_at_once_and_waits_for_nothing(tmp_path, cores, count):
    """In this process, and in workers."""
    (tmp_path / "slow_start.py").write_text(SLOW_START)
    command = [sys.executable, "-m", "asymtrain", "run", "--arch", "slow_start:build", "--at", "1"]
    cores(count)
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr.readline().startswith("Loading PyTorch")
        assert process.stderr.readline().startswith("Defaults: ")
        assert process.stderr.readline().startswith("Recommended branches: ")
        while not (tmp_path / "slow").exists():
            assert process.poll() is None
            time.sleep(0.1)
        before = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        first = process.stderr.readline()
        answered = time.monotonic() - before
        _, err = process.communicate(timeout=600)
        ended = time.monotonic() - before
    assert (process.returncode, first) == (130, "Stopping ...\n"), err
    assert re.search(r"Stopped: 0 of \d+ runs", err)
    assert "Traceback" not in err
    assert answered < 3
    assert ended < 15  # 3 s on a machine that does nothing else


@pytest.fixture
def cores():
    """Let this process and its children use so many cores: with one, the executor starts no workers."""
    before = os.sched_getaffinity(0)
    yield lambda count: os.sched_setaffinity(0, sorted(before)[-count:])
    os.sched_setaffinity(0, before)


TRACKING = {
    "run": "--data folder:photos --arch mlp --seeds 1 --epochs 1",
    "search": "",
    "tune mlp": "--arch-option widths=[8,8] --minutes 0.05 --epochs 1 --candidate alpha=0.1",
    "paper run table3": "",
    "measure alignment": "--data folder:photos --arch mlp --seeds 1 --epochs 1",
    "measure trajectory": "--data folder:photos --arch mlp --seeds 1 --epochs 1",
}


@pytest.mark.parametrize("command", [command for command, options in TRACKING.items() if options])
def test_what_a_command_trains_is_tracked(command, cli, photos, tmp_path):
    pytest.importorskip("tensorboard")
    words = (*command.split(), *TRACKING[command].split(), "--out", "study", "--track", "tensorboard")
    result = cli(*words)
    assert result.code == 0, result.err
    assert "Tracked: tensorboard --logdir study/tensorboard\n" in result.err
    assert list((tmp_path / "study" / "tensorboard").glob("*/events.*"))
    if command == "run":
        assert "Tracked" not in cli(*words).err, "nothing was trained"


def test_what_trains_nothing_has_nothing_to_track(refused):
    track = ("--track", "tensorboard")
    assert "trains nothing: leave out --track" in refused("measure", "alignment", "--run", "all", *track)


@pytest.mark.parametrize("command", TRACKING)
def test_a_tracker_that_is_unknown_or_not_installed_is_refused(command, refused, monkeypatch):
    words = command.split()
    assert "unknown tracker 'tensorbord': did you mean 'tensorboard'" in refused(*words, "--track", "tensorbord")
    monkeypatch.setitem(sys.modules, "wandb", None)
    line = refused(*words, "--track", "wandb")
    assert line.startswith('asymtrain: --track wandb needs wandb: pip install -e ".[wandb]"')


OWN = """
import numpy, os
def data(count=40):
    with open("processes.txt", "a") as file:
        print(os.getpid(), file=file)
    source = numpy.random.default_rng(0)
    return source.integers(0, 256, (count, 1, 8, 8), dtype=numpy.uint8), numpy.arange(count) % 4
"""


@pytest.mark.slow
def test_data_of_a_function_reach_the_workers(cli, own_module, tmp_path, monkeypatch):
    own_module("own_images", OWN)
    monkeypatch.setattr("asymtrain.lab.executors.local.cores", lambda: 2)
    result = cli(*TINY, "--data", "own_images:data", "--data-option", "image_size=6", "--data-option", "count=80")
    assert result.code == 0, result.err
    processes = (tmp_path / "processes.txt").read_text().split()
    assert len(set(processes)) == 3  # this one, which looks at the data first, and two workers
    assert len(processes) == 2 * 3  # each calls the function again, and compares
    assert len(rows(tmp_path / "asymtrain-report")) == 4
    assert {row["classes"] for row in rows(tmp_path / "asymtrain-report")} == {"4"}


NETS = """
from torch import nn

def net(classes, channels, image_size, width=4):
    first = nn.Linear(channels * image_size**2, width)
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(3)))
    return nn.Sequential(nn.Flatten(), first, blocks, nn.Linear(width, classes))

def few(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, classes - 1))
"""


@pytest.fixture
def own_nets(own_module):
    own_module("own_nets", NETS)


@pytest.mark.parametrize(
    ("arch", "text"),
    [
        ("own_nets:few", "own_nets:few gives logits of shape (2, 8) for two inputs"),
        ("own_nets:net --at blocks.*", "no module matches 'blocks.*'"),
        ("own_nets:nett", "did you mean 'net'?"),
        ("timm:resnet18", "pip install timm"),
    ],
)
def test_a_model_that_cannot_be_built_is_one_line_and_leaves_nothing_behind(own_nets, refused, monkeypatch, arch, text):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert text in refused("run", "--epochs", "1", "--arch", *arch.split())


@pytest.mark.parametrize(("arch", "text"), [("ViTConfg", "did you mean 'ViTConfig'"), ("google/vit", "is downloaded")])
def test_a_config_that_transformers_does_not_have(refused, arch, text):
    pytest.importorskip("transformers")
    assert text in refused("search", "--arch", f"hf:{arch}")


def test_initial_weights_from_a_file(own_nets, cli, refused, photos, tmp_path):
    from safetensors.torch import save_file

    command = ("run", "--arch", "own_nets:net", "--data", photos, "--seeds", 1, "--epochs", 1)
    values = {f"2.{block}.0.{part}": torch.ones(4, 4)[0 if part == "bias" else slice(None)].clone()
              for block in range(3) for part in ("weight", "bias")}  # fmt: skip
    values |= {"1.weight": torch.ones(4, 3072), "1.bias": torch.ones(4), "3.bias": torch.ones(7)}
    weights = ("--initial-weights", "net.safetensors")
    save_file({**values, "3.weight": torch.ones(7, 5)}, "net.safetensors")
    assert "3.weight has another shape ((7, 5) in the file, (3, 4) in the model)" in refused(*command, *weights)
    save_file({**values, "3.weight": torch.ones(7, 4)}, "net.safetensors")
    result = cli(*command, *weights)
    assert result.code == 0, result.err
    assert result.err.count("3.weight, 3.bias of net.safetensors is for 7 classes, and the data has 3") == 1
    with Store(tmp_path / "asymtrain-report" / "runs.sqlite", read_only=True) as store:
        assert {run.spec.initial_weights for run in store.runs()} == {"net.safetensors"}
    save_file({**values, "1.bias": torch.zeros(4), "3.weight": torch.ones(7, 4)}, "net.safetensors")
    told = refused(*command, *weights)
    assert "own_nets:net changed since 2 runs in asymtrain-report/runs.sqlite were trained: its initial" in told
    assert "--fresh" in told


ENOUGH = ("--data-option", "size=6500", "--data-option", "image_size=8", "--data-option", "test_size=100")
SMALL_MLP = ("--arch-option", "widths=[8, 8]")
COMMANDS = {
    "run": ("run", "--arch", "mlp", *SMALL_MLP, *ONCE),
    "tune": ("tune", "mlp", *SMALL_MLP, "--epochs", "1", "--minutes", "0.1", "--candidate", "alpha=0.1"),
    "search": ("search", "--arch", "mlp", *SMALL_MLP, *ONCE, "--final-epochs", "1",
               *("--learning-rates", "0.1", "--weight-decays", "0.1", "--alphas", "1")),
}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "given", "batch", "said"),
    [
        # What a search holds out is no training example; pairs of tune are trained on all of them.
        *(
            (command, ("--recipe", "strong"), 16, f"Batch 16, not the recipe's 128: of {images}")
            for command, images in zip(COMMANDS, (240, 300, 240), strict=True)
        ),
        ("run", (*ENOUGH, "--recipe", "ordinary"), 128, "batch 128"),
        ("search", ("--recipe", "ordinary", "--batch", "50"), 50, ""),
    ],
)
def test_a_recipe_has_its_batch_and_what_is_not_given_is_told_first(cli, command, given, batch, said):
    result = cli(*COMMANDS[command], *given, "--out", "out")
    assert result.code == 0, result.err
    assert {run.spec.batch for run in stored_runs(Path("out/runs.sqlite"))} == {batch}
    first, second = result.err.splitlines()[:2]
    assert first.startswith("Defaults: ")
    assert "fp32" in (result.out if command == "tune" else first)  # tune names it in its answer
    assert said in f"{first} {second}"
    assert said or "atch" not in first


def test_what_a_killed_command_left_is_removed_at_the_next_start(cli, tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    out = tmp_path / "asymtrain-report"
    out.mkdir()
    for name in (f"report.html.{ended.pid}.new", f"history.csv.{ended.pid}.new", f"rows.csv.{os.getpid()}.new"):
        (out / name).touch()
    assert cli("run", "--executor", "lokal").code == 2
    assert [file.name for file in out.iterdir()] == [f"rows.csv.{os.getpid()}.new"]
