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
    """One place, or all of them together (the sum of their losses).

    Attributes:
        place: the module's name.
        steps: the steps that were measured, from 0.
        cosines: alignment at each of them; None where a gradient was zero.
        alignment, low, high: their mean, and its interval over batches by batch means.
        trend, trend_low, trend_high: how much the cosine changed from the first to the last measured step, by a line
            through the blocks' means.
        conflict: share of measured steps with a negative cosine.
        ratio: norm of the auxiliary gradient, before alpha, divided by the main one's; the median over steps.
        accuracy, loss: of the branch over the last quarter of the steps, on each batch before it was learnt.
        speed: (accuracy - chance) / (the network's own accuracy - chance): above 1 the branch learns faster.
    """

    place: str
    steps: tuple[int, ...]
    cosines: tuple[float | None, ...]
    alignment: float | None
    low: float | None
    high: float | None
    trend: float | None
    trend_low: float | None
    trend_high: float | None
    conflict: float | None
    ratio: float | None
    accuracy: float | None
    loss: float
    speed: float | None


@dataclass(frozen=True)
class Shadow:
    """A short training whose branches learn from detached features: the trunk trains as if they were not there.

    `accuracy` and `loss` are the network's own over the last quarter of the steps, `images` how many those were.
    `skipped` counts steps whose loss or gradient was not finite; they changed nothing. `step_seconds` is the median
    time of a step that was not measured.
    """

    places: tuple[PlaceFinding, ...]
    together: PlaceFinding
    steps: int
    accuracy: float
    loss: float
    chance: float
    images: int
    skipped: int
    seconds: float
    step_seconds: float


@dataclass(frozen=True)
class Trial:
    """Short runs without branches and with them at one alpha, in pairs that share seed, weights and batches.

    Held-out accuracies, one row for each seed: (halfway, at the end). A run that left the finite numbers has chance.
    `held_out` is the number of samples that they are taken on.
    """

    alpha: float
    seeds: tuple[int, ...]
    plain: tuple[tuple[float, float], ...]
    asymmetric: tuple[tuple[float, float], ...]
    steps: int
    held_out: int

    @property
    def differences(self) -> list[float]:
        """Asymmetric minus Plain at the end, by seed."""
        return [a[1] - p[1] for p, a in zip(self.plain, self.asymmetric, strict=True)]

    @property
    def changes(self) -> list[float]:
        """How much the difference grew in the second half, by seed."""
        halfway = [a[0] - p[0] for p, a in zip(self.plain, self.asymmetric, strict=True)]
        return [end - half for end, half in zip(self.differences, halfway, strict=True)]

    def least_deviation(self, floor: float) -> float:
        """The least standard deviation of a difference that is believed: `floor`, or one held-out sample."""
        return max(floor, 1 / self.held_out)


@dataclass(frozen=True)
class Outlook:
    """What to expect of one alpha: the probability that a full training ends better with the branches than without.

    `gain` is the mean difference of accuracy on `held_out` samples at the end of the short runs, `low` and `high` its
    95% interval over seeds; all three are None where there were no paired runs.
    """

    alpha: float | None
    probability: float
    gain: float | None
    low: float | None
    high: float | None
    seeds: int
    held_out: int = 0


@dataclass(frozen=True)
class Advice:
    """`attach` at `places` with `alpha`, `leave` it, or `cannot tell`; `because` says why, in sentences.

    `basis` says where the constants behind the probability come from.
    """

    verdict: Verdict
    places: tuple[str, ...]
    alpha: float | None
    probability: float
    outlooks: tuple[Outlook, ...]
    because: tuple[str, ...]
    basis: str = ""

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
        """Everything as JSON values."""
        return {**dataclasses.asdict(self), "sign": self.advice.sign}

    def __str__(self) -> str:
        return "\n".join([headline(self.advice), *self.reasons])

    @property
    def reasons(self) -> list[str]:
        """Sentences behind the headline: what was seen, what was left out, and what the probability rests on."""
        basis = [f"The probability's constants: {self.advice.basis}."] if self.advice.basis else []
        return [*self.advice.because, *self.notes, *basis]


def headline(advice: Advice) -> str:
    """The advice in one sentence."""
    chance = f"probability of a gain {advice.probability:.2f}"
    if advice.verdict == "attach":
        alpha = "" if advice.alpha is None else f" with alpha {advice.alpha:g}"
        return f"Attach at {', '.join(advice.places)}{alpha}: {chance}."
    if advice.verdict == "leave":
        return f"Do not attach: {chance}."
    return f"Cannot tell: {chance}."
