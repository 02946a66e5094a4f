"""`Branches`: the auxiliary objectives of one model, while it trains.

    branches = attach(model, ...)        hooks on
    model(x)                             each layer's feature is caught, pooled to (B, D) unless positions are kept
    branches.loss(y)                     live branches turn it into logits, and the logits into one loss
    branches.strip(optimizer)            hooks off

All results refer to the model's latest forward, in train or eval mode.
"""

import textwrap
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from asymtrain.branches._capture import Capture, refuse_drift
from asymtrain.branches._criterion import Criterion
from asymtrain.branches._fused import Fuser, fuser_of
from asymtrain.branches._heads import Head, LinearHead, batched_logits, width_of
from asymtrain.branches._losses import (
    Activation,
    Aligned,
    Product,
    Settings,
    accuracies_of,
    align,
    check_shift,
    losses_of,
)
from asymtrain.branches._masks import MaskRule, check_mask
from asymtrain.branches._optimizers import StepHook, drop_parameters
from asymtrain.branches._pooling import Reader
from asymtrain.branches._strength import Following, Scheduled
from asymtrain.errors import UsageError, UsageWarning, unknown_name
from asymtrain.objectives import is_number

Logits = Mapping[str, Tensor] | None  # what `WithBranches` returned; None: the logits of the model's latest forward


class Branches(nn.Module):
    """Temporary heads on layers of a model, kept outside the model. Made by `attach`.

    `parameters()` yields the live weights; `state_dict()` holds live and idle weights, under the layers' names.

    >>> import torch
    >>> from asymtrain import attach, models
    >>> model, x, y = models.build("mlp", classes=10, seed=0), torch.rand(8, 3, 32, 32), torch.arange(8)
    >>> branches = attach(model, sample=x, classes=10)
    >>> _ = model(x)
    >>> loss, by_layer, right = branches.loss(y), branches.losses(y), branches.accuracies(y)
    >>> list(by_layer)
    ['blocks.0', 'blocks.1', 'blocks.2', 'blocks.3']
    >>> branches.strip()
    """

    allow_skipped: bool
    """Whether the model may skip layers in a forward; skipped layers give no loss. You may set it."""

    def __init__(
        self,
        heads: Mapping[str, Head],
        readers: Mapping[str, Reader],
        settings: Settings,
        schedule: Scheduled | None = None,
        *,
        paths: Mapping[str, str],
        mask: MaskRule | None,
        watch_shift: bool,
        choices: Mapping[str, str],
    ) -> None:
        super().__init__()
        self.paths = dict(paths)  # of the modules, by layer
        self.mask = mask
        self._watch_mask = True  # whether the next loss checks that the model's mask is 1 where positions count
        self._watch_shift = watch_shift  # whether the next loss checks that targets are shifted exactly once
        self.heads = nn.ModuleDict({_key(name): head for name, head in heads.items()})
        self._keys = {name: _key(name) for name in heads}
        self.layers = tuple(heads)
        self.readers = {name: readers[name] for name in heads}
        self.settings = settings
        self.schedule = schedule  # of the strength; None if the strength is constant
        self.choices = dict(choices)  # what attach decided, and why, by the name of the option
        self.allow_skipped = False
        self.stripped = False
        self._capture: Capture | None = None
        self._fuser: Fuser | None = None
        self._steps: StepHook | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        # The number of position axes of the logits: none if the head pools the positions itself.
        self._positions = {name: 0 if heads[name].pools else reader.positions for name, reader in readers.items()}
        self._built = True

    @property
    def activation(self) -> Activation:
        """Which branch is live: last or all."""
        return self.settings.activation

    def head(self, layer: str) -> Head:
        """The branches of one layer."""
        if layer not in self._keys:
            raise unknown_name("layer", layer, self.layers)
        head = self.heads[self._keys[layer]]
        assert isinstance(head, Head)
        return head

    @property
    def strength(self) -> float:
        """The current weight of the branches beside the main loss; a schedule's value is read from the device."""
        return self.settings.strength if self.schedule is None else float(self.schedule.strength)

    def step(self, progress: float) -> None:
        """Update a strength that is a function of training progress, from 0 to 1; a constant strength stays.

        Call it before or after a step, outside of compiled code and CUDA graph capture.
        """
        if torch.compiler.is_compiling():
            raise UsageError("branches.step moves the strength between steps: call it outside of torch.compile")
        if not is_number(progress) or not 0 <= progress <= 1:
            raise UsageError(
                "progress is the share of training that is over, from 0 to 1, such as step / total_steps: got "
                f"{progress!r}"
            )
        if self.schedule is not None:
            self.schedule.step(float(progress))

    def num_weights(self) -> int:
        """The number of weights of all branches, live and idle, without biases and without the model's own weights."""
        return sum(self.head(name).num_weights() for name in self.layers)

    def exits(self) -> dict[str, nn.Module]:
        """A module from output to logits for each layer, for early exit: it needs no hooks and no branches.

        If a layer has several branches, the exit uses the last. The exit of a tied head uses the model's own layers and
        follows them. The exit of a linear head is a copy: make it after training.
        """
        # The caller gives an exit its mask.
        readers = {name: replace(reader, masked=True) for name, reader in self.readers.items()}
        return {name: Exit(readers[name], self.head(name).as_module()) for name in self.layers}

    def forward(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Logits from features by layer: (B, C) from (B, D), (B, T, C) from (B, T, D), (B, C, H, W) from (B, D, H, W).

        With a leading axis N if all branches are live.
        """
        groups: dict[object, list[str]] = {}
        for name, feature in features.items():
            head = self.head(name)
            head.check_feature(name, feature, width_of(feature, head.positions))
            # Rows of one width share one matrix product; tokens, maps and other heads get one each.
            alike: object = name
            if isinstance(head, LinearHead) and not head.positions:
                biased = head.bias is not None
                alike = feature.shape, feature.dtype, feature.device, head.live.shape, head.live.dtype, biased
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

    def logits(self) -> dict[str, Tensor]:
        """Logits of the live branches by layer, for the model's latest forward; see `forward` for their shapes."""
        capture = self._attached()
        if torch.is_grad_enabled() and capture.forward.with_grad:
            refuse_drift()
            capture.used = True
        return self(capture.rows(self.allow_skipped))

    def losses(self, targets: Tensor, *, logits: Logits = None, mask: Tensor | None = None) -> dict[str, Tensor]:
        """The auxiliary loss of each layer that ran, before it is weighted.

        `targets` are class indices (B,), or one value for each class (B, C); for layers that keep positions (B, T)
        or (B, T, C), and (B, H, W) or (B, C, H, W). Indices equal to the objective's `ignore_index`, and targets whose
        `mask` is 0, do not count. `logits` are what `WithBranches` returned; by default the losses are those of the
        model's latest forward.
        """
        return self._by_layer(self._losses(targets, logits, mask))

    def loss(
        self, targets: Tensor, *, logits: Logits = None, mask: Tensor | None = None, main: Tensor | None = None
    ) -> Tensor:
        """The auxiliary loss, to add to the main one: the strength times the weighted mean of the layers' losses.

        See `losses` for the arguments. `GradientRatio` compares the branches with `main`, the main loss. Returns 0 if
        every layer was skipped and `allow_skipped` is set.
        """
        total = None if logits is not None or mask is not None else self._fused_loss(targets)
        if total is None:
            total = self._weighted(self._losses(targets, logits, mask))
        return self._strong(total, main)

    def combine(self, losses: Mapping[str, Tensor], *, main: Tensor | None = None) -> Tensor:
        """The auxiliary loss, as `loss` gives it, from the losses by layer that `losses` gave."""
        for name in losses:
            if name not in self.layers:
                raise unknown_name("layer in `losses`", name, self.layers)
        total = self._weighted(((name,), loss.reshape(1)) for name, loss in losses.items())
        return self._strong(total, main)

    def _strong(self, total: Tensor, main: Tensor | None) -> Tensor:
        """The weighted loss times a scheduled strength; a constant strength is already in the weights."""
        if self.schedule is None:
            return total
        if isinstance(self.schedule, Following) and torch.is_grad_enabled():
            self.schedule.measure(main, total, self._attached().model())
        return self.schedule.of(total)

    def _weighted(self, parts: Iterable[tuple[tuple[str, ...], Tensor]]) -> Tensor:
        """The weighted sum over groups of layers with losses (K,); the weights include a constant strength."""
        weights, total = self.settings.weights, None
        for names, losses in parts:
            shares = [weights[name] for name in names]
            if len(set(shares)) == 1:
                part = losses.sum()
                part = part if shares[0] == 1 else part * shares[0]
            else:
                # Python numbers, not a tensor of them: a captured CUDA graph allows no copy from the host.
                part = torch.stack([loss * share for loss, share in zip(losses, shares, strict=True)]).sum()
            total = part if total is None else total + part.to(total.device)
        return torch.zeros((), device=self.head(self.layers[0]).device()) if total is None else total

    def _fused_loss(self, targets: Tensor) -> Tensor | None:
        """The loss of the latest forward in one autograd node; None if it needs the general path."""
        capture, fuser = self._attached(), self._fuser
        if fuser is None or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return None
        # That node gives targets no gradient, and a teacher that is trained too needs one.
        if capture.forward.mask is not None or not isinstance(targets, Tensor) or targets.requires_grad:
            return None
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return None
        capture.check_has_gradients()
        refuse_drift()
        capture.used = True
        sources = capture.sources(self.allow_skipped)
        return fuser.loss(sources, targets) if sources else None

    @torch.no_grad()
    def accuracies(self, targets: Tensor, *, logits: Logits = None, mask: Tensor | None = None) -> dict[str, Tensor]:
        """The accuracy at each layer that ran, or R squared for a regression; see `losses` for the arguments."""
        groups = self._aligned(logits, targets, mask)
        return self._by_layer((group.names, accuracies_of(group, self.settings)) for group in groups)

    def _losses(self, targets: Tensor, logits: Logits, mask: Tensor | None) -> Iterator[tuple[tuple[str, ...], Tensor]]:
        if logits is None and torch.is_grad_enabled():
            self._attached().check_has_gradients()
        groups, own = self._aligned(logits, targets, mask), self._model_logits(logits)
        tokens = None if self._capture is None else self._capture.forward.tokens
        if self._watch_shift and tokens is not None and not torch.compiler.is_compiling():
            self._watch_shift = not check_shift(tokens, targets, self.settings.shift, self.settings.ignore_index)
        for group in groups:
            yield group.names, losses_of(group, self.settings, own)

    def _aligned(self, logits: Logits, targets: Tensor, mask: Tensor | None) -> Iterator[Aligned]:
        by_layer = self._given(logits)
        products: tuple[Product, ...] = ()
        if self._capture is not None:
            forward = self._capture.forward
            products, forward.products = forward.products, ()  # cleared on read, to free memory
        return align(by_layer, self._positions, targets, mask, self.settings, products, self._padding())

    def _model_logits(self, logits: Logits) -> Tensor | None:
        """The model's own logits (B, C), if the objective needs them: from `logits`, or of the latest forward."""
        if not self.settings.needs_model:
            return None
        latest = None if self._capture is None else self._capture.forward.model_logits
        values = latest if logits is None else logits.get(MODEL_LOGITS, latest)
        if values is None or values.ndim != 2:
            raise UsageError(NO_MODEL_LOGITS)
        return values

    def _by_layer(self, parts: Iterable[tuple[tuple[str, ...], Tensor]]) -> dict[str, Tensor]:
        """Values (K,) of groups of layers, as a dict by layer in the layers' order."""
        losses = {name: value for names, values in parts for name, value in zip(names, values.unbind(), strict=True)}
        return {name: losses[name] for name in self.layers if name in losses}

    def _padding(self) -> dict[str, Tensor]:
        """The mask of the model's latest forward, by layer; validated on first use.

        Empty with a user's `pool` function, which may return rows in another order than the mask's.
        """
        mask = None if self._capture is None else self._capture.forward.mask
        if mask is None or any(callable(reader.pool) for reader in self.readers.values()):
            return {}
        if self._watch_mask and not (torch.compiler.is_compiling() or mask.is_meta):
            check_mask(self.mask, mask)
            self._watch_mask = False
        return {name: mask for name, reader in self.readers.items() if reader.masked}

    def criterion(self, loss_fn: Callable[..., Tensor]) -> Criterion:
        """A criterion for a loop that has `criterion(output, target)`: the main loss plus the auxiliary loss.

        Without gradients, and after `strip`, it is `loss_fn` alone. `criterion.parts` has the losses of the latest call
        by name. In distributed training wrap only the model in DDP: the criterion averages the branches' gradients.

        >>> import torch
        >>> from asymtrain import attach, models
        >>> model, x, y = models.build("mlp", classes=10, seed=0), torch.rand(8, 3, 32, 32), torch.arange(8)
        >>> branches = attach(model, sample=x, classes=10)
        >>> criterion = branches.criterion(torch.nn.CrossEntropyLoss())
        >>> criterion(model(x), y).backward()
        >>> list(criterion.parts)[:2]
        ['main_loss', 'auxiliary_loss']
        """
        return Criterion(self, loss_fn)

    def strip(self, optimizer: Optimizer | Sequence[Optimizer] | None = None) -> None:
        """Take the branches off the model, and out of the optimizer (or optimizers) if given. Can be called once.

        Warns if the training loop forgot something: an optimizer that made steps still has the branches' weights; no
        optimizer given here has them; they got gradients and no step changed them, while the model's weights changed;
        the model was trained and `loss` was never called.
        """
        if self.stripped:
            raise UsageError("these branches are stripped already: attach again for new ones")
        # After a forward without backward FSDP2 leaves unsharded weights in the modules, which no optimizer has. Making
        # a state dict puts the sharded ones back.
        self.state_dict()
        weights = list(self.parameters())
        trainable = any(weight.requires_grad for weight in weights)
        missing = optimizer is not None and not drop_parameters(optimizer, weights) and trainable
        used = self._capture is not None and self._capture.used
        left_out = [] if self._steps is None else list(self._steps.left_out(weights, missing=missing, used=used))
        if used and self.schedule is not None and not self.schedule.moved:
            left_out.append(self.schedule.STAYED)
        self.disconnect()
        self.stripped = True
        for warning in left_out:
            warnings.warn(warning, UsageWarning, stacklevel=2)

    def connect(self, model: nn.Module) -> None:
        """Put the hooks on a model that has the layers, and take them off any other. `attach` does this."""
        self.disconnect()
        # The check of the shift compares targets with the model's tokens.
        self._capture = Capture(
            model,
            self.readers,
            self.paths,
            mask=self.mask,
            keep_tokens=self._watch_shift,
            keep_logits=self.settings.needs_model,
        )
        after_step = self.schedule.after_step if isinstance(self.schedule, Following) else None
        self._steps = StepHook(model, list(self.parameters()), after_step)
        self._fuser = fuser_of({name: self.head(name) for name in self.layers}, self.readers, self.settings)
        # Branches that are garbage-collected can no longer be stripped, so their hooks go with them.
        self._finalizer = weakref.finalize(self, _remove, self._capture, self._steps)
        self._finalizer.atexit = False

    def disconnect(self) -> None:
        """Take the hooks off and drop the features."""
        if self._finalizer is not None:
            self._finalizer()
        self._capture = self._steps = self._fuser = self._finalizer = None

    def connected_to(self, model: nn.Module) -> bool:
        """Whether these branches are on this model (the same object)."""
        return self._capture is not None and self._capture.model() is model

    def all_logits(self) -> dict[str, Tensor]:
        """The branches' logits of the latest forward, on any rank; also the model's own if the objective needs them."""
        logits = self(self._attached().rows(self.allow_skipped))
        if (own := self._model_logits(None)) is not None:
            logits[MODEL_LOGITS] = own  # beside the branches', so that a later forward's are not mistaken for them
        return logits

    def take(self) -> dict[str, Tensor]:
        """Logits of the latest forward, which is then forgotten: `WithBranches` hands them to its caller."""
        logits, capture = self.all_logits(), self._attached()
        # Then a compiled graph need not return the features beside the logits.
        capture.forward.forget_features("taken")
        if next(self.parameters(), None) is None:
            capture.used = True  # a loss may be computed elsewhere, and there are no weights whose change would show it
        return logits

    def forget(self) -> None:
        """Drop the model's latest forward, if it needs no auxiliary loss.

        Its features stay in memory until this, or until the model's next forward.
        """
        self._attached().forward.forget()

    def _attached(self) -> Capture:
        if self._capture is None:
            if self.stripped:
                raise UsageError("these branches are stripped: attach again to train with branches")
            raise UsageError("these branches are a copy and on no model: attach to the model, then load_state_dict")
        return self._capture

    def _given(self, logits: Logits) -> Mapping[str, Tensor]:
        if logits is None:
            return self.logits()
        if not isinstance(logits, Mapping):
            raise UsageError(
                f"`logits` must be what WithBranches returned, a dict from layers to logits, got a "
                f"{type(logits).__name__}: output, logits = net(x)"
            )
        for name in logits:
            if name not in self.layers and name != MODEL_LOGITS:
                raise unknown_name("layer in `logits`", name, self.layers)
        if self._capture is not None and torch.is_grad_enabled():
            self._capture.used = True
        return {name: values for name, values in logits.items() if name != MODEL_LOGITS}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Like torch's; raises a `UsageError` if the state does not fit these branches."""
        try:
            return super().load_state_dict(state_dict, strict, assign)
        except RuntimeError as error:
            reasons = str(error).splitlines()[1:] or [str(error)]
            raise UsageError(
                "the branches in the checkpoint are not like those attached now "
                f"({textwrap.shorten(reasons[0], 160, placeholder=' …')}): attach with the layers, classes, head, "
                "redundancy and strength of the training that wrote it"
            ) from error

    def __repr__(self) -> str:
        names = self.layers if len(self.layers) <= _MOST_NAMED else (*self.layers[:2], "...", self.layers[-1])
        choices = {"layers": ", ".join(names), **self.choices}
        lines = [f"  {option}: {text}" for option, text in choices.items()]
        state = " until they were stripped" if self.stripped else ""
        return "\n".join([f"Branches on {len(self.layers)} layers{state}", *lines])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if self.stripped:
            return
        if error is None:
            self.strip()
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a loop that failed is incomplete anyway
            self.strip()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "allow_skipped" and not isinstance(value, bool):
            raise UsageError(f"allow_skipped is True or False for all layers, got {value!r}")
        # Names with an underscore are allowed: tools mark modules with them.
        unknown = not name.startswith("_") and not hasattr(self, name)
        if self.__dict__.get("_built") and (unknown or name in _FIXED):
            raise UsageError(
                f"{name!r} cannot be set on branches, which would ignore it: options are given to attach, "
                f"attach(..., {name}=...)"
            )
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has the weights but no model: the hooks belong to the original.
        return {**self.__dict__, "_capture": None, "_steps": None, "_fuser": None, "_finalizer": None}


class Exit(nn.Module):
    """The head of one layer as a separate module, from the layer's output to logits."""

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


def _remove(capture: Capture, steps: StepHook) -> None:
    capture.remove()
    steps.handle.remove()


_ESCAPES = str.maketrans({"~": "~0", "/": "~1", ".": "/"})


def _key(layer: str) -> str:
    """A layer's name as a valid, unique submodule name: without dots, and different from every method's name."""
    key = layer.translate(_ESCAPES)
    return f"/{key}" if hasattr(_EMPTY, key) else key


MODEL_LOGITS = ""  # the key, no layer's name, under which `WithBranches` returns the model's logits if needed
NO_MODEL_LOGITS = (
    "objective='distill' also learns from the model's own logits, and found none of shape (B, C) for these classes in "
    "its output (a tensor, the first of a tuple, or `logits`): return them there, or choose objective='softmax'"
)
_EMPTY = nn.ModuleDict()
_MOST_NAMED = 6
_FIXED = ("activation", "mask", "strength")  # options of attach that cannot be set later: the hooks already use them
