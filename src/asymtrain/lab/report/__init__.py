"""From values to what people read.

    table.py     Table: typed columns, cells of values     export.py    a table as Markdown, LaTeX, CSV
    figure.py    Figure: panels of lines, bars, images     drawing.py   a figure as SVG
    page.py      templates, files, the page of a measurement
    live.py      a figure that answers the pointer         charts/      the plotting library for it
    frames.py    runs as frames                            summary.py   what a set of runs says
    run_report.py                                          report.html, rows.csv, history.csv

Names are imported when they are used: a command that prints a table needs neither pandas nor matplotlib.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asymtrain.lab.report.figure import Figure
    from asymtrain.lab.report.frames import history_frame, rows_frame
    from asymtrain.lab.report.page import check_folder
    from asymtrain.lab.report.run_report import FILES, current_versions, render, write_report
    from asymtrain.lab.report.summary import Summary, comparison_table, summarise
    from asymtrain.lab.report.table import Table, duration

_NAMES = {
    "figure": ("Figure",),
    "frames": ("history_frame", "rows_frame"),
    "page": ("check_folder",),
    "run_report": ("FILES", "current_versions", "render", "write_report"),
    "summary": ("Summary", "comparison_table", "summarise"),
    "table": ("Table", "duration"),
}
__all__ = [
    "FILES", "Figure", "Summary", "Table", "check_folder", "comparison_table", "current_versions", "duration",
    "history_frame", "render", "rows_frame", "summarise", "write_report",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
