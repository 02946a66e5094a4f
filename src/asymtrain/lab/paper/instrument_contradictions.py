"""Where the text and the paper's instruments disagree: landscapes, cosines, gaps and attention.

Each function is one check of printed numbers; `contradictions` lists them all.
"""

import math
from dataclasses import dataclass

from asymtrain.lab.paper.numbers import printed, rows


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


def smoothing_counted_from_plain() -> Contradiction:
    """Section 3.3.3 gives the change from Plain as the change from one branch."""
    one, many = (1 + known(printed(f"table5/mlp/{n}/std_loss").improvement) / 100 for n in (1, 300))
    change = 100 * (many / one - 1)
    return Contradiction(
        "smoothing counted from Plain",
        "section 3.3.3, table 5",
        f"From 1x to 300x the MLP's deviation is said to fall by over 90%; Table 5 gives {change:.1f}% for that step "
        "(90% is the change from Plain).",
        change,
        change > -90,
    )


def surfaces_are_planes() -> Contradiction:
    """On a plane over 51 points, deviation and slope say the same: slope = deviation * 2 sqrt(3) / 50."""
    found = rows("table05_06_landscape")
    factor, half = 2 * math.sqrt(3) / 50, 0.00005
    fits = sum(
        factor * (float(row["std_loss"]) - half) < float(row["mean_grad"]) + half
        and factor * (float(row["std_loss"]) + half) > float(row["mean_grad"]) - half
        for row in found
    )
    changes = [row for row in found if row["std_change_pct"]]
    apart = max(abs(float(row["std_change_pct"]) - float(row["mean_grad_change_pct"])) for row in changes)
    return Contradiction(
        "landscapes are nearly planes",
        "section 4.2, tables 5 and 6",
        f"In {fits} of {len(found)} rows the mean gradient is, within rounding, that of a tilted plane with the "
        f"printed deviation, and both change by the same percentage to {apart:.1f} points: the columns show the tilt "
        "along the drawn directions, not roughness.",
        fits,
        fits == len(found),
    )


def positive_cosine_with_a_negative_minimum() -> Contradiction:
    """The text says consistently positive."""
    least = known(printed("table2/vit/min").value)
    return Contradiction(
        "consistently positive cosine",
        "section 4.4.1, table 2",
        f'The ViT\'s cosine "consistently remains in positive territory"; its printed minimum is {least:+.4f}.',
        least,
        least < 0,
    )


def cosine_sign_against_table3() -> Contradiction:
    """The MLP's cosine is negative, and its runs of the same section gain."""
    cosine = known(printed("table2/mlp/average").value)
    gain = known(printed("table3/mlp/final").improvement)
    return Contradiction(
        "sign of the cosine",
        "table 2, table 3",
        f"The sign of the cosine is to tell the sign of the effect; the MLP has {cosine:+.4f} on average and ends "
        f"{gain:+.1f}% in validation accuracy (Table 3).",
        gain,
        cosine * gain < 0,
    )


def overfitting_with_a_negative_gap() -> Contradiction:
    """Figure 3 says massive overfitting; Table 4 has training accuracy below validation accuracy."""
    gap = printed("table4/cnn/100")
    return Contradiction(
        "overfitting with a negative gap",
        "figure 3, table 4",
        f"Figure 3 speaks of massive overfitting of the Asymmetric CNN; its gap at epoch 100 is {gap.asymmetric}, "
        f"Plain's {gap.plain}.",
        known(gap.asymmetric),
        known(gap.asymmetric) < 0,
    )


def holistic_attention_that_narrows() -> Contradiction:
    """Appendix D: more holistic as training progresses."""
    early, late = (printed(f"table14/object_coverage/{epoch}").asymmetric for epoch in (20, 100))
    gini_early, gini_late = (printed(f"table14/gini_sparsity/{epoch}").asymmetric for epoch in (20, 100))
    return Contradiction(
        "attention more holistic with training",
        "appendix D, table 14",
        f"Asymmetric attention is to grow more holistic as training goes on; its coverage falls from {early} to {late} "
        f"and its Gini coefficient rises from {gini_early} to {gini_late}.",
        known(late) - known(early),
        known(late) < known(early) and known(gini_late) > known(gini_early),
    )


def plain_attention_called_diffuse() -> Contradiction:
    """Appendix D.3 calls Plain diffuse; Table 14 has it the more concentrated one."""
    metrics = {"map_entropy": 1, "peak_strength": -1, "gini_sparsity": -1}  # which way is more diffuse
    cells = [(printed(f"table14/{metric}/{epoch}"), way) for metric, way in metrics.items() for epoch in (20, 60, 100)]
    opposite = sum(way * (known(cell.asymmetric) - known(cell.plain)) > 0 for cell, way in cells)
    return Contradiction(
        "which attention is diffuse",
        "appendix D.3, table 14",
        f"D.3 calls Plain's attention diffuse; by entropy, peak and Gini, Asymmetric is the more diffuse one in "
        f"{opposite} of {len(cells)} comparisons of Table 14.",
        opposite,
        opposite == len(cells),
    )


def known(value: float | None) -> float:
    """A printed number that must be there."""
    assert value is not None, "the cell has no such number"
    return value
