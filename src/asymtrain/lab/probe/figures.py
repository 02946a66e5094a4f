"""Figures of a probe: alignment over depth and over time, and what the short paired runs gave."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asymtrain.lab.instruments.alignment.figures import LINES
from asymtrain.lab.probe import Outlook, PlaceFinding, Trial
from asymtrain.lab.report.drawing import INK, VARIANTS, figure_style, new_axes, svg_text

WINDOW = 5  # measurements that a line over time is averaged over
# Characters that fit: in a legend of two columns, in one of one, and beside the rows of a figure.
TWO_COLUMNS, LONGEST_LABEL, LONGEST_ROW = 16, 38, 22


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
        _named_rows(axes, short_names([found.place for found in places], LONGEST_ROW))
        return svg_text(figure, name, title)


def alignment_over_time(places: Sequence[PlaceFinding], name: str, title: str) -> str:
    """The cosine over the steps of the probe, a line for each place: means over five measurements."""
    with figure_style():
        return svg_text(draw_over_time(places), name, title)


def draw_over_time(places: Sequence[PlaceFinding]) -> Figure:
    """The figure of `alignment_over_time`."""
    labels = short_names([found.place for found in places], LONGEST_LABEL)
    columns = 2 if len(places) > 3 and max(map(len, labels)) <= TWO_COLUMNS else 1
    rows = -(-len(places) // columns)
    figure, axes = new_axes("step", "gradient cosine", height=2.6 + 0.2 * rows)
    axes.axhline(0, color=INK, linewidth=0.8)
    for i, (found, label) in enumerate(zip(places, labels, strict=True)):
        colour, dash = LINES[i % len(LINES)]
        steps, values = smoothed(found)
        marker = "o" if len(steps) == 1 else ""  # a line of one point is invisible
        width = 1.0 + 0.4 * (i // len(LINES))  # colours repeat; the thicker line lies deeper
        axes.plot(
            steps, values, color=colour, linestyle=dash, linewidth=width, marker=marker, markersize=5, label=label
        )
    figure.legend(loc="outside upper left", ncols=columns)
    return figure


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
    with figure_style():
        return svg_text(draw_against_gain(cases), name, title)


def draw_against_gain(cases: Sequence[tuple[str, float, float, float, float]]) -> Figure:
    """The figure of `alignment_against_gain`."""
    marks = ("o", "s", "^", "D", "v", "P", "X", "*")
    kinds = list(dict.fromkeys(case[0] for case in cases))
    columns = 2 if max(map(len, kinds)) <= TWO_COLUMNS else 1
    height = 2.8 + 0.2 * -(-len(kinds) // columns)
    figure, axes = new_axes("mean alignment in the probe", "gain after full training (%)", height=height)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.axvline(0, color=INK, linewidth=0.8)
    for i, (kind, label) in enumerate(zip(kinds, short_names(kinds, LONGEST_LABEL), strict=True)):
        colour, mark = LINES[i % len(LINES)][0], marks[i % len(marks)]
        chosen = [case for case in cases if case[0] == kind]
        for _, x, _, low, high in chosen:
            axes.plot([x, x], [low, high], color=colour, linewidth=1.0, alpha=0.6)
        xs, ys = [case[1] for case in chosen], [case[2] for case in chosen]
        axes.plot(
            xs, ys, mark, color=colour, markersize=5, markeredgewidth=0, linestyle="none",
            label=label,
        )  # fmt: skip
    figure.legend(loc="outside upper left", ncols=columns)
    return figure


def short_names(names: Sequence[str], most: int) -> list[str]:
    """Modules' names in at most so many characters: where one is longer, without the parts that all share."""
    if all(len(name) <= most for name in names):
        return list(names)
    paths = [name.split(".") for name in names]
    shared = [len(set(parts)) == 1 for parts in zip(*paths, strict=False)]  # by position
    first = shared.index(False) if False in shared else len(shared)
    ends = [len(set(parts)) == 1 for parts in zip(*(path[:0:-1] for path in paths), strict=False)]
    last = ends.index(False) if False in ends else len(ends)
    kept = [path[max(0, first - 1) : max(first + 1, len(path) - last)] for path in paths]  # and one part before
    found = [_marked(".".join(part), len(part) < len(path), most) for part, path in zip(kept, paths, strict=True)]
    return found if len(set(found)) == len(set(names)) else [_marked(name, False, most) for name in names]


def _marked(name: str, cut: bool, most: int) -> str:
    short = f"…{name}" if cut else name
    return short if len(short) <= most else f"…{short[1 - most :]}"


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
