"""How good is the probe's advice? Fitting the constants of the rule on some cases, and scoring it on others.

A case is a backbone, a dataset and an alpha. What the probe saw and said stands beside what a full training over
several seeds gave: a gain, a loss, or nothing clear (the 95% interval of the paired differences contains 0).
"""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from scipy import optimize, stats

from asymtrain.errors import UsageError
from asymtrain.lab.probe.evidence import NORMAL, floored_interval, z_score
from asymtrain.lab.probe.result import PlaceFinding, Shadow, Trial
from asymtrain.lab.probe.rule import RULE, Rule, logistic

T = TypeVar("T")
RIDGE = 0.1  # keeps a fit on few cases from running away
CONSTANTS = ("intercept", "level", "trend", "cosine", "alone_intercept", "alone")


@dataclass(frozen=True)
class Case:
    """What was seen in the probe of one case, and what came of a full training."""

    family: str
    alpha: float
    alignment: float
    level: float  # z(difference) of the paired runs
    trend: float  # z(change)
    probability: float  # what the probe said
    verdict: str
    differences: tuple[float, ...]  # of the full training: Asymmetric minus Plain, by seed
    plain: float  # its mean accuracy
    cosine: float | None = None  # mean over the full training

    @property
    def interval(self) -> tuple[float, float]:
        """95% t interval of the mean difference; of one seed, the difference itself."""
        low, high = floored_interval(self.differences)
        return (self.differences[0],) * 2 if low is None or high is None else (low, high)

    @property
    def gain(self) -> float:
        """Mean difference in percent of Plain's accuracy."""
        return 100 * float(np.mean(self.differences)) / self.plain

    @property
    def outcome(self) -> int:
        """+1 where the branches clearly helped, -1 where they clearly hurt, 0 where neither is clear."""
        low, high = self.interval
        return 1 if low > 0 else -1 if high < 0 else 0


@dataclass(frozen=True)
class Score:
    """A predictor on the cases with a clear effect, and apart from them on the others.

    `right` is the share of right signs with its Wilson interval, `brier` the mean squared error of the probability.
    `committed` counts clear cases with a verdict other than "cannot tell", `committed_right` how many were right.
    `unclear_committed` of `unclear` cases without a clear effect got a verdict all the same.
    """

    name: str
    clear: int
    right: float
    low: float
    high: float
    brier: float
    committed: int
    committed_right: int
    unclear: int
    unclear_committed: int


PREDICTORS: dict[str, Callable[[Case], float]] = {
    "probe": lambda case: case.probability,
    "always yes": lambda case: 1.0,
    "always no": lambda case: 0.0,
    "sign of the mean cosine": lambda case: float(case.alignment > 0),
}


def score(
    name: str, cases: Sequence[Case], rule: Rule = RULE, probability: Callable[[Case], float] | None = None
) -> Score:
    """Score one predictor: a function from a case to the probability of a gain."""
    predict = PREDICTORS[name] if probability is None else probability
    clear = [case for case in cases if case.outcome]
    if not clear:
        raise UsageError("no case has a clear effect: train more seeds or longer, then score")
    right = [(predict(case) > 0.5) == (case.outcome > 0) for case in clear]
    errors = [(predict(case) - (case.outcome > 0)) ** 2 for case in clear]
    interval = stats.binomtest(sum(right), len(right)).proportion_ci(0.95, "wilson")

    def commits(case: Case) -> bool:
        if name == "probe" and probability is None:
            return case.verdict != "cannot tell"
        return not 1 - rule.sure < predict(case) < rule.sure

    committed = [good for case, good in zip(clear, right, strict=True) if commits(case)]
    unclear = [case for case in cases if not case.outcome]
    return Score(
        name, len(clear), sum(right) / len(right), float(interval.low), float(interval.high),
        math.fsum(errors) / len(errors), len(committed), sum(committed), len(unclear), sum(map(commits, unclear)),
    )  # fmt: skip


def fit(cases: Sequence[Case], rule: Rule = RULE) -> Rule:
    """The rule with its constants fitted to these cases; its thresholds stay.

    A case's target is the probability that its mean difference is above 0, so unclear cases count too, as such.
    """
    if len({case.family for case in cases}) < 2:
        raise UsageError("a fit needs cases of at least two families")
    target = np.array([NORMAL.cdf(z_score(case.differences, rule.floor)) for case in cases])
    seen = np.array([[1.0, case.level, case.trend, case.alignment] for case in cases])
    whole, alone = _logistic_fit(seen, target), _logistic_fit(seen[:, [0, 3]], target)
    constants = {name: round(float(v), 3) for name, v in zip(CONSTANTS, (*whole, *alone), strict=True)}
    families = len({case.family for case in cases})
    return dataclasses.replace(rule, **constants, basis=f"fitted to {len(cases)} cases of {families} families")


def rule_line(rule: Rule) -> str:
    """The rule's constants as the line of Python that stands in rule.py."""
    given = ", ".join(f"{name}={getattr(rule, name)!r}" for name in CONSTANTS)
    return f"RULE = Rule(\n    {given},\n    basis={json.dumps(rule.basis)},\n)"


def refreshed(case: Case, rule: Rule) -> float:
    """The probability that another rule gives the case."""
    return logistic(rule.intercept + rule.level * case.level + rule.trend * case.trend + rule.cosine * case.alignment)


def correlation(
    cases: Sequence[Case], value: Callable[[Case], float | None], draws: int = 2000
) -> tuple[float, float, float] | None:
    """Spearman correlation of a value with the gain, and its 95% bootstrap interval over families.

    Cases of a family share a probe, so families are drawn, not cases. None where the value is the same everywhere.
    """
    families = list(dict.fromkeys(case.family for case in cases))
    seen = {name: [(value(c), c.gain) for c in cases if c.family == name and value(c) is not None] for name in families}
    if len(families) < 3:
        raise UsageError("a correlation needs at least three families")
    if len({number for pairs in seen.values() for number, _ in pairs}) < 2:
        return None
    low, high = family_interval(
        families, lambda drawn: _spearman([pair for name in drawn for pair in seen[name]]), draws
    )
    return _spearman([pair for pairs in seen.values() for pair in pairs]), low, high


def family_interval(
    families: Sequence[T], value: Callable[[Sequence[T]], float], draws: int = 2000
) -> tuple[float, float]:
    """95% bootstrap interval of a value of families, which are drawn as wholes; a draw without a value is left out."""
    drawn = np.random.default_rng(0)
    again = [drawn.choice(len(families), len(families)) for _ in range(draws)]
    low, high = np.nanquantile([value([families[i] for i in chosen]) for chosen in again], [0.025, 0.975])
    return float(low), float(high)


def score_parts(tune: Sequence[Case], scored: Sequence[Case]) -> list[tuple[str, Score]]:
    """Every predictor on both parts, as (part, score), and on the scored part also a rule fitted on `tune` just now.

    A part without a clear effect has no score.
    """
    parts = {"tune": tune, "score": scored}
    clear = {part: cases for part, cases in parts.items() if any(case.outcome for case in cases)}
    scores = [(part, score(name, cases)) for part, cases in clear.items() for name in PREDICTORS]
    if len({case.family for case in tune}) > 1 and "score" in clear:
        rule = fit(tune)
        name = "probe, constants fitted just now"
        scores.append(("score", score(name, scored, probability=lambda case: refreshed(case, rule))))
    return scores


def score_text(scores: Sequence[tuple[str, Score]], cases: Sequence[Case]) -> str:
    """The scores as a Markdown table, and how alignment goes with gain over all cases."""
    lines = ["| cases | predictor | clear | right (95%) | Brier | committed, right | unclear, committed |"]
    lines.append("|---|---|---|---|---|---|---|")
    lines += [
        f"| {part} | {s.name} | {s.clear} | {s.right:.0%} ({s.low:.0%} to {s.high:.0%}) | {s.brier:.3f} | "
        f"{s.committed}, {s.committed_right} | {s.unclear}, {s.unclear_committed} |"
        for part, s in scores
    ]
    values: dict[str, Callable[[Case], float | None]] = {
        "alignment in the probe": lambda case: case.alignment,
        "cosine over the full training": lambda case: case.cosine,
    }
    for name, value in values.items():
        known = [case for case in cases if value(case) is not None]
        families = len({case.family for case in known})
        answer = correlation(known, value) if families > 2 else None
        if answer is not None:
            interval = f"{answer[1]:+.2f} to {answer[2]:+.2f}, {len(known)} cases of {families} families"
            lines += ["", f"Spearman correlation of {name} with the gain: {answer[0]:+.2f} ({interval})."]
    return "\n".join(lines) + "\n"


def shadow_from_dict(values: dict[str, Any]) -> Shadow:
    """Inverse of `dataclasses.asdict` for a shadow training that was kept as JSON."""
    places = tuple(map(_place, values["places"]))
    return Shadow(**{**values, "places": places, "together": _place(values["together"])})


def trial_from_dict(values: dict[str, Any]) -> Trial:
    """Inverse of `dataclasses.asdict` for a trial that was kept as JSON."""
    rows = {side: tuple((row[0], row[1]) for row in values[side]) for side in ("plain", "asymmetric")}
    return Trial(**{**values, **rows, "seeds": tuple(values["seeds"])})


def _place(values: dict[str, Any]) -> PlaceFinding:
    return PlaceFinding(**{**values, "steps": tuple(values["steps"]), "cosines": tuple(values["cosines"])})


def _logistic_fit(seen: Any, target: Any) -> Any:
    def cost(weights: Any) -> float:
        scores = seen @ weights
        # The intercept is not held back: it only says how common gains are.
        return float(np.sum(np.logaddexp(0, scores) - target * scores) + RIDGE * np.sum(weights[1:] ** 2))

    return optimize.minimize(cost, np.zeros(seen.shape[1])).x


def _spearman(pairs: Sequence[tuple[float | None, float]]) -> float:
    values, gains = zip(*pairs, strict=True)
    if len(set(values)) < 2 or len(set(gains)) < 2:
        return math.nan
    return float(stats.spearmanr(values, gains).statistic)
