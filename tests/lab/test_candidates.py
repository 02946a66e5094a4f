"""A configuration of branches: fields of a spec, and its name in tables."""

import json
from dataclasses import replace

import numpy as np
import pytest

from asymtrain.errors import UsageError
from asymtrain.lab.candidates import RECOMMENDED, RECOMMENDED_ON_CONVOLUTIONS, Candidate
from asymtrain.lab.runs import RunSpec


def test_it_is_the_configuration_of_a_spec_and_back():
    candidate = Candidate("softmax", "none", 0.3, "later", "cosine")
    assert Candidate.of(RunSpec(**candidate.fields(), seed=7)) == candidate
    assert candidate.label == "softmax, alpha 0.3, later layers, falling"
    assert Candidate(bias="prior").label == "sigmoid with prior bias, alpha 0.1"


LABELS = {
    "sigmoid with prior bias, strength 0.5": RECOMMENDED,
    "sigmoid with prior bias, strength 0.05": RECOMMENDED_ON_CONVOLUTIONS,
    "distill, strength 0.5, tower": replace(RECOMMENDED, objective="distill", bias="none", head="tower"),
    "softmax, gradient ratio 0.1, MLP head": Candidate("softmax", head="mlp", balance="norms"),
    "sigmoid, alpha 0.1, classes summed": Candidate(class_reduction="sum"),
    "sigmoid, alpha 0.1, layers averaged, later layers": Candidate(layer_reduction="mean", layers="later"),
}


@pytest.mark.parametrize("label", LABELS)
def test_the_weight_is_named_in_its_unit(label):
    assert LABELS[label].label == label


@pytest.mark.parametrize("wrong", [{"objective": "cosine"}, {"layers": "early"}, {"alpha": -1}])
def test_what_no_run_can_have_is_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Candidate(**wrong)


@pytest.mark.parametrize("alpha", [1, np.float32(0.5), np.int64(2)], ids=["int", "float32", "int64"])
def test_alpha_may_be_any_number(alpha):
    candidate = Candidate(alpha=alpha)
    assert json.loads(json.dumps(candidate.fields()))["alpha"] == alpha
    assert candidate == Candidate.of(RunSpec(**candidate.fields()))
