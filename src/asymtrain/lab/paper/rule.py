"""The verdict rule, for one part of a claim under one reading.

An interval is a t interval over seeds, Bonferroni-corrected for the cells of the table (`claims.family`). The rule, in
the order in which it is asked:

    Reproduced    excludes 0 in the paper's sign and meets 0.5 to 1.5 times the paper's number
    Sign only     excludes 0 in the paper's sign and misses that band
    Contradicted  excludes 0 in the other sign
    Null          lies within 1% of 0
    Inconclusive  otherwise

A part that the paper itself reports as null is reproduced only as null. Other forms of parts (`claims.Part`) use
the same words with their own condition, stated where they are ruled on. 1% is one percent of Plain for a change, one
percentage point for a difference of changes, 0.01 for a cosine or a share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from asymtrain.lab.paper.claims import Part, family
from asymtrain.lab.paper.evidence import Effect, Evidence, Quantity
from asymtrain.lab.statistics import Interval, cohen_d_av, equivalence_p, t_interval, welch_interval

Ruling = Literal["Reproduced", "Sign only", "Inconclusive", "Null", "Contradicted"]
WEAKEST_LAST: tuple[Ruling, ...] = ("Reproduced", "Sign only", "Inconclusive", "Null", "Contradicted")

LEVEL = 0.05
BAND = (0.5, 1.5)
NULL = {"change": 1.0, "asymmetric": 0.01, "value": 0.01}
STRICT_LEVEL, LARGE = 0.001, 0.8  # what the paper's appendix E claims of every main result


@dataclass(frozen=True)
class JudgedPart:
    """One part with what was measured for it.

    Attributes:
        part: what was asked.
        ruling: what the rule says of the numbers, however few they are.
        estimate: None where a percentage of Plain is undefined because Plain is 0, or no seed is on both sides.
        low: of the interval; None with fewer than two seeds, and for parts that have none.
        high: as low.
        p: of the test that the part must pass, not corrected; None where there is no test.
        n: seeds.
        beside: the mean that the estimate is held beside, of parts that ask whether two signs agree.
    """

    part: Part
    ruling: Ruling
    estimate: float | None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    n: int = 0
    beside: float | None = None


def rule(part: Part, evidence: Mapping[str, Evidence]) -> JudgedPart:
    """What the evidence says of one part; every label of the part must be there."""
    if part.how == "zero":
        return _zero(part, evidence)
    if part.how == "significant":
        return _significant(part, evidence)
    if part.how == "agreement":
        return _agreement(part, evidence)
    samples = samples_of(part, evidence)
    n = min(map(len, samples)) if samples else 0
    if n < 2:
        means = [float(np.mean(sample)) for sample in samples if sample]
        return JudgedPart(part, "Inconclusive", means[-1] - sum(means[:-1]) if n else None, n=n)
    found = _interval(samples, family_of(part))
    ruling, p = _ruling(part, samples[0], found)
    return JudgedPart(part, ruling, found.estimate, found.low, found.high, p, n)


def _ruling(part: Part, values: Sequence[float], found: Interval) -> tuple[Ruling, float | None]:
    """The ruling, and the p of the test behind it."""
    margin = NULL[part.of]
    if part.how == "null":
        return null_ruling(found, margin), equivalence_p(values, margin)
    if part.how == "near zero":
        margin = BAND[1] * abs(part.paper or 0.0)
        return near_zero_ruling(found, margin), equivalence_p(values, margin)
    if part.how == "not reversed":
        return "Contradicted" if _sign(found) == -part.sign else "Reproduced", None
    return ruling_of(found, part.sign, margin, None if part.how == "sign" else part.paper), found.p


def ruling_of(found: Interval, sign: int, margin: float, paper: float | None) -> Ruling:
    """The rule; without a paper's number the sign alone is asked for."""
    if _sign(found) == sign:
        if paper is None:
            return "Reproduced"
        low, high = sorted(factor * paper for factor in BAND)
        return "Reproduced" if found.low <= high and found.high >= low else "Sign only"
    if _sign(found) == -sign:
        return "Contradicted"
    return "Null" if -margin < found.low and found.high < margin else "Inconclusive"


def null_ruling(found: Interval, margin: float) -> Ruling:
    """For what the paper reports as null: reproduced within the margin, contradicted where 0 is excluded."""
    if -margin < found.low and found.high < margin:
        return "Reproduced"
    return "Contradicted" if _sign(found) else "Inconclusive"


def near_zero_ruling(found: Interval, margin: float) -> Ruling:
    """For what the paper calls near zero: contradicted only where the interval lies outside the margin."""
    if -margin < found.low and found.high < margin:
        return "Reproduced"
    return "Contradicted" if found.low > margin or found.high < -margin else "Inconclusive"


def family_of(part: Part) -> int:
    """The largest family among the part's tables."""
    return max(family(label) for label in part.labels)


def samples_of(part: Part, evidence: Mapping[str, Evidence]) -> tuple[list[float], ...]:
    """One number a seed; two samples for a difference whose sides share no seeds; none where Plain is 0."""
    if part.of == "value":
        return (list(_quantity(evidence, part.labels[0]).values),)
    effects = [_effect(evidence, label) for label in part.labels]
    if part.of == "asymmetric":
        return (list(effects[0].asymmetric),)
    if part.how not in ("difference", "not reversed"):
        # Of two labels, Plain is the first's and Asymmetric the second's.
        return _lists(_paired(effects[0], effects[-1]).changes)
    first, second = (effect.changes for effect in effects)
    common = sorted(first.keys() & second.keys())
    if common:
        return ([second[seed] - first[seed] for seed in common],)
    return _lists(first, second)


def _interval(samples: tuple[list[float], ...], size: int) -> Interval:
    if len(samples) == 1:
        return t_interval(samples[0], 1 - LEVEL, size)
    first, second = samples
    return welch_interval(first, second, 1 - LEVEL, size)


def _lists(*changes: Mapping[int, float]) -> tuple[list[float], ...]:
    return tuple(list(change.values()) for change in changes) if all(changes) else ()


def _paired(plain: Effect, asymmetric: Effect) -> Effect:
    if plain is asymmetric:
        return plain
    before = dict(zip(plain.seeds, plain.plain, strict=True))
    after = dict(zip(asymmetric.seeds, asymmetric.asymmetric, strict=True))
    seeds = tuple(sorted(before.keys() & after.keys()))
    sides = [tuple(side[seed] for seed in seeds) for side in (before, after)]
    return Effect(asymmetric.label, sides[0], sides[1], asymmetric.epochs, (), seeds)


def _zero(part: Part, evidence: Mapping[str, Evidence]) -> JudgedPart:
    """Exact: one value that is not 0 contradicts."""
    values = _quantity(evidence, part.labels[0]).values
    worst = max(map(abs, values), default=None)
    ruling: Ruling = "Inconclusive" if worst is None else "Contradicted" if worst else "Reproduced"
    return JudgedPart(part, ruling, worst, n=len(values))


def _significant(part: Part, evidence: Mapping[str, Evidence]) -> JudgedPart:
    """The share of cells with p < 0.001, Bonferroni over the cells, and a d_av of 0.8 or more; all must have both."""
    effects = [_effect(evidence, label) for label in part.labels]
    n = min(len(effect.seeds) for effect in effects)
    changes = [effect.changes for effect in effects]
    if n < 2 or not all(changes):
        return JudgedPart(part, "Inconclusive", None, n=n)
    p_values = [t_interval([*change.values()]).p for change in changes]
    sizes = [cohen_d_av(effect.plain, effect.asymmetric) for effect in effects]
    passed = [
        p * family_of(part) < STRICT_LEVEL and size is not None and abs(size) >= LARGE
        for p, size in zip(p_values, sizes, strict=True)
    ]
    ruling: Ruling = "Reproduced" if all(passed) else "Contradicted"
    return JudgedPart(part, ruling, sum(passed) / len(passed), p=max(p_values), n=n)


def _agreement(part: Part, evidence: Mapping[str, Evidence]) -> JudgedPart:
    """Of a value and a change: both must be clear; then their signs agree or not. The change is what is shown."""
    values = list(_quantity(evidence, part.labels[0]).values)
    changes = [*_effect(evidence, part.labels[1]).changes.values()]
    n = min(len(values), len(changes))
    if n < 2:
        return JudgedPart(part, "Inconclusive", float(np.mean(changes)) if changes else None, n=n)
    value, change = (
        t_interval(sample, 1 - LEVEL, family(label))
        for sample, label in zip((values, changes), part.labels, strict=True)
    )
    rulings: Mapping[int, Ruling] = {1: "Reproduced", 0: "Inconclusive", -1: "Contradicted"}
    ruling = rulings[_sign(value) * _sign(change)]
    p = max(value.p, change.p)
    return JudgedPart(part, ruling, change.estimate, change.low, change.high, p, n, value.estimate)


def _sign(found: Interval) -> int:
    """Of an interval that excludes 0; 0 where it does not."""
    return (found.low > 0) - (found.high < 0)


def _effect(evidence: Mapping[str, Evidence], label: str) -> Effect:
    found = evidence[label]
    assert isinstance(found, Effect), f"{label} must be an Effect"
    return found


def _quantity(evidence: Mapping[str, Evidence], label: str) -> Quantity:
    found = evidence[label]
    assert isinstance(found, Quantity), f"{label} must be a Quantity"
    return found


def weakest(ruled: list[JudgedPart]) -> Ruling:
    """A claim holds as far as the weakest of its parts."""
    return max((one.ruling for one in ruled), key=WEAKEST_LAST.index)
