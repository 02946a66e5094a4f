"""Hooks that carry features out of a forward.

    OpenHook    before the model's forward   forget the previous forward, start listening
    PlaceHook   after each place             keep its rows
    CloseHook   after the model's forward    stop listening

A forward is one call of the model given to `attach`. Between Close and the next Open nothing is recorded:
activation checkpointing runs places again during backward, and those calls must not count. They are pooled
nonetheless: the recomputation must save as many tensors as the forward did.

What torch.compile asks of this file: hooks only write attributes and read none that change from step to step
(each changed value would be a recompilation), and hold no reference to an nn.Module.
"""

import contextlib
import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn

from asymtrain.branches._places import module_at
from asymtrain.branches._pooling import Reader
from asymtrain.errors import UsageError

# Which positions count: the name of the model's keyword argument, or a function of the model's arguments
Mask = str | Callable[..., Tensor | None]


class Forward:
    """The latest forward: whether there was one, in which mode, and the hooks that have what each place gave."""

    def __init__(self) -> None:
        self.places: list[PlaceHook] = []
        self.listening = False
        self.happened = False
        self.with_grad = False
        self.counted = False  # whether `random` and `cycle` have moved on for it
        self.taken = False  # whether WithBranches has handed its logits out

    def forget(self) -> None:
        """Drop the features, and with them their autograd graph."""
        self.happened = False
        for place in self.places:
            place.rows = None


class _Hook:
    """A hook whose copies do nothing: copies of the model must not write into the original's branches.

    A copy or pickle becomes a bound method of the standard library that takes anything and returns None, so
    a saved model loads where asymtrain is not installed.
    """

    def __init__(self, forward: Forward) -> None:
        self.forward = forward

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, str]]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class PlaceHook(_Hook):
    """Keeps what a place gave in the latest forward; of several calls in one forward, in the last."""

    def __init__(self, forward: Forward, reader: Reader, name: str) -> None:
        super().__init__(forward)
        self.name = name  # of the set of branches
        self.reader = reader
        self.rows: Tensor | str | None = None  # (B, D), or what was wrong, or nothing
        self.with_grad = False

    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        rows = self.reader.read(output)
        if self.forward.listening:
            self.rows = rows
            self.with_grad = torch.is_grad_enabled()


class OpenHook(_Hook):
    """Starts a forward."""

    def __call__(self, module: nn.Module, *_: object) -> None:
        if getattr(module, "_is_replica", False):
            raise UsageError("branches do not work in nn.DataParallel: use DistributedDataParallel(WithBranches(...))")
        if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
            return  # Inside a backward: the whole model is being recomputed by activation checkpointing.
        self.forward.forget()
        self.forward.listening = True
        self.forward.happened = True
        self.forward.with_grad = torch.is_grad_enabled()
        self.forward.counted = False


class CloseHook(_Hook):
    """Ends a forward."""

    # torch.compile runs the model's own hooks as frames of their own, and a tensor among a frame's named arguments
    # makes it warn about `.grad`.
    def __call__(self, *_: object) -> None:
        self.forward.listening = False


class Capture:
    """The hooks of one set of branches on one model, and what they caught."""

    def __init__(self, model: nn.Module, readers: dict[str, Reader], paths: dict[str, str], name: str) -> None:
        self.forward = Forward()
        self.places = {place: PlaceHook(self.forward, reader, name) for place, reader in readers.items()}
        self.forward.places = list(self.places.values())
        # Weak: the branches must not keep the model alive, nor hold it as a part.
        self.model = weakref.ref(model)
        self.handles = [
            model.register_forward_pre_hook(OpenHook(self.forward)),
            *(module_at(model, paths[place]).register_forward_hook(hook) for place, hook in self.places.items()),
            # Last, for the case that the model itself is a place.
            model.register_forward_hook(CloseHook(self.forward)),
        ]

    def features(self, allow_skipped: bool) -> dict[str, Tensor]:
        """The rows (B, D) of each place that ran in the latest forward, or a `UsageError` that says why not."""
        if not self.forward.happened:
            raise UsageError(_NOTHING_TAKEN if self.forward.taken else _NOTHING_CAUGHT)
        caught: dict[str, Tensor] = {}
        for name, place in self.places.items():
            if isinstance(place.rows, str):
                raise UsageError(f"place {name!r} {place.rows}")
            if place.rows is not None:
                if torch.is_grad_enabled() and self.forward.with_grad and not place.with_grad:
                    raise UsageError(
                        f"place {name!r} ran without gradients inside a forward with gradients: use "
                        "checkpoint(..., use_reentrant=False), or take this place out of torch.no_grad()"
                    )
                caught[name] = place.rows
        if not allow_skipped and len(caught) < len(self.places):
            if not caught:
                raise UsageError(_NONE_RAN)
            skipped = [name for name in self.places if name not in caught]
            raise UsageError(
                f"{len(skipped)} of {len(self.places)} places did not run in the latest forward ({skipped[0]!r} "
                "first): pass allow_skipped=True to attach if that is meant"
            )
        return caught

    def check_has_gradients(self) -> None:
        """Refuse to train on a forward that kept no graph."""
        if self.forward.happened and not self.forward.with_grad:
            raise UsageError(
                "the model's latest forward ran without gradients (torch.no_grad, or checkpointing with "
                "use_reentrant=True): take the loss right after the training forward, or under torch.no_grad() as well"
            )

    def remove(self) -> None:
        """Take every hook off the model and drop what was caught."""
        for handle in self.handles:
            handle.remove()
        self.handles = []
        self.forward.forget()


def carries_branches(module: nn.Module, name: str) -> bool:
    """Whether a place already has branches of the set of this name."""
    return any(isinstance(hook, PlaceHook) and hook.name == name for hook in module._forward_hooks.values())


def refuse_drift() -> None:
    """Refuse to train branches that no process group keeps equal between ranks."""
    if torch.compiler.is_compiling() or not torch.distributed.is_available():
        return
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        raise UsageError(
            "in distributed training the branches would drift apart between ranks: use "
            "net = DistributedDataParallel(WithBranches(model, branches)), output, logits = net(x), "
            "branches.loss(y, logits=logits)"
        )


_NOTHING_CAUGHT = (
    "no forward has reached the branches: call the model that was given to attach. If it was called, the likely cause "
    "is torch.compile before attach (attach first), or a call of a submodule or of .forward() instead of the model"
)
_NOTHING_TAKEN = (
    "WithBranches returned this forward's logits: output, logits = net(x), then branches.loss(y, logits=logits)"
)

_NONE_RAN = (
    "no place ran in the latest forward: the likely cause is that a part of the model was compiled by torch.compile "
    "before attach (attach first)"
)
