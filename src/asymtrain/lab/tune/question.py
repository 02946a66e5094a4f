"""The question: do these branches, or others, end above the baseline in this training? And the runs that answer it."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.candidates import Candidate
from asymtrain.lab.runs import RunSpec

EPOCHS = 30  # of the training in question, by default
MINUTES = 30.0  # for the answer, by default
# The first seed of each part; no study and no search uses them. The race chooses on seeds of its own, so pairs that
# took part in a choice are in no interval. The pairs come last, since their number has no limit.
RACE_SEED, FRESH_SEED, PAIR_SEED = 3000, 3100, 3200

# What races against the default: the two objectives that helped in the practice study (docs/practice.md), each weak and
# strong, since models differ most in that; and variations of where and when branches act.
ALTERNATIVES = (
    Candidate("sigmoid", "prior", alpha=1.0),
    Candidate("sigmoid", "prior", alpha=10.0, layers="later"),
    Candidate("sigmoid", "prior", alpha=10.0, alpha_schedule="cosine"),
    Candidate("softmax", alpha=0.1),
    Candidate("softmax", alpha=1.0),
    Candidate("softmax", alpha=0.3, layers="later"),
    Candidate("softmax", alpha=0.3, layers="middle"),
)


@dataclass(frozen=True)
class Question:
    """A training, the branches for it, and the time."""

    base: RunSpec  # Asymmetric, with the epochs of the training; its seed and its configuration do not matter
    candidates: tuple[Candidate, ...]  # the first is the default; the others race against it
    minutes: float | None = MINUTES  # None: all of it, however long it takes
    rate_given: bool = True  # if True, no other learning rate is tried when the baseline does not learn

    def __post_init__(self) -> None:
        if self.base.redundancy == 0:
            raise UsageError("tune needs redundancy 1 or more: 0 is the baseline, which they are compared with")
        if not self.candidates:
            raise UsageError("there is nothing to try: give one candidate or more")
        is_number = isinstance(self.minutes, int | float) and not isinstance(self.minutes, bool)
        if self.minutes is not None and (not is_number or not 0 < self.minutes < float("inf")):
            raise UsageError(f"minutes must be a number above 0, and finite, got {self.minutes!r}")
        for candidate in self.candidates:
            try:
                self.spec(candidate, 1, RACE_SEED)  # raises now for values that no run can have
            except UsageError as problem:
                raise UsageError(f"{problem}: give candidates other than {candidate.label}") from problem

    @property
    def default(self) -> Candidate:
        """The candidate that is asked about first."""
        return self.candidates[0]

    def spec(self, candidate: Candidate | None, epochs: int, seed: int, **fields: Any) -> RunSpec:
        """A run on all training images, with a test; of a candidate or, with None, of the baseline.

        Its schedule is complete at any length. The cosine is not measured: nothing here needs it.
        """
        return _spec(self.base, candidate, epochs, seed, **fields)

    def race_spec(self, candidate: Candidate | None, epochs: int, seed: int, **fields: Any) -> RunSpec:
        """The same run, to choose by: a fifth of the training images is held out, and no test image is used."""
        return self.spec(candidate, epochs, seed, validation="split", test="never", **fields)

    def with_rate(self, rate: float) -> "Question":
        return dataclasses.replace(self, base=dataclasses.replace(self.base, learning_rate=rate))

    def to_dict(self) -> dict[str, Any]:
        """Everything that must stay the same for a tune to continue, and the minutes."""
        return {
            "base": self.base.to_dict(),
            "candidates": [candidate.fields() for candidate in self.candidates],
            "rate_given": self.rate_given,
            "minutes": self.minutes,
        }


@functools.cache  # `replay` makes all specs anew after every run
def _spec(base: RunSpec, candidate: Candidate | None, epochs: int, seed: int, **fields: Any) -> RunSpec:
    shared: dict[str, Any] = {"validation": "none", "test": "every", "cosine_every": 0, **fields}
    spec = dataclasses.replace(base, epochs=epochs, warmup=base.warmup * epochs / base.epochs, seed=seed, **shared)
    return spec.plain() if candidate is None else dataclasses.replace(spec, **candidate.fields())


def as_candidates(
    candidates: Iterable[Candidate | Mapping[str, Any]] | None, default: Candidate
) -> tuple[Candidate, ...]:
    """The given candidates without repetition, as values or by their fields; if none, the default and the list."""
    if candidates is None:
        return tuple(dict.fromkeys((default, *ALTERNATIVES)))
    listed = (
        list(candidates) if isinstance(candidates, Iterable) and not isinstance(candidates, Mapping | str) else None
    )
    if listed is None or not all(isinstance(one, Candidate | Mapping) for one in listed):
        example = [{"objective": "softmax", "alpha": 0.3}]
        raise UsageError(
            f"candidates must be a list of candidates by their fields, such as {example}, got {candidates!r}"
        )
    names = [field.name for field in dataclasses.fields(Candidate)]
    for name in (name for one in listed if isinstance(one, Mapping) for name in one if name not in names):
        raise unknown_name("field of a candidate", str(name), names)
    return tuple(dict.fromkeys(one if isinstance(one, Candidate) else Candidate(**one) for one in listed))
