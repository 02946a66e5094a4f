"""Branches in the `Trainer` of Hugging Face transformers: `BranchesTrainer`, and a mixin for any subclass of `Trainer`.

    class MyTrainer(BranchesMixin, Seq2SeqTrainer): ...

    compute_loss        the loss of the model + alpha * branches.loss(labels), in training alone
    create_optimizer    branch parameters join the optimizer's first group, or get one with `branch_options`
    log                 the two losses, those of the branches and the gradient cosine stand beside `loss`
    checkpoints         the model's and the optimizer's files are those of training without branches; theirs lie beside
    `until`, train end  strip

Works with transformers 5 and 4.57.
"""

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asymtrain.branches import Branches, attach
from asymtrain.errors import UsageError, UsageWarning, how_to_install
from asymtrain.gradients import alignment
from asymtrain.integrations._common import Adapter, OptimizerPart, add_group, device_of, labels_of, named_losses

try:
    from safetensors.torch import load_file, save_file
    from transformers import TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as error:
    raise UsageError(f"transformers does not import ({error}): {how_to_install('transformers')}") from error

FILE = "branches.safetensors"
OPTIMIZER_FILE = "branches_optimizer.pt"
_Trainer: Any = object  # what the mixin stands before
_ATTACH_OPTIONS = inspect.signature(attach).parameters.keys() - {"model"}


class BranchesMixin(Adapter, _Trainer):  # type: ignore[misc]  # its methods are found in the class that uses it
    """Before `Trainer`, or a subclass of it, in the bases of a class; `BranchesTrainer` is that class for `Trainer`.

    Args:
        branches: what `attach` gave for the model, or for a part of it that every forward calls; or leave it out, and
            give the arguments of `attach`: `classes`, `at` and the rest. `sample` is then a batch of the training data.
        alpha: weight of the auxiliary loss. May be set between steps. At 0 training is that of the trainer alone.
        targets: a function from the inputs to the targets of the branches. By default the labels of the model: (B,) for
            sequences, (B, T) for tokens, and -100 is left out. Where the branches' `pool` is a function, labels of
            tokens are flattened to the row for each token that it gives.
        until: when branches end: a share of the training (0.5) or a number of optimizer steps. They are stripped
            then, and the rest of the training is without them. Default: at the end.
        branch_options: options of the optimizer for the branches' parameters, such as `lr` and `weight_decay`, which
            then have a parameter group of their own.
        every: optimizer steps between gradient cosines, which cost a backward for each of the two losses; 0 for none.
            Default: those that are logged.

    Attributes:
        alignments: the log of what was measured; `alignments.summary()`.

    The loss of the model is left as the trainer scales it. The auxiliary loss of an optimizer step is the mean over all
    targets in it: its batches count by their targets (those of -100 left out), as though they were one batch. Some
    models (BERT for sequences) accept the trainer's count of targets and ignore it: the trainer then adds up the means
    of the accumulated batches, and so it does with the auxiliary loss. So alpha does not depend on gradient
    accumulation.

    Branches are of one training: `train` strips them at its end, and warns where it is called again.
    """

    branches: Branches

    def __init__(
        self,
        *args: Any,
        alpha: float,
        branches: Branches | None = None,
        targets: Callable[[Any], Tensor] = labels_of,
        until: float | None = None,
        branch_options: Mapping[str, Any] | None = None,
        every: int | None = None,
        **kwargs: Any,
    ) -> None:
        options = {name: kwargs.pop(name) for name in _ATTACH_OPTIONS & kwargs.keys()}
        self._take_settings(alpha, branches, targets, until, branch_options, options)
        super().__init__(*args, **kwargs)
        if branches is None:
            self.branches = self._attach(self.model, self._sample(options))
        if not any(map(self.branches.connected_to, self.model.modules())):
            raise UsageError("these branches are on no part of this model: branches=attach(model, ...)")
        _refuse_many_devices(self)
        if branch_options and self.lr_scheduler is not None:
            raise UsageError(
                "branch_options make a parameter group, and the scheduler that you gave has counted the groups: give "
                "optimizers=(optimizer, None), or put branches.parameters() into a group of that optimizer yourself"
            )
        self.every = every
        self.branches.to(device_of(self.model))
        self._part: OptimizerPart | None = None
        self._resumed: Mapping[str, Any] | None = None  # the branches' part of the optimizer in a checkpoint
        self._count: Tensor | None = None  # targets in the batches of this optimizer step
        self._counts_items: bool | None = None  # whether the main loss depends on the trainer's count; None: not known
        self._sums: dict[str, Tensor] = {}
        self._logged = 0  # the step at which the sums began
        self.add_callback(_AlongTheWay(self))

    def _sample(self, options: Mapping[str, Any]) -> Any:
        """A batch for `attach`: the one that was given, or the first of the training data; no random state moves."""
        if "sample" in options:
            return self._prepare_inputs(options["sample"])
        with torch.random.fork_rng():
            return self._prepare_inputs(next(iter(self.get_train_dataloader())))

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """The batches of an optimizer step, whose targets are counted."""
        samples, items = super().get_batch_samples(*args, **kwargs)
        if samples and not self.branches.stripped:
            # Copies, of the mappings alone: `targets` may take an entry out that the model does not know.
            batches = [copy.copy(batch) for batch in samples]
            counts = [self._count_targets(self._targets_in(batch), batch) for batch in batches]
            self._count = torch.stack(counts).sum().to(self.args.device)
            if self.args.world_size > 1 and self.args.average_tokens_across_devices:
                # As the trainer counts the items of the model's loss: ranks count by their targets too.
                self._count = self.accelerator.gather(self._count).double().mean()
        return samples, items

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        """The model's loss and, in training, the branches'."""
        if self.branches.stripped or not (model.training and torch.is_grad_enabled()):
            return super().compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)
        targets = self._targets_in(inputs)  # before label smoothing takes them out of the inputs
        main, outputs, is_mean = self._main_loss(model, inputs, kwargs)
        auxiliary, losses = self._losses(targets, main)
        batches = self.current_gradient_accumulation_steps
        # Where the main loss is the mean of this batch alone, it counts as often as there are batches; the trainer
        # divides the sum by their number, or does not.
        weight: Any = 1.0
        if self._count is not None:
            share = self._count_targets(targets, inputs).to(main.device) / self._count.clamp(min=1)
            weight = (share * batches if is_mean else share).to(auxiliary.dtype)
        auxiliary = weight * auxiliary
        divided = 1 if self._is_scaled(kwargs.get("num_items_in_batch")) else batches
        self._keep(main, auxiliary, {layer: weight * loss for layer, loss in losses.items()}, divided)
        every = self.state.logging_steps if self.every is None else self.every
        if auxiliary.requires_grad and every and (self.state.global_step + 1) % every == 0:
            self.alignments.add(alignment(main, auxiliary, self.model))
        total = self._total(main, auxiliary)
        return (total, outputs) if return_outputs else total

    def _main_loss(self, model: Any, inputs: Any, kwargs: dict[str, Any]) -> tuple[Tensor, Any, bool]:
        """The trainer's own loss; the model's outputs; whether that loss is the mean of this batch alone."""
        items, told = kwargs.get("num_items_in_batch"), getattr(self, "loss_is_scaled_for_ga", None)
        accumulated = items is not None and self.current_gradient_accumulation_steps > 1
        ask = accumulated and told is None and self._counts_items is None
        count = torch.as_tensor(items).float().requires_grad_() if ask else None
        if count is not None:
            # A count with a gradient tells whether the loss depends on it. Only the first accumulated batch pays.
            items, kwargs = count, {**kwargs, "num_items_in_batch": count}
        main, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if count is not None:
            found = torch.autograd.grad(main, count, retain_graph=True, allow_unused=True) if main.requires_grad else ()
            self._counts_items = any(gradient is not None for gradient in found)
        return main, outputs, not self._is_scaled(items) or self._counts_items is False

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """A step, after which the branches' gradients are equal on all ranks: they are not in DDP's hands."""
        loss: Tensor = super().training_step(*args, **kwargs)
        self._average_gradients()
        return loss

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """The optimizer, own or given, with the branches' parameters."""
        optimizer = super().create_optimizer(*args, **kwargs)
        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate's wrapper, from a training that was interrupted
        if self.branches.stripped or (self._part is not None and self._part.optimizer is inner):
            return optimizer
        if self.branch_options:
            add_group(inner, self.branches, self.branch_options)
        self._part = self._join(inner)
        return optimizer

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train; from a checkpoint, with the branches that lie in it, or with new ones where there are none."""
        if self.branches.stripped:
            warnings.warn(
                "the branches were stripped at the end of an earlier training, and this one goes on without them: to "
                "train with branches again, attach anew and make a new trainer",
                UsageWarning,
                stacklevel=2,
            )
        folder: Any = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)
        if folder and (Path(folder) / FILE).exists():
            self.branches.load_state_dict(load_file(Path(folder) / FILE))
            self._resumed = torch.load(Path(folder) / OPTIMIZER_FILE, map_location="cpu", weights_only=True)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """What the trainer logs; beside its training loss, the parts of it, as means over the steps since."""
        if "loss" in logs and self._sums:
            steps = max(1, self.state.global_step - self._logged)
            logs = logs | {name: float(value) / steps for name, value in self._sums.items()}
            if self.alignments.seen and (latest := self.alignments.seen[-1].cosine) is not None:
                logs["gradient_cosine"] = latest
            self._sums = {}
        super().log(logs, *args, **kwargs)

    def _count_targets(self, targets: Tensor, inputs: Any) -> Tensor:
        """The targets that count in the loss: neither ignored, nor masked, nor shifted out."""
        if targets.is_floating_point():
            return torch.tensor(targets.numel(), device=targets.device)
        count = targets.ne(self.branches.settings.ignore_index)
        if targets.ndim > 1:
            mask = None if self.branches.mask is None else self.branches.mask(**inputs)
            if isinstance(mask, Tensor) and mask.shape == targets.shape:
                count = count & mask.to(count.device).bool()
            count = count[:, self.branches.settings.shift :]
        return count.sum()

    def _is_scaled(self, items: object) -> bool:
        """Whether the trainer takes the loss as it is; otherwise it divides it by the number of batches."""
        told = getattr(self, "loss_is_scaled_for_ga", None)
        return bool(
            (self.model_accepts_loss_kwargs and items is not None) or self.compute_loss_func is not None
            if told is None
            else told
        )

    def _keep(self, main: Tensor, auxiliary: Tensor, losses: Mapping[str, Tensor], batches: int) -> None:
        if not self._sums:
            self._logged = self.state.global_step
        for name, value in named_losses(main, auxiliary, losses).items():
            self._sums[name] = self._sums.get(name, 0.0) + value / batches

    def _average_sums(self) -> None:
        """The mean over ranks, as the trainer logs its loss. Where all ranks are, which cannot be told of `log`."""
        if self.args.world_size > 1 and self._sums:
            # A rank may have skipped a layer.
            names = ["main_loss", "auxiliary_loss", *(f"auxiliary_loss/{layer}" for layer in self.branches.layers)]
            zero = torch.zeros_like(self._sums["main_loss"])
            values = torch.stack([self._sums.get(name, zero).float() for name in names])
            self._sums = dict(zip(names, self.accelerator.gather(values[None]).mean(0).unbind(), strict=True))


def __getattr__(name: str) -> Any:
    """`BranchesTrainer`, when it is first asked for: the module of `Trainer` takes seconds to load."""
    if name != "BranchesTrainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformers import Trainer

    trainer = type(name, (BranchesMixin, Trainer), {"__module__": __name__, "__doc__": BranchesMixin.__doc__})
    return globals().setdefault(name, trainer)


def _refuse_many_devices(trainer: Any) -> None:
    """Of the trainer's ways to use several devices, DDP is the one whose forward calls the model that has the hooks."""
    if trainer.args.n_gpu > 1:
        raise UsageError(
            f"the trainer would copy the model to {trainer.args.n_gpu} GPUs in each step, and copies have no branches: "
            "start the script with torchrun, or make one GPU visible (CUDA_VISIBLE_DEVICES=0)"
        )
    sharded = [kind for kind in ("fsdp", "deepspeed") if getattr(trainer, f"is_{kind}_enabled", False)]
    if sharded:
        raise UsageError(
            f"branches do not work in a model sharded by {sharded[0]}: train with DDP (torchrun), or in a loop of your "
            "own with fully_shard(WithBranches(model, branches))"
        )


class _AlongTheWay(TrainerCallback):  # type: ignore[misc]  # transformers is optional, and untyped where it is missing
    """Clears the branches' gradients, writes them beside each checkpoint, and strips them at their end."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.branches = trainer, trainer.branches

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """A training that is resumed goes on with the branches' part of the optimizer, or has left them behind."""
        if self.trainer._resumed is not None and not self.branches.stripped:
            self.trainer._part.load_state_dict(self.trainer._resumed)
        self.trainer._end_within(state.max_steps)
        self.trainer._strip_at(state.global_step, optimizer)

    def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """The trainer clears the gradients of its model, not those of its optimizer."""
        self.branches.zero_grad()
        self.trainer._strip_at(state.global_step, optimizer)
        if control.should_log:
            self.trainer._average_sums()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The trainer may log here instead."""
        if control.should_log:
            self.trainer._average_sums()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint was written."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.is_dir() and not self.branches.stripped:
            save_file({name: value.contiguous() for name, value in self.branches.state_dict().items()}, folder / FILE)
            torch.save(self.trainer._part.state_dict(), folder / OPTIMIZER_FILE)

    def on_train_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """The best model, where that was asked for, is loaded already."""
        self.trainer._strip_at(math.inf, optimizer)
        if self.trainer._part is not None:
            self.trainer._part.remove()
