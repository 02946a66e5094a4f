"""The command line as a user calls it, in this process."""

from dataclasses import dataclass

import pytest

from asymtrain.__main__ import main
from asymtrain.lab.scales import SCALES


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys, monkeypatch, workplace, one_core, figures_drawn_once):
    """Call `asymtrain` in an empty folder."""
    # What a terminal, or a service that runs tests, says of its width and colours must not change what is compared.
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    # What is said of a run does not depend on how many images it has.
    few = {"dataset_options": {"classes": 9, "size": 300, "test_size": 100}}
    monkeypatch.setitem(SCALES["quick"].datasets, "shapes", few)

    def call(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(stopped.value.code or 0, captured.out, captured.err)

    return call


@pytest.fixture
def photos(tmp_path):
    """`--data` for runs whose accuracy nobody reads: three classes of ten images, an epoch of one step."""
    image = pytest.importorskip("PIL.Image")
    for name, colour in (("red", (200, 30, 30)), ("green", (30, 200, 30)), ("blue", (30, 30, 200))):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(10):
            image.new("RGB", (32, 32), tuple(c + i for c in colour)).save(tmp_path / "photos" / name / f"{i}.png")
    return "folder:photos"


@pytest.fixture
def refused(cli, tmp_path):
    """Call `asymtrain` with bad input: one line on stderr, exit 2, and nothing left behind."""

    def call(*arguments):
        before = sorted(tmp_path.rglob("*"))
        result = cli(*arguments)
        assert result.code == 2, result
        assert result.out == ""
        assert result.err.startswith("asymtrain: ")
        assert result.err.count("\n") == 1, result.err
        assert sorted(tmp_path.rglob("*")) == before
        return result.err

    return call
