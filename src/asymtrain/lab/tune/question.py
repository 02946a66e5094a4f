"""What is asked: which of these branches, if any, end above Plain in this training? And the runs that answer it."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.candidates import Candidate
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.tune.planning import CONFIRMATION_SEED, RACE_SEED, RacePlan, Rung
from asymtrain.lab.tune.rule import RULE

MOST_SEEDS = 1000
EPOCHS = 30  # of the training that is asked about, where nobody says
MINUTES = 30.0  # for the answer, likewise

# The paper's form; then the two objectives that helped in the first rows of the practice study (docs/practice.md), each
# weak and strong, since models differ most in that; then what changes where and when branches act, one at a time: a
# branch at early layers can harm what later layers need, and a strong one can harm the end of the training.
CANDIDATES = (
    Candidate("sigmoid", alpha=0.1),
    Candidate("sigmoid", "prior", alpha=1.0),
    Candidate("sigmoid", "prior", alpha=10.0),
    Candidate("sigmoid", "prior", alpha=10.0, layers="later"),
    Candidate("sigmoid", "prior", alpha=10.0, alpha_schedule="cosine"),
    Candidate("softmax", alpha=0.1),
    Candidate("softmax", alpha=1.0),
    Candidate("softmax", alpha=0.3, layers="later"),
    Candidate("softmax", alpha=0.3, layers="middle"),
)


@dataclass(frozen=True)
class Question:
    """A training, the candidates for its branches, and the effort."""

    base: RunSpec  # Asymmetric, with the epochs of the training; its seed and its form of branches do not matter
    candidates: tuple[Candidate, ...] = CANDIDATES
    minutes: float | None = MINUTES  # None: all of it, however long it takes
    seeds: int = RULE.seeds  # of the confirmation
    short: bool = False  # one short pair for each candidate, and no confirmation

    def __post_init__(self) -> None:
        if self.base.redundancy == 0:
            raise UsageError("tune needs redundancy 1 or more: 0 is Plain, which every candidate is compared with")
        if not self.candidates:
            raise UsageError("there is nothing to try: give one candidate or more")
        is_number = isinstance(self.minutes, int | float) and not isinstance(self.minutes, bool)
        if self.minutes is not None and (not is_number or not 0 < self.minutes < float("inf")):
            raise UsageError(f"minutes must be a number above 0, and finite, got {self.minutes!r}")
        if not isinstance(self.seeds, int) or not RULE.least_seeds <= self.seeds <= MOST_SEEDS:
            raise UsageError(
                f"seeds must be from {RULE.least_seeds} to {MOST_SEEDS} (fewer give no answer), got {self.seeds!r}"
            )
        for candidate in self.candidates:
            try:
                self.spec(candidate, 1, RACE_SEED)  # what no run can have shows now
            except UsageError as problem:
                raise UsageError(f"{problem}: give candidates other than {candidate.label}") from problem

    def spec(self, candidate: Candidate | None, epochs: int, seed: int, **fields: Any) -> RunSpec:
        """A run with a candidate's branches, or with None a Plain one; its schedule is whole at any length."""
        warmup = self.base.warmup * epochs / self.base.epochs
        # The cosine is not measured: it would cost time, and nothing here asks for it.
        spec = dataclasses.replace(self.base, epochs=epochs, warmup=warmup, seed=seed, cosine_every=0, **fields)
        return spec.plain() if candidate is None else dataclasses.replace(spec, **candidate.fields())

    def race_spec(self, candidate: Candidate | None, epochs: int, seed: int) -> RunSpec:
        return self.spec(candidate, epochs, seed, validation="split", test="never")

    def confirmation_spec(self, candidate: Candidate | None, epochs: int, seed: int) -> RunSpec:
        """Trained on everything, and tested."""
        return self.spec(candidate, epochs, seed, validation="none", test="every")

    def timing_specs(self) -> list[RunSpec]:
        """All candidates and Plain with one seed, for as few epochs as show what one takes."""
        epochs = min(RULE.timing_epochs, self.base.epochs)
        return [self.race_spec(candidate, epochs, RACE_SEED) for candidate in (None, *self.candidates)]

    def rung_specs(self, rung: Rung, living: Iterable[Candidate]) -> dict[tuple[Candidate | None, int], RunSpec]:
        """By candidate, None for Plain, and seed."""
        seeds = range(RACE_SEED, RACE_SEED + rung.seeds)
        return {(one, seed): self.race_spec(one, rung.epochs, seed) for seed in seeds for one in (None, *living)}

    def confirmation_specs(self, winner: Candidate, plan: RacePlan) -> dict[tuple[Candidate | None, int], RunSpec]:
        seeds = range(CONFIRMATION_SEED, CONFIRMATION_SEED + plan.seeds)
        return {(one, seed): self.confirmation_spec(one, plan.epochs, seed) for seed in seeds for one in (None, winner)}

    def to_dict(self) -> dict[str, Any]:
        """All that must be the same for a tune to go on."""
        return {
            "base": self.base.to_dict(),
            "candidates": [candidate.fields() for candidate in self.candidates],
            "short": self.short,
            "minutes": self.minutes,
            "seeds": self.seeds,
        }


def as_candidates(given: Iterable[Candidate | Mapping[str, Any]] | None) -> tuple[Candidate, ...]:
    """The candidates that are given, each once, as values or by their fields; without any, the default list."""
    if given is None:
        return CANDIDATES
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, Mapping | str) else None
    if listed is None or not all(isinstance(one, Candidate | Mapping) for one in listed):
        example = [{"objective": "softmax", "alpha": 0.3}]
        raise UsageError(f"candidates must be a list of candidates by their fields, such as {example}, got {given!r}")
    known = [field.name for field in dataclasses.fields(Candidate)]
    for name in (name for one in listed if isinstance(one, Mapping) for name in one if name not in known):
        raise unknown_name("field of a candidate", str(name), known)
    return tuple(dict.fromkeys(one if isinstance(one, Candidate) else Candidate(**one) for one in listed))
