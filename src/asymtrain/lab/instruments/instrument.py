"""What an instrument is: options in, a result out, and the page of that result.

    Options ── the command line's, as a dataclass
       │
    measure(options, bench) ── the bench has the chosen runs, their states, the store and the progress line
       │
    page(options, result) ── tables, figures and numbers, all as values

`asymtrain measure NAME`, its page and the store's rows are made from these three alone. An instrument looks at a run or
at a training state, and changes nothing.

--help reads this file and the `__init__` of each instrument: what needs torch is imported inside functions.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from asymtrain.lab.report.figure import Page

if TYPE_CHECKING:
    from asymtrain.lab.engine.states import State
    from asymtrain.lab.runs import Run, RunSpec

RUN_OPTIONS = ("run", "data", "data_option", "arch", "scale", "seeds", "epochs", "redundancy", "alpha", "precision")
Say = Callable[..., None]  # say(text), and say(text, brief=True) for text that only a terminal shows
Options = TypeVar("Options")
Result = TypeVar("Result")


class Bench(ABC):
    """What a command gives an instrument: the chosen runs, and where to compute and store."""

    stored: bool  # were stored runs named, with all their settings?
    quick: bool  # are these fresh runs of the small scale?
    store: Path
    states_folder: Path
    device: str | None
    data_root: Path | None

    @abstractmethod
    def choose(
        self, archs: Sequence[str] = (), default_seeds: Sequence[int] = (), *, with_plain: bool = False, **fields: Any
    ) -> "list[RunSpec]":
        """The specs that the user chose: stored runs, or fresh Asymmetric ones, each after its Plain run if asked for.

        `archs` and `default_seeds` apply if the user chose none. `fields` are further fields of fresh specs; None
        leaves a default. Writes nothing, and refuses a folder that cannot be written.
        """

    @abstractmethod
    def runs(self, specs: "Sequence[RunSpec]") -> "list[Run]":
        """The runs of the specs in their order: from the store, or trained into it if they are missing."""

    @abstractmethod
    def telling(self, start: str) -> AbstractContextManager[Say]:
        """Show the progress on stderr until the block ends."""

    @abstractmethod
    def remark(self, text: str) -> None:
        """A line on stderr."""

    def states(
        self, specs: "Sequence[RunSpec]", epochs: Iterable[int], words: str = "training: epoch"
    ) -> "list[State]":
        """Weights after epochs, trained if no state is stored; `words` stand before the count of epochs."""
        from asymtrain.lab.engine.states import states_at

        where: dict[str, Any] = {"device": self.device, "data_root": self.data_root, "cache": self.states_folder}
        with self.telling("training") as say:
            return states_at(specs, epochs, **where, progress=counting(say, words))

    def keep(self, spec: "RunSpec", name: str, values: Mapping[int, Any], *, fresh: bool = False) -> None:
        """Store values, by epoch or step, with the stored run that they belong to.

        Values of a run that is not stored are dropped, unless `fresh`: the store then learns the spec.
        """
        from asymtrain.lab.store import Store

        if not (self.stored or fresh):
            return
        self.store.parent.mkdir(parents=True, exist_ok=True)
        with Store(self.store) as record:
            if fresh:
                record.know([spec])  # not as pending: the run need not be trained to its end
            if fresh or record.finished([spec.id]):
                record.add_measurement(spec.id, name, values, again=True)

    def stored_values(self, name: str, specs: "Sequence[RunSpec]") -> "dict[RunSpec, dict[int, Any]]":
        """The values that `keep` stored, for the specs that have some."""
        from asymtrain.lab.store import Store, store_exists

        if not store_exists(self.store):
            return {}
        by_id: dict[str, dict[int, Any]] = {}
        with Store(self.store, read_only=True) as record:
            for value in record.measurements(name, [spec.id for spec in specs]):
                by_id.setdefault(value.spec_id, {})[value.epoch] = value.value
        return {spec: by_id[spec.id] for spec in specs if spec.id in by_id}


class Interrupt(Exception):
    """Ctrl-C, with a line that says what is kept; `result` is what can still be shown."""

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class Instrument(ABC, Generic[Options, Result]):
    """One way to look at training. The docstring of an instrument is the help of its command."""

    name: ClassVar[str]  # of the command and of its files
    options: type[Options]  # a dataclass whose fields are options, see `lab.cli.groups`
    run_options: ClassVar[tuple[str, ...]] = RUN_OPTIONS  # the shared options it takes; "states", "track" are others
    for_any_model: ClassVar[str] = ""  # the function of `instruments` for other models, and what it takes

    @abstractmethod
    def measure(self, options: Options, bench: Bench) -> Result:
        """Measure the chosen runs. What cannot be measured is refused before anything is trained."""

    def check_backbones(self, specs: "Iterable[RunSpec]") -> None:
        """Refuse other models, and name the function that measures those."""
        from asymtrain.lab.engine.setup import check_backbone

        for spec in specs:
            check_backbone(spec, f": from Python, asymtrain.lab.instruments.{self.for_any_model}")

    @abstractmethod
    def page(self, options: Options, result: Result) -> Page:
        """Tables, figures and numbers of a result."""


def counting(say: Say, words: str) -> Callable[[int, int], None]:
    """A `progress(done, total)` that shows it after `words`; ten lines are enough for a log."""

    def tell(done: int, total: int) -> None:
        say(f"{words} {done} of {total}", brief=done * 10 // total == (done - 1) * 10 // total)

    return tell


def differing_fields(settings: Any, number: str = "") -> list[str]:
    """NAME=VALUE of each field of a dataclass that differs from its default, for a measurement's name in a store.

    `number` is the format of floats. Stored measurements keep their names: an instrument's format never changes.
    """
    texts = []
    for part in dataclasses.fields(settings):
        if (value := getattr(settings, part.name)) != part.default:
            text = "+".join(value) if isinstance(value, tuple) else format(value, number if part.type is float else "")
            texts.append(f"{part.name}={text}")
    return texts
