"""Executions on a GPU, of a stack that memory is too small for."""

import gc

import pytest
import torch
import torch.nn.functional as F
from executor_examples import rows
from torch import nn

from asymtrain.lab.runs import RunSpec, pairs

pytestmark = [
    pytest.mark.gpu,
    # torch's own, while it compiles.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
DEVICE = "cuda"
DATA = {"classes": 4, "size": 640, "test_size": 16, "image_size": 32}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, maps):
        return maps + F.dropout(torch.relu(self.norm(self.inner(maps))), 0.1, self.training)


class Wide(nn.Module):
    """Maps of hundreds of megabytes, few weights: what a run takes are its activations."""

    def __init__(self, classes, width=64):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(3)))
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        logits = self.head(self.blocks(self.stem(images)).mean((2, 3)))
        return logits


def test_a_stack_of_modules_that_does_not_fit_is_halved(train_here, notes, tmp_path):
    spec = RunSpec(arch=f"{__name__}:Wide", dataset_options=DATA, batch=256, epochs=2, cosine_every=2, test="last")
    specs = pairs(spec, range(4))

    def train(specs, name):
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return train_here(specs, store=tmp_path / name, device=DEVICE)

    train(specs[1:2], "compiled.sqlite")  # what compiling takes beside is not a matter of runs
    train(specs[1:2], "alone.sqlite")
    alone = torch.cuda.max_memory_reserved()
    whole = rows(train(specs, "whole.sqlite"))
    together = torch.cuda.max_memory_reserved()
    print(f"\n{alone / 2**20:,.0f} MiB for one run, {together / 2**20:,.0f} MiB for {len(specs)}")
    assert not notes
    torch.cuda.set_per_process_memory_fraction(1.25 * alone / torch.cuda.get_device_properties(0).total_memory)
    try:
        halved = rows(train(specs, "halved.sqlite"))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    print("\n".join(notes))
    assert notes[0] == f"a stack of {len(specs)} runs did not fit into memory: going on with two of half the size"
    assert all("did not fit into memory" in note for note in notes)
    assert halved.keys() == whole.keys()
    for name, run in halved.items():
        assert run.outcome == "finished"
        # With less memory cuDNN may take other algorithms.
        losses = [[epoch.main_loss for epoch in side.history] for side in (run, whole[name])]
        assert losses[0] == pytest.approx(losses[1], rel=1e-2)
