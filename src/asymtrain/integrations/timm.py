"""Branches in timm's training script: a task that wraps the script's task.

    task = BranchTask(ClassificationTask(...), sample=..., classes=...)     in train.py, where the task is made
    task.strip(optimizer)                                                   at its end

timm builds the optimizer from `get_trainable_module()`, the model and its branches. It evaluates, averages (EMA) and
saves `get_eval_model()`, the model alone.
"""

from typing import Any

import torch
from torch import Tensor, nn

from asymtrain.branches import Criterion, attach, clean
from asymtrain.errors import UsageError

try:
    from timm.models import group_parameters
    from timm.task import TrainingTask
    from timm.utils import unwrap_model
except ImportError as error:
    raise UsageError(
        f"timm does not import ({error}): it needs a torchvision that imports beside your torch"
    ) from error


class BranchTask(TrainingTask):  # type: ignore[misc]  # timm is optional, and untyped where it is missing
    """A task of timm with branches on its model.

    Args:
        task: any `timm.task.TrainingTask`, before it is compiled and distributed.
        sample: a batch of images.
        options: the other arguments of `attach`: `classes`, `strength`, `at` and the rest.

    Attributes:
        branches: the branches on the model. With a strength that is a function of progress, the script calls
            `task.branches.step(epoch / num_epochs)`.
        criterion: its `parts` are the losses of the latest step by name, for a log.

    Checkpoints hold the model alone as `state_dict`, and the branches in `task_state`. Gradients are clipped as the
    task clips them, without those of the branches.
    """

    def __init__(self, task: TrainingTask, *, sample: object, **options: Any) -> None:
        super().__init__(device=task.device, dtype=task.dtype, verbose=task.verbose)
        self.branches = attach(unwrap_model(task.get_trainable_module()), sample, **options)
        self.task, self.criterion = task, Criterion(self.branches)

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The task's result, with the auxiliary loss added to its loss, and as an entry of its own."""
        result = self.task(input, target)
        if self.branches.stripped or not torch.is_grad_enabled():
            return result
        total, auxiliary = self.criterion.add(result["loss"], target)
        return {**result, "loss": total, "auxiliary_loss": auxiliary.detach()}

    def strip(self, optimizer: Any = None) -> None:
        """Take the branches off the model, and out of the optimizer."""
        self.branches.strip(optimizer)
        clean(self.task)  # copies of the model (EMA) have hooks that do nothing

    def get_trainable_module(self, ema: bool = False) -> nn.Module | None:
        """What the optimizer trains: the model and its branches. The EMA has the model alone."""
        module = self.task.get_trainable_module(ema=ema)
        return module if ema or self.branches.stripped else _Both(module, self.branches)

    def get_task_state(self, module: Any = None, ema: bool = False) -> dict[str, Any]:
        """The state that a checkpoint holds beside the model."""
        state = self.task.get_task_state(ema=ema)
        return state if ema or self.branches.stripped else {**state, "branches": self.branches.state_dict()}

    def load_task_state(self, state: Any, strict: bool = True, module: Any = None, ema: bool = False) -> None:
        """Load the state that a checkpoint holds beside the model; if it has no branches, the new ones stay."""
        rest = dict(state or {})
        branches = rest.pop("branches", None)
        if branches is not None and not ema:
            self.branches.load_state_dict(branches, strict)
        self.task.load_task_state(rest, strict=strict, ema=ema)

    def prepare_distributed(self, device_ids: Any = None, **options: Any) -> "BranchTask":
        """Like the task's; the branches' gradients are averaged outside DDP."""
        self.task.prepare_distributed(device_ids=device_ids, **options)
        return self

    def get_eval_model(self, module: Any = None, ema: bool = False) -> Any:
        """Like the task's: the model alone."""
        return self.task.get_eval_model(ema=ema)


def _of_the_task(name: str) -> Any:
    def method(self: BranchTask, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.task, name)(*args, **kwargs)

    method.__name__, method.__doc__ = name, "As the task's."
    return method


_MADE_OF_OTHERS = {"has_ema", "get_checkpoint_state", "load_checkpoint_state"}
for _name in set(vars(TrainingTask)) - set(vars(BranchTask)) - _MADE_OF_OTHERS:
    if not _name.startswith("_"):
        setattr(BranchTask, _name, _of_the_task(_name))


class _Both(nn.Module):
    """A model and its branches, as a module from which timm makes parameter groups."""

    def __init__(self, model: nn.Module, branches: nn.Module) -> None:
        super().__init__()
        self.model, self.branches = model, branches

    def no_weight_decay(self) -> set[str]:
        """The model's parameters without weight decay, by their names in this module."""
        own = getattr(unwrap_model(self.model), "no_weight_decay", set)
        return {f"model.{name}" for name in own()}

    def group_matcher(self, coarse: bool = False) -> Any:
        """The layer of a parameter, for learning rates by depth: branches are as deep as the model's head."""
        model = unwrap_model(self.model)
        layers = group_parameters(model, model.group_matcher(coarse=coarse), reverse=True)
        deepest = max(layers.values(), default=0)
        return lambda name: layers.get(name.removeprefix("model."), deepest)
