"""From runs to what people read: frames, figures, one HTML page."""

from asymtrain.lab.report.page import check_folder
from asymtrain.lab.report.run_report import FILES, current_versions, render, write_report
from asymtrain.lab.report.summary import HEADINGS, Summary, cells, duration, summarise
from asymtrain.lab.report.tables import history_frame, rows_frame

__all__ = [
    "FILES",
    "HEADINGS",
    "Summary",
    "cells",
    "check_folder",
    "current_versions",
    "duration",
    "history_frame",
    "render",
    "rows_frame",
    "summarise",
    "write_report",
]
