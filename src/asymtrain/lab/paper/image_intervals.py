"""An improvement's interval over test images, beside the one over seeds: all seeds share one test set."""

from functools import lru_cache

from asymtrain.errors import UsageError
from asymtrain.lab.paper.comparisons import Comparison, pairs_of
from asymtrain.lab.paper.result import MISSING, Cell, missing_cell
from asymtrain.lab.paper.snapshot import Snapshot, count_test_images
from asymtrain.lab.statistics import bootstrap_images, unpack_answers

COLUMN = "Interval over images"
NOTE = (
    f"{COLUMN}: 95% bootstrap interval of the same improvement, test images drawn anew and seeds as they are, not "
    "corrected."
)


def image_interval_cell(known: Snapshot, one: Comparison) -> Cell:
    """The interval of a comparison's finished pairs.

    A dash where a run did not record which images it got right (it diverged, or is of an older version), and for the
    best validation epoch: answers are those after the last.
    """
    pairs = pairs_of(known, one)
    if not pairs:
        return missing_cell()
    ids = tuple(run.spec.id for pair in pairs for run in pair)
    plain, asymmetric = (tuple(run.answers for run in side if run.answers) for side in zip(*pairs, strict=True))
    ends = None
    if one.reading.accuracy == "last" and len(plain) == len(asymmetric) == len(pairs):
        ends = _interval(plain, asymmetric, count_test_images(one.plain[0]))
    return Cell(MISSING if ends is None else f"{ends[0]:+.1f}% to {ends[1]:+.1f}%", None, ids)


@lru_cache(maxsize=1024)  # cells share runs, and thousands of draws of ten thousand images take a second
def _interval(plain: tuple[bytes, ...], asymmetric: tuple[bytes, ...], images: int) -> tuple[float, float] | None:
    before, after = (unpack_answers(side, images) for side in (plain, asymmetric))
    try:
        return bootstrap_images(before, after, over_seeds=False)
    except UsageError:  # Plain is right in next to no image: a draw may have none of them
        return None
