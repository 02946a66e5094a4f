"""Studies: each a protocol as data, an analysis and its words; one frame trains, lists and shows all of them.

    study       `Study`: the interface of a study to the frame and the commands; `Block`
    frame       what a block still needs, how long it takes, the rounds that train it
    timing      estimates of time, by a rule of thumb or by like runs of the store
    snapshot    what a store holds, read once
    paper/ practice/ default/

A study is a package whose `__init__` has its `STUDY`, and a line in `STUDIES`: that makes a command with `list`, `run`,
`next` and `show`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asymtrain.lab.studies.study import StudyOfBlocks

STUDIES: dict[str, str] = {
    "paper": "asymtrain.lab.studies.paper",
    "practice": "asymtrain.lab.studies.practice",
    "default": "asymtrain.lab.studies.default",
}
"""Modules with a `STUDY`, by the name of their command."""


def load_study(name: str) -> "StudyOfBlocks":
    """Load nothing heavy: help does not wait for torch or numpy."""
    study: StudyOfBlocks = import_module(STUDIES[name]).STUDY
    return study
