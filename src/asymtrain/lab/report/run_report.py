"""The report of a set of runs: one self-contained HTML page, and the rows beside it.

The page depends on the runs, the command and the versions it is given, and on nothing else: built again from the
same runs it has the same bytes.
"""

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from asymtrain.lab.report.figure import POINTS, VALUE, Bar, Bars, Figure, Headline, Line, Lines, Numbers
from asymtrain.lab.report.page import render_page, write_files
from asymtrain.lab.report.summary import COMPARISON, Summary, comparison_table, summarise
from asymtrain.lab.report.table import NOTHING, Cell, Column, Table, duration, make_rows
from asymtrain.lab.runs import AUXILIARY, DEFAULTS, Run
from asymtrain.lab.statistics import FEWEST, colour_of
from asymtrain.lab.store.provenance import torch_version
from asymtrain.lab.texts import counted, csv_cell, listing
from asymtrain.models import display_name
from asymtrain.version import VERSION

FILES = {"rows": "rows.csv", "history": "history.csv", "report": "report.html"}
BESIDE = f"Every run with all its settings is in {FILES['rows']}, every epoch in {FILES['history']}, beside this page."

COSINE = next(column for column in COMPARISON if column.name == "Gradient cosine")  # with the digits of the table
# What branches are and what they pass to the backbone; how many and how strong they are is shown elsewhere.
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
    files: str = BESIDE,
    template: str = "page.html.j2",
    **values: Any,
) -> str:
    """The page of a summary as HTML; `versions` are those that the runs were trained with.

    A `template` that adds to the page takes further values.
    """
    differing, common = _settings(summary)
    datasets = " and ".join(map(str, summary.rows["dataset"].unique()))
    effects = [effect_figure(summary)] if summary.comparisons else []
    return render_page(
        title=f"Training with and without branches on {datasets}" if datasets else "Training with and without branches",
        headline=_headline(summary),
        lead=_lead(summary),
        figures=[*effects, *_figures(summary, learning_curves), *_figures(summary, cosine_over_training)],
        tables=[verdicts_table(summary), seeds_table(summary)] if summary.comparisons else [],
        facts=_facts(summary, command, versions),
        files=files,
        differing=differing,
        common=common,
        template=template,
        **values,
    )


def verdicts_table(summary: Summary) -> Table:
    """The comparisons with their verdicts, and how to read them."""
    table, count = comparison_table(summary), len(summary.comparisons)
    rows = tuple(
        (*cells, Cell(row["verdict"], colour=colour_of(row["verdict"])))
        for cells, row in zip(table.rows, summary.comparisons, strict=True)
    )
    note = (
        "Accuracy: mean ± standard deviation over seeds; runs that diverged or stayed at chance are counted beside it. "
        "Difference: Asymmetric less Plain of one seed, in points of accuracy (percent of the test images), as the "
        "mean over seeds with its t interval, which is cut at what is possible. p: two-tailed paired t-test, not "
        f"corrected for testing {counted(count, 'comparison')}. Gradient cosine: mean cosine between the gradients of "
        "the main and the auxiliary loss over the shared weights; above zero they pull the same way. A verdict other "
        f"than inconclusive needs {FEWEST} seeds."
    )
    return Table("comparisons", "Results", (*table.columns, Column("Verdict")), rows, note)


def current_versions() -> dict[str, str]:
    """What decides a run's numbers apart from its spec."""
    return {"asymtrain": VERSION, "torch": torch_version(), "Python": platform.python_version()}


def seeds_table(summary: Summary) -> Table:
    columns = (
        Column("Backbone"),
        Column("Seed", "count"),
        Column("Plain", "number", digits=4),
        Column("Asymmetric", "number", digits=4),
        Column("Difference (points)", "number", digits=1, signed=True),
        COSINE,
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
    return Table("seeds", "Each seed", columns, make_rows(rows), detail=True)


def effect_figure(summary: Summary) -> Figure:
    """Each comparison's difference in points of accuracy with its interval; the dots are the seeds."""
    bars = []
    for row, pairs in zip(summary.comparisons, summary.pairs, strict=True):
        seeds = tuple(map(float, 100 * (pairs["asymmetric"] - pairs["plain"])))
        colour = colour_of(row["verdict"])
        bars.append(Bar(row["label"], row["points"], row["points_low"], row["points_high"], seeds, colour))
    panel = Bars("", "difference to Plain (points)", "asymmetric", tuple(bars), written=POINTS)
    caption = "Diamonds are means, bars 95% intervals, dots single seeds. Green: helps; red: hurts; grey: neither."
    return Figure("effect", "Difference to Plain", [panel], caption=caption)


def learning_curves(
    history: pd.DataFrame,
    name: str,
    label: str,
    measure: str | None = None,
    sides: tuple[str, str] = ("Plain", "Asymmetric"),
    chance: float | None = None,
) -> Figure:
    """Accuracy over training: each seed as a thin line, the mean of a variant as a thick one.

    `history` holds the epochs of one comparison. If no column is named to `measure`, it is validation accuracy if there
    is any, else training accuracy. `sides` name runs without branches and with them. `chance`, the accuracy of
    guessing, is drawn as a line if that leaves two thirds of the axis to the curves.
    """
    if measure is None:
        measure = "validation_accuracy" if history["validation_accuracy"].notna().any() else "train_accuracy"
    lines = tuple(
        _mean_line(history[history["variant"] == variant], measure, variant, called)
        for variant, called in zip(("plain", "asymmetric"), sides, strict=True)
    )
    values = [value for line in lines for seed in line.seeds for value in seed if value is not None]
    if chance is not None and values and chance >= 1.5 * min(values) - 0.5 * max(values):
        ends = (float(history["epoch"].min()), float(history["epoch"].max()))
        lines += (Line("chance", "ink", ends, (chance, chance), dash="dotted", thin=True),)
    panel = Lines("", "epoch", measure.replace("_", " "), lines, written=VALUE)
    caption = f"Thin lines are seeds, thick lines their mean. {sides[0]} is dashed."
    return Figure(f"curve{name}", f"Learning curves, {label}", [panel], caption=caption)


def cosine_over_training(history: pd.DataFrame, name: str, label: str) -> Figure:
    """Cosine between the gradients of the two objectives: each seed, their mean, and the range within epochs."""
    measured = history[(history["variant"] == "asymmetric") & history["cosine"].notna()]
    line = _mean_line(measured, "cosine", "asymmetric", "", ("cosine_min", "cosine_max"))
    panels = [Lines("", "epoch", "gradient cosine", (line,), zero=True, written=COSINE)] if len(measured) else []
    caption = (
        "Thin lines are seeds, the thick line their mean. The band spans the lowest and the highest cosine of a single "
        "step in that epoch."
    )
    return Figure(f"cosine{name}", f"Gradient cosine, {label}", panels, caption=caption)


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
    # Only epochs that every run reached: a run that ended early must not shift the mean.
    mean = over_epochs(by_epoch[measure].mean().where(by_epoch.size() == len(runs)))
    seeds = tuple(over_epochs(run[measure]) for run in runs)
    names = tuple(str(run["seed"].iloc[0]) for run in runs)
    return Line(label, variant, tuple(map(float, epochs)), mean, low, high, seeds, names)


def _figures(summary: Summary, figure_of: Callable[[pd.DataFrame, str, str], Figure]) -> list[Figure]:
    """The figure of each comparison that has one."""
    figures = []
    for i, (row, pairs) in enumerate(zip(summary.comparisons, summary.pairs, strict=True)):
        history = summary.history[summary.history["id"].isin([*pairs["plain_id"], *pairs["asymmetric_id"]])]
        figure = figure_of(history, str(i), row["label"])
        if not figure.missing:
            figures.append(figure)
    return figures


def _headline(summary: Summary) -> Headline | None:
    """The sentence of one comparison; for several, how many were helped."""
    if len(summary.comparisons) == 1:
        (row,) = summary.comparisons
        return colour_of(row["verdict"]), row["sentence"]
    counts = Counter(row["verdict"] for row in summary.comparisons)
    look = "good" if counts["helps"] else "bad" if counts["hurts"] else "soft"
    return (look, f"Branches helped in {counts['helps']} of {counts.total()} comparisons") if counts else None


def _lead(summary: Summary) -> str:
    """The text beside the headline: what was compared, and what is in no comparison."""
    parts = []
    if summary.waiting:
        parts.append(f"{counted(summary.waiting, 'finished run')} {'wait' if summary.waiting > 1 else 'waits'} for a "
                     "partner of the same seed.")  # fmt: skip
    if summary.untested:
        parts.append(f"{counted(summary.untested, 'run')} of a search {'are' if summary.untested > 1 else 'is'} never "
                     "tested.")  # fmt: skip
    unused = " ".join(parts)
    if not summary.comparisons:
        nothing = "No seed has a run without and a run with branches yet, so there is nothing to compare."
        return f"{nothing} {unused}".strip()
    archs = listing([display_name(arch) for arch in summary.rows["arch"].unique()])
    counts = sorted({row["n"] for row in summary.comparisons})
    seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else counted(counts[0], "seed")
    datasets = listing(summary.rows["dataset"].unique())
    condition = (
        f"{archs} on {datasets} with {seeds} each, without branches (Plain) and with auxiliary branches that exist "
        "during training only (Asymmetric). Both runs of a seed start from the same weights and see the same images "
        "in the same order. Compared: accuracy on test images after the last epoch." + _controls(summary)
    )
    verdicts = Counter(row["verdict"] for row in summary.comparisons)
    largest = max(summary.comparisons, key=lambda row: abs(row["points"]))
    others = f"{verdicts['hurts']} hurt, {verdicts['inconclusive']} inconclusive. Largest difference: "
    several = f"{others}{largest['sentence']}" if len(summary.comparisons) > 1 else ""
    return "\n\n".join(filter(None, [several, condition, unused]))


def _controls(summary: Summary) -> str:
    """Settings of all branches that differ from the paper's: a reader must not mistake a control for the method."""
    ids = [name for pairs in summary.pairs for name in pairs["asymmetric_id"]]
    rows = summary.rows[summary.rows["id"].isin(ids)]
    values = {name: set(rows[name]) for name in KINDS}
    controls = [
        f"{name.replace('_', ' ')} {shared.pop()}"
        for name, shared in values.items()
        if len(shared) == 1 and (DEFAULTS[name] or "") not in shared  # no layers are an empty cell
    ]
    return f" The branches differ from the paper's: {listing(controls)}." if controls else ""


def _facts(summary: Summary, command: str | None, versions: Mapping[str, str]) -> dict[str, str]:
    rows = summary.rows
    return {
        **({"Command": command} if command else {}),
        **run_facts(rows[["outcome", "seconds", "device"]].itertuples(), versions),
        "Engine path": ", ".join(sorted(set(rows["path"]))) or NOTHING,
    }


def run_facts(runs: Iterable[Any], versions: Mapping[str, str]) -> dict[str, str]:
    """What a page says of its runs, or of their rows: how many, how long they took, where and with what."""
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
    """Settings of the Asymmetric runs: by comparison if they differ, else one value for all."""
    differing, common = [], {}
    runs = [summary.rows[summary.rows["id"].isin(pairs["asymmetric_id"])] for pairs in summary.pairs]
    for name in [name for name in DEFAULTS if runs and name not in ("arch", "seed")]:
        values = [listing([_value_text(value) for value in group[name].unique()]) for group in runs]
        if len(set(values)) > 1:
            differing.append((name.replace("_", " "), *values))
        else:
            common[name.replace("_", " ")] = values[0]
    columns = (Column("Setting"), *(Column(row["label"]) for row in summary.comparisons))
    return Table("settings", "Settings that differ", columns, make_rows(differing)), common


def _value_text(value: Any) -> str:
    if isinstance(value, str):
        return value.strip("{}").replace('"', "") or "default"
    return "not set" if pd.isna(value) else f"{value:g}" if isinstance(value, float) else str(value)
