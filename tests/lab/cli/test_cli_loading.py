"""Commands are loaded when they are called, and Ctrl-C while they load is no error."""

import dataclasses
import os
import re
import signal
import subprocess
import sys

import pytest

from asymtrain.__main__ import main
from asymtrain.errors import UsageError
from asymtrain.lab.checkpoints import STATE, checkpoints_of
from asymtrain.lab.cli import COMMANDS, PURPOSE
from asymtrain.lab.cli.app import load_command
from asymtrain.lab.cli.loading import loading
from asymtrain.lab.engine import StackPlan
from asymtrain.lab.engine.checkpoint import open_checkpoint
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.store import Store
from asymtrain.version import VERSION
from invented_runs import invent

HEAVY = ("torch", "numpy", "pandas", "scipy", "matplotlib", "statsmodels", "PIL", "jinja2", "pyarrow", "safetensors")
GROUPS = {"paper": ("list", "run", "show"), "measure": ("alignment", "trajectory", "landscape", "attention")}
CALLS = [["--version"], ["--help"], [], *([name, "--help"] for name in COMMANDS)]
CALLS += [[group, name, "--help"] for group, names in GROUPS.items() for name in names]
CHECKED = """
import sys
from asymtrain.__main__ import main

for words in {calls}:
    try:
        main(words)
    except SystemExit as end:
        assert not end.code, words
    loaded = set({heavy}) & set(sys.modules)
    assert not loaded, (words, loaded)
    # What writes and reads tables is for export and import alone.
    assert words[1:2] in (["export"], ["import"]) or "asymtrain.lab.store.exchange" not in sys.modules, words
"""


def call_without_loading(heavy, calls, folder):
    program = CHECKED.format(calls=calls, heavy=heavy)
    found = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_help_and_version_load_nothing_heavy(tmp_path):
    shown = call_without_loading(HEAVY, CALLS, tmp_path)
    assert "tensorboard" in shown  # of `store --help`
    assert "--threshold" in shown  # of `measure attention --help`, which came last


# What reads a record answers at once: torch alone takes seconds to load. numpy is allowed.
SLOW = ("torch", "pandas", "scipy", "matplotlib", "statsmodels")


def test_what_reads_a_record_answers_without_torch(tmp_path):
    spec = RunSpec(objective="softmax", arch_options={"widths": [8, 8]}, epochs=1)
    with Store(tmp_path / "runs.sqlite") as store:
        store.add(invent(spec))
        store.request([dataclasses.replace(spec, seed=1)])
    begun = StackPlan((dataclasses.replace(spec, seed=1),), "batched")
    (open_checkpoint(checkpoints_of(tmp_path / "runs.sqlite"), begun) / STATE).touch()
    stored = "--store runs.sqlite"
    calls = f"status {stored},status {stored} --json,data list,paper list --device cpu {stored},paper blocks,"
    calls += "store export runs.sqlite exported,store import again.sqlite exported"
    shown = call_without_loading(SLOW, [call.split() for call in calls.split(",")], tmp_path)
    assert "continues from a checkpoint" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_line_of_a_command_is_the_first_of_its_own(name):
    command = load_command(name)
    first = " ".join(command.help.split("\n\n")[0].split())
    assert first == COMMANDS[name]


@pytest.mark.parametrize(
    ("library", "words"), [("typer", ["--help"]), ("torch", ["run"]), ("torch", ["paper", "run", "table1"])]
)
def test_ctrl_c_while_libraries_load_is_one_line(tmp_path, library, words):
    # A library that presses Ctrl-C while it is imported, and would then take its time.
    text = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(200)\n"
    (tmp_path / "early" / library).mkdir(parents=True)
    (tmp_path / "early" / library / "__init__.py").write_text(text)
    folders = [str(tmp_path / "early"), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = subprocess.run(
        [sys.executable, "-m", "asymtrain", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
    )
    # A line of its own is all that a user sees of torch.
    said = "Loading PyTorch ...\n" if library == "torch" else ""
    said += "Stopped while libraries were loading: nothing was begun.\n"
    assert (found.returncode, found.stdout, found.stderr) == (130, "", said)
    assert [path.name for path in tmp_path.iterdir()] == ["early"]


# What `pip install .` alone does not bring, hidden from a program that calls several commands.
HIDDEN = """
import sys
sys.modules.update(dict.fromkeys({hidden!r}))
from asymtrain.__main__ import main

for words in {calls!r}:
    try:
        main(words)
    except SystemExit as end:
        print(end.code or 0, flush=True)
"""
EXTRA = ["typer", "click", "rich", "numpy", "pandas", "scipy", "matplotlib", "statsmodels", "PIL", "jinja2"]
EXTRA += ["safetensors"]


def call_without(hidden, *calls):
    program = HIDDEN.format(hidden=tuple(hidden), calls=[list(words) for words in calls])
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


@pytest.mark.parametrize("hidden", [EXTRA, [*EXTRA, "torch"], ["rich"]], ids=["torch alone", "nothing", "no rich"])
def test_help_and_version_work_without_the_extra(hidden):
    for words in ([], ["--help"], ["-h"]):
        found = call_without(hidden, words)
        assert (found.returncode, found.stderr) == (0, "")
        assert found.stdout.endswith("0\n")
        assert PURPOSE in " ".join(found.stdout.split())
        for name, line in COMMANDS.items():
            assert f"{name} {line}" in " ".join(found.stdout.replace("│", " ").split())
    assert call_without(hidden, ["--version"]).stdout == f"asymtrain {VERSION}\n0\n"


@pytest.mark.parametrize(("hidden", "named"), [(EXTRA, "rich"), (("typer",), "typer"), (("torch",), "torch")])
def test_a_command_without_the_extra_names_it(tmp_path, monkeypatch, hidden, named):
    monkeypatch.chdir(tmp_path)
    calls = [["run"], ["search"], ["tune", "mlp"], ["paper", "run", "table1"], ["measure", "alignment"]]
    calls += [["report"]] if named != "torch" else []  # it reads what was trained
    found = call_without(hidden, *calls)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["2"] * len(calls)
    lines = found.stderr.splitlines()
    assert len(lines) == len(calls)
    for line in lines:
        assert re.fullmatch(rf'asymtrain: .* needs {named}: pip install -e "\.\[lab\]" in .*', line)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_installed_is_named():
    with pytest.raises(UsageError, match=r'needs panda_s: pip install -e "\.\[lab\]"'), loading():
        import panda_s  # noqa: F401
    # A file of our own that is missing is a bug, and keeps its traceback.
    with pytest.raises(ModuleNotFoundError), loading():
        import asymtrain.pandas  # noqa: F401
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_someone_else_stays():
    calls = []
    before = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    try:
        with loading():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls == [signal.SIGINT]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("paper show table1", {"table1", "table10", "table12"}),
        ("run --arch mlp,", {"mlp,cnn", "mlp,vit"}),
        ("run --data cifar", {"cifar10", "cifar100"}),
        ("measure al", {"alignment"}),
        ("search --scale ", {"quick", "paper"}),
        ("tune v", {"vit"}),
    ],
)
def test_a_shell_s_completion_offers_values(monkeypatch, capsys, words, offered):
    monkeypatch.setenv("_ASYMTRAIN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"asymtrain {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(f"asymtrain {words}".split(" ")) - 1))
    with pytest.raises(SystemExit) as end:
        main([])
    assert not end.value.code
    assert offered <= set(capsys.readouterr().out.split())
