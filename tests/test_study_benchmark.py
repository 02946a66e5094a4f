"""benchmarks/study.py: the loop that the engine is measured against trains the same runs, to the same rows."""

import sys
from pathlib import Path

import pytest
import torch

from asymtrain.lab.engine import train
from asymtrain.lab.runs import Epoch
from asymtrain.lab.store import Store

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import study

SMALL = {
    "mlp": (),
    "cnn": (("widths", (4, 4, 4, 4, 4, 4)), ("hidden", (8, 8))),
    "vit": (("width", 16), ("depth", 2), ("heads", 2)),
}
DATA = {"dataset": "shapes", "dataset_options": (("size", 600), ("image_size", 16))}


@pytest.mark.parametrize(("arch", "runs"), [("mlp", 13), ("cnn", 3), ("vit", 3)])
def test_the_loop_trains_what_the_engine_trains(arch, runs, tmp_path):
    """In turns in the memory of a few loops, so that what one run leaves behind would show."""
    specs = study.study_specs(arch, runs, epochs=2, arch_options=SMALL[arch], **DATA)
    assert len({study.program(spec) for spec in specs}) < len(specs)
    seconds = study.by_loop(specs, tmp_path / "loop.sqlite", torch.device("cpu"))
    assert len(seconds) == len(specs)
    engine = {run.spec: run for run in train(specs, device="cpu")}
    with Store(tmp_path / "loop.sqlite", read_only=True) as record:
        loop = {run.spec: run for run in record.runs()}
    assert loop.keys() == engine.keys() == set(specs)
    for spec in specs:
        assert loop[spec].outcome == engine[spec].outcome == "finished"
        for ours, theirs in zip(loop[spec].history, engine[spec].history, strict=True):
            for name in set(Epoch._fields) - {"seconds"}:
                value, expected = getattr(ours, name), getattr(theirs, name)
                same = None if expected is None else pytest.approx(expected, rel=1e-3, abs=2e-4)
                assert value == same, (spec, name)
        assert loop[spec].calibration_error == pytest.approx(engine[spec].calibration_error, abs=1e-3)


def test_runs_that_the_loop_has_not_trained_are_reckoned_from_those_it_has():
    specs = study.study_specs("mlp", 14, **DATA)
    new = [spec for i, spec in enumerate(specs) if study.program(spec) not in map(study.program, specs[:i])]
    kinds = {name: study.study_specs("mlp", 12, **DATA)[i] for i, name in enumerate(study.KINDS)}
    assert [name for name, spec in kinds.items() if spec in new] == [
        "Plain", "sigmoid, alpha 0.1", "sigmoid with prior bias, alpha 0.3", "softmax, alpha 0.3", "frozen sigmoid",
    ]  # fmt: skip
    # Trained: Plain and a sigmoid, which compile, and two more sigmoids. Left: 3 that compile, 7 that do not.
    assert study.reckoned([10.0, 30.0, 1.0, 3.0], specs) == 3 * 20 + 7 * 2
    assert study.reckoned([1.0] * 14, specs) == 0
