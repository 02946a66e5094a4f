"""Where the paper contradicts itself, computed from its own printed numbers; and what single activation can do at all.

Each check is a function, in the order of the paper's sections; `contradictions` runs them all. Nothing here needs a run
of ours, except `single_activation`.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from asymtrain.lab.paper.evidence import Quantity
from asymtrain.lab.paper.numbers import Hyperparameters, all_hyperparameters, labels, printed, rows
from asymtrain.lab.search.grids import LOG_ALPHAS
from asymtrain.lab.statistics import size_word, welch_p_from_moments
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


Check = Callable[[], tuple[str, float, bool]]  # the sentence, the number that decides, and whether it contradicts
CHECKS: list[tuple[str, str, Check]] = []


def _check(name: str, where: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        CHECKS.append((name, where, check))
        return check

    return register


def contradictions() -> tuple[Contradiction, ...]:
    """All of them, in the order of the paper's sections."""
    return tuple(Contradiction(name, where, *check()) for name, where, check in CHECKS)


def equal_settings() -> list[tuple[Hyperparameters, Hyperparameters, float]]:
    """Pairs of Table 13's rows that differ in N alone, with Welch's p for their Table 1 accuracies."""
    pairs = itertools.combinations(all_hyperparameters(), 2)
    return [
        (row, other, _asymmetric_p(row, other))
        for row, other in pairs
        if _plain_settings(row) == _plain_settings(other) and row.alpha == other.alpha
    ]


@_check("redundancy at equal settings", "table 1, table 13, section 3.3.3")
def redundancy_at_equal_settings() -> tuple[str, float, bool]:
    row, other, p = min(equal_settings(), key=lambda pair: pair[2])
    first, second = (_number(_label(settings), "asymmetric") for settings in (row, other))
    # The same, with means as near and deviations as large as rounding allows.
    worst = _asymmetric_p(row, other, HALF_DIGIT)
    sentence = (
        f"{display_name(row.arch)} at N = {row.redundancy} and N = {other.redundancy} has the same learning rate, "
        f"weight decay and alpha, yet {first} and {second}: p = {p:.1g} from the printed means and "
        f"deviations ({worst:.1g} at the worst rounding). With only one branch live, the other N - 1 enter nothing, so "
        "N cannot do that."
    )
    return sentence, p, worst < 0.001


@_check("Plain depends on redundancy", "table 1, table 13")
def plain_depends_on_redundancy() -> tuple[str, float, bool]:
    apart = {
        f"{display_name(row.arch)} at N = {row.redundancy} and {other.redundancy}": abs(
            _number(_label(other), "plain") - _number(_label(row), "plain")
        )
        for row, other in itertools.combinations(all_hyperparameters(), 2)
        if _plain_settings(row) == _plain_settings(other)
    }
    where = max(apart, key=apart.__getitem__)
    differing = sum(value > HALF_DIGIT for value in apart.values())
    sentence = (
        f"Plain has no branches, so with equal settings and the same ten seeds its rows must be one set of runs; "
        f"in {differing} of {len(apart)} pairs of rows the means differ, by up to {apart[where]:.3f} ({where})."
    )
    return sentence, apart[where], differing > 0


@_check("weight decay depends on redundancy", "appendix C.1.1, table 13")
def weight_decay_depends_on_redundancy() -> tuple[str, float, bool]:
    decays: dict[str, set[float]] = {}
    for row in all_hyperparameters():
        decays.setdefault(row.arch, set()).add(row.weight_decay)
    changed = [display_name(arch) for arch, values in decays.items() if len(values) > 1]
    sentence = (
        f"The weight decay is searched on Plain, which has no branches; yet it changes with N for {len(changed)} of "
        f"{len(decays)} backbones ({', '.join(changed)})."
    )
    return sentence, len(changed), bool(changed)


@_check("alphas on the edge of the grid", "appendix C.1.1, table 13")
def alphas_on_the_edge() -> tuple[str, float, bool]:
    chosen = [row.alpha for row in all_hyperparameters()]
    edge = [alpha for alpha in chosen if alpha in (min(LOG_ALPHAS), max(LOG_ALPHAS))]
    sentence = (
        f"{len(edge)} of {len(chosen)} chosen alphas lie on the edge of the grid from {min(LOG_ALPHAS)} to "
        f"{max(LOG_ALPHAS):g}: the search did not enclose a best value."
    )
    return sentence, len(edge), len(edge) > len(chosen) / 2


@_check("smoothing counted from Plain", "section 3.3.3, table 5")
def smoothing_counted_from_plain() -> tuple[str, float, bool]:
    single, many = (1 + _number(f"table5/mlp/{n}/std_loss", "improvement") / 100 for n in (1, 300))
    change = 100 * (many / single - 1)
    sentence = (
        f"From 1x to 300x the MLP's deviation is said to fall by over 90%; Table 5 gives {change:.1f}% for that step "
        "(90% is the change from Plain)."
    )
    return sentence, change, change > -90


@_check("consistently positive cosine", "section 4.4.1, table 2")
def positive_cosine_with_a_negative_minimum() -> tuple[str, float, bool]:
    least = _number("table2/vit/min", "value")
    sentence = f'The ViT\'s cosine "consistently remains in positive territory"; its printed minimum is {least:+.4f}.'
    return sentence, least, least < 0


@_check("sign of the cosine", "table 2, table 3")
def cosine_sign_against_table3() -> tuple[str, float, bool]:
    cosine, gain = _number("table2/mlp/average", "value"), _number("table3/mlp/final", "improvement")
    sentence = (
        f"The sign of the cosine is to tell the sign of the effect; the MLP has {cosine:+.4f} on average and ends "
        f"{gain:+.1f}% in validation accuracy (Table 3)."
    )
    return sentence, gain, cosine * gain < 0


@_check("two Asymmetric CNNs", "table 1, table 3")
def cnn_of_table3_against_table1() -> tuple[str, float, bool]:
    collapsed = _number("table3/cnn/final", "asymmetric")
    others = [_number(label, "asymmetric") for label in labels("table1") if "/cnn/" in label]
    sentence = (
        f"The Asymmetric CNN ends at {collapsed} in Table 3 and at {min(others)} to {max(others)} in Table 1: these "
        "are not the same runs, and no settings are given for the former."
    )
    return sentence, collapsed, collapsed < min(others)


@_check("overfitting with a negative gap", "figure 3, table 4")
def overfitting_with_a_negative_gap() -> tuple[str, float, bool]:
    plain, asymmetric = (_number("table4/cnn/100", side) for side in ("plain", "asymmetric"))
    sentence = (
        f"Figure 3 speaks of massive overfitting of the Asymmetric CNN; its gap at epoch 100 is {asymmetric}, "
        f"Plain's {plain}."
    )
    return sentence, asymmetric, asymmetric < 0


@_check("Plain differs between tables", "tables 1, 7 to 10, 12")
def plain_differs_between_tables() -> tuple[str, float, bool]:
    pairs = [
        ("MLP, CIFAR-100", "table1/mlp/20", "table8/mlp/500"),
        ("MLP, CIFAR-100", "table1/mlp/20", "table12/mlp/0.0"),
        ("MLP, CIFAR-10", "table10/mlp", "table7/mlp/5000"),
        ("ViT, CIFAR-100", "table1/vit/20", "table9/vit/500"),
    ]
    values = [(name, _number(main, "plain"), _number(other, "plain")) for name, main, other in pairs]
    largest = max(100 * (other - main) / main for _, main, other in values)
    text = "; ".join(f"{name} {main} and {other}" for name, main, other in values)
    sentence = (
        f"Plain on all images and clean labels differs from the main tables by up to {largest:+.0f}%: {text}. "
        "Appendix B seems to train without a validation split, which the text does not say."
    )
    return sentence, largest, largest > 5


@_check("every main result significant", "appendix E, table 1")
def every_result_significant() -> tuple[str, float, bool]:
    p_values = {label: _number(label, "p") for label in labels("table1")}
    above = [p for p in p_values.values() if p >= 0.001]
    failing = max(p_values, key=p_values.__getitem__)
    spread = (_number(failing, "plain_std") + _number(failing, "asymmetric_std")) / 2
    d_av = (_number(failing, "asymmetric") - _number(failing, "plain")) / spread
    _, arch, redundancy = failing.split("/")
    sentence = (
        f"All main results are said to have p < 0.001 and large effects; {len(above)} of {len(p_values)} cells of "
        f"Table 1, {display_name(arch)} at N = {redundancy}, has p = {p_values[failing]} and a Cohen's d of {d_av:.2f} "
        f"({size_word(d_av)})."
    )
    return sentence, p_values[failing], bool(above)


@_check("attention more holistic with training", "appendix D, table 14")
def holistic_attention_that_narrows() -> tuple[str, float, bool]:
    early, late = (_number(f"table14/object_coverage/{epoch}", "asymmetric") for epoch in (20, 100))
    gini_early, gini_late = (_number(f"table14/gini_sparsity/{epoch}", "asymmetric") for epoch in (20, 100))
    sentence = (
        f"Asymmetric attention is to grow more holistic as training goes on; its coverage falls from {early} to {late} "
        f"and its Gini coefficient rises from {gini_early} to {gini_late}."
    )
    return sentence, late - early, late < early and gini_late > gini_early


@_check("which attention is diffuse", "appendix D.3, table 14")
def plain_attention_called_diffuse() -> tuple[str, float, bool]:
    metrics = {"map_entropy": 1, "peak_strength": -1, "gini_sparsity": -1}  # which way is more diffuse
    cells = [(f"table14/{metric}/{epoch}", way) for metric, way in metrics.items() for epoch in (20, 60, 100)]
    opposite = sum(way * (_number(cell, "asymmetric") - _number(cell, "plain")) > 0 for cell, way in cells)
    sentence = (
        f"D.3 calls Plain's attention diffuse; by entropy, peak and Gini, Asymmetric is the more diffuse one in "
        f"{opposite} of {len(cells)} comparisons of Table 14."
    )
    return sentence, opposite, opposite == len(cells)


@_check("landscapes are nearly planes", "section 4.2, tables 5 and 6")
def surfaces_are_planes() -> tuple[str, float, bool]:
    surfaces = rows("table05_06_landscape")
    factor, half = 2 * math.sqrt(3) / 50, 0.00005
    fits = sum(
        factor * (float(row["std_loss"]) - half) < float(row["mean_grad"]) + half
        and factor * (float(row["std_loss"]) + half) > float(row["mean_grad"]) - half
        for row in surfaces
    )
    changes = [row for row in surfaces if row["std_change_pct"]]
    apart = max(abs(float(row["std_change_pct"]) - float(row["mean_grad_change_pct"])) for row in changes)
    sentence = (
        f"In {fits} of {len(surfaces)} rows the mean gradient is, within rounding, that of a tilted plane with the "
        f"printed deviation, and both change by the same percentage to {apart:.1f} points: the columns show the tilt "
        "along the drawn directions, not roughness."
    )
    return sentence, fits, fits == len(surfaces)


def single_activation(identity: Mapping[str, Quantity]) -> tuple[str, bool | None]:
    """What single activation can do: a sentence, and whether runs confirm it (None: no run yet).

    Args:
        identity: by backbone, for each seed the largest difference between the trained backbones of N = 1 and N = 20
            with the same live branch and settings (label identity/ARCH).
    """
    theory = "With one live branch the other N - 1 enter no loss, so the trained network is the same for every N"
    measured = {arch: quantity.values for arch, quantity in identity.items() if quantity.values}
    if not measured:
        return f"{theory}; no pair of runs shows it yet.", None
    differences = [abs(value) for values in measured.values() for value in values]
    names = ", ".join(display_name(arch) for arch in measured)
    pairs = f"{len(differences)} pairs of runs at N = 1 and N = 20 ({names})"
    if max(differences):
        return f"{theory}; but {pairs} differ by up to {max(differences):.3g}.", False
    return (
        f"{theory}; {pairs} are equal to the last bit. What differs with N in Table 1 at equal settings "
        f"(p = {redundancy_at_equal_settings()[1]:.1g}) came from another draw of the live branch, other settings "
        "or more live branches.",
        True,
    )


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
