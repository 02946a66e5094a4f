"""What is trained when execution starts again: nothing twice, nothing with other neighbours, nothing of others."""

import json
import socket
import subprocess

import pytest
from executor_examples import bare, checkpoints, examples, rows, stored

from asymtrain.errors import UsageWarning
from asymtrain.lab.checkpoints import begun_stacks, checkpointed
from asymtrain.lab.engine import StackPlan
from asymtrain.lab.engine.checkpoint import open_checkpoint
from asymtrain.lab.engine.stack import Stack
from asymtrain.lab.executors import execute, outcomes
from asymtrain.lab.executors.outcomes import Job
from asymtrain.lab.store import Store, StoreError, requests


def test_stored_runs_are_not_trained_again(train_here, monkeypatch):
    specs = examples("mlp", 2, epochs=2)
    first = train_here(specs)
    assert rows(first).keys() == {spec.id for spec in specs}
    monkeypatch.setattr(outcomes, "train_stack", None)
    assert rows(train_here(specs)) == rows(first)


def test_without_a_store_nothing_is_written(train_here, tmp_path):
    specs = examples("mlp", 1, epochs=2)
    assert len(train_here(specs, store=None)) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arch", ["mlp", pytest.param("cnn", marks=pytest.mark.slow)])
def test_a_time_limit_ends_at_an_epoch_and_the_rest_follows(arch, train_here, train_a_little, store, tmp_path):
    specs = examples(arch, 2, epochs=7)
    assert len(train_a_little(specs)) < 4
    # Of the stack that was at work: those behind it were not begun.
    assert len(list(checkpoints(store).glob("*/state.safetensors"))) == 1
    with Store(store, read_only=True) as record:
        assert record.failures() == []
        assert record.pending()
        assert record.summary().total.running == 0
    train_here(specs)
    assert stored(store) == rows(train_here(specs, store=tmp_path / "whole.sqlite"))
    assert not checkpoints(store).exists()


def test_a_limit_in_minutes(train_here, store):
    """Without it, the test would end by pytest's own limit."""
    assert train_here(examples("mlp", 1, epochs=10**7), minutes=0.5 / 60) == []
    with Store(store, read_only=True) as record:
        assert record.summary().total.pending == 2
        assert record.summary().total.failed == 0


TOO_SHORT = "time was over before a stack had trained an epoch"


def test_a_limit_that_is_past_trains_nothing_and_says_so(train_here, store, notes):
    assert train_here(examples("mlp", 1), minutes=-1) == []
    assert notes == [TOO_SHORT]
    with Store(store, read_only=True) as record:
        assert len(record.pending()) == 2
    train_here(examples("mlp", 1))
    notes.clear()
    assert len(train_here(examples("mlp", 1), minutes=-1)) == 2  # from the store: nothing had to begin
    assert notes == []


def test_a_limit_that_ends_a_stack_on_its_way_is_not_called_too_short(train_here, notes, monkeypatch):
    seen = []

    def watch(progress):
        notes(progress)
        seen.append(progress.epochs_done)

    monkeypatch.setattr(Job, "is_over", lambda self: bool(seen and seen[-1]))
    assert train_here(examples("mlp", 1), progress=watch) == []
    assert notes == []


def test_stacks_that_were_planned_and_not_begun_keep_their_members(train_here, store, monkeypatch):
    trained = []
    work = outcomes.train_stack

    def note(plan, *arguments, **options):
        trained.append({spec.id for spec in plan.specs})
        return work(plan, *arguments, **options)

    monkeypatch.setattr(outcomes, "train_stack", note)
    specs = examples("mlp", 6, epochs=2)  # twelve runs: two stacks of six
    running = execute(specs, store=store, device="cpu")
    next(running)
    running.close()
    assert len(trained) == 1
    # Another machine would cut what is left in two.
    monkeypatch.setattr("asymtrain.lab.executors.local.Local.workers", property(lambda self: 4))
    train_here(specs)
    assert [len(members) for members in trained] == [6, 6]
    assert trained[0] | trained[1] == {spec.id for spec in specs}


def test_plans_for_another_kind_of_device_are_made_anew(train_here, store):
    specs = examples("mlp", 6, epochs=2)
    train_here(specs, minutes=-1)
    (file,) = checkpoints(store).glob("plans-*.json")
    content = json.loads(file.read_text())
    assert [len(stack["specs"]) for stack in content["stacks"]] == [6, 6]
    content["device"] = "cuda"
    file.write_text(json.dumps(content))
    running = execute(specs[:4], store=store, device="cpu")
    assert next(running).spec in specs
    assert [len(plan.specs) for plan in begun_stacks(checkpoints(store))] == []
    running.close()


def test_a_store_that_fails_half_way_loses_nothing(train_here, store, monkeypatch):
    """Half of a stack's rows are stored: the stack keeps all its members, and only the other rows are added."""
    specs = examples("mlp", 3, epochs=3)
    expected = rows(train_here(specs, store=store.with_name("whole.sqlite")))
    add, added = Store.add, []

    def add_three(self, run, **options):
        if len(added) == 3:
            raise StoreError("the disk is full")
        added.append(run)
        return add(self, run, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "add", add_three)
        with pytest.raises(StoreError, match="the disk is full"):
            train_here(specs)
    assert len(stored(store)) == 3
    (begun,) = begun_stacks(checkpoints(store))
    assert len(begun.specs) == 6
    # The trained stack is in its checkpoint: nothing is left to do but to store it.
    monkeypatch.setattr(Stack, "advance", None)
    assert rows(train_here(specs)) == expected
    assert stored(store) == expected
    assert not checkpoints(store).exists()


def test_begun_stacks_store_unasked_members_too(train_here, train_a_little, store):
    specs = examples("mlp", 2, epochs=5)
    assert train_a_little(specs) == []
    assert [run.spec for run in train_here(specs[:1])] == specs[:1]
    assert stored(store).keys() == {spec.id for spec in specs}


def test_fresh_forgets_the_checkpoints_of_its_own_runs_only(train_here, train_a_little, store):
    mine, others = examples("mlp", 2, epochs=5), examples("mlp", 1, epochs=6)
    train_a_little(mine)
    train_a_little(others)
    assert len(begun_stacks(checkpoints(store))) == 2
    again = train_here(mine, fresh=True)
    assert rows(again).keys() == {spec.id for spec in mine}
    (left,) = begun_stacks(checkpoints(store))
    assert set(left.specs) == set(others)
    train_here(others)

    first = stored(store)
    assert rows(train_here(mine[:1], fresh=True)) == {mine[0].id: first[mine[0].id]}
    with Store(store, read_only=True) as record:
        assert [one.attempt for one in record.records([spec.id for spec in mine], every_attempt=True)].count(2) == 1


def test_a_damaged_plan_of_a_stack_is_made_again(train_here, train_a_little, store):
    """From the plans of the execution: the stack keeps its members and its checkpoint."""
    specs = examples("mlp", 2, epochs=5)
    expected = rows(train_here(specs, store=store.with_name("whole.sqlite")))
    assert train_a_little(specs) == []
    (file,) = checkpoints(store).glob("*/plan.json")
    file.write_bytes(b"")
    assert checkpointed(store) == {spec.id for spec in specs}
    seen = []
    assert rows(train_here(specs, progress=lambda progress: seen.append(progress.epochs_done))) == expected
    assert seen[0] >= 2 * len(specs)


@pytest.mark.parametrize("both", [False, True], ids=["of the execution", "of the stack too"])
@pytest.mark.parametrize(("good", "bad"), [('"epochs": 5', '"epochs": 4'), ('"path"', '"pith"'), ("{", "")])
def test_damaged_plans_are_set_aside_and_the_training_goes_on(train_here, train_a_little, store, good, bad, both):
    """From the checkpoint, where the runs are planned as they were."""
    specs = examples("mlp", 2, epochs=5)
    expected = rows(train_here(specs, store=store.with_name("whole.sqlite")))
    train_a_little(specs)
    files = [file for name in ("plans-*.json", "*/plan.json") for file in checkpoints(store).glob(name)]
    for file in files if both else files[:1]:
        file.write_text(file.read_text().replace(good, bad, 1))
    seen = []
    with pytest.warns(UsageWarning, match="set aside"):
        trained = train_here(specs, progress=lambda progress: seen.append(progress.epochs_done))
    assert rows(trained) == stored(store) == expected
    assert seen[0] >= 2 * len(specs)


@pytest.fixture
def other_process(monkeypatch):
    """The name that another live process would put on its claims."""
    process = subprocess.Popen(["sleep", "3600"])
    yield lambda: f"{socket.gethostname()}/{process.pid}/{requests._start_of(process.pid)}"
    process.kill()
    process.wait()


def test_runs_of_another_process_are_left_to_it(train_here, store, notes, other_process, monkeypatch):
    specs = examples("mlp", 2, epochs=2)
    others = Store(store)
    with monkeypatch.context() as patch:
        patch.setattr(requests, "this_process", other_process)
        assert others.claim(specs[:3]) == specs[:3]
    # The other process has begun a stack of which one run is wanted here and not held by it.
    begun = StackPlan(tuple(specs), "batched")
    open_checkpoint(checkpoints(store), begun)
    assert [run.spec for run in train_here(specs)] == specs[3:]
    assert notes[0] == "3 runs are being trained by another process"
    assert [run.spec for run in train_here(specs, fresh=True)] == specs[3:]
    assert begun_stacks(checkpoints(store)) == [begun], "a stack was taken from the process that trains it"
    others.close()


@pytest.mark.parametrize(
    "cores", [pytest.param(1, id="in this process"), pytest.param(2, id="in two workers", marks=pytest.mark.slow)]
)
def test_a_training_that_outlasts_its_claims_is_not_handed_out_again(
    cores, train_here, store, other_machine, monkeypatch
):
    other_machine.specs = examples("mlp", 1, epochs=8)
    monkeypatch.setattr("asymtrain.lab.executors.local.cores", lambda: cores)
    assert len(train_here(other_machine.specs, progress=other_machine)) == 2
    assert other_machine.answers == [[], [], []]
    assert len(stored(store)) == 2


def test_a_stack_does_not_depend_on_when_it_was_interrupted(train_here, store):
    """Interrupted at every moment that a caller can choose: after each of its runs."""
    specs = examples("mlp", 6, epochs=3)
    expected = rows(train_here(specs, store=store.with_name("whole.sqlite")))
    for count in range(1, 5):
        running = execute(specs, store=store, device="cpu")
        seen = [next(running) for _ in range(count)]
        running.close()
        assert all(bare(run) == expected[run.spec.id] for run in seen)
    assert rows(train_here(specs)) == expected


def test_what_a_killed_process_left_of_finished_stacks_is_removed(train_here, store):
    """It was killed before it wrote a plan, between storing and closing, or while it closed."""
    specs = examples("mlp", 2, epochs=2)
    train_here(specs)
    folder = checkpoints(store)
    begun = open_checkpoint(folder, StackPlan(tuple(specs), "batched"))
    (folder / "0123456789abcdef").mkdir()
    closing = folder / "fedcba9876543210.77.closed"
    closing.mkdir()
    (closing / "state.safetensors").touch()
    other = examples("mlp", 3, epochs=2)[4:]
    unfinished = open_checkpoint(folder, StackPlan(tuple(other), "batched"))
    train_here(specs)
    assert not begun.exists()
    assert list(folder.iterdir()) == [unfinished]
    train_here(other)
    assert not folder.exists()
