"""Branches in the `Trainer` of Hugging Face transformers: a mixin, so that it goes onto any subclass of it.

    class BranchesTrainer(BranchesMixin, Trainer): ...

    compute_loss        the loss of the model + alpha * branches.loss(labels), in training alone
    create_optimizer    branch parameters join the optimizer's first group
    log                 the branches' losses and the gradient cosine stand beside `loss`
    checkpoints         the model's files are its own; the branches lie beside them in `branches.safetensors`
    train end           strip

Works with transformers 5 and 4.57.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asymtrain.branches import Branches
from asymtrain.errors import UsageError
from asymtrain.gradients import AlignmentLog, alignment
from asymtrain.integrations._common import add_parameters, average_gradients, device_of, labels_of, losses_in_training

try:
    from safetensors.torch import load_file, save_file
    from transformers import TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as error:
    raise UsageError(f"transformers does not import ({error}): pip install 'asymtrain[transformers]'") from error

FILE = "branches.safetensors"
_Trainer: Any = object  # what the mixin stands before


class BranchesMixin(_Trainer):  # type: ignore[misc]  # its methods are found in the class that uses it
    """Before `Trainer` in the bases of a class: `class BranchesTrainer(BranchesMixin, Trainer): ...`.

    Args:
        branches: what `attach` gave for the model, or for a part of it that every forward calls.
        alpha: weight of the auxiliary loss. May be set between steps.
        targets: a function from the inputs to the labels of the branches. By default those of the model: (B,) for
            sequences; (B, T) for tokens are flattened, for branches whose `pool` gives a row for each token, and -100
            is left out.
        cosine: whether the gradient cosine is measured at the steps that are logged. It costs a backward for each of
            the two losses at those steps.

    Attributes:
        alignments: the log of what was measured; `alignments.summary()`.

    With gradient accumulation every batch has its own mean: the count over all of them that newer transformers hand to
    the model divides the losses of some models and not of others, and alpha would mean something else for each.
    """

    def __init__(
        self,
        *args: Any,
        branches: Branches,
        alpha: float,
        targets: Callable[[Any], Tensor] = labels_of,
        cosine: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if not any(map(branches.connected_to, self.model.modules())):
            raise UsageError("these branches are on no part of this model: branches=attach(model, ...)")
        _refuse_many_devices(self)
        if kwargs.get("compute_loss_func") is not None:
            raise UsageError("compute_loss_func scales its loss in a way of its own: override compute_loss instead")
        self.branches, self.alpha, self.targets, self.cosine = branches, alpha, targets, cosine
        self.branches.to(device_of(self.model))
        self.alignments = AlignmentLog()
        self.model_accepts_loss_kwargs = False
        self._sums: dict[str, Tensor] = {}
        self._batches = 0
        self.add_callback(_AlongTheWay(branches))

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        """The model's loss and, in training, the branches'."""
        if self.branches.stripped or not (model.training and torch.is_grad_enabled()):
            return super().compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)
        targets = self.targets(inputs)  # before label smoothing takes them out of the inputs
        main, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        auxiliary, losses = losses_in_training(self.branches, targets, main)
        for name, value in losses.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._batches += 1
        every = self.state.logging_steps
        if self.cosine and auxiliary.requires_grad and every and (self.state.global_step + 1) % every == 0:
            self.alignments.add(alignment(main, auxiliary, self.model))
        total = main + self.alpha * auxiliary
        return (total, outputs) if return_outputs else total

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """A step, after which the branches' gradients are equal on all ranks: they are not in DDP's hands."""
        loss: Tensor = super().training_step(*args, **kwargs)
        average_gradients(self.branches)
        return loss

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """The optimizer, own or given, with the branches' parameters."""
        optimizer = super().create_optimizer(*args, **kwargs)
        if not self.branches.stripped:
            add_parameters(optimizer, self.branches.named_parameters())
        return optimizer

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train; from a checkpoint, with the branches that lie in it."""
        folder: Any = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)
        if folder and (Path(folder) / FILE).exists():
            self.branches.load_state_dict(load_file(Path(folder) / FILE))
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """What the trainer logs; beside its training loss, means of the branches' losses since the last time."""
        if "loss" in logs and self._batches:
            logs = logs | {name: float(value) / self._batches for name, value in self._sums.items()}
            if self.alignments.seen and (latest := self.alignments.seen[-1].cosine) is not None:
                logs["gradient_cosine"] = latest
            self._sums, self._batches = {}, 0
        super().log(logs, *args, **kwargs)


def _refuse_many_devices(trainer: Any) -> None:
    """Of the trainer's ways to use several devices, DDP is the one whose forward calls the model that has the hooks."""
    if trainer.args.n_gpu > 1:
        raise UsageError(
            f"the trainer would copy the model to {trainer.args.n_gpu} GPUs in each step, and copies have no branches: "
            "start the script with torchrun, or make one GPU visible (CUDA_VISIBLE_DEVICES=0)"
        )
    sharded = [kind for kind in ("fsdp", "deepspeed") if getattr(trainer, f"is_{kind}_enabled", False)]
    if sharded:
        raise UsageError(f"branches do not work in a model sharded by {sharded[0]}: train with DDP (torchrun)")


class _AlongTheWay(TrainerCallback):  # type: ignore[misc]  # transformers is optional, and untyped where it is missing
    """Clears the branches' gradients, writes them beside each checkpoint, and strips them when training ends."""

    def __init__(self, branches: Branches) -> None:
        self.branches = branches

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The trainer clears the gradients of its model, not those of its optimizer."""
        self.branches.zero_grad()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint was written."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.is_dir() and not self.branches.stripped:
            save_file({name: value.contiguous() for name, value in self.branches.state_dict().items()}, folder / FILE)

    def on_train_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """The best model, where that was asked for, is loaded already."""
        if not self.branches.stripped:
            self.branches.strip(optimizer)
