"""What a stack leaves on disk, how it goes on from there, and training from specs to rows."""

import dataclasses
import errno
import functools
import itertools
import json
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save
from small_runs import assert_same_bits, stack_of, without_time

from asymtrain import UsageError
from asymtrain.errors import UsageWarning
from asymtrain.lab.checkpoints import (
    begun_sources,
    begun_stacks,
    execution_name,
    planned_executions,
    set_aside,
)
from asymtrain.lab.engine import Stack, StackPlan, train, train_stack, training
from asymtrain.lab.engine.checkpoint import (
    STATE,
    close_checkpoint,
    load_checkpoint,
    open_checkpoint,
    save_checkpoint,
    sealed,
    sweep,
    unsealed,
)
from asymtrain.lab.runs import RunSpec, pairs

CPU = torch.device("cpu")


def specs_of(**fields):
    options = {"arch_options": {"widths": (8, 8)}, "batch": 24, "epochs": 3, "cosine_every": 1, "activation": "all"}
    base = RunSpec(**{**options, "redundancy": 3, **fields})
    return [base.plain(), base, dataclasses.replace(base, seed=7, alpha=0.2)]


STRONG = {
    "schedule": "cosine", "schedule_by": "step", "warmup": 0.5, "augmentation": "trivial", "erasing": 0.3, "mixup": 0.2,
    "cutmix": 1.0, "label_smoothing": 0.1, "clip": 1.0, "averaging": 0.99, "decay": "matrices", "test": "every",
    "balance": "norms",
}  # fmt: skip
RECIPES = {
    "simple": {"augmentation": "flip_shift", "schedule": "cosine"},
    "strong": STRONG,
}


@pytest.fixture(scope="module")
def uninterrupted(dataset):
    """Trained stacks, each of them once."""

    return functools.cache(lambda recipe, strategy: stack_of(specs_of(**RECIPES[recipe]), dataset, strategy))


@pytest.mark.parametrize("strategy", ["batched", "side_by_side"])
@pytest.mark.parametrize("stop_at", [1, *(pytest.param(step, marks=pytest.mark.slow) for step in (3, 6)), 4, 11])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_stack_goes_on_from_any_step_to_the_same_bits(recipe, stop_at, strategy, dataset, uninterrupted, tmp_path):
    specs, whole = specs_of(**RECIPES[recipe]), uninterrupted(recipe, strategy)
    place = open_checkpoint(tmp_path, StackPlan(tuple(specs), strategy))
    begun = Stack(specs, dataset, strategy=strategy)
    assert not load_checkpoint(place, begun)
    steps = itertools.count(1)
    while begun.epoch * begun.data.steps + begun.step < stop_at:
        begun.advance(pause=lambda: next(steps) >= stop_at - begun.epoch)
    save_checkpoint(place, begun)
    position = (begun.epoch, begun.step)

    resumed = Stack(specs, dataset, strategy=strategy)
    assert load_checkpoint(place, resumed)
    assert (resumed.epoch, resumed.step) == position
    assert resumed.seconds == begun.seconds
    while not resumed.finished:
        resumed.advance()
    assert_same_bits(resumed.state(), whole.state())
    rows = [[(run.outcome, without_time(run)) for run in stack.results()] for stack in (resumed, whole)]
    assert rows[0] == rows[1]


def test_a_diverged_run_stays_diverged(dataset, tmp_path):
    specs = [RunSpec(learning_rate=500.0, batch=24, epochs=5), RunSpec(batch=24, epochs=5)]
    whole, begun, resumed = stack_of(specs, dataset), Stack(specs, dataset), Stack(specs, dataset)
    place = open_checkpoint(tmp_path, StackPlan(tuple(specs), "batched"))
    for _ in range(4):
        begun.advance()
    assert begun.diverged == [True, False]
    save_checkpoint(place, begun)
    load_checkpoint(place, resumed)
    resumed.advance()
    assert resumed.finished
    assert [run.outcome for run in resumed.results()] == ["diverged", "finished"]
    assert [len(run.history) for run in resumed.results()] == [len(run.history) for run in whole.results()]


@pytest.fixture
def saved(dataset, tmp_path):
    """Specs, and the folder with a checkpoint of their stack."""
    specs = specs_of()
    place = open_checkpoint(tmp_path, StackPlan(tuple(specs), "batched"))
    save_checkpoint(place, Stack(specs, dataset))
    return specs, place


def damaged_files():
    yield "cut", lambda content: content[: len(content) // 2]
    yield "empty", lambda content: b""
    yield "foreign", lambda content: b"PK\x03\x04 not a checkpoint at all"
    yield "without a header", lambda content: save({"weights": torch.zeros(2)})
    yield "of another program", lambda content: save({"weights": torch.zeros(2)}, {"progress": "{}"})
    yield "with damaged text", lambda content: save({"weights": torch.zeros(2)}, {"progress": "{"})
    yield "with one bit of a weight flipped", lambda content: flipped(content, len(content) - 100)
    yield "with one bit of a history flipped", lambda content: flipped(content, content.index(b"main_loss") + 15)
    yield "with one bit of the checksum flipped", lambda content: flipped(content, content.index(b"sha256") + 20)
    yield "with one bit of the checksum's name flipped", lambda content: flipped(content, content.index(b"sha256"))


def flipped(content, at):
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.fixture
def begun(dataset, tmp_path):
    """A stack that was stopped after its first epoch, the folder of its checkpoint, and the rows that it comes to."""
    stack_plan = StackPlan(tuple(specs_of()), "batched")
    assert train_stack(stack_plan, dataset, CPU, checkpoints=tmp_path, stop=lambda: True) is None
    rows = [without_time(run) for run in train_stack(stack_plan, dataset, CPU)]
    return stack_plan, tmp_path / stack_plan.id, rows


def went_on(stack_plan, place, dataset):
    """The rows of a stack that goes on, the epoch at which it did, and what the user was told."""
    notes, seen = [], []
    runs = train_stack(stack_plan, dataset, CPU, checkpoints=place.parent, progress=seen.append, note=notes.append)
    return [without_time(run) for run in runs], seen[0].epoch, notes


@pytest.mark.parametrize("damage", [pytest.param(damage, id=name) for name, damage in damaged_files()])
def test_a_damaged_checkpoint_is_told_of_and_the_stack_starts_anew(damage, begun, dataset):
    stack_plan, place, whole = begun
    file = place / STATE
    file.write_bytes(damage(file.read_bytes()))
    rows, epoch, (note,) = went_on(stack_plan, place, dataset)
    assert (rows, epoch) == (whole, 0)
    assert note.startswith(f"{file} cannot be used (")
    assert note.endswith("): the stack starts anew")


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(saved, dataset, monkeypatch):
    """Otherwise a power cut may leave the name and not the content."""
    specs, place = saved
    done, fsync, replace = [], os.fsync, Path.replace
    kinds = {True: "folder", False: "file"}
    monkeypatch.setattr(
        os, "fsync", lambda handle: (done.append(kinds[stat.S_ISDIR(os.fstat(handle).st_mode)]), fsync(handle))
    )
    monkeypatch.setattr(Path, "replace", lambda self, target: (replace(self, target), done.append(target.name)))
    for _ in range(2):
        save_checkpoint(place, Stack(specs, dataset))
    assert done == ["file", STATE, "folder"] * 2


def test_a_full_disk_leaves_the_checkpoint_and_no_other_file(begun, dataset, monkeypatch):
    stack_plan, place, whole = begun
    stack = Stack(list(stack_plan.specs), dataset)
    load_checkpoint(place, stack)

    def fail(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            save_checkpoint(place, stack)
    assert sorted(file.name for file in place.iterdir()) == ["plan.json", STATE]
    assert went_on(stack_plan, place, dataset) == (whole, 1, [])


def test_a_lost_gpu_is_not_taken_for_a_damaged_checkpoint(saved, dataset, monkeypatch):
    specs, place = saved
    stack = Stack(specs, dataset)

    def lose(state):
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(stack, "load_state", lose)
    with pytest.raises(RuntimeError, match="CUDA error"):
        load_checkpoint(place, stack)


def test_a_checkpoint_of_other_sizes_is_refused(saved, dataset):
    specs, place = saved
    stack = Stack(specs, dataset)
    tensors, metadata = unsealed((place / STATE).read_bytes())
    content = sealed({**tensors, "weights": stack.weights[:, :1].clone()}, {"progress": metadata["progress"]})
    (place / STATE).write_bytes(content)
    with pytest.raises(UsageError, match=r"weights .* has another shape"):
        load_checkpoint(place, stack)


def test_a_checkpoint_is_not_read_into_other_members(saved, dataset):
    """In another order each run would go on with its neighbour's weights."""
    specs, place = saved
    for others in (specs[::-1], specs[:1], specs_of(seed=3)):
        with pytest.raises(UsageError, match="other members"):
            load_checkpoint(place, Stack(others, dataset))


def test_one_checkpoint_is_kept_and_closing_leaves_none(saved, dataset, tmp_path):
    specs, place = saved
    save_checkpoint(place, Stack(specs, dataset))
    assert sorted(file.name for file in place.iterdir()) == ["plan.json", STATE]
    close_checkpoint(place)
    assert list(tmp_path.iterdir()) == []
    close_checkpoint(place)


def test_unfinished_stacks_keep_their_members(tmp_path):
    specs = specs_of()
    plans = [StackPlan(tuple(specs), "side_by_side"), StackPlan((RunSpec(arch_options={"points": [0]}),), "batched")]
    for one in plans:
        open_checkpoint(tmp_path, one)
    assert {one.id: one for one in begun_stacks(tmp_path)} == {one.id: one for one in plans}
    assert begun_stacks(tmp_path / "nothing") == []


def test_a_stack_that_another_process_closes_is_no_longer_unfinished(tmp_path, monkeypatch):
    for spec in specs_of():
        open_checkpoint(tmp_path, StackPlan((spec,), "batched"))
    read, gone = Path.read_text, []

    def close_first(self, *arguments, **options):
        if not gone:
            gone.append(self.parent)
            close_checkpoint(self.parent)
        return read(self, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", close_first)
    assert len(begun_stacks(tmp_path)) == 2
    assert gone


def test_a_folder_that_others_tidy_away_is_made_again(tmp_path, monkeypatch):
    write, swept = Path.open, []

    def sweep_first(self, mode):
        if len(swept) < 5:
            swept.append(self)
            sweep(tmp_path / "checkpoints")
            (tmp_path / "checkpoints").rmdir()
        return write(self, mode)

    monkeypatch.setattr(Path, "open", sweep_first)
    one = StackPlan(tuple(specs_of()), "batched")
    assert (open_checkpoint(tmp_path / "checkpoints", one) / "plan.json").exists()
    monkeypatch.undo()
    assert len(swept) == 5
    assert begun_stacks(tmp_path / "checkpoints") == [one]


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", "[" * 100_000, json.dumps({"path": "batched", "specs": [{"mood": "bad"}]})]
)
def test_a_damaged_plan_is_left_out_and_set_aside_by_who_trains(content, tmp_path):
    for file in (tmp_path / "x" / "plan.json", tmp_path / "plans-1.json"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    assert begun_stacks(tmp_path) == planned_executions(tmp_path) == []
    with pytest.warns(UsageWarning, match=r"is damaged and was set aside as plans?\S*\.json\.damaged") as said:
        assert begun_stacks(tmp_path, set_aside) == []
    assert len(said) == 2
    assert {file.read_text() for file in tmp_path.rglob("*.damaged")} == {content}
    assert begun_stacks(tmp_path, set_aside) == []  # without another word


def test_a_damaged_plan_is_not_taken_for_another_and_is_replaced_where_it_is_known(tmp_path):
    """One digit of a seed: the stack would train a run that nobody wants, and another would lose its neighbours."""
    stack_plan = StackPlan(tuple(specs_of()), "batched")
    file = open_checkpoint(tmp_path, stack_plan) / "plan.json"
    file.write_text(file.read_text().replace('"seed": 7', '"seed": 6'))
    assert begun_stacks(tmp_path) == []
    execution = {"device": "cpu", "stacks": [stack_plan.to_dict()]}
    (tmp_path / execution_name([stack_plan])).write_text(json.dumps(execution))
    assert begun_stacks(tmp_path) == [stack_plan]
    (file.parent / STATE).touch()
    file.write_text("[" * 100_000)
    assert begun_stacks(tmp_path) == [stack_plan]
    assert begun_sources(tmp_path) == []


# Training.


def test_train_stack_stops_and_goes_on_to_the_same_rows(dataset, tmp_path):
    stack_plan = StackPlan(tuple(specs_of()), "batched")
    whole = train_stack(stack_plan, dataset, CPU)
    seen, calls = [], itertools.count()
    assert train_stack(stack_plan, dataset, CPU, checkpoints=tmp_path, stop=lambda: True, progress=seen.append) is None
    assert (seen[0].epoch, seen[-1].epoch, seen[-1].images) == (0, 1, 3 * 80)
    # Then in the middle of the second epoch.
    assert train_stack(stack_plan, dataset, CPU, checkpoints=tmp_path, interrupt=lambda: next(calls) >= 1) is None
    again = train_stack(stack_plan, dataset, CPU, checkpoints=tmp_path, progress=seen.append)
    assert seen[-1].epoch == 3
    assert [(run.spec, without_time(run)) for run in again] == [(run.spec, without_time(run)) for run in whole]
    # A finished stack is not trained again, and keeps no weights for it.
    assert train_stack(stack_plan, dataset, CPU, checkpoints=tmp_path) == again
    tensors, _ = unsealed((tmp_path / stack_plan.id / STATE).read_bytes())
    assert tensors == {}


def test_a_stack_says_when_it_begins_to_train(dataset, tmp_path):
    stack_plan, seen = StackPlan(tuple(specs_of()), "batched"), []
    options = {"checkpoints": tmp_path, "progress": seen.append, "begin": lambda: seen.append("begin")}
    assert train_stack(stack_plan, dataset, CPU, **options)
    assert [getattr(report, "epoch", report) for report in seen[:3]] == [0, "begin", 1]
    seen.clear()
    train_stack(stack_plan, dataset, CPU, **options)
    assert "begin" not in seen, "a finished one does not begin"


def test_a_stack_of_which_every_run_is_lost_is_not_trained_again(dataset, tmp_path):
    stack_plan = StackPlan(tuple(specs_of(learning_rate=1e30)), "batched")
    lost, notes = train_stack(stack_plan, dataset, CPU, checkpoints=tmp_path), []
    assert {run.outcome for run in lost} == {"diverged"}
    assert train_stack(stack_plan, dataset, CPU, checkpoints=tmp_path, stop=lambda: True, note=notes.append) == lost
    assert notes == []


def test_train_yields_every_spec_once():
    options = {
        "dataset_options": {"classes": 3, "size": 60, "test_size": 12, "image_size": 8},
        "epochs": 1,
        "batch": 32,
    }
    specs = [
        *pairs(RunSpec(**options), [1, 2]),
        RunSpec(arch="vit", arch_options={"depth": 1, "width": 8, "heads": 2}, **options),
        RunSpec(activation="all", **{**options, "epochs": 2}),
        RunSpec(seed=1, **options),
    ]
    runs = list(train(specs, device="cpu"))
    assert sorted(run.spec.id for run in runs) == sorted({spec.id for spec in specs})
    for run in runs:
        assert run.outcome == "finished"
        assert len(run.history) == run.spec.epochs
        assert 0 <= run.test_accuracy <= 1
        assert run.seconds > 0


@pytest.mark.parametrize(("cost", "most"), [(0.0, 1.0), (4.0, 0.02)])
def test_checkpoints_that_take_long_come_less_often(cost, most, dataset, tmp_path, monkeypatch):
    """A clock that moves by a second whenever it is looked at, and by `cost` in a checkpoint."""
    at, begun = [0.0], []

    def monotonic():
        at[0] += 1
        return at[0]

    def save(*_):
        begun.append(at[0])
        at[0] += cost

    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(training, "save_checkpoint", save)
    specs = specs_of(epochs=60)[:1]
    train_stack(StackPlan(tuple(specs), "batched"), dataset, CPU, checkpoints=tmp_path, checkpoint_seconds=30)
    between = [later - sooner - cost for sooner, later in itertools.pairwise(begun[:-1])]  # the last one ends training
    assert len(between) >= 2
    assert min(between) >= max(30, cost / most)
    assert max(between) <= max(30, cost / most) + 60  # an epoch takes so many looks at the clock
