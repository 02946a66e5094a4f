"""A stack's batches of each kind of input, against numpy."""

import dataclasses

import numpy as np
import pytest
import torch

from asymtrain.errors import UsageError
from asymtrain.lab.data import Dataset, Examples
from asymtrain.lab.engine import setup
from asymtrain.lab.engine.device_data import DeviceData
from asymtrain.lab.runs import RunSpec
from asymtrain.models import build

SPEC = RunSpec(arch="package.module:function", batch=8, epochs=1)  # the paper's backbones take images


def dataset(kind):
    source = np.random.default_rng(0)

    def examples(count):
        inputs = {
            "images": lambda: source.integers(0, 256, (count, 2, 6, 4), dtype=np.uint8),
            "vectors": lambda: source.normal(3, 7, (count, 5)).astype(np.float32),
            "tokens": lambda: source.integers(0, 50_000, (count, 7)),
        }[kind]()
        return Examples(inputs, np.arange(count) % 3)

    return Dataset(kind, examples(50), examples(12), ("a", "b", "c"))


def oracle(kind, inputs, rows):
    """Inputs as a network sees them, with the statistics of the given rows."""
    if kind == "tokens":
        return inputs
    axes, scale = ((0, 2, 3), 255) if kind == "images" else ((0,), 1)
    chosen = inputs[rows].astype(np.float64) / scale
    return (inputs / scale - chosen.mean(axes, keepdims=True)) / chosen.std(axes, keepdims=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["images", "vectors", "tokens"])
def test_batches_of_every_kind_have_each_runs_own_statistics(kind, dtype):
    data = dataset(kind)
    specs = [SPEC, dataclasses.replace(SPEC, seed=43)]
    own = [setup.run_data(spec, data) for spec in specs]
    stack = DeviceData(specs, data, own, build("mlp", classes=3, seed=0), torch.device("cpu"), dtype)
    stack.start_epoch(0)
    batch = stack.next_batch().images
    everything = torch.arange(len(data.test)).expand(2, -1)
    test = stack.chunk(stack.test_images, everything)
    assert batch.shape == (2, 8, *data.train.inputs.shape[1:])
    assert batch.dtype == test.dtype == (torch.int64 if kind == "tokens" else dtype)
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    for r, run in enumerate(own):
        seen = torch.from_numpy(oracle(kind, data.train.inputs, run.train))
        torch.testing.assert_close(batch[r], seen[stack.order[r, :8]].to(batch.dtype), **close)
        unseen = (data.test.inputs, data.train.inputs[run.train])
        seen = torch.from_numpy(oracle(kind, np.concatenate(unseen), np.arange(12, 12 + len(run.train)))[:12])
        torch.testing.assert_close(test[r], seen.to(test.dtype), **close)


def test_an_epoch_of_three_passes_shows_each_image_three_times_in_new_orders():
    data = dataset("images")
    spec = dataclasses.replace(SPEC, passes=3, validation="none")
    network = build("mlp", classes=3, seed=0)
    held = DeviceData([spec], data, [setup.run_data(spec, data)], network, torch.device("cpu"), torch.float32)
    assert (held.steps, held.images_seen) == (19, 150)
    orders = []
    for epoch in range(2):
        held.start_epoch(epoch)
        orders += held.order[0, :150].view(3, 50).tolist()
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len(set(map(tuple, orders))) == 6
    dropped = dataclasses.replace(spec, last_batch="drop")
    held = DeviceData([dropped], data, [setup.run_data(spec, data)], network, torch.device("cpu"), torch.float32)
    assert (held.steps, held.images_seen) == (18, 144)


@pytest.mark.parametrize("kind", ["vectors", "tokens"])
def test_only_images_are_augmented(kind):
    augmented = dataclasses.replace(SPEC, augmentation="flip_shift")
    setup.run_data(augmented, dataset("images"))
    with pytest.raises(UsageError, match=f"flip_shift changes images, and {kind} holds {kind}: leave"):
        setup.run_data(augmented, dataset(kind))


def test_the_backbones_take_square_images():
    backbone = dataclasses.replace(SPEC, arch="mlp")
    for kind in ("vectors", "tokens"):
        with pytest.raises(UsageError, match=f"the backbones take images, {kind} holds {kind}"):
            setup.run_data(backbone, dataset(kind))
    with pytest.raises(UsageError, match="the backbones take square images, images has 6 x 4: give image_size"):
        setup.run_data(backbone, dataset("images"))


@pytest.mark.parametrize("augmentation", ["none", "flip_shift", "trivial", "policy"])
def test_batches_and_chunks_keep_channels_innermost(augmentation):
    """As on a GPU, where a convolution of another layout copies all its maps."""
    data = dataset("images")
    spec = dataclasses.replace(SPEC, augmentation=augmentation)
    network = build("mlp", classes=3, seed=0)
    held = DeviceData([spec], data, [setup.run_data(spec, data)], network, torch.device("cpu"), torch.float32)
    held.start_epoch(0)
    plain = held.next_batch().images
    held.channels_last = True
    held.images = held.images.permute(0, 2, 3, 1).contiguous()
    held.start_epoch(0)
    images = held.next_batch().images
    assert torch.equal(images, plain)
    chunk = held.chunk(held.images, torch.arange(3)[None])
    for values in (images[0], chunk[0]):
        assert values.is_contiguous(memory_format=torch.channels_last)
