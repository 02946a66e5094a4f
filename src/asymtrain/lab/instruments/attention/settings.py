"""What is looked at when attention is measured, as a value."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch

from asymtrain import streams
from asymtrain.errors import UsageError
from asymtrain.lab.instruments.attention.metrics import DEFAULT_THRESHOLD


@dataclass(frozen=True)
class AttentionSettings:
    """Which images, which maps, which thresholds.

    Attributes:
        sample: how many test images are looked at.
        seed: of that sample; the same images for every run, so that runs are compared on equal images.
        query: "class_token": what the class token attends to; "mean": what all tokens do, averaged.
        renormalise: divide each map by its sum over patches, so that it is a distribution; else the weight that goes
            to the class token is missing from it. Peak, entropy and coverages depend on it, Gini does not.
        threshold: of `coverage_above`, in multiples of the uniform value.
        saliency_share: of the pixels, for `coverage_of_saliency`.
        layers: names of the layers that are reported; empty for all.
    """

    sample: int = 100
    seed: int = 0
    query: Literal["class_token", "mean"] = "class_token"
    renormalise: bool = True
    threshold: float = DEFAULT_THRESHOLD
    saliency_share: float = 0.25
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if self.sample < 1:
            raise UsageError(f"the sample must be 1 image or more, got {self.sample}")
        if self.seed < 0:
            raise UsageError(f"the seed of the sample must be 0 or more, got {self.seed}")
        if self.query not in ("class_token", "mean"):
            raise UsageError(f"query must be 'class_token' or 'mean', got {self.query!r}")
        if not self.threshold > 0:
            raise UsageError(f"the threshold must be above 0, in multiples of the uniform value, got {self.threshold}")
        if not 0 < self.saliency_share <= 1:
            raise UsageError(f"the salient share must be above 0 and at most 1, got {self.saliency_share}")

    @property
    def key(self) -> str:
        """The name of the measurement in a store: "attention", and the settings that are not the default."""
        chosen = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                text = "+".join(value) if isinstance(value, tuple) else str(value)
                chosen.append(f"{field.name}={text}")
        return "attention" + "".join(f":{part}" for part in chosen)

    def indices(self, size: int) -> list[int]:
        """The sample, from a test set of `size` images; a smaller sample of one seed begins a larger one."""
        if self.sample > size:
            raise UsageError(f"a sample of {self.sample} images is larger than the test set of {size}")
        order = torch.randperm(size, generator=streams.generator(self.seed, "attention-sample"))
        return [int(i) for i in order[: self.sample]]
