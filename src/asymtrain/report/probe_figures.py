"""Figures of a probe: alignment over depth and over time, and what the short paired runs gave."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from asymtrain.report.alignment_figures import LINES
from asymtrain.report.drawing import INK, VARIANTS, figure_style, new_axes, svg_text
from asymtrain.resonance import Outlook, PlaceFinding, Trial

WINDOW = 5  # measurements that a line over time is averaged over


def alignment_over_depth(places: Sequence[PlaceFinding], name: str, title: str) -> str:
    """Mean alignment of each place with its interval, the first place at the top."""
    with figure_style():
        figure, axes = new_axes("gradient cosine", "", height=0.9 + 0.32 * len(places))
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        axes.axvline(0, color=INK, linewidth=0.8)
        colour = VARIANTS["asymmetric"][0]
        for y, found in enumerate(places):
            if found.low is not None and found.high is not None:
                axes.plot([found.low, found.high], [y, y], color=colour, linewidth=2.2)
            if found.alignment is not None:
                axes.plot([found.alignment], [y], "D", color=colour, markersize=6, markeredgewidth=0)
        _named_rows(axes, [found.place for found in places])
        return svg_text(figure, name, title)


def alignment_over_time(places: Sequence[PlaceFinding], name: str, title: str) -> str:
    """The cosine over the steps of the probe, a line for each place: means over five measurements."""
    with figure_style():
        figure, axes = new_axes("step", "gradient cosine", height=2.6 + 0.18 * len(places))
        axes.axhline(0, color=INK, linewidth=0.8)
        for i, found in enumerate(places):
            colour, dash = LINES[i % len(LINES)]
            steps, values = smoothed(found)
            marker = "o" if len(steps) == 1 else ""  # a line of one point is invisible
            width = 1.0 + 0.4 * (i // len(LINES))  # colours repeat; the thicker line lies deeper
            axes.plot(
                steps, values, color=colour, linestyle=dash, linewidth=width, marker=marker, markersize=5,
                label=found.place,
            )  # fmt: skip
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=1 if len(places) < 4 else 2)
        return svg_text(figure, name, title)


def gains_by_alpha(trials: Sequence[Trial], outlooks: Sequence[Outlook], name: str, title: str) -> str:
    """Points of held-out accuracy gained in the short runs at each alpha, with intervals; the dots are the seeds."""
    with figure_style():
        figure, axes = new_axes("gain in held-out accuracy (points)", "", height=0.9 + 0.45 * len(trials))
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        axes.axvline(0, color=INK, linewidth=0.8)
        colour = VARIANTS["asymmetric"][0]
        for y, (trial, found) in enumerate(zip(trials, outlooks, strict=True)):
            dots = [100 * value for value in trial.differences]
            axes.plot(dots, [y + 0.2] * len(dots), "o", color=colour, markersize=4, alpha=0.45, markeredgewidth=0)
            if found.low is not None and found.high is not None:
                axes.plot([100 * found.low, 100 * found.high], [y, y], color=colour, linewidth=2.2)
            if found.gain is not None:
                axes.plot([100 * found.gain], [y], "D", color=colour, markersize=6, markeredgewidth=0)
        _named_rows(axes, [f"alpha {trial.alpha:g}" for trial in trials])
        return svg_text(figure, name, title)


def alignment_against_gain(cases: Sequence[tuple[str, float, float, float, float]], name: str, title: str) -> str:
    """One point for each case: (kind, alignment, gain, low, high), gains in percent of Plain; a mark for each kind."""
    marks = ("o", "s", "^", "D", "v", "P")
    with figure_style():
        figure, axes = new_axes("mean alignment in the probe", "gain after full training (%)", height=3.2)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.axvline(0, color=INK, linewidth=0.8)
        for i, kind in enumerate(dict.fromkeys(case[0] for case in cases)):
            colour, mark = LINES[i % len(LINES)][0], marks[i % len(marks)]
            for _, x, _, low, high in (case for case in cases if case[0] == kind):
                axes.plot([x, x], [low, high], color=colour, linewidth=1.0, alpha=0.6)
            xs, ys = [c[1] for c in cases if c[0] == kind], [c[2] for c in cases if c[0] == kind]
            axes.plot(xs, ys, mark, color=colour, markersize=5, markeredgewidth=0, linestyle="none", label=kind)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
        return svg_text(figure, name, title)


def smoothed(found: PlaceFinding) -> tuple[list[float], list[float]]:
    """Means of up to five neighbouring measurements, at their mean step."""
    seen = [(step, value) for step, value in zip(found.steps, found.cosines, strict=True) if value is not None]
    parts = [seen[i : i + WINDOW] for i in range(0, len(seen), WINDOW)]
    steps = [sum(step for step, _ in part) / len(part) for part in parts]
    return steps, [sum(value for _, value in part) / len(part) for part in parts]


def _named_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)
