"""What came out, in short: the table of verdicts, the figure, the sentence, and the history of the rule."""

import dataclasses

import pytest
from synthetic_evidence import VIT, effect, paper_like

from asymtrain.lab.report.drawing import draw
from asymtrain.lab.studies.paper.claims import claims
from asymtrain.lab.studies.paper.summary import BEFORE, REASONS, conclusion, forest, history_table, verdict_table
from asymtrain.lab.studies.paper.verdicts import Verdict, judge_all

CNN = "table1/cnn/20"


@pytest.fixture(scope="module")
def judged():
    """The ViT's gain is right, the headline too small, and nothing else was run."""
    return judge_all({"primary": {VIT: effect(VIT, 20, 30), CNN: effect(CNN, 10, 20)}})


def test_the_table_has_a_row_for_each_claim(judged):
    rows = {row[0].value: [cell.value for cell in row[1:]] for row in verdict_table(judged).rows}
    assert list(rows) == [one.id for one in claims()]
    assert rows["c01"][1:] == ["+25.4%", "+25.0%", "+20.0% to +30.0%", 10, "Reproduced"]
    assert rows["c06"][1:3] == ["+40.7 points", "+10.0 points"]
    assert rows["c07"][1:] == ["0.1870", None, None, None, "Not yet run"]
    assert (rows["c33"][1], rows["c22"][1]) == ("16.2%; 20.7%", "93.7%; 87.9%")
    assert (rows["c26"][1], rows["c27"][1]) == ("0.29 nats; 0.14 nats; 0.08 nats", "0.96; 0.84")


def test_the_figure_has_shares_of_the_papers_effect(judged):
    figure = forest(judged)
    (panel,) = figure.panels
    bars = {bar.label.split()[0]: bar for bar in panel.bars}
    assert (bars["c01"].estimate, bars["c01"].low) == pytest.approx((25 / 25.4, 20 / 25.4))
    assert panel.marks == (0.5, 1.0, 1.5)
    assert not {"c02", "c35"} & set(bars)  # not yet run, and judged otherwise
    assert panel.ends == (-2.0, 3.0)
    assert draw(figure) == draw(forest(judged))
    hurt = judge_all({"primary": {"table1/cnn/1": effect("table1/cnn/1", -33, -22)}})
    (bar,) = [bar for bar in forest(hurt).panels[0].bars if bar.label.startswith("c02")]
    assert (bar.low, bar.high) == pytest.approx((1, 1.5))  # a loss where the paper has one is a share above 0
    assert forest(judge_all({})).missing


def test_the_conclusion_counts_and_names_the_headline(judged):
    assert conclusion(judged).startswith(
        "3 of 36 claims have a verdict (reproduced 1; right direction, different size 1; contradicted 1)."
    )
    assert "came out as right direction, different size: +10.0 points (" in conclusion(judged)
    assert "where the paper has +40.7 points" in conclusion(judged)
    assert conclusion(judged, counted=False).startswith("3 of 36 claims have a verdict. The paper's headline, ")
    assert conclusion(judge_all({})) == ""
    assert "headline" not in conclusion(judged[:1])


def test_the_history_has_every_claim_once_with_verdicts_that_exist(judged):
    names = [name for line in BEFORE.values() for name in line.split()]
    assert sorted(names) == [one.id for one in claims()]
    words = str(Verdict)
    assert all(then in words for then, _ in REASONS.values())
    needed = dict.fromkeys(label for one in claims() for label in one.needs)
    now = judge_all({"primary": {label: paper_like(label, seed) for seed, label in enumerate(needed)}})
    rows = {row[0].value: [cell.value for cell in row[1:]] for row in history_table(now).rows}
    assert rows["c36"] == ["Reproduced", "Reproduced", None, None]
    assert rows["c19"] == ["Not yet run", "Reproduced", "other rows than that day", None]
    assert rows["c16"][2].endswith("; other rows than that day")
    assert rows["c06"][3] == "after rows were seen"
    same = [dataclasses.replace(one, verdict=REASONS[one.claim.id][0]) for one in now if one.claim.id in REASONS]
    assert not [row for row in history_table(same).rows if "other rows" in row[3].value]
