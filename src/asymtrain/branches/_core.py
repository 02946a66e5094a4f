"""`Branches`: the auxiliary objectives of one model, while it trains; `WithBranches`: both as one module.

    branches = attach(model, ...)        hooks on
    model(x)                             each place's feature is caught, pooled to (B, D) unless positions are kept
    branches.loss(y)                     live branches make logits of it, and one loss of the logits
    branches.strip(optimizer)            hooks off

All answers are about the model's latest forward, whatever mode it ran in. A backward that also goes through an earlier
one, about which nobody asked, is refused: its auxiliary loss is missing.
"""

import textwrap
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from asymtrain.branches._capture import Capture, is_exporting, refuse_drift
from asymtrain.branches._fused import Plan, fused_loss, make_plan, product_precision
from asymtrain.branches._heads import Head, LinearHead, batched_logits, width_of
from asymtrain.branches._losses import (
    Activation,
    Aligned,
    Product,
    Settings,
    accuracies_of,
    align,
    losses_of,
    refuse_other_masks,
)
from asymtrain.branches._masks import MaskRule, refuse_inverted
from asymtrain.branches._pooling import Pooled, Reader
from asymtrain.errors import UsageError, UsageWarning, unknown_name
from asymtrain.objectives import Objective


class Branches(nn.Module):
    """Temporary heads on places of a model that they are no part of. Made by `attach`.

    `parameters()` are the live weights, `state_dict()` holds live and idle ones, under the places' names.
    """

    def __init__(
        self,
        heads: Mapping[str, Head],
        readers: Mapping[str, Reader],
        settings: Settings,
        *,
        paths: Mapping[str, str],
        mask: MaskRule | None,
        name: str,
        watch_shift: bool,
    ) -> None:
        super().__init__()
        self.name = name
        self.paths = dict(paths)  # of the modules, by place
        self.mask = mask
        self._watch_mask = True  # whether the next loss makes sure that the model's mask is 1 where positions count
        self._watch_shift = watch_shift  # whether the next loss makes sure that targets are shifted once, and not twice
        self.heads = nn.ModuleDict({_key(name): head for name, head in heads.items()})
        self._keys = {name: _key(name) for name in heads}
        self.places = tuple(heads)
        self.readers = {name: readers[name] for name in heads}
        self.settings = settings
        self.stripped = False
        self._capture: Capture | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        # Whether all are linear maps of rows to several classes: their losses can be one node of autograd
        by_name = isinstance(settings.objective, Objective)
        self._fusable = (
            by_name
            and settings.activation == "last"
            and all(
                isinstance(head, LinearHead) and not head.positions and len(head.live) > 1 and not readers[name].detach
                for name, head in heads.items()
            )
        )
        self._positions = {name: reader.positions for name, reader in readers.items()}
        self._built = True

    @property
    def activation(self) -> Activation:
        """Which branch is live: last or all."""
        return self.settings.activation

    def head(self, place: str) -> Head:
        """The branches of one place."""
        if place not in self._keys:
            raise unknown_name("place", place, self.places)
        head = self.heads[self._keys[place]]
        assert isinstance(head, Head)
        return head

    def num_weights(self) -> int:
        """The number of weights of all branches, live and idle, without biases; those of the model do not count."""
        return sum(self.head(name).num_weights() for name in self.places)

    def exits(self) -> dict[str, nn.Module]:
        """By place, a module from the place's output to logits, for early exit: it needs no hooks and no branches.

        Of several branches it has the last. A tied head stays the model's, so its exit follows the model; that of a
        linear head is a copy, and is taken after training.
        """
        # The mask of an exit is given by its caller.
        readers = {name: replace(reader, masked=True) for name, reader in self.readers.items()}
        return {name: Exit(readers[name], self.head(name).as_module()) for name in self.places}

    def forward(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Logits from features by place: (B, C) from (B, D), (B, T, C) from (B, T, D), (B, C, H, W) from (B, D, H, W).

        Where all branches are live, with a leading axis N.
        """
        groups: dict[object, list[str]] = {}
        for name, feature in features.items():
            head = self.head(name)
            self._check_feature(name, head, feature, width_of(feature, head.positions))
            # Rows of one width share one product; anything larger or of another kind is a product of its own.
            alike: object = name
            if isinstance(head, LinearHead) and not head.positions:
                alike = feature.shape, feature.dtype, feature.device, head.live.shape, head.live.dtype
            groups.setdefault(alike, []).append(name)
        logits: dict[str, Tensor] = {}
        products: list[Product] = []
        for names in groups.values():
            parts = [features[name] for name in names]
            if len(names) == 1:
                logits[names[0]] = self.head(names[0])(parts[0])
            else:
                heads = [head for name in names if isinstance(head := self.head(name), LinearHead)]
                whole = batched_logits(heads, parts)
                products.append(Product(tuple(names), whole, whole.unbind()))
                logits.update(zip(names, products[-1].parts, strict=True))
        if self._capture is not None:
            self._capture.forward.products = tuple(products)
        return {name: logits[name] for name in features}

    def _check_feature(self, name: str, head: Head, feature: Tensor, width: int) -> None:
        device = head.device()
        if device is not None and feature.device != device:
            raise UsageError(
                f"place {name!r} is on {feature.device}, its branches on {device}: move the branches "
                "with the model, branches.to(device)"
            )
        if width != head.width:
            raise UsageError(
                f"place {name!r} now gives {width} features, and gave {head.width} on the sample: attach "
                "with a sample of the shape used in training"
            )

    def logits(self) -> dict[str, Tensor]:
        """Logits of the live branches by place, for the model's latest forward; see `forward` for their shapes."""
        capture = self._attached()
        if torch.is_grad_enabled() and capture.forward.with_grad:
            refuse_drift()
            capture.forward.used = True
        return self._make_logits(capture)

    def losses(
        self,
        targets: Tensor,
        ignore_index: int | None = None,
        *,
        logits: Mapping[str, Tensor] | None = None,
        mask: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The auxiliary loss of each place that ran, before it is weighted.

        `targets` are class indices (B,), or one value for each class (B, C); of places whose positions are kept (B, T)
        or (B, T, C), and (B, H, W) or (B, C, H, W). Indices equal to `ignore_index`, by default that of `attach`, and
        targets whose `mask` is 0 do not count. `logits` are those that `WithBranches` returned; without it the model's
        latest forward is meant.
        """
        return self._by_place(self._losses(targets, self._ignored(ignore_index), logits, mask))

    def loss(
        self,
        targets: Tensor,
        ignore_index: int | None = None,
        *,
        logits: Mapping[str, Tensor] | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """The weighted sum over places of the auxiliary losses; see `losses` for the arguments.

        0 where every place was skipped and that is allowed.
        """
        ignore_index = self._ignored(ignore_index)
        total = self._fused_loss(targets, ignore_index) if self._fusable and logits is None and mask is None else None
        if total is not None:
            return total
        weights = self.settings.weights
        for names, losses in self._losses(targets, ignore_index, logits, mask):
            part = losses.sum()
            if any(name in weights for name in names):
                # By numbers, not by a tensor of them: a copy from the host has no place in a captured CUDA graph.
                part = torch.stack([v * weights.get(name, 1.0) for name, v in zip(names, losses, strict=True)]).sum()
            total = part if total is None else total + part.to(total.device)
        if total is None:
            device = self.head(self.places[0]).device()
            return torch.zeros((), device=device)
        return total

    def _fused_loss(self, targets: Tensor, ignore_index: int) -> Tensor | None:
        """The loss of the latest forward in one node of autograd; None where it has to be made in the general way."""
        capture = self._attached()
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or capture.forward.mask is not None:
            return None
        # That node gives targets no gradient, which a teacher that learns as well needs.
        if not isinstance(targets, Tensor) or targets.requires_grad:
            return None
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return None
        capture.check_has_gradients()
        refuse_drift()
        capture.forward.used = True
        sources = capture.sources(self.settings.allow_skipped)
        # By the modules' dictionaries: a small model feels each call, and attributes of modules are calls.
        heads = self._modules["heads"]._modules  # type: ignore[union-attr]
        if len(sources) < len(heads):
            heads = {name: heads[self._keys[name]] for name in sources}
        own = [head._parameters for head in heads.values() if head is not None]
        features, weights = list(sources.values()), [parameters.get("live") for parameters in own]
        biases = [bias for parameters in own if (bias := parameters.get("bias")) is not None]
        # All that checks and products depend on, but for the values of targets
        seen = (
            tuple(heads) if len(heads) < len(self.places) else None,
            (len(biases), ignore_index, product_precision(features)),
            (targets.shape, targets.dtype, targets.device, targets.layout),
            *[(type(feature), feature.shape, feature.stride(), feature.dtype, feature.device) for feature in features],
            *[None if w is None else (type(w), w.is_contiguous(), w.dtype, w.device) for w in (*weights, *biases)],
        )
        plans = capture.plans
        plan = plans.get(seen, _UNKNOWN)
        if plan is _UNKNOWN:
            # One that is kept is never dropped, since captured CUDA graphs read its tensors.
            kept = len(plans) < _MOST_PLANS
            plan = self._make_plan(sources, weights, biases, targets, ignore_index, kept=kept)
            if kept:
                plans[seen] = plan
        if plan is None:
            return None
        if self._watch_shift:
            self._check_shift(targets, ignore_index)
        # Values on a GPU are not looked at: that would stall every step. The closed form finds out for itself.
        if not plan.closed_form and targets.is_cpu and not _all_classes(targets, plan.shape[2], ignore_index):
            plan.objective.check(torch.empty(plan.shape[1:], device="meta"), targets, ignore_index)
        if not (plan.ready and targets.is_contiguous()):
            targets = _on(features[0].device, targets)
        return fused_loss(plan, targets, features, weights, biases)  # type: ignore[arg-type]

    def _make_plan(
        self,
        sources: Mapping[str, Tensor],
        weights: Sequence[Tensor | None],
        biases: Sequence[Tensor],
        targets: Tensor,
        ignore_index: int,
        *,
        kept: bool,
    ) -> Plan | None:
        """How the loss of features like these is made in one node; None where that cannot be."""
        valueless = targets.is_meta and not any(feature.is_meta for feature in sources.values())
        if targets.ndim not in (1, 2) or targets.layout is not torch.strided or valueless:
            return None  # where they are refused with a hint
        hooks, settings = self._attached().places, self.settings
        # Rows that were read already need no pooling.
        pooled = [(hooks[name].pooled if feature.ndim > 2 else None) or Pooled() for name, feature in sources.items()]
        for (name, feature), kind in zip(sources.items(), pooled, strict=True):
            self._check_feature(name, self.head(name), feature, feature.shape[kind.width])
        batches = {feature.shape[kind.batch] for feature, kind in zip(sources.values(), pooled, strict=True)}
        kinds = {None if each is None else (each.dtype, each.device) for each in (*weights, *biases)}
        # Tensors of a kind of their own (sharded, quantised) know the operations of torch, and not how to share memory.
        plain = all(type(feature) is Tensor for feature in sources.values())
        plain &= all(type(each) is nn.Parameter for each in (*weights, *biases))
        # A bias that is no parameter is computed from others (torch.nn.utils.parametrize).
        plain &= len(biases) == sum(getattr(self.head(name), "bias", None) is not None for name in sources)
        if len(batches) != 1 or len(kinds) != 1 or not plain:
            return None
        plain_weights, objective = [weight for weight in weights if weight is not None], settings.objective
        weight = plain_weights[0]
        assert isinstance(objective, Objective)
        given = {feature.dtype for feature in sources.values()}
        if any(torch.promote_types(kind, torch.float32) != weight.dtype for kind in given):
            return None
        several = weight.shape[0] > 1 and settings.quantities and not objective.shares
        if (targets.ndim == 1 and several) or (targets.ndim == 2 and targets.shape[1] != weight.shape[0]):
            return None  # where it is refused with a hint
        objective.check(torch.empty(batches.pop(), weight.shape[0], device="meta"), targets, ignore_index)
        shares = [settings.weights.get(name, 1.0) for name in sources]
        return make_plan(
            list(sources.values()), pooled, plain_weights, biases, objective, settings.class_reduction, ignore_index,
            shares, targets=targets, kept=kept,
        )  # fmt: skip

    @torch.no_grad()
    def accuracies(
        self,
        targets: Tensor,
        ignore_index: int | None = None,
        *,
        logits: Mapping[str, Tensor] | None = None,
        mask: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The share of right answers at each place that ran, of a regression R squared; see `losses`."""
        groups, ignore_index = self._aligned(logits, targets, mask), self._ignored(ignore_index)
        return self._by_place((group.names, accuracies_of(group, ignore_index, self.settings)) for group in groups)

    def _losses(
        self, targets: Tensor, ignore_index: int, logits: Mapping[str, Tensor] | None, mask: Tensor | None
    ) -> Iterator[tuple[tuple[str, ...], Tensor]]:
        if logits is None and torch.is_grad_enabled():
            self._attached().check_has_gradients()
        groups = self._aligned(logits, targets, mask)
        self._check_shift(targets, ignore_index)
        for group in groups:
            yield group.names, losses_of(group, ignore_index, self.settings)

    def _aligned(self, logits: Mapping[str, Tensor] | None, targets: Tensor, mask: Tensor | None) -> Iterator[Aligned]:
        given = self._given(logits)
        return align(given, self._positions, targets, mask, self.settings, self._products(), self._padding())

    def _ignored(self, given: int | None) -> int:
        return self.settings.ignore_index if given is None else given

    def _products(self) -> tuple[Product, ...]:
        """Those of the latest logits, once: nobody is to keep them alive after their loss."""
        if self._capture is None:
            return ()
        forward = self._capture.forward
        products, forward.products = forward.products, ()
        return products

    def _by_place(self, parts: Iterable[tuple[tuple[str, ...], Tensor]]) -> dict[str, Tensor]:
        """Values of places that came together (K,), by place and in the places' order."""
        found = {name: value for names, values in parts for name, value in zip(names, values.unbind(), strict=True)}
        return {name: found[name] for name in self.places if name in found}

    def _padding(self) -> dict[str, Tensor]:
        """The mask of the model's latest forward, by place; validated on first use.

        A `pool` function of the user's own may give rows in any order, of which that mask does not know.
        """
        mask = None if self._capture is None else self._capture.forward.mask
        if mask is None or any(callable(reader.pool) for reader in self.readers.values()):
            return {}
        if self._watch_mask and not (torch.compiler.is_compiling() or mask.is_meta):
            refuse_other_masks(mask)
            refuse_inverted(self.mask, mask)
            self._watch_mask = False
        return {name: mask for name, reader in self.readers.items() if reader.masked}

    def _check_shift(self, targets: Tensor, ignore_index: int) -> None:
        """Once: refuse targets that are the model's own tokens, unshifted where a shift is needed, or shifted twice."""
        if not self._watch_shift or self._capture is None or torch.compiler.is_compiling():
            return
        tokens = self._capture.forward.tokens
        if tokens is None or not isinstance(targets, Tensor) or targets.is_meta or tokens.shape != targets.shape:
            return
        targets = targets.to(tokens.device)

        def equal(goals: Tensor, words: Tensor) -> bool:
            same = goals == words
            return bool((same | (goals == ignore_index)).all() & same.any())

        copied = equal(targets, tokens)
        if copied and not self.settings.shift:
            raise UsageError(
                "the targets are the model's own inputs, which a branch would learn to copy: attach with shift=1 to "
                "learn the next token, or with shift=0 if copying is meant"
            )
        if self.settings.shift and not copied and equal(targets[:, :-1], tokens[:, 1:]):
            raise UsageError(
                "the targets are the model's inputs shifted by one already, and shift=1 would shift them again: attach "
                "with shift=0, or give the unshifted tokens as targets (with shift=2 to learn the token after the next)"
            )
        self._watch_shift = False

    def strip(self, optimizer: Optimizer | Sequence[Optimizer] | None = None) -> None:
        """Take the branches off the model, and out of the optimizer (or optimizers) if given. Once.

        Warns where something was left out: an optimizer that made steps has the weights of the branches still; no
        optimizer given here has them; gradients reached them and no step changed them while the model's own changed;
        the model was trained and no loss was asked for.
        """
        if self.stripped:
            raise UsageError("these branches are stripped already: attach again for new ones")
        # After a forward without backward FSDP2 leaves whole weights in the modules, which no optimizer has; before a
        # state dict is made it puts the sharded ones back.
        self.state_dict()
        weights = list(self.parameters())
        trainable = any(weight.requires_grad for weight in weights)
        missing = optimizer is not None and not _drop_parameters(optimizer, weights) and trainable
        left_out = list(self._left_out(weights, missing=missing))
        self.disconnect()
        self.stripped = True
        for warning in left_out:
            warnings.warn(warning, UsageWarning, stacklevel=2)

    def _left_out(self, weights: Sequence[nn.Parameter], *, missing: bool) -> Iterator[str]:
        """What the training loop forgot; `missing` says that the optimizer given to strip never had the weights."""
        capture = self._capture
        if missing:
            yield (
                "the optimizer given to strip never had the branches' weights: give it [*model.parameters(), "
                "*branches.parameters()], or strip the optimizer that has them"
            )
        elif capture is not None and capture.untrained(weights):
            yield (
                "the branches' weights had gradients and no optimizer changed them: give it [*model.parameters(), "
                "*branches.parameters()]"
            )
        if capture is not None and capture.steps.keeps(weights):
            yield "an optimizer has the weights of the stripped branches still: call branches.strip(optimizer) with it"
        if capture is not None and capture.unused(weights):
            yield (
                "the model was trained and branches.loss never called, so the branches had no effect: add "
                "alpha * branches.loss(targets) to the loss of each step"
            )

    def connect(self, model: nn.Module) -> None:
        """Put the hooks on a model that has the places, and on no other any more. `attach` does this."""
        self.disconnect()
        # Positions alone are masked, and only targets of tokens are shifted.
        self._capture = Capture(
            model, self.readers, self.paths, self.name, mask=self.mask, keep_tokens=self._watch_shift
        )
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
        capture.forward.forget_features()
        capture.forward.taken = True
        return logits

    def forget(self) -> None:
        """Drop the model's latest forward: a backward through it is to have no auxiliary loss.

        Its features stay in memory until this, or until the model's next forward.
        """
        self._attached().forward.forget()

    def _attached(self) -> Capture:
        if self._capture is None:
            if self.stripped:
                raise UsageError("these branches are stripped: attach again to train with branches")
            raise UsageError("these branches are a copy and on no model: attach to the model, then load_state_dict")
        return self._capture

    def _make_logits(self, capture: Capture) -> dict[str, Tensor]:
        return self(capture.features(self.settings.allow_skipped))

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
        if self._capture is not None and torch.is_grad_enabled():
            self._capture.forward.used = True
        return logits

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As torch's; a state of other branches is a `UsageError`."""
        try:
            return super().load_state_dict(state_dict, strict, assign)
        except RuntimeError as error:
            reasons = str(error).splitlines()[1:] or [str(error)]
            raise UsageError(
                "the branches in the checkpoint are not like those attached now "
                f"({textwrap.shorten(reasons[0], 160, placeholder=' …')}): attach with the places, classes, head and "
                "redundancy of the training that wrote it"
            ) from error

    def extra_repr(self) -> str:
        """Which branch is live."""
        return f"activation={self.activation}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if self.stripped:
            return
        if error is None:
            self.strip()
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a loop that failed has left out more than these say
            self.strip()

    def __setattr__(self, name: str, value: Any) -> None:
        # Names with an underscore are of tools that mark modules.
        unknown = not name.startswith("_") and not hasattr(self, name)
        if self.__dict__.get("_built") and (unknown or name in _FIXED):
            raise UsageError(
                f"{name!r} cannot be set on branches, which would ignore it: options are given to attach, "
                f"attach(..., {name}=...)"
            )
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has the weights and is on no model: the original's hooks belong to the original.
        return {**self.__dict__, "_capture": None, "_finalizer": None}


class Exit(nn.Module):
    """The head of one place as a module of its own: from the place's output to logits."""

    def __init__(self, reader: Reader, head: nn.Module) -> None:
        super().__init__()
        self.reader, self.head = reader, head

    def forward(self, output: Any, mask: Tensor | None = None) -> Tensor:
        """Logits, in the head's precision; a mean is over the positions whose `mask` is not 0."""
        feature = self.reader.read(output, mask)
        if isinstance(feature, str):
            raise UsageError(f"what the exit was given {feature}")
        first = next(self.head.parameters(), feature)
        logits: Tensor = self.head(feature.to(first.dtype))
        return logits


class WithBranches(nn.Module):
    """A model and its branches; calling it gives the model's output and the branches' logits.

        net = DistributedDataParallel(WithBranches(model, branches))
        output, logits = net(x)
        loss = F.cross_entropy(output, y) + alpha * branches.loss(y, logits=logits)

    A second set of branches on the model goes around the first: `WithBranches(WithBranches(model, one), two)` gives
    `(output, logits of one), logits of two`.

    Branch weights are parameters of this module, so DDP averages their gradients, and `fully_shard` (FSDP2) shards
    them. Its copies and pickles are whole: the copy's branches are on the copy's model.
    """

    model: nn.Module
    _inner = False  # whether another set is around this one

    def __init__(self, model: nn.Module, branches: Branches) -> None:
        super().__init__()
        bare = model
        while not (isinstance(branches, Branches) and branches.connected_to(bare)):
            if not isinstance(bare, WithBranches):
                raise UsageError("these branches are not on this model: WithBranches(model, attach(model, ...))")
            bare = bare.model
        self.model = model
        self.branches = branches
        self._on = [bare]  # what the branches are on; in a list, since it is no second part of this module
        if isinstance(model, WithBranches):
            model._inner = True
        # Idle branches are equal on all ranks from the seed and never change; DDP would broadcast them at every step.
        ignored = [f"model.{name}" for name in getattr(model, "_ddp_params_and_buffers_to_ignore", ())]
        ignored += [f"branches.{name}" for name, _ in branches.named_buffers() if ".idle" in name]
        self._ddp_params_and_buffers_to_ignore = ignored

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Tensor]]:
        """The model's output, and the logits of its branches by place."""
        # A sharded model can only be called through the module that was sharded, and an inner set by the outer one;
        # after strip it has no logits.
        if self.branches.stripped and not (is_sharded(self) or self._inner):
            raise UsageError("the branches are stripped: call (and wrap) the model itself from here on")
        if torch.compiler.is_compiling() and is_exporting():
            raise UsageError("export the model itself, not WithBranches; its heads as modules are branches.exits()")
        output = self.model(*args, **kwargs)
        logits = {} if self.branches.stripped else self.branches.take()
        if is_sharded(self):
            # Places of one width share a product, and FSDP2 warns of outputs that are views of another tensor.
            output, logits = self._apart((output, logits))
        return output, logits

    def _apart(self, output: tuple[Any, dict[str, Tensor]]) -> tuple[Any, dict[str, Tensor]]:
        """This pair's output, in which no logits of it, or of a set inside of it, are views."""
        inner, logits = output
        if isinstance(self.model, WithBranches):
            inner = self.model._apart(inner)
        return inner, {name: values.clone() for name, values in logits.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if not self.branches.stripped:
            self.branches.connect(self._on[0])


def is_sharded(module: nn.Module) -> bool:
    """Whether FSDP has sharded this module. By name: importing FSDP would cost every user its import time."""
    return not {"FullyShardedDataParallel", "FSDPModule"}.isdisjoint(kind.__name__ for kind in type(module).__mro__)


def _on(device: torch.device, targets: Tensor) -> Tensor:
    return targets.to(device, torch.int64 if targets.ndim == 1 else targets.dtype).contiguous()


def _all_classes(targets: Tensor, classes: int, ignore_index: int) -> bool:
    """Whether these are surely indices of classes, none ignored: one call, where the check with its message is many."""
    if targets.dtype != torch.int64 or targets.ndim != 1 or not len(targets) or 0 <= ignore_index < classes:
        return False
    low, high = targets.aminmax()
    return int(low) >= 0 and int(high) < classes


_ESCAPES = str.maketrans({"~": "~0", "/": "~1", ".": "/"})


def _key(place: str) -> str:
    """A place's name as torch lets a submodule be called: without dots, and not like a method. No two have one key."""
    key = place.translate(_ESCAPES)
    return f"/{key}" if hasattr(_EMPTY, key) else key


_EMPTY = nn.ModuleDict()
_FIXED = ("activation", "mask", "name")  # options of attach that are read here and fixed in the hooks
_UNKNOWN: Any = object()
_MOST_PLANS = 16  # shapes of batches in one training, of which there are two or three


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
