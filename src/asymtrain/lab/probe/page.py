"""What a probe found, as tables, figures and a page."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from asymtrain.lab.probe import PlaceFinding, Probe
from asymtrain.lab.probe.figures import alignment_over_depth, alignment_over_time, gains_by_alpha
from asymtrain.lab.probe.result import headline
from asymtrain.lab.report.measurement import Drawn, Listed, number, write_measurement
from asymtrain.lab.report.summary import MISSING

NAME = "probe"


def write_probe(out: Path, found: Probe, facts: Mapping[str, str]) -> dict[str, Path]:
    """Write probe.html, probe.json and the figures into the folder `out`."""
    return write_measurement(
        out,
        NAME,
        title="Probe",
        lead=f"{headline(found.advice)}\n\n{' '.join(found.reasons)}",
        tables=probe_tables(found),
        figures=_figures(found),
        facts=facts,
        document=found.to_dict(),
    )


def probe_tables(found: Probe) -> list[Listed]:
    """The places, and the short paired runs where there were any."""
    shadow = found.shadow
    tables = [
        Listed(
            "Alignment at each place",
            ("Place", "Cosine", "95% interval", "Trend", "Conflict", "Norm ratio", "Accuracy", "Speed"),
            [_place_row(one) for one in (*shadow.places, shadow.together)],
            f"Over {shadow.steps} steps in which the branches learn and do not touch the network, whose own accuracy "
            f"is {shadow.accuracy:.3f} (chance {shadow.chance:.3f}). Cosine: between main and auxiliary gradient, with "
            "its interval over batches. Trend: its change over the probe. Conflict: share of measured steps with a "
            "negative cosine. Norm ratio: auxiliary over main gradient, before alpha. Accuracy: of the branch in the "
            "last quarter. Speed: its distance from chance, over that of the network.",
        )
    ]
    if found.trials:
        tables.append(
            Listed(
                "Short paired runs",
                ("Alpha", "Plain", "Asymmetric", "Gain (points)", "95% interval", "Pairs", "Probability of a gain"),
                [
                    (
                        f"{trial.alpha:g}",
                        _accuracy([row[1] for row in trial.plain]),
                        _accuracy([row[1] for row in trial.asymmetric]),
                        _points(view.gain),
                        MISSING if view.low is None else f"{_points(view.low)} to {_points(view.high)}",
                        str(view.seeds),
                        f"{view.probability:.2f}",
                    )
                    for trial, view in zip(found.trials, found.advice.outlooks, strict=True)
                ],
                f"Runs of {found.trials[0].steps} steps, compared on {found.trials[0].held_out} held-out samples; an "
                "interval is no narrower than one of these allows. The probability is that of a gain after a full "
                "training, by the rule of the probe.",
            )
        )
    return tables


def _place_row(found: PlaceFinding) -> tuple[str, ...]:
    return (
        found.place,
        number(found.alignment, "+.2f"),
        MISSING if found.low is None or found.high is None else f"{found.low:+.2f} to {found.high:+.2f}",
        number(found.trend, "+.2f"),
        number(found.conflict, ".0%"),
        number(found.ratio, ".2g"),
        number(found.accuracy, ".3f"),
        number(found.speed, ".2f"),
    )


def _figures(found: Probe) -> list[Drawn]:
    shadow = found.shadow
    rows = [*shadow.places, shadow.together]
    caption = "Diamonds are means over the probe, bars their intervals."
    drawn = [
        Drawn("depth", "Alignment over depth", alignment_over_depth(rows, "depth", "Alignment over depth"), caption),
        Drawn(
            "time",
            "Alignment over time",
            alignment_over_time(shadow.places, "time", "Alignment over time"),
            "Means over five measurements.",
        ),
    ]
    if found.trials:
        title = "Gain in the short runs"
        svg = gains_by_alpha(found.trials, found.advice.outlooks, "gain", title)
        drawn.append(Drawn("gain", title, svg, "Diamonds are means, bars their intervals, dots single pairs."))
    return drawn


def _accuracy(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.3f}"


def _points(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:+.1f}"
