import sys

import pytest
from store_examples import example_run

from asymtrain.errors import UsageError
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.store.tensorboard import CURVES, write_tensorboard


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_histories_come_back_from_the_event_files(tmp_path):
    pytest.importorskip("tensorboard")
    asymmetric = RunSpec(seed=1, epochs=3, dataset="folder: /my data")
    runs = [example_run(asymmetric), example_run(asymmetric.plain())]
    for _ in range(2):  # the second time replaces the first
        folders = write_tensorboard(runs, tmp_path / "logs")
    assert sorted(folders) == sorted((tmp_path / "logs").iterdir())
    for run, folder in zip(runs, folders, strict=True):
        assert folder.name.endswith(f"-mlp-{run.spec.variant}-seed1-{run.spec.id}")
        curves = read(folder)
        for field, curve in CURVES.items():
            expected = [(e.epoch, getattr(e, field)) for e in run.history if getattr(e, field) is not None]
            assert [step for step, _ in curves.get(curve, [])] == [step for step, _ in expected]
            assert [value for _, value in curves.get(curve, [])] == pytest.approx([value for _, value in expected])
    assert "loss/auxiliary" not in read(folders[1])


def test_without_tensorboard_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match=r'pip install -e "\.\[tensorboard\]"'):
        write_tensorboard([], tmp_path)
