"""Any module in the form of a backbone: a pure function of parameters, buffers and a batch.

`torch.func.functional_call` makes it pure. Hooks read its features as `attach` would, at the layers that `attach`
found. Buffers (statistics of batch normalisation) are a run's state like its weights, and a forward in training changes
them in place; its random numbers come from the run's own streams (`draws.py`).
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_pre_hook

from asymtrain.branches import MAP_HEADS, PoolName, Reader, attach, find_blocks, logits_in, module_at
from asymtrain.errors import UsageError, UsageWarning, error_line
from asymtrain.lab.engine.draws import Draws, FusedDropoutError
from asymtrain.lab.engine.parameters import is_branch
from asymtrain.models import Outputs, Parameters

HeadName = Literal["linear", "mlp", "tower"]  # of `RunSpec.head`


class Training(NamedTuple):
    """What a forward in training needs besides parameters and inputs."""

    buffers: Mapping[str, Tensor]  # (R, ...), changed in place
    keys: Tensor  # (R,), for the module's random draws
    step: Tensor | int

    def of_runs(self, part: slice) -> "Training":
        """The same for some of the runs, with the run axis."""
        own = {name: value[part] for name, value in self.buffers.items()}
        return self._replace(buffers=own, keys=self.keys[part])


class ModuleNetwork:
    """A module with layers, in the form of a `Backbone`; R runs go through it one after the other."""

    channels_last = False
    dropout_width, dropout_rate = 0, 0.0

    def __init__(
        self,
        module: nn.Module,
        classes: int,
        sample: Tensor,
        *,
        branches: bool = True,
        at: Sequence[str] = (),
        head: HeadName = "linear",
        pool: PoolName = "mean",
        layout: str = "",
        autocast: torch.dtype | None = None,
    ) -> None:
        """`sample`: two rows or more, on the module's device. `autocast`: the type of matrix products, if not float32.

        Without `branches` it has no layers.
        """
        self.module, self.classes, self.autocast, self.sample = module, classes, autocast, sample
        self.pool: PoolName = "none" if head in MAP_HEADS else pool  # these heads read maps and pool them
        self.points: tuple[str, ...] = ()
        self.widths: tuple[int, ...] = ()
        self.paths: dict[str, str] = {}
        self.readers: dict[str, Reader] = {}
        self.trained = frozenset(name for name, value in module.named_parameters() if value.requires_grad)
        if not self.trained:
            raise UsageError("no parameter of the model is trained (requires_grad is False everywhere): unfreeze some")
        if any(map(is_branch, (*self.trained, *self.buffers()))):
            raise UsageError("the model has a part named `branch`, the engine's name for its own: give it another name")
        self._caught: dict[str, Tensor | str] = {}
        self._spelled_out = False  # whether attention is computed by separate operations
        self.draws = self._dry_run(sample)
        if branches:
            where = list(at) or find_blocks(module, sample)
            attached = attach(module, sample, classes, at=where, head=head, pool=self.pool, layout=layout or None)
            self.points, self.paths, self.readers = attached.layers, attached.paths, attached.readers
            self.widths = tuple(attached.head(layer).width for layer in self.points)
            attached.strip()
        self._hooks = [
            module_at(module, path).register_forward_hook(partial(self._catch, layer))
            for layer, path in self.paths.items()
        ]
        self.layout = {layer: reader.layout for layer, reader in self.readers.items() if reader.layout}
        self.reached = self.reached_from(range(len(self.points)))  # names of the trained parameters that affect a layer
        if self.points and not self.reached:
            raise UsageError(
                f"no trained parameter lies before the layers {', '.join(self.points)}, so branches there change "
                "nothing: name later layers with --at, or unfreeze parameters (requires_grad)"
            )

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The trained parameters."""
        return ((name, value) for name, value in self.module.named_parameters() if name in self.trained)

    def parameters(self) -> Iterator[nn.Parameter]:
        return (value for _, value in self.named_parameters())

    def buffers(self) -> dict[str, Tensor]:
        """The module's buffers, and its frozen parameters."""
        frozen = {name: value for name, value in self.module.named_parameters() if name not in self.trained}
        return {name: value.detach() for name, value in {**frozen, **dict(self.module.named_buffers())}.items()}

    def stacked(
        self,
        parameters: Parameters,
        images: Tensor,
        *,
        buffers: Mapping[str, Tensor] | None = None,
        training: Training | None = None,
    ) -> Outputs:
        """Logits (R, B, C) and features [(R, B, D_k)], or maps. Give `buffers` for evaluation, `training` for training.

        With neither, it is evaluation with the module's own buffers.
        """
        state = training.buffers if training else buffers
        if state is None:
            state = {name: value.expand(len(images), *value.shape) for name, value in self.buffers().items()}
        # In the order of the parameters: a set's order differs between processes, and would miss the compiler's cache.
        rows, chosen = [], {name: value for name, value in parameters.items() if name in self.trained}
        for r, inputs in enumerate(images):
            # The gradient of a squeezed view is a view; the gradient of an indexed row is a copy into zeros.
            own = {name: value.squeeze(0) if len(images) == 1 else value[r] for name, value in chosen.items()}
            own |= {name: value[r] for name, value in state.items()}
            rows.append(self.forward(own, inputs, (training.keys[r], training.step) if training else None))
        if len(rows) == 1:
            return rows[0][0][None], [feature[None] for feature in rows[0][1]]
        logits, features = zip(*rows, strict=True)
        return torch.stack(logits), [torch.stack(point) for point in zip(*features, strict=True)]

    def features(self, images: Tensor) -> Outputs:
        """Logits (B, C) and the features (B, D_k) that branches read, in evaluation."""
        logits, points = self.stacked({name: value[None] for name, value in self.named_parameters()}, images[None])
        return logits[0], [point[0] for point in points]

    def reached_from(self, chosen: range) -> list[str]:
        """Names of the parameters for which an auxiliary loss at the chosen points has a gradient."""
        if not chosen:
            return []
        parameters = {name: value.detach().requires_grad_() for name, value in self.named_parameters()}
        _, features = self.forward({**parameters, **self.buffers()}, self.sample, None)
        sums = [features[k].sum() for k in chosen if features[k].requires_grad]
        gradients = (
            torch.autograd.grad(sums, list(parameters.values()), allow_unused=True)
            if sums
            else [None] * len(parameters)
        )
        return [name for name, gradient in zip(parameters, gradients, strict=True) if gradient is not None]

    def drawing(self, key: Tensor, step: Tensor | int) -> AbstractContextManager[object]:
        """A context in which the module's random draws are keyed."""
        if not self.draws:
            return nullcontext()
        stack = ExitStack()
        if self._spelled_out:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(Draws(key, step))
        return stack

    def forward(self, state: Parameters, inputs: Tensor, noise: tuple[Tensor, Tensor | int] | None) -> Outputs:
        """Logits (B, C) and features [(B, D_k)] of one run; `noise` is the key and the step, in training."""
        if not torch.compiler.is_compiling():
            self.set_mode(noise is not None)
        self._caught.clear()
        casting = torch.autocast(inputs.device.type, self.autocast) if self.autocast else nullcontext()
        tensors = dict(state)
        with casting, self.drawing(*noise) if noise else nullcontext():
            output = functional_call(self.module, tensors, (inputs,))
        if noise:
            # A forward may replace a buffer by another tensor, which `functional_call` leaves in `tensors`. One with
            # another shape is a cache, which the module makes again when needed.
            for name, value in state.items():
                if tensors[name] is not value and not value.requires_grad and tensors[name].shape == value.shape:
                    value.copy_(tensors[name].detach())
        logits = read_logits(output)
        features = []
        for layer in self.points:
            feature = self._caught.get(layer, "did not run")
            if isinstance(feature, str):
                raise UsageError(f"layer {layer!r} {feature}: name other layers with --at")
            features.append(feature)
        self._caught.clear()
        return logits, features

    def _catch(self, layer: str, module: nn.Module, args: object, output: object) -> None:
        self._caught[layer] = self.readers[layer].read(output)

    def close(self) -> None:
        """Take the hooks off the module."""
        for hook in self._hooks:
            hook.remove()

    @property
    def settings(self) -> tuple[object, ...]:
        """What a compiled form depends on, besides the model's name."""
        basics = (self.autocast, self.sample.device, self.sample.dtype, self.trained)
        return (self.points, self.pool, tuple(self.layout.items()), *basics, *map(_built_in, self.module.modules()))

    def set_mode(self, training: bool) -> None:
        """Set evaluation or training mode; only on a change, since a model may have hundreds of submodules."""
        if self.module.training != training:
            self.module.train(training)

    def _dry_run(self, sample: Tensor) -> bool:
        """Whether a forward in training draws random numbers; also checks the number of logits."""
        state = self._state()
        counting = Draws(torch.tensor(0), 0)
        try:
            attention = sdpa_kernel(SDPBackend.MATH) if self._spelled_out else nullcontext()
            with torch.no_grad(), attention, counting:
                logits, _ = self._unkeyed(state, sample)
        except FusedDropoutError:
            self._spelled_out = True
            return self._dry_run(sample)
        numbers = self._numbers()  # after the first call, which may create attributes
        self._refuse_draws_in_evaluation(state, sample)
        self._refuse_recomputing(state, sample)
        self._warn_of_counting(numbers)
        if logits.shape[-1] != self.classes:
            raise UsageError(
                f"the model gives {logits.shape[-1]} logits, and the data has {self.classes} classes: build it for them"
            )
        return counting.count > 0

    def _refuse_draws_in_evaluation(self, state: Parameters, sample: Tensor) -> None:
        counting = Draws(torch.tensor(0), 0)
        try:
            with torch.no_grad(), counting:
                self.forward(state, sample, None)
        except FusedDropoutError:
            counting.count += 1
        if counting.count:
            raise UsageError(
                "the model draws random numbers in evaluation too, so its accuracies could not be repeated: draw in "
                "training alone, for example F.dropout(x, p, self.training)"
            )

    def _refuse_recomputing(self, state: Parameters, sample: Tensor) -> None:
        """Refuse modules that recompute in the backward pass: it would use the module's own weights, not the run's."""
        leaves = {name: state[name].detach().requires_grad_() for name in self.trained}
        again: list[nn.Module] = []
        attention = sdpa_kernel(SDPBackend.MATH) if self._spelled_out else nullcontext()
        with torch.enable_grad(), attention, Draws(torch.tensor(0), 0):
            logits, _ = self.forward({**state, **leaves}, sample, (torch.tensor(0), 0))
        if not logits.requires_grad:
            raise UsageError("no trained parameter of the model changes its logits: unfreeze some (requires_grad)")
        hook = register_module_forward_pre_hook(lambda module, _: again.append(module))
        try:
            torch.autograd.grad(logits.sum(), list(leaves.values()), allow_unused=True)
        except Exception as error:
            raise UsageError(f"the model has no backward pass ({error_line(error)}): try one by hand") from error
        finally:
            hook.remove()
        if again:
            raise UsageError(
                "the model computes parts of its forward again in the backward pass (activation checkpointing), which "
                "the engine cannot follow: turn that off"
            )

    def _numbers(self) -> dict[str, int | float]:
        """Attributes of submodules that are numbers."""
        return {
            f"{path}.{name}".lstrip("."): value
            for path, part in self.module.named_modules()
            for name, value in vars(part).items()
            if isinstance(value, int | float) and name != "training"
        }

    def _warn_of_counting(self, before: Mapping[str, int | float]) -> None:
        """Warn about a number that forwards change: all runs share it, and a captured step keeps its first value."""
        changed = [name for name, value in self._numbers().items() if before.get(name, value) != value]
        if changed:
            warnings.warn(
                f"the model's forward changes {changed[0]}, a number that runs share and that stays as it is on a GPU: "
                "keep it in a buffer (register_buffer) if what the model gives depends on it",
                UsageWarning,
                stacklevel=2,
            )

    def try_batch_of_one(self) -> None:
        """Refuse a last batch of one example if a forward in training needs more."""
        state = self._state()
        try:
            with torch.no_grad():
                self.forward(state, self.sample[:1], (torch.tensor(0), 0))
        except ValueError as error:
            raise UsageError(
                f"the last batch of an epoch has one example, and the model needs more ({error_line(error)}): give "
                "another batch, or leave it out (--set last_batch=drop)"
            ) from error

    def _state(self) -> dict[str, Tensor]:
        """A copy of the module's own parameters and buffers."""
        return {name: value.clone() for name, value in {**dict(self.named_parameters()), **self.buffers()}.items()}

    def _unkeyed(self, state: Parameters, sample: Tensor) -> Outputs:
        self.draws = False
        try:
            return self.forward(state, sample, (torch.tensor(0), 0))
        except (UsageError, FusedDropoutError):
            raise
        except Exception as error:
            cure = "try a call of it by hand"
            if isinstance(error, IndexError) and not sample.is_floating_point():
                cure = f"the largest token is {int(sample.max())}, which its vocabulary must hold"
            raise UsageError(
                f"the model cannot be called in training on inputs of shape {tuple(sample.shape)} "
                f"({error_line(error)}): {cure}"
            ) from error


def read_logits(output: object) -> Tensor:
    """Logits (B, C) in a model's output."""
    logits = logits_in(output)
    if logits is None:
        raise UsageError(f"the model returns a {type(output).__name__} without `logits`: build one that returns them")
    if logits.ndim != 2:
        raise UsageError(
            f"the model's logits have shape {tuple(logits.shape)}, not (batch, classes): only classifiers can be "
            "trained here"
        )
    return logits


def _built_in(part: nn.Module) -> tuple[object, ...]:
    """What a compiled form contains as constants. Models of the same name may differ in it: the user may change the
    function that builds them, or what it reads.
    """
    numbers = [(name, _constant(value)) for name, value in sorted(vars(part).items()) if name != "training"]
    return _code_of(type(part)), tuple(number for number in numbers if number[1] is not None)


def _code_of(kind: type) -> tuple[CodeType, ...]:
    """The code of all methods. Classes that a function defines anew for each model have the same code."""
    own = [parent for parent in kind.__mro__ if parent not in nn.Module.__mro__]
    return tuple(value.__code__ for parent in own for value in vars(parent).values() if isinstance(value, FunctionType))


def _constant(value: object) -> object:
    if isinstance(value, FunctionType):
        return value.__code__
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    return value if isinstance(value, int | float | str | BuiltinFunctionType) else None
