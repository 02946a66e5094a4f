"""The command line, `asymtrain COMMAND`; `COMMANDS` names them.

    app.py        the program, which loads the command that is called (loading.py)
    options.py    the options that commands share, each declared once; groups.py shows them to Typer
    screen.py     what the terminal shows

and one file for each command. This file needs nothing: `asymtrain --help` works without the lab's extra.
"""

from asymtrain.errors import how_to_install
from asymtrain.lab.studies import STUDIES, load_study

# Each command's line in `asymtrain --help`; a test checks that the command's own help begins with it.
COMMANDS = {
    "run": "Compare training without branches (Plain) and with them (Asymmetric).",
    "tune": "Say whether branches help a model, in the minutes given: pairs with and without, then a race of others.",
    "measure": "Look at training with an instrument, such as gradient alignment, the loss landscape or attention.",
    "search": "Search learning rate, weight decay and alpha by validation accuracy, never by test accuracy.",
    **{name: load_study(name).__doc__ or "" for name in STUDIES},
    "report": "Write the rows and the page of everything that a store holds.",
    "status": "Show what a store holds, what is pending, what diverged or failed and why.",
    "watch": "Show a store on a live page: progress, curves and comparisons as they come, on this machine alone.",
    "data": "List, fetch and check datasets.",
    "store": "Export, import, check and convert a record of runs.",
}
PURPOSE = "Temporary auxiliary objectives for PyTorch models: train with and without them, and see whether they helped."
DONE, FAILED, REFUSED, INTERRUPTED, UNREAD = 0, 1, 2, 130, 141
EXITS = {
    DONE: "done; or a time limit is over, and the same command goes on",
    FAILED: "done, but runs failed or a check found damage: the output says which and why",
    REFUSED: "refused, with one line that says what to change; nothing is lost",
    INTERRUPTED: "ended by Ctrl-C; what was finished is kept",
    UNREAD: "the program that the output was piped into ended first",
}
"""The exit status of every command; the last two are what shells report for a program that such a signal ended."""
STOPPED = "Stopped while libraries were loading: nothing was begun."
EXTRA = how_to_install("lab")
