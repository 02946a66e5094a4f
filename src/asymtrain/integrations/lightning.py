"""Branches in Lightning: one callback, and the LightningModule stays as it is.

    setup                   training_step and configure_optimizers of this one object are wrapped
    configure_optimizers    attach, on the model's device; branch parameters join the optimizer's first group
    training_step           its loss + alpha * branches.loss(labels of the batch)
    fit end                 strip, and the wrappers go

Why wrap `training_step`: Lightning has no hook that may change the loss. A second backward in `on_before_backward`
would miss what Lightning does to the one loss it knows: division by the accumulated batches, scaling, DDP's reducer.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from asymtrain.branches import Branches, attach
from asymtrain.errors import UsageError, unknown_name
from asymtrain.gradients import AlignmentLog, alignment
from asymtrain.integrations._common import add_parameters, average_gradients, device_of, labels_of, losses_in_training

try:
    from lightning.fabric.utilities import move_data_to_device
    from lightning.pytorch import Callback
except ImportError as error:
    raise UsageError(f"Lightning does not import ({error}): pip install 'asymtrain[lightning]'") from error

_WRAPPED = ("training_step", "configure_optimizers")


class BranchesCallback(Callback):  # type: ignore[misc]  # Lightning is optional, and untyped where it is missing
    """Trains a LightningModule with branches, which are removed before `fit` returns.

    Checkpoints hold the module's weights under the module's own names, so they load into the bare module with
    `strict=True`; the branches' weights are in the callback's state, and `fit(ckpt_path=...)` resumes with them.

    Args:
        alpha: weight of the auxiliary loss. May be set between steps.
        branches: what `attach` gave for a part of the module; or leave it out and say where to attach:
        model: the part of the module to attach to, by name, as `training_step` calls it: `net` where that says
            `self.net(x)`. Default: the module itself, for `self(x)`.
        sample: what that part is called with. Default: the module's `example_input_array`.
        targets: a function from the batch to the labels.
        every: optimizer steps between logged branch losses and gradient cosines, which cost a backward for each of the
            two losses; 0 for none. Default: the trainer's `log_every_n_steps`.
        options: of `attach`: `at`, `classes`, `redundancy` and the rest.

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
        every: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if {"at", "classes"} - options.keys() if branches is None else options:
            raise UsageError("give either branches=attach(...), or at= and classes= for the callback to attach itself")
        self.alpha, self.branches, self.model, self.sample = alpha, branches, model, sample
        self.targets, self.every, self.options = targets, every, options
        self.given = branches is not None
        self.alignments = AlignmentLog()
        self._restored: Mapping[str, Tensor] | None = None

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
            raise UsageError(f"branches do not work in a model sharded by {strategy}: train with strategy='ddp'")
        own_step, own_optimizers = pl_module.training_step, pl_module.configure_optimizers

        @functools.wraps(own_step)
        def training_step(*args: Any, **kwargs: Any) -> Any:
            batch = args[0] if args else kwargs["batch"]
            return self._add(trainer, pl_module, own_step(*args, **kwargs), batch)

        @functools.wraps(own_optimizers)
        def configure_optimizers() -> Any:
            configured = own_optimizers()
            branches = self._attached(pl_module)
            for optimizer in _optimizers_in(configured):
                add_parameters(optimizer, branches.named_parameters())
            return configured

        pl_module.training_step, pl_module.configure_optimizers = training_step, configure_optimizers

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Between ranks the branches are not in DDP's hands."""
        if self.branches is not None:
            average_gradients(self.branches)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Strip, after the last checkpoint of the fit was written."""
        self._unwrap(pl_module)
        if self.branches is not None and not self.branches.stripped:
            self.branches.strip(trainer.optimizers)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave the module bare, and the state as a checkpoint on the way out must find it."""
        self._unwrap(pl_module)
        if self.branches is not None:
            self.branches.disconnect()

    def state_dict(self) -> dict[str, Any]:
        """The branches' weights while they are attached; nothing afterwards."""
        return {} if self.branches is None or self.branches.stripped else {"branches": self.branches.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the weights for the moment at which the branches are attached."""
        self._restored = state_dict.get("branches")

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
            self.branches = attach(target, sample=move_data_to_device(sample, device_of(target)), **self.options)
        if not self.branches.connected_to(target) and not any(map(self.branches.connected_to, module.modules())):
            raise UsageError("these branches are on no part of this module: attach again to train with branches")
        if self._restored is not None:
            self.branches.load_state_dict(self._restored)
            self._restored = None
        return self.branches.to(device_of(target))

    def _add(self, trainer: Any, module: Any, output: Any, batch: Any) -> Any:
        main = output["loss"] if isinstance(output, Mapping) else output
        if main is None or self.branches is None:
            return output
        targets = self.targets(batch)
        auxiliary, logged = losses_in_training(self.branches, targets, main)
        every = trainer.log_every_n_steps if self.every is None else self.every
        if every and auxiliary.requires_grad and (trainer.global_step + 1) % every == 0:
            measured = alignment(main, auxiliary, module)
            self.alignments.add(measured)
            if measured.cosine is not None:
                logged["gradient_cosine"] = torch.tensor(measured.cosine)
            module.log_dict(logged, on_step=True, on_epoch=False, batch_size=len(targets))
        total = main + self.alpha * auxiliary
        return {**output, "loss": total} if isinstance(output, Mapping) else total

    def _unwrap(self, module: nn.Module) -> None:
        for name in _WRAPPED:
            vars(module).pop(name, None)


def _part(module: nn.Module, name: str) -> nn.Module:
    try:
        return module.get_submodule(name)
    except AttributeError:
        raise unknown_name(f"part of {type(module).__name__}", name, dict(module.named_children())) from None


def _optimizers_in(value: Any) -> list[Optimizer]:
    """The optimizers in whatever `configure_optimizers` may return."""
    if isinstance(value, Optimizer):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [optimizer for part in parts for optimizer in _optimizers_in(part)]
