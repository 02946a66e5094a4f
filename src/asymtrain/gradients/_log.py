"""Alignments gathered through a training run, and what they say together."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from asymtrain.gradients._alignment import Alignment, LayerAlignment
from asymtrain.gradients._intervals import COSINES, batch_means, deviation, mean


@dataclass(frozen=True)
class AlignmentSummary:
    """What a log of alignments says. Cosines are over the steps where one is defined; `None` where there is no such.

    Attributes:
        steps: alignments that were added.
        undefined: how many of them have no cosine.
        final: cosine of the last one added.
        mean, std, min, max: over steps; std divides by their number less one.
        conflict: share of steps with a negative cosine.
        low, high: interval of the mean over batches, by batch means: the steps are cut into `blocks` runs of equal
            length, and the t interval is that of the blocks' means. Steps close in time resemble each other, so an
            interval over single steps would be too narrow. A drift through training widens this one. Cut at -1
            and 1.
        blocks: how many blocks there are; 0 and no interval below 10 steps.
        autocorrelation: between neighbouring blocks (lag 1). Well above 0, the interval is still too narrow.
        main_norm, auxiliary_norm: mean gradient norms over all steps whose norms are finite.
        by_layer: mean cosine of each layer.
    """

    steps: int
    undefined: int
    final: float | None
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    conflict: float | None
    low: float | None
    high: float | None
    blocks: int
    autocorrelation: float | None
    main_norm: float | None
    auxiliary_norm: float | None
    by_layer: Mapping[str, float | None]


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
