"""Do two objectives pull the shared parameters the same way? Cosines between their gradients.

Pure functions, and a log for a training loop. A cosine with a zero gradient is undefined: it is `None`, never 0 and
never NaN.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    """A public name when it is first asked for, and torch with it: the intervals of `_intervals` need none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from asymtrain.gradients import _alignment

    globals().update({public: getattr(_alignment, public) for public in __all__})
    return globals()[name]
