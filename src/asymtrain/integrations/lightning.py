"""Branches in Lightning: one callback; the LightningModule does not change.

    setup             training_step of this one object is wrapped
    fit start         attach, on the model's device
    train start       the branches' parameters join the optimizer, which has the state of the checkpoint by now
    training_step     its loss + the auxiliary loss
    fit end           strip, and remove the wrapper

Why wrap `training_step`: Lightning has no hook that may change the loss. A second backward in `on_before_backward`
would miss what Lightning does with the main loss: division by the accumulated batches, scaling, DDP's reducer.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from asymtrain.errors import UsageError, how_to_install
from asymtrain.integrations._common import Adapter, part_of, sharded_error

try:
    from lightning.fabric.utilities import move_data_to_device
    from lightning.pytorch import Callback
except ImportError as error:
    raise UsageError(f"Lightning does not import ({error}): {how_to_install('lightning')}") from error


class BranchesCallback(Adapter, Callback):  # type: ignore[misc]  # Lightning is optional, and untyped where it is missing
    """Trains a LightningModule with branches, which are removed before `fit` returns.

    Checkpoints hold the module's weights under the module's own names, so they load into the bare module with
    `strict=True`; the branches' weights and their part of the optimizer are in the callback's state. So
    `fit(ckpt_path=...)` resumes with them, and without the callback it resumes without branches.

    Args:
        model: the part of the module to attach to, by name, as `training_step` calls it: `net` where that says
            `self.net(x)`. Default: the module itself, for `self(x)`.
        sample: what that part is called with. Default: the module's `example_input_array`.
        targets: a function from the batch to the targets of the branches. Default: its labels.
        cosine: whether the gradient cosine is logged too, which costs two backwards at each step that is logged.
        options: the other arguments of `attach`: `classes`, `strength`, `at` and the rest.
    """

    def __init__(
        self,
        *,
        model: str = "",
        sample: object = None,
        targets: Callable[[Any], Tensor] | None = None,
        cosine: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.take(options, targets, cosine)
        self.model, self.sample = model, sample
        self.step_before: dict[str, Any] | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Wrap `training_step`."""
        if stage != "fit":
            return
        if not pl_module.automatic_optimization:
            raise UsageError(
                "with manual optimization training_step calls backward itself: attach there, and add branches.loss(y) "
                "to its loss"
            )
        strategy = type(trainer.strategy).__name__
        if any(kind in strategy for kind in ("FSDP", "DeepSpeed", "ModelParallel")):
            raise sharded_error(strategy, "strategy='ddp'")
        own = pl_module.training_step
        self.step_before = {name: step for name, step in vars(pl_module).items() if name == "training_step"}

        # Unwrapped, since Lightning looks through one wrapper for the step's arguments, and its compiler adds another.
        @functools.wraps(inspect.unwrap(own))
        def training_step(*args: Any, **kwargs: Any) -> Any:
            batch = args[0] if args else kwargs["batch"]
            return self.with_auxiliary(trainer, pl_module, own(*args, **kwargs), batch)

        pl_module.training_step = training_step

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach, with the checkpoint's state."""
        sample = getattr(pl_module, "example_input_array", None) if self.sample is None else self.sample
        if sample is None:
            raise UsageError("attach needs a batch of inputs: give sample=, or set the module's example_input_array")
        if isinstance(sample, list):
            sample = tuple(sample)  # a tuple of arguments, as `attach` takes it
        sample = trainer.precision_plugin.convert_input(sample)  # as Lightning does with batches, for half precision
        self.attach(part_of(pl_module, self.model), move_data_to_device(sample, pl_module.device))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the branches into the optimizer, which now has its state."""
        self.steps = trainer.estimated_stepping_batches
        self.join(trainer.optimizers[0], trainer.global_step / self.steps)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Update the strength."""
        self.step(trainer.global_step / self.steps)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Strip, after the fit's last checkpoint is written."""
        self.unwrap(pl_module)
        self.strip()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Take wrapper and hooks off the module, but keep the state for a checkpoint that may follow."""
        self.unwrap(pl_module)
        if self.training is not None:
            self.training.disconnect()

    def unwrap(self, module: Any) -> None:
        """Restore the module's `training_step`, which is an instance attribute if Lightning has compiled it."""
        if self.step_before is not None:
            vars(module).pop("training_step")
            vars(module).update(self.step_before)
            self.step_before = None

    def with_auxiliary(self, trainer: Any, module: Any, output: Any, batch: Any) -> Any:
        """What `training_step` returned, with the auxiliary loss in its loss."""
        main = output["loss"] if isinstance(output, Mapping) else output
        if main is None or self.training is None or not torch.is_grad_enabled():
            return output
        every, targets = trainer.log_every_n_steps, self.targets(batch)
        logs = every and (trainer.global_step + 1) % every == 0
        total, logged = self.add(main, targets, module if logs else None)
        if logged:
            module.log_dict(logged, on_step=True, on_epoch=False, batch_size=len(targets))
        return {**output, "loss": total} if isinstance(output, Mapping) else total
