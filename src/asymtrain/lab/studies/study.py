"""The interface of a study to the frame and the commands. This file is read for --help: it imports nothing heavy.

class Drops(Study):
    \"""Do branches replace dropout?\"""

    name = "drops"
    blocks = {"mlp": Block("mlp", "the MLP", (DROPS["mlp"],))}

    def scope(self, *, quick): return QUICK if quick else FULL
    def page(self, scope, snapshot, files=()): return Page(...)

STUDY = Drops()
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from asymtrain.lab.report.figure import Page

if TYPE_CHECKING:
    from asymtrain.lab.runs import RunSpec
    from asymtrain.lab.studies.snapshot import Snapshot


@dataclass(frozen=True)
class Needs:
    """The runs and measurements that can be named from the stored runs."""

    specs: "tuple[RunSpec, ...]" = ()
    measurements: tuple[Any, ...] = ()  # each with its `spec`, its `name` in the store and its `title`
    # How many runs (at most) wait for others before they can be named. Each group has a backbone and a name, so
    # that what several parts wait for is counted once.
    later: Mapping[tuple[str, str], int] = field(default_factory=dict)
    # More such runs, as specs that take as long.
    stand_ins: "tuple[RunSpec, ...]" = ()
    waits_for: tuple[Any, ...] = ()  # parts of other blocks that must be finished first


@dataclass(frozen=True)
class Block:
    """Parts that are trained together and stored separately. Stored runs count, whichever command trained them.

    A part has a `title` and a function `needs(scope, snapshot)`, unless its study's `needs` handles it. Equal parts
    count as one.
    """

    name: str
    title: str
    parts: tuple[Any, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)  # fields of the scope that this block replaces

    def scope(self, scope: Any) -> Any:
        return dataclasses.replace(scope, **self.changes) if self.changes else scope


class StudyOfBlocks(ABC):
    """A study whose commands are in the file of its name in lab/cli. Its docstring is their help."""

    name: ClassVar[str]  # of its command, its page and its folder
    blocks_are: ClassVar[str] = "block"  # in the error about an unknown one
    in_results: ClassVar[str] = ""  # folders of results/ that hold its rows
    file_option: ClassVar[tuple[str, str] | None] = None  # of `show`: files that its page also reads, and their help
    measures: ClassVar[bool] = False  # does it measure states, in addition to training?
    run_block: ClassVar[str] = "run"  # the words of the command that does a block

    @property
    @abstractmethod
    def blocks(self) -> Mapping[str, Block]:
        """The blocks in the order in which they are done."""

    @abstractmethod
    def scope(self, *, quick: bool = False) -> Any:
        """The study's size; `quick` is tiny, to try the commands."""

    def needs(self, part: Any, scope: Any, snapshot: "Snapshot") -> Needs:
        """What a part of a block needs, given the study's size and what the store holds."""
        needs: Needs = part.needs(scope, snapshot)
        return needs

    def chooses_by(self, spec: "RunSpec") -> bool:
        """Can the epochs of this run change what blocks need? A list of blocks reads only the epochs of such runs."""
        return True

    def row(self, block: Block) -> dict[str, Any]:
        """Further JSON fields of a block for the list of blocks."""
        return {}

    def is_small(self, scope: Any) -> bool:
        """Are its networks those of the scale `quick`, which train at different speeds?"""
        return False

    def is_rated(self, scope: Any, snapshot: "Snapshot", device: str) -> bool:
        """Is this device's training speed known in the scope's precision?"""
        return True

    def measure(
        self, measurements: Sequence[Any], store: Path, device: str | None, data_root: Path | None
    ) -> Iterator[Any]:
        """Take measurements, store each as it comes, and yield what was stored."""
        return iter(())

    def measurement_seconds(
        self, measurements: Sequence[Any], snapshot: "Snapshot", device: str, workers: int, *, small: bool
    ) -> float:
        return 0.0


class Study(StudyOfBlocks):
    """A study with the usual commands: `list`, `run`, `next`, and `show`, which writes its page."""

    @abstractmethod
    def page(self, scope: Any, snapshot: "Snapshot", files: Sequence[Path] = ()) -> Page:
        """What the stored runs say: tables with `detail` are not printed."""
