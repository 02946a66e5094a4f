"""Models by the names that users type: `timm:NAME`, `hf:CONFIG` or `package.module:function`.

    builders.py       the kinds of names, and a builder for each; needs no torch
    building.py       models with the initial values of a seed or of a file, called once to check them
    fingerprints.py   a model's identity in a few digits

No model and no weights are ever downloaded.
"""

from asymtrain.lab.sources.builders import LIBRARIES, Inputs, check_name, describe_model, is_named
from asymtrain.lab.sources.building import UNNAMED, build_model, kept_function
from asymtrain.lab.sources.fingerprints import difference, fingerprint

__all__ = [
    "LIBRARIES", "UNNAMED", "Inputs", "build_model", "check_name", "describe_model", "difference", "fingerprint",
    "is_named", "kept_function",
]  # fmt: skip
