"""The terminal: consoles without markup, tables that fit, and the progress of many runs.

Results go to stdout, progress and remarks to stderr. The commands and the functions of `lab.api` print with it.
"""

import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table as RichTable
from rich.text import Text

from asymtrain.lab.texts import printable

# The rest is imported where it is used: this file is read for --help too.
if TYPE_CHECKING:
    from asymtrain.lab.engine import Progress
    from asymtrain.lab.report.table import Column, Table
    from asymtrain.lab.runs import Run

# settings that distinguish controls
_KINDS = ("signal", "branch_weights", "branch_labels", "objective", "bias")
AGAIN = "Give the same command again to go on."
ANEW = "With --fresh every call begins anew: let it come to its end, without --minutes or with more of them."
WORDS = 16  # width that text columns get before a table is divided
LONGEST_WORD = 24  # longer words are paths or ids, and are broken


class Screen(Console):
    """A console that prints markup and control characters in names literally."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Called for every printed string, also in tables: makes it plain text."""
        return super().render_str(printable(text), **options)


def plain_text(text: str) -> Text:
    """Plain text for parts of rich that read every string as markup."""
    return Text(printable(text))


def stdout() -> Console:
    """The console for results. A pipe has no width, so it gets a wide one."""
    console = Screen()
    return console if console.is_terminal else Screen(width=120)


def stderr() -> Console:
    """The console for progress and remarks, so that stdout can be piped."""
    return Screen(stderr=True, soft_wrap=True)


def show_table(table: "Table", *, note: bool = True) -> None:
    """Print title, table and note; a table that is too wide is printed in parts that repeat the first columns."""
    console = stdout()
    if table.title:
        console.print(table.title)
    for part in _fitted(table, console.width) if table.rows else ():
        console.print(part)
    if table.note and note:
        console.print(table.note)


class _Shown(NamedTuple):
    """A column as text, with its minimum width."""

    heading: str
    cells: tuple[str, ...]
    is_number: bool
    width: int


def _fitted(table: "Table", room: int) -> Iterator[RichTable]:
    """The table unchanged if it fits, else with shorter cells and headings, and if necessary in parts."""
    columns = [
        _Shown(column.heading, cells, column.is_number, max(map(len, (column.heading, *cells))))
        for column, cells in zip(table.columns, zip(*table.texts(), strict=True), strict=True)
    ]
    if sum(column.width + 3 for column in columns) - 3 <= room:
        yield _rich_table(columns, padding=(0, 1))
        return
    texts = list(zip(*table.texts(compact=True), strict=True))
    # Text is wrapped to shorter lines if that makes fewer parts.
    ways = [
        _parts([_compact(column, cells, words) for column, cells in zip(table.columns, texts, strict=True)], room)
        for words in (WORDS, 0)
    ]
    fitting = [parts for parts in ways if all(_width(part) <= room for part in parts)]
    for part in min(fitting or ways[1:], key=len):
        yield _rich_table(part, padding=(0, 0, 0, 1))


def _rich_table(columns: Sequence[_Shown], padding: tuple[int, int] | tuple[int, int, int, int]) -> RichTable:
    table = RichTable(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=padding)
    for heading, _, is_number, width in columns:
        justify: Literal["left", "right"] = "right" if is_number else "left"
        table.add_column(heading, justify=justify, no_wrap=is_number, overflow="fold", min_width=width)
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*row)
    return table


def _compact(column: "Column", cells: tuple[str, ...], words: int) -> _Shown:
    """A column with its heading wrapped to the width of the cells, as far as its words allow.

    Numbers and intervals are never broken. Text is, if a line is longer than `words` and its longest word; so are
    paths, which have no spaces.
    """
    name = column.short or column.name
    longest = max(map(len, (*name.split(), *cells)))
    lines = [*(["Paper"] if column.papers else []), *textwrap.wrap(name, longest, break_long_words=False)]
    width = max(map(len, (*lines, *cells)))
    if not column.is_number:
        longest = max(len(word) for text in (*lines, *cells) for word in text.split() or [""])
        width = max(min(width, words), min(longest, LONGEST_WORD))
    return _Shown("\n".join(lines), cells, column.is_number, width)


def _width(columns: Sequence[_Shown]) -> int:
    return sum(column.width + 2 for column in columns) - 1  # two spaces between columns, one before the first


def _parts(columns: Sequence[_Shown], room: int) -> list[list[_Shown]]:
    """The columns of each part: the leading text columns, and as many others as fit."""
    first = max(1, next((i for i, column in enumerate(columns) if column.is_number), 1))
    parts: list[list[_Shown]] = [[]]
    for column in columns[first:]:
        if parts[-1] and _width((*columns[:first], *parts[-1], column)) > room:
            parts.append([])
        parts[-1].append(column)
    return [[*columns[:first], *part] for part in parts]


class Display:
    """Progress of many runs: a bar on a terminal, a line for each finished run elsewhere."""

    def __init__(self, console: Console, bar: Bar, opening: Sequence[str] = ()) -> None:
        self.console, self.bar, self.opening = console, bar, opening
        self.task = self._start()
        self.latest: Progress | None = None
        self.note = ""  # the last remark
        self.start, self.productive = time.monotonic(), False  # whether a run was trained or a measurement taken

    def _start(self) -> TaskID:
        return self.bar.add_task("starting", total=None, progress=None)

    def begin(self) -> None:
        """Print the first lines, once, after everything is validated."""
        lines, self.opening = self.opening, ()
        for line in lines:
            self.console.print(line)

    def stage(self, words: str) -> None:
        """Print the name of the stage that begins now, and start a new bar."""
        self.begin()
        self.console.print(words)
        self.bar.remove_task(self.task)
        self.task = self._start()

    def update(self, progress: "Progress") -> None:
        """Called by the engine, from any thread."""
        self.begin()
        self.latest = progress
        self.productive = self.productive or progress.runs_done > 0
        if progress.note:
            self.note = progress.note
            self.console.print(progress.note)
        done, total = progress.epochs_done, progress.epochs_total
        self.bar.update(self.task, completed=done, total=total, description="training", progress=progress)

    def finished(self, run: "Run", done: int, total: int) -> None:
        """Called for each run that the executor yields."""
        if self.console.is_terminal or self.console.quiet:
            return
        from asymtrain.lab.comparisons import chance_limit
        from asymtrain.lab.data import class_count
        from asymtrain.lab.report.table import duration
        from asymtrain.lab.runs import DEFAULTS

        spec, diverged = run.spec, run.outcome == "diverged"
        accuracy, stage = "diverged" if diverged else "trained", "search: " if spec.test == "never" else ""
        if run.test_accuracy is not None:
            classes = class_count(spec.dataset, dict(spec.dataset_options))
            learnt = classes is None or run.test_accuracy > chance_limit(classes, run.largest_class or 0.0)
            accuracy = f"test accuracy {run.test_accuracy:.3f}{'' if learnt or diverged else ' (at chance)'}"
        elif stage and not diverged and (best := run.best_validation):
            accuracy = f"best validation accuracy {best.validation_accuracy:.3f}"
        seconds_left = self.latest.seconds_left if self.latest else None
        rest = "" if seconds_left is None or done == total else f", {duration(seconds_left)} left"
        controls = [f"{getattr(spec, name)} " for name in _KINDS if getattr(spec, name) != DEFAULTS[name]]
        kind = f"{spec.arch} {spec.variant} {''.join(controls)}"
        self.console.print(f"{done}/{total} {stage}{kind}seed {spec.seed}: {accuracy}{rest}")

    def telling(self, words: "Callable[[Run], str]") -> "Callable[[Run, int, int], None]":
        """Like `finished`, but with a command's own words."""

        def tell(run: "Run", done: int, total: int) -> None:
            if not self.console.is_terminal:
                self.console.print(f"{done}/{total} {words(run)}")

        return tell

    def going_on(self, minutes: float | None, *, fresh: bool = False) -> str:
        """How to continue; if the time limit passed without a finished run, also the progress and the time needed."""
        latest = self.latest
        if fresh:
            return ANEW
        if minutes is None or self.productive or time.monotonic() - self.start < 60 * minutes:
            return AGAIN
        if latest is None or (latest.epochs_total and not latest.epochs_here):
            return "Starting took all of this time: give the same command with more --minutes."
        if not latest.epochs_here:  # nothing was left to train: another process trains it
            return AGAIN
        from asymtrain.lab.report.table import duration

        words = f"{latest.epochs_done} of {latest.epochs_total} epochs are trained and kept"
        rest = "" if latest.seconds_left is None else f", the others take about {duration(latest.seconds_left)}"
        return f"No run was finished in this time: {words}{rest}. {AGAIN}"


@contextmanager
def progress_display(opening: Sequence[str] = (), *, quiet: bool = False) -> Iterator[Display]:
    """Show the progress of a block, after the lines of `opening`; if `quiet`, show nothing."""
    console = stderr()
    console.quiet = quiet
    width = max(6, min(24, console.width - 68))  # the counts come first
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=width), _Counts())
    with Bar(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        display = Display(console, bar, opening)
        yield display
        display.begin()  # in case nothing was left to train


class _Counts(ProgressColumn):
    """Runs, epochs, images per second, time left."""

    def render(self, task: Task) -> Text:
        from asymtrain.lab.report.table import duration

        progress: Progress | None = task.fields.get("progress")
        if progress is None:
            return Text("")
        parts = [f"runs {progress.runs_done}/{progress.runs_total}"]
        parts.append(f"epochs {progress.epochs_done}/{progress.epochs_total}")
        if progress.images_per_second:
            parts.append(f"{progress.images_per_second:,.0f} images/s")
        if progress.seconds_left is not None:
            parts.append(f"{duration(progress.seconds_left)} left")
        return Text(" · ".join(parts))
