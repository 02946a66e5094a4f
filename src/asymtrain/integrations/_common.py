"""What the adapters share: the branches of one training in another library's trainer."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from asymtrain.branches import LABELS, Branches, Criterion, attach
from asymtrain.errors import UsageError, UsageWarning, unknown_name
from asymtrain.gradients import alignment


def labels_of(batch: Any) -> Tensor:
    """The labels of a batch: its entry with one of their usual names, or the second of a pair."""
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


class Adapter:
    """The branches of a training: attaches them, adds their loss, updates their strength, strips them.

    take        the arguments of `attach`, and two more
    attach      before anything of the training is compiled or wrapped
    join        put their parameters into the optimizer, once it has its state
    add         in each step
    step        after each step
    strip       at the end
    """

    branches: Branches | None = None  # of the latest training

    def take(self, options: dict[str, Any], targets: Callable[[Any], Tensor] | None, cosine: bool) -> None:
        """Store what the user gave."""
        if not (targets is None or callable(targets)):
            raise UsageError(
                f"targets must be a function from the batch to its targets, got a {type(targets).__name__}: leave it "
                "out for the batch's own labels"
            )
        self.options, self.targets, self.cosine = options, targets or labels_of, cosine
        self.part: OptimizerPart | None = None
        self.restored: Mapping[str, Any] = {}  # a checkpoint's state, until the branches are attached

    @property
    def training(self) -> Branches | None:
        """The branches, while they are on the model."""
        return None if self.branches is None or self.branches.stripped else self.branches

    def attach(self, model: nn.Module, sample: object) -> None:
        """Attach for this training."""
        if self.training is not None:
            self.strip()  # the branches of a training that did not finish
        elif self.branches is not None:
            warnings.warn("the branches of the last training were stripped: attached anew", UsageWarning, stacklevel=2)
        self.branches = attach(model, **{**self.options, "sample": sample})
        self.criterion = Criterion(self.branches)
        if "branches" in self.restored:
            self.branches.load_state_dict(self.restored["branches"])

    def join(self, optimizer: Any, progress: float) -> None:
        """Put the branches' parameters into the optimizer, with the checkpoint's state."""
        assert self.branches is not None
        self.part = OptimizerPart(optimizer, self.branches)
        if "optimizer" in self.restored:
            self.part.load_state_dict(self.restored["optimizer"])
        self.restored = {}
        self.step(progress)

    def add(
        self, main: Tensor, targets: Tensor, measured_on: nn.Module | None, weight: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """The loss to train on, and values for a log if `measured_on` is given, the model for the gradient cosine."""
        assert self.branches is not None
        total, auxiliary = self.criterion.add(main, targets, weight=weight)
        if measured_on is None:
            return total, {}
        logged: dict[str, Any] = dict(self.criterion.parts)
        reaches_model = not all(reader.detach for reader in self.branches.readers.values())
        if self.cosine and reaches_model and auxiliary.requires_grad:
            logged["gradient_cosine"] = alignment(main, auxiliary, measured_on).cosine
        return total, {name: value for name, value in logged.items() if value is not None}

    def step(self, progress: float) -> None:
        """Update the strength to the progress of training."""
        if self.training is not None:
            self.training.step(min(progress, 1.0))

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint: the branches and their part of the optimizer, while they are on the model."""
        if self.training is None or self.part is None:
            return {}
        return {"branches": self.training.state_dict(), "optimizer": self.part.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any], *_: Any, **__: Any) -> None:
        """Keep a checkpoint's state until the branches are attached; trainers pass further arguments."""
        self.restored = state_dict

    def strip(self) -> None:
        """Take the branches off, and out of the optimizer."""
        if self.training is not None:
            self.training.strip(None if self.part is None else self.part.optimizer)
        if self.part is not None:
            self.part.remove()


class OptimizerPart:
    """The branches' parameters in an optimizer, which saves and loads its state without them.

    So a checkpoint can resume without branches, or with them: their state is stored separately. They are in the last
    group, with the model's head. No group is added, since existing schedulers count the groups.
    """

    def __init__(self, optimizer: Any, branches: Branches) -> None:
        self.optimizer: Optimizer = getattr(optimizer, "optimizer", optimizer)  # inside accelerate's wrapper
        self.values = {name: value for name, value in branches.named_parameters() if value.requires_grad}
        self.saved_state: dict[str, Any] = {}
        self.put()
        out, back = (lambda *_: self.take_out()), (lambda *_: self.put())
        self.handles = [
            self.optimizer.register_state_dict_pre_hook(out),
            self.optimizer.register_state_dict_post_hook(back),
            self.optimizer.register_load_state_dict_pre_hook(out),
            self.optimizer.register_load_state_dict_post_hook(back),
        ]

    def put(self) -> None:
        """Put the parameters into the last group, with their saved state."""
        group = self.optimizer.param_groups[-1]
        group["params"] = [*group["params"], *self.values.values()]
        if "param_names" in group:
            group["param_names"] = [*group["param_names"], *(f"branches.{name}" for name in self.values)]
        self.optimizer.state.update({self.values[name]: state for name, state in self.saved_state.items()})

    def take_out(self) -> None:
        """Take the parameters out of the last group, and save their state."""
        self.saved_state = self.state_dict()
        group, count = self.optimizer.param_groups[-1], len(self.values)
        for column in {"params", "param_names"} & group.keys():
            group[column] = group[column][:-count] if count else group[column]
        for value in self.values.values():
            self.optimizer.state.pop(value, None)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state for the branches' parameters, by name."""
        state = self.optimizer.state
        return {name: state[value] for name, value in self.values.items() if value in state}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Load a state, on the devices of the parameters."""
        group = self.optimizer.param_groups[-1]
        counts_there = group.get("fused") or group.get("capturable")  # else step counts are on the CPU, as in torch
        for name in saved.keys() & self.values.keys():
            value = self.values[name]
            self.optimizer.state[value] = {
                key: part.to(value.device) if isinstance(part, Tensor) and (part.ndim or counts_there) else part
                for key, part in saved[name].items()
            }

    def remove(self) -> None:
        """Remove the hooks from the optimizer."""
        for handle in self.handles:
            handle.remove()


def sharded_error(by: str, instead: str) -> UsageError:
    """The error for trainers that shard the model, which no longer allows attaching."""
    return UsageError(
        f"branches do not work in a model sharded by {by}: train with {instead}, or in a loop of your own with "
        "fully_shard(WithBranches(model, branches))"
    )


def part_of(module: nn.Module, name: str = "") -> nn.Module:
    """The part of a module to attach to, unwrapped from DDP and torch.compile."""
    if not isinstance(name, str):
        raise UsageError(
            f"model= is the name of the part that the training step calls, such as model='net', got a "
            f"{type(name).__name__}: leave it out for the module itself"
        )
    try:
        part = _bare(module).get_submodule(name)
    except AttributeError:
        raise unknown_name(f"part of {type(module).__name__}", name, dict(module.named_children())) from None
    return _bare(part)


def _bare(module: nn.Module) -> nn.Module:
    while (distributed := isinstance(module, nn.parallel.DistributedDataParallel)) or hasattr(module, "_orig_mod"):
        module = module.get_submodule("module" if distributed else "_orig_mod")
    return module
