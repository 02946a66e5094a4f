"""Models by what users type: `timm:NAME`, `hf:CONFIG` or `package.module:function`; built, checked, fingerprinted.

    names.py          which names there are: the table of prefixes, and `check_name`, which needs no torch
    builders.py       what a name stands for: a builder for any number of classes
    building.py       models with the initial values of a seed or of a file, called once to check them
    fingerprints.py   what a model is, in a few digits

No model and no weights are ever downloaded.
"""

from asymtrain.lab.sources.builders import Inputs
from asymtrain.lab.sources.building import UNNAMED, build_model, kept_function
from asymtrain.lab.sources.fingerprints import difference, fingerprint
from asymtrain.lab.sources.names import LIBRARIES, check_name, describe_model, is_named

__all__ = [
    "LIBRARIES",
    "UNNAMED",
    "Inputs",
    "build_model",
    "check_name",
    "describe_model",
    "difference",
    "fingerprint",
    "is_named",
    "kept_function",
]
