"""From values to what people read.

table.py    Table: typed columns, cells that are numbers     figure.py   Figure: panels of lines, bars, surfaces, images
export.py   a table as Markdown, LaTeX, CSV                  drawing.py  a figure as SVG
page.py     templates, files, the page of a measurement
frames.py   runs as frames      summary.py   what runs say      run_report.py   report.html, rows.csv, history.csv
"""

from asymtrain.lab.report.frames import history_frame, rows_frame
from asymtrain.lab.report.page import check_folder
from asymtrain.lab.report.run_report import FILES, current_versions, render, write_report
from asymtrain.lab.report.summary import Summary, comparison_table, duration, summarise

__all__ = [
    "FILES",
    "Summary",
    "check_folder",
    "comparison_table",
    "current_versions",
    "duration",
    "history_frame",
    "render",
    "rows_frame",
    "summarise",
    "write_report",
]
