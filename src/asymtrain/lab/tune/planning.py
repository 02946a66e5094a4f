"""What fits into the time: rungs, their seeds, and the confirmation. Numbers in, a plan out; no clock is read here."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from asymtrain.lab.tune.rule import RULE, kept_of

RACE_SEED, CONFIRMATION_SEED = 3000, 3100  # the first of each; no study and no search has them
WHOLE = 1.25  # images of a confirmation run over those of the race, which holds a fifth out
TESTED = 1.1  # and what testing after each epoch adds


@dataclass(frozen=True)
class Timing:
    """What was measured for the plan, in seconds of the clock."""

    epoch: float  # of one run, where as many train at once as the machine takes
    start: float  # before the first epoch of a rung
    runs: int  # that were timed


@dataclass(frozen=True)
class Rung:
    """So many candidates and Plain, trained from scratch."""

    epochs: int
    candidates: int  # at most
    seeds: int

    @property
    def run_epochs(self) -> int:
        return (self.candidates + 1) * self.seeds * self.epochs


@dataclass(frozen=True)
class RacePlan:
    """Rungs of the race and the confirmation; no rungs where the time holds none."""

    rungs: tuple[Rung, ...]
    epochs: int  # of the confirmation
    seeds: int  # 0 of a short tune, which has none
    seconds: float | None  # that all of it was planned to take; None where no clock had a say
    needed: float | None  # minutes that the whole question would take

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RacePlan":
        return cls(**{**values, "rungs": tuple(Rung(**rung) for rung in values["rungs"])})


def make_plan(timing: Timing, seconds: float, *, candidates: int, epochs: int, seeds: int) -> RacePlan:
    """The longest race and confirmation that fit.

    The confirmation's share, at least, is reserved first. The race then takes the longest last rung that fits beside a
    confirmation as long, with fewer seeds only where it would not fit otherwise; what it leaves goes to the
    confirmation.
    """
    room = RULE.used * seconds
    whole = race_seconds(ladder(epochs, candidates, RULE.race_seeds), timing)
    whole += confirmation_seconds(epochs, seeds, timing)
    needed = (whole / RULE.used + timing.start + timing.runs * RULE.timing_epochs * timing.epoch) / 60
    reserved = _longest(RULE.confirmation_share * room, epochs, seeds, timing)
    for count in range(RULE.race_seeds, RULE.least_race_seeds - 1, -1):
        for last in range(epochs, 0, -1):
            rungs, least = ladder(last, candidates, count), max(last, reserved)
            race = race_seconds(rungs, timing)
            if race + confirmation_seconds(least, seeds, timing) <= room:
                confirmed = max(least, _longest(room - race, epochs, seeds, timing))
                planned = race + confirmation_seconds(confirmed, seeds, timing)
                return RacePlan(rungs, confirmed, seeds, planned, needed)
    return RacePlan((), 0, seeds, 0.0, needed)


def whole_plan(*, candidates: int, epochs: int, seeds: int) -> RacePlan:
    """The whole question, however long it takes: the same plan on every machine."""
    return RacePlan(ladder(epochs, candidates, RULE.race_seeds), epochs, seeds, None, None)


def short_plan(*, candidates: int, epochs: int) -> RacePlan:
    """One pair for each candidate, as long as the rung before the last of a whole race; nothing is confirmed."""
    return RacePlan((Rung(math.ceil(epochs / RULE.growth), candidates, 1),), 0, 0, None, None)


def ladder(last: int, candidates: int, seeds: int) -> tuple[Rung, ...]:
    """The rungs of a race whose last has so many epochs.

    A candidate alone has two: whether the difference moves shows between them.
    """
    counts = [candidates]
    while len(counts) < RULE.most_rungs and kept_of(counts[-1]) > 1:
        counts.append(kept_of(counts[-1]))
    if len(counts) == 1:
        counts.append(kept_of(candidates))
    lengths = [math.ceil(last / RULE.growth**i) for i in reversed(range(len(counts)))]
    # Of a short race the lengths run together: candidates are dropped once at each length, the last of equals.
    first = [i for i, length in enumerate(lengths) if length not in lengths[:i]]
    return tuple(Rung(lengths[i], counts[k], seeds) for k, i in enumerate(first))


def race_seconds(rungs: Iterable[Rung], timing: Timing) -> float:
    return sum(timing.start + rung.run_epochs * timing.epoch for rung in rungs)


def confirmation_seconds(epochs: int, seeds: int, timing: Timing) -> float:
    return timing.start + 2 * seeds * epochs * _confirmed_epoch(timing)


def _longest(seconds: float, epochs: int, seeds: int, timing: Timing) -> int:
    """Epochs of a confirmation that fits, at most so many; 0 where none does."""
    fitting = (seconds - timing.start) / (2 * seeds * _confirmed_epoch(timing))
    return max(0, min(epochs, math.floor(fitting)))


def _confirmed_epoch(timing: Timing) -> float:
    return max(timing.epoch, 1e-9) * WHOLE * TESTED
