"""What the terminal shows: results on stdout, progress and remarks on stderr."""

import json
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

# The rest is imported where it is used: this file is read for --help too.
if TYPE_CHECKING:
    from asymtrain.lab.engine import Progress
    from asymtrain.lab.report import Summary
    from asymtrain.lab.runs import Run

# What tells controls apart.
_KINDS = ("signal", "aggregator", "branch_weights", "branch_labels", "objective", "branch_bias")
AGAIN = "Give the same command again to go on."
ANEW = "With --fresh every call begins anew: let it come to its end, without --minutes or with more of them."
WIDE = 104  # columns that the widest table takes with room around its cells


def stdout() -> Console:
    """For results. A pipe has no width, so tables get the room that they need."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=120)


def stderr() -> Console:
    """For progress and remarks, so that stdout can be piped."""
    return Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def show_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def show_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, wrapped: Collection[int] = (0,)
) -> None:
    """A table that fits 80 columns; the first `left` columns are aligned left, only those in `wrapped` are broken."""
    console = stdout()
    narrow = console.width < WIDE
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 0) if narrow else (0, 1))
    for i, heading in enumerate(headings):
        text = heading.replace(" ", "\n") if narrow else heading
        table.add_column(text, justify="left" if i < left else "right", no_wrap=i not in wrapped)
    for row in rows:
        # Without the spaces around its sign a deviation takes two columns less.
        table.add_row(*(cell.replace(" ± ", "±") if narrow else cell for cell in row))
    console.print(table)


def show_summary(summary: "Summary") -> None:
    """The table of comparisons, and a sentence for each."""
    from asymtrain.lab.report import HEADINGS, cells

    console = stdout()
    if not summary.comparisons:
        console.print("No pair of Plain and Asymmetric is finished yet.")
        return
    rows = [list(cells(row).values()) for row in summary.comparisons]
    show_table(list(HEADINGS.values()), rows, wrapped=(0, list(HEADINGS).index("interval")))
    console.print()
    for row in summary.comparisons:
        console.print(row["sentence"])


class Display:
    """Progress of many runs: a bar on a terminal, a line for each finished run elsewhere."""

    def __init__(self, console: Console, bar: Bar) -> None:
        self.console, self.bar = console, bar
        self.task = bar.add_task("starting", total=None, progress=None)
        self.latest: Progress | None = None
        self.start, self.productive = time.monotonic(), False  # has a run been trained, or a measurement taken?

    def update(self, progress: "Progress") -> None:
        """Called by the engine, from any thread."""
        self.latest = progress
        self.productive = self.productive or progress.runs_done > 0
        if progress.note:
            self.console.print(progress.note)
        done, total = progress.epochs_done, progress.epochs_total
        self.bar.update(self.task, completed=done, total=total, description="training", progress=progress)

    def finished(self, run: "Run", done: int, total: int) -> None:
        """Called for each run that the executor yields."""
        if self.console.is_terminal:
            return
        from asymtrain.lab.report import duration
        from asymtrain.lab.runs import DEFAULTS

        accuracy = "diverged" if run.outcome == "diverged" else "trained"
        if run.test_accuracy is not None:
            accuracy = f"test accuracy {run.test_accuracy:.3f}"
        left = self.latest.seconds_left if self.latest else None
        rest = "" if left is None or done == total else f", {duration(left)} left"
        spec = run.spec
        kind = " ".join(
            [spec.variant, *(str(getattr(spec, name)) for name in _KINDS if getattr(spec, name) != DEFAULTS[name])]
        )
        self.console.print(f"{done}/{total} {spec.arch} {kind} seed {spec.seed}: {accuracy}{rest}")

    def going_on(self, minutes: float | None, *, fresh: bool = False) -> str:
        """How to go on; after a time limit in which nothing was finished, also how far it came and what it needs."""
        latest = self.latest
        if fresh:
            return ANEW
        if minutes is None or self.productive or time.monotonic() - self.start < 60 * minutes:
            return AGAIN
        if latest is None or (latest.epochs_total and latest.seconds_left is None):
            return "Starting took all of this time: give the same command with more --minutes."
        if latest.seconds_left is None:  # there was nothing to train: another process does it
            return AGAIN
        from asymtrain.lab.report import duration

        kept = f"{latest.epochs_done} of {latest.epochs_total} epochs are trained and kept"
        left = f"the others take about {duration(latest.seconds_left)}"
        return f"No run was finished in this time: {kept}, {left}. {AGAIN}"


@contextmanager
def progress_display() -> Iterator[Display]:
    """Show progress on stderr until the block ends."""
    console = stderr()
    width = max(6, min(24, console.width - 68))  # the counts come first
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=width), _Counts())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield Display(console, bar)


class _Counts(ProgressColumn):
    """Runs, epochs, images per second, time left."""

    def render(self, task: Task) -> Text:
        """See `rich.progress.ProgressColumn`."""
        from asymtrain.lab.report import duration

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
