"""Do two objectives pull the shared parameters the same way? Cosines between their gradients.

Pure functions, and a log for a training loop. A cosine with a zero gradient is undefined: it is `None`, never 0 and
never NaN.
"""

from asymtrain.alignment.gradients import (
    Alignment,
    LayerAlignment,
    alignment,
    cosine,
    measured_backward,
)
from asymtrain.alignment.log import AlignmentLog, AlignmentSummary

__all__ = [
    "Alignment",
    "AlignmentLog",
    "AlignmentSummary",
    "LayerAlignment",
    "alignment",
    "cosine",
    "measured_backward",
]
