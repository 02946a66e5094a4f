"""Alignments gathered through a training run, and what they say together."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from asymtrain.gradients._alignment import Alignment, LayerAlignment
from asymtrain.gradients._intervals import COSINES, batch_means, deviation, mean


@dataclass(frozen=True)
class CosineSummary:
    """The cosines of one training run. They are over the steps where one is defined; `None` where there is no such.

    The interval is that of the mean over batches, by batch means: the steps are cut into `blocks` runs of equal length,
    and the t interval is that of the blocks' means. Steps close in time resemble each other, so an interval over single
    steps would be too narrow. A drift through training widens this one.
    """

    undefined: int  # steps without a cosine
    final: float | None
    mean: float | None
    min: float | None
    max: float | None
    conflict: float | None  # share of steps with a negative cosine
    low: float | None  # the interval, cut at -1 and 1; none where there are too few steps for it
    high: float | None
    blocks: int
    autocorrelation: float | None  # between neighbouring blocks; well above 0, the interval is still too narrow
    main_norm: float | None  # mean over the steps whose norm is finite
    auxiliary_norm: float | None


@dataclass(frozen=True)
class AlignmentSummary(CosineSummary):
    """What a log of alignments says. It has an interval from 10 steps on."""

    steps: int  # alignments that were added
    std: float | None  # over steps; divides by their number less one
    by_layer: Mapping[str, float | None]  # mean cosine of each layer


class AlignmentLog:
    """Alignments of a training run: `log.add(alignment(main, auxiliary, model))`, then `log.summary()`."""

    def __init__(self) -> None:
        self.seen: list[Alignment] = []

    def add(self, measured: Alignment) -> None:
        """Keep an alignment; the order is that of training."""
        self.seen.append(measured)

    def summary(self, confidence: float = 0.95) -> AlignmentSummary:
        """What was seen so far."""
        cosines = _defined(self.seen)
        low, high, blocks, autocorrelation = batch_means(cosines, confidence, within=COSINES)
        layers = dict.fromkeys(name for step in self.seen for name in step.by_layer)
        return AlignmentSummary(
            steps=len(self.seen),
            undefined=len(self.seen) - len(cosines),
            final=self.seen[-1].cosine if self.seen else None,
            mean=mean(cosines),
            std=deviation(cosines),
            min=min(cosines, default=None),
            max=max(cosines, default=None),
            conflict=mean([float(value < 0) for value in cosines]),
            low=low,
            high=high,
            blocks=blocks,
            autocorrelation=autocorrelation,
            main_norm=mean([step.main_norm for step in self.seen if math.isfinite(step.main_norm)]),
            auxiliary_norm=mean([step.auxiliary_norm for step in self.seen if math.isfinite(step.auxiliary_norm)]),
            by_layer={
                name: mean(_defined(step.by_layer[name] for step in self.seen if name in step.by_layer))
                for name in layers
            },
        )


def _defined(alignments: Iterable[LayerAlignment]) -> list[float]:
    return [step.cosine for step in alignments if step.cosine is not None]
