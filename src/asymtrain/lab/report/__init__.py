"""From values to what people read.

    table.py     Table: typed columns, cells of values     export.py    a table as Markdown, LaTeX, CSV
    figure.py    Figure: panels of lines, bars, images     drawing.py   a figure as SVG
    page.py      templates, files, the page of a measurement
    live.py      a figure that answers the pointer         charts/      the plotting library for it
    frames.py    runs as frames                            summary.py   what a set of runs says
    run_report.py                                          report.html, rows.csv, history.csv

Names are imported from their modules: a command that prints a table needs neither pandas nor matplotlib. Names for
users are exported here too.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asymtrain.lab.report.frames import history_frame as history_frame
    from asymtrain.lab.report.frames import rows_frame as rows_frame
    from asymtrain.lab.report.run_report import write_report as write_report

_HOMES = {"history_frame": "frames", "rows_frame": "frames", "write_report": "run_report"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
