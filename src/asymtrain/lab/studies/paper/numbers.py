"""The paper's printed numbers, as data: every table cell under a label such as "table1/vit/20".

The numbers are in `printed/*.csv` and nowhere else. Tables that the paper prints twice have one name: 15 is 2, 17 is
10. A label names the table, then what distinguishes its cells:

    table1/ARCH/N            test accuracy, CIFAR-100          table9/vit/IMAGES     few-shot, CIFAR-100
    table2/ARCH/STATISTIC    cosine: final, average, min, max  table10/ARCH          test accuracy, CIFAR-10
    table3/ARCH/WHAT         convergence (epoch), final        table11/mlp/NOISE     label noise, CIFAR-10
    table4/ARCH/EPOCH        training minus validation         table12/mlp/NOISE     label noise, CIFAR-100
    table5/mlp/N/STATISTIC   landscape: std_loss, range_loss,  table14/METRIC/EPOCH  attention
    table6/ARCH/N/STATISTIC      mean_grad                     table16/WHICH/ARCH    dual search; all or one active
    table7|table8/mlp/IMAGES few-shot, CIFAR-10 and -100       table13               `hyperparameters`
"""

import csv
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from asymtrain.errors import UsageError, unknown_name

Row = Mapping[str, str]
_FOLDER = resources.files("asymtrain.lab.studies.paper")


@dataclass(frozen=True)
class Printed:
    """A cell as the paper prints it. `improvement` is in percent of Plain, computed if it is not printed."""

    label: str
    plain: float | None = None
    asymmetric: float | None = None
    plain_std: float | None = None
    asymmetric_std: float | None = None
    improvement: float | None = None
    p: float | None = None
    value: float | None = None  # of a cell with one side alone (table 2)


@dataclass(frozen=True)
class Hyperparameters:
    """A row of Table 13."""

    arch: str
    redundancy: int
    learning_rate: float
    weight_decay: float
    alpha: float


@cache
def texts() -> Mapping[str, Mapping[str, Any]]:
    """The study's texts, by section."""
    return tomllib.loads(_FOLDER.joinpath("texts.toml").read_text(encoding="utf-8"))


def note_text(name: str, /, **values: Any) -> str:
    """A note of a table or a caption, filled in."""
    return str(texts()["notes"][name].format(**values))


@cache
def rows(name: str) -> tuple[Row, ...]:
    """The rows of one CSV file, by its name without the ending; values are the printed texts."""
    folder = _FOLDER / "printed"
    tables = sorted(file.name.removesuffix(".csv") for file in folder.iterdir() if file.name.endswith(".csv"))
    if name not in tables:
        raise unknown_name("table of the paper", name, tables)
    return tuple(csv.DictReader((folder / f"{name}.csv").read_text(encoding="utf-8").splitlines()))


@cache
def cells() -> Mapping[str, Printed]:
    return {cell.label: cell for cell in (*_accuracies(), *_cosines(), *_changes(), *_landscapes())}


def printed(label: str) -> Printed:
    if label not in cells():
        raise unknown_name("cell of the paper", label, cells())
    return cells()[label]


def labels(table: str) -> tuple[str, ...]:
    """The labels of one table's cells: the family over which its tests are corrected."""
    names = tuple(label for label in cells() if label.startswith(f"{table}/"))
    if not names:
        raise unknown_name("table of the paper", table, dict.fromkeys(label.partition("/")[0] for label in cells()))
    return names


@cache
def all_hyperparameters() -> tuple[Hyperparameters, ...]:
    settings = ("learning_rate", "weight_decay", "alpha")
    return tuple(
        Hyperparameters(row["architecture"], int(row["redundancy"]), *(float(row[name]) for name in settings))
        for row in rows("table13_hyperparameters")
    )


def hyperparameters(arch: str, redundancy: int) -> Hyperparameters:
    for row in all_hyperparameters():
        if (row.arch, row.redundancy) == (arch, redundancy):
            return row
    levels = sorted({row.redundancy for row in all_hyperparameters()})
    raise UsageError(f"Table 13 has mlp, cnn and vit at redundancy {levels}, not {arch} at {redundancy}")


COMPARED: dict[str, tuple[str, tuple[str, ...]]] = {
    "table1": ("table01_redundancy_cifar100", ("architecture", "redundancy")),
    "table7": ("table07_08_09_few_shot", ("architecture", "samples_per_class")),
    "table8": ("table07_08_09_few_shot", ("architecture", "samples_per_class")),
    "table9": ("table07_08_09_few_shot", ("architecture", "samples_per_class")),
    "table10": ("table10_17_cifar10", ("architecture",)),
    "table11": ("table11_12_label_noise", ("architecture", "noise")),
    "table12": ("table11_12_label_noise", ("architecture", "noise")),
    "table16": ("table16_dual_optimisation", ("activation", "architecture")),
}
"""Tables of accuracies with and without branches: their file, and the columns that distinguish the cells."""
COLUMNS = ("plain_mean", "asymmetric_mean", "plain_std", "asymmetric_std", "improvement_pct", "p_value")
"""The columns of these files, in the order of the fields of `Printed`."""


def _accuracies() -> Iterator[Printed]:
    for table, (file, keys) in COMPARED.items():
        for row in rows(file):
            if row.get("table", table.removeprefix("table")) == table.removeprefix("table"):
                label = "/".join([table, *(row[key] for key in keys)])
                yield Printed(label, *(float(row[column]) for column in COLUMNS))


def _sides(label: str, plain: str, asymmetric: str, improvement: str | None = None) -> Printed:
    before, after = float(plain), float(asymmetric)
    change = float(improvement) if improvement else 100 * (after - before) / before
    return Printed(label, plain=before, asymmetric=after, improvement=change)


def _cosines() -> Iterator[Printed]:
    for row in rows("table02_15_gradient_conflict"):
        for statistic in ("final", "average", "min", "max"):
            label = f"table2/{row['architecture']}/{statistic}"
            yield Printed(label, value=float(row[f"{statistic}_similarity"]))


def _changes() -> Iterator[Printed]:
    for row in rows("table03_convergence"):
        for what, column in (("convergence", "convergence_epoch"), ("final", "final_val_acc")):
            label = f"table3/{row['architecture']}/{what}"
            yield _sides(label, row[f"{column}_plain"], row[f"{column}_asymmetric"])
    for table, file, key in (
        ("table4", "table04_generalization_gap", "architecture"),
        ("table14", "table14_attention", "metric"),
    ):
        for row in rows(file):
            yield _sides(f"{table}/{row[key]}/{row['epoch']}", row["plain"], row["asymmetric"])


def _landscapes() -> Iterator[Printed]:
    """Changes from Plain, which is redundancy 0; if both print as 0.0000, only the printed change tells."""
    landscapes = rows("table05_06_landscape")
    plain = {row["architecture"]: row for row in landscapes if row["redundancy"] == "0"}
    for row in landscapes:
        if row["redundancy"] != "0":
            table = {"cifar10": "table5", "cifar100": "table6"}[row["dataset"]]
            for statistic in ("std_loss", "range_loss", "mean_grad"):
                label = f"{table}/{row['architecture']}/{row['redundancy']}/{statistic}"
                change = row[f"{statistic.partition('_loss')[0]}_change_pct"]
                yield _sides(label, plain[row["architecture"]][statistic], row[statistic], change)
