"""The parts of a stack's step as functions: plain on a CPU, compiled and captured on a GPU.

On a GPU the parts are compiled, and the whole step is captured once into a CUDA graph that is then replayed: otherwise
launches dominate for small networks. Compiled parts are kept for stacks of the same shape, so a second stack pays only
for the capture. A module takes a minute to compile, so its forward is a separate part: stacks with other kinds of
branches share it, and if each run is one call, stacks of other sizes too. Runs of a module without convolutions are
batched, up to ten in a call: their kernels are too small for the GPU, and streams fill only a part of it. This file
does not depend on `Stack`.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from asymtrain.lab.devices import compiler_settings
from asymtrain.lab.engine.losses import Batch, Gather, Kind, Losses, LossFunction, StackLoss, parts_of
from asymtrain.lab.engine.modules import ModuleNetwork, Training
from asymtrain.lab.engine.optimizer import Moments, adamw_, adamw_elementwise_, average_, clipped
from asymtrain.lab.engine.parameters import alignment_sums
from asymtrain.lab.engine.tracing import Recorded, batches, needs_record
from asymtrain.models import Outputs, Parameters

_COMPILED: dict[tuple[object, ...], Any] = {}
RUNS_IN_A_CALL = 10  # at most, for a module whose runs batch well
_FEW_RUNS = 3  # up to so many runs are not worth a batched program
_WARM_UP_STEPS = 3
_AHEAD = 8  # the host waits for the GPU every so many steps, and is at most twice as many steps ahead


@dataclass
class Programs:
    """The functions that a step calls."""

    losses: LossFunction | Sequence[LossFunction]  # one for all runs, or one for each call
    gather: Gather
    forward: Callable[[Parameters, Tensor, Parameters], Tensor]  # logits (R, B, C) in evaluation, with buffers
    next_batch: Callable[[int], Batch]
    chunk: Callable[[Tensor, Tensor], Tensor]  # images for evaluation
    signal: Callable[..., Tensor]  # the update's gradient, if it is not the total gradient
    alignment: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = alignment_sums
    update: Callable[..., None] = adamw_
    clip: Callable[[Tensor, Tensor], Tensor] = clipped
    average: Callable[[Tensor, Tensor, Tensor, Tensor], None] = average_

    def compiled(
        self, shape: tuple[object, ...], *, gather: bool = True, module: "ModuleParts | None" = None
    ) -> "Programs":
        """The same for a GPU. `shape` is all that the compiled parts depend on, except losses and signal.

        Without `gather` that part is not compiled. `module` has its own losses and forward.
        """
        update = _compiled(("update", *shape), adamw_elementwise_)

        def updated(weights: Tensor, gradient: Tensor, moments: Moments, *settings: Tensor) -> None:
            moments.updates.add_(1)
            update(weights, gradient, moments.first, moments.second, moments.updates, *settings)

        if module is not None:
            losses, forward = module.losses(), module.forward()
        else:
            assert isinstance(self.losses, StackLoss)
            losses = _compiled(("losses", self.losses.settings, *shape), self.losses)
            forward = _compiled(("forward", *shape), self.forward)
        names = ("alignment", "clip", "average")
        return Programs(
            **{name: _compiled((name, *shape), getattr(self, name)) for name in names},
            losses=losses,
            gather=_compiled(("gather", *shape), self.gather) if gather else self.gather,
            forward=forward,
            # Each signal has its own function, so that stacks with other signals share everything else.
            signal=_compiled(("signal", self.signal, *shape), self.signal),
            next_batch=torch.compile(self.next_batch, dynamic=False),
            chunk=torch.compile(self.chunk, dynamic=False),
            update=updated,
        )


@dataclass
class ModuleParts:
    """The compiled parts of a module whose runs train side by side: forwards, and the losses of their outputs."""

    shape: tuple[object, ...]  # everything that they depend on
    loss: StackLoss
    kinds: Sequence[Kind]  # of each run
    record: Callable[[int], Recorded | None]  # records a training forward of so many runs

    @property
    def network(self) -> ModuleNetwork:
        assert isinstance(self.loss.network, ModuleNetwork)
        return self.loss.network

    def losses(self) -> list[LossFunction]:
        """The loss for each call: of several runs if the module's runs batch well, else of one run."""
        runs = len(self.kinds)
        sizes = [part.stop - part.start for part in parts_of(runs, -(-runs // RUNS_IN_A_CALL))]
        together = [None if size <= _FEW_RUNS else self._together(size) for size in sizes]
        if None not in together:
            calls = zip(together, sizes, strict=True)
            return [partial(self._loss, outputs, self._of_outputs(self.loss, size)) for outputs, size in calls]
        outputs = self._outputs()
        # One program per kind, which other stacks can share; a program for several kinds would fit this stack only.
        by_kind = {kind: self._of_outputs(replace(self.loss, kinds=(kind,)), 1) for kind in self.loss.kinds}
        return [partial(self._loss, outputs, by_kind[kind]) for kind in self.kinds]

    def forward(self) -> Any:
        """Logits of one run in evaluation."""
        network = self.network  # captured instead of `self`: compiled code is cached, and must not keep a stack alive

        def logits(parameters: Parameters, images: Tensor, buffers: Parameters) -> Tensor:
            return network.stacked(parameters, images, buffers=buffers)[0]

        return _compiled(("forward", *self.shape), logits, partial(network.set_mode, False))

    def _together(self, runs: int) -> Any:
        """The forward of several runs; None if they cannot be batched."""
        key = ("together", runs, *self.shape)
        if key not in _COMPILED:
            recorded = self.record(runs) if batches(self.network) else None
            return _COMPILED.setdefault(key, None) if recorded is None else _compiled(key, recorded)
        return _COMPILED[key]

    def _outputs(self) -> Any:
        """The forward of one run."""
        network = self.network  # instead of `self`, as above

        def stacked(parameters: Parameters, images: Tensor, training: Training) -> Outputs:
            return network.stacked(parameters, images, training=training)

        key = ("outputs", *self.shape)
        if key in _COMPILED:
            return _COMPILED[key]
        recorded = self.record(1) if needs_record(network) else None
        if recorded is None and network.draws:
            return _COMPILED.setdefault(key, stacked)  # not compiled: the compiler cannot see into keyed draws
        return _compiled(key, recorded or stacked, partial(network.set_mode, True))

    def _of_outputs(self, loss: StackLoss, size: int) -> Any:
        return _compiled(("of outputs", size, loss.settings, self.network.widths, *self.shape), loss.of_outputs)

    def _loss(
        self, outputs: Any, of_outputs: Callable[..., Losses], parameters: Parameters, batch: Batch, alpha: Tensor
    ) -> Losses:
        own = {name: value for name, value in parameters.items() if name in self.network.trained}
        others = {name: value for name, value in parameters.items() if name not in own}
        results = outputs(own, batch.images, batch.training)
        losses: Losses = of_outputs(results, others, batch._replace(training=None), alpha)
        return losses


class CapturedSteps:
    """CUDA graphs of a stack's steps, one for each kind of step."""

    def __init__(self) -> None:
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._replayed = 0
        self._mark: torch.cuda.Event | None = None  # recorded at the last multiple of `_AHEAD` steps

    def capture(self, kind: Hashable, step: Callable[[], None], changing: Callable[[], Mapping[str, Tensor]]) -> None:
        """Capture this kind of step unless that is done. `changing` returns the tensors that a step changes."""
        if kind not in self._graphs:
            with compiler_settings():
                self._graphs[kind] = self._capture(step, changing())

    def replay(self, kind: Hashable) -> None:
        """Queue a step. If a whole epoch were queued, Ctrl-C, deadlines and the progress bar would wait for its end."""
        self._graphs[kind].replay()
        self._replayed += 1
        if self._replayed % _AHEAD == 0:
            before, self._mark = self._mark, torch.cuda.Event()
            self._mark.record()
            if before is not None:
                before.synchronize()

    def allows(self, step: Callable[[], None], changing: Callable[[], Mapping[str, Tensor]]) -> bool:
        """Whether a step can be captured: it must not wait for values on the host."""
        before = torch.cuda.get_sync_debug_mode()
        copies = {name: value.clone() for name, value in changing().items()}
        try:
            with compiler_settings():  # torch warns about the debug mode
                torch.cuda.set_sync_debug_mode("error")
                step()
        except RuntimeError as error:
            if "synchronizing CUDA operation" not in str(error):
                raise
            return False
        finally:
            torch.cuda.set_sync_debug_mode(before)
            for name, value in changing().items():
                value.copy_(copies[name])
        return True

    def _capture(self, step: Callable[[], None], changing: Mapping[str, Tensor]) -> torch.cuda.CUDAGraph:
        """Run the step a few times to compile it, capture it, and restore all tensors."""
        copies = {name: value.clone() for name, value in changing.items()}

        def put_back() -> None:
            for name, value in changing.items():
                value.copy_(copies[name])

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_STEPS):
                step()
                put_back()  # after each: the epoch may have no further step
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            step()
        put_back()
        return graph


def _compiled(key: tuple[object, ...], function: Callable[..., Any], prepare: Callable[[], None] = lambda: None) -> Any:
    """The compiled function for this key, made at most once in a process.

    `prepare` is called before each call: the function of a later stack still runs the first stack's module, and only
    `prepare` sets that module's mode.
    """
    if key not in _COMPILED:

        def wrapped(*arguments: Any) -> Any:  # `function` is the guard that distinguishes the compiled forms
            return function(*arguments)

        compiled = torch.compile(wrapped, dynamic=False)

        def prepared(*arguments: Any) -> Any:
            prepare()
            return compiled(*arguments)

        _COMPILED[key] = prepared
    return _COMPILED[key]
