"""What a probe found, as tables, figures and a page."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from asymtrain.lab.probe import PlaceFinding, Probe
from asymtrain.lab.probe.result import headline
from asymtrain.lab.report.figure import Bar, Bars, Figure, Line, Lines
from asymtrain.lab.report.page import write_page
from asymtrain.lab.report.table import Column, Table, interval, make_rows
from asymtrain.models import display_name

NAME = "probe"
BADGES = {"attach": "helped", "leave": "hurt", "cannot tell": ""}  # classes of the page's style
WINDOW = 5  # measurements that a line over time is averaged over
LONGEST_LABEL, LONGEST_ROW = 38, 22  # characters that fit into a legend, and beside the rows of a figure


def write_probe(out: Path, probe: Probe, facts: Mapping[str, str]) -> dict[str, Path]:
    """Write probe.html, probe.json and the figures into the folder `out`."""
    advice = probe.advice
    seen = len(advice.because)
    return write_page(
        out,
        NAME,
        title=f"Probe of {display_name(facts['Model'])} on {facts['Data']}" if "Model" in facts else "Probe",
        lead=f"{' '.join(probe.reasons[:seen])}\n\n{' '.join(probe.reasons[seen:])}".strip(),
        answers=[(BADGES[advice.verdict], advice.verdict, headline(advice))],
        tables=probe_tables(probe),
        figures=probe_figures(probe),
        facts=facts,
        document=probe.to_dict(),
    )


def probe_tables(probe: Probe) -> list[Table]:
    """The places, and the short paired runs where there were any."""
    shadow = probe.shadow
    columns = (
        Column("Place"),
        Column("Cosine", "number", digits=2, signed=True),
        Column("95% interval", "number", digits=2, signed=True),
        Column("Trend", "number", digits=2, signed=True),
        Column("Conflict", "share", digits=0),
        Column("Norm ratio", "number", digits=2, significant=True),
        Column("Accuracy", "number"),
        Column("Speed", "number", digits=2),
    )
    rows = make_rows(
        (at.place, at.alignment, interval(at.low, at.high), at.trend, at.conflict, at.ratio, at.accuracy, at.speed)
        for at in (*shadow.places, shadow.together)
    )
    note = (
        f"Over {shadow.steps} steps in which the branches learn and do not touch the network, whose own accuracy "
        f"is {shadow.accuracy:.3f} (chance {shadow.chance:.3f}). Cosine: between main and auxiliary gradient, with "
        "its interval over batches. Trend: its change over the probe. Conflict: share of measured steps with a "
        "negative cosine. Norm ratio: auxiliary over main gradient, before alpha. Accuracy: of the branch in the "
        "last quarter. Speed: its distance from chance, over that of the network."
    )
    places = Table("places", "Alignment at each place", columns, rows, note)
    return [places, _trials_table(probe)] if probe.trials else [places]


def _trials_table(probe: Probe) -> Table:
    columns = (
        Column("Alpha", "number", digits=None),
        Column("Plain", "number"),
        Column("Asymmetric", "number"),
        Column("Gain (points)", "number", digits=1, signed=True),
        Column("95% interval", "number", digits=1, signed=True),
        Column("Pairs", "count"),
        Column("Probability of a gain", "number", digits=2),
    )
    rows = make_rows(
        (
            trial.alpha,
            *(sum(end for _, end in rows) / len(rows) for rows in (trial.plain, trial.asymmetric)),
            _points(outlook.gain),
            interval(_points(outlook.low), _points(outlook.high)),
            outlook.seeds,
            outlook.probability,
        )
        for trial, outlook in zip(probe.trials, probe.advice.outlooks, strict=True)
    )
    note = (
        f"Runs of {probe.trials[0].steps} steps, compared on {probe.trials[0].held_out} held-out samples; an "
        "interval is no narrower than one of these allows. The probability is that of a gain after a full "
        "training, by the rule of the probe."
    )
    return Table("trials", "Short paired runs", columns, rows, note)


def probe_figures(probe: Probe) -> list[Figure]:
    shadow = probe.shadow
    figures = [alignment_over_depth([*shadow.places, shadow.together]), alignment_over_time(shadow.places)]
    if probe.trials:
        bars = []
        for trial, outlook in zip(probe.trials, probe.advice.outlooks, strict=True):
            gain, low, high = (_points(share) for share in (outlook.gain, outlook.low, outlook.high))
            seeds = tuple(100 * difference for difference in trial.differences)
            bars.append(Bar(f"alpha {trial.alpha:g}", gain, low, high, seeds))
        caption = "Diamonds are means, bars their intervals, dots single pairs."
        panel = Bars("", "gain in held-out accuracy (points)", "asymmetric", tuple(bars))
        figures.append(Figure("gain", "Gain in the short runs", [panel], caption=caption))
    return figures


def alignment_over_depth(findings: Sequence[PlaceFinding]) -> Figure:
    names = short_names([finding.place for finding in findings], LONGEST_ROW)
    bars = [Bar(name, at.alignment, at.low, at.high) for name, at in zip(names, findings, strict=True)]
    caption = "Diamonds are means over the probe, bars their intervals."
    panel = Bars("", "gradient cosine", "asymmetric", tuple(bars))
    return Figure("depth", "Alignment over depth", [panel], caption=caption)


def alignment_over_time(findings: Sequence[PlaceFinding]) -> Figure:
    """The cosine over the steps of the probe, a line for each place: means over five measurements."""
    labels = short_names([finding.place for finding in findings], LONGEST_LABEL)
    lines = []
    for i, (label, finding) in enumerate(zip(labels, findings, strict=True)):
        steps, cosines = smoothed(finding)
        lines.append(Line(label, i, tuple(steps), tuple(cosines)))
    panel = Lines("", "step", "gradient cosine", tuple(lines), zero=True)
    return Figure("time", "Alignment over time", [panel], caption=f"Means over {WINDOW} measurements.")


def alignment_against_gain(cases: Sequence[tuple[str, float, float, float, float]], name: str, title: str) -> Figure:
    """One point for each case: (kind, alignment, gain, low, high), gains in percent of Plain; a mark for each kind."""
    kinds = list(dict.fromkeys(kind for kind, *_ in cases))
    lines = []
    for i, (kind, label) in enumerate(zip(kinds, short_names(kinds, LONGEST_LABEL), strict=True)):
        x, gains, lows, highs = zip(*(numbers for of, *numbers in cases if of == kind), strict=True)
        lines.append(Line(label, i, x, gains, lows, highs, marker=True, joined=False))
    labels = ("mean alignment in the probe", "gain after full training (%)")
    return Figure(name, title, [Lines("", *labels, tuple(lines), zero=True, marks=(0.0,))])


def short_names(names: Sequence[str], most: int) -> list[str]:
    """Modules' names in at most so many characters: where one is longer, without the parts that all share."""
    if all(len(name) <= most for name in names):
        return list(names)

    def count_shared(paths: Iterable[list[str]]) -> int:
        """How many of the first parts are the same in all."""
        return len(list(takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))))

    def fit(name: str) -> str:
        return name if len(name) <= most else f"…{name[1 - most :]}"

    paths = [name.split(".") for name in names]
    first, last = count_shared(paths), count_shared(path[:0:-1] for path in paths)
    short = []
    for path in paths:
        kept = path[max(0, first - 1) : max(first + 1, len(path) - last)]  # and one part before
        short.append(fit(f"{'…' if len(kept) < len(path) else ''}{'.'.join(kept)}"))
    return short if len(set(short)) == len(set(names)) else list(map(fit, names))


def smoothed(finding: PlaceFinding) -> tuple[list[float], list[float]]:
    """Means of up to five neighbouring measurements, at their mean step."""
    seen = [(step, value) for step, value in zip(finding.steps, finding.cosines, strict=True) if value is not None]
    parts = [seen[i : i + WINDOW] for i in range(0, len(seen), WINDOW)]
    steps = [sum(step for step, _ in part) / len(part) for part in parts]
    return steps, [sum(value for _, value in part) / len(part) for part in parts]


def _points(share: float | None) -> float | None:
    return None if share is None else 100 * share
