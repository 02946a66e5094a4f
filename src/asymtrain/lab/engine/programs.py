"""Eager, compiled or captured: how a stack's step is executed on its device.

On a CPU the step runs as written. On a GPU its parts are compiled, and the whole step is captured once into a
CUDA graph that is then replayed: small networks are bound by launches otherwise. Compiled parts are kept for
stacks of the same shape, so that a second stack pays only the capture.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch._functorch.config
from torch import Tensor

from asymtrain.lab.engine.aggregators import aggregated
from asymtrain.lab.engine.gradients import Gather
from asymtrain.lab.engine.layers import dialogue_sums, gate, gated, with_noise
from asymtrain.lab.engine.losses import Batch, Losses
from asymtrain.lab.engine.optimizer import Moments, adamw_, adamw_elementwise_
from asymtrain.models import Parameters

if TYPE_CHECKING:
    from asymtrain.lab.engine.stacked import Stack

_COMPILED: dict[tuple[object, ...], Any] = {}
_WARM_UP_STEPS = 3


class Programs:
    """The step as written."""

    def __init__(self, stack: "Stack") -> None:
        self.stack = stack
        self.losses: Callable[[Parameters, Batch, Tensor], Losses] = stack.objective
        self.gather: Gather = stack.layout.gather
        self.dialogue: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = dialogue_sums
        self.with_noise: Callable[..., Tensor] = with_noise
        self.gated: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = gated
        self.gate: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = gate
        self.aggregated: Callable[[Tensor, Tensor, Tensor], Tensor] = aggregated(stack.lead.aggregator)
        self.next_batch: Callable[[], Batch] = stack.data.next_batch
        self.chunk: Callable[[Tensor, Tensor], Tensor] = stack.data.chunk
        self.forward: Callable[[Parameters, Tensor], Tensor] = stack.objective.logits

    def train_step(self, measure: bool) -> None:
        """One step of every run."""
        self.stack.train_step(measure)

    def update(self, weights: Tensor, gradient: Tensor, moments: Moments, rate: Tensor, decay: Tensor) -> None:
        """The optimiser's step, in place."""
        adamw_(weights, gradient, moments, rate, decay)

    def logits(self, parameters: Parameters, images: Tensor) -> Tensor:
        """Logits (R, B, C) without dropout, by the stack's path."""
        if self.stack.path == "batched":
            return self.forward(parameters, images)
        rows = range(len(images))
        parts = [{name: value[r : r + 1] for name, value in parameters.items()} for r in rows]
        return torch.cat([self.forward(parts[r], images[r : r + 1]) for r in rows])


class CapturedPrograms(Programs):
    """Compiled parts inside a CUDA graph, one graph for plain steps and one for steps that measure."""

    def __init__(self, stack: "Stack") -> None:
        super().__init__(stack)
        # A measured step goes back through one graph twice; a compiled backward would otherwise take what the
        # forward saved as scratch memory in the first pass.
        torch._functorch.config.donated_buffer = False
        self.losses = _compiled("losses", stack, stack.objective)
        self.gather = _compiled("gather", stack, stack.layout.gather)
        self.forward = _compiled("forward", stack, stack.objective.logits)
        self.dialogue = _compiled("dialogue", stack, dialogue_sums)
        self.with_noise = _compiled("with_noise", stack, with_noise)
        self.gated = _compiled("gated", stack, gated)
        self.gate = _compiled("gate", stack, gate)
        self.aggregated = _compiled(f"aggregated by {stack.lead.aggregator}", stack, self.aggregated)
        self._update = _compiled("update", stack, adamw_elementwise_)
        self.next_batch = torch.compile(stack.data.next_batch, dynamic=False)
        self.chunk = torch.compile(stack.data.chunk, dynamic=False)
        self._graphs: dict[bool, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def train_step(self, measure: bool) -> None:
        """Replay the step, after capturing it at its first call."""
        if measure not in self._graphs:
            self._graphs[measure] = self._capture(measure)
        self._graphs[measure].replay()

    def update(self, weights: Tensor, gradient: Tensor, moments: Moments, rate: Tensor, decay: Tensor) -> None:
        """The optimiser's step as one kernel."""
        moments.updates.add_(1)
        self._update(weights, gradient, moments.first, moments.second, moments.updates, rate, decay)

    def _capture(self, measure: bool) -> torch.cuda.CUDAGraph:
        """Run the step a few times to compile it, record it, and put everything back as it was."""
        stack = self.stack
        kept = {name: value.clone() for name, value in stack.changing().items()}

        def put_back() -> None:
            for name, value in stack.changing().items():
                value.copy_(kept[name])

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_STEPS):
                stack.train_step(measure)
                put_back()  # each time: the epoch may have no further step
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            stack.train_step(measure)
        put_back()
        return graph


def programs_for(stack: "Stack") -> Programs:
    """The fastest way to execute this stack's step on its device."""
    return CapturedPrograms(stack) if stack.device.type == "cuda" else Programs(stack)


def _compiled(part: str, stack: "Stack", function: Callable[..., Any]) -> Any:
    """The compiled function for this part and stack shape, made at most once in a process."""
    runs, lead = len(stack.specs) if stack.path == "batched" else 1, stack.specs[0]
    key = (
        part,
        lead.arch,
        lead.arch_options,
        stack.image_shape,
        stack.layout,
        stack.objective.settings,
        stack.dtype,
        runs,
        lead.batch,
    )
    if key not in _COMPILED:
        # Every stack shape is one compilation; torch's default limit of eight would fall back to eager silently.
        torch._dynamo.config.recompile_limit = 256

        def wrapped(*arguments: Any) -> Any:  # `function` is the guard that keeps the compiled forms apart
            return function(*arguments)

        _COMPILED[key] = torch.compile(wrapped, dynamic=False)
    return _COMPILED[key]
