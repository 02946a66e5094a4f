"""The paper's contradictions, recomputed here from its rows by other means."""

import math
from pathlib import Path

import pytest
from scipy import special

from asymtrain.lab.studies.paper.contradictions import CHECKS, contradictions, equal_settings, single_activation
from asymtrain.lab.studies.paper.evidence import Quantity
from asymtrain.lab.studies.paper.numbers import rows, texts

BY_NAME = {one.name: one for one in contradictions()}


def test_every_check_finds_its_contradiction():
    assert len(BY_NAME) == 14
    assert all(one.holds for one in contradictions())
    for one in contradictions():
        assert one.sentence.endswith(".")
        assert any(character.isdigit() for character in one.sentence)


def test_every_check_has_a_sentence_and_every_sentence_a_check():
    assert list(texts()["contradictions"]) == list(CHECKS)


def test_the_docs_say_each_as_it_is_computed():
    page = Path(__file__).parents[4] / "docs" / "deviations.md"
    said = " ".join(page.read_text(encoding="utf-8").replace("\\<", "<").split())
    for one in contradictions():
        assert f"- *{one.name[:1].upper()}{one.name[1:]}* ({one.where}). {one.sentence}" in said


def test_mlp_at_7_and_20_by_hand():
    # Means .221 and .211, deviations .003, ten runs each: t = .01 / (.003 sqrt(2 / 10)) with 18 degrees of freedom.
    t = 0.01 / (0.003 * math.sqrt(0.2))
    p = special.betainc(9, 0.5, 18 / (18 + t * t))
    assert BY_NAME["redundancy at equal settings"].number == pytest.approx(p)
    assert 1e-7 < p < 1e-6
    # .2205 and .2115 with .0035 are as near as rounding allows.
    t = 0.009 / (0.0035 * math.sqrt(0.2))
    assert f"({special.betainc(9, 0.5, 18 / (18 + t * t)):.1g} at" in BY_NAME["redundancy at equal settings"].sentence


def test_pairs_of_equal_settings():
    pairs = {(one.arch, one.redundancy, other.redundancy) for one, other, _ in equal_settings()}
    assert pairs == {("mlp", 7, 10), ("mlp", 7, 20), ("mlp", 10, 20), ("cnn", 7, 20), ("vit", 7, 10)}


def test_counts():
    alphas = [float(row["alpha"]) for row in rows("table13_hyperparameters")]
    assert BY_NAME["alphas on the edge of the grid"].number == alphas.count(0.1) + alphas.count(100) == 7
    assert BY_NAME["weight decay depends on redundancy"].number == 2
    # By learning rate and weight decay: 6 pairs of the MLP, 3 of the CNN and of the ViT; MLP 1/20 and CNN 10/20 agree.
    assert "in 10 of 12 pairs" in BY_NAME["Plain depends on redundancy"].sentence
    p_values = [float(row["p_value"]) for row in rows("table01_redundancy_cifar100")]
    assert BY_NAME["every main result significant"].number == max(p_values)
    assert "1 of 12" in BY_NAME["every main result significant"].sentence
    assert BY_NAME["consistently positive cosine"].number < -0.18
    assert BY_NAME["which attention is diffuse"].number == 9


def test_smoothing_from_one_branch_to_300():
    assert BY_NAME["smoothing counted from Plain"].number == pytest.approx(100 * ((1 - 0.902) / (1 - 0.523) - 1))


def identity(*values):
    return Quantity("identity/mlp", values, 3, ("a", "b"), tuple(range(len(values))))


def test_single_activation_is_judged_by_runs():
    text, confirmed = single_activation({})
    assert confirmed is None
    assert "no pair of runs" in text
    text, confirmed = single_activation({"mlp": identity(0.0, 0.0), "vit": identity(0.0)})
    assert confirmed is True
    assert "3 pairs of runs" in text
    assert "MLP, ViT" in text
    text, confirmed = single_activation({"mlp": identity(0.0, -1e-7)})
    assert confirmed is False
    assert "up to 1e-07" in text
