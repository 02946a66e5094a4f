"""From what was seen to what to do: every threshold of the advice is in `RULE`, and nowhere else.

The probability that a full training ends better with branches than without is logistic:

    with paired runs     intercept + level * z(difference) + trend * z(change) + cosine * alignment
    without              alone_intercept + alone * alignment

`z(difference)` says how clearly the short paired runs differ at their end, `z(change)` how clearly that difference grew
in their second half (see `evidence.z_score`), `alignment` is the mean cosine of all places together. The option
--fit of benchmarks/probe.py prints the `RULE` that its tuning cases give; docs/probe.md has the score on others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from asymtrain.gradients._intervals import mean
from asymtrain.lab.probe.evidence import floored_interval, z_score
from asymtrain.lab.probe.result import Advice, Outlook, Shadow, Trial, Verdict


@dataclass(frozen=True)
class Rule:
    """Thresholds of the advice."""

    sure: float = 0.8  # probability from which the probe commits itself
    least_steps: int = 30  # of the shadow training; below it nothing is said
    least_cosines: int = 6  # measured steps
    least_seeds: int = 2  # pairs of short runs
    least_held_out: int = 50  # samples to compare the pairs on; of fewer, one is more than two points
    learnt: float = 3.0  # standard errors above chance that the network itself must be
    floor: float = 0.002  # least standard deviation of a difference of accuracies that is believed
    # Of the logistic.
    intercept: float = -0.4
    level: float = 0.8
    trend: float = 0.4
    cosine: float = 1.0
    alone_intercept: float = -0.5
    alone: float = 1.0
    basis: str = "a first guess, not fitted to any case yet"  # where they come from, as users are told


# benchmarks/probe.py --fit prints these lines.
RULE = Rule(
    intercept=-0.356, level=1.535, trend=0.23, cosine=0.529, alone_intercept=-1.791, alone=2.738,
    basis="fitted to 18 cases of 6 families by benchmarks/probe.py on 2026-11-15",
)  # fmt: skip


def advise(shadow: Shadow, trials: Sequence[Trial] = (), rule: Rule = RULE) -> Advice:
    """What to do, from a shadow training and, where there were any, short paired runs."""
    places = kept_places(shadow)
    outlooks = tuple(outlook(shadow, trial, rule) for trial in trials) or (outlook_alone(shadow, rule),)
    reasons = [*_alignment_words(shadow, places), *map(_outlook_words, outlooks if trials else ())]
    best = max(outlooks, key=lambda outlook: (outlook.probability, outlook.gain or 0.0))
    verdict: Verdict = "cannot tell"
    if doubt := _doubt(shadow, trials, rule):
        reasons.append(doubt)
    elif best.probability >= rule.sure:
        verdict = "attach"
    elif best.probability <= 1 - rule.sure:
        verdict = "leave"
    else:
        reasons.append(f"A probability between {1 - rule.sure:.2g} and {rule.sure:.2g} is no basis for advice.")
    if not trials:
        reasons.append("There were no paired runs, and alignment alone is a weak predictor.")
    names, alpha = (tuple(places), best.alpha) if verdict == "attach" else ((), None)
    return Advice(verdict, names, alpha, best.probability, outlooks, tuple(reasons), rule.basis)


def kept_places(shadow: Shadow) -> list[str]:
    """The places to attach at: all but those whose objective clearly pulls against the main one,
    where the whole interval of the alignment lies below 0.

    Where that is every place, every place: the answer is then not a matter of places.
    """
    kept = [finding.place for finding in shadow.places if finding.high is None or finding.high >= 0]
    return kept or [finding.place for finding in shadow.places]


def outlook(shadow: Shadow, trial: Trial, rule: Rule = RULE) -> Outlook:
    level, trend = trial_scores(trial, rule)
    cosine = shadow.together.alignment
    score = rule.intercept + rule.level * level + rule.trend * trend + rule.cosine * (cosine or 0.0)
    low, high = floored_interval(trial.differences, floor=trial.least_deviation(0.0))
    return Outlook(trial.alpha, logistic(score), mean(trial.differences), low, high, len(trial.seeds), trial.held_out)


def trial_scores(trial: Trial, rule: Rule = RULE) -> tuple[float, float]:
    """z(difference) and z(change) of a trial."""
    floor = trial.least_deviation(rule.floor)
    return z_score(trial.differences, floor), z_score(trial.changes, floor)


def outlook_alone(shadow: Shadow, rule: Rule = RULE) -> Outlook:
    score = rule.alone_intercept + rule.alone * (shadow.together.alignment or 0.0)
    return Outlook(None, logistic(score), None, None, None, 0)


def logistic(score: float) -> float:
    return 1 / (1 + math.exp(-score))


def has_learnt(shadow: Shadow, rule: Rule = RULE) -> bool:
    """Was the network itself clearly better than chance in the last quarter of the probe?"""
    error = math.sqrt(shadow.chance * (1 - shadow.chance) / max(1, shadow.images))
    return shadow.accuracy > shadow.chance + rule.learnt * error


def _doubt(shadow: Shadow, trials: Sequence[Trial], rule: Rule) -> str:
    """Why nothing can be said, whatever the numbers are; empty where something can."""
    measured = sum(value is not None for value in shadow.together.cosines)
    if shadow.steps < rule.least_steps or measured < rule.least_cosines:
        return (
            f"{shadow.steps} steps with {measured} measurements are too few (at least {rule.least_steps} and "
            f"{rule.least_cosines}): give more steps or more time."
        )
    if not has_learnt(shadow, rule):
        return (
            f"The network itself has hardly begun to learn (accuracy {shadow.accuracy:.3f}, chance "
            f"{shadow.chance:.3f}): give more steps, or another learning rate."
        )
    if trials and min(len(trial.seeds) for trial in trials) < rule.least_seeds:
        return f"Fewer than {rule.least_seeds} pairs were finished: give more seeds or more time."
    if trials and trials[0].held_out < rule.least_held_out:
        return (
            f"The held-out set is too small to tell: one of its {trials[0].held_out} samples is "
            f"{100 / trials[0].held_out:.1f} points (at least {rule.least_held_out} samples): give more data."
        )
    return ""


def _alignment_words(shadow: Shadow, kept: Sequence[str]) -> list[str]:
    together = shadow.together
    if together.alignment is None:
        return ["The gradients of the two objectives have no cosine: one of them was always zero."]
    span = "" if together.low is None else f" ({together.low:+.2f} to {together.high:+.2f})"
    words = [f"Mean alignment {together.alignment:+.2f}{span} over {shadow.steps} steps."]
    if dropped := [finding.place for finding in shadow.places if finding.place not in kept]:
        words.append(f"Left out, since they clearly pull against the main objective: {', '.join(dropped)}.")
    return words


def _outlook_words(outlook: Outlook) -> str:
    low, high = outlook.low, outlook.high
    span = "" if low is None or high is None else f" ({100 * low:+.1f} to {100 * high:+.1f})"
    return (
        f"Alpha {outlook.alpha:g}: {100 * (outlook.gain or 0.0):+.1f} points{span} of accuracy on {outlook.held_out} "
        f"held-out samples in {outlook.seeds} short pair{'' if outlook.seeds == 1 else 's'}; probability of a gain "
        f"after full training {outlook.probability:.2f}."
    )
