"""The results in short: the verdicts as one table and one figure, their counts, and how they changed.

The rule of `verdicts` is of 2026-11-16, with an addition of the day after (c18) and repairs of 2026-11-19 (c10, c11,
c35). The rule before it required that an interval meet 0.5 to 1.5 times the paper's number, which noise helps to do.
Only its verdicts on the rows of that day are kept, in `texts.toml`; `results/recompute.py` computes them again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from asymtrain.lab.report.figure import Bar, Bars, Figure
from asymtrain.lab.report.table import Column, Table, make_rows
from asymtrain.lab.studies.paper.numbers import texts
from asymtrain.lab.studies.paper.verdicts import LIMITS, WEAKEST_LAST, Judgement

HEADLINE = "c06"
BANDED = ("effect", "difference")  # parts that are compared with the size of the paper's number
COLOURS = {  # of verdicts, as in paper.css; others are grey
    "Reproduced": "good",
    "Right direction, different size": "plain",
    "Only under": "plain",
    "Contradicted": "bad",
}
SHARE = Column("", "number", digits=2, signed=True)

COLUMNS = (
    *map(Column, ("Claim", "The paper says", "Paper", "Ours", "Interval")),
    Column("n", "count"),
    Column("Verdict"),
)


def verdict_table(judgements: Sequence[Judgement]) -> Table:
    return Table("verdicts", "Verdicts", COLUMNS, make_rows(map(_row, judgements)), texts()["summary"]["note"])


def _row(judgement: Judgement) -> tuple[str | int | None, ...]:
    claim, part = judgement.claim, judgement.part
    says = f"{claim.text[:1].upper()}{claim.text[1:]}"
    n = None if part is None or part.ruling == "Cannot differ" else judgement.n
    ours, interval = judgement.ours or None, judgement.interval or None
    return (claim.id, says, judgement.paper, ours, interval, n, judgement.words)


def verdict_counts(judgements: Sequence[Judgement]) -> Counter[str]:
    """How many claims have each verdict, from reproduced on."""
    counts = Counter(judgement.words for judgement in judgements)
    order = {words: at for at, words in enumerate((*WEAKEST_LAST, "Not yet run"))}
    return Counter({words: counts[words] for words in sorted(counts, key=lambda words: order.get(words, 1))})


def conclusion(judgements: Sequence[Judgement], *, counted: bool = True) -> str:
    """The result in two sentences: counts by verdict, and the headline claim; empty if no claim has a verdict."""
    counts = verdict_counts(judgements)
    total = len(judgements) - counts["Not yet run"]
    if not total:
        return ""
    each = "; ".join(f"{words.lower()} {count}" for words, count in counts.items() if words != "Not yet run")
    of_all = f"{total} of {len(judgements)} claims {'has' if total == 1 else 'have'} a verdict"
    of_all += f" ({each})." if counted else "."
    headline = next((one for one in judgements if one.claim.id == HEADLINE), None)
    if headline is None or headline.verdict == "Not yet run":
        return of_all
    return (
        f"{of_all} The paper's headline, that the {headline.claim.text}, came out as {headline.words.lower()}: "
        f"{headline.ours} ({headline.interval}), where the paper has {headline.paper}."
    )


def forest(judgements: Sequence[Judgement]) -> Figure:
    """Our effects as shares of the paper's, by verdict, with their intervals: 1 is the paper's number, 0 no effect."""
    title, bars = "Our effects as shares of the paper's", list[Bar]()
    order = list(verdict_counts(judgements))
    for judgement in sorted(judgements, key=lambda one: order.index(one.words)):
        part, name = judgement.part, judgement.claim.id
        if judgement.verdict == "Not yet run":
            continue
        says = f"{name} {judgement.claim.text.partition(' (')[0]}"
        colour = COLOURS.get(judgement.verdict, "soft")
        if part is None or part.part.how not in BANDED or not part.part.paper or part.estimate is None:
            more = f"{judgement.words}: no effect to compare" if part is None else _numbers(judgement)
            bars.append(Bar(says, None, colour=colour, more=more))
            continue
        shares = [None if end is None else end / part.part.paper for end in (part.low, part.estimate, part.high)]
        ends = sorted(share for share in (shares[0], shares[2]) if share is not None)
        low, high = ends or (None, None)
        bars.append(Bar(says, shares[1], low, high, colour=colour, more=_numbers(judgement)))
    if not bars:
        return Figure("verdicts", title, (), caption="Waits for claims with a verdict.")
    marks = (LIMITS.band_low, 1.0, LIMITS.band_high)
    panel = Bars("", "ours / the paper's", "soft", tuple(bars), marks, (-2.0, 3.0), SHARE)
    caption = texts()["summary"]["forest"].format(low=marks[0], high=marks[2])
    return Figure("verdicts", title, (panel,), caption=caption)


def _numbers(judgement: Judgement) -> str:
    """Both numbers of a claim and its verdict, for its row of the table."""
    interval = f" ({judgement.interval})" if judgement.interval else ""
    return f"{judgement.words}: ours {judgement.ours}{interval}, paper {judgement.paper}"


# How the verdicts changed with the rule

CHANGED = "2026-11-16"
BEFORE: Mapping[str, str] = texts()["before"]
REASONS: Mapping[str, tuple[str, str]] = texts()["reasons"]


def history_table(judgements: Sequence[Judgement]) -> Table:
    before = {name: words for words, names in BEFORE.items() for name in names.split()}

    def row(judgement: Judgement) -> tuple[str | None, ...]:
        name = judgement.claim.id
        then, why = REASONS.get(name, (before[name], ""))
        if judgement.words != then:
            why = f"{why}; other rows than that day" if why else "other rows than that day"
        return (name, before[name], judgement.words, why or None, "after rows were seen" if name in REASONS else None)

    columns = tuple(map(Column, ("Claim", f"Before {CHANGED}", f"Since {CHANGED}", "Why", "Decided")))
    title = f"Verdicts by the rule before {CHANGED} and since"
    return Table("verdicts-history", title, columns, make_rows(map(row, judgements)))
