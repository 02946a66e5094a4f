"""Real searches over tiny nets: what is trained, in which calls, and what is left in the store."""

import dataclasses
import importlib

import pytest
import torch
from search_examples import base_of, run_of

from asymtrain.lab import executors
from asymtrain.lab.engine import plan, train_reference
from asymtrain.lab.engine.training import load_for
from asymtrain.lab.search import chosen_spec, dual_search, gold_standard, read_searches, replay, run_searches
from asymtrain.lab.store import Store

NEAR = 2.01 / 12  # two of the validation images: a fifth of 64
GRIDS = {"learning_rates": (1e-3, 1e-2), "weight_decays": (1e-3, 1e-1), "alphas": (0.1, 1.0, 10.0)}


@pytest.fixture
def calls(monkeypatch, one_core):
    """The specs of each call of `execute`, which trains in this process."""
    seen, real = [], executors.execute

    def watched(specs, **options):
        seen.append(list(specs))
        return real(specs, device="cpu", **options)

    monkeypatch.setattr(executors, "execute", watched)
    return seen


@pytest.fixture
def store(tmp_path):
    return tmp_path / "runs.sqlite"


def attempts(store):
    with Store(store, read_only=True) as opened:
        return opened.records(every_attempt=True)


@pytest.mark.parametrize("seeds", [(1000,), (1000, 1001)])
def test_a_search_trains_each_grid_in_one_call_and_no_run_twice(calls, store, seeds):
    search = gold_standard(base_of(test="every"), seeds=seeds, **GRIDS)
    (result,) = run_searches([search], store=store)
    # The weight decay at which the learning rate was searched is trained already.
    assert [len(call) for call in calls] == [count * len(seeds) for count in (2, 1, 3)]
    assert result.complete
    assert result.runs_left == 0
    records = attempts(store)
    assert len(records) == 6 * len(seeds) == len(result.spec_ids)
    for run in (record.run for record in records):
        assert (run.spec.test, run.answers) == ("never", None)
        assert all(epoch.test_accuracy is None and epoch.validation_accuracy is not None for epoch in run.history)
    assert {record.run.spec.seed for record in records} == set(seeds)


def test_trials_are_those_of_runs_trained_one_by_one_and_the_best_is_chosen(calls):
    search = gold_standard(base_of(), **GRIDS)
    (result,) = run_searches([search])
    dataset = load_for(search.base)
    settings = {"weight_decay": search.start["weight_decay"], "seed": 1000, "epochs": 3, "test": "never"}
    grids = (("learning_rate", (1e-3, 1e-2)), ("weight_decay", (1e-3, 1e-1)), ("alpha", (0.1, 1.0, 10.0)))
    for (name, values), stage in zip(grids, result.stages, strict=True):
        start = search.base if name == "alpha" else search.base.plain()
        assert [trial.settings for trial in stage.trials] == [{name: value} for value in values]
        for trial in stage.trials:
            spec = dataclasses.replace(start, **{**settings, **trial.settings})
            best = max(epoch.validation_accuracy for epoch in train_reference(spec, dataset).history)
            # A stack rounds otherwise than one run: of the validation images, two may fall on the other side.
            assert trial.mean == pytest.approx(best, abs=NEAR)
        settings[name] = max(stage.trials, key=lambda trial: trial.mean).settings[name]
    found = chosen_spec(result, "asymmetric")
    for name in ("learning_rate", "weight_decay", "alpha"):
        assert getattr(found, name) == settings[name], name


def test_an_interrupted_search_goes_on_and_trains_nothing_twice(calls, store):
    search = gold_standard(base_of(), **GRIDS)
    (whole,) = run_searches([search])

    def stop(run, done, total):
        if run.spec.variant == "asymmetric":
            raise KeyboardInterrupt

    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        run_searches([search], store=store, on_run=stop)
    (left,) = read_searches([search], store)
    assert [stage.chosen is None for stage in left.stages[:2]] == [False, False]
    (resumed,) = run_searches([search], store=store)
    assert resumed.complete
    assert resumed.stages[:2] == whole.stages[:2]
    # What was left of the last stack trains by itself, and may round otherwise.
    for again, before in zip(resumed.stages[2].trials, whole.stages[2].trials, strict=True):
        assert (again.settings, again.spec_ids) == (before.settings, before.spec_ids)
        assert again.mean == pytest.approx(before.mean, abs=NEAR)
    assert [record.attempt for record in attempts(store)] == [1] * len(whole.spec_ids)


def test_a_time_limit_ends_a_search_with_what_is_known(calls, store):
    search = gold_standard(base_of(), **GRIDS)
    (ended,) = run_searches([search], store=store, minutes=1e-7)
    assert not ended.complete
    assert ended.runs_left == len(ended.missing) + 2 + 3
    assert len(ended.stages) == 1
    (result,) = run_searches([search], store=store, minutes=10)
    assert result.complete
    # With everything stored, a limit that is over at once still reads it all, and starts no executor.
    calls.clear()
    (read,) = run_searches([search], store=store, minutes=0)
    assert read == result
    assert not calls


@pytest.mark.parametrize(("strategy", "wanted"), [(gold_standard, [5, 4, 20]), (dual_search, [10, 8, 19])])
def test_the_papers_grids_are_one_stack_each(strategy, wanted):
    """For both sides and all smoothings, as the plan divides them where stacks have no limit of size."""
    search = strategy(base_of(), fair=True)
    runs = {}
    sizes = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("asymtrain.lab.engine.plan"), "_MOST_ON_CPU", {"batched": 128})
        while not (result := replay(search, runs)).complete:
            (stack,) = plan(list(result.missing), torch.device("cpu"))
            sizes.append(len(stack.specs))
            runs.update({spec.id: run_of(spec, 0.5) for spec in result.missing})
    assert sizes == wanted


def test_several_searches_share_rounds_and_runs(calls, store):
    """The first two stages train Plain, which does not know N: for a second N only alpha is left."""
    searches = [gold_standard(base_of(redundancy=n, activation="all"), **GRIDS) for n in (1, 3)]
    one, three = run_searches(searches, store=store)
    assert [len(call) for call in calls] == [2, 1, 6]
    assert one.stages[:2] == three.stages[:2]
    assert chosen_spec(three, "asymmetric").redundancy == 3


def test_a_grid_that_fails_leaves_the_other_searches_alone(calls, store):
    """A max-pool after a block that is not there is refused when the net is built."""
    good = gold_standard(base_of(), **GRIDS)
    bad = gold_standard(base_of("cnn", arch_options={"pool_after": (9,)}), **GRIDS)
    results = run_searches([bad, good], store=store)
    assert [result.complete for result in results] == [False, True]
    assert len(results[0].missing) == 2


def test_fresh_trains_again_what_the_store_holds_once(calls, store):
    search = gold_standard(base_of(), **GRIDS)
    run_searches([search], store=store)
    run_searches([search], store=store, fresh=True)
    assert sorted(record.attempt for record in attempts(store)) == [1] * 6 + [2] * 6
