"""README fits a screen or two, and every command of it runs after its own installation: the lab, and no other extra.

What takes minutes is shortened by options after it; SHORTER says by which.
"""

import re
import shlex
import sys
from pathlib import Path

import pytest

from asymtrain.__main__ import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
ELSEWHERE = {
    "make demo": "tests/test_examples.py runs its command in full",
    "make test": "is running",
    "pip install .": "tests/test_wheel.py builds and installs it",
    'pip install -e ".[lab]" -c constraints.txt': "made the environment that this runs in",
}
SHORTER = {"asymtrain tune vit": "--minutes 0.1 --epochs 1 --candidate alpha=0.1"}


def commands():
    """Those of the shell's blocks, and those in the text."""
    blocks = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    found = [line.partition("#")[0].strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    text = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
    return found + [" ".join(command.split()) for command in re.findall(r"`((?:asymtrain|make) [^`]*)`", text)]


def shorter(command):
    """The options that shorten a command; the longest beginning that is listed counts."""
    return SHORTER[max((known for known in SHORTER if command.startswith(known)), key=len)]


def test_it_is_short():
    assert len(README.splitlines()) <= 110


def test_every_command_is_run_or_says_where():
    found = commands()
    assert len(found) >= 5
    assert not [command for command in found if "timm:" in command or "hf:" in command]
    for command in {*found} - {*ELSEWHERE}:
        assert any(command.startswith(known) for known in SHORTER), command
    for known in [*SHORTER, *ELSEWHERE]:
        assert any(command.startswith(known) for command in found), known


@pytest.mark.slow
def test_commands_run_with_the_lab_alone(workplace, monkeypatch, capsys):
    image = pytest.importorskip("PIL.Image")
    for name in ("timm", "transformers", "torchvision", "ray", "lightning", "torchjd", "tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.syspath_prepend(str(ROOT))  # README's commands are typed in the clone
    (workplace / "results").symlink_to(ROOT / "results")
    for label, colour in (("red", 200), ("green", 120), ("blue", 40)):
        (workplace / "photos" / label).mkdir(parents=True)
        for i in range(50):
            image.new("RGB", (32, 32), (colour, i, i)).save(workplace / "photos" / label / f"{i}.png")
    for command in dict.fromkeys(commands()):
        if command in ELSEWHERE:
            continue
        words = shlex.split(f"{command} {shorter(command)}")[1:]
        typed = [str(path) for word in words for path in (sorted(Path().glob(word)) if "*" in word else [word])]
        with pytest.raises(SystemExit) as end:
            main(typed)
        assert not end.value.code, f"{command}: {capsys.readouterr().err}"
