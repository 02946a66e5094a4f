"""One self-contained HTML page, and the rows beside it.

The page depends on the runs, the command and the versions it is given, and on nothing else: built again from the
same runs it has the same bytes.
"""

import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from markupsafe import Markup

from asymtrain.lab.report import figures
from asymtrain.lab.report.files import write_files
from asymtrain.lab.report.rendering import render_template
from asymtrain.lab.report.summary import HEADINGS, MISSING, Summary, cells, duration, percent, summarise
from asymtrain.lab.runs import AUXILIARY, DEFAULTS, NAMES, Run
from asymtrain.version import VERSION

FILES = {"rows": "rows.csv", "history": "history.csv", "report": "report.html"}

# What branches are and what of them reaches the backbone; how many and how strong they are is shown elsewhere.
KINDS = [name for name in AUXILIARY if name not in ("redundancy", "alpha", "cosine_every", "cosine_by")]


def write_report(
    runs: Iterable[Run], out: Path, command: str | None = None, versions: Mapping[str, str] | None = None
) -> Summary:
    """Write rows.csv, history.csv and report.html into the folder `out`, and return what they say.

    `versions` are those the runs were trained with; by default the ones in use now.
    """
    summary = summarise(runs)
    texts = {
        "rows": summary.rows.to_csv(index=False, lineterminator="\n"),
        "history": summary.history.to_csv(index=False, lineterminator="\n"),
        "report": render(summary, command, current_versions() if versions is None else versions),
    }
    write_files(out, {FILES[kind]: text for kind, text in texts.items()})
    return summary


def render(summary: Summary, command: str | None, versions: Mapping[str, str]) -> str:
    """The page as text."""
    differing, common = _settings(summary)
    return render_template(
        "page.html.j2",
        title=_title(summary),
        lead=_lead(summary),
        comparisons=summary.comparisons,
        waiting=summary.waiting,
        untested=summary.untested,
        headings=HEADINGS,
        table=[cells(row) for row in summary.comparisons],
        charts=_charts(summary),
        seeds=_seeds(summary),
        facts=_facts(summary, command, versions),
        differing=differing,
        common=common,
    )


def current_versions() -> dict[str, str]:
    """What decides a run's numbers beside its spec."""
    return {"asymtrain": VERSION, "torch": torch.__version__, "Python": platform.python_version()}


def _title(summary: Summary) -> str:
    datasets = " and ".join(map(str, summary.rows["dataset"].unique()))
    return f"Plain and Asymmetric on {datasets}" if datasets else "Plain and Asymmetric"


def _lead(summary: Summary) -> str:
    if not summary.comparisons:
        return "No seed has been trained both plainly and with branches yet, so there is nothing to compare."
    archs = _listing([NAMES.get(arch, arch) for arch in summary.rows["arch"].unique()])
    counts = sorted({row["n"] for row in summary.comparisons})
    seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seed{'s'[: counts[0] - 1]}"
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
    found = [
        f"{name.replace('_', ' ')} {seen.pop()}"
        for name, seen in values.items()
        if len(seen) == 1 and DEFAULTS[name] not in seen
    ]
    return f" The branches are not the default ones: {_listing(found)}." if found else ""


def _listing(items: Iterable[object]) -> str:
    *most, last = [str(item) for item in items]
    return f"{', '.join(most)} and {last}" if most else last


def _charts(summary: Summary) -> dict[str, Any]:
    curves, cosines, seeds = [], [], []
    for i, (row, pairs) in enumerate(zip(summary.comparisons, summary.pairs, strict=True)):
        history = summary.history[summary.history["id"].isin([*pairs["plain_id"], *pairs["asymmetric_id"]])]
        label = row["label"]
        curves.append((label, Markup(figures.learning_curves(history, f"curve{i}", f"Learning curves, {label}"))))
        if history["cosine"].notna().any():
            drawn = figures.cosine_over_training(history, f"cosine{i}", f"Gradient cosine, {label}")
            cosines.append((label, Markup(drawn)))
        change = 100 * (pairs["asymmetric"] - pairs["plain"]) / row["plain_mean"] if row["plain_mean"] else []
        seeds.append([float(value) for value in change])
    effect = figures.improvements(summary.comparisons, seeds, "effect", "Improvement over Plain") if curves else ""
    return {"effect": Markup(effect), "curves": curves, "cosines": cosines}


def _seeds(summary: Summary) -> list[dict[str, str]]:
    found = []
    for row, pairs in zip(summary.comparisons, summary.pairs, strict=True):
        for pair in pairs.to_dict("records"):
            change = 100 * (pair["asymmetric"] - pair["plain"]) / pair["plain"] if pair["plain"] else None
            found.append(
                {
                    "label": row["label"],
                    "seed": str(pair["seed"]),
                    "plain": f"{pair['plain']:.4f}{' (diverged)' if pair['plain_diverged'] else ''}",
                    "asymmetric": f"{pair['asymmetric']:.4f}{' (diverged)' if pair['asymmetric_diverged'] else ''}",
                    "change": percent(change),
                    "cosine": MISSING if pd.isna(pair["cosine"]) else f"{pair['cosine']:+.3f}",
                    "ids": f"{pair['plain_id']} {pair['asymmetric_id']}",
                }
            )
    return found


def _facts(summary: Summary, command: str | None, versions: Mapping[str, str]) -> dict[str, str]:
    rows = summary.rows
    facts = {"Command": command} if command else {}
    facts["Runs"] = f"{len(rows)}, of which {(rows['outcome'] == 'diverged').sum()} diverged"
    facts["Training time"] = f"{duration(rows['seconds'].sum())}, summed over runs"
    facts["Device"] = ", ".join(sorted(set(rows["device"]))) or MISSING
    facts["Engine path"] = ", ".join(sorted(set(rows["path"]))) or MISSING
    facts["Versions"] = ", ".join(f"{name} {version}" for name, version in versions.items()) or MISSING
    return facts


def _settings(summary: Summary) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Settings of the Asymmetric runs: by comparison where they differ, else one value for all."""
    differing, common = {}, {}
    runs = [summary.rows[summary.rows["id"].isin(pairs["asymmetric_id"])] for pairs in summary.pairs]
    for name in DEFAULTS if runs else ():
        if name in ("arch", "seed"):
            continue
        values = [_listing([_shown(value) for value in group[name].unique()]) for group in runs]
        if len(set(values)) > 1:
            differing[name.replace("_", " ")] = values
        else:
            common[name.replace("_", " ")] = values[0]
    return differing, common


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value.strip("{}").replace('"', "") or "default"
    return "not set" if pd.isna(value) else f"{value:g}" if isinstance(value, float) else str(value)
