"""Verdicts on the paper's claims, computed from evidence.

    evidence = {"primary": {"table1/vit/20": Effect(...), ...}, "sum": {...}}
    judge(claim("c01"), evidence, alternates=("sum", "all")).sentence

A claim is ruled on part by part, and is as good as its weakest part. An interval is a t interval over seeds,
Bonferroni-corrected for the cells of the table (`claims.family`). The rule, in the order in which it is asked:

    Reproduced      excludes 0 in the paper's sign and meets 0.5 to 1.5 times the paper's number
    Right direction, different size
                    excludes 0 in the paper's sign and misses that band
    Contradicted    excludes 0 in the other sign
    No effect       lies within 1% of 0
    Inconclusive    otherwise

A part that the paper itself reports as no effect is reproduced only as that. Other forms of parts (`claims.Part`) use
the same words with their own condition, stated where they are ruled on. 1% is one percent of Plain for a change, one
percentage point for a difference of changes, 0.01 for a cosine or a share.

Two verdicts stand above the rule:

    Not yet run     fewer than 10 seeds, fewer epochs than the claim's, missing cells, or other data standing in; what
                    the numbers so far would say is kept as preliminary, and `lacks` says what is short. Missing cells
                    do not matter where those that are there contradict the claim: they cannot change the verdict
    Only under X    the primary reading is Contradicted, No effect or Inconclusive, and the alternate reading X is
                    Reproduced with every part's p below 5% after Holm's correction over all alternates and all cells
                    of the tables
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from asymtrain.errors import UsageError
from asymtrain.lab.paper.claims import Claim, Part, claims, epochs_wanted, family
from asymtrain.lab.paper.evidence import Effect, Evidence, Quantity
from asymtrain.lab.paper.numbers import cells
from asymtrain.lab.paper.recipe import RecipeResult
from asymtrain.lab.paper.study import ALTERNATES, PRIMARY
from asymtrain.lab.statistics import Interval, cohen_d_av, equivalence_p, holm, t_interval, welch_interval
from asymtrain.models import display_name

Ruling = Literal["Reproduced", "Right direction, different size", "Inconclusive", "No effect", "Contradicted"]
WEAKEST_LAST: tuple[Ruling, ...] = get_args(Ruling)
Verdict = Ruling | Literal["Only under", "Not yet run"]
ByLabel = Mapping[str, Evidence]

LEVEL = 0.05
BAND = (0.5, 1.5)
MARGINS = {"change": 1.0, "asymmetric": 0.01, "value": 0.01}  # within which there is no effect
STRICT_LEVEL, LARGE = 0.001, 0.8  # what the paper's appendix E claims of every main result
MOST_ALTERNATES = 4


# The rule, for one part of a claim under one reading


@dataclass(frozen=True)
class JudgedPart:
    """One part with what was measured for it."""

    part: Part
    ruling: Ruling  # what the rule says of the numbers, however few they are
    estimate: float | None  # None where a percentage of Plain is undefined (Plain is 0), or no seed is on both sides
    low: float | None = None  # of the interval; None with fewer than two seeds, and for parts that have none
    high: float | None = None
    p: float | None = None  # of the test that the part must pass, not corrected; None where there is no test
    n: int = 0  # seeds
    beside: float | None = None  # the mean that the estimate is held beside, where two signs must agree


def rule(part: Part, evidence: ByLabel) -> JudgedPart:
    """What the evidence says of one part; every label of the part must be in it."""
    if part.how in SPECIAL:
        return SPECIAL[part.how](part, evidence)
    samples = samples_of(part, evidence)
    n = min(map(len, samples)) if samples else 0
    if n < 2:
        means = [float(np.mean(sample)) for sample in samples if sample]
        return JudgedPart(part, "Inconclusive", means[-1] - sum(means[:-1]) if n else None, n=n)
    if len(samples) == 1:
        interval = t_interval(samples[0], 1 - LEVEL, family_of(part))
    else:
        interval = welch_interval(samples[0], samples[1], 1 - LEVEL, family_of(part))
    ruling, p = _ruling(part, samples[0], interval)
    return JudgedPart(part, ruling, interval.estimate, interval.low, interval.high, p, n)


def _ruling(part: Part, values: Sequence[float], interval: Interval) -> tuple[Ruling, float | None]:
    """The ruling, and the p of the test behind it."""
    margin = MARGINS[part.of]
    if part.how in ("no effect", "near zero"):
        # No effect is contradicted where 0 is excluded; near zero, only where the interval lies outside the margin.
        near = part.how == "near zero"
        margin = BAND[1] * abs(part.paper or 0.0) if near else margin
        outside = interval.low > margin or interval.high < -margin if near else _sign(interval) != 0
        within = -margin < interval.low and interval.high < margin
        ruling: Ruling = "Reproduced" if within else "Contradicted" if outside else "Inconclusive"
        return ruling, equivalence_p(values, margin)
    if part.how == "not reversed":
        return "Contradicted" if _sign(interval) == -part.sign else "Reproduced", None
    return ruling_of(interval, part.sign, margin, None if part.how == "sign" else part.paper), interval.p


def ruling_of(interval: Interval, sign: int, margin: float, paper: float | None) -> Ruling:
    """The rule; without a paper's number the sign alone is asked for."""
    if _sign(interval) == sign:
        if paper is None:
            return "Reproduced"
        low, high = sorted(factor * paper for factor in BAND)
        meets = interval.low <= high and interval.high >= low
        return "Reproduced" if meets else "Right direction, different size"
    if _sign(interval) == -sign:
        return "Contradicted"
    return "No effect" if -margin < interval.low and interval.high < margin else "Inconclusive"


def _sign(interval: Interval) -> int:
    """Of an interval that excludes 0; 0 where it does not."""
    return (interval.low > 0) - (interval.high < 0)


def family_of(part: Part) -> int:
    return max(map(family, part.labels))  # the largest among the part's tables


def samples_of(part: Part, evidence: ByLabel) -> tuple[list[float], ...]:
    """One number a seed; two samples for a difference whose sides share no seeds; none where Plain is 0."""
    if part.of == "value":
        return (_values(evidence, part.labels[0]),)
    effects = [_effect(evidence, label) for label in part.labels]
    if part.of == "asymmetric":
        return (list(effects[0].asymmetric),)
    if part.how in ("difference", "not reversed"):
        first, second = changes = [effect.changes for effect in effects]
        if common := sorted(first.keys() & second.keys()):
            return ([second[seed] - first[seed] for seed in common],)
    else:  # of two labels, Plain is the first's and Asymmetric the second's
        changes = [_paired(effects[0], effects[-1]).changes]
    return tuple(list(change.values()) for change in changes) if all(changes) else ()


def _paired(plain: Effect, asymmetric: Effect) -> Effect:
    if plain is asymmetric:
        return plain
    before = dict(zip(plain.seeds, plain.plain, strict=True))
    after = dict(zip(asymmetric.seeds, asymmetric.asymmetric, strict=True))
    seeds = tuple(sorted(before.keys() & after.keys()))
    sides = [tuple(side[seed] for seed in seeds) for side in (before, after)]
    return Effect(asymmetric.label, sides[0], sides[1], asymmetric.epochs, (), seeds)


def _zero(part: Part, evidence: ByLabel) -> JudgedPart:
    """Exact: one value that is not 0 contradicts."""
    values = _values(evidence, part.labels[0])
    worst = max(map(abs, values), default=None)
    ruling: Ruling = "Inconclusive" if worst is None else "Contradicted" if worst else "Reproduced"
    return JudgedPart(part, ruling, worst, n=len(values))


def _significant(part: Part, evidence: ByLabel) -> JudgedPart:
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


def _agreement(part: Part, evidence: ByLabel) -> JudgedPart:
    """Of a value and a change: both must be clear; then their signs agree or not. The change is what is shown."""
    values = _values(evidence, part.labels[0])
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


SPECIAL = {"zero": _zero, "significant": _significant, "agreement": _agreement}


def _effect(evidence: ByLabel, label: str) -> Effect:
    effect = evidence[label]
    assert isinstance(effect, Effect), f"{label} must be an Effect"
    return effect


def _values(evidence: ByLabel, label: str) -> list[float]:
    quantity = evidence[label]
    assert isinstance(quantity, Quantity), f"{label} must be a Quantity"
    return list(quantity.values)


# From judged parts to the verdict on a claim


@dataclass(frozen=True)
class Judgement:
    """What became of a claim."""

    claim: Claim
    verdict: Verdict  # by the rule; `words` names the reading of an "Only under"
    sentence: str  # the verdict with its number, for a page
    numbers: str = ""  # the sentence without its verdict
    effect: float | None = None  # estimate of the part that decided, in the unit of that part: percent for changes
    low: float | None = None  # of its interval; None where there is none
    high: float | None = None
    n: int = 0  # the least seeds behind any part
    reading: str = "primary"  # under which the numbers were made
    preliminary: Ruling | None = None  # what the rule would say of too few rows; None: it is final, or nothing was run
    lacks: str = ""  # what a verdict still waits for: "2 of 10 seeds, 3 of 200 epochs"; empty where it is final
    parts: tuple[JudgedPart, ...] = ()  # every part that could be ruled on
    missing: tuple[str, ...] = ()  # labels without evidence
    spec_ids: tuple[str, ...] = ()  # the runs behind it

    @property
    def words(self) -> str:
        return f"Only under {self.reading}" if self.verdict == "Only under" else self.verdict


def judge_results(results: Iterable[RecipeResult]) -> tuple[Judgement, ...]:
    """All 36 verdicts, from whatever was run."""
    alternates = [reading.name for reading in ALTERNATES]
    return judge_all(gather(results), primary=PRIMARY.name, alternates=alternates)


def gather(results: Iterable[RecipeResult]) -> dict[str, dict[str, Evidence]]:
    """The evidence of all recipes, by reading and label.

    A claim may need a cell that an alternate reading does not touch (the best epoch's accuracy has no other cosine):
    such cells are those of the primary reading. A reading that trains otherwise touches all of them.
    """
    evidence: dict[str, dict[str, Evidence]] = {}
    for result in results:
        for reading, labelled in result.evidence.items():
            evidence.setdefault(reading, {}).update(labelled)
    primary = evidence.get(PRIMARY.name, {})
    for alternate in ALTERNATES:
        own = evidence.get(alternate.name)
        if own and alternate.changes != "training":
            tables = {_table(label) for label in own}
            rest = {label: numbers for label, numbers in primary.items() if _table(label) not in tables}
            evidence[alternate.name] = {**rest, **own}
    return evidence


def judge_all(
    evidence: Mapping[str, ByLabel], *, primary: str = "primary", alternates: Sequence[str] = ()
) -> tuple[Judgement, ...]:
    return tuple(judge(claim, evidence, primary=primary, alternates=alternates) for claim in claims())


def judge(
    claim: Claim, evidence: Mapping[str, ByLabel], *, primary: str = "primary", alternates: Sequence[str] = ()
) -> Judgement:
    """The verdict on one claim, from evidence by reading and then by label (`claim.needs`).

    `primary` is the reading that is asked first. `alternates` are all others that were fixed, with evidence or
    without: all of them are corrected for.
    """
    if len(set(alternates) - {primary}) < len(alternates) or len(alternates) > MOST_ALTERNATES:
        raise UsageError(f"at most {MOST_ALTERNATES} alternate readings, each once, got {', '.join(alternates)}")
    first = _under(claim, evidence.get(primary, {}), primary)
    if first.verdict not in ("Contradicted", "No effect", "Inconclusive"):
        return first
    others = [_under(claim, evidence.get(name, {}), name) for name in alternates]
    for other in others:
        if other.verdict == "Reproduced" and _passes_holm(other, evidence, alternates):
            return dataclasses.replace(
                other,
                verdict="Only under",
                sentence=f"Only under {other.reading}: {other.numbers} Under {first.reading}: {first.sentence}",
                missing=(),
                spec_ids=tuple(dict.fromkeys([*other.spec_ids, *first.spec_ids])),
            )
    # Alternates that say something clear and otherwise are named; the verdict stays, since they were not asked first.
    clear = {"Reproduced", "Right direction, different size", "Contradicted"} - {first.verdict}
    sentences = [
        f"Under {other.reading} (not corrected for the number of readings): {other.sentence}"
        for other in others
        if other.verdict in clear
    ]
    return dataclasses.replace(first, sentence=" ".join([first.sentence, *sentences]))


def _under(claim: Claim, evidence: ByLabel, reading: str) -> Judgement:
    own = {label: evidence[label] for label in claim.needs if label in evidence and evidence[label].seeds}
    missing = tuple(label for label in claim.needs if label not in own)
    judged = tuple(ruled for part in claim.parts if (ruled := _rule_on(part, own)) is not None)
    if not judged:
        lacks = _lacks(claim, own, missing, claim.seeds) if own else "no row yet"
        sentence = f"Not yet run ({lacks}); the paper has {claim.paper_value} ({claim.quantity})."
        return Judgement(claim, "Not yet run", sentence, reading=reading, lacks=lacks, missing=missing)
    # A claim holds as far as the weakest of its parts.
    ruling = max((part.ruling for part in judged), key=WEAKEST_LAST.index)
    deciding = next(part for part in judged if part.ruling == ruling)
    n = min(part.n for part in judged)
    lacks, more = _lacks(claim, own, missing, n), ""
    if missing and ruling == "Contradicted" and not _lacks(claim, own, (), n):
        more, lacks = f"; {lacks}, which cannot change the verdict", ""
    numbers = f"{measured_words(claim, judged, deciding)}{more}; the paper has {paper_words(claim, deciding)}."
    as_none = ruling == "Reproduced" and deciding.part.how in ("no effect", "near zero")
    opening = f"{ruling}{' as no effect' if as_none else ''}:"
    return Judgement(
        claim,
        verdict="Not yet run" if lacks else ruling,
        sentence=f"{f'Not yet run in full (preliminary: {lacks}): so far' if lacks else opening} {numbers}",
        numbers=numbers,
        effect=deciding.estimate,
        low=deciding.low,
        high=deciding.high,
        n=n,
        reading=reading,
        preliminary=ruling if lacks else None,
        lacks=lacks,
        parts=judged,
        missing=missing,
        spec_ids=tuple(dict.fromkeys(name for numbers in own.values() for name in numbers.spec_ids)),
    )


def _rule_on(part: Part, evidence: ByLabel) -> JudgedPart | None:
    """The ruling on a part; of a part that asks something of every cell also where one that has rows fails."""
    labels = tuple(label for label in part.labels if label in evidence)
    if labels == part.labels:
        return rule(part, evidence)
    if part.how != "significant" or not labels:
        return None
    judged = rule(dataclasses.replace(part, labels=labels), evidence)
    return judged if judged.ruling == "Contradicted" else None


def _lacks(claim: Claim, evidence: ByLabel, missing: Sequence[str], n: int) -> str:
    """Everything that a verdict still waits for; empty where one can be given."""
    lacks = [f"{len(missing)} of {len(claim.needs)} cells missing"] if missing else []
    if n < claim.seeds:
        lacks.append(f"{n} of {claim.seeds} seeds")
    epochs = [(numbers.epochs, epochs_wanted(label)) for label, numbers in evidence.items()]
    short = [(trained, wanted) for trained, wanted in epochs if trained < wanted]
    if short:
        lacks.append("{} of {} epochs".format(*max(short, key=lambda pair: pair[1] / max(1, pair[0]))))
    lacks += dict.fromkeys(numbers.stand_in for numbers in evidence.values() if numbers.stand_in)
    return ", ".join(lacks)


def _passes_holm(other: Judgement, evidence: Mapping[str, ByLabel], alternates: Sequence[str]) -> bool:
    """Are the parts' p values below 5% after Holm over alternates and cells?

    Cells that the claim does not ask for count as tests with p = 1, the hardest case for those that it does.
    """
    tables = dict.fromkeys(map(_table, other.claim.needs))
    tests = len(alternates) * sum(family(f"{table}/") for table in tables)
    own = [judged.p for judged in other.parts if judged.p is not None]
    beside = [
        judged.p
        for name in alternates
        if name != other.reading
        for part in other.claim.parts
        if all(label in evidence.get(name, {}) for label in part.labels)
        and (judged := rule(part, evidence[name])).p is not None
    ]
    return all(p < LEVEL for p in holm([*own, *beside], max(tests, len(own) + len(beside)))[: len(own)])


def _table(label: str) -> str:
    return label.partition("/")[0]


# Numbers of a judged part in words, and labels of evidence as a reader says them

CELLS = {
    "table1": "{0}, N = {1}",
    "redundancy": "{0}, N = {1} at equal settings",
    "table2": "{1} cosine of the {0}",
    "table3": "{1} of the {0}",
    "table4": "gap of the {0} at epoch {1}",
    "table5": "landscape of the {0}, N = {1}",
    "table6": "landscape of the {0}, N = {1}",
    "table7": "{0}, {1} images a class of CIFAR-10",
    "table8": "{0}, {1} images a class",
    "table9": "{0}, {1} images a class",
    "table10": "{0} on CIFAR-10",
    "table11": "{0}, {1}% label noise on CIFAR-10",
    "table12": "{0}, {1}% label noise on CIFAR-100",
    "table14": "{0} at epoch {1}",
    "table16": "{1}, {0} of three branches active",
    "figure9": "{0} after training",
    "inference": "{0} after stripping",
}
"""By the table of a label, what its cells are."""
QUANTITIES = {"convergence": "convergence epoch", "final": "final validation accuracy"}
STEPS = "steps not reversed"  # parts of a trend that ask for no effect of their own


def number(value: float | None, judged: JudgedPart) -> str:
    part = judged.part
    if value is None:
        return "undefined"
    if part.how == "significant":
        return f"{round(value * len(part.labels))} of {len(part.labels)} cells"
    if part.how == "zero":
        return f"a largest difference of {value:.3g}"
    if part.of != "change":
        return f"{value:+.4f}"
    points = " points" if part.how in ("difference", "not reversed") else "%"
    return f"{value:+.1f}{points}"


def ours_words(judged: JudgedPart) -> str:
    """What was measured for a part; both numbers where one is held beside the other."""
    effect = number(judged.estimate, judged)
    return effect if judged.beside is None else f"{effect} beside a cosine of {judged.beside:+.4f}"


def measured_words(claim: Claim, judged: Sequence[JudgedPart], deciding: JudgedPart) -> str:
    """The deciding part's number, seeds and interval; of several parts also which one it is and how all were ruled."""
    interval = ""
    if deciding.low is not None and deciding.high is not None:
        interval = f", interval {number(deciding.low, deciding)} to {number(deciding.high, deciding)}"
    seeds = f"{deciding.n} seed{'s' if deciding.n != 1 else ''}"
    text = f"{ours_words(deciding)} ({seeds}{interval})"
    if len(claim.parts) == 1:
        return text
    counts = Counter(_kind(part) for part in judged)
    parts = ", ".join(f"{counts[name]} {name.lower()}" for name in (*WEAKEST_LAST, STEPS) if counts[name])
    return f"{text} for {part_words(deciding)}; of {len(judged)} parts {parts}"


def _kind(judged: JudgedPart) -> str:
    return STEPS if judged.part.how == "not reversed" and judged.ruling == "Reproduced" else judged.ruling


def part_words(judged: JudgedPart) -> str:
    first, *rest = (cell_words(label) for label in judged.part.labels)
    if not rest:
        return first
    if judged.part.how == "significant":
        return f"{len(judged.part.labels)} cells"
    return rest[0] if judged.part.how == "agreement" else f"{rest[0]} against {first}"


def cell_words(label: str) -> str:
    """A label of evidence (`claims`) for a reader."""
    table, *rest = label.split("/")
    if table in ("table11", "table12"):
        rest[1] = f"{100 * float(rest[1]):g}"
    return CELLS[table].format(*(QUANTITIES.get(part) or display_name(part).replace("_", " ") for part in rest))


def paper_words(claim: Claim, deciding: JudgedPart) -> str:
    if claim.kind in ("share", "identity"):
        return claim.paper_value
    effect = number(deciding.part.paper, deciding)
    if deciding.part.how != "agreement":
        return effect
    return f"{effect} beside {cells()[deciding.part.labels[0]].value:+.4f}"
