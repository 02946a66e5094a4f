import dataclasses
import math
import random
import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_examples import example_run, example_spec

from asymtrain.errors import UsageError
from asymtrain.lab.runs import Epoch, Run, RunSpec, grid, pairs
from asymtrain.lab.store import Measurement, Provenance, Store
from asymtrain.lab.store.checksums import EPOCH_COLUMNS

numbers = st.floats(allow_nan=False, allow_infinity=False)
seconds = st.floats(0, 1e9)
maybe = st.none() | numbers


@st.composite
def runs(draw):
    epochs = draw(st.integers(1, 4))
    spec = RunSpec(
        seed=draw(st.integers(0, 2**70)),
        epochs=epochs,
        alpha=draw(st.floats(0, 1e6)),
        arch_options={"widths": draw(st.lists(st.integers(1, 512), min_size=1, max_size=3))},
        dataset=draw(st.text(min_size=1, max_size=8, alphabet=st.characters(exclude_categories=["Cs"]))),
    )
    history = [
        Epoch(n, *(draw(s) for s in (numbers, maybe, numbers, maybe, maybe, maybe, maybe, maybe, seconds)))
        for n in range(1, epochs + 1)
    ]
    diverged = draw(st.booleans())
    return Run(
        spec,
        tuple(history[:-1] if diverged else history),
        "diverged" if diverged else "finished",
        device=draw(st.sampled_from(["cpu", "NVIDIA H200"])),
    )


@given(run=runs())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_a_run_comes_back_bit_by_bit(run, tmp_path):
    path = tmp_path / f"{uuid.uuid4()}.sqlite"
    with Store(path) as store:
        assert store.add(run)
    with Store(path) as store:
        (back,) = store.runs()
    assert back == run
    assert repr(back) == repr(run)  # tells 0.0 from -0.0, which are equal
    assert back.spec.id == run.spec.id


def test_the_tables_have_a_column_for_every_field(tmp_path):
    with Store(tmp_path / "s.sqlite") as store, store.database.reading() as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(epochs)")]
    assert columns == ["run_id", *EPOCH_COLUMNS]


def test_a_spec_is_stored_once_unless_asked(store):
    spec = example_spec(1)
    first, second = example_run(spec), example_run(spec, salt="again")
    assert store.add(first)
    assert not store.add(second)
    assert store.runs() == [first]
    assert store.add(second, again=True)
    assert store.runs() == [second]
    assert [record.attempt for record in store.records(every_attempt=True)] == [1, 2]
    assert [record.run for record in store.records(every_attempt=True)] == [first, second]


def test_the_order_of_runs_is_not_the_order_of_writing(tmp_path):
    specs = pairs(RunSpec(epochs=1), range(3)) + grid(RunSpec(epochs=1, arch="cnn", dataset="cifar10"), seed=[12, 9])
    orders = []
    for number in range(3):
        random.Random(number).shuffle(specs)
        with Store(tmp_path / f"{number}.sqlite") as store:
            for spec in specs:
                store.add(example_run(spec))
            orders.append(store.runs())
    assert orders[0] == orders[1] == orders[2]
    assert [(run.spec.arch, run.spec.variant, run.spec.seed) for run in orders[0]] == [
        ("cnn", "asymmetric", 9),
        ("cnn", "asymmetric", 12),
        *[("mlp", variant, seed) for variant in ("asymmetric", "plain") for seed in range(3)],
    ]


def test_runs_are_found_by_id_and_by_field(store):
    specs = pairs(RunSpec(epochs=1), range(3))
    for spec in specs:
        store.add(example_run(spec, device=f"gpu{spec.seed}"))
    assert [run.spec.seed for run in store.runs(variant="plain")] == [0, 1, 2]
    assert store.runs(variant="plain", seed=2, device="gpu2") == [example_run(specs[4], device="gpu2")]
    assert store.runs(outcome="diverged") == []
    assert {run.spec for run in store.runs([specs[0].id, specs[3].id, "unknown"])} == {specs[0], specs[3]}
    assert store.runs([]) == []
    assert store.finished() == {spec.id for spec in specs}
    assert store.finished([specs[0].id, "unknown"]) == {specs[0].id}
    with pytest.raises(UsageError, match="did you mean 'seed'"):
        store.runs(sed=1)


def test_a_spec_is_decoded_once(store):
    store.add(example_run(example_spec(1)))
    first, second = (store.runs() for _ in range(2))
    assert first[0].spec is second[0].spec


def test_a_diverged_run_keeps_its_good_epochs_and_needs_no_training(tmp_path):
    spec = example_spec(1, epochs=5)
    for number, epochs in enumerate((0, 2)):
        run = example_run(spec, epochs=epochs, outcome="diverged")
        with Store(tmp_path / f"{number}.sqlite") as store:
            assert store.add(run)
            assert store.runs() == [run]
            assert store.finished() == {spec.id}
            assert store.claim([spec]) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("main_loss", math.nan),
        ("main_loss", None),
        ("test_accuracy", math.nan),
        ("cosine", math.inf),
        ("cosine", "0.5"),
    ],
)
def test_what_is_no_number_is_refused(field, value, store):
    run = example_run(example_spec(1))
    last = run.history[-1]._replace(**{field: value})
    with pytest.raises(ValueError, match=f"{field} of epoch 3"):
        store.add(dataclasses.replace(run, history=(*run.history[:-1], last)))
    assert store.runs() == []


def test_a_history_with_a_hole_is_refused(store):
    run = example_run(example_spec(1))
    for history in (run.history[:-1], run.history[1:], run.history[::-1], (*run.history, run.history[-1])):
        with pytest.raises(ValueError, match="epochs"):
            store.add(dataclasses.replace(run, history=history))
    with pytest.raises(ValueError, match="outcome"):
        store.add(dataclasses.replace(run, outcome="lost"))
    assert store.finished() == set()


def test_a_record_says_where_it_came_from(store):
    elsewhere = Provenance("3.12.1", "2.11.0", "0.1.0", "source-12", False, "1234")
    store.add(example_run(example_spec(1)))
    store.add(example_run(example_spec(2)), provenance=elsewhere)
    here, there = store.records()
    assert here.provenance.torch.startswith("2.")
    assert here.created.endswith("+00:00")
    assert there.provenance == elsewhere


def test_measurements_are_whole_ordered_and_latest(store):
    spec = example_spec(1)
    store.add(example_run(spec))
    assert store.add_measurement(spec.id, "sharpness", {3: 0.1, 0: [1, 2.5, None]})
    assert store.add_measurement(spec.id, "entropy", {3: {"layer": {"b": 1, "a": 2}}})
    assert not store.add_measurement(spec.id, "sharpness", {3: 7})
    assert store.measurements("sharpness") == [
        Measurement(spec.id, "sharpness", 0, [1, 2.5, None]),
        Measurement(spec.id, "sharpness", 3, 0.1),
    ]
    assert store.add_measurement(spec.id, "sharpness", {3: 7}, again=True)
    assert [(m.name, m.value) for m in store.measurements()] == [
        ("entropy", {"layer": {"a": 2, "b": 1}}),
        ("sharpness", 7),
    ]
    assert store.measurements(ids=["other"]) == []
    with pytest.raises(ValueError, match="finite"):
        store.add_measurement(spec.id, "new", {1: 0.5, 2: math.nan})
    assert store.measurements("new") == []
    with pytest.raises(UsageError, match="does not know"):
        store.add_measurement("0" * 16, "new", {1: 0.5})
