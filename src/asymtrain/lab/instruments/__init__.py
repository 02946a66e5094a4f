"""Instruments: look at a run or at a training state, change nothing. Each is one folder, behind one protocol.

instrument.py   the protocol: options, measure, page; what a command lends to an instrument
curves.py       shared by several: values over training, runs that differ in their seed only

A folder's `__init__` has its options and its `INSTRUMENT`, `measure.py` the measurement, `show.py` tables and figures.
A name is loaded on first use: help does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

INSTRUMENTS = [
    "asymtrain.lab.instruments.alignment",  # the two gradients through training: Tables 2 and 15 of the paper
    "asymtrain.lab.instruments.trajectory",  # convergence, generalisation gap, when two ways of training part
    "asymtrain.lab.instruments.landscape",  # the loss surface around a state, or around any module
    "asymtrain.lab.instruments.attention",  # where a transformer looks
    "asymtrain.lab.instruments.features",  # what the units that branches see do in the first steps of a run
]
"""Modules with an `INSTRUMENT`, in the order of the help. One line makes a command, a page and rows in the store."""

if TYPE_CHECKING:
    from asymtrain.lab.instruments.attention.maps import attention_maps as attention_maps
    from asymtrain.lab.instruments.attention.measure import measure_model as measure_model
    from asymtrain.lab.instruments.attention.result import AttentionSettings as AttentionSettings
    from asymtrain.lab.instruments.features.measure import feature_statistics as feature_statistics
    from asymtrain.lab.instruments.landscape.measure import measure_module_landscape as measure_module_landscape
    from asymtrain.lab.instruments.landscape.result import LandscapeSettings as LandscapeSettings

_HOMES = {
    "AttentionSettings": "attention.result",
    "LandscapeSettings": "landscape.result",
    "attention_maps": "attention.maps",
    "feature_statistics": "features.measure",
    "measure_model": "attention.measure",
    "measure_module_landscape": "landscape.measure",
}
"""Functions for users, and the modules that hold them."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
