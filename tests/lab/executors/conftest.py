"""Executions in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asymtrain.lab.executors import execute, local
from asymtrain.lab.executors.outcomes import Job
from asymtrain.lab.runs import Run, RunSpec


class Notes(list[str]):
    """What `execute` told the user."""

    def __call__(self, progress: Any) -> None:
        if progress.note:
            self.append(progress.note)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite"


@pytest.fixture
def train_here(monkeypatch: pytest.MonkeyPatch, store: Path, notes: Notes) -> Callable[..., list[Run]]:
    """`execute` on one core: in this process, so that its parts can be replaced."""
    monkeypatch.setattr(local, "cores", lambda: 1)

    def train(specs: list[RunSpec], **options: Any) -> list[Run]:
        return list(execute(specs, **{"store": store, "device": "cpu", "progress": notes, **options}))

    return train


@pytest.fixture
def train_a_little(train_here: Callable[..., list[Run]], monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Run]]:
    """The same with a time limit that ends after two epochs, however fast this machine is."""

    def train(specs: list[RunSpec], **options: Any) -> list[Run]:
        ended: list[bool] = []

        def watch(progress: Any) -> None:
            if progress.epochs_done >= 2 * len(specs):
                ended.append(True)

        with monkeypatch.context() as patch:
            patch.setattr(Job, "is_over", lambda self: bool(ended))
            return train_here(specs, progress=watch, **options)

    return train
