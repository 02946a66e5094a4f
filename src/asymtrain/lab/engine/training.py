"""Specs in, runs out: plan stacks, train them one after the other, yield finished runs."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch

from asymtrain.lab.checkpoints import StackPlan
from asymtrain.lab.data import Dataset, load
from asymtrain.lab.data.registry import state_of_files
from asymtrain.lab.devices import default_device, products_of
from asymtrain.lab.engine.checkpoint import load_checkpoint, open_checkpoint, save_checkpoint
from asymtrain.lab.engine.plan import plan
from asymtrain.lab.engine.setup import check_data
from asymtrain.lab.engine.stack import Stack
from asymtrain.lab.runs import Epoch, Run, RunSpec

CHECKPOINT_SECONDS = 60.0
CHECKPOINT_SHARE = 0.02  # writing checkpoints may take at most this share of the time
REPORT_SECONDS = 0.3


@dataclass(frozen=True)
class StackProgress:
    """A stack's progress: reported at its start, after every epoch, and a few times a second within a long epoch."""

    stack: str
    runs: int
    epoch: int  # epochs finished by each of its runs
    epochs: int
    images: int  # trained on so far in this process, summed over runs
    recorded: tuple[tuple[RunSpec, Epoch], ...] = ()  # epochs since the last report; in the first, the checkpoint's
    part: float = 0.0  # the trained share of the current epoch
    model: object = None  # a key that distinguishes stacks of different models

    @property
    def trained(self) -> float:
        """Trained epochs, summed over runs."""
        return self.runs * (self.epoch + self.part)


@dataclass(frozen=True)
class Progress:
    """The progress of a whole execution."""

    runs_total: int
    runs_done: int
    epochs_total: int  # summed over runs
    epochs_done: int
    images_per_second: float  # summed over runs
    seconds_left: float | None
    note: str = ""
    recorded: tuple[tuple[RunSpec, Epoch], ...] = ()  # epochs that runs finished since the last report
    finished: tuple[Run, ...] = ()  # runs that ended since the last report
    epochs_here: int = 0  # epochs of `epochs_done` that this execution trained; the others come from checkpoints


def model_of(spec: RunSpec) -> object:
    """The model with its options, which mainly determines how long an epoch takes."""
    return spec.arch, spec.arch_options


def train(
    specs: list[RunSpec], *, device: torch.device | str | None = None, data_root: Path | None = None
) -> Iterator[Run]:
    """Train any list of specs on one device and yield each run when its stack is finished.

    Nothing is stored: `asymtrain.lab.executors.execute` adds the store, resuming and several devices, and halves a
    stack that does not fit into memory.
    """
    chosen = default_device(device)
    for stack_plan in plan(specs, chosen):
        yield from train_stack(stack_plan, load_for(stack_plan.specs[0], data_root), chosen) or []


def train_stack(
    stack_plan: StackPlan,
    dataset: Dataset,
    device: torch.device,
    *,
    checkpoints: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
    interrupt: Callable[[], bool] = lambda: False,
    begin: Callable[[], None] = lambda: None,
    progress: Callable[[StackProgress], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    sources: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[Run] | None:
    """Train one stack, from its checkpoint if there is one.

    Returns None if `stop` ended it after an epoch, or `interrupt` after a step; a checkpoint is then written. `begin`
    is called when everything is compiled, before the first step; `note` with a line about a damaged checkpoint.
    `sources` are fingerprints by spec id, which the plan file keeps.
    """
    folder = open_checkpoint(checkpoints, stack_plan, sources) if checkpoints else None
    with products_of(stack_plan.specs[0].precision):
        stack = Stack(list(stack_plan.specs), dataset, device=device, strategy=stack_plan.strategy)
        if folder:
            load_checkpoint(folder, stack, note)
        watch = _Watch(stack_plan, stack, progress, checkpoint_seconds if folder else float("inf"), interrupt)
        watch.report()
        if not stack.finished:
            stack.prepare()
            begin()
            watch.start_clock()
        while not stack.finished:
            before = stack.epoch
            stack.advance(pause=watch.pause)
            ending = not stack.finished and (interrupt() or (stack.epoch > before and stop()))
            if folder and (ending or stack.finished or watch.checkpoint_is_due()):
                watch.save(folder)
            watch.report()
            if ending:
                return None
        return stack.results()


class _Watch:
    """Reports progress a few times a second, and decides when a checkpoint is due."""

    def __init__(
        self,
        stack_plan: StackPlan,
        stack: Stack,
        progress: Callable[[StackProgress], None],
        checkpoint_seconds: float,
        interrupt: Callable[[], bool],
    ) -> None:
        self.id, self.stack, self.progress, self.interrupt = stack_plan.id, stack, progress, interrupt
        self.checkpoint_seconds = checkpoint_seconds
        self.before = self._images()
        self.epochs_reported = 0
        self.start_clock()

    def start_clock(self) -> None:
        self.reported_at = time.monotonic()
        self.due = self.reported_at + self.checkpoint_seconds

    def report(self) -> None:
        self.reported_at = time.monotonic()
        stack, images = self.stack, self._images() - self.before
        recorded = tuple(
            (spec, epoch)
            for spec, history in zip(stack.specs, stack.histories, strict=True)
            for epoch in history[self.epochs_reported :]
        )
        self.epochs_reported = stack.epoch
        part, first = min(1.0, stack.step * stack.data.batch / stack.data.images_seen), stack.specs[0]
        message = StackProgress(
            self.id, len(stack.specs), stack.epoch, first.epochs, images, recorded, part, model_of(first)
        )
        self.progress(message)

    def pause(self) -> bool:
        if time.monotonic() - self.reported_at > REPORT_SECONDS:
            self.report()
        return self.checkpoint_is_due() or self.interrupt()

    def checkpoint_is_due(self) -> bool:
        return time.monotonic() > self.due

    def save(self, folder: Path) -> None:
        """Write a checkpoint. A stack of CNNs is 600 MB: if writing takes long, the next one comes later."""
        begun = time.monotonic()
        save_checkpoint(folder, self.stack)
        now = time.monotonic()
        self.due = now + max(self.checkpoint_seconds, (now - begun) / CHECKPOINT_SHARE)

    def _images(self) -> int:
        stack = self.stack
        return len(stack.specs) * (
            stack.epoch * stack.data.images_seen + min(stack.step * stack.data.batch, stack.data.images_seen)
        )


def load_for(spec: RunSpec, data_root: Path | None = None) -> Dataset:
    """The dataset that a spec names; only one is kept in memory, since CIFAR takes 180 MB."""
    key = (spec.dataset, spec.dataset_options, data_root, state_of_files(spec.dataset))
    if key not in _LOADED:
        _LOADED.clear()
        _LOADED[key] = load(spec.dataset, root=data_root, **dict(spec.dataset_options))
    check_data(spec, _LOADED[key])
    return _LOADED[key]


_LOADED: dict[tuple[object, ...], Dataset] = {}
