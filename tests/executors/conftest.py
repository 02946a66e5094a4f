"""Executions in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asymtrain.executors import execute, local
from asymtrain.runs import Run, RunSpec


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
