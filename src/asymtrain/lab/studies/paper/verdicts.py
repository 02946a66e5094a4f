"""Verdicts on the paper's claims, computed from evidence.

    evidence = {"primary": {"table1/vit/20": Effect(...), ...}, "sum": {...}}
    judge(claim("c01"), evidence, alternates=("sum", "all")).sentence

Each part of a claim gets a ruling, and the claim is as good as its weakest part. An interval is a t interval over
seeds, Bonferroni-corrected for the cells of the table (`claims.family`). docs/reproduction.md has the rule in words,
`Limits` its thresholds, `ruling_on` the usual case. Other forms of parts (`claims.Part`) use the same words with
conditions of their own, stated where they are judged. A part that the paper itself reports as no effect is reproduced
only as such. No part passes because its interval is wide, and none fails because there were few seeds or many
measurements.

Two verdicts take precedence over the rule:

    Not yet run     too few seeds, epochs or cells, or other data standing in; what the numbers so far would say is kept
                    as preliminary, and `lacks` says what is missing
    Only under X    the primary reading does not support the claim, and the alternate reading X is Reproduced, also
                    after Holm's correction over all alternates and all cells of the tables

A reading that was declared after rows were seen (`study.LATER`) is named with the verdict and cannot change it.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from asymtrain.lab.statistics import (
    Interval,
    cohen_d_av,
    direction,
    equivalence_p,
    holm,
    is_within,
    t_interval,
)
from asymtrain.lab.studies.paper.claims import Claim, Part, claims, epochs_wanted, family
from asymtrain.lab.studies.paper.evidence import Effect, Evidence, Quantity
from asymtrain.lab.studies.paper.numbers import COMPARED, cells, texts
from asymtrain.lab.studies.paper.recipe import RecipeResult
from asymtrain.lab.studies.paper.study import ALTERNATES, LATER, PRIMARY, Reading
from asymtrain.lab.texts import counted
from asymtrain.models import display_name

Ruling = Literal[
    "Reproduced",
    "Right direction, different size",
    "Inconclusive",
    "Paper's size excluded",
    "No effect",
    "Contradicted",
    "Cannot differ",
]
WEAKEST_LAST: tuple[Ruling, ...] = get_args(Ruling)
Verdict = Ruling | Literal["Only under", "Not yet run"]
ByLabel = Mapping[str, Evidence]

CLEAR: tuple[Ruling, ...] = ("Reproduced", "Right direction, different size", "Paper's size excluded", "Contradicted")
SUPPORTED: tuple[Verdict, ...] = ("Reproduced", "Right direction, different size", "Not yet run")


@dataclass(frozen=True)
class Limits:
    """Every threshold of the rule."""

    level: float = 0.05  # of an interval over all cells of a table; of Holm's tests over alternates
    band_low: float = 0.5  # of the paper's number: this and the next limit what counts as its size
    band_high: float = 1.5
    percent: float = 1.0  # of Plain, or points: a change, or a difference of changes, within it is no effect
    value: float = 0.01  # the same for a cosine or a gap
    strict_level: float = 0.001  # this and the next are what the paper's appendix E claims of every main result
    large: float = 0.8
    seeds: int = 10  # that a verdict needs; an exact identity needs one
    plain_gap: float = 10.0  # percent: if Plain is this far from the paper's, the verdict says so

    def margin(self, part: Part) -> float:
        return self.percent if part.of == "change" else self.value

    def seeds_of(self, claim: Claim) -> int:
        return 1 if claim.kind == "identity" else self.seeds


LIMITS = Limits()


# The rule, for one part of a claim under one reading


@dataclass(frozen=True)
class JudgedPart:
    """One part and its measurements."""

    part: Part
    ruling: Ruling  # the rule's result for the numbers, however few they are
    estimate: float | None  # None if a percentage of Plain is undefined (Plain is 0), or no seed is on both sides
    low: float | None = None  # of the interval; None with fewer than two seeds, and for parts without an interval
    high: float | None = None
    p: float | None = None  # of the test that the part must pass, uncorrected; None if there is no test
    n: int = 0  # seeds
    beside: float | None = None  # the mean that the estimate is compared with, if two signs must agree


def rule(part: Part, evidence: ByLabel) -> JudgedPart:
    """The ruling on one part from the evidence, which must have every label of the part."""
    if part.how in SPECIAL:
        return SPECIAL[part.how](part, evidence)
    sample = sample_of(part, evidence)
    n = len(sample)
    if _is_same(part, evidence):
        return JudgedPart(part, "Cannot differ", None, n=n)
    if n < 2:
        return JudgedPart(part, "Inconclusive", sample[0] if sample else None, n=n)
    interval = t_interval(sample, 1 - LIMITS.level, family_of(part))
    p = None if part.how == "not reversed" else interval.p
    if part.how in ("no effect", "near zero"):
        p = equivalence_p(sample, _null_margin(part))
    ruling = ruling_on(part, interval)
    if part.of == "minimum" and ruling != "Reproduced":
        ruling = "Inconclusive"  # more measured steps lower a minimum, fewer raise it
    return JudgedPart(part, ruling, interval.estimate, interval.low, interval.high, p, n)


def ruling_on(part: Part, interval: Interval) -> Ruling:
    """The ruling by an interval, according to the kind of part."""
    side = direction(interval.low, interval.high)
    if part.how in ("no effect", "near zero"):
        margin = _null_margin(part)
        if is_within(interval.low, interval.high, margin):
            return "Reproduced"
        # "no effect" is contradicted if 0 is excluded; "near zero" only if the interval lies outside the margin.
        outside = interval.low > margin or interval.high < -margin
        return "Contradicted" if (outside if part.how == "near zero" else side != 0) else "Inconclusive"
    if part.how == "not reversed":
        if side == -part.sign:
            return "Contradicted"
        # A reversal beyond the margin must be excluded: a wide interval does not pass by including 0.
        furthest_back = min(part.sign * interval.low, part.sign * interval.high)
        return "Reproduced" if furthest_back > -LIMITS.margin(part) else "Inconclusive"
    paper = None if part.how == "sign" else part.paper  # without the paper's number only the sign matters
    if side == -part.sign:
        return "Contradicted"
    if side == part.sign:
        return "Reproduced" if paper is None or has_size(interval, paper) else "Right direction, different size"
    if is_within(interval.low, interval.high, LIMITS.margin(part)):
        return "No effect"
    return "Inconclusive" if paper is None or not excludes_size(interval, paper) else "Paper's size excluded"


def has_size(interval: Interval, paper: float) -> bool:
    """Is it of the paper's size? All of it is in the band, or the estimate is and it contains the paper's number."""
    low, high = sorted((LIMITS.band_low * paper, LIMITS.band_high * paper))
    if low <= interval.low and interval.high <= high:
        return True
    return low <= interval.estimate <= high and interval.low <= paper <= interval.high


def excludes_size(interval: Interval, paper: float) -> bool:
    """Does an interval around 0 end before the band begins?"""
    return max(interval.low / paper, interval.high / paper) < LIMITS.band_low


def _null_margin(part: Part) -> float:
    """The margin within which a part that claims no effect, or near zero by the paper's own number, is reproduced."""
    return LIMITS.band_high * abs(part.paper or 0.0) if part.how == "near zero" else LIMITS.margin(part)


def _is_same(part: Part, evidence: ByLabel) -> bool:
    """Is it a difference between cells with the same runs, or a change between two sides that are one measurement?"""
    if part.how in ("difference", "not reversed"):
        runs = {evidence[label].spec_ids for label in part.labels}
        return len(runs) == 1 and runs != {()}
    return part.of == "change" and all(_effect(evidence, label).same for label in part.labels)


def family_of(part: Part) -> int:
    return max(map(family, part.labels))  # the largest among the part's tables


def sample_of(part: Part, evidence: ByLabel) -> list[float]:
    """One number for each seed; for a difference, each seed of both sides; empty if Plain is 0."""
    if part.of in ("value", "minimum"):
        return _values(evidence, part.labels[0])
    effects = [_effect(evidence, label) for label in part.labels]
    if part.of == "asymmetric":
        return list(effects[0].asymmetric)
    if part.how in ("difference", "not reversed"):
        first, second = (effect.changes for effect in effects)
        return [second[seed] - first[seed] for seed in sorted(first.keys() & second.keys())]
    # For two labels, Plain is the first's and Asymmetric the second's.
    return list(_paired(effects[0], effects[-1]).changes.values())


def _paired(plain: Effect, asymmetric: Effect) -> Effect:
    if plain is asymmetric:
        return plain
    before = dict(zip(plain.seeds, plain.plain, strict=True))
    after = dict(zip(asymmetric.seeds, asymmetric.asymmetric, strict=True))
    seeds = tuple(sorted(before.keys() & after.keys()))
    sides = [tuple(side[seed] for seed in seeds) for side in (before, after)]
    return Effect(asymmetric.label, sides[0], sides[1], asymmetric.epochs, (), seeds)


def _zero(part: Part, evidence: ByLabel) -> JudgedPart:
    """Exact: a single value that is not 0 contradicts."""
    values = _values(evidence, part.labels[0])
    worst = max(map(abs, values), default=None)
    ruling: Ruling = "Inconclusive" if worst is None else "Contradicted" if worst else "Reproduced"
    return JudgedPart(part, ruling, worst, n=len(values))


def _significant(part: Part, evidence: ByLabel) -> JudgedPart:
    """The share of cells with p < 0.001, Bonferroni over the cells, and a d_av of 0.8 or more; all need both.

    A cell without them may lack seeds: the claim is contradicted only if a cell's whole interval is not large.
    """
    effects = [_effect(evidence, label) for label in part.labels]
    n = min(len(effect.seeds) for effect in effects)
    changes = [effect.changes for effect in effects]
    if n < 2 or not all(changes):
        return JudgedPart(part, "Inconclusive", None, n=n)
    p_values = [t_interval([*change.values()]).p for change in changes]
    sizes = [cohen_d_av(effect.plain, effect.asymmetric) for effect in effects]
    passed = [
        p * family_of(part) < LIMITS.strict_level and size is not None and abs(size) >= LIMITS.large
        for p, size in zip(p_values, sizes, strict=True)
    ]
    refuted = any(_is_not_large(effect, family_of(part)) for effect in effects)
    ruling: Ruling = "Reproduced" if all(passed) else "Contradicted" if refuted else "Inconclusive"
    return JudgedPart(part, ruling, sum(passed) / len(passed), p=max(p_values), n=n)


def _is_not_large(effect: Effect, cells: int) -> bool:
    """Does the corrected interval of the change lie within a large d_av of 0?"""
    interval = t_interval([*effect.changes.values()], 1 - LIMITS.level, cells)
    deviation = np.mean([np.std(side, ddof=1) for side in (effect.plain, effect.asymmetric)])
    return is_within(interval.low, interval.high, LIMITS.large * 100 * float(deviation / np.mean(effect.plain)))


def _agreement(part: Part, evidence: ByLabel) -> JudgedPart:
    """A value and a change must both be clear; then their signs agree or not. The change is the number shown."""
    values = _values(evidence, part.labels[0])
    changes = [*_effect(evidence, part.labels[1]).changes.values()]
    n = min(len(values), len(changes))
    if n < 2:
        return JudgedPart(part, "Inconclusive", float(np.mean(changes)) if changes else None, n=n)
    value, change = (
        t_interval(sample, 1 - LIMITS.level, family(label))
        for sample, label in zip((values, changes), part.labels, strict=True)
    )
    rulings: Mapping[int, Ruling] = {1: "Reproduced", 0: "Inconclusive", -1: "Contradicted"}
    ruling = rulings[direction(value.low, value.high) * direction(change.low, change.high)]
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
    """The verdict on a claim and its numbers."""

    claim: Claim
    verdict: Verdict  # by the rule; `words` names the reading of an "Only under"
    sentence: str  # the verdict with its number and what belongs with it, for a page
    numbers: str = ""  # the sentence without its verdict
    effect: float | None = None  # estimate of the deciding part, in the unit of that part: percent for changes
    low: float | None = None  # of its interval; None if there is none
    high: float | None = None
    n: int = 0  # the fewest seeds behind any part
    reading: str = "primary"  # the reading of the numbers
    preliminary: Ruling | None = None  # what the rule would say of too few rows; None: it is final, or nothing was run
    lacks: str = ""  # what a verdict still waits for: "2 of 10 seeds, 3 of 200 epochs"; empty if it is final
    parts: tuple[JudgedPart, ...] = ()  # every part with a ruling
    missing: tuple[str, ...] = ()  # labels without evidence
    spec_ids: tuple[str, ...] = ()  # the runs behind it

    @property
    def words(self) -> str:
        return f"Only under {self.reading}" if self.verdict == "Only under" else self.verdict

    @property
    def part(self) -> JudgedPart | None:
        """The part whose numbers the judgement carries; None if no part has a ruling."""
        ruling = "Reproduced" if self.verdict == "Only under" else self.preliminary or self.verdict
        return next((part for part in self.parts if part.ruling == ruling), None)

    @property
    def paper(self) -> str:
        """The paper's number for the deciding part; without one, as it is printed."""
        return printed_words(self.claim) if self.part is None else paper_words(self.claim, self.part)

    @property
    def ours(self) -> str:
        return "" if self.part is None else ours_words(self.part)

    @property
    def interval(self) -> str:
        """The interval of our number; empty if it has none."""
        part = self.part
        if part is None or part.low is None or part.high is None:
            return ""
        return f"{number(part.low, part).removesuffix(' points')} to {number(part.high, part)}"


def judge_results(results: Iterable[RecipeResult]) -> tuple[Judgement, ...]:
    """All 36 verdicts, from the stored runs."""
    alternates = [reading.name for reading in ALTERNATES]
    return judge_all(gather(results), alternates=alternates, later=LATER)


def tested_by(results: Iterable[RecipeResult], judgements: Iterable[Judgement]) -> list[Judgement]:
    """The judgements on the claims that these recipes test."""
    names = {name for result in results for name in result.claims}
    return [judgement for judgement in judgements if judgement.claim.id in names]


def gather(results: Iterable[RecipeResult]) -> dict[str, dict[str, Evidence]]:
    """The evidence of all recipes, by reading and label.

    A claim may need a cell that an alternate reading does not touch (the best epoch's accuracy has no other cosine):
    such cells come from the primary reading. A reading with another training touches all cells.
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
    evidence: Mapping[str, ByLabel], *, alternates: Sequence[str] = (), later: Sequence[Reading] = ()
) -> tuple[Judgement, ...]:
    return tuple(judge(claim, evidence, alternates=alternates, later=later) for claim in claims())


def judge(
    claim: Claim,
    evidence: Mapping[str, ByLabel],
    *,
    alternates: Sequence[str] = (),
    later: Sequence[Reading] = (),
) -> Judgement:
    """The verdict on one claim, from evidence by reading and then by label (`claim.needs`).

    The primary reading comes first. `alternates` are all other readings fixed in advance, with evidence or without: the
    correction counts them all. `later` are readings that were declared after rows were seen: their results are added to
    the sentence.
    """
    own = evidence.get(PRIMARY.name, {})
    first = _under(claim, own, PRIMARY.name)
    beside = [*_beside(claim, own), *_plain_words(claim, own)]
    beside += [
        f"By the {reading.title} (declared on {reading.declared}, after rows were seen): {other.sentence}"
        for reading in later
        if claim.id in reading.claims and (other := _under(claim, evidence.get(reading.name, {}), reading.name)).parts
    ]
    if first.verdict in SUPPORTED:
        return _with_sentences(first, beside)
    others = [_under(claim, evidence.get(name, {}), name) for name in alternates]
    for other in others:
        if other.verdict == "Reproduced" and _passes_holm(other, evidence, alternates):
            sentence = f"Only under {other.reading}: {other.numbers} Under {first.reading}: {first.sentence}"
            spec_ids = tuple(dict.fromkeys([*other.spec_ids, *first.spec_ids]))
            only = dataclasses.replace(other, verdict="Only under", sentence=sentence, missing=(), spec_ids=spec_ids)
            return _with_sentences(only, beside)
    # Name alternates with a clear different result; the verdict stays, since the primary reading comes first.
    sentences = [
        f"Under {other.reading} (not corrected for the number of readings): {other.sentence}"
        for other in others
        if other.verdict in CLEAR and other.verdict != first.verdict
    ]
    return _with_sentences(first, [*beside, *sentences])


def _with_sentences(judgement: Judgement, sentences: Sequence[str]) -> Judgement:
    return dataclasses.replace(judgement, sentence=" ".join([judgement.sentence, *sentences]))


def _under(claim: Claim, evidence: ByLabel, reading: str) -> Judgement:
    own = {label: evidence[label] for label in claim.needs if label in evidence and evidence[label].seeds}
    missing = tuple(label for label in claim.needs if label not in own)
    parts = tuple(ruled for part in claim.parts if (ruled := _rule_on(part, own)) is not None)
    if not parts:
        lacks = _lacks(own, missing, LIMITS.seeds_of(claim), LIMITS.seeds_of(claim)) if own else "no row yet"
        paper = f"{claim.paper_value} ({claim.quantity})".replace(";", ", ")
        sentence = f"Not yet run ({lacks}); the paper has {paper}."
        return Judgement(claim, "Not yet run", sentence, reading=reading, lacks=lacks, missing=missing)
    # A claim holds as far as its weakest part does.
    ruling = max((part.ruling for part in parts), key=WEAKEST_LAST.index)
    deciding = next(part for part in parts if part.ruling == ruling)
    n = min(part.n for part in parts)
    lacks, more = _lacks(own, missing, n, LIMITS.seeds_of(claim)), ""
    if missing and ruling == "Contradicted" and not _lacks(own, (), n, LIMITS.seeds_of(claim)):
        more, lacks = f"; {lacks}, which cannot change the verdict", ""
    numbers = f"{measured_words(claim, parts, deciding)}{more}; the paper has {paper_words(claim, deciding)}."
    as_none = ruling == "Reproduced" and deciding.part.how in ("no effect", "near zero")
    opening = f"{ruling}{' as no effect' if as_none else ''}:"
    so_far = "so far it cannot differ:" if ruling == "Cannot differ" else "so far"
    return Judgement(
        claim,
        verdict="Not yet run" if lacks else ruling,
        sentence=f"{f'Not yet run in full (preliminary: {lacks}): {so_far}' if lacks else opening} {numbers}",
        numbers=numbers,
        effect=deciding.estimate,
        low=deciding.low,
        high=deciding.high,
        n=n,
        reading=reading,
        preliminary=ruling if lacks else None,
        lacks=lacks,
        parts=parts,
        missing=missing,
        spec_ids=tuple(dict.fromkeys(name for numbers in own.values() for name in numbers.spec_ids)),
    )


def _beside(claim: Claim, evidence: ByLabel) -> Iterator[str]:
    """The results of the comparisons beside a claim, if all their rows are there."""
    for words, part in claim.beside:
        own = {label: evidence[label] for label in part.labels if label in evidence}
        judged_part = _rule_on(part, own)
        if judged_part is not None and not _lacks(own, (), judged_part.n, LIMITS.seeds):
            measured = f"{number_words(judged_part)} for {part_words(judged_part)}"
            yield f"{words}: {judged_part.ruling}: {measured}; the paper has {paper_words(claim, judged_part)}."


def _plain_words(claim: Claim, evidence: ByLabel) -> Iterator[str]:
    """How far our Plain accuracy is from the paper's, if it is far: changes are in percent of it."""
    gaps = [
        100 * (float(np.mean(effect.plain)) / printed - 1)
        for label in claim.needs
        if _table(label) in COMPARED
        and isinstance(effect := evidence.get(label), Effect)
        and not _lacks({label: effect}, (), len(effect.seeds), LIMITS.seeds)
        and (printed := cells()[label].plain)
    ]
    if gaps and max(map(abs, gaps)) >= LIMITS.plain_gap:
        least, most = min(gaps), max(gaps)
        if least < 0 < most:
            words = f"{-least:.0f}% below to {most:.0f}% above"
        else:
            ends = dict.fromkeys(f"{end:.0f}" for end in sorted((abs(least), abs(most))))
            words = f"{' to '.join(ends)}% {'above' if most > 0 else 'below'}"
        yield f"Our Plain is {words} the paper's there."


def _rule_on(part: Part, evidence: ByLabel) -> JudgedPart | None:
    """The ruling on a part; if the part asks something of every cell, also if an available cell already fails."""
    labels = tuple(label for label in part.labels if label in evidence)
    if labels == part.labels:
        return rule(part, evidence)
    if part.how != "significant" or not labels:
        return None
    judged_part = rule(dataclasses.replace(part, labels=labels), evidence)
    return judged_part if judged_part.ruling == "Contradicted" else None


def _lacks(evidence: ByLabel, missing: Sequence[str], n: int, seeds: int) -> str:
    """Everything that a verdict still waits for; empty if it can be given."""
    lacks = [f"{len(missing)} of {len(missing) + len(evidence)} cells missing"] if missing else []
    if n < seeds:
        lacks.append(f"{n} of {seeds} seeds")
    epochs = [(numbers.epochs, epochs_wanted(label)) for label, numbers in evidence.items()]
    short = [(trained, needed) for trained, needed in epochs if trained < needed]
    if short:
        lacks.append("{} of {} epochs".format(*max(short, key=lambda pair: pair[1] / max(1, pair[0]))))
    lacks += dict.fromkeys(numbers.stand_in for numbers in evidence.values() if numbers.stand_in)
    return ", ".join(lacks)


def _passes_holm(other: Judgement, evidence: Mapping[str, ByLabel], alternates: Sequence[str]) -> bool:
    """Are the parts' p values below 5% after Holm over alternates and cells?

    Cells outside the claim count as tests with p = 1, the strictest case for the claim's own cells.
    """
    tables = dict.fromkeys(map(_table, other.claim.needs))
    tests = len(alternates) * sum(family(f"{table}/") for table in tables)
    own = [one.p for one in other.parts if one.p is not None]
    beside = [
        one.p
        for name in alternates
        if name != other.reading
        for part in other.claim.parts
        if all(label in evidence.get(name, {}) for label in part.labels)
        and (one := rule(part, evidence[name])).p is not None
    ]
    return all(p < LIMITS.level for p in holm([*own, *beside], max(tests, len(own) + len(beside)))[: len(own)])


def _table(label: str) -> str:
    return label.partition("/")[0]


# Numbers of a judged part in words, and labels of evidence in a reader's words

STEPS = "steps not reversed"  # parts of a trend that need no effect of their own


def number(value: float | None, judged_part: JudgedPart) -> str:
    part = judged_part.part
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


def ours_words(part: JudgedPart) -> str:
    """What was measured for a part; both numbers if two are compared."""
    if part.ruling == "Cannot differ":
        return f"the same {'surface' if _is_surface(part) else 'runs'} for every N"
    effect = number(part.estimate, part)
    return effect if part.beside is None else f"{effect} beside a cosine of {part.beside:+.4f}"


def measured_words(claim: Claim, all_parts: Sequence[JudgedPart], deciding: JudgedPart) -> str:
    """The deciding part's number, seeds and interval; for several parts also which one it is and all rulings."""
    if deciding.ruling == "Cannot differ" or len(claim.parts) == 1:
        return number_words(deciding)
    measured = f"{number_words(deciding)} for {part_words(deciding)}"
    if len(all_parts) == 1:  # the others have no rows yet
        return measured
    counts = Counter(
        STEPS if part.part.how == "not reversed" and part.ruling == "Reproduced" else part.ruling for part in all_parts
    )
    parts = ", ".join(f"{counts[name]} {name.lower()}" for name in (*WEAKEST_LAST, STEPS) if counts[name])
    return f"{measured}; of {len(all_parts)} parts {parts}"


def number_words(part: JudgedPart) -> str:
    if part.ruling == "Cannot differ":
        return str(texts()["cannot_differ"]["surface" if _is_surface(part) else "runs"])
    interval = ""
    if part.low is not None and part.high is not None:
        interval = f", interval {number(part.low, part)} to {number(part.high, part)}"
    return f"{ours_words(part)} ({counted(part.n, 'seed')}{interval})"


def _is_surface(part: JudgedPart) -> bool:
    return _table(part.part.labels[0]) in ("table5", "table6")


def part_words(part: JudgedPart) -> str:
    first, *rest = (cell_words(label) for label in part.part.labels)
    if not rest:
        return first
    if part.part.how == "significant":
        return f"{len(part.part.labels)} cells"
    return rest[0] if part.part.how == "agreement" else f"{rest[0]} against {first}"


def cell_words(label: str) -> str:
    """A label of evidence (`claims`) in a reader's words."""
    table, *rest = label.split("/")
    if table in ("table11", "table12"):
        rest[1] = f"{100 * float(rest[1]):g}"
    words = (texts()["quantities"].get(part) or display_name(part).replace("_", " ") for part in rest)
    return str(texts()["cells"][table].format(*words))


def printed_words(claim: Claim) -> str:
    """The numbers of a claim as the paper prints them, with their unit."""
    of = claim.quantity
    unit = "%" if of.endswith("%") or of.startswith("percent") else " nats" if of.startswith("nats") else ""
    return "; ".join(f"{value}{unit}" for value in claim.paper_value.split(";"))


def paper_words(claim: Claim, deciding: JudgedPart) -> str:
    if claim.kind in ("share", "identity"):
        return claim.paper_value
    effect = number(deciding.part.paper, deciding)
    if deciding.part.how != "agreement":
        return effect
    return f"{effect} beside {cells()[deciding.part.labels[0]].value:+.4f}"
