"""Where the paper contradicts itself, computed from its own printed numbers; and what single activation can do at all.

Nothing here needs a run of ours, except `single_activation`.
"""

import itertools
from collections.abc import Callable, Mapping

from asymtrain.lab.paper.evidence import Quantity
from asymtrain.lab.paper.instrument_contradictions import (
    Contradiction,
    cosine_sign_against_table3,
    holistic_attention_that_narrows,
    known,
    overfitting_with_a_negative_gap,
    plain_attention_called_diffuse,
    positive_cosine_with_a_negative_minimum,
    smoothing_counted_from_plain,
    surfaces_are_planes,
)
from asymtrain.lab.paper.numbers import Hyperparameters, Printed, all_hyperparameters, labels, printed
from asymtrain.lab.runs import NAMES
from asymtrain.lab.search.grids import LOG_ALPHAS
from asymtrain.lab.statistics import size_word, welch_p_from_moments

SEEDS = 10
HALF_DIGIT = 0.0005  # Table 1 prints three digits; one cell has four


def contradictions() -> tuple[Contradiction, ...]:
    """All of them, in the order of the paper's sections."""
    checks: tuple[Callable[[], Contradiction], ...] = (
        redundancy_at_equal_settings,
        plain_depends_on_redundancy,
        weight_decay_depends_on_redundancy,
        alphas_on_the_edge,
        smoothing_counted_from_plain,
        positive_cosine_with_a_negative_minimum,
        cosine_sign_against_table3,
        cnn_of_table3_against_table1,
        overfitting_with_a_negative_gap,
        plain_differs_between_tables,
        every_result_significant,
        holistic_attention_that_narrows,
        plain_attention_called_diffuse,
        surfaces_are_planes,
    )
    return tuple(check() for check in checks)


def equal_settings() -> list[tuple[Hyperparameters, Hyperparameters, float]]:
    """Pairs of Table 13's rows that differ in N alone, with Welch's p for their Table 1 accuracies."""
    found = []
    for one, other in itertools.combinations(all_hyperparameters(), 2):
        if (one.arch, one.learning_rate, one.weight_decay, one.alpha) == (
            other.arch, other.learning_rate, other.weight_decay, other.alpha
        ):  # fmt: skip
            found.append((one, other, _asymmetric_p(_cell(one), _cell(other))))
    return found


def redundancy_at_equal_settings() -> Contradiction:
    """Single activation trains the same network for every N; Table 1 has different ones at equal settings."""
    one, other, p = min(equal_settings(), key=lambda pair: pair[2])
    first, second = _cell(one), _cell(other)
    # The same, with means as near and deviations as large as rounding allows.
    worst = _asymmetric_p(first, second, HALF_DIGIT)
    return Contradiction(
        "redundancy at equal settings",
        "table 1, table 13, section 3.3.3",
        f"{NAMES[one.arch]} at N = {one.redundancy} and N = {other.redundancy} has the same learning rate, weight "
        f"decay and alpha, yet {first.asymmetric} and {second.asymmetric}: p = {p:.1g} from the printed means and "
        f"deviations ({worst:.1g} at the worst rounding). With only one branch live, the other N - 1 enter nothing, so "
        "N cannot do that.",
        p,
        worst < 0.001,
    )


def plain_depends_on_redundancy() -> Contradiction:
    """Plain has no branches: with the same settings and seeds it is the same runs in every row."""
    apart = {}
    for one, other in itertools.combinations(all_hyperparameters(), 2):
        # Not alpha: Plain has none.
        if (one.arch, one.learning_rate, one.weight_decay) != (other.arch, other.learning_rate, other.weight_decay):
            continue
        before, after = known(_cell(one).plain), known(_cell(other).plain)
        apart[f"{NAMES[one.arch]} at N = {one.redundancy} and {other.redundancy}"] = abs(after - before)
    where = max(apart, key=lambda name: apart[name])
    differing = sum(value > HALF_DIGIT for value in apart.values())
    return Contradiction(
        "Plain depends on redundancy",
        "table 1, table 13",
        f"Plain has no branches, so with equal settings and the same ten seeds its rows must be one set of runs; "
        f"in {differing} of {len(apart)} pairs of rows the means differ, by up to {apart[where]:.3f} ({where}).",
        apart[where],
        differing > 0,
    )


def weight_decay_depends_on_redundancy() -> Contradiction:
    """Stages 1 and 2 of the search look at Plain, which knows no N."""
    decays: dict[str, set[float]] = {}
    for row in all_hyperparameters():
        decays.setdefault(row.arch, set()).add(row.weight_decay)
    changed = [NAMES[arch] for arch, seen in decays.items() if len(seen) > 1]
    return Contradiction(
        "weight decay depends on redundancy",
        "appendix C.1.1, table 13",
        f"The weight decay is searched on Plain, which has no branches; yet it changes with N for {len(changed)} of "
        f"{len(decays)} backbones ({', '.join(changed)}).",
        len(changed),
        bool(changed),
    )


def alphas_on_the_edge() -> Contradiction:
    """A best value at the edge of a grid says that the best lies outside."""
    chosen = [row.alpha for row in all_hyperparameters()]
    edge = [alpha for alpha in chosen if alpha in (min(LOG_ALPHAS), max(LOG_ALPHAS))]
    return Contradiction(
        "alphas on the edge of the grid",
        "appendix C.1.1, table 13",
        f"{len(edge)} of {len(chosen)} chosen alphas lie on the edge of the grid from {min(LOG_ALPHAS)} to "
        f"{max(LOG_ALPHAS):g}: the search did not enclose a best value.",
        len(edge),
        len(edge) > len(chosen) / 2,
    )


def cnn_of_table3_against_table1() -> Contradiction:
    """The collapse of Table 3 is in no row of Table 1."""
    collapsed = known(printed("table3/cnn/final").asymmetric)
    seen = [known(printed(label).asymmetric) for label in labels("table1") if "/cnn/" in label]
    return Contradiction(
        "two Asymmetric CNNs",
        "table 1, table 3",
        f"The Asymmetric CNN ends at {collapsed} in Table 3 and at {min(seen)} to {max(seen)} in Table 1: these are "
        "not the same runs, and no settings are given for the former.",
        collapsed,
        collapsed < min(seen),
    )


def plain_differs_between_tables() -> Contradiction:
    """The same network on the same full training set has other accuracies in appendix B."""
    pairs = [
        ("MLP, CIFAR-100", "table1/mlp/20", "table8/mlp/500"),
        ("MLP, CIFAR-100", "table1/mlp/20", "table12/mlp/0.0"),
        ("MLP, CIFAR-10", "table10/mlp", "table7/mlp/5000"),
        ("ViT, CIFAR-100", "table1/vit/20", "table9/vit/500"),
    ]
    found = [(name, known(printed(main).plain), known(printed(other).plain)) for name, main, other in pairs]
    largest = max(100 * (other - main) / main for _, main, other in found)
    text = "; ".join(f"{name} {main} and {other}" for name, main, other in found)
    return Contradiction(
        "Plain differs between tables",
        "tables 1, 7 to 10, 12",
        f"Plain on all images and clean labels differs from the main tables by up to {largest:+.0f}%: {text}. "
        "Appendix B seems to train without a validation split, which the text does not say.",
        largest,
        largest > 5,
    )


def every_result_significant() -> Contradiction:
    """Appendix E: p < 0.001 and a large effect everywhere."""
    cells = [printed(label) for label in labels("table1")]
    failing = max(cells, key=lambda cell: known(cell.p))
    above = [cell for cell in cells if known(cell.p) >= 0.001]
    d_av = (known(failing.asymmetric) - known(failing.plain)) / (
        (known(failing.plain_std) + known(failing.asymmetric_std)) / 2
    )
    return Contradiction(
        "every main result significant",
        "appendix E, table 1",
        f"All main results are said to have p < 0.001 and large effects; {len(above)} of {len(cells)} cells of Table 1 "
        f"has p = {failing.p} and d_av = {d_av:.2f} ({size_word(d_av)}): {failing.label.removeprefix('table1/')}.",
        known(failing.p),
        bool(above),
    )


def single_activation(identity: Mapping[str, Quantity]) -> tuple[str, bool | None]:
    """What single activation can do: a sentence, and whether runs confirm it (None: no run yet).

    Args:
        identity: by backbone, for each seed the largest difference between the trained backbones of N = 1 and N = 20
            with the same live branch and settings (label identity/ARCH).
    """
    printed_p = redundancy_at_equal_settings().number
    theory = "With one live branch the other N - 1 enter no loss, so the trained network is the same for every N"
    there = {arch: one for arch, one in identity.items() if one.values}
    if not there:
        return f"{theory}; no pair of runs shows it yet.", None
    n = sum(len(one.values) for one in there.values())
    worst = max(abs(value) for one in there.values() for value in one.values)
    seen = f"{n} pairs of runs at N = 1 and N = 20 ({', '.join(NAMES[arch] for arch in there)})"
    if worst:
        return f"{theory}; but {seen} differ by up to {worst:.3g}.", False
    return (
        f"{theory}; {seen} are equal to the last bit. What differs with N in Table 1 at equal settings "
        f"(p = {printed_p:.1g}) came from another draw of the live branch, other settings or more live branches.",
        True,
    )


def _cell(row: Hyperparameters) -> Printed:
    return printed(f"table1/{row.arch}/{row.redundancy}")


def _asymmetric_p(one: Printed, other: Printed, slack: float = 0.0) -> float:
    """Welch's p of two cells' Asymmetric sides, moved together and widened by `slack`."""
    low, high = sorted((known(one.asymmetric), known(other.asymmetric)))
    spreads = (known(one.asymmetric_std) + slack, known(other.asymmetric_std) + slack)
    return welch_p_from_moments(min(low + slack, high - slack), spreads[0], high - slack, spreads[1], SEEDS)
