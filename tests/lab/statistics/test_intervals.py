"""Intervals, tests and corrections against values computed by hand or by slow loops."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import integrate, optimize, special

from asymtrain.errors import UsageError
from asymtrain.lab.comparisons import corrected
from asymtrain.lab.statistics import (
    bonferroni,
    cohen_d_av,
    cohen_d_z,
    equivalence_p,
    holm,
    minimum_detectable_d,
    minimum_detectable_improvement,
    size_word,
    t_interval,
    wilcoxon_p,
)

T_975_OF_2 = 4.302652729911275  # printed in every table of the t distribution, with two degrees of freedom


def test_t_interval_by_hand():
    # 1, 2, 6: mean 3, variance (4 + 1 + 9) / 2 = 7; t = 3 / sqrt(7 / 3), and two degrees of freedom have a closed form.
    found = t_interval([1, 2, 6])
    t = 3 / math.sqrt(7 / 3)
    assert found.estimate == 3
    assert found.p == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert found.high - 3 == pytest.approx(T_975_OF_2 * math.sqrt(7 / 3))
    assert 3 - found.low == pytest.approx(found.high - 3)
    assert found.n == 3


def test_a_family_of_five_takes_the_99_percent_interval():
    wide = t_interval([1, 2, 6], family=5)
    assert wide.high == pytest.approx(t_interval([1, 2, 6], confidence=0.99).high)
    assert wide.p == t_interval([1, 2, 6]).p


def test_without_spread_the_interval_is_a_point():
    assert t_interval([0.0, 0.0]) == t_interval([0.0, 0.0], family=9)
    nothing, something = t_interval([0.0, 0.0, 0.0]), t_interval([2.0, 2.0])
    assert (nothing.low, nothing.high, nothing.p) == (0, 0, 1)
    assert (something.low, something.high, something.p) == (2, 2, 0)


def test_too_few_or_not_finite_values_are_refused():
    with pytest.raises(UsageError, match="two values or more"):
        t_interval([1.0])
    with pytest.raises(UsageError, match="not finite"):
        t_interval([1.0, math.nan])
    with pytest.raises(UsageError, match="between 0 and 1"):
        t_interval([1.0, 2.0], confidence=95)


@pytest.mark.parametrize("shift", [-0.5, -0.1, 0.0, 0.2, 0.45])
@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_equivalence_p_says_when_the_interval_lies_within_the_margin(shift, confidence):
    values = np.array([0.1, -0.2, 0.15, -0.05, 0.0]) + shift
    found = t_interval(values, confidence)
    inside = found.low > -0.5 and found.high < 0.5
    assert (equivalence_p(values, 0.5) < 1 - confidence) == inside


def test_equivalence_of_constants():
    assert equivalence_p([0.2, 0.2], 0.5) == 0
    assert equivalence_p([0.5, 0.5], 0.5) == 1


def test_wilcoxon_starts_at_six_and_leaves_zeros_out():
    assert wilcoxon_p([1, 2, 3, 4, 5]) is None
    assert wilcoxon_p([0, 1, 2, 3, 4, 5]) is None
    assert wilcoxon_p([0, 1, -2, 3, 0, 3, 4, -5]) == wilcoxon_p([1, -2, 3, 3, 4, -5])
    assert wilcoxon_p([1, 2, 3, 4, 5, 6]) == pytest.approx(2 / 64)


def test_both_kinds_of_d_by_hand():
    plain, asymmetric = [1.0, 2.0, 3.0], [3.0, 3.0, 6.0]  # differences 2, 1, 3: mean 2, deviation 1
    assert cohen_d_z(plain, asymmetric) == pytest.approx(2)
    assert cohen_d_av(plain, asymmetric) == pytest.approx(2 / ((1 + math.sqrt(3)) / 2))
    assert cohen_d_z([1, 2], [2, 3]) is None
    assert cohen_d_av([1, 1], [2, 2]) is None


@pytest.mark.parametrize(
    ("d", "word"),
    [(0.19, "negligible"), (0.2, "small"), (-0.49, "small"), (0.5, "medium"), (0.79, "medium"), (-0.8, "large")],
)
def test_words_for_d(d, word):
    assert size_word(d) == word


def test_corrections_by_hand():
    assert bonferroni([0.01, 0.04, 0.5]) == pytest.approx([0.03, 0.12, 1])
    assert holm([0.04, 0.01, 0.5, 0.015]) == pytest.approx([0.08, 0.04, 0.5, 0.045])
    assert holm([0.01, 0.02], family=10) == pytest.approx([0.1, 0.18])
    assert bonferroni([0.01], family=12) == pytest.approx([0.12])
    assert holm([]) == []
    with pytest.raises(UsageError, match="cannot hold"):
        holm([0.1, 0.2], family=1)


def test_a_frame_is_one_family():
    frame = pd.DataFrame({"p": pd.Series([0.01, None, 0.04], dtype=object)})
    found = corrected(frame.where(frame.notna(), None))
    assert list(found["p_bonferroni"]) == [pytest.approx(0.02), None, pytest.approx(0.08)]
    assert list(found["p_holm"]) == [pytest.approx(0.02), None, pytest.approx(0.04)]


def power_of(d, n, alpha):
    """Of the two-tailed test, integrated over the deviation instead of by a noncentral t."""
    freedom = n - 1
    bound = special.stdtrit(freedom, 1 - alpha / 2)

    def at(chi):  # the deviation over its true value, times sqrt(freedom)
        density = chi ** (freedom - 1) * math.exp(-chi * chi / 2) / (2 ** (freedom / 2 - 1) * math.gamma(freedom / 2))
        edge = bound * chi / math.sqrt(freedom)
        return density * (special.ndtr(d * math.sqrt(n) - edge) + special.ndtr(-d * math.sqrt(n) - edge))

    return integrate.quad(at, 0, 30)[0]


@pytest.mark.parametrize(("n", "family"), [(3, 1), (10, 1), (10, 12)])
def test_the_least_effect_that_seeds_can_detect(n, family):
    expected = optimize.brentq(lambda d: power_of(d, n, 0.05 / family) - 0.8, 0.1, 30)
    assert minimum_detectable_d(n, family=family) == pytest.approx(expected, rel=1e-4)


def test_the_least_improvement_is_in_percent_of_plain():
    plain, asymmetric = [0.4, 0.5, 0.6], [0.5, 0.5, 0.8]  # differences .1, 0, .2: deviation .1
    assert minimum_detectable_improvement(plain, asymmetric) == pytest.approx(100 * minimum_detectable_d(3) * 0.1 / 0.5)
    with pytest.raises(UsageError, match="two pairs"):
        minimum_detectable_d(1)


def test_what_is_written_out_gives_what_the_libraries_give_to_the_bit():
    """Tails of t, signed ranks with and without ties, Holm and Bonferroni."""
    from scipy import stats
    from statsmodels.stats.multitest import multipletests

    random = np.random.default_rng(0)
    p_values = []
    for count in [*range(6, 10)] * 3:  # scipy tries 2 ** count signs one by one
        for sample in (random.normal(0.4, 1, count), np.round(random.normal(0.4, 1, count), 1) + 0.05):
            signs = stats.PermutationMethod(n_resamples=9999)
            assert wilcoxon_p(sample) == stats.wilcoxon(np.round(sample, 12), method=signs).pvalue
            interval = t_interval(sample)
            t = abs(interval.estimate) / (float(sample.std(ddof=1)) / count**0.5)
            assert interval.p == 2 * stats.t.sf(t, count - 1)
            p_values.append(interval.p)
    for name, corrected_by in (("holm", holm), ("bonferroni", bonferroni)):
        for size in (1, 2, 7, len(p_values)):
            assert corrected_by(p_values[:size]) == multipletests(p_values[:size], method=name)[1].tolist()
