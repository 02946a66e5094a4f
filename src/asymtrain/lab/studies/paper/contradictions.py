"""Where the paper contradicts itself, by its own printed numbers; and the possible effect of single activation.

Each check is a function, in the order of the paper's sections, and its sentence stands in `texts.toml`;
`contradictions` runs them all. Nothing here needs a run of ours, except `single_activation`.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from asymtrain.lab.search.grids import LOG_ALPHAS
from asymtrain.lab.statistics import size_word, welch_p_from_moments
from asymtrain.lab.studies.paper.evidence import Quantity
from asymtrain.lab.studies.paper.numbers import Hyperparameters, all_hyperparameters, labels, printed, rows, texts
from asymtrain.models import display_name

SEEDS = 10
HALF_DIGIT = 0.0005  # Table 1 prints three digits; one cell has four


@dataclass(frozen=True)
class Contradiction:
    """One contradiction: what the paper says, what its numbers say, and the number that decides.

    `holds` is computed: False would mean that the numbers do not contradict the text after all.
    """

    name: str
    where: str
    sentence: str
    number: float
    holds: bool


Found = tuple[dict[str, Any], float, bool]
"""What its sentence is filled in with, the number that decides, and whether it contradicts."""
Check = Callable[[], Found]
CHECKS: dict[str, Check] = {}


def _check(name: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return register


def contradictions() -> tuple[Contradiction, ...]:
    """All of them, in the order of the paper's sections."""
    return tuple(_contradiction(name, *check()) for name, check in CHECKS.items())


def _contradiction(name: str, numbers: Mapping[str, Any], number: float, holds: bool) -> Contradiction:
    text = texts()["contradictions"][name]
    return Contradiction(name, text["where"], text["sentence"].format(**numbers), number, holds)


def equal_settings() -> list[tuple[Hyperparameters, Hyperparameters, float]]:
    """Pairs of Table 13's rows that differ in N alone, with Welch's p for their Table 1 accuracies."""
    pairs = itertools.combinations(all_hyperparameters(), 2)
    return [
        (row, other, _asymmetric_p(row, other))
        for row, other in pairs
        if _plain_settings(row) == _plain_settings(other) and row.alpha == other.alpha
    ]


@_check("redundancy at equal settings")
def redundancy_at_equal_settings() -> Found:
    row, other, p = min(equal_settings(), key=lambda pair: pair[2])
    first, second = (_number(_label(settings), "asymmetric") for settings in (row, other))
    # The same, with means as near and deviations as large as rounding allows.
    worst = _asymmetric_p(row, other, HALF_DIGIT)
    numbers = {"arch": display_name(row.arch), "n": row.redundancy, "other_n": other.redundancy, "p": p}
    numbers |= {"first": first, "second": second, "worst": worst}
    return numbers, p, worst < 0.001


@_check("Plain depends on redundancy")
def plain_depends_on_redundancy() -> Found:
    apart = {
        f"{display_name(row.arch)} at N = {row.redundancy} and {other.redundancy}": abs(
            _number(_label(other), "plain") - _number(_label(row), "plain")
        )
        for row, other in itertools.combinations(all_hyperparameters(), 2)
        if _plain_settings(row) == _plain_settings(other)
    }
    where = max(apart, key=apart.__getitem__)
    differing = sum(value > HALF_DIGIT for value in apart.values())
    numbers = {"differing": differing, "pairs": len(apart), "largest": apart[where], "where": where}
    return numbers, apart[where], differing > 0


@_check("weight decay depends on redundancy")
def weight_decay_depends_on_redundancy() -> Found:
    decays: dict[str, set[float]] = {}
    for row in all_hyperparameters():
        decays.setdefault(row.arch, set()).add(row.weight_decay)
    changed = [display_name(arch) for arch, values in decays.items() if len(values) > 1]
    numbers = {"changed": len(changed), "backbones": len(decays), "names": ", ".join(changed)}
    return numbers, len(changed), bool(changed)


@_check("alphas on the edge of the grid")
def alphas_on_the_edge() -> Found:
    chosen = [row.alpha for row in all_hyperparameters()]
    edge = [alpha for alpha in chosen if alpha in (min(LOG_ALPHAS), max(LOG_ALPHAS))]
    numbers = {"edge": len(edge), "chosen": len(chosen), "least": min(LOG_ALPHAS), "largest": max(LOG_ALPHAS)}
    return numbers, len(edge), len(edge) > len(chosen) / 2


@_check("smoothing counted from Plain")
def smoothing_counted_from_plain() -> Found:
    single, many = (1 + _number(f"table5/mlp/{n}/std_loss", "improvement") / 100 for n in (1, 300))
    change = 100 * (many / single - 1)
    return {"change": change}, change, change > -90


@_check("consistently positive cosine")
def positive_cosine_with_a_negative_minimum() -> Found:
    least = _number("table2/vit/min", "value")
    return {"least": least}, least, least < 0


@_check("sign of the cosine")
def cosine_sign_against_table3() -> Found:
    cosine, gain = _number("table2/mlp/average", "value"), _number("table3/mlp/final", "improvement")
    return {"cosine": cosine, "gain": gain}, gain, cosine * gain < 0


@_check("two Asymmetric CNNs")
def cnn_of_table3_against_table1() -> Found:
    collapsed = _number("table3/cnn/final", "asymmetric")
    others = [_number(label, "asymmetric") for label in labels("table1") if "/cnn/" in label]
    numbers = {"collapsed": collapsed, "least": min(others), "largest": max(others)}
    return numbers, collapsed, collapsed < min(others)


@_check("overfitting with a negative gap")
def overfitting_with_a_negative_gap() -> Found:
    plain, asymmetric = (_number("table4/cnn/100", side) for side in ("plain", "asymmetric"))
    return {"plain": plain, "asymmetric": asymmetric}, asymmetric, asymmetric < 0


@_check("Plain differs between tables")
def plain_differs_between_tables() -> Found:
    pairs = [
        ("MLP, CIFAR-100", "table1/mlp/20", "table8/mlp/500"),
        ("MLP, CIFAR-100", "table1/mlp/20", "table12/mlp/0.0"),
        ("MLP, CIFAR-10", "table10/mlp", "table7/mlp/5000"),
        ("ViT, CIFAR-100", "table1/vit/20", "table9/vit/500"),
    ]
    values = [(name, _number(main, "plain"), _number(other, "plain")) for name, main, other in pairs]
    largest = max(100 * (other - main) / main for _, main, other in values)
    text = "; ".join(f"{name} {main} and {other}" for name, main, other in values)
    return {"largest": largest, "pairs": text}, largest, largest > 5


@_check("every main result significant")
def every_result_significant() -> Found:
    p_values = {label: _number(label, "p") for label in labels("table1")}
    above = [p for p in p_values.values() if p >= 0.001]
    failing = max(p_values, key=p_values.__getitem__)
    spread = (_number(failing, "plain_std") + _number(failing, "asymmetric_std")) / 2
    d_av = (_number(failing, "asymmetric") - _number(failing, "plain")) / spread
    _, arch, redundancy = failing.split("/")
    numbers = {"above": len(above), "cells": len(p_values), "arch": display_name(arch), "n": redundancy}
    numbers |= {"p": p_values[failing], "d": d_av, "size": size_word(d_av)}
    return numbers, p_values[failing], bool(above)


@_check("attention more holistic with training")
def holistic_attention_that_narrows() -> Found:
    early, late = (_number(f"table14/object_coverage/{epoch}", "asymmetric") for epoch in (20, 100))
    gini_early, gini_late = (_number(f"table14/gini_sparsity/{epoch}", "asymmetric") for epoch in (20, 100))
    numbers = {"early": early, "late": late, "gini_early": gini_early, "gini_late": gini_late}
    return numbers, late - early, late < early and gini_late > gini_early


@_check("which attention is diffuse")
def plain_attention_called_diffuse() -> Found:
    metrics = {"map_entropy": 1, "peak_strength": -1, "gini_sparsity": -1}  # which way is more diffuse
    cells = [(f"table14/{metric}/{epoch}", way) for metric, way in metrics.items() for epoch in (20, 60, 100)]
    opposite = sum(way * (_number(cell, "asymmetric") - _number(cell, "plain")) > 0 for cell, way in cells)
    return {"opposite": opposite, "cells": len(cells)}, opposite, opposite == len(cells)


@_check("landscapes are nearly planes")
def surfaces_are_planes() -> Found:
    surfaces = rows("table05_06_landscape")
    factor, half = 2 * math.sqrt(3) / 50, 0.00005
    fits = sum(
        factor * (float(row["std_loss"]) - half) < float(row["mean_grad"]) + half
        and factor * (float(row["std_loss"]) + half) > float(row["mean_grad"]) - half
        for row in surfaces
    )
    changes = [row for row in surfaces if row["std_change_pct"]]
    apart = max(abs(float(row["std_change_pct"]) - float(row["mean_grad_change_pct"])) for row in changes)
    return {"fits": fits, "rows": len(surfaces), "apart": apart}, fits, fits == len(surfaces)


def single_activation(identity: Mapping[str, Quantity]) -> tuple[str, bool | None]:
    """What single activation can do: a sentence, and whether runs confirm it (None: no run yet).

    Args:
        identity: by backbone, for each seed the largest difference between the trained backbones of N = 1 and N = 20
            with the same live branch and settings (label identity/ARCH).
    """
    text = texts()["single_activation"]
    measured = {arch: quantity.values for arch, quantity in identity.items() if quantity.values}
    differences = [abs(value) for values in measured.values() for value in values]
    names = ", ".join(display_name(arch) for arch in measured)
    numbers = {
        "theory": text["theory"],
        "pairs": f"{len(differences)} pairs of runs at N = 1 and N = 20 ({names})",
        "largest": max(differences, default=0.0),
        "p": redundancy_at_equal_settings()[1],
    }
    finding, holds = ("differs", False) if any(differences) else ("equal", True) if measured else ("no_runs", None)
    return text[finding].format(**numbers), holds


def _number(label: str, field: str) -> float:
    number = getattr(printed(label), field)
    assert isinstance(number, float), f"{label} has no {field}"
    return number


def _label(settings: Hyperparameters) -> str:
    return f"table1/{settings.arch}/{settings.redundancy}"


def _plain_settings(settings: Hyperparameters) -> tuple[str, float, float]:
    return settings.arch, settings.learning_rate, settings.weight_decay


def _asymmetric_p(row: Hyperparameters, other: Hyperparameters, slack: float = 0.0) -> float:
    """Welch's p of two cells' Asymmetric sides, moved together and widened by `slack`."""
    cells = _label(row), _label(other)
    low, high = sorted(_number(cell, "asymmetric") for cell in cells)
    spreads = [_number(cell, "asymmetric_std") + slack for cell in cells]
    return welch_p_from_moments(min(low + slack, high - slack), spreads[0], high - slack, spreads[1], SEEDS)
