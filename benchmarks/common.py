"""Shared by the benchmarks: data in CIFAR's shape, a step of the engine, timing, and the device's ceilings."""

import functools
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from asymtrain import attach, models
from asymtrain.branches import Parallel
from asymtrain.lab.data import Dataset, Examples
from asymtrain.lab.engine import Stack
from asymtrain.lab.engine.losses import Batch, gradients
from asymtrain.lab.engine.modules import ModuleNetwork, Training
from asymtrain.lab.engine.plan import strategy_for
from asymtrain.lab.machine import cores
from asymtrain.lab.runs import RunSpec, grid
from asymtrain.lab.studies.practice.protocol import NETWORKS

CLASSES = 100
SECONDS = 2.0  # of timed work for each figure


def stack_size(arch: str, device: str) -> int:
    """Runs in one stack. On a CPU, convolutions and attention gain nothing from a stack: processes share the work."""
    small, other, module = {"cuda": (128, 20, 10), "cpu": (5, 1, 1)}[device]
    if arch not in models.BACKBONES:
        return module
    return small if models.BACKBONES[arch].bound_by_calls else other


@functools.cache
def synthetic(size: int = 50_000) -> Dataset:
    """Random images in CIFAR-100's shape: speed does not depend on what they show."""
    drawn = np.random.default_rng(0)

    def images(count: int) -> Examples:
        pixels = drawn.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        return Examples(pixels, drawn.integers(0, CLASSES, count), None)

    return Dataset("synthetic", images(size), images(1_000), tuple(map(str, range(CLASSES))))


def network_fields(name: str) -> dict[str, Any]:
    """The fields of a spec for a model, by its name in the practice study or by any other name that a spec takes."""
    network = NETWORKS.get(name)
    return {"arch": network.arch, "arch_options": network.options} if network else {"arch": name}


def bench_spec(arch: str, precision: str, **fields: Any) -> RunSpec:
    """The run that every column of a benchmark trains; `fields` change it."""
    common = {"dataset": "synthetic", "precision": precision, "epochs": 1, **network_fields(arch)}
    return RunSpec(**{**common, **fields})


def plain_loop(
    arch: str,
    device: torch.device,
    *,
    redundancy: int = 20,
    autocast: bool = False,
    alpha: float = 1.0,
    weights_alone: bool = False,
    capturable: bool = False,
) -> Callable[[], None]:
    """One step of the loop a user would write: one run, eager, data on the device, fused AdamW.

    With `weights_alone` there are no branches: the optimizer has their weights, with gradients of 0.
    """
    data = synthetic().train
    images = torch.from_numpy(data.images).to(device)
    labels = torch.from_numpy(data.labels).to(device)
    model = models.build(arch, classes=CLASSES, seed=0).to(device)
    parameters = list(model.parameters())
    branches = None
    if redundancy:
        sample = images[:2].float()
        where = {"at": list(model.points), "layout": model.layout, "pool": model.pool}
        branches = attach(model, sample=sample, classes=CLASSES, head=Parallel(redundancy), preset="paper", **where)
        parameters += branches.parameters()
    zeros = [(weight, torch.zeros_like(weight)) for weight in branches.parameters()] if weights_alone else []
    if weights_alone:
        branches.strip()
        branches = None
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True, capturable=capturable)
    order = torch.randperm(len(labels), device=device)

    def step() -> None:
        chosen = order[:128]
        x, y = images[chosen].float() / 127.5 - 1, labels[chosen]
        with torch.autocast(device.type, torch.bfloat16) if autocast else nullcontext():
            loss = F.cross_entropy(model(x), y)
            if branches is not None:
                loss = loss + alpha * branches.loss(y)
        optimizer.zero_grad()
        loss.backward()
        for weight, gradient in zeros:
            weight.grad = gradient
        optimizer.step()

    return step


def engine_step(
    arch: str, runs: int, precision: str, device: torch.device, **fields: Any
) -> tuple[Stack, Callable[[], None]]:
    """A stack, and one training step of it."""
    specs = grid(bench_spec(arch, precision, **fields), seed=range(runs))
    stack = Stack(specs, synthetic(), device=device, strategy=strategy_for(arch, device))
    stack.data.start_epoch(0)

    def step() -> None:
        stack.data.step.fill_(0)
        stack.run_step(False)

    return stack, step


def mlp_with_dropout(classes: int) -> nn.Module:
    """Small, so that drawing dropout is a visible part of a step on a CPU; like the next two."""
    sizes = [3 * 32 * 32, 256, 256, 256]
    layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Dropout(0.2)) for a, b in pairwise(sizes)]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(256, classes))


def cnn_with_dropout(classes: int) -> nn.Module:
    layers = [
        nn.Sequential(nn.Conv2d(a, b, 3, 2, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.Dropout(0.1))
        for a, b in pairwise([3, 16, 32, 64])
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def transformer_with_dropout(classes: int) -> nn.Module:
    """On patches of 8 x 8, with dropout in its attention too."""
    layers = [nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True) for _ in range(3)]
    patches = nn.Sequential(nn.Unfold(8, stride=8), _Transposed(), nn.Linear(192, 32))
    return nn.Sequential(patches, *layers, nn.Flatten(), nn.Linear(16 * 32, classes))


class _Transposed(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values.mT


def rate_in_processes(arch: str, runs: int, precision: str, **fields: Any) -> float:
    """Images a second of the engine on a CPU, summed over single-threaded processes, one for each core."""
    with ProcessPoolExecutor(cores(), multiprocessing.get_context("spawn"), initializer=_single_thread) as pool:
        return sum(pool.map(partial(_rate, **fields), *([value] * cores() for value in (arch, runs, precision))))


def _single_thread() -> None:
    torch.set_num_threads(1)


def _rate(arch: str, runs: int, precision: str, **fields: Any) -> float:
    _, step = engine_step(arch, runs, precision, torch.device("cpu"), **fields)
    return Timer(torch.device("cpu"), 2 * SECONDS).rate(step, 128 * runs)


class Timer:
    """Median rates after warming up, including the device's work."""

    clock = staticmethod(time.perf_counter)

    def __init__(self, device: torch.device, seconds: float = SECONDS) -> None:
        self.device, self.limit = device, seconds

    def seconds(self, step: Callable[[], None], parts: int = 5) -> float:
        """Seconds of one call: the median over parts of a run of about `limit` seconds."""
        self._run(step, 1)
        once = self._run(step, 1)
        if once > self.limit:
            return once  # a step this long needs no median
        self._run(step, 3)
        calls = max(1, int(self.limit / parts / max(once, 1e-7)))
        return sorted(self._run(step, calls) / calls for _ in range(parts))[parts // 2]

    def rate(self, step: Callable[[], None], items: int) -> float:
        """Items a second, where one call handles `items`."""
        return items / self.seconds(step)

    def _run(self, step: Callable[[], None], calls: int) -> float:
        self._wait()
        start = self.clock()
        for _ in range(calls):
            step()
        self._wait()
        return self.clock() - start

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def ceilings(device: torch.device) -> tuple[float, float]:
    """Operations a second of a large product (bfloat16 on a GPU), and bytes a second of a large copy (both ways)."""
    on_gpu = device.type == "cuda"
    size, kind = (8192, torch.bfloat16) if on_gpu else (2048, torch.float32)
    a, b = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
    out = torch.empty_like(a)
    source = torch.ones(2**30 if on_gpu else 2**27, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    timer = Timer(device, 1.0)
    product = timer.seconds(lambda: torch.mm(a, b, out=out))
    copied = timer.seconds(lambda: target.copy_(source))
    return 2 * size**3 / product, 2 * source.numel() / copied


def counts(stack: Stack, item: int) -> tuple[float, float]:
    """Operations and least bytes for one image in a batch of 128, counted on forward and backward of one run."""
    # A backbone is counted on the host, where its own kernels hide no products; a module is counted on its device.
    module = isinstance(stack.network, ModuleNetwork)
    device = stack.device if module else torch.device("cpu")
    operations, elements = {}, {}
    for images in (4, 8):
        weights = stack.weights[:1].to(device)
        shape = (1, images, *stack.image_shape)
        targets, ones = torch.zeros(1, images, dtype=torch.int64, device=device), torch.ones(images, device=device)
        batch = Batch(torch.randn(shape, device=device), targets, ones, None)
        if module:
            buffers = {name: value[:1].clone() for name, value in stack.buffers.items()}
            batch = batch._replace(training=Training(buffers, stack.data.keys["draws"][:1], 0))
        with FlopCounterMode(display=False) as counted, _ProductElements() as moved:
            gradients(
                stack.loss,
                stack.parameters,
                weights,
                batch,
                torch.ones(1, device=device),
                strategy="batched",
                gather=stack.parameters.gather,
            )
        operations[images], elements[images] = counted.get_total_flops(), moved.count
    # What grows with the batch belongs to an image; the rest belongs to the weights, which a batch shares.
    by_image = (elements[8] - elements[4]) / 4
    by_batch = elements[4] - 4 * by_image
    # AdamW reads gradient, weight and two moments and writes three of them: seven float32 values per weight and step.
    optimiser = 7 * 4 * stack.parameters.size
    return (operations[8] - operations[4]) / 4, by_image * item + (by_batch * item + optimiser) / 128


class _ProductElements(TorchDispatchMode):
    """Adds up the elements that products read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        if any(word in function.__name__ for word in ("mm", "convolution", "attention")):
            self.count += sum(tensor.numel() for tensor in _tensors([args, result]))
        return result


def _tensors(tree: object) -> list[Tensor]:
    leaves, _ = torch.utils._pytree.tree_flatten(tree)
    return [item for item in leaves if isinstance(item, Tensor)]


def device_name(device: torch.device) -> str:
    """The device's name, to print beside a figure."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
