"""Fitting and scoring against closed forms; the benchmark's cases, and one family of it trained."""

import argparse
import csv
import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from asymtrain.errors import UsageError
from asymtrain.resonance import RULE
from asymtrain.resonance.calibration import (
    Case,
    correlation,
    fit,
    refreshed,
    score,
    score_parts,
    score_text,
    shadow_from_dict,
)

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "probe.py"


def loaded_script():
    """The benchmark as a module, under a name that hides no other."""
    found = importlib.util.spec_from_file_location("probe_benchmark", SCRIPT)
    module = sys.modules[found.name] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


benchmark = loaded_script()


def case(gain, probability=0.5, alignment=0.1, family="a", level=0.0, trend=0.0, spread=0.001, verdict="cannot tell"):
    differences = (gain - spread, gain, gain + spread)
    return Case(family, 1.0, alignment, level, trend, probability, verdict, differences, 0.5, alignment)


HELPED, HURT, UNCLEAR = 0.02, -0.02, 0.0


def test_outcomes_are_those_of_the_paired_interval():
    assert [case(gain).outcome for gain in (HELPED, HURT, UNCLEAR)] == [1, -1, 0]
    low, high = stats.t.interval(0.95, 2, HELPED, 0.001 / np.sqrt(3))
    assert case(HELPED).interval == pytest.approx((low, high))
    assert case(HELPED).gain == pytest.approx(4.0)
    assert case(HELPED, spread=0.0).outcome == 1


def test_a_score_by_hand():
    cases = [
        case(HELPED, 0.9, verdict="attach"),
        case(HURT, 0.6),
        case(HURT, 0.1, verdict="leave"),
        case(UNCLEAR, 0.85, verdict="attach"),
        case(UNCLEAR, 0.5),
    ]
    found = score("probe", cases)
    assert (found.clear, found.right) == (3, pytest.approx(2 / 3))
    assert found.brier == pytest.approx((0.01 + 0.36 + 0.01) / 3)
    assert (found.committed, found.committed_right, found.unclear, found.unclear_committed) == (2, 2, 2, 1)
    n, p, z = 3, 2 / 3, stats.norm.ppf(0.975)
    centre, half = p + z * z / (2 * n), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert (found.low, found.high) == pytest.approx(
        ((centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n))
    )
    always = score("always yes", cases)
    assert (always.right, always.brier, always.unclear_committed) == (pytest.approx(1 / 3), pytest.approx(2 / 3), 2)
    by_sign = score("sign of the mean cosine", [case(HELPED, alignment=-0.1), case(HURT, alignment=-0.1)])
    assert by_sign.right == 0.5
    with pytest.raises(UsageError, match="no case has a clear effect"):
        score("probe", [case(UNCLEAR)])


def test_a_fit_recovers_what_made_the_cases():
    drawn = np.random.default_rng(0)
    true = dataclasses.replace(RULE, intercept=-0.5, level=1.5, trend=0.7, cosine=2.0)
    cases = []
    for i in range(1500):
        level, trend, alignment = drawn.normal(size=3)
        blank = case(0.0, alignment=alignment, level=level, trend=trend, family=str(i % 7))
        helps = drawn.random() < refreshed(blank, true)
        cases.append(dataclasses.replace(blank, differences=(0.5 if helps else -0.5,) * 5))
    found = fit(cases)
    for name in ("intercept", "level", "trend", "cosine"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), abs=0.3), name
    assert found.sure == RULE.sure
    assert 0 < found.alone < found.cosine  # what is left out blurs the rest
    with pytest.raises(UsageError, match="two families"):
        fit(cases[:1])


def test_the_correlation_is_spearmans_and_its_interval_is_over_families():
    drawn = np.random.default_rng(1)
    alignments = drawn.normal(size=8)
    cases = [case(a + drawn.normal(), alignment=a, family=str(i)) for i, a in enumerate(alignments)]
    found, low, high = correlation(cases, lambda one: one.alignment, draws=300)
    expected = stats.spearmanr([one.alignment for one in cases], [one.gain for one in cases]).statistic
    assert found == pytest.approx(expected)
    assert low < found < high
    # More cases of the same families say nothing new.
    thrice = [one for one in cases for _ in range(3)]
    assert correlation(thrice, lambda one: one.alignment, draws=300) == pytest.approx((found, low, high))
    assert correlation(cases, lambda one: 0.5) is None
    with pytest.raises(UsageError, match="three families"):
        correlation(cases[:2], lambda one: one.alignment)


def test_both_parts_are_scored_and_shown():
    tune = [case(g, 0.7, family=f, level=g * 50) for f, g in (("a", HELPED), ("b", HURT), ("c", HELPED))]
    scored = [case(g, 0.7, family=f, level=g * 50) for f, g in (("d", HELPED), ("e", HURT))]
    found = score_parts(tune, scored)
    assert [part for part, _ in found] == ["tune"] * 3 + ["score"] * 4
    assert found[-1][1].right == 1.0  # the fitted rule knows that the level decides
    several = [dataclasses.replace(one, alignment=i / 10) for i, one in enumerate([*tune, *scored])]
    text = score_text(found, several)
    assert text.count("\n| ") == 7
    assert "5 cases of 5 families" in text
    assert score_parts([case(UNCLEAR)], []) == []


def test_the_benchmark_has_disjoint_parts_and_enough_cases():
    for families in (benchmark.FULL, benchmark.TINY):
        parts = {part: [one for one in families if one.part == part] for part in ("tune", "score")}
        assert len({one.name for one in families}) == len(families)
        assert len(parts["score"]) * len(benchmark.ALPHAS) >= 12
        specs = [str(sorted(one.fields.items(), key=str)) for one in families]
        assert len(set(specs)) == len(families)
    without_cifar10 = [f for f in benchmark.FULL if f.part == "score" and f.fields["dataset"] != "cifar10"]
    assert len(without_cifar10) * len(benchmark.ALPHAS) >= 12


def test_a_family_is_measured_kept_and_written(tmp_path, monkeypatch, capsys):
    one = benchmark.TINY[0]
    little = {**one.fields, "dataset_options": {"classes": 4, "size": 200, "test_size": 100}, "epochs": 2}
    one = dataclasses.replace(one, fields=little)
    size = benchmark.Size((one,), 2, 2, 20, 1.0)
    chosen = argparse.Namespace(length=None, data_root=None, device="cpu", store=tmp_path / "s.sqlite", out=tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
    assert benchmark.measure(one, size, chosen, "fp32", 0.0) is None  # no time: nothing is begun
    rows = benchmark.measure(one, size, chosen, "fp32", float("inf"))
    assert [found.alpha for found, _ in rows] == list(benchmark.ALPHAS)
    again = benchmark.measure(one, size, chosen, "fp32", 0.0)  # from the store and the file
    assert [found for found, _ in again] == [found for found, _ in rows]
    benchmark.write([("tune", *row) for row in rows], tmp_path, show_fit=False)
    with (tmp_path / "cases.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [float(row["gain"]) for row in written] == pytest.approx([found.gain for found, _ in rows])
    assert (tmp_path / "scatter.svg").read_text().startswith("<svg")
    kept = next(tmp_path.glob("shadow-*.json")).read_text()
    assert dataclasses.asdict(shadow_from_dict(json.loads(kept)))["together"]["place"] == "all places"
