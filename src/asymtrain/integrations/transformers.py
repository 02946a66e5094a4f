"""Branches in the `Trainer` of Hugging Face transformers, and in its subclasses, such as those of TRL: one call.

trainer = Trainer(...)
add_branches(trainer, classes=4)
trainer.train()

add_branches       attach; `compute_loss`, `log` and `train` of this one trainer are wrapped
compute_loss       the trainer's own loss + the auxiliary loss, in training only
log                the losses of the branches and the gradient cosine appear beside `loss`
checkpoints        files of model and optimizer are as without branches; the branches have a file beside them
train end          strip
"""

import functools
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asymtrain.errors import UsageError, UsageWarning, how_to_install
from asymtrain.integrations._common import Adapter, sharded_error

try:
    from accelerate.utils import send_to_device
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint, has_length
except ImportError as error:
    raise UsageError(f"transformers does not import ({error}): {how_to_install('transformers')}") from error

FILE = "branches.pt"


def add_branches(
    trainer: Any,
    *,
    sample: object = None,
    targets: Callable[[Any], Tensor] | None = None,
    cosine: bool = True,
    **options: Any,
) -> "TrainerBranches":
    """Make a trainer train with branches, which are stripped when training ends.

    Args:
        trainer: a `Trainer` of transformers, or of any subclass, before it trains.
        sample: what the model is called with. Default: a batch of the training data.
        targets: a function from the batch to the targets of the branches. Default: the labels of the model: (B,) for
            sequences, (B, T) for tokens, where -100 does not count.
        cosine: whether the gradient cosine is logged too, which costs two backwards at each step that is logged.
        options: the other arguments of `attach`: `classes`, `strength`, `at` and the rest.

    Returns:
        the callback; its `branches` are the ones on the model.

    The trainer scales its own loss as usual, and the auxiliary loss is scaled in the same way. So the ratio of the two
    gradients does not depend on gradient accumulation.
    """
    if not isinstance(trainer, Trainer):
        raise UsageError(f"add_branches takes the trainer, got a {type(trainer).__name__}: add_branches(trainer, ...)")
    _refuse(trainer)
    return TrainerBranches(trainer, sample, targets, cosine, options)


class TrainerBranches(Adapter, TrainerCallback):  # type: ignore[misc]  # transformers is optional, and untyped where it is missing
    """Follows the training; made by `add_branches`."""

    def __init__(
        self,
        trainer: Any,
        sample: object,
        targets: Callable[[Any], Tensor] | None,
        cosine: bool,
        options: dict[str, Any],
    ) -> None:
        self.take(options, targets, cosine)
        self.trainer, self.sample = trainer, sample
        self.logged: dict[str, Any] = {}
        self.ignores_count: bool | None = None  # whether the main loss ignores the trainer's item count; None: unknown
        self.attach_to_model()
        for method in (self.compute_loss, self.log, self.train):
            name = method.__name__
            own = getattr(trainer, name)
            setattr(trainer, name, functools.wraps(own)(functools.partial(method, own)))
        trainer.add_callback(self)

    def attach_to_model(self) -> None:
        """Attach, with a batch of the training data as the default sample; random states do not change."""
        trainer, sample = self.trainer, self.sample
        if sample is None:
            with torch.random.fork_rng():
                sample = next(iter(trainer.get_train_dataloader()))
            if not isinstance(sample, Mapping):
                raise UsageError(
                    f"a batch of {type(trainer).__name__} is a {type(sample).__name__}, which is not what the model is "
                    "called with: branches work in trainers whose batches have the model's inputs and labels"
                )
        self.attach(trainer.model, send_to_device(sample, trainer.args.device))

    def compute_loss(self, own: Any, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        """The trainer's loss and, in training, the branches'."""
        if self.training is None or not (model.training and torch.is_grad_enabled()):
            return own(model, inputs, return_outputs=return_outputs, **kwargs)
        trainer, count = self.trainer, kwargs.get("num_items_in_batch")
        targets = self.targets(inputs)  # now, since label smoothing removes them from the inputs
        # If the main loss of a batch is a sum divided by the whole step's item count, the auxiliary loss must be too.
        weight = None if count is None else self.items_in(inputs) / torch.as_tensor(count)
        if weight is not None and trainer.args.average_tokens_across_devices:
            weight = weight * trainer.accelerator.num_processes
        count_tensor = None
        if weight is not None and (self.ignores_count is None or trainer.args.torch_compile):
            # A count with a gradient shows whether the loss uses it; a count without one would be compiled again.
            kwargs["num_items_in_batch"] = count_tensor = torch.as_tensor(count).float().requires_grad_()
        # Outputs only on request: TRL makes them in a second forward, after the loss's.
        result = own(model, inputs, return_outputs=return_outputs, **kwargs)
        main = result[0] if return_outputs else result
        if count_tensor is not None and self.ignores_count is None and main.requires_grad:
            self.ignores_count = (
                torch.autograd.grad(main, count_tensor, retain_graph=True, allow_unused=True)[0] is None
            )
        if self.ignores_count:
            weight = None
        total, logged = self.add(main, targets, trainer.model if self.is_logged() else None, weight)
        self.logged = logged or self.logged
        return (total, result[1]) if return_outputs else total

    def is_logged(self) -> bool:
        """Whether the trainer logs after this batch."""
        args, state, step = self.trainer.args, self.trainer.state, self.trainer.state.global_step + 1
        if args.logging_strategy == "no" or not self.trainer.accelerator.sync_gradients:
            return False
        every = state.logging_steps
        if args.logging_strategy == "epoch":
            loader = self.trainer.callback_handler.train_dataloader
            batches = len(loader) if has_length(loader) else state.max_steps * args.gradient_accumulation_steps
            every = math.ceil(batches / args.gradient_accumulation_steps)
        return bool(step % every == 0 or (step == 1 and args.logging_first_step))

    def items_in(self, inputs: Any) -> Tensor:
        """The labels of a batch that its main loss sums over."""
        assert self.branches is not None
        labels: Any = inputs.get("shift_labels")
        if labels is None:
            labels = inputs["labels"]
            labels = labels[:, self.branches.settings.shift :] if labels.ndim > 1 else labels
        count: Tensor = labels.ne(-100).sum()
        return count

    def log(self, own: Any, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log what the trainer logs; next to the training loss, its latest parts."""
        if "loss" in logs and self.logged:
            logs = logs | {name: float(value) for name, value in self.logged.items()}
            self.logged = {}
        own(logs, *args, **kwargs)

    def train(self, own: Any, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train; from a checkpoint with its branches, or with new ones if it has none."""
        folder: Any = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.trainer.args.output_dir)
        self.restored = {}
        if folder and (Path(folder) / FILE).exists():
            self.restored = torch.load(Path(folder) / FILE, map_location="cpu", weights_only=True)
        elif folder:
            warnings.warn(f"{folder} has no {FILE}: the branches are new ones", UsageWarning, stacklevel=3)
        try:
            if self.training is None:  # an earlier training had them
                self.attach_to_model()
            elif self.restored:
                self.training.load_state_dict(self.restored["branches"])
            return own(resume_from_checkpoint, *args, **kwargs)
        finally:
            self.strip()  # also if the training failed

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Put the branches into the optimizer, which now has the checkpoint's state."""
        self.join(optimizer, state.global_step / max(1, state.max_steps))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Clear the branches' gradients, since the trainer clears only its model's, and update the strength."""
        if self.training is not None:
            self.training.zero_grad()
            self.step(state.global_step / state.max_steps)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the branches beside the checkpoint that was written."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.is_dir() and self.training is not None:
            torch.save(self.state_dict(), folder / FILE)


def _refuse(trainer: Any) -> None:
    """Refuse trainers that cannot train with branches: of several devices, only DDP calls the model with the hooks."""
    if trainer.model_init is not None:
        raise UsageError("with model_init= the trainer trains another model: give it the model, Trainer(model=...)")
    if any(isinstance(callback, TrainerBranches) for callback in trainer.callback_handler.callbacks):
        raise UsageError("this trainer has branches already: make a new Trainer for others")
    if trainer.args.n_gpu > 1:
        raise UsageError(
            f"the trainer would copy the model to {trainer.args.n_gpu} GPUs in each step, and copies have no branches: "
            "start the script with torchrun, or make one GPU visible (CUDA_VISIBLE_DEVICES=0)"
        )
    sharded = [kind for kind in ("fsdp", "deepspeed") if getattr(trainer, f"is_{kind}_enabled", False)]
    if sharded:
        raise sharded_error(sharded[0], "DDP (torchrun)")
