"""What the adapters share: their settings, labels, losses, parameters in an optimizer, gradients between ranks."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from asymtrain.branches import Branches, attach
from asymtrain.errors import UsageError, unknown_name
from asymtrain.gradients import AlignmentLog

LABELS = ("labels", "label", "targets", "target", "y")


class Adapter:
    """Settings that every adapter takes, the auxiliary loss of a batch by them, and where the branches end."""

    branches: Branches | None  # None until a callback has attached them

    def _take_settings(
        self,
        alpha: float,
        branches: Branches | None,
        targets: Callable[[Any], Tensor],
        until: float | None,
        branch_options: Mapping[str, Any] | None,
        attach_options: Mapping[str, Any],
    ) -> None:
        check_settings(alpha, until, targets)
        enough = not {"classes", "objective"}.isdisjoint(attach_options)
        if attach_options if branches is not None else not enough:
            raise UsageError("give either branches=attach(...), or the arguments of attach, such as classes=10")
        self.attach_options = attach_options
        self.alpha, self.branches, self.targets = alpha, branches, targets
        self.until, self.branch_options = until, branch_options
        self.alignments = AlignmentLog()
        self._last_step = math.inf  # how many optimizer steps have branches

    def _attach(self, model: nn.Module, sample: object) -> Branches:
        """Attach by the arguments that were given, of which `sample` is settled here."""
        return attach(model, **{**self.attach_options, "sample": sample})

    def _targets_in(self, batch: Any) -> Tensor:
        assert self.branches is not None
        return targets_of(batch, self.targets, self.branches)

    def _losses(self, targets: Tensor, main: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The auxiliary loss, with its strength, in the model's latest forward; and each layer's loss.

        Handed over as logits, which the branches do not check for drift between ranks: see `_average_gradients`.
        """
        assert self.branches is not None
        losses = self.branches.losses(targets, logits=self.branches.take())
        return self.branches.combine(losses, main=main), losses

    def _total(self, main: Tensor, auxiliary: Tensor) -> Tensor:
        """The loss to train on.

        With alpha 0 nothing is added, not even zeros: clipping by the norm of all gradients would see them.
        """
        return main + self.alpha * auxiliary if self.alpha else main

    def _join(self, optimizer: Any) -> "OptimizerPart":
        """Put the branches' parameters into an optimizer, where they are not in a group of their own already."""
        assert self.branches is not None
        part = OptimizerPart(optimizer, self.branches)
        add_parameters(optimizer, self.branches.named_parameters())
        return part

    def _end_within(self, steps: float) -> None:
        """Note where the branches end in a training of so many optimizer steps."""
        self._last_step = last_step(self.until, steps)

    def _average_gradients(self) -> None:
        """Make the branches' gradients equal on all ranks, as DDP does for the model that it wraps.

        After every backward: the mean of what was averaged before stays what it was, so accumulation needs no care.
        """
        if self.branches is None or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return
        ranks = torch.distributed.get_world_size()
        for value in self.branches.parameters() if ranks > 1 else ():
            if value.grad is not None:
                torch.distributed.all_reduce(value.grad)
                value.grad.div_(ranks)

    def _strip_at(self, step: float, optimizers: Any) -> None:
        """Strip where the branches have ended by this step."""
        if step >= self._last_step and self.branches is not None and not self.branches.stripped:
            self.branches.strip(optimizers)


def labels_of(batch: Any) -> Tensor:
    """The labels of a batch: its entry of that name, or the second of a pair."""
    labels: Any = None
    if isinstance(batch, Mapping):
        labels = next((batch[name] for name in LABELS if name in batch), None)
    elif isinstance(batch, Sequence) and len(batch) == 2:
        labels = batch[1]
    else:
        labels = next((getattr(batch, name) for name in LABELS if hasattr(batch, name)), None)
    if not isinstance(labels, Tensor):
        raise UsageError(
            f"no labels were found in a batch that is a {type(batch).__name__}: give targets=, a function from the "
            "batch to class indices"
        )
    return labels


def named_losses(main: Tensor, auxiliary: Tensor, losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Losses under the names by which they are logged."""
    named = {"main_loss": main, "auxiliary_loss": auxiliary}
    named |= {f"auxiliary_loss/{layer}": loss for layer, loss in losses.items()}
    return {name: loss.detach() for name, loss in named.items()}


def targets_of(batch: Any, targets: Callable[[Any], Tensor], branches: Branches) -> Tensor:
    """The targets of the branches in a batch.

    Labels with a position axis (B, T) become one row for each token where the branches have a `pool` function of the
    user's own, which gives such rows. What a `targets` function of the user's own gives stays as it is.
    """
    found = targets(batch)
    if not isinstance(found, Tensor):
        raise UsageError(
            f"the targets function returned a {type(found).__name__}: return a tensor of the batch's targets"
        )
    by_row = targets is labels_of and any(callable(reader.pool) for reader in branches.readers.values())
    return found.flatten() if by_row and found.ndim > 1 and not found.is_floating_point() else found


def device_of(module: nn.Module) -> torch.device:
    """Where the module's first parameter is; the CPU for a module without any."""
    return next((value.device for value in module.parameters()), torch.device("cpu"))


def check_settings(alpha: object, until: object, targets: object) -> None:
    """Refuse what is no weight of a loss, no end of the branches, or cannot be asked for a batch's targets."""
    number = isinstance(alpha, Real | Tensor) and not isinstance(alpha, bool)
    if not number or not alpha >= 0:  # type: ignore[operator]
        raise UsageError(f"alpha must be a number of 0 or more, got {alpha!r}: it weighs the auxiliary loss")
    share = isinstance(until, float) and 0 < until <= 1
    steps = isinstance(until, int) and not isinstance(until, bool) and until >= 1
    if until is not None and not share and not steps:
        raise UsageError(
            f"until is a share of the training, such as 0.5, or a whole number of optimizer steps, got {until!r}"
        )
    if not callable(targets):
        raise UsageError(
            f"targets must be a function from the batch to its targets, got a {type(targets).__name__}: leave it out "
            "for the batch's own labels"
        )


def last_step(until: float | None, total: float) -> float:
    """The number of optimizer steps with branches, of `total`."""
    if until is None:
        return math.inf
    if isinstance(until, int):
        return until
    if math.isinf(total):
        raise UsageError(f"until={until} is a share of a training that has no end: give a number of steps")
    return max(1, round(until * total))


def add_parameters(optimizer: Any, named: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Put parameters that an optimizer does not have into its first group.

    Not into a group of their own: learning-rate schedulers that exist already count the groups.
    """
    known = {id(value) for group in optimizer.param_groups for value in group["params"]}
    first = optimizer.param_groups[0]
    for name, value in named:
        if value.requires_grad and id(value) not in known:
            first["params"].append(value)
            if "param_names" in first:
                first["param_names"].append(f"branches.{name}")


def add_group(optimizer: Any, branches: Branches, options: Mapping[str, Any]) -> None:
    """Put the branches' parameters into a group of their own, with a learning rate and other options of their own."""
    for name in options.keys() - optimizer.defaults.keys():
        raise unknown_name(f"option of {type(optimizer).__name__} in branch_options", name, optimizer.defaults)
    for name in ("lr", "weight_decay"):  # torch looks at those of the optimizer itself alone
        if options.get(name, 0) < 0:
            raise UsageError(f"branch_options: {name} must not be negative, got {options[name]}")
    known = {id(value) for group in optimizer.param_groups for value in group["params"]}
    named = [(f"branches.{name}", value) for name, value in branches.named_parameters() if value.requires_grad]
    if any(id(value) in known for _, value in named):
        raise UsageError("the optimizer has the branches' parameters already: set their options there")
    with_names = "param_names" in optimizer.param_groups[0]
    optimizer.add_param_group({**options, "params": named if with_names else [value for _, value in named]})


class OptimizerPart:
    """The branches' part of an optimizer, kept apart when the optimizer is saved.

    So a checkpoint of training with branches has the optimizer state of training without: it resumes with branches,
    which take their part from beside it, and without.
    """

    def __init__(self, optimizer: Optimizer, branches: Branches) -> None:
        self.optimizer, self.branches = optimizer, branches
        gone = {id(value) for value in branches.parameters()}
        # By index: loading a state replaces the groups.
        self.own = [
            i
            for i, group in enumerate(optimizer.param_groups)
            if group["params"] and {id(value) for value in group["params"]} <= gone
        ]
        self.handles = [
            optimizer.register_state_dict_post_hook(self._take_out),
            optimizer.register_load_state_dict_pre_hook(self._put_in),
        ]

    def state_dict(self) -> dict[str, Any]:
        """The state of the branches' parameters by name, and the options of the groups that have only them."""
        state, groups = self.optimizer.state, self.optimizer.param_groups
        named = {name: state[value] for name, value in self.branches.named_parameters() if value in state}
        options = [{key: groups[i][key] for key in groups[i].keys() - {"params", "param_names"}} for i in self.own]
        return {"state": named, "groups": options}

    def load_state_dict(self, part: Mapping[str, Any]) -> None:
        """Take the part up again, after the optimizer's own state was loaded and schedulers were made."""
        if len(part["groups"]) != len(self.own):
            raise UsageError(
                f"the checkpoint was written {'with' if part['groups'] else 'without'} branch_options, and its "
                "schedulers have counted the parameter groups: resume with the same branch_options"
            )
        values = dict(self.branches.named_parameters())
        for name in part["state"].keys() & values.keys():
            self.optimizer.state[values[name]] = part["state"][name]
        for i, options in zip(self.own, part["groups"], strict=True):
            self.optimizer.param_groups[i].update(options)
        self.optimizer.load_state_dict(self.optimizer.state_dict())  # to the devices and types of the parameters

    def remove(self) -> None:
        """Let the optimizer save and load as it did."""
        for handle in self.handles:
            handle.remove()

    def _take_out(self, optimizer: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
        gone = {id(value) for value in self.branches.parameters()}
        numbers: dict[int, int] = {}
        groups = []
        for i, group in enumerate(optimizer.param_groups):
            if i in self.own:
                continue
            kept = [j for j, value in enumerate(group["params"]) if id(value) not in gone]
            bare = dict(saved["param_groups"][i])
            for column in {"params", "param_names"} & bare.keys():
                bare[column] = [bare[column][j] for j in kept]
            bare["params"] = [numbers.setdefault(number, len(numbers)) for number in bare["params"]]
            groups.append(bare)
        state = {numbers.get(key, key): value for key, value in saved["state"].items()
                 if key in numbers or not isinstance(key, int)}  # fmt: skip
        return {**saved, "state": state, "param_groups": groups}

    def _put_in(self, optimizer: Optimizer, saved: dict[str, Any]) -> dict[str, Any] | None:
        names = {id(value): f"branches.{name}" for name, value in self.branches.named_parameters()}
        bare = [group["params"] for i, group in enumerate(optimizer.param_groups) if i not in self.own]
        sizes = [sum(id(value) not in names for value in values) for values in bare]
        if [len(group["params"]) for group in saved["param_groups"]] != sizes:
            return None  # It has the branches, or torch refuses it.
        groups, rest = [], iter(saved["param_groups"])
        for i, group in enumerate(optimizer.param_groups):
            whole = dict(group if i in self.own else next(rest))
            numbers = iter(whole["params"])
            whole["params"] = [names[id(v)] if id(v) in names else next(numbers) for v in group["params"]]
            whole.pop("param_names", None)  # those of the optimizer stay
            groups.append(whole)
        ours = {names[id(value)]: optimizer.state[value] for value in self.branches.parameters()
                if value in optimizer.state}  # fmt: skip
        return {**saved, "state": {**saved["state"], **ours}, "param_groups": groups}
