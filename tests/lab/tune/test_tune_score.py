"""benchmarks/tune.py: what an advisor may see and pays for, scores by hand, and the table in docs/tune.md."""

import sys
from pathlib import Path

import pytest

from asymtrain import UsageError
from asymtrain.lab.candidates import Candidate
from asymtrain.lab.report.export import as_markdown

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))
import tune as benchmark  # noqa: E402

STRONG, WEAK, SOFT = benchmark.DEFAULT, benchmark.WEAK, Candidate("softmax", alpha=1.0)


def case(gain, short, soft=0.0, family="transformer"):
    """The default gains so much on each of five seeds, and in short pairs on two."""
    long = {STRONG: gain, WEAK: (0.1,) * 5, SOFT: (soft,) * 5}
    return benchmark.Case("vit", family, long, {STRONG: short, WEAK: (0.1, 0.1), SOFT: (soft, soft)}, SOFT)


@pytest.fixture(scope="module")
def rows():
    return benchmark.read_cases()


@pytest.fixture(scope="module")
def scores(rows):
    return benchmark.score_all(rows)


def test_tune_sees_no_scored_seed():
    for scored in range(5):
        gains = [2.0, 2.1, 1.9, 2.2, 1.8]
        seen = benchmark.tune(case(tuple(gains), (1.0, 1.0)), scored, 16)
        gains[scored] = -1e6
        assert benchmark.tune(case(tuple(gains), (1.0, 1.0)), scored, 16) == seen


def test_every_run_is_counted():
    two = case((2.0, 2.1, 1.9, 2.2, 1.8), (1.0, 1.0))
    assert benchmark.tune(two, 0, 1).runs == pytest.approx(2 / 3)  # one pair of a third of the epochs
    # Three pairs decide; then two alternatives and the default, and the better with it, a third each.
    assert benchmark.tune(two, 0, 16).runs == pytest.approx(6 + 1 + 2 / 3)
    assert benchmark.short_pairs(1)(two, 0, 1).runs == 1.0  # two candidates and the baseline
    assert benchmark.short_pairs(2)(two, 0, 1) == benchmark.Advice(None)
    assert benchmark.short_pairs(2)(two, 0, 16).runs == pytest.approx(8 / 3)


def test_advice_by_hand():
    helps = case((2.0, 2.1, 1.9, 2.2, 1.8), (1.0, 1.0))
    assert benchmark.tune(helps, 0, 8).candidate == STRONG
    assert benchmark.tune(case((-2.0, -2.1, -1.9, -2.2, -1.8), (-1.0, -1.0)), 0, 8).candidate is None
    better = case((2.0, 2.1, 1.9, 2.2, 1.8), (1.0, 1.0), soft=4.0)
    assert benchmark.tune(better, 0, 16).candidate == SOFT
    assert case((1.0,) * 5, (1.0, 1.0), family="residual convolutions").default == WEAK
    assert benchmark.score(benchmark.default, [helps], 1).gain == pytest.approx(2.0)
    assert benchmark.score(benchmark.none, [helps], 1).gain == 0


def test_what_has_no_long_rows_is_worth_the_nearest():
    one = case((1.0,) * 5, (1.0, 1.0))
    assert one.nearest(Candidate(bias="prior", alpha=5.0)) == STRONG
    assert one.nearest(Candidate(bias="prior", alpha=2.0)) == WEAK


def test_the_rows_are_those_of_nine_models_and_budgets_hold(rows, scores):
    assert len(rows) == 9
    assert len({row.family for row in rows}) == 4
    assert all(
        one.runs <= budget for row in scores.values() for budget, one in zip(benchmark.BUDGETS, row, strict=True)
    )
    assert scores["always none"][0].gain == 0


def test_the_page_has_the_table_that_the_command_writes(rows, scores):
    page = (ROOT / "docs" / "tune.md").read_text()
    assert as_markdown(benchmark.score_table(scores, rows)) in page
    (cnn,) = (
        line for line in as_markdown(benchmark.family_table(scores, rows)).splitlines() if line.startswith("| CNN ")
    )
    _, of_tune, *_, elsewhere = cnn.strip("| ").split(" | ")
    said = " ".join(page.split())
    assert f"cost the CNN {of_tune.strip('-')} points" in said
    assert f"best on other families {elsewhere.strip('-')}." in said
    with pytest.raises(UsageError, match="no place for the scores"):
        benchmark.with_scores("a page", "text")


def test_where_tune_is_not_on_the_upper_edge_the_page_says_so_first(scores):
    edge = benchmark.upper_edge(scores)
    first = (ROOT / "docs" / "tune.md").read_text().split("\n\n")[1]
    assert ("short pair" in first) == any(name != "tune" for name in edge)
