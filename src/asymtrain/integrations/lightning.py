"""Branches in Lightning: one callback, and the LightningModule stays as it is.

    setup                   training_step and configure_optimizers of this one object are wrapped
    configure_optimizers    attach, on the model's device; branch parameters join the optimizer's first group, or get
                            one with `branch_options`
    training_step           its loss + alpha * branches.loss(labels of the batch)
    `until`                 strip; the wrappers hand everything through from there on
    fit end                 strip, and the wrappers go

Why wrap `training_step`: Lightning has no hook that may change the loss. A second backward in `on_before_backward`
would miss what Lightning does to the one loss it knows: division by the accumulated batches, scaling, DDP's reducer.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from asymtrain.branches import Branches
from asymtrain.errors import UsageError, how_to_install, unknown_name
from asymtrain.gradients import alignment
from asymtrain.integrations._common import Adapter, OptimizerPart, add_group, device_of, labels_of, named_losses

try:
    from lightning.fabric.utilities import move_data_to_device
    from lightning.pytorch import Callback
except ImportError as error:
    raise UsageError(f"Lightning does not import ({error}): {how_to_install('lightning')}") from error

_WRAPPED = ("training_step", "configure_optimizers")


class BranchesCallback(Adapter, Callback):  # type: ignore[misc]  # Lightning is optional, and untyped where it is missing
    """Trains a LightningModule with branches, which are removed before `fit` returns.

    Checkpoints hold the module's weights under the module's own names, so they load into the bare module with
    `strict=True`; the branches' weights and their part of the optimizer are in the callback's state. So
    `fit(ckpt_path=...)` resumes with them, and without the callback it resumes without branches.

    Args:
        alpha: weight of the auxiliary loss. May be set between steps. At 0 training is that of the module alone.
        branches: what `attach` gave for a part of the module; or leave it out, and give the arguments of `attach`:
        model: the part of the module to attach to, by name, as `training_step` calls it: `net` where that says
            `self.net(x)`. Default: the module itself, for `self(x)`.
        sample: what that part is called with. Default: the module's `example_input_array`.
        targets: a function from the batch to the labels.
        until: when branches end: a share of the training (0.5) or a number of optimizer steps. They are stripped
            then, and the rest of the fit is without them. Default: at the end.
        branch_options: options of the optimizer for the branches' parameters, such as `lr` and `weight_decay`, which
            then have a parameter group of their own.
        every: optimizer steps between logged auxiliary losses and gradient cosines, which cost a backward for each of
            the two losses; 0 for none. Default: the trainer's `log_every_n_steps`.
        options: the other arguments of `attach`: `classes`, `at` and the rest.

    Attributes:
        alignments: the log of what was measured; `alignments.summary()`.
    """

    def __init__(
        self,
        *,
        alpha: float,
        branches: Branches | None = None,
        model: str = "",
        sample: object = None,
        targets: Callable[[Any], Tensor] = labels_of,
        until: float | None = None,
        branch_options: Mapping[str, Any] | None = None,
        every: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._take_settings(alpha, branches, targets, until, branch_options, options)
        self.model, self.sample, self.every = model, sample, every
        self.given = branches is not None
        self._restored: Mapping[str, Any] = {}
        self._parts: list[OptimizerPart] = []

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Wrap the module's two methods, before anything of the fit is built."""
        if stage != "fit":
            return
        if not pl_module.automatic_optimization:
            raise UsageError(
                "with manual optimization training_step calls backward itself: attach there, and add "
                "alpha * branches.loss(y) to its loss"
            )
        _part(pl_module, self.model)
        strategy = type(trainer.strategy).__name__
        if any(kind in strategy for kind in ("FSDP", "DeepSpeed", "ModelParallel")):
            raise UsageError(
                f"branches do not work in a model sharded by {strategy}: train with strategy='ddp', or in a loop of "
                "your own with fully_shard(WithBranches(model, branches))"
            )
        own_step, own_optimizers = pl_module.training_step, pl_module.configure_optimizers

        @functools.wraps(own_step)
        def training_step(*args: Any, **kwargs: Any) -> Any:
            batch = args[0] if args else kwargs["batch"]
            return self._add(trainer, pl_module, own_step(*args, **kwargs), batch)

        @functools.wraps(own_optimizers)
        def configure_optimizers() -> Any:
            branches = self._attached(pl_module)
            options = self.branch_options
            with _new_optimizers(lambda new: add_group(new, branches, options)) if options else nullcontext():
                configured = own_optimizers()
            self._parts = [self._join(optimizer) for optimizer in _optimizers_in(configured)]
            if options and not all(part.own for part in self._parts):
                raise UsageError(
                    "branch_options make a parameter group, which schedulers must count: make the optimizer inside "
                    "configure_optimizers"
                )
            return configured

        pl_module.training_step, pl_module.configure_optimizers = training_step, configure_optimizers

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """A fit that is resumed goes on with the branches' part of the optimizer, or has left them behind."""
        for part, restored in zip(self._parts, self._restored.get("optimizers", ()), strict=False):
            part.load_state_dict(restored)
        self._restored = {}
        self._end_within(trainer.estimated_stepping_batches)
        self._strip_at(trainer.global_step, trainer.optimizers)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Strip where the branches end, before a checkpoint of this step is written."""
        self._strip_at(trainer.global_step, trainer.optimizers)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Between ranks the branches are not in DDP's hands."""
        self._average_gradients()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Strip, after the last checkpoint of the fit was written."""
        self._unwrap(pl_module)
        self._strip_at(math.inf, trainer.optimizers)
        for part in self._parts:
            part.remove()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave the module bare, and the state as a checkpoint on the way out must find it."""
        self._unwrap(pl_module)
        if self.branches is not None:
            self.branches.disconnect()

    def state_dict(self) -> dict[str, Any]:
        """The branches' weights and their part of the optimizer while they are attached; nothing afterwards."""
        if self.branches is None or self.branches.stripped:
            return {}
        return {"branches": self.branches.state_dict(), "optimizers": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state for the moment at which the branches are attached."""
        self._restored = state_dict

    def _attached(self, module: nn.Module) -> Branches:
        target = _part(module, self.model)
        if self.branches is None or not self.given:
            sample = getattr(module, "example_input_array", None) if self.sample is None else self.sample
            if sample is None:
                raise UsageError(
                    "attach needs a batch of inputs: give sample=, or set the module's example_input_array"
                )
            if isinstance(sample, list):
                sample = tuple(sample)  # of arguments, as `attach` takes them
            self.branches = self._attach(target, move_data_to_device(sample, device_of(target)))
        if not self.branches.connected_to(target) and not any(map(self.branches.connected_to, module.modules())):
            raise UsageError("these branches are on no part of this module: attach again to train with branches")
        if "branches" in self._restored:
            self.branches.load_state_dict(self._restored["branches"])
        return self.branches.to(device_of(target))

    def _add(self, trainer: Any, module: Any, output: Any, batch: Any) -> Any:
        main = output["loss"] if isinstance(output, Mapping) else output
        if main is None or self.branches is None or self.branches.stripped:
            return output
        targets = self._targets_in(batch)
        auxiliary, losses = self._losses(targets, main)
        every = trainer.log_every_n_steps if self.every is None else self.every
        if every and auxiliary.requires_grad and (trainer.global_step + 1) % every == 0:
            logged = named_losses(main, auxiliary, losses)
            measured = alignment(main, auxiliary, module)
            self.alignments.add(measured)
            if measured.cosine is not None:
                logged["gradient_cosine"] = torch.tensor(measured.cosine)
            module.log_dict(logged, on_step=True, on_epoch=False, batch_size=len(targets))
        total = self._total(main, auxiliary)
        return {**output, "loss": total} if isinstance(output, Mapping) else total

    def _unwrap(self, module: nn.Module) -> None:
        for name in _WRAPPED:
            vars(module).pop(name, None)


def _part(module: nn.Module, name: str) -> nn.Module:
    try:
        return module.get_submodule(name)
    except AttributeError:
        raise unknown_name(f"part of {type(module).__name__}", name, dict(module.named_children())) from None


@contextmanager
def _new_optimizers(seen: Callable[[Optimizer], None]) -> Iterator[None]:
    """Show each optimizer that is made to a function, before a scheduler, made from it, counts its groups."""
    init = Optimizer.__init__

    @functools.wraps(init)
    def show(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        seen(self)

    Optimizer.__init__ = show  # type: ignore[method-assign]
    try:
        yield
    finally:
        Optimizer.__init__ = init  # type: ignore[method-assign]


def _optimizers_in(value: Any) -> list[Optimizer]:
    """The optimizers in whatever `configure_optimizers` may return."""
    if isinstance(value, Optimizer):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [optimizer for part in parts for optimizer in _optimizers_in(part)]
