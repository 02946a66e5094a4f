"""States at chosen epochs: those that training passes through, from the cache or trained again."""

import dataclasses

import pytest
import torch
from small_runs import assert_same_bits, spec_of, stack_of, trained, weights_of

from asymtrain.errors import UsageError
from asymtrain.lab import data as datasets
from asymtrain.lab.engine import states as module
from asymtrain.lab.engine.states import initial_state, states_at

SHAPES = {"dataset_options": {"classes": 4, "size": 80, "test_size": 20, "image_size": 8}}


@pytest.fixture(scope="module")
def dataset():
    return datasets.load("shapes", **SHAPES["dataset_options"])


def backbone(state):
    return {name: value for name, value in state.parameters.items() if not name.startswith("branch.")}


def test_states_are_those_that_training_passes_through(dataset):
    spec = spec_of(**SHAPES, epochs=3)
    start, second, end = states_at([spec], [3, 0, 2])
    assert [state.epoch for state in (start, second, end)] == [0, 2, 3]
    assert_same_bits(
        backbone(start), {n: v.detach() for n, v in module.Stack([spec], dataset).network.named_parameters()}
    )
    assert_same_bits(backbone(end), weights_of(stack_of([spec], dataset)))
    assert_same_bits(backbone(second), trained(dataclasses.replace(spec, epochs=2), dataset, "batched")[1])
    assert end.parameters["branch.0"].shape == (1, 4, 12)
    assert not torch.equal(end.parameters["branch.0"], start.parameters["branch.0"])


def test_nothing_is_tested_on_the_way_to_a_state(monkeypatch, dataset):
    spec = spec_of(**SHAPES, epochs=3, test="every")
    asked = []
    answer = module.Stack.answer

    def counted(stack, images, labels, indices):
        asked.append(indices.shape[1])
        return answer(stack, images, labels, indices)

    expected = weights_of(stack_of([spec], dataset))
    monkeypatch.setattr(module.Stack, "answer", counted)
    (end,) = states_at([spec], [3])
    assert asked == [16] * 3  # the validation images, which tell whether a run has diverged
    assert end.spec == spec
    assert_same_bits(backbone(end), expected)


def test_progress_counts_every_epoch_and_states_are_kept_before_it(tmp_path):
    spec = spec_of(**SHAPES, epochs=4)
    seen = []
    states_at([spec], [0, 3], cache=tmp_path, progress=lambda *at: seen.append((*at, len(list(tmp_path.iterdir())))))
    assert seen == [(1, 3, 0), (2, 3, 0), (3, 3, 1)]


def test_plain_has_no_branches_and_a_prior_has_biases(dataset):
    spec = spec_of(**SHAPES, bias="prior")
    plain, with_bias = states_at([spec.plain(), spec], [1])
    assert not any(name.startswith("branch") for name in plain.parameters)
    assert "branch.0.bias" in with_bias.parameters
    assert "branch.0.bias" in initial_state(spec, dataset).parameters
    assert not any(name.startswith("branch") for name in initial_state(spec.plain(), dataset).parameters)


def test_the_cache_spares_training(tmp_path, monkeypatch):
    specs = [spec_of(**SHAPES), spec_of(**SHAPES, seed=43)]
    first = states_at(specs, [1, 2], cache=tmp_path)
    monkeypatch.setattr(module, "Stack", None)  # nothing is trained any more
    again = states_at(specs, [1, 2], cache=tmp_path)
    assert [(state.spec, state.epoch) for state in again] == [(s, e) for s in specs for e in (1, 2)]
    for one, two in zip(first, again, strict=True):
        assert_same_bits(one.parameters, two.parameters)


def test_a_damaged_file_of_the_cache_is_named(tmp_path):
    spec = spec_of(**SHAPES)
    (tmp_path / f"{spec.id}-1.safetensors").write_bytes(b"no weights")
    with pytest.raises(UsageError, match="delete it"):
        states_at([spec], [1], cache=tmp_path)


def test_a_lost_run_has_no_state_after_its_loss():
    lost = spec_of(**SHAPES, learning_rate=1e30, epochs=3)
    seen = states_at([lost, spec_of(**SHAPES, epochs=3)], [0, 3])
    assert [(state.spec.learning_rate, state.epoch) for state in seen] == [(1e30, 0), (1e-3, 0), (1e-3, 3)]


def test_epochs_beyond_the_run_are_refused():
    with pytest.raises(UsageError, match="between 0 and the 2"):
        states_at([spec_of(**SHAPES)], [3])
