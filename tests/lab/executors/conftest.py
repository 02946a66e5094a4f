"""Executions in this process."""

import threading

import pytest
from executor_examples import wait_for

from asymtrain.lab import executors
from asymtrain.lab.executors import execute
from asymtrain.lab.executors.outcomes import Job
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.store import Store, requests
from asymtrain.lab.store.store import LEASE


class Notes(list[str]):
    """What `execute` told the user."""

    def __call__(self, progress):
        if progress.note:
            self.append(progress.note)


@pytest.fixture
def notes():
    return Notes()


@pytest.fixture
def store(tmp_path):
    return tmp_path / "runs.sqlite"


@pytest.fixture
def train_here(one_core, store, notes):
    """`execute` on one core: in this process, so that its parts can be replaced."""

    def train(specs, **options):
        return list(execute(specs, **{"store": store, "device": "cpu", "progress": notes, **options}))

    return train


@pytest.fixture
def train_a_little(train_here, monkeypatch):
    """The same with a time limit that ends after two epochs, however fast this machine is."""

    def train(specs, **options):
        ended = []

        def watch(progress):
            if progress.epochs_done >= 2 * len(specs):
                ended.append(True)

        with monkeypatch.context() as patch:
            patch.setattr(Job, "is_over", lambda self: bool(ended))
            return train_here(specs, progress=watch, **options)

    return train


class OtherMachine:
    """Asks for runs that this process trains, each time after most of a claim's life has passed by the store's clock.

    To be given to `execute` as `progress`. `answers` are the runs that the store handed out.
    """

    def __init__(self, store, monkeypatch):
        self.store, self.specs, self.answers = store, list[RunSpec](), list[list[RunSpec]]()
        self.now, self.renewals = 0.0, 0
        renew = Store.renew

        def count(record):
            renew(record)
            self.renewals += 1

        def owner():
            return "there/1/1" if threading.current_thread().name == "there" else "here/2/2"

        # Neither of the two is this machine: a claim counts by its time alone.
        monkeypatch.setattr(requests, "this_process", owner)
        monkeypatch.setattr(requests, "clock", lambda: self.now)
        monkeypatch.setattr(Store, "renew", count)
        monkeypatch.setattr(executors, "RENEW_SECONDS", 0.01)

    def __call__(self, progress):
        if progress.epochs_done and not progress.runs_done and len(self.answers) < 3:
            self.now += 0.9 * LEASE
            before = self.renewals
            wait_for(lambda: self.renewals >= before + 2)  # the first may have looked at the clock before
            thread = threading.Thread(target=self.ask, name="there")
            thread.start()
            thread.join()

    def ask(self):
        with Store(self.store) as record:
            self.answers.append(record.claim(self.specs))


@pytest.fixture
def other_machine(store, monkeypatch):
    return OtherMachine(store, monkeypatch)
