"""The claims: all there, each with parts whose numbers are those that the claim names."""

import itertools
import re

import pytest

from asymtrain.errors import UsageError
from asymtrain.lab.studies.paper.claims import Part, claim, claims, epochs_wanted, family, paper_change
from asymtrain.lab.studies.paper.numbers import cells, hyperparameters, labels, printed, rows
from asymtrain.lab.studies.paper.verdicts import LIMITS, family_of

BEYOND_THE_TABLES = ("redundancy/", "figure9/", "inference/")


def test_all_36_are_there_in_order():
    assert [one.id for one in claims()] == [f"c{number:02}" for number in range(1, 37)]
    assert [one.text for one in claims()] == [row["claim"] for row in rows("claims")]
    assert claim("c06").kind == "interaction"
    with pytest.raises(UsageError, match="claim"):
        claim("c99")


@pytest.mark.parametrize("one", claims(), ids=lambda one: one.id)
def test_needs_are_labels_that_exist(one):
    assert one.needs
    for label in one.needs:
        assert label in cells() or label.startswith(BEYOND_THE_TABLES), label
        assert family(label) >= 3
        assert epochs_wanted(label) in (0, 20, 50, 60, 100, 200)


def said(one):
    return [float(text) for text in re.findall(r"-?\d+\.?\d*", one.paper_value)]


@pytest.mark.parametrize(
    "name", ["c01", "c02", "c04", "c06", "c07", "c08", "c09", "c11", "c14", "c16", "c17", "c18", "c19", "c20",
             "c23", "c24", "c25", "c28", "c30", "c32", "c33", "c34"]
)  # fmt: skip
def test_parts_have_the_numbers_that_the_claim_names(name):
    one = claim(name)
    assert [part.paper for part in one.parts] == pytest.approx(
        said(one), abs=0.5 if "." not in one.paper_value else 0.051
    )


@pytest.mark.parametrize("name", ["c03", "c05", "c29", "c31"])
def test_trends_run_over_the_levels_that_the_claim_names(name):
    one, levels = claim(name), said(claim(name))
    assert sorted(map(paper_change, one.needs)) == sorted(levels)
    whole, *steps, anchor = one.parts
    assert whole.paper == pytest.approx(levels[-1] - levels[0])
    assert [step.paper for step in steps] == pytest.approx([b - a for a, b in itertools.pairwise(levels)])
    assert {step.sign for step in steps} == {whole.sign}
    assert anchor.how == "sign"


def test_claims_about_redundancy_ask_for_equal_settings():
    for name in ("c03", "c05"):
        assert all(label.startswith("redundancy/") for label in claim(name).needs)
    assert paper_change("redundancy/vit/7") == paper_change("table1/vit/7")


def test_other_numbers_of_the_claims():
    assert [part.paper for part in claim("c13").parts] == pytest.approx([100 * (5 - 20) / 20, -71], abs=0.05)
    assert claim("c15").parts[1].paper == pytest.approx(30.6, abs=0.05)
    assert claim("c22").parts[0].paper == pytest.approx(100 * (93.7 / 87.9 - 1))
    nats = [part.paper * printed(part.labels[0]).plain / 100 for part in claim("c26").parts]
    assert nats == pytest.approx(said(claim("c26")))
    assert claim("c27").parts[0].paper == pytest.approx(100 * (0.96 / 0.84 - 1))
    assert claim("c35").needs == labels("table1")


def test_what_the_paper_reports_as_null_has_no_significant_p():
    nulls = [part for one in claims() for part in one.parts if part.how == "no effect"]
    assert [part.labels for part in nulls] == [("table10/cnn",)]
    assert printed("table10/cnn").p > 0.05


def test_smoothing_is_asked_of_every_level_and_backbone():
    assert len(claim("c21").parts) == 9
    assert {part.sign for part in claim("c21").parts} == {-1}


def test_what_stands_beside_a_claim_is_at_the_papers_settings_or_over_all_epochs():
    beside = {one.id: [part.labels for _, part in one.beside] for one in claims() if one.beside}
    assert beside == {
        "c03": [("table1/vit/1", "table1/vit/20")],
        "c05": [("table1/mlp/1", "table1/mlp/20")],
        "c13": [("convergence/cnn",)],
        "c15": [("convergence/vit",)],
    }


@pytest.mark.parametrize(("name", "arch"), [("c03", "vit"), ("c05", "mlp")])
def test_what_else_differs_with_n_is_what_table_13_says(name, arch):
    one, many = (hyperparameters(arch, n) for n in (1, 20))
    fields = ("learning_rate", "weight_decay", "alpha")
    differ = [field for field in fields if getattr(one, field) != getattr(many, field)]
    ((words, _),) = claim(name).beside
    assert [field for field in fields if field.replace("_", " ") in words] == differ


@pytest.mark.parametrize(
    ("label", "epochs"),
    [("table1/vit/20", 200), ("table2/vit/min", 100), ("table3/vit/final", 100), ("table4/vit/50", 50),
     ("table6/vit/300/std_loss", 0), ("table8/mlp/5", 200), ("table14/map_entropy/60", 60),
     ("figure9/peak_strength", 200)],
)  # fmt: skip
def test_a_verdict_waits_for_the_papers_epochs(label, epochs):
    assert epochs_wanted(label) == epochs


def test_only_the_identity_needs_fewer_than_ten_seeds():
    assert {one.id for one in claims() if LIMITS.seeds_of(one) < 10} == {"c36"}


def test_families_are_the_tables():
    assert family_of(Part("difference", ("table6/cnn/1/range_loss", "table1/cnn/1"))) == 18  # the larger of two
    assert family("table1/vit/20") == family("redundancy/vit/20") == 12
    assert (family("table6/vit/300/std_loss"), family("figure9/peak_strength"), family("inference/mlp")) == (18, 4, 3)
