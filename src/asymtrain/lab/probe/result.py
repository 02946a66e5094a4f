"""What a probe saw and what it advises, as frozen values.

Cosines are between the gradients of the main loss and of a branch's loss over the trained parameters that both reach.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["attach", "leave", "cannot tell"]
TOGETHER = "all places"


@dataclass(frozen=True)
class PlaceFinding:
    """One place, or all of them together (the sum of their losses)."""

    place: str  # the module's name
    steps: tuple[int, ...]  # those that were measured, from 0
    cosines: tuple[float | None, ...]  # alignment at each of them; None where a gradient was zero
    alignment: float | None  # their mean, and its interval over batches by batch means
    low: float | None
    high: float | None
    trend: float | None  # change of the cosine from the first to the last of them, by a line through the blocks' means
    trend_low: float | None
    trend_high: float | None
    conflict: float | None  # share of measured steps with a negative cosine
    ratio: float | None  # norm of the auxiliary gradient, before alpha, over the main one's; the median over steps
    accuracy: float | None  # of the branch over the last quarter of the steps, on each batch before it was learnt
    loss: float  # likewise
    speed: float | None  # (accuracy - chance) / (the network's own - chance): above 1 the branch learns faster


@dataclass(frozen=True)
class Shadow:
    """A short training whose branches learn from detached features: the trunk trains as if they were not there."""

    places: tuple[PlaceFinding, ...]
    together: PlaceFinding
    steps: int
    accuracy: float  # the network's own, over the last quarter of the steps
    loss: float  # likewise
    chance: float
    images: int  # in the last quarter
    skipped: int  # steps whose loss or gradient was not finite; they changed nothing
    seconds: float
    step_seconds: float  # the median of a step that was not measured


@dataclass(frozen=True)
class Trial:
    """Short runs without branches and with them at one alpha, in pairs that share seed, weights and batches.

    Held-out accuracies, one row for each seed: (halfway, at the end). A run that left the finite numbers has chance.
    """

    alpha: float
    seeds: tuple[int, ...]
    plain: tuple[tuple[float, float], ...]
    asymmetric: tuple[tuple[float, float], ...]
    steps: int
    held_out: int  # samples that the accuracies are taken on

    @property
    def differences(self) -> list[float]:
        """Asymmetric minus Plain at the end, by seed."""
        return [a[1] - p[1] for p, a in zip(self.plain, self.asymmetric, strict=True)]

    @property
    def changes(self) -> list[float]:
        """How much the difference grew in the second half, by seed."""
        return [(a[1] - p[1]) - (a[0] - p[0]) for p, a in zip(self.plain, self.asymmetric, strict=True)]

    def least_deviation(self, floor: float) -> float:
        """The least standard deviation of a difference that is believed: `floor`, or one held-out sample."""
        return max(floor, 1 / self.held_out)


@dataclass(frozen=True)
class Outlook:
    """What to expect of one alpha; without paired runs, of any."""

    alpha: float | None
    probability: float  # that a full training ends better with the branches than without
    gain: float | None  # mean difference of accuracy at the end of the short runs; None where there were none
    low: float | None  # its 95% interval over seeds
    high: float | None
    seeds: int
    held_out: int = 0


@dataclass(frozen=True)
class Advice:
    """`attach` at `places` with `alpha`, `leave` it, or `cannot tell`."""

    verdict: Verdict
    places: tuple[str, ...]
    alpha: float | None
    probability: float
    outlooks: tuple[Outlook, ...]
    because: tuple[str, ...]  # sentences
    basis: str = ""  # where the constants behind the probability come from

    @property
    def sign(self) -> int:
        """The sign of the effect to expect: +1, -1, or 0 where it cannot be told."""
        return {"attach": 1, "leave": -1, "cannot tell": 0}[self.verdict]


@dataclass(frozen=True)
class Probe:
    """The result of `probe`; printed, it is the advice in words."""

    shadow: Shadow
    trials: tuple[Trial, ...]
    advice: Advice
    notes: tuple[str, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "sign": self.advice.sign}

    def __str__(self) -> str:
        return "\n".join([headline(self.advice), *self.reasons])

    @property
    def reasons(self) -> list[str]:
        """Sentences behind the headline: what was seen, what was left out, and what the probability rests on."""
        basis = [f"The probability's constants: {self.advice.basis}."] if self.advice.basis else []
        return [*self.advice.because, *self.notes, *basis]


def headline(advice: Advice) -> str:
    alpha = "" if advice.alpha is None else f" with alpha {advice.alpha:g}"
    attach = f"Attach at {', '.join(advice.places)}{alpha}"
    verdict = {"attach": attach, "leave": "Do not attach", "cannot tell": "Cannot tell"}[advice.verdict]
    return f"{verdict}: probability of a gain {advice.probability:.2f}."
