"""The weights of a run at chosen epochs, for instruments that examine a network rather than its history.

A run is a function of its spec, so its states need not be stored: it is trained again, many specs at once. A folder
given as `cache` keeps states for the next time.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from asymtrain.errors import UsageError
from asymtrain.lab.checkpoints import StackPlan
from asymtrain.lab.data import Dataset
from asymtrain.lab.devices import default_device, products_of
from asymtrain.lab.engine.checkpoint import sealed, unsealed
from asymtrain.lab.engine.parameters import is_branch
from asymtrain.lab.engine.plan import plan
from asymtrain.lab.engine.setup import build_network, run_data
from asymtrain.lab.engine.setup import initial_state as start_of
from asymtrain.lab.engine.stack import Stack
from asymtrain.lab.engine.training import load_for
from asymtrain.lab.files import write_whole
from asymtrain.lab.runs import RunSpec


@dataclass(frozen=True)
class State:
    """A run's weights after an epoch: the trained ones, not their average. Epoch 0 is before training.

    `parameters`: float32 on the host, the backbone's by name and, if the spec has branches, the live ones as
    `branch.k` (N_live, C, D_k), with their biases, if any, as `branch.k.bias`.
    """

    spec: RunSpec
    epoch: int
    parameters: Mapping[str, Tensor]

    @property
    def backbone(self) -> dict[str, Tensor]:
        """The parameters without the branches' weights."""
        return {name: value for name, value in self.parameters.items() if not is_branch(name)}


def check_state(state: State, backbone: nn.Module) -> None:
    """Refuse weights that do not fit the backbone of their spec."""
    shapes = {name: value.shape for name, value in state.backbone.items()}
    expected = {name: value.shape for name, value in backbone.named_parameters()}
    for name in [*expected, *shapes]:
        if shapes.get(name) != expected.get(name):
            has, wants = (f"shape {tuple(side[name])}" if name in side else "none" for side in (shapes, expected))
            raise UsageError(
                f"the state is from another backbone than its spec {state.spec.id} ({state.spec.arch}): of {name} it "
                f"has {has}, the backbone {wants}; load the state that was saved with this spec"
            )


def initial_state(spec: RunSpec, dataset: Dataset) -> State:
    start = start_of(spec, dataset, run_data(spec, dataset), build_network(spec, dataset), spec)
    return State(spec, 0, {name: value.clone() for name, value in start.parameters.items()})


def states_at(
    specs: Sequence[RunSpec],
    epochs: Iterable[int],
    *,
    device: torch.device | str | None = None,
    data_root: Path | None = None,
    cache: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[State]:
    """States of each spec at each epoch, ordered by spec; states that are not in the cache are trained.

    `progress(done, total)` counts epochs of all stacks. A run that diverges before an epoch has no state there.
    """
    sorted_epochs = sorted(set(epochs))
    for spec in specs:
        if sorted_epochs and not 0 <= sorted_epochs[0] <= sorted_epochs[-1] <= spec.epochs:
            raise UsageError(f"epochs must lie between 0 and the {spec.epochs} of the run, got {sorted_epochs}")
    state_of: dict[tuple[RunSpec, int], State] = {}
    for spec, epoch in itertools.product(specs, sorted_epochs):
        if cache and (file := _file(cache, spec, epoch)).exists():
            state_of[spec, epoch] = _load(file, spec, epoch)
        elif epoch == 0:
            state_of[spec, 0] = initial_state(spec, load_for(spec, data_root))
    chosen = default_device(device)
    missing = [spec for spec in dict.fromkeys(specs) if any((spec, epoch) not in state_of for epoch in sorted_epochs)]
    stacks = plan(missing, chosen)
    total = len(stacks) * sorted_epochs[-1] if sorted_epochs else 0
    for number, stack_plan in enumerate(stacks):
        before = number * sorted_epochs[-1]
        for epoch, states in _train(stack_plan, sorted_epochs, chosen, data_root):
            for state in states:
                state_of[state.spec, epoch] = state
                if cache:
                    _save(_file(cache, state.spec, epoch), state)
            progress(before + epoch, total)
    return [state_of[key] for key in itertools.product(specs, sorted_epochs) if key in state_of]


def _train(
    stack_plan: StackPlan, epochs: Sequence[int], device: torch.device, data_root: Path | None
) -> Iterator[tuple[int, list[State]]]:
    """Train a stack to the last of `epochs`; yields each epoch, with the states of its runs if it is in `epochs`."""
    specs = stack_plan.specs
    untested = [dataclasses.replace(spec, test="never") for spec in specs]  # a test takes time and changes no weight
    with products_of(specs[0].precision):
        stack = Stack(untested, load_for(specs[0], data_root), device=device, strategy=stack_plan.strategy)
        while not stack.finished and stack.epoch < epochs[-1]:
            stack.advance()
            yield stack.epoch, _states(stack, specs) if stack.epoch in epochs else []


def _states(stack: Stack, specs: Sequence[RunSpec]) -> list[State]:
    """The current states of a stack, without runs that diverged."""
    views = {name: view.cpu() for name, view in stack.parameters.views(stack.weights).items()}
    states = []
    for r, spec in enumerate(specs):
        if not stack.diverged[r]:
            names = [name for name in stack.names[r] if spec.redundancy or not is_branch(name)]
            states.append(State(spec, stack.epoch, {name: views[name][r].clone() for name in names}))
    return states


def _file(cache: Path, spec: RunSpec, epoch: int) -> Path:
    return cache / f"{spec.id}-{epoch}.safetensors"


def _load(file: Path, spec: RunSpec, epoch: int) -> State:
    try:
        tensors, _ = unsealed(file.read_bytes())
        return State(spec, epoch, tensors)
    except ValueError as problem:
        raise UsageError(f"{file} is damaged ({problem}): delete it, and the state is trained again") from problem


def _save(file: Path, state: State) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole({file: sealed(dict(state.parameters), {})})
