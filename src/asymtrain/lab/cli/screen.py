"""What commands print: pages, summaries and lists, as tables or as JSON."""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from asymtrain.errors import UsageWarning
from asymtrain.lab.cli import FAILED, INTERRUPTED
from asymtrain.lab.terminal import show_table, stderr, stdout
from asymtrain.lab.texts import printable

# Other imports are inside functions: --help reads this file too.
if TYPE_CHECKING:
    from pathlib import Path

    from asymtrain.lab.report.summary import Summary
    from asymtrain.lab.report.table import Table


@contextmanager
def shown_warnings() -> Iterator[None]:
    """Show a `UsageWarning` as a one-line remark; Python shows other warnings as usual."""
    with warnings.catch_warnings():
        python = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *source: Any, **more: Any) -> None:
            if issubclass(category, UsageWarning):
                stderr().print(f"asymtrain: {' '.join(str(message).split())}")
            else:
                python(message, category, *source, **more)

        warnings.showwarning = show
        warnings.simplefilter("always", UsageWarning)
        yield


def show_page(
    files: "Mapping[str, Path]",
    document: Mapping[str, Any],
    tables: "Iterable[Table]",
    sentences: Iterable[str] = (),
    *,
    notes: bool = False,
    code: str = "",
    json: bool,
) -> None:
    """Print a page as tables (with notes if asked for), sentences and code, or as JSON; and where it is."""
    if json:
        show_json({**document, "files": {kind: str(path) for kind, path in files.items()}})
    else:
        for table in tables:
            show_table(table, note=notes)
            stdout().print()
        for sentence in sentences:
            stdout().print(sentence)
        if code:
            stdout().print()
            stdout().print(code, soft_wrap=True, end="")
    stderr().print(f"Page: {files['page']}")


def show_rest(rest: str, interrupted: object, how_to_continue: str) -> None:
    """Say what is left after a call that ended before everything was done."""
    stderr().print(f"{'Stopped' if interrupted else 'Not finished'}: {rest}. {how_to_continue}")


def end(interrupted: object, failed: object) -> None:
    """Exit with the status of a command that trains; return if everything is done."""
    if interrupted or failed:
        raise typer.Exit(INTERRUPTED if interrupted else FAILED)


def show_json(value: Any) -> None:
    print(printable(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)))


def show_summary(summary: "Summary") -> None:
    from asymtrain.lab.report.summary import comparison_table

    console = stdout()
    if not summary.comparisons:
        console.print("No pair of Plain and Asymmetric is finished yet.")
        return
    show_table(comparison_table(summary))
    console.print()
    for row in summary.comparisons:
        console.print(row["sentence"])


def show_blocks(rows: Sequence[Mapping[str, Any]], *, json: bool, for_gpu: bool = False) -> None:
    """The blocks of a study in their order: how far each is, the time taken if it is known, and the time left.

    `for_gpu`: are they meant for a GPU, while the time is for a CPU?
    """
    from asymtrain.lab.report.table import Column, Table, duration, make_rows

    if json:
        show_json(rows)
        return
    parts = {"Runs": "runs"} | ({"Measurements": "measurements"} if "measurements_needed" in rows[0] else {})
    timed = {"Time taken": "seconds_taken"} if "seconds_taken" in rows[0] else {}
    timed["Time left"] = "seconds_left"
    columns = (Column("Block"), Column("Holds"), *(Column(name, "number") for name in (*parts, *timed)))
    cells = (
        (
            row["name"],
            row["title"],
            *(f"{row[f'{what}_there']}/{row[f'{what}_needed']}" for what in parts.values()),
            *(None if row[what] is None else duration(row[what]) for what in timed.values()),
        )
        for row in rows
    )
    note = (
        "Runs that cannot be named before a selection are counted at most. Where no rate is known, no time is given. "
        "Times are of training alone: on a new machine a GPU compiles each model first, for up to two minutes."
    )
    if for_gpu:
        note += " These blocks are meant for a GPU, and times are those of this CPU: add --device cuda for a GPU's."
    show_table(Table("blocks", "", columns, make_rows(cells), note))
