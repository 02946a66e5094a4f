"""A small scale, and the commands of instruments."""

import pytest
import typer
from typer.testing import CliRunner

from asymtrain.lab.cli.measure import command_of
from asymtrain.lab.scales import SCALES
from small_backbones import LEARNING

TINY_IMAGES = {"classes": 4, "size": 60, "test_size": 40, "image_size": 16}


@pytest.fixture
def small_scale(monkeypatch):
    """The quick scale in a hundredth of its size."""
    quick = SCALES["quick"]
    monkeypatch.setitem(quick.archs, "vit", {**quick.archs["vit"], "arch_options": LEARNING["vit"]})
    monkeypatch.setitem(quick.datasets, "shapes", {"dataset_options": TINY_IMAGES})


@pytest.fixture
def call_of(monkeypatch, tmp_path, figures_drawn_once):
    """A call of the command of an instrument, in an empty folder; its errors are raised."""
    monkeypatch.chdir(tmp_path)

    def of(instrument):
        app = typer.Typer()
        app.command()(command_of(instrument))

        def call(*arguments):
            found = CliRunner().invoke(app, list(map(str, arguments)))
            if found.exception is not None and not isinstance(found.exception, SystemExit):
                raise found.exception
            return found

        return call

    return of
