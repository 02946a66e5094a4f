"""Did the branches help? Rows of runs in, paired comparisons out.

A row is a run (`report.rows_frame` makes rows; a CSV of them read back works too). `paired` puts Plain and
Asymmetric of one seed side by side, `compare` summarises the pairs, `sentence` puts the result in words. Missing
values in a comparison are `None`: a single pair has no deviation, interval or p.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from asymtrain.errors import UsageError, unknown_name
from asymtrain.intervals import cut
from asymtrain.lab.runs import AUXILIARY, DEFAULTS
from asymtrain.lab.statistics import FEWEST, Decision, bonferroni, cohen_d_z, decide, holm, t_interval
from asymtrain.lab.statistics.estimates import DIFFERENCES
from asymtrain.models import display_name

FLAGS = ("plain_diverged", "asymmetric_diverged", "plain_at_chance", "asymmetric_at_chance")


def paired(rows: pd.DataFrame, by: Sequence[str] | None = None) -> tuple[pd.DataFrame, list[str]]:
    """One row for each pair, and the columns that distinguish the comparisons.

    Columns: those of `by`, then seed, plain_id, asymmetric_id, plain, asymmetric, plain_diverged,
    asymmetric_diverged, plain_at_chance, asymmetric_at_chance, cosine. With `by=None` comparisons differ by
    dataset, backbone and every setting in which the runs of one backbone differ. A diverged run counts with chance
    accuracy: 1 / classes, or for unbalanced classes the share of the largest one, in the column `largest_class`.
    """
    by = separating(rows) if by is None else list(by)
    for name in ("variant", "seed", "outcome", "test_accuracy", *by):
        if name not in rows.columns:
            raise unknown_name("column of the rows", name, map(str, rows.columns))
    accuracy, diverged = _accuracy(rows), rows["outcome"] == "diverged"
    low = ~diverged & (accuracy <= chance_limit(*_classes(rows)))
    identity = rows[list(dict.fromkeys(["variant", "seed", "id", *by]))]  # few of some ninety columns
    runs = identity.assign(accuracy=accuracy, diverged=diverged, at_chance=low, cosine=rows.get("mean_cosine"))
    shared, sides = [name for name in by if name not in AUXILIARY], []
    for variant, keys, more in (("plain", shared, []), ("asymmetric", by, ["cosine"])):
        side = runs[runs["variant"] == variant]
        twice = side[side.duplicated([*keys, "seed"])]
        if len(twice):
            raise UsageError(
                f"{variant} seed {twice['seed'].iloc[0]} is there twice under the same "
                f"{', '.join(keys)}: name the column in which the two differ in by="
            )
        names = {"id": f"{variant}_id", "accuracy": variant}
        names |= {flag: f"{variant}_{flag}" for flag in ("diverged", "at_chance")}
        sides.append(side[[*keys, "seed", *more, *names]].rename(columns=names))
    plain, asymmetric = sides
    pairs = asymmetric.merge(plain, on=[*shared, "seed"])
    return pairs[[*by, "seed", "plain_id", "asymmetric_id", "plain", "asymmetric", *FLAGS, "cosine"]], by


def chance_accuracy(classes: Any, largest: Any = 0.0) -> Any:
    """The accuracy of guessing: 1 / classes, or the share of the `largest` class if that is more."""
    return np.maximum(1 / classes, largest)


def chance_limit(classes: Any, largest: Any = 0.0) -> Any:
    """The accuracy up to which a run counts as guessing: chance plus a margin.

    The margin is half of chance, but at most 5 points and at most a tenth of what is left to learn.
    """
    chance = chance_accuracy(classes, largest)
    return chance + np.minimum(np.minimum(0.5 * chance, 0.05), 0.1 * (1 - chance))


def separating(rows: pd.DataFrame) -> list[str]:
    """Dataset, backbone, and every setting in which the runs of one dataset and backbone differ."""
    first = ["dataset", "arch"]
    others = [name for name in DEFAULTS if name in rows.columns and name not in (*first, "seed")]
    differing: set[str] = set()
    for side, auxiliary in ((rows, False), (rows[rows["variant"] == "asymmetric"], True)):
        names = [name for name in others if (name in AUXILIARY) == auxiliary and side[name].nunique(dropna=False) > 1]
        counts = side.groupby(first, dropna=False)[names].nunique(dropna=False)
        differing |= {name for name in names if (counts[name] > 1).any()}
    return [*first, *(name for name in others if name in differing)]


def compare(rows: pd.DataFrame, by: Sequence[str] | None = None) -> pd.DataFrame:
    """One row for each comparison, in the order of the rows.

    Columns: those of `by` (see `paired`), then
    n: pairs; plain_mean, plain_std, asymmetric_mean, asymmetric_std: accuracy over seeds (deviation over n - 1);
    points, points_low, points_high: mean of (Asymmetric - Plain) in points of accuracy, and its 95% t interval, cut
    at -100 and 100; improvement, low, high: the same in percent of Plain's mean, and not cut;
    p: two-tailed paired t-test, not corrected for the number of comparisons; d_z: Cohen's d of the differences;
    cosine: mean gradient cosine; plain_diverged, asymmetric_diverged: how many runs count as chance;
    plain_at_chance, asymmetric_at_chance: how many others have an accuracy that guessing would give.
    """
    return summarised(*paired(rows, by))


def summarised(pairs: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The result of `compare`, from the result of `paired`."""
    summaries = [
        {**dict(zip(by, key, strict=True)), **_summary(group)}
        for key, group in pairs.groupby(by, sort=False, dropna=False)
    ]
    # With dtype object, so that None does not become NaN.
    columns = [*by, *_summary(pairs.head(0))]
    return pd.DataFrame(summaries, columns=columns, dtype=object)


def corrected(comparison: pd.DataFrame) -> pd.DataFrame:
    """A frame of `compare` as one family, with columns p_bonferroni and p_holm. Rows without p do not count."""
    tested = [p for p in comparison["p"] if p is not None]
    columns = {}
    for adjust in (bonferroni, holm):
        p_values = iter(adjust(tested))
        values = [None if p is None else next(p_values) for p in comparison["p"]]
        columns[f"p_{adjust.__name__}"] = pd.Series(values, comparison.index, dtype=object)
    return comparison.assign(**columns)


def labels(comparison: pd.DataFrame) -> list[str]:
    """A short name for each row of `compare`: the backbone, and every setting in which the rows differ."""
    by = list(comparison.columns[: list(comparison.columns).index("n")])
    settings = [name for name in by if name != "arch" and comparison[name].nunique(dropna=False) > 1]
    return [
        ", ".join([display_name(row["arch"]), *(f"{name.replace('_', ' ')} {row[name]}" for name in settings)])
        for row in comparison.to_dict("records")
    ]


def decision(row: Mapping[str, Any]) -> Decision:
    """The verdict on a row of `compare`, and why: from 5 seeds on, an effect is clear if its interval excludes 0."""
    return decide(row["points"], row["points_low"], row["points_high"], row["n"])


def sentence(row: Mapping[str, Any], name: str | None = None) -> str:
    """A row of `compare` in words; `name` replaces the backbone's name, for rows that share a backbone."""
    name = name or display_name(row["arch"])
    n, points = row["n"], f"{row['points']:+.1f} points of accuracy"
    if n == 1:
        text = f"{name}: {points} in one seed; a single pair cannot tell an effect from chance."
    elif row["p"] is None and row["plain_mean"] == row["asymmetric_mean"]:
        text = f"{name}: the same test accuracy with and without branches in each of {n} seeds."
    elif row["p"] is None:
        text = f"{name}: {points}, the same difference in each of {n} seeds: no spread to judge it by."
    else:
        result = decision(row)
        ends = f"95% interval {row['points_low']:+.1f} to {row['points_high']:+.1f}, {n} seeds"
        few = f"; an effect is called from {FEWEST} seeds on" if result.reason == "few seeds" else ""
        text = f"{name}: {result.verdict}, {points} ({ends}){few}."
    count = "count" if row["plain_diverged"] + row["asymmetric_diverged"] > 1 else "counts"
    text += _runs(row, "diverged", f"diverged and {count} with chance accuracy")
    return text + _runs(row, "at_chance", "stayed at chance accuracy")


def _runs(row: Mapping[str, Any], flag: str, did: str) -> str:
    """A sentence about the runs of both sides that have a flag; empty if none has."""
    counts = [(row[f"{side}_{flag}"], side.capitalize()) for side in ("plain", "asymmetric")]
    counts_in_words = [f"{count} of {row['n']} {side} runs" for count, side in counts if count]
    return f" {' and '.join(counts_in_words)} {did}." if counts_in_words else ""


def _classes(rows: pd.DataFrame) -> "tuple[pd.Series[float], pd.Series[float]]":
    """The number of classes, and the share of the largest one, 0 if unknown."""
    names = ("classes", "largest_class")
    classes, largest = (pd.to_numeric(rows[name]) if name in rows.columns else rows["seed"] * np.nan for name in names)
    return classes, largest.fillna(0.0)


def _accuracy(rows: pd.DataFrame) -> "pd.Series[float]":
    values = pd.to_numeric(rows["test_accuracy"]).astype(float)
    diverged = rows["outcome"] == "diverged"
    if diverged.any():
        classes, largest = _classes(rows)
        if classes[diverged].isna().any():
            raise UsageError("a run diverged and counts with chance accuracy: the rows need a column 'classes'")
        values = values.mask(diverged, chance_accuracy(classes, largest))
    if values.isna().any():
        missing = rows["id"][values.isna()].iloc[0]
        raise UsageError(f"run {missing} has no test_accuracy: was it trained with test='never'?")
    return values


def _summary(pairs: pd.DataFrame) -> dict[str, Any]:
    plain, asymmetric = pairs["plain"].to_numpy(float), pairs["asymmetric"].to_numpy(float)
    n, difference = len(pairs), asymmetric - plain
    base = float(plain.mean()) if n else 0.0
    low = high = points_low = points_high = p = None
    d_z = cohen_d_z(plain.tolist(), asymmetric.tolist()) if n > 1 else None
    if d_z is not None:  # without spread a difference cannot be judged
        test = t_interval(difference)
        p = test.p
        points_low, points_high = (100 * end for end in cut(test.low, test.high, DIFFERENCES))
        if base:
            low, high = 100 * test.low / base, 100 * test.high / base
    cosine = pairs["cosine"].astype(float).mean() if pairs["cosine"].notna().any() else None
    return {
        "n": n,
        "plain_mean": base if n else None,
        "plain_std": float(plain.std(ddof=1)) if n > 1 else None,
        "asymmetric_mean": float(asymmetric.mean()) if n else None,
        "asymmetric_std": float(asymmetric.std(ddof=1)) if n > 1 else None,
        "points": float(100 * difference.mean()) if n else None,
        "points_low": points_low,
        "points_high": points_high,
        "improvement": float(100 * difference.mean() / base) if base else None,
        "low": low,
        "high": high,
        "p": p,
        "d_z": d_z,
        "cosine": None if cosine is None else float(cosine),
        **{name: int(pairs[name].sum()) for name in FLAGS},
    }
