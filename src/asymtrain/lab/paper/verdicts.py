"""Verdicts on the paper's claims, computed from evidence.

    evidence = {"primary": {"table1/vit/20": Effect(...), ...}, "sum": {...}}
    judge(claim("c01"), evidence, alternates=("sum", "all")).sentence

A claim is ruled on part by part (`rule`), and is as good as its weakest part. Two verdicts stand above the rule:

    Not yet run   fewer than 10 seeds, fewer epochs than the claim's, missing cells, or other data standing in; what
                  the numbers so far would say is kept as preliminary, and `lacks` says what is short. Missing cells
                  do not matter where those that are there contradict the claim: nothing can mend that
    Only under X  the primary reading is Contradicted, Null or Inconclusive, and the alternate reading X is Reproduced
                  with every part's p below 5% after Holm's correction over all alternates and all cells of the tables
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from asymtrain.errors import UsageError
from asymtrain.lab.paper.claims import Claim, Part, claims, epochs_wanted, family
from asymtrain.lab.paper.evidence import Effect, Evidence, Quantity
from asymtrain.lab.paper.rule import LEVEL, JudgedPart, Ruling, rule, weakest
from asymtrain.lab.paper.wording import measured_words, paper_words
from asymtrain.lab.statistics import holm

__all__ = ["Effect", "Evidence", "Judgement", "Quantity", "Verdict", "judge", "judge_all"]

Verdict = Ruling | Literal["Only under", "Not yet run"]
MOST_ALTERNATES = 4


@dataclass(frozen=True)
class Judgement:
    """What became of a claim.

    Attributes:
        claim: which one.
        verdict: by the rule; `words` names the reading of an "Only under".
        sentence: the verdict with its number, for a page.
        effect: estimate of the part that decided, in the unit of that part: percent for changes.
        low: of its interval; None where there is none.
        high: as low.
        n: the least seeds behind any part.
        reading: under which the numbers were made.
        preliminary: what the rule would say of too few rows; None where the verdict is final or nothing was run.
        lacks: what a verdict still waits for: "2 of 10 seeds, 3 of 200 epochs"; empty where it is final.
        parts: every part that could be ruled on.
        missing: labels without evidence.
        spec_ids: the runs behind it.
    """

    claim: Claim
    verdict: Verdict
    sentence: str
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    reading: str = "primary"
    preliminary: Ruling | None = None
    lacks: str = ""
    parts: tuple[JudgedPart, ...] = ()
    missing: tuple[str, ...] = ()
    spec_ids: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The verdict as it is shown."""
        return f"Only under {self.reading}" if self.verdict == "Only under" else self.verdict


def judge(
    claim: Claim,
    evidence: Mapping[str, Mapping[str, Evidence]],
    *,
    primary: str = "primary",
    alternates: Sequence[str] = (),
) -> Judgement:
    """The verdict on one claim.

    Args:
        claim: from `claims`.
        evidence: by reading and then by label (`claim.needs`); more may be there.
        primary: the reading that is asked first.
        alternates: every alternate reading that was fixed, with evidence or without: all of them are corrected for.
    """
    if len(set(alternates) - {primary}) < len(alternates) or len(alternates) > MOST_ALTERNATES:
        raise UsageError(f"at most {MOST_ALTERNATES} alternate readings, each once, got {', '.join(alternates)}")
    first = _under(claim, evidence.get(primary, {}), primary)
    if first.verdict not in ("Contradicted", "Null", "Inconclusive"):
        return first
    others = [_under(claim, evidence.get(name, {}), name) for name in alternates]
    for other in others:
        if other.verdict == "Reproduced" and _passes_holm(other, evidence, alternates):
            return _only_under(first, other)
    return _with_others(first, others)


def judge_all(
    evidence: Mapping[str, Mapping[str, Evidence]], *, primary: str = "primary", alternates: Sequence[str] = ()
) -> tuple[Judgement, ...]:
    """The verdicts on all claims, in the paper's order."""
    return tuple(judge(one, evidence, primary=primary, alternates=alternates) for one in claims())


def _under(claim: Claim, evidence: Mapping[str, Evidence], reading: str) -> Judgement:
    """The verdict under one reading alone."""
    there = {label: evidence[label] for label in claim.needs if label in evidence and evidence[label].seeds}
    missing = tuple(label for label in claim.needs if label not in there)
    ruled = [one for part in claim.parts if (one := _rule_on(part, there)) is not None]
    if not ruled:
        lacks = _lacks(claim, there, missing, claim.seeds) if there else "no row yet"
        sentence = f"Not yet run ({lacks}); the paper has {claim.paper_value} ({claim.quantity})."
        return Judgement(claim, "Not yet run", sentence, reading=reading, lacks=lacks, missing=missing)
    ruling = weakest(ruled)
    deciding = next(one for one in ruled if one.ruling == ruling)
    n = min(one.n for one in ruled)
    lacks = _lacks(claim, there, missing, n)
    more = ""
    if missing and ruling == "Contradicted" and not _lacks(claim, there, (), n):
        more, lacks = f"; {lacks}, which cannot mend it", ""
    numbers = f"{measured_words(claim, ruled, deciding)}{more}; the paper has {paper_words(claim, deciding)}."
    if lacks:
        sentence = f"Not yet run in full (preliminary: {lacks}): so far {numbers}"
    else:
        sentence = f"{ruling}{_as_null(deciding)}: {numbers}"
    return Judgement(
        claim,
        "Not yet run" if lacks else ruling,
        sentence,
        deciding.estimate,
        deciding.low,
        deciding.high,
        n,
        reading,
        ruling if lacks else None,
        lacks,
        tuple(ruled),
        missing,
        tuple(dict.fromkeys(name for one in there.values() for name in one.spec_ids)),
    )


def _rule_on(part: Part, there: Mapping[str, Evidence]) -> JudgedPart | None:
    """The ruling on a part; of a part that asks something of every cell also where one that is there fails."""
    labels = tuple(label for label in part.labels if label in there)
    if labels == part.labels:
        return rule(part, there)
    if part.how != "significant" or not labels:
        return None
    found = rule(dataclasses.replace(part, labels=labels), there)
    return found if found.ruling == "Contradicted" else None


def _lacks(claim: Claim, there: Mapping[str, Evidence], missing: Sequence[str], n: int) -> str:
    """Everything that a verdict still waits for; empty where one can be given."""
    found = [f"{len(missing)} of {len(claim.needs)} cells missing"] if missing else []
    if n < claim.seeds:
        found.append(f"{n} of {claim.seeds} seeds")
    short = [(one.epochs, epochs_wanted(label)) for label, one in there.items() if one.epochs < epochs_wanted(label)]
    if short:
        found.append("{} of {} epochs".format(*max(short, key=lambda pair: pair[1] / max(1, pair[0]))))
    found += dict.fromkeys(one.stand_in for one in there.values() if one.stand_in)
    return ", ".join(found)


def _passes_holm(other: Judgement, evidence: Mapping[str, Mapping[str, Evidence]], alternates: Sequence[str]) -> bool:
    """Are the parts' p values below 5% after Holm over alternates and cells?

    Cells that the claim does not ask for count as tests with p = 1, the hardest case for those that it does.
    """
    tables = dict.fromkeys(label.partition("/")[0] for label in other.claim.needs)
    cells = sum(family(f"{table}/") for table in tables)
    own = [one.p for one in other.parts if one.p is not None]
    beside = [
        one.p
        for name in alternates
        if name != other.reading
        for part in other.claim.parts
        if all(label in evidence.get(name, {}) for label in part.labels)
        and (one := rule(part, evidence[name])).p is not None
    ]
    size = max(len(alternates) * cells, len(own) + len(beside))
    return all(p < LEVEL for p in holm([*own, *beside], size)[: len(own)])


def _with_others(first: Judgement, others: Sequence[Judgement]) -> Judgement:
    """Names alternates that say something clear and otherwise; the verdict stays, since they were not asked first."""
    clear = [one for one in others if one.verdict in ("Reproduced", "Sign only", "Contradicted")]
    how = "not corrected for the number of readings"
    said = [f"Under {one.reading} ({how}): {one.sentence}" for one in clear if one.verdict != first.verdict]
    return dataclasses.replace(first, sentence=" ".join([first.sentence, *said]))


def _only_under(first: Judgement, other: Judgement) -> Judgement:
    sentence = (
        f"Only under {other.reading}: {other.sentence.partition(': ')[2]} Under {first.reading}: {first.sentence}"
    )
    return Judgement(
        first.claim,
        "Only under",
        sentence,
        other.effect,
        other.low,
        other.high,
        other.n,
        other.reading,
        None,
        "",
        other.parts,
        (),
        tuple(dict.fromkeys([*other.spec_ids, *first.spec_ids])),
    )


def _as_null(deciding: JudgedPart) -> str:
    return " as null" if deciding.ruling == "Reproduced" and deciding.part.how in ("null", "near zero") else ""
