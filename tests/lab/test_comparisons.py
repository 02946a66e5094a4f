"""Comparisons against values computed by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from asymtrain.errors import UsageError
from asymtrain.lab.comparisons import chance_limit, compare, decision, paired, sentence, separating
from asymtrain.lab.statistics import Decision


def rows(plain, asymmetric, first_seed=42, **columns):
    """Rows of runs with these accuracies, one pair for each seed."""
    sides = {"plain": plain, "asymmetric": asymmetric}
    made = [
        {
            "id": f"{side[0]}{seed}{columns.get('arch', 'vit')}{columns.get('alpha', '')}",
            "dataset": "shapes",
            "arch": "vit",
            "seed": seed,
            "outcome": "finished",
            "classes": 10,
            "mean_cosine": 0.25 if side == "asymmetric" else None,
            **columns,
            "variant": side,
            "alpha": columns.get("alpha", 1.0) if side == "asymmetric" else 0.0,
            "test_accuracy": accuracy,
        }
        for side, values in sides.items()
        for seed, accuracy in enumerate(values, first_seed)
    ]
    return pd.DataFrame(made)


def only(frame):
    records = frame.to_dict("records")
    assert len(records) == 1
    return records[0]


def test_three_pairs_as_computed_by_hand():
    # Differences .05, .01, .06: mean .04, variance .0014 / 2; t² = .0016 / (.0007 / 3) = 48 / 7.
    row = only(compare(rows([0.50, 0.52, 0.54], [0.55, 0.53, 0.60])))
    assert row["n"] == 3
    assert row["plain_mean"] == pytest.approx(0.52)
    assert row["plain_std"] == pytest.approx(0.02)
    assert row["asymmetric_mean"] == pytest.approx(0.56)
    assert row["asymmetric_std"] == pytest.approx(math.sqrt((0.01**2 + 0.03**2 + 0.04**2) / 2))
    assert row["improvement"] == pytest.approx(100 * 0.04 / 0.52)
    # With two degrees of freedom the t distribution has a closed form.
    assert row["p"] == pytest.approx(1 - math.sqrt((48 / 7) / (2 + 48 / 7)))
    t_975 = 4.302652729911275
    half = 100 * t_975 * math.sqrt(0.0007 / 3) / 0.52
    assert row["low"] == pytest.approx(row["improvement"] - half)
    assert row["high"] == pytest.approx(row["improvement"] + half)
    assert row["points"] == pytest.approx(4)
    assert row["points_low"] == pytest.approx(4 - 0.52 * half)
    assert row["d_z"] == pytest.approx(0.04 / math.sqrt(0.0007))
    assert row["cosine"] == pytest.approx(0.25)
    assert decision(row) == Decision("inconclusive", "few seeds")


def test_pairs_are_made_by_seed_not_by_order():
    frame = rows([0.50, 0.52, 0.54], [0.55, 0.53, 0.60])
    shuffled = frame.sample(frac=1, random_state=3)
    assert only(compare(shuffled))["p"] == pytest.approx(only(compare(frame))["p"])
    pairs, _ = paired(shuffled)
    assert all(pairs["plain_id"].str[1:] == pairs["asymmetric_id"].str[1:])


def test_a_seed_without_its_partner_is_left_out():
    frame = rows([0.50, 0.52, 0.54], [0.55, 0.53, 0.60])
    missing = frame[~((frame["variant"] == "asymmetric") & (frame["seed"] == 44))]
    row = only(compare(missing))
    assert row["n"] == 2
    assert row["plain_mean"] == pytest.approx(0.51)


def test_one_pair_has_no_spread_and_says_so():
    row = only(compare(rows([0.5], [0.6])))
    assert decision(row) == Decision("inconclusive", "single seed")
    assert [row[name] for name in ("plain_std", "asymmetric_std", "low", "high", "p", "d_z")] == [None] * 6
    assert (row["points_low"], row["points_high"]) == (None, None)
    assert row["improvement"] == pytest.approx(20)
    assert (
        sentence(row) == "ViT: +10.0 points of accuracy in one seed; a single pair cannot tell an effect from chance."
    )


def test_equal_differences_give_none_and_no_warning():
    # 0.1 + 0.2 style rounding: the differences differ in their last bits only.
    row = only(compare(rows([0.1, 0.3, 0.7], [0.2, 0.4, 0.8])))
    assert (row["p"], row["low"], row["high"], row["d_z"]) == (None, None, None, None)
    assert "+10.0 points of accuracy, the same difference in each of 3 seeds" in sentence(row)
    same = only(compare(rows([0.2, 0.3], [0.2, 0.3])))
    assert sentence(same) == "ViT: the same test accuracy with and without branches in each of 2 seeds."


def test_no_value_of_a_comparison_is_nan():
    frame = pd.concat([rows([0.5], [0.6]), rows([0.4, 0.5], [0.5, 0.4], arch="mlp", mean_cosine=None)])
    for record in compare(frame).to_dict("records"):
        assert not any(isinstance(value, float) and math.isnan(value) for value in record.values())
    assert compare(frame).to_dict("records")[1]["cosine"] is None


def test_where_a_class_is_larger_than_others_naming_it_is_chance():
    """Of ten classes one has 60% of the images: 0.61 is no more than it gives, and a diverged run counts with it."""
    frame = rows([0.61, 0.70], [0.62, 0.72], largest_class=0.6)
    frame.loc[frame["id"] == "a43vit", "outcome"] = "diverged"
    row = only(compare(frame))
    assert (row["plain_at_chance"], row["asymmetric_at_chance"]) == (1, 1)
    assert row["asymmetric_mean"] == pytest.approx((0.62 + 0.6) / 2)
    balanced = only(compare(frame.assign(largest_class=None)))
    assert (balanced["plain_at_chance"], balanced["asymmetric_at_chance"]) == (0, 0)
    assert balanced["asymmetric_mean"] == pytest.approx((0.62 + 0.1) / 2)


def test_plain_at_zero_has_no_share():
    row = only(compare(rows([0.0, 0.0], [0.1, 0.2])))
    assert row["improvement"] is None
    assert row["points"] == pytest.approx(15)
    assert "+15.0 points" in sentence(row)


def test_a_diverged_run_counts_with_chance_accuracy():
    frame = rows([0.50, 0.52, 0.54], [0.55, 0.53, np.nan])
    frame.loc[frame["test_accuracy"].isna(), "outcome"] = "diverged"
    row = only(compare(frame))
    assert row["asymmetric_mean"] == pytest.approx((0.55 + 0.53 + 1 / 10) / 3)
    assert (row["plain_diverged"], row["asymmetric_diverged"]) == (0, 1)
    assert sentence(row).endswith("1 of 3 Asymmetric runs diverged and counts with chance accuracy.")
    with pytest.raises(UsageError, match="classes"):
        compare(frame.drop(columns="classes"))


@pytest.mark.parametrize(
    ("asymmetric", "reason", "words"),
    [
        ([0.60, 0.61, 0.62, 0.64, 0.61], "clear", "ViT: helps, +"),
        ([0.40, 0.41, 0.42, 0.44, 0.41], "clear", "ViT: hurts, -"),
        ([0.60, 0.41, 0.50, 0.55, 0.52], "wide", "ViT: inconclusive, +"),
        ([0.60, 0.61, 0.62, 0.64], "few seeds", "an effect is called from 5 seeds on"),
        ([0.40, 0.41, 0.42, 0.44], "few seeds", "an effect is called from 5 seeds on"),
    ],
)
def test_verdicts_and_their_words(asymmetric, reason, words):
    seeds = len(asymmetric)
    row = only(compare(rows([0.50, 0.51, 0.50, 0.51, 0.50][:seeds], asymmetric)))
    assert decision(row).reason == reason
    assert words in sentence(row)
    assert f"{seeds} seeds" in sentence(row)
    assert f"{row['points_low']:+.1f} to {row['points_high']:+.1f}" in sentence(row)
    assert "%" not in sentence(row).replace("95% interval", "")


def test_an_interval_names_no_difference_that_cannot_be():
    row = only(compare(rows([0.04, 0.9], [0.9, 0.04])))
    assert row["low"] < -1000  # of Plain's mean, as it always was
    assert (row["points_low"], row["points_high"]) == (-100, 100)
    assert "(95% interval -100.0 to +100.0, 2 seeds)" in sentence(row)


@pytest.mark.parametrize(
    ("classes", "largest", "limit"),
    [(2, 0.0, 0.55), (10, 0.0, 0.15), (10, 0.1, 0.15), (10, 0.6, 0.64), (2, 0.98, 0.982)],
)
def test_where_a_class_is_large_naming_it_always_is_chance(classes, largest, limit):
    assert chance_limit(classes, largest) == pytest.approx(limit)


def test_a_run_at_chance_is_counted_and_said():
    frame = rows([0.50, 0.52, 0.54], [0.55, 0.11, 0.56])
    row = only(compare(frame))
    assert (row["plain_at_chance"], row["asymmetric_at_chance"]) == (0, 1)
    assert sentence(row).endswith("1 of 3 Asymmetric runs stayed at chance accuracy.")
    assert list(paired(frame)[0]["asymmetric_at_chance"]) == [False, True, False]
    assert only(compare(frame.drop(columns="classes")))["asymmetric_at_chance"] == 0  # chance is not known
    # A diverged run is named once.
    frame.loc[frame["test_accuracy"] == 0.11, "outcome"] = "diverged"
    assert only(compare(frame))["asymmetric_at_chance"] == 0


def test_a_clear_verdict_is_a_p_below_five_percent():
    rng = np.random.default_rng(0)
    seen = set()
    for shift in np.linspace(-0.1, 0.1, 21):
        plain = rng.normal(0.5, 0.02, 6)
        row = only(compare(rows(plain, plain + shift + rng.normal(0, 0.03, 6))))
        assert (row["p"] < 0.05) == (decision(row).verdict in ("helps", "hurts"))
        seen.add(decision(row).verdict)
    assert seen == {"helps", "hurts", "inconclusive"}


def test_one_plain_run_is_the_partner_of_each_alpha():
    weak, strong = rows([0.5, 0.5], [0.55, 0.56], alpha=0.1), rows([0.5, 0.5], [0.6, 0.62], alpha=2.0)
    frame = pd.concat([weak, strong[strong["variant"] == "asymmetric"]])
    assert separating(frame) == ["dataset", "arch", "alpha"]
    found = compare(frame)
    assert list(found["alpha"]) == [0.1, 2.0]
    assert list(found["n"]) == [2, 2]
    assert found["asymmetric_mean"].iloc[1] == pytest.approx(0.61)


def test_settings_that_both_sides_have_are_never_mixed():
    short, long = rows([0.3, 0.31], [0.35, 0.3], epochs=1), rows([0.5, 0.52], [0.55, 0.6], epochs=9)
    found = compare(pd.concat([short, long]))
    assert list(found["epochs"]) == [1, 9]
    assert list(found["plain_mean"]) == pytest.approx([0.305, 0.51])


def test_two_runs_of_one_seed_are_refused():
    frame = pd.concat([rows([0.5], [0.6]), rows([0.5], [0.6])])
    with pytest.raises(UsageError, match="seed 42 is there twice"):
        compare(frame)


def test_a_finished_run_without_the_measure_is_refused():
    with pytest.raises(UsageError, match="has no test_accuracy"):
        compare(rows([0.5], [None]))
    with pytest.raises(UsageError, match="unknown column of the rows 'dose'"):
        compare(rows([0.5], [0.6]), by=["dose"])


def test_no_pairs_give_an_empty_frame_with_its_columns():
    frame = rows([0.5, 0.6], [])
    found = compare(frame)
    assert len(found) == 0
    assert {"n", "p", "improvement"} <= set(found.columns)
