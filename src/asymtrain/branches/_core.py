"""`Branches`: the auxiliary objectives of one model, while it trains; `WithBranches`: both as one module.

    branches = attach(model, ...)        hooks on
    model(x)                             each place's feature is caught, pooled to (B, D)
    branches.loss(y)                     live branches make logits of it, and one loss of the logits
    branches.strip(optimizer)            hooks off

All answers are about the model's latest forward, whatever mode it ran in. Where an earlier one with gradients, about
which nobody asked, still waits for its backward, a warning says that its features are left out.
"""

import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from asymtrain.branches._capture import Capture, refuse_drift
from asymtrain.branches._heads import Activation, Head, Settings, place_accuracy, place_loss
from asymtrain.branches._pooling import Reader
from asymtrain.errors import UsageError, unknown_name


class Branches(nn.Module):
    """Temporary heads on places of a model that they are no part of. Made by `attach`.

    `parameters()` are the live weights, `state_dict()` holds live and idle ones, under the places' names.
    """

    step: Tensor | None

    def __init__(self, heads: Mapping[str, Head], readers: Mapping[str, Reader], settings: Settings) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({_key(name): head for name, head in heads.items()})
        self.places = tuple(heads)
        self.readers = dict(readers)
        self.settings = settings
        self.stripped = False
        self._capture: Capture | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        # Training forwards so far, a tensor so that compiled graphs and DDP's buffer broadcast carry it.
        counting = self.activation in ("random", "cycle")
        self.register_buffer("step", torch.zeros((), dtype=torch.int64) if counting else None)

    @property
    def activation(self) -> Activation:
        """Which branch is live: last, all, random or cycle."""
        return self.head(self.places[0]).activation

    def head(self, place: str) -> Head:
        """The branches of one place."""
        if place not in self.places:
            raise unknown_name("place", place, self.places)
        head = self.heads[_key(place)]
        assert isinstance(head, Head)
        return head

    def num_weights(self) -> int:
        """The number of weights of all branches, live and idle: places x redundancy x classes x width, no biases."""
        heads = [self.head(name) for name in self.places]
        return sum(head.redundancy * head.live.shape[-2:].numel() for head in heads)

    def forward(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Logits from features (B, D) by place: (B, C) each, or (N, B, C) where all branches are live."""
        logits = {}
        for name, rows in features.items():
            head = self.head(name)
            if rows.device != head.live.device:
                raise UsageError(
                    f"place {name!r} is on {rows.device}, its branches on {head.live.device}: move the branches "
                    "with the model, branches.to(device)"
                )
            if rows.shape[-1] != head.width:
                raise UsageError(
                    f"place {name!r} now gives {rows.shape[-1]} features, and gave {head.width} on the sample: attach "
                    "with a sample of the shape used in training"
                )
            # The count is moved on before logits are made; forward number 0 is the first.
            at = None if self.step is None else (self.step.to(rows.device) - 1).clamp(min=0)
            logits[name] = head(rows, at)
        return logits

    def logits(self) -> dict[str, Tensor]:
        """Logits of the live branches by place, for the model's latest forward."""
        capture = self._attached()
        if torch.is_grad_enabled() and capture.forward.with_grad:
            refuse_drift()
        return self._make_logits(capture)

    def losses(
        self, targets: Tensor, ignore_index: int = -100, *, logits: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """The auxiliary loss of each place that ran.

        `targets` are class indices (B,), or one value for each class (B, C). `logits` are those that
        `WithBranches` returned; without it the model's latest forward is meant.
        """
        if logits is None and torch.is_grad_enabled():
            self._attached().check_has_gradients()
        by_place = self._given(logits)
        return {name: place_loss(rows, targets, self.settings, ignore_index) for name, rows in by_place.items()}

    def loss(self, targets: Tensor, ignore_index: int = -100, *, logits: Mapping[str, Tensor] | None = None) -> Tensor:
        """The sum over places of the auxiliary losses; 0 where every place was skipped and that is allowed."""
        losses = list(self.losses(targets, ignore_index, logits=logits).values())
        if not losses:
            live = self.head(self.places[0]).live
            return torch.zeros((), device=live.device, dtype=live.dtype)
        return torch.stack([loss.to(losses[0].device) for loss in losses]).sum()

    @torch.no_grad()
    def accuracies(
        self, targets: Tensor, ignore_index: int = -100, *, logits: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """The share of right answers at each place that ran; see `losses` for the arguments."""
        by_place = self._given(logits)
        return {name: place_accuracy(rows, targets, ignore_index) for name, rows in by_place.items()}

    def strip(self, optimizer: Optimizer | Sequence[Optimizer] | None = None) -> None:
        """Take the branches off the model, and out of the optimizer (or optimizers) if given. Once.

        Warns where the branches were not trained: no optimizer given here has their weights, or gradients reached
        the weights and no step changed them while the model's own changed.
        """
        if self.stripped:
            raise UsageError("these branches are stripped already: attach again for new ones")
        weights = list(self.parameters())
        trainable = any(weight.requires_grad for weight in weights)
        if optimizer is not None and not _drop_parameters(optimizer, weights) and trainable:
            warnings.warn(
                "the optimizer given to strip never had the branches' weights: give it [*model.parameters(), "
                "*branches.parameters()], or strip the optimizer that has them",
                stacklevel=2,
            )
        elif self._capture is not None and self._capture.untrained(weights):
            warnings.warn(
                "the branches' weights had gradients and no optimizer changed them: give it [*model.parameters(), "
                "*branches.parameters()]",
                stacklevel=2,
            )
        self.disconnect()
        self.stripped = True

    def connect(self, model: nn.Module) -> None:
        """Put the hooks on a model that has the places, and on no other any more. `attach` does this."""
        self.disconnect()
        self._capture = Capture(model, self.readers)
        self._capture.note_weights(self.parameters())
        # Branches nobody can reach any more could not be stripped; their hooks go with them.
        self._finalizer = weakref.finalize(self, self._capture.remove)
        self._finalizer.atexit = False

    def disconnect(self) -> None:
        """Take the hooks off and drop the features."""
        if self._finalizer is not None:
            self._finalizer()
        self._capture = self._finalizer = None

    def connected_to(self, model: nn.Module) -> bool:
        """Whether these branches are on this very model."""
        return self._capture is not None and self._capture.model() is model

    def take(self) -> dict[str, Tensor]:
        """Logits of the latest forward, which is then forgotten: `WithBranches` hands them to its caller."""
        capture = self._attached()
        logits = self._make_logits(capture)
        # A compiled graph then need not give the features out beside the logits.
        capture.forward.forget()
        capture.forward.taken = True
        return logits

    def _attached(self) -> Capture:
        if self._capture is None:
            if self.stripped:
                raise UsageError("these branches are stripped: attach again to train with branches")
            raise UsageError("these branches are a copy and on no model: attach to the model, then load_state_dict")
        return self._capture

    def _make_logits(self, capture: Capture) -> dict[str, Tensor]:
        features = capture.features(self.settings.allow_skipped)
        if self.step is not None and capture.forward.with_grad and not capture.forward.counted:
            self.step.add_(1)
            capture.forward.counted = True
        return self(features)

    def _given(self, logits: Mapping[str, Tensor] | None) -> Mapping[str, Tensor]:
        if logits is None:
            return self.logits()
        if not isinstance(logits, Mapping):
            raise UsageError(
                f"`logits` must be what WithBranches returned, a dict from places to logits, got a "
                f"{type(logits).__name__}: output, logits = net(x)"
            )
        for name in logits:
            if name not in self.places:
                raise unknown_name("place in `logits`", name, self.places)
        return logits

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Torch's part of `load_state_dict`, which also takes weights under the keys of former versions."""
        keys = {f"{prefix}heads.{_key(place)}." for place in self.places}
        for place in self.places:
            key, former = f"{prefix}heads.{_key(place)}.", f"{prefix}heads.{_former_key(place)}."
            if key == former or any(name.startswith(key) for name in state_dict):
                continue
            for name in [name for name in state_dict if name.startswith(former)]:
                # Two places may have shared them; the other one's are still needed.
                value = state_dict[name] if former in keys else state_dict.pop(name)
                state_dict[key + name.removeprefix(former)] = value
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """Which branch is live."""
        return f"activation={self.activation}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.stripped:
            self.strip()

    def __getstate__(self) -> dict[str, Any]:
        # A copy has the weights and is on no model: the original's hooks belong to the original.
        return {**self.__dict__, "_capture": None, "_finalizer": None}


class WithBranches(nn.Module):
    """A model and its branches; calling it gives the model's output and the branches' logits.

        net = DistributedDataParallel(WithBranches(model, branches))
        output, logits = net(x)
        loss = F.cross_entropy(output, y) + alpha * branches.loss(y, logits=logits)

    Branch weights are parameters of this module, so DDP averages their gradients. Its copies and pickles are
    whole: the copy's branches are on the copy's model.
    """

    def __init__(self, model: nn.Module, branches: Branches) -> None:
        super().__init__()
        if not isinstance(branches, Branches) or not branches.connected_to(model):
            raise UsageError("these branches are not on this model: WithBranches(model, attach(model, ...))")
        self.model = model
        self.branches = branches
        # Idle branches are equal on all ranks from the seed and never change; DDP would broadcast them at every step.
        ignored = [f"model.{name}" for name in getattr(model, "_ddp_params_and_buffers_to_ignore", ())]
        ignored += [f"branches.{name}" for name, _ in branches.named_buffers() if name.endswith(".idle")]
        self._ddp_params_and_buffers_to_ignore = ignored

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Tensor]]:
        """The model's output, and the logits of its branches by place."""
        if self.branches.stripped:
            raise UsageError("the branches are stripped: call (and wrap) the model itself from here on")
        output = self.model(*args, **kwargs)
        return output, self.branches.take()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if not self.branches.stripped:
            self.branches.connect(self.model)


def _key(place: str) -> str:
    """A place's name as torch lets a submodule be called: without dots, and not like a method. No two have one key."""
    key = place.translate(_ESCAPES)
    return f"/{key}" if hasattr(_EMPTY, key) else key


def _former_key(place: str) -> str:
    """The key before slashes were told from dots, which weights that were saved then still have."""
    key = place.replace(".", "/")
    return f"/{key}" if hasattr(_EMPTY, key) else key


_ESCAPES = str.maketrans({"~": "~0", "/": "~1", ".": "/"})
_EMPTY = nn.ModuleDict()


def _drop_parameters(optimizers: Optimizer | Sequence[Optimizer], parameters: Sequence[nn.Parameter]) -> bool:
    """Remove parameters from the groups and the state of optimizers that may have made steps with them.

    A group that ends empty stays: learning-rate schedulers count the groups. Returns whether there was one to remove.
    """
    # `Any`: wrappers (accelerate, mixed precision) look like an optimizer without being one.
    given: list[Any] = list(optimizers) if isinstance(optimizers, tuple | list) else [optimizers]
    if not all(hasattr(optimizer, "param_groups") and hasattr(optimizer, "state") for optimizer in given):
        raise UsageError("strip takes the optimizer, or a list of optimizers, that was given branches.parameters()")
    gone = {id(parameter) for parameter in parameters}
    had = any(id(p) in gone for optimizer in given for group in optimizer.param_groups for p in group["params"])
    for optimizer in given:
        for group in optimizer.param_groups:
            kept = [index for index, parameter in enumerate(group["params"]) if id(parameter) not in gone]
            # With named parameters a group has a second list beside the first.
            for column in {"params", "param_names"} & group.keys():
                group[column] = [group[column][index] for index in kept]
        for parameter in parameters:
            optimizer.state.pop(parameter, None)
        inner = getattr(optimizer, "optimizer", optimizer)  # in accelerate's wrapper
        if had and isinstance(inner, torch.optim.LBFGS):
            # A list and a count of its own, and its memory of the curvature: flat vectors over all parameters, of an
            # objective that is no more. It starts anew.
            inner._params, inner._numel_cache = inner.param_groups[0]["params"], None
            inner.state.clear()
    return had
