"""The report of a set of runs: one self-contained HTML page, and the rows beside it.

The page depends on the runs, the command and the versions it is given, and on nothing else: built again from the
same runs it has the same bytes.
"""

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from asymtrain.lab.report.figure import POINTS, SIGNED, VALUE, Bar, Bars, Figure, Line, Lines, Numbers
from asymtrain.lab.report.live import embed
from asymtrain.lab.report.page import render_template, write_files
from asymtrain.lab.report.summary import Summary, comparison_table, summarise
from asymtrain.lab.report.table import NOTHING, Cell, Column, Table, duration, make_rows, value_text
from asymtrain.lab.runs import AUXILIARY, DEFAULTS, Run
from asymtrain.lab.statistics import colour_of
from asymtrain.lab.store.provenance import torch_version
from asymtrain.lab.texts import counted, csv_cell
from asymtrain.models import display_name
from asymtrain.version import VERSION

FILES = {"rows": "rows.csv", "history": "history.csv", "report": "report.html"}

# What branches are and what of them reaches the backbone; how many and how strong they are is shown elsewhere.
KINDS = [name for name in AUXILIARY if name not in ("redundancy", "alpha", "cosine_every")]


def write_report(
    runs: Iterable[Run], out: Path, command: str | None = None, versions: Mapping[str, str] | None = None
) -> Summary:
    """Write rows.csv, history.csv and report.html into the folder `out`, and return what they say.

    `versions` are those the runs were trained with; by default the ones in use now.
    """
    summary = summarise(runs)
    texts = {
        "rows": _csv(summary.rows),
        "history": _csv(summary.history),
        "report": render(summary, command, current_versions() if versions is None else versions),
    }
    write_files(out, {FILES[kind]: text for kind, text in texts.items()})
    return summary


def _csv(frame: pd.DataFrame) -> str:
    return frame.map(csv_cell).to_csv(index=False, lineterminator="\n")


def render(
    summary: Summary,
    command: str | None,
    versions: Mapping[str, str],
    *,
    template: str = "report.html.j2",
    figures: Sequence[Figure] = (),
    **values: Any,
) -> str:
    """The page of a summary as HTML; `versions` are those that the runs were trained with.

    A `template` that adds to the report's takes further figures and values.
    """
    differing, common = _settings(summary)
    datasets = " and ".join(map(str, summary.rows["dataset"].unique()))
    effects = [effect_figure(summary)] if summary.comparisons else []
    curves, cosines = (_figures(summary, figure_of) for figure_of in (learning_curves, cosine_over_training))
    return render_template(
        template,
        figures=[*figures, *effects, *(figure for _, figure in (*curves, *cosines))],
        title=f"Plain and Asymmetric on {datasets}" if datasets else "Plain and Asymmetric",
        lead=_lead(summary),
        headline=_headline(summary),
        answers=[(colour_of(row["verdict"]), row["sentence"]) for row in summary.comparisons],
        waiting=summary.waiting,
        untested=summary.untested,
        comparisons=comparison_table(summary),
        effects=effects,
        curves=curves,
        cosines=cosines,
        embed=embed,
        seeds=seeds_table(summary),
        facts=_facts(summary, command, versions),
        differing=differing,
        common=common,
        **values,
    )


def current_versions() -> dict[str, str]:
    """What decides a run's numbers beside its spec."""
    return {"asymtrain": VERSION, "torch": torch_version(), "Python": platform.python_version()}


def seeds_table(summary: Summary) -> Table:
    columns = (
        Column("Backbone"),
        Column("Seed", "count"),
        Column("Plain", "number", digits=4),
        Column("Asymmetric", "number", digits=4),
        Column("Difference (points)", "number", digits=1, signed=True),
        Column("Cosine", "number", signed=True),
        Column("Run ids"),
    )
    rows = []
    for row, pairs in zip(summary.comparisons, summary.pairs, strict=True):
        for pair in pairs.to_dict("records"):
            accuracies = []
            for side in ("plain", "asymmetric"):
                mark = "(diverged)" if pair[f"{side}_diverged"] else "(at chance)" if pair[f"{side}_at_chance"] else ""
                accuracies.append(Cell(pair[side], (pair[f"{side}_id"],), mark=mark))
            points = 100 * (pair["asymmetric"] - pair["plain"])
            cosine = None if pd.isna(pair["cosine"]) else pair["cosine"]
            ids = f"{pair['plain_id']} {pair['asymmetric_id']}"
            rows.append((row["label"], pair["seed"], *accuracies, points, cosine, ids))
    return Table("seeds", "Each seed", columns, make_rows(rows))


def effect_figure(summary: Summary) -> Figure:
    """Each comparison's difference in points of accuracy with its interval; the dots are the seeds."""
    bars = []
    for row, pairs in zip(summary.comparisons, summary.pairs, strict=True):
        seeds = tuple(map(float, 100 * (pairs["asymmetric"] - pairs["plain"])))
        colour = colour_of(row["verdict"])
        bars.append(Bar(row["label"], row["points"], row["points_low"], row["points_high"], seeds, colour))
    panel = Bars("", "difference to Plain (points of accuracy)", "asymmetric", tuple(bars), written=POINTS)
    caption = "Diamonds are means, bars 95% intervals, dots single seeds. Green: helps; red: hurts; grey: neither."
    return Figure("effect", "Difference to Plain", [panel], caption=caption)


def learning_curves(
    history: pd.DataFrame,
    name: str,
    label: str,
    measure: str | None = None,
    asymmetric: str = "Asymmetric",
    chance: float | None = None,
) -> Figure:
    """Accuracy over training: each seed as a thin line, the mean of a variant as a thick one.

    `history` holds the epochs of one comparison. Where no column is named to `measure`, validation accuracy if there is
    any, else training accuracy. `asymmetric` is what runs with branches are called. `chance`, the accuracy of
    guessing, has a line where that leaves two thirds of the axis to the curves.
    """
    if measure is None:
        measure = "validation_accuracy" if history["validation_accuracy"].notna().any() else "train_accuracy"
    lines = tuple(
        _mean_line(history[history["variant"] == variant], measure, variant, called)
        for variant, called in (("plain", "Plain"), ("asymmetric", asymmetric))
    )
    values = [value for line in lines for seed in line.seeds for value in seed if value is not None]
    if chance is not None and values and chance >= 1.5 * min(values) - 0.5 * max(values):
        ends = (float(history["epoch"].min()), float(history["epoch"].max()))
        lines += (Line("chance", "ink", ends, (chance, chance), dash="dotted", thin=True),)
    panel = Lines("", "epoch", measure.replace("_", " "), lines, written=VALUE)
    return Figure(f"curve{name}", f"Learning curves, {label}", [panel])


def cosine_over_training(history: pd.DataFrame, name: str, label: str) -> Figure:
    """Cosine between the gradients of the two objectives: each seed, their mean, and the range within epochs."""
    measured = history[(history["variant"] == "asymmetric") & history["cosine"].notna()]
    line = _mean_line(measured, "cosine", "asymmetric", "", ("cosine_min", "cosine_max"))
    panels = [Lines("", "epoch", "gradient cosine", (line,), zero=True, written=SIGNED)] if len(measured) else []
    return Figure(f"cosine{name}", f"Gradient cosine, {label}", panels)


def _mean_line(
    history: pd.DataFrame, measure: str, variant: str, label: str, ends: tuple[str, str] | None = None
) -> Line:
    epochs = sorted(history["epoch"].unique())
    runs = [run.set_index("epoch") for _, run in history.groupby("id", sort=False)]
    by_epoch = history.groupby("epoch")

    def over_epochs(values: "pd.Series[Any]") -> Numbers:
        return tuple(None if pd.isna(value) else float(value) for value in values.reindex(epochs))

    low = over_epochs(by_epoch[ends[0]].min()) if ends else ()
    high = over_epochs(by_epoch[ends[1]].max()) if ends else ()
    # Over the epochs that every run reached: a run that ended early must not move the mean by leaving it.
    mean = over_epochs(by_epoch[measure].mean().where(by_epoch.size() == len(runs)))
    seeds = tuple(over_epochs(run[measure]) for run in runs)
    names = tuple(str(run["seed"].iloc[0]) for run in runs)
    return Line(label, variant, tuple(map(float, epochs)), mean, low, high, seeds, names)


def _figures(summary: Summary, figure_of: Callable[[pd.DataFrame, str, str], Figure]) -> list[tuple[str, Figure]]:
    """The figure of each comparison that has one, under the comparison's name."""
    figures = []
    for i, (row, pairs) in enumerate(zip(summary.comparisons, summary.pairs, strict=True)):
        history = summary.history[summary.history["id"].isin([*pairs["plain_id"], *pairs["asymmetric_id"]])]
        figure = figure_of(history, str(i), row["label"])
        if not figure.missing:
            figures.append((row["label"], figure))
    return figures


def _headline(summary: Summary) -> tuple[str, str, str] | None:
    """The difference of one comparison; of several, how many were helped, and the largest difference."""
    if not summary.comparisons:
        return None
    largest = max(summary.comparisons, key=lambda row: abs(row["points"]))
    if len(summary.comparisons) == 1:
        return colour_of(largest["verdict"]), value_text(largest["points"], POINTS), largest["sentence"]
    counts = Counter(row["verdict"] for row in summary.comparisons)
    look = "good" if counts["helps"] else "bad" if counts["hurts"] else "soft"
    words = f"{counts['hurts']} hurt, {counts['inconclusive']} inconclusive. Largest difference: {largest['sentence']}"
    return look, f"{counts['helps']} of {counts.total()} helped", words


def _lead(summary: Summary) -> str:
    if not summary.comparisons:
        return "No seed has been trained both plainly and with branches yet, so there is nothing to compare."
    archs = _listing([display_name(arch) for arch in summary.rows["arch"].unique()])
    counts = sorted({row["n"] for row in summary.comparisons})
    seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else counted(counts[0], "seed")
    datasets = _listing(summary.rows["dataset"].unique())
    return (
        f"{archs} learnt {datasets} with {seeds} each: once plainly, and once with auxiliary branches that exist "
        "during training only. Both start from the same weights and see the same images in the same order. What is "
        "compared is the accuracy on test images after the last epoch." + _controls(summary)
    )


def _controls(summary: Summary) -> str:
    """What all the branches have that is not the default: a reader must not take a control for the method."""
    ids = [name for pairs in summary.pairs for name in pairs["asymmetric_id"]]
    rows = summary.rows[summary.rows["id"].isin(ids)]
    values = {name: set(rows[name]) for name in KINDS}
    controls = [
        f"{name.replace('_', ' ')} {shared.pop()}"
        for name, shared in values.items()
        if len(shared) == 1 and (DEFAULTS[name] or "") not in shared  # no layers are an empty cell
    ]
    return f" The branches are not the default ones: {_listing(controls)}." if controls else ""


def _listing(items: Iterable[object]) -> str:
    *most, last = [str(item) for item in items]
    return f"{', '.join(most)} and {last}" if most else last


def _facts(summary: Summary, command: str | None, versions: Mapping[str, str]) -> dict[str, str]:
    rows = summary.rows
    return {
        **({"Command": command} if command else {}),
        **run_facts(rows[["outcome", "seconds", "device"]].itertuples(), versions),
        "Engine path": ", ".join(sorted(set(rows["path"]))) or NOTHING,
    }


def run_facts(runs: Iterable[Any], versions: Mapping[str, str]) -> dict[str, str]:
    """What a page says of its runs, or of the rows of them: how many, how long they took, where and with what."""
    members = list(runs)
    return {
        "Runs": f"{len(members)}, of which {sum(run.outcome == 'diverged' for run in members)} diverged",
        "Training time": f"{duration(sum(run.seconds for run in members))}, summed over runs",
        "Device": ", ".join(sorted({run.device for run in members})) or NOTHING,
        "Versions": versions_text(versions) or NOTHING,
    }


def versions_text(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _settings(summary: Summary) -> tuple[Table, dict[str, str]]:
    """Settings of the Asymmetric runs: by comparison where they differ, else one value for all."""
    differing, common = [], {}
    runs = [summary.rows[summary.rows["id"].isin(pairs["asymmetric_id"])] for pairs in summary.pairs]
    for name in [name for name in DEFAULTS if runs and name not in ("arch", "seed")]:
        values = [_listing([_shown(value) for value in group[name].unique()]) for group in runs]
        if len(set(values)) > 1:
            differing.append((name.replace("_", " "), *values))
        else:
            common[name.replace("_", " ")] = values[0]
    columns = (Column("Setting"), *(Column(row["label"]) for row in summary.comparisons))
    return Table("settings", "Settings that differ", columns, make_rows(differing)), common


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value.strip("{}").replace('"', "") or "default"
    return "not set" if pd.isna(value) else f"{value:g}" if isinstance(value, float) else str(value)
