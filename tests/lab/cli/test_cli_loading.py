"""Commands are loaded when they are called, and Ctrl-C while they load is no error."""

import os
import signal
import subprocess
import sys

import pytest

from asymtrain.errors import UsageError
from asymtrain.lab.cli import COMMANDS
from asymtrain.lab.cli.loading import load_command, loading

HEAVY = ("torch", "numpy", "pandas", "scipy", "matplotlib", "statsmodels", "PIL", "jinja2", "pyarrow", "safetensors")
GROUPS = {"paper": ("list", "run", "show"), "measure": ("alignment", "trajectory", "landscape", "attention")}
CALLS = [["--version"], ["--help"], [], *([name, "--help"] for name in COMMANDS)]
CALLS += [[group, name, "--help"] for group, names in GROUPS.items() for name in names]
LIGHT = f"""
import sys
from asymtrain.__main__ import main

for words in {CALLS}:
    try:
        main(words)
    except SystemExit as end:
        assert not end.code, words
    loaded = set({HEAVY}) & set(sys.modules)
    assert not loaded, (words, loaded)
"""


def test_help_and_version_load_nothing_heavy():
    found = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "tensorboard" in found.stdout  # of `store --help`
    assert "--threshold" in found.stdout  # of `measure attention --help`, which came last


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_line_of_a_command_is_the_first_of_its_own(name):
    command = load_command(name)
    first = " ".join(command.help.split("\n\n")[0].split())
    assert first == COMMANDS[name]


@pytest.mark.parametrize(
    ("library", "words"), [("typer", ["--help"]), ("torch", ["run"]), ("torch", ["paper", "list"])]
)
def test_ctrl_c_while_libraries_load_is_silent(tmp_path, library, words):
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
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "")
    assert [path.name for path in tmp_path.iterdir()] == ["early"]


def test_what_is_not_installed_is_named():
    with pytest.raises(UsageError, match=r'needs panda_s: pip install "asymtrain\[lab\]"'), loading():
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
