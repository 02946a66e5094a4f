"""Stacks on this machine: too large ones, broken ones, dead workers, lost devices."""

import gc
import itertools
import multiprocessing
import random
import threading
import time
import types
import weakref
from collections import Counter
from contextlib import suppress

import pytest
import torch
from executor_examples import LONGER, checkpoints, examples, rows, stored

from asymtrain.errors import UsageError
from asymtrain.lab import executors
from asymtrain.lab.checkpoints import begun_stacks
from asymtrain.lab.engine import Stack, StackPlan, StackProgress, plan
from asymtrain.lab.engine.training import model_of
from asymtrain.lab.executors import execute, local, outcomes
from asymtrain.lab.executors.outcomes import (
    ATTEMPTS,
    Failed,
    Finished,
    Job,
    Lost,
    ProgressSum,
    Stopped,
    TooLarge,
    Waiting,
    work,
)
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.store import Store

SEEDS = 50
CPU = torch.device("cpu")


@pytest.fixture
def fits(monkeypatch):
    """Make stacks of more than so many runs fail with this exception."""
    work = outcomes.train_stack

    def limit(most, error):
        def train(plan, *arguments, **options):
            if len(plan.specs) > most:
                raise error
            return work(plan, *arguments, **options)

        monkeypatch.setattr(outcomes, "train_stack", train)

    return limit


def failed_capture():
    """As `torch.cuda.graph` leaves it, where its end fails as well."""
    problem = RuntimeError("CUDA error: operation failed due to a previous error during capture")
    problem.__context__ = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
    return problem


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory"),
        failed_capture(),
    ],
    ids=["on a GPU", "on a CPU", "in a capture"],
)
def test_a_stack_that_is_too_large_is_halved(error, train_here, store, notes, fits):
    specs = examples("mlp", 3, epochs=2)
    fits(2, error)
    assert rows(train_here(specs)).keys() == {spec.id for spec in specs}
    assert notes == [
        "a stack of 6 runs did not fit into memory: going on with two of half the size",
        "a stack of 3 runs did not fit into memory: going on with two of half the size",
        "a stack of 3 runs did not fit into memory: going on with two of half the size",
    ]
    assert not checkpoints(store).exists()


def test_a_stack_that_was_too_large_is_gone_before_its_halves_begin(train_here, monkeypatch):
    """A stack and its programs hold each other: in a GPU's memory there would be no room for the halves either."""
    real, left = outcomes.train_stack, list[weakref.ref[Stack]]()

    def train(plan, dataset, device, **options):
        assert [stack for stack in left if stack() is not None] == []
        if len(plan.specs) <= 1:
            return real(plan, dataset, device, **options)
        stack = Stack(list(plan.specs), dataset, device=device, strategy=plan.strategy)
        stack.programs.forward = lambda *_: stack.weights
        left.append(weakref.ref(stack))
        raise torch.OutOfMemoryError

    monkeypatch.setattr(outcomes, "train_stack", train)
    gc.disable()
    try:
        assert len(train_here(examples("mlp", 1, epochs=1))) == 2
    finally:
        gc.enable()
    assert len(left) == 1


def test_what_a_stack_trained_before_it_was_halved_counts_once():
    """Memory may run out in a later epoch, or after a checkpoint was loaded that the halves cannot use."""
    (whole,) = plan(examples("mlp", 2, epochs=4), CPU)
    total = ProgressSum([whole], None)
    for epoch in (2, 3):
        total(StackProgress(whole.id, 4, epoch, 4, 100 * epoch))
    assert (total.current().epochs_done, total.current().epochs_here) == (12, 4)
    Waiting([whole], Job(), total).settle(TooLarge(whole))
    assert (total.current().epochs_done, total.current().epochs_here) == (0, 0)
    for half in whole.halves():
        for epoch in (0, 4):
            total(StackProgress(half.id, 2, epoch, 4, 100 * epoch))
    assert (total.current().epochs_done, total.current().epochs_here) == (total.epochs_total, 16)


def test_halves_stay_halves_after_an_interruption(train_here, store, fits, notes):
    specs = examples("mlp", 2, epochs=2)
    fits(2, torch.OutOfMemoryError())
    running = execute(specs, store=store, device="cpu")
    next(running)
    running.close()
    assert [len(plan.specs) for plan in begun_stacks(checkpoints(store))] == [2]
    assert len(train_here(specs)) == 4
    assert notes == []
    assert not checkpoints(store).exists()


def test_one_run_that_does_not_fit(train_here, store, notes, fits):
    fits(0, torch.OutOfMemoryError())
    with pytest.raises(UsageError, match="one run of mlp does not fit into this device's memory"):
        train_here(examples("mlp", 1, epochs=2))
    assert not any("failed" in note for note in notes)  # the refusal says it, once
    with Store(store, read_only=True) as record:
        assert len(record.failures()) == 2


def test_a_failure_is_recorded_and_the_others_go_on(train_here, store, notes):
    good, bad = examples("mlp", 1, epochs=2), RunSpec(dataset="folder:/nowhere", arch="mlp")
    assert [run.spec for run in train_here([bad, *good])] == good
    with Store(store, read_only=True) as record:
        (failure,) = record.failures()
    assert failure.spec == bad
    assert "/nowhere" in failure.reason
    assert notes == [f"1 run failed: {failure.reason}"]
    with pytest.raises(UsageError, match="/nowhere"):
        train_here([bad, *good])


@pytest.mark.slow
def test_a_lost_device_is_used_again_by_a_new_process(train_here, store, notes, fits):
    """This process meets a CUDA error; a worker, which is not patched, does not."""
    specs = examples("mlp", 6, epochs=2)  # two stacks
    fits(0, RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ..."))
    assert rows(train_here(specs)).keys() == {spec.id for spec in specs}
    assert notes == [
        "CUDA error: an illegal memory access was encountered: the stack starts again from its last checkpoint"
    ]
    assert len(stored(store)) == 12
    with executors.Workers() as workers:
        for again in ("second", "third"):
            assert len(train_here(specs, store=store.with_name(again), workers=workers)) == 12
        assert len(notes) == 2, "the worker that the second began goes on in the third"
        assert len(multiprocessing.active_children()) == 1
    assert multiprocessing.active_children() == []


WRAPPED = (
    "backend='inductor' raised:\nRuntimeError: Triton Error [CUDA]: unspecified launch failure\n\nSet TORCHDYNAMO..."
)


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (RuntimeError("CUDA error: device-side assert\nCompile with ..."), Lost, "CUDA error: device-side assert"),
        (RuntimeError(WRAPPED), Lost, "RuntimeError: Triton Error [CUDA]: unspecified launch failure"),
        (RuntimeError("No CUDA GPUs are available"), Lost, "No CUDA GPUs are available"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), TooLarge, ""),
        (RuntimeError("Triton Error [CUDA]: out of memory"), TooLarge, ""),
        (ZeroDivisionError("oh"), Failed, "ZeroDivisionError: oh (test_executors_local.py, line "),
        (OSError(28, "No space left", "state.new"), Failed, "no checkpoint can be written (No space left): state.new"),
    ],
    ids=str,
)
def test_what_an_error_becomes(error, kind, reason, fits):
    fits(0, error)
    result = work(StackPlan(tuple(examples("mlp", 1)), "batched"), Job(), CPU, lambda _: None)
    assert type(result) is kind
    assert getattr(result, "reason", "").startswith(reason)


def test_what_is_lost_again_and_again_fails():
    told = []
    stack = StackPlan(tuple(examples("mlp", 1)), "batched")
    waiting = Waiting([stack], Job(), told.append)
    for _ in range(ATTEMPTS - 1):
        assert waiting.take() == stack
        assert waiting.settle(Lost(stack, "its worker died")) == []
    assert waiting.take() == stack
    assert waiting.settle(Lost(stack, "its worker died")) == [Failed(stack, "its worker died (3 times)")]
    assert not waiting
    assert told == ["its worker died: the stack starts again anew"] * 2
    assert waiting.settle(Stopped(stack)) == [Stopped(stack)]
    assert waiting.settle(TooLarge(stack)) == []
    assert [len(half.specs) for half in waiting.plans] == [1, 1]


def test_a_device_that_fails_in_a_row_is_left_alone():
    told = []
    stack = StackPlan(tuple(examples("mlp", 1)), "batched")
    waiting = Waiting([], Job(), told.append)
    slots = [local._Slot(torch.device("cuda", i)) for i in range(2)]
    first, second = slots
    lost, finished = Lost(stack, "CUDA error"), Finished(stack, (), None)
    for result in (lost, finished, lost):
        local._judge(first, slots, result, waiting)
    assert slots == [first, second]
    local._judge(first, slots, lost, waiting)
    assert slots == [second]
    assert told == ["cuda:0 failed 2 times in a row: the other devices go on without it"]
    for _ in range(5):
        local._judge(second, slots, lost, waiting)
    assert slots == [second], "the last device must stay: its stacks would wait for ever"


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_killed_worker_is_replaced(store, monkeypatch):
    """Its stack goes on in a new worker, and the rows are those of a process that trains alone."""
    monkeypatch.setattr(local, "cores", lambda: 2)
    for longer in LONGER:
        place, killed, notes = store.with_name(f"{longer}.sqlite"), [], []
        specs = examples("mlp", 3, epochs=100 * longer)

        def kill_one(progress, killed=killed, notes=notes):
            notes += [progress.note] if progress.note else []
            if progress.epochs_done > 60 and not killed:
                killed.append(multiprocessing.active_children()[0])
                killed[0].kill()

        runs = rows(execute(specs, store=place, device="cpu", progress=kill_one, checkpoint_seconds=0.05))
        assert runs == stored(place)
        assert not multiprocessing.active_children()
        if notes:  # otherwise the stack was done before it could be hit
            break
    died = "its worker on cpu died (killed, or out of memory): the stack starts again from its last checkpoint"
    assert notes == [died]
    alone = [work(stack, Job(), CPU, lambda _: None) for stack in plan(specs, CPU, workers=2)]
    assert len(alone) == 2
    assert runs == rows(run for one in alone if isinstance(one, Finished) for run in one.runs)


def test_training_on_a_cpu_takes_one_thread_and_gives_it_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = []
        stack = StackPlan(tuple(examples("mlp", 1, epochs=1)), "batched")
        work(stack, Job(), CPU, lambda _: seen.append(torch.get_num_threads()))
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("archs", [("mlp",), ("mlp", "cnn")])
def test_time_left_does_not_climb(monkeypatch, archs):
    """Within an epoch, where compilation ends, or where a slower model begins. None while a model has no speed."""
    clock, shown = [0.0], list[tuple[float, float | None]]()
    monkeypatch.setattr(outcomes.time, "monotonic", lambda: clock[0])
    stacks = [StackPlan(tuple(examples(arch, 2, epochs=4)), "batched") for arch in archs]
    total = ProgressSum(stacks, lambda progress: shown.append((clock[0], progress.seconds_left)))
    for stack, epoch_seconds in zip(stacks, (1.0, 30.0), strict=False):
        model = model_of(stack.specs[0])
        for step in range(4 * 10 + 1):
            epoch, part = divmod(step, 10)
            total(StackProgress(stack.id, len(stack.specs), epoch, 4, 10 * step, part=part / 10, model=model))
            clock[0] += epoch_seconds / 10 if step else 20.0  # it compiles
    known = [(at, left) for at, left in shown if left is not None]
    assert len(known) > 30
    assert all(second[1] <= first[1] for first, second in itertools.pairwise(known))
    end = shown[-1][0]
    assert [at + left for at, left in known] == pytest.approx([end] * len(known))


def worked(**fields):
    """A slot whose worker is the other end of a pipe, kept as `worker`, and a process that has ended."""
    ours, theirs = multiprocessing.Pipe()
    ended = types.SimpleNamespace(join=lambda timeout=None: None, is_alive=lambda: False)
    slot = local._Slot(CPU, ended, ours, **fields)
    slot.worker = theirs
    return slot


def test_a_worker_that_compiles_is_not_waited_for():
    """A Ctrl-C ends within seconds: before its first step a stack has nothing that its last checkpoint has not."""
    stack = plan(examples("mlp", 1), CPU)[0]
    compiles, trains = worked(plan=stack), worked(plan=stack)
    for images in (0, 8):  # what it reports at its start, and after a step
        assert not trains.trained
        trains.worker.send(StackProgress(stack.id, 1, 0, 1, images))
        assert local._collect([trains], Waiting([], Job(), lambda message: None)) == []
    assert trains.trained
    trains.worker.send(Stopped(stack))
    began = time.monotonic()
    local._shut_down([compiles, trains])
    assert time.monotonic() - began < local.SHUTDOWN_SECONDS / 2
    assert trains.worker.recv() == local.STOP
    with pytest.raises(EOFError):
        compiles.worker.recv()


def test_a_worker_that_does_not_end_in_time_leaves_no_stack_behind(monkeypatch):
    """In a slot that is kept for the next execution, which would wait for that stack for ever."""
    monkeypatch.setattr(local, "SHUTDOWN_SECONDS", 0.1)
    slot = worked(plan=plan(examples("mlp", 1), CPU)[0], trained=True)
    local._shut_down([slot])
    assert (slot.plan, slot.pipe) == (None, None)


def test_kept_workers_serve_whatever_comes_next():
    """A worker of its GPU trains the next stack; that of another, which would hold memory there, ends."""
    first, second, workers = worked(), worked(), executors.Workers()
    cpu = [local._Slot(CPU), local._Slot(CPU)]
    first.device, second.device = (torch.device("cuda", i) for i in range(2))
    workers._slots = [local._Slot(first.device), first, second, *cpu]
    assert workers.take([local._Slot(first.device)]) == [first]
    assert first.pipe is not None
    assert second.pipe is None
    assert workers.take([local._Slot(CPU)] * 2) == cpu
    assert first.pipe is None


class FakeWorkers:
    """Threads that speak as workers do, and break at random moments. They know who trains, and on which device."""

    def __init__(self, seed):
        self.chance, self.training = random.Random(seed), Counter[torch.device]()
        self.threads = []

    def start(self, slot):
        slot.pipe, theirs = multiprocessing.Pipe()
        slot.process = threading.Thread(target=self.serve, args=(theirs, slot.device), daemon=True)
        slot.process.start()
        self.threads.append(slot.process)
        return slot.pipe

    def serve(self, pipe, device):
        with pipe, suppress(EOFError, OSError):
            while True:
                order = pipe.recv()
                if isinstance(order, str):
                    continue  # it came when the stack had ended
                result = self.work(pipe, device, order[0])
                if result is None:
                    return
                pipe.send(result)
                if isinstance(result, Lost):
                    return

    def work(self, pipe, device, stack):
        """A result; None where the worker dies: while it compiles, or while it trains."""
        ends = [lambda stack: None, TooLarge, lambda stack: Lost(stack, "CUDA error"), lambda stack: finished(stack)]
        moment, end = self.chance.random(), self.chance.choices(ends, (1, 1, 1, 9))[0](stack)
        if moment < 0.2:
            return end  # while it compiles, or a stack that was finished before
        assert not self.training[device], "two train on one device"
        self.training[device] += 1
        time.sleep(0.002 * moment)
        pipe.send("a note")
        self.training[device] -= 1
        return Stopped(stack) if pipe.poll() else end


def finished(stack):
    return Finished(stack, (), None)


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_stack_has_one_end_whenever_workers_break(seed, monkeypatch):
    """Over several executions, some of which are left in the middle; no worker is left in the end."""
    fake = FakeWorkers(seed)
    monkeypatch.setattr(local, "_start", fake.start)
    monkeypatch.setattr(local, "work", lambda stack, *_: finished(stack))  # in this process
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2 + seed % 2)
    plans = [StackPlan(tuple(examples(arch, n)), "batched") for n in range(1, 6) for arch in ("mlp", "vit")]
    with executors.Workers() as workers:
        here = local.Local(torch.device("cuda"), worker_pool=workers if seed % 3 else None)
        for execution in range(6):
            chosen = fake.chance.sample(plans, fake.chance.randint(1, 10))
            last = fake.chance.randint(1, len(chosen)) if execution % 2 else None
            ends = Counter[RunSpec]()
            running = here.run(chosen, Job(), lambda _: None)
            for outcome in itertools.islice(running, last):
                ends.update(outcome.plan.specs)
            running.close()
            every = Counter(spec for stack in chosen for spec in stack.specs)
            assert ends <= every if last else ends == every
            assert not any(slot.plan for slot in workers._slots)
            fake.training.clear()
    for thread in fake.threads:
        thread.join(timeout=10)
        assert not thread.is_alive()


@pytest.mark.slow
def test_workers_serve_several_executions(store, train_here, monkeypatch):
    """Each with its own store and time limit; one that dies between them is replaced, and none outlives the context."""
    alone = rows(train_here(examples("mlp", 2, epochs=3), store=store.with_name("alone.sqlite")))
    monkeypatch.setattr(local, "cores", lambda: 2)
    with executors.Workers() as workers:

        def train(name, **options):
            specs, place = examples("mlp", 2, epochs=3), store.with_name(name)
            return rows(execute(specs, store=place, device="cpu", workers=workers, **options))

        assert train("first.sqlite") == alone
        processes = set(multiprocessing.active_children())
        assert len(processes) == 2
        assert train("over.sqlite", minutes=1e-9) == {}
        assert train("second.sqlite") == alone
        assert set(multiprocessing.active_children()) == processes
        killed = processes.pop()
        killed.kill()
        killed.join()
        assert train("third.sqlite") == alone
        assert processes < set(multiprocessing.active_children())
        running = execute(examples("mlp", 2, epochs=5000), store=store, device="cpu", workers=workers)
        monkeypatch.setattr(outcomes.ProgressSum, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(running)
    assert multiprocessing.active_children() == []


def interrupted(total, message):
    raise KeyboardInterrupt
