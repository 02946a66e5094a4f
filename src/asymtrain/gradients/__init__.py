"""Cosines between the gradients of two objectives: do they pull the shared parameters the same way?

Pure functions, and a log for a training loop. A cosine with a zero gradient is undefined: it is `None`, never 0 or
never NaN.
"""

from asymtrain.gradients._alignment import (
    Alignment,
    AlignmentLog,
    AlignmentSummary,
    LayerAlignment,
    alignment,
    backward_with_alignment,
    cosine,
)

__all__ = [
    "Alignment",
    "AlignmentLog",
    "AlignmentSummary",
    "LayerAlignment",
    "alignment",
    "backward_with_alignment",
    "cosine",
]
