"""How many steps, seeds and alphas fit into the time that was given."""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_STEPS = 60  # of a paired run; shorter ones say too little to be worth their time
SHADOW_SHARE = 0.25  # of the time, at most
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
        """Seconds since the start."""
        return time.perf_counter() - self.start

    def left(self) -> float:
        """Seconds to go."""
        return float("inf") if self.limit is None else self.limit - self.passed()

    def within(self, share: float) -> bool:
        """Has less than this share of the time passed?"""
        return self.limit is None or self.passed() < share * self.limit


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
    wanted = Plan(steps, tuple(seeds), tuple(alphas))
    least = min(steps, LEAST_STEPS)
    chosen = list(alphas)
    while chosen:
        for count in range(len(seeds), 1, -1):
            runs = count * (1 + len(chosen))
            fitting = steps
            if seconds_left != float("inf"):
                fitting = min(steps, int((SAFETY * seconds_left / runs - seconds_a_run) / seconds_a_step))
            if fitting >= least:
                found = dataclasses.replace(wanted, steps=fitting, seeds=tuple(seeds[:count]), alphas=tuple(chosen))
                return dataclasses.replace(found, note=_note(wanted, found))
        chosen = chosen[1:] if len(chosen) % 2 == 0 else chosen[:-1]
    if not alphas:
        return Plan(0, (), ())
    note = f"The time does not hold two pairs of runs of {least} steps: there were no paired runs."
    return Plan(0, (), (), note)


def _note(wanted: Plan, found: Plan) -> str:
    if found.steps == wanted.steps and found.seeds == wanted.seeds and found.alphas == wanted.alphas:
        return ""
    shown = ", ".join(f"{alpha:g}" for alpha in found.alphas)
    return (
        f"To keep within the time: {len(found.seeds)} pairs of {found.steps} steps at alpha {shown} "
        f"(asked for: {len(wanted.seeds)} of {wanted.steps} at {', '.join(f'{a:g}' for a in wanted.alphas)})."
    )
