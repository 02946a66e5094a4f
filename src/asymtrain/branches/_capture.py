"""Hooks that carry features out of a forward.

    OpenHook    before the model's forward   forget the previous forward, start listening
    LayerHook   after each layer             keep its rows
    CloseHook   after the model's forward    stop listening

A forward is one call of the model given to `attach`. Between Close and the next Open nothing is recorded:
activation checkpointing runs layers again during backward, and those calls must not count. Their outputs are pooled
nonetheless: the recomputation must save as many tensors as the forward did.

A forward with gradients whose features were not read is dropped by the next one. That is right in a step without
auxiliary loss, in a warm-up, or if a forward is only inspected. It is a mistake if a backward goes through the dropped
forward after the loss of a later one was taken: the auxiliary loss of the dropped one is missing. Such a backward is
refused, by hooks on the autograd graph that a forward gets when it is dropped; a loop that takes the loss of each
forward pays nothing. A compiled model or layer is not watched: these hooks cannot keep its nodes.

What torch.compile needs: hooks only write attributes, read none that change from step to step (each new value would
cause a recompilation), and hold no reference to an nn.Module.
"""

import contextlib
import inspect
import types
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from asymtrain.branches._layers import module_at
from asymtrain.branches._losses import Product
from asymtrain.branches._masks import MaskRule
from asymtrain.branches._nested import first_tensor, logits_in, select, tensors_in
from asymtrain.branches._pooling import Reader
from asymtrain.errors import UsageError, UsageWarning

Model = TypeVar("Model", bound=nn.Module)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


class Forward:
    """The latest forward of the model, and the hooks that keep each layer's output in it."""

    def __init__(self) -> None:
        self.layers: list[LayerHook] = []
        self.state: Literal["none", "running", "over", "taken"] = (
            "none"  # taken: WithBranches has handed its logits out
        )
        self.with_grad = False
        self.compiled = False
        self.traced = False  # by torch.jit.trace
        self.was_read = False  # whether its features were read, with gradients
        self.mask: Tensor | None = None  # which positions count, from the model's arguments
        self.tokens: Tensor | None = None  # (B, T), the first integer tensor among the model's arguments
        self.model_logits: Tensor | None = None  # (B, C), the model's own, if the objective needs them
        self.products: tuple[Product, ...] = ()  # the shared products that this forward's logits are parts of
        self.dropped: Dropped | None = None  # the forwards dropped since the last one that was read

    @property
    def happened(self) -> bool:
        """Whether there is a forward to read."""
        return self.state in ("running", "over")

    def drop(self) -> None:
        """Watch the graph of this forward, which was not read, before forgetting it."""
        if self.dropped is None:
            self.dropped = Dropped()
        for node in {node for layer in self.layers for node in layer.ways_back()}:
            node.register_prehook(self.dropped)

    def forget(self) -> None:
        """Drop everything about it."""
        self.forget_features("none")
        self.mask = self.tokens = self.model_logits = None
        self.products = ()

    def forget_features(self, state: Literal["none", "taken"]) -> None:
        """Drop the features and their autograd graph; logits that were already computed can still give a loss."""
        self.state = state
        for layer in self.layers:
            layer.caught = layer.trial = None


class Dropped:
    """Forwards whose features were not read. Their autograd graphs call this object in backward.

    It refers to no tensor: the graph of a later forward may continue theirs, and would keep itself alive.
    """

    def __init__(self) -> None:
        self.later = False  # whether a later forward was read

    def __call__(self, *_: object) -> None:
        if self.later:
            raise UsageError(_DROPPED)


class _NoScriptError(UsageError, AttributeError):
    """Also an AttributeError, so that `hasattr` returns False."""


class _Hook:
    """A hook whose copies do nothing, so that copies of the model cannot write into the original's branches.

    A copy or pickle becomes a bound method of the standard library that takes anything and returns None, so
    a saved model loads where asymtrain is not installed.
    """

    def __init__(self, forward: Forward) -> None:
        self.forward = forward

    @property
    def __name__(self) -> str:
        """Raises: torch.jit.script reads this attribute first, and cannot translate hooks."""
        raise _NoScriptError(
            "torch.jit.script cannot translate a model while branches are attached: strip them first, or script "
            "asymtrain.clean(copy.deepcopy(model))"
        )

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, str]]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class Caught(NamedTuple):
    """A layer's output in one forward, which is read when a loss needs it, or the rows already read from it."""

    with_grad: bool
    output: object = None  # None if the rows were read at once
    rows: Tensor | str | None = None  # (B, D), or what was wrong with the output
    version: int | None = None  # of the feature or of the rows; it changes if they are changed in place
    nodes: tuple[Node, ...] = ()  # the autograd nodes of an output that was read at once
    feature: Tensor | None = None  # kept apart, since the model may replace parts of the output afterwards


class LayerHook(_Hook):
    """Keeps a layer's output in the latest forward; if the forward calls the layer several times, the last output.

    Under torch.compile rows are read at once. Otherwise the output is held until the next forward and read on request:
    in an evaluation most outputs are never read, and in training all layers are read together. But a model may change
    the output in place after the layer (ReLU). The first forward of each mode reads rows at once and shows whether it
    does; if so, later ones read at once too. So do torch.inference_mode, where torch counts no changes, and activation
    checkpointing, which could not free a held output.
    """

    def __init__(self, forward: Forward, reader: Reader) -> None:
        super().__init__(forward)
        self.reader, self.selector = reader, reader.output
        self.feature_reader = replace(reader, output=None)  # reads a feature that is already selected
        self.pooled = None if reader.detach else reader.pooled  # None: a forward with gradients is read at once
        self.caught: Caught | None = None
        # By mode (gradients, training): whether outputs stay unchanged to the end of a forward, once known
        self.lasting: dict[tuple[bool, bool], bool] = {}
        self.trial: tuple[tuple[bool, bool], Caught] | None = None  # in the forward that shows it

    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        forward, compiling = self.forward, torch.compiler.is_compiling()
        if compiling:
            if is_exporting():
                return
            rows = self._read(output)
            if forward.state == "running":
                self.caught = Caught(torch.is_grad_enabled(), rows=rows)
            return
        grad = torch.is_grad_enabled()
        # torch.jit.trace runs several times and needs the same operations each time.
        if forward.traced or (
            grad
            and (
                self.pooled is None
                or forward.mask is not None
                or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
            )
        ):
            rows = self._read(output)  # also when not recording: a recomputation must save what the forward saved
            if forward.state == "running":
                self.caught = self._with_rows(output, rows, grad)
        elif forward.state == "running":
            self._keep(output, (grad, module.training))

    def _keep(self, output: object, mode: tuple[bool, bool]) -> None:
        """Hold the output, or read it at once if the model may change it."""
        feature, lasting = self._feature(output), self.lasting.get(mode)
        version = _version(feature)
        caught = Caught(mode[0], output, None, version, feature=feature)
        if version is not None and lasting:
            self.caught = caught
            return
        self.caught = self._with_rows(output, self._read(output), mode[0])
        if version is not None and lasting is None:
            self.trial = mode, caught

    def _feature(self, output: object) -> Tensor | None:
        if type(output) is Tensor and self.selector is None and output.is_floating_point():
            return output  # nearly always; call overhead dominates for small models
        return select(output, self.selector)

    def _with_rows(self, output: object, rows: Tensor | str, grad: bool) -> Caught:
        # Probes must not keep a graph alive.
        return Caught(grad, None, rows, _version(rows), _nodes(output) if grad and not self.reader.detach else ())

    def settle(self) -> None:
        """At the end of a forward: note whether the output stayed unchanged; if so, hold it as later ones are held."""
        if self.trial is not None:
            (mode, caught), self.trial = self.trial, None
            self.lasting[mode] = _version(caught.feature) == caught.version
            if self.lasting[mode]:
                self.caught = caught

    def ways_back(self) -> tuple[Node, ...]:
        """The autograd nodes through which a backward reaches the layer's output in the latest forward."""
        caught = self.caught
        return () if caught is None else caught.nodes if caught.output is None else _nodes(caught.output)

    def _read(self, output: object, reader: Reader | None = None) -> Tensor | str:
        """The rows, or what is wrong with the output; for probes without a graph."""
        masks: tuple[Tensor, ...] = () if self.forward.mask is None else (self.forward.mask,)
        reader = self.reader if reader is None else reader
        if not reader.detach:
            return reader.read(output, *masks)
        with torch.no_grad():
            rows = reader.read(output, *masks)
        return rows if isinstance(rows, str) else rows.detach()

    def rows(self) -> Tensor | str | None:
        """The rows, or what was wrong with the output, or None if the layer did not run."""
        caught = self.caught
        if caught is None:
            return None
        if torch.compiler.is_compiling():
            return caught.rows if caught.output is None else _HELD  # a compiler cannot see whether it changed in place
        feature = caught.rows if caught.output is None else caught.feature
        if isinstance(feature, Tensor) and caught.version is not None and feature._version != caught.version:
            return _CHANGED
        if caught.output is None:
            if self.reader.detach and isinstance(caught.rows, Tensor) and caught.rows.is_inference():
                return caught.rows.clone()  # so that probes can learn from it outside of torch.inference_mode
            return caught.rows
        if caught.with_grad and not torch.is_grad_enabled():
            # Not cached: a later loss needs the graph.
            return self._read(caught.feature, self.feature_reader)
        with torch.set_grad_enabled(caught.with_grad):
            rows = self._read(caught.feature, self.feature_reader)
        self.caught = Caught(caught.with_grad, None, rows, _version(rows))
        return rows

    def source(self) -> Tensor | str | None:
        """The feature that `self.pooled` reduces to rows, or else the rows themselves."""
        caught = self.caught
        if caught is None or caught.output is None or not caught.with_grad or self.pooled is None:
            return self.rows()
        feature = caught.feature
        if (
            feature is None
            or feature.ndim != len(self.reader.layout or "")
            or feature.layout is not torch.strided
            or feature.is_nested
        ):
            return self.rows()
        return _CHANGED if feature._version != caught.version else feature


class OpenHook(_Hook):
    """Starts a forward."""

    def __init__(self, forward: Forward, mask: MaskRule | None, keep_tokens: bool) -> None:
        super().__init__(forward)
        self.mask = mask
        self.keep_tokens = keep_tokens

    # The arguments have no names, as in CloseHook.
    def __call__(self, module: nn.Module, *call: Any) -> None:
        forward = self.forward
        compiling = torch.compiler.is_compiling()
        if compiling and is_exporting():
            return
        # Outside a compiler not by getattr, which is slow for an attribute that a module does not have.
        replica = getattr(module, "_is_replica", False) if compiling else "_is_replica" in module.__dict__
        if replica:
            raise UsageError("branches do not work in nn.DataParallel: use DistributedDataParallel(WithBranches(...))")
        if not compiling:
            if torch._C._current_graph_task_id() != -1:
                return  # inside a backward: activation checkpointing recomputes the whole model
            if forward.happened and forward.with_grad and not forward.was_read:
                forward.drop()
        forward.forget()
        forward.state = "running"
        forward.with_grad = torch.is_grad_enabled()
        forward.compiled = compiling
        forward.traced = not compiling and torch._C._get_tracing_state() is not None
        forward.was_read = False
        if self.mask is not None:
            args, kwargs = call
            mask = self.mask(*args, **kwargs)
            forward.mask = mask if isinstance(mask, Tensor) else None
        if self.keep_tokens:
            forward.tokens = first_tensor(
                call, lambda value: value.ndim == 2 and value.dtype in _INTEGERS and value is not forward.mask
            )


class CloseHook(_Hook):
    """Ends a forward."""

    def __init__(self, forward: Forward, keep_logits: bool) -> None:
        super().__init__(forward)
        self.keep_logits = keep_logits

    # torch.compile compiles each hook of the model as a separate frame, and warns about `.grad` if a named argument
    # of a frame is a tensor.
    def __call__(self, *call: Any) -> None:
        forward = self.forward
        if forward.state == "running":
            for layer in () if torch.compiler.is_compiling() else forward.layers:
                layer.settle()
            if self.keep_logits:
                logits = logits_in(call[-1])
                # A copy: later in-place changes of the output are not the model's logits.
                forward.model_logits = None if logits is None else logits.detach().clone()
            forward.state = "over"


class Capture:
    """The hooks of one set of branches on one model, and what they caught.

    `mask` computes the mask of positions from the model's arguments; `keep_tokens` keeps the model's tokens for the
    loss, `keep_logits` its own logits.
    """

    def __init__(
        self,
        model: nn.Module,
        readers: Mapping[str, Reader],
        paths: Mapping[str, str],
        *,
        mask: MaskRule | None = None,
        keep_tokens: bool = False,
        keep_logits: bool = False,
    ) -> None:
        self.forward = Forward()
        self.used = False  # whether a loss, or logits for one, was ever requested
        self.detached = all(reader.detach for reader in readers.values())
        self.layers = {layer: LayerHook(self.forward, reader) for layer, reader in readers.items()}
        self.forward.layers = list(self.layers.values())
        # Weak: the branches must neither keep the model alive nor contain it as a submodule.
        self.model = weakref.ref(model)
        modules = {layer: module_at(model, path) for layer, path in paths.items()}
        opening = OpenHook(self.forward, mask, keep_tokens)
        model.register_forward_pre_hook(opening, with_kwargs=True)
        for layer, hook in self.layers.items():
            modules[layer].register_forward_hook(hook)
        # Last, in case the model itself is a layer.
        model.register_forward_hook(CloseHook(self.forward, keep_logits))
        self.hooked = [weakref.ref(module) for module in (model, *modules.values())]
        for module in (model, *modules.values()):
            _mark(module)

    def rows(self, allow_skipped: bool) -> dict[str, Tensor]:
        """The rows of each layer that ran in the latest forward; raises a `UsageError` if they cannot be read."""
        return self._of_layers(LayerHook.rows, allow_skipped)

    def sources(self, allow_skipped: bool) -> dict[str, Tensor]:
        """The source of each layer's rows: see `LayerHook.source` and `rows`."""
        return self._of_layers(LayerHook.source, allow_skipped)

    def _of_layers(self, ask: Callable[[LayerHook], Tensor | str | None], allow_skipped: bool) -> dict[str, Tensor]:
        forward = self.forward
        if not forward.happened:
            raise UsageError(_NOTHING_TAKEN if forward.state == "taken" else _NOTHING_CAUGHT)
        training = torch.is_grad_enabled() and forward.with_grad
        features: dict[str, Tensor] = {}
        for name, layer in self.layers.items():
            answer = ask(layer)
            if answer is None:
                continue
            if isinstance(answer, str):
                raise UsageError(f"layer {name!r} {answer}")
            if training and layer.caught is not None and not layer.caught.with_grad and not self.detached:
                raise UsageError(f"layer {name!r} {_WITHOUT_GRADIENTS}")
            features[name] = answer
        if not allow_skipped and len(features) < len(self.layers):
            skipped = [name for name in self.layers if name not in features]
            raise UsageError(
                f"{len(skipped)} of {len(self.layers)} layers did not run in the latest forward ({skipped[0]!r} "
                f"first): {_SKIPPED}"
            )
        if training:
            forward.was_read = True
            if not torch.compiler.is_compiling():
                if not features and forward.compiled:
                    warnings.warn(_NOTHING_TRAINED, UsageWarning, stacklevel=5)
                if forward.dropped is not None:
                    forward.dropped.later, forward.dropped = True, None
        return features

    def check_has_gradients(self) -> None:
        """Refuse to train on a forward that kept no graph; probes need none."""
        if self.forward.happened and not self.forward.with_grad and not self.detached:
            raise UsageError(
                "the model's latest forward ran without gradients (torch.no_grad, or checkpointing with "
                "use_reentrant=True): take the loss right after the training forward, or under torch.no_grad() as "
                "well; to train probes on it, attach with preset='probe'"
            )

    def remove(self) -> None:
        """Take every hook off the model and drop the captured features."""
        # Modules may have left the model, and tools that replace modules (prepare_qat) copy the hooks to the new ones.
        modules = {module for watch in self.hooked if (module := watch()) is not None}
        if (model := self.model()) is not None:
            modules.update(model.modules())
        for module in modules:
            _take_hooks_off(module, self.forward)
        self.forward.forget()


def _version(tensor: object) -> int | None:
    """How often a tensor was changed in place; None if torch does not count it."""
    return tensor._version if isinstance(tensor, Tensor) and not tensor.is_inference() else None


def _nodes(output: object) -> tuple[Node, ...]:
    """The autograd nodes that made an output."""
    return tuple(tensor.grad_fn for tensor in tensors_in(output) if tensor.grad_fn is not None)


def clean(model: Model) -> Model:
    """Take every hook of asymtrain off a model or a copy of one, and return the model.

    Copies and pickles that were made while branches were attached (EMA, `copy.deepcopy`, `torch.load`) keep hooks that
    do nothing. torch.jit.script refuses those; `clean` removes them. It also detaches branches that are on the model.

    >>> import copy, torch
    >>> from asymtrain import attach, clean, models
    >>> model = models.build("mlp", classes=10, seed=0)
    >>> branches = attach(model, sample=torch.rand(2, 3, 32, 32), classes=10)
    >>> averaged = clean(copy.deepcopy(model))
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"clean takes an nn.Module, got a {type(model).__name__}")
    for module in model.modules():
        _take_hooks_off(module)
    return model


def forget_forwards(model: nn.Module) -> None:
    """Make every set of branches on a model forget its latest forward."""
    for module in model.modules():
        for hook in module._forward_hooks.values():
            if isinstance(hook, LayerHook):
                hook.forward.forget()


def _own_hooks(module: nn.Module) -> list[tuple[dict[int, Callable[..., object]], int]]:
    """The hooks of asymtrain on this module, live and dead: the dict that holds each, and its key there."""
    kinds: list[dict[int, Callable[..., object]]] = [module._forward_pre_hooks, module._forward_hooks]
    return [(hooks, key) for hooks in kinds for key, hook in hooks.items() if isinstance(hook, _Hook) or _dead(hook)]


def _take_hooks_off(module: nn.Module, forward: Forward | None = None) -> None:
    """Remove the hooks of one set of branches, or all of asymtrain; with the last hook the mark goes too."""
    for hooks, key in _own_hooks(module):
        if forward is None or getattr(hooks[key], "forward", None) is forward:
            module._forward_pre_hooks_with_kwargs.pop(key, None)
            hook = hooks.pop(key)
            if isinstance(hook, LayerHook):
                hook.forward.forget()  # old features must not be taken for a later forward's
    if not _own_hooks(module):
        _unmark(module)


def _dead(hook: object) -> bool:
    """Whether this is a copied or unpickled hook (see `_Hook.__reduce__`)."""
    holder = getattr(hook, "__self__", None)
    return type(holder) is contextlib.nullcontext and getattr(hook, "__name__", "") == "__exit__"


def _mark(module: nn.Module) -> None:
    """Let torch.compile distinguish this module from one of its class without hooks.

    Compiled code is shared by all modules of a class that fulfil its guards, and torch has no guard on the absence of
    hooks (skip_nnmodule_hook_guards): it would run the code of a plain model, without hooks. But torch guards whether
    an instance has a `forward` of its own. So the module gets its class's `forward` as an attribute: the same code
    runs, and each copy has its own. An existing one belongs to other code, and stays. A marked model refers to itself:
    without strip, and while its branches exist, only the garbage collector frees it.
    """
    function = _class_forward(module)
    if function is None or "forward" in module.__dict__:
        return
    if function.__name__ != "forward":
        # A decorator may have changed the name, and pickle finds the method by it.
        copy = types.FunctionType(
            function.__code__, function.__globals__, "forward", function.__defaults__, function.__closure__
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        copy.__dict__.update(function.__dict__)
        function = copy
    module.__dict__["forward"] = types.MethodType(function, module)


def _unmark(module: nn.Module) -> None:
    """Take the mark off, unless another `forward` has replaced it."""
    method = module.__dict__.get("forward")
    function = None if method is None else _class_forward(module)
    bound = isinstance(method, types.MethodType) and method.__self__ is module
    if bound and function is not None and getattr(method, "__code__", None) is function.__code__:
        del module.__dict__["forward"]


def _class_forward(module: nn.Module) -> types.FunctionType | None:
    function = inspect.getattr_static(type(module), "forward", None)
    return function if isinstance(function, types.FunctionType) else None


def is_exporting() -> bool:
    """Whether the compiler is torch.export with strict=False, whose graph would keep what hooks compute.

    With strict=True dynamo traces the model, and leaves that out.
    """
    return not torch.compiler.is_dynamo_compiling()


def is_sharded(module: nn.Module) -> bool:
    """Whether FSDP has sharded this module. By name: importing FSDP would cost every user its import time."""
    return not {"FullyShardedDataParallel", "FSDPModule"}.isdisjoint(kind.__name__ for kind in type(module).__mro__)


def ranks() -> int:
    """The number of processes that train together."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if distributed else 1


def refuse_drift() -> None:
    """Refuse to train branches in several processes if nothing keeps them equal between ranks."""
    if not torch.compiler.is_compiling() and ranks() > 1:
        raise UsageError(
            "in distributed training the branches would drift apart between ranks: use "
            "net = DistributedDataParallel(WithBranches(model, branches)), output, logits = net(x), "
            "branches.loss(y, logits=logits)"
        )


_NOTHING_CAUGHT = (
    "no forward has reached the branches: call the model that was given to attach. If it was called, the likely cause "
    "is a call of a submodule, of .forward() or of a copy instead of the model, or branches.forget() or "
    "asymtrain.clean after it; under torch.compile, call torch.compiler.reset() once after attach"
)
_NOTHING_TAKEN = (
    "WithBranches returned this forward's logits: output, logits = net(x), then branches.loss(y, logits=logits)"
)
_SKIPPED = (
    "set branches.allow_skipped = True if the model skips them; if their modules were replaced after attach, strip, "
    "and attach to the model as it is now; under torch.compile, call torch.compiler.reset() once after attach"
)
_NOTHING_TRAINED = (
    "no layer ran in this forward of a compiled model, so its auxiliary loss is 0: if the model does not skip all of "
    "them, call torch.compiler.reset() once after attach"
)
_WITHOUT_GRADIENTS = (
    "ran without gradients inside a forward with gradients: use checkpoint(..., use_reentrant=False), or take this "
    "layer out of torch.no_grad(); to train the branches alone, attach with preset='probe'"
)
_DROPPED = (
    "this backward goes through two calls of the model, and branches.loss was taken after the later one alone: take it "
    "right after each call and add up the losses, or call branches.forget() after a call that is to have none"
)
_HELD = (
    "ran outside of torch.compile, which is to compile what is asked of its branches: compile a function that calls "
    "the model and the branches, or the model alone"
)
_CHANGED = (
    "gives a feature that the model changes in place afterwards: use inplace=False in the layer behind it, or choose "
    "that one"
)
