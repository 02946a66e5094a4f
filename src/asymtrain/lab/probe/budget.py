"""How many steps, seeds and alphas fit into the time that was given."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from asymtrain.lab.probe.evidence import median

LEAST_STEPS = 60  # of a paired run; shorter ones say too little to be worth their time
SHADOW_SHARE = 0.25  # of the time is the shadow training's, where paired runs are to follow
ALONE_SHARE = 0.95  # of the time is its own where none follow; the rest is for the tables and figures
SAFETY = 0.9  # of what is left is planned with


@dataclass(frozen=True)
class Plan:
    """What the paired runs will be."""

    steps: int
    seeds: tuple[int, ...]
    alphas: tuple[float, ...]
    note: str = ""


class Clock:
    """Looks at the time that is left; without minutes there is always enough."""

    def __init__(self, minutes: float | None) -> None:
        self.start = time.perf_counter()
        self.limit = None if minutes is None else 60 * minutes

    def passed(self) -> float:
        return time.perf_counter() - self.start

    def left(self) -> float:
        return float("inf") if self.limit is None else self.limit - self.passed()

    def within(self, share: float) -> bool:
        return self.limit is None or self.passed() < share * self.limit


class ShadowLimit:
    """Does the shadow training go on? To its share of the time, and to the end of it where no paired runs would fit.

    `plan_runs` says which paired runs fit in what is left, from the seconds that a step takes. It is asked once, when
    the share is over. At least `least` steps are taken whatever the clock says.
    """

    def __init__(self, clock: Clock, least: int, plan_runs: Callable[[float], Plan]) -> None:
        self.clock, self.least, self.plan_runs = clock, least, plan_runs
        self.alone: bool | None = None

    def __call__(self, step: int, seconds: Sequence[float]) -> bool:
        """Is there time for this step? `seconds` are those of the steps before it."""
        if step < self.least or self.clock.within(SHADOW_SHARE):
            return True
        if self.alone is None:
            self.alone = not self.plan_runs(median(seconds) or 0.0).alphas
        return self.alone and self.clock.within(ALONE_SHARE)


def plan_trials(
    steps: int,
    seeds: Sequence[int],
    alphas: Sequence[float],
    seconds_a_step: float,
    seconds_left: float,
    seconds_a_run: float = 0.0,
) -> Plan:
    """The paired runs that fit: the steps are shortened, then seeds dropped down to two, then alphas, then all of it.

    `seconds_a_run` is what a run takes beside its steps. Of the alphas the middle ones stay, since an end of the range
    is the more extreme guess.
    """
    least, fewest = min(steps, LEAST_STEPS), min(2, len(seeds))
    kept = list(alphas)
    while kept:
        for count in range(len(seeds), fewest - 1, -1):
            fitting, runs = steps, count * (1 + len(kept))
            if seconds_left != float("inf"):
                fitting = min(steps, int((SAFETY * seconds_left / runs - seconds_a_run) / max(seconds_a_step, 1e-9)))
            if fitting < least:
                continue
            note = ""
            if (fitting, count, len(kept)) != (steps, len(seeds), len(alphas)):
                chosen, given = (", ".join(f"{alpha:g}" for alpha in values) for values in (kept, alphas))
                note = (
                    f"To keep within the time: {count} pairs of {fitting} steps at alpha {chosen} "
                    f"(asked for: {len(seeds)} of {steps} at {given})."
                )
            return Plan(fitting, tuple(seeds[:count]), tuple(kept), note)
        kept = kept[1:] if len(kept) % 2 == 0 else kept[:-1]
    note = (
        f"The time does not hold {'two pairs' if fewest > 1 else 'a pair'} of runs of {least} steps, at "
        f"{seconds_a_step:.2g} seconds a step: there were no paired runs. Give more minutes, a GPU, smaller images or "
        "batches, or a smaller model."
    )
    return Plan(0, (), (), note if alphas else "")


def notes_on_time(plan: Plan, seeds_done: int, steps_taken: int, steps_asked: int) -> tuple[str, ...]:
    """What to say of what the time did not hold: pairs, seeds of them, steps of the shadow training."""
    notes = [plan.note] if plan.note else []
    if steps_taken < steps_asked:
        notes.append(f"The shadow training took {steps_taken} of {steps_asked} steps: its time was over.")
    if seeds_done < len(plan.seeds):
        notes.append(f"The time held {seeds_done} of {len(plan.seeds)} planned pairs at each alpha: give more minutes.")
    return tuple(notes)
