"""Every epoch is reported as it comes, and logged beside the checkpoint for those who watch."""

from pathlib import Path

import pytest
from executor_examples import checkpoints, examples

from asymtrain.lab.engine import Progress
from asymtrain.lab.engine.checkpoint import EPOCHS, begun_runs
from asymtrain.lab.executors import execute, local

TRAINED = 3  # epochs of `train_a_little`: time is over when the second is reported, and the third has begun


class Reports(list[Progress]):
    """All reports of an execution."""

    def __call__(self, progress):
        self.append(progress)

    def histories(self):
        found = {}
        for spec, epoch in (pair for report in self for pair in report.recorded):
            found[spec.id] = (*found.get(spec.id, ()), epoch)
        return found

    def finished(self):
        return [run for report in self for run in report.finished]


@pytest.fixture
def reports():
    return Reports()


def test_epochs_and_runs_are_reported_once_each(train_here, reports):
    runs = train_here(examples("mlp", 2, epochs=3), progress=reports)
    assert reports.histories() == {run.spec.id: run.history for run in runs}
    assert reports.finished() == runs
    assert [len(report.recorded) for report in reports if report.recorded] == [4, 4, 4]
    train_here(examples("mlp", 2, epochs=3), progress=reports)
    assert reports.finished() == runs, "what the store has is not trained, so not reported"


@pytest.mark.slow
def test_worker_processes_report_the_same(monkeypatch, store, reports):
    monkeypatch.setattr(local, "cores", lambda: 2)
    specs = examples("mlp", 2, epochs=2)
    runs = list(execute(specs, store=store, device="cpu", progress=reports))
    assert reports.histories() == {run.spec.id: run.history for run in runs}
    assert {run.spec for run in reports.finished()} == set(specs)


def test_a_stack_that_goes_on_reports_what_its_checkpoint_has(train_here, train_a_little, store, reports):
    specs = examples("mlp", 1, epochs=4)
    assert train_a_little(specs) == []
    ((_, begun),) = begun_runs(checkpoints(store))
    assert {spec: len(history) for spec, history in begun.items()} == dict.fromkeys(specs, TRAINED)
    runs = train_here(specs, progress=reports)
    assert reports.histories() == {run.spec.id: run.history for run in runs}
    assert {spec.id: tuple(history) for spec, history in begun.items()} == {
        run.spec.id: run.history[:TRAINED] for run in runs
    }
    assert not checkpoints(store).exists()


def test_the_log_takes_the_later_of_two_and_passes_over_half_a_line(train_a_little, store):
    specs = examples("mlp", 1, epochs=4)
    train_a_little(specs)
    (log,) = checkpoints(store).glob(f"*/{EPOCHS}")
    first, *_ = log.read_text().splitlines()
    again = first.replace('"main_loss": ', '"main_loss": 1')
    log.write_text(f"{log.read_text()}{again}\n{again[:40]}")
    ((_, begun),) = begun_runs(checkpoints(store))
    assert begun[specs[0]][0].main_loss > 10
    assert [epoch.epoch for epoch in begun[specs[0]]] == [1, 2, 3]


def test_a_log_that_cannot_be_written_stops_nothing(train_here, store, monkeypatch):
    opened = Path.open

    def full_disk(path, *arguments, **options):
        if path.name == EPOCHS:
            raise OSError(28, "No space left on device")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", full_disk)
    assert len(train_here(examples("mlp", 1, epochs=2))) == 2
