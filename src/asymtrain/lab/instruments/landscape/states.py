"""The states that a landscape compares: one run at several redundancies, each checked, with its sample and loss."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asymtrain import streams
from asymtrain.errors import UsageError
from asymtrain.lab.data import Dataset
from asymtrain.lab.data.normalise import normalise
from asymtrain.lab.engine.losses import Batch, stack_loss
from asymtrain.lab.engine.parameters import is_branch, parameter_count
from asymtrain.lab.engine.schedule import alpha_at
from asymtrain.lab.engine.setup import build_backbone, chosen_layers, random_labels, run_data
from asymtrain.lab.engine.states import State, check_state, states_at
from asymtrain.lab.instruments.landscape.backbone import Score, main_score
from asymtrain.lab.instruments.landscape.result import Floats, Level, Loss, Surface
from asymtrain.lab.instruments.landscape.surface import Parameters
from asymtrain.lab.runs import RunSpec

REDUNDANCIES = (0, 1, 20, 300)
_DATA_FIELDS = ("dataset", "dataset_options", "per_class", "label_noise", "validation", "seed")
_LOSS_FIELDS = ("objective", "branch_labels", "class_reduction", "layer_reduction")


def states_of_redundancies(
    specs: Iterable[RunSpec],
    redundancies: Sequence[int] = REDUNDANCIES,
    epoch: int = 0,
    take: Callable[[Sequence[RunSpec], Sequence[int]], list[State]] = states_at,
) -> list[State]:
    """States of each spec at each redundancy after an epoch (0: before training); 0 is Plain.

    With single activation, all redundancies from 1 on train the same network with the same live branch: it is made
    once, for the smallest of them. `take` makes states of specs after epochs. A run that diverged before the epoch is
    an error.
    """
    if not redundancies or min(redundancies) < 0:
        raise UsageError(f"redundancies must be 0 (Plain) or more, got {list(redundancies)}")
    all_specs = [dataclasses.replace(spec, redundancy=n) for spec in specs for n in dict.fromkeys(redundancies)]
    least = min((n for n in redundancies if n), default=0)
    trained = {}
    for spec in all_specs:
        shares = spec.redundancy and spec.activation == "last"
        trained[spec] = dataclasses.replace(spec, redundancy=least) if shares else spec
    distinct = list(dict.fromkeys(trained.values()))
    by_spec = {state.spec: state for state in take(distinct, [epoch])}
    for spec in distinct:
        if spec not in by_spec:
            raise UsageError(f"the run of seed {spec.seed} diverged before epoch {epoch}: look at an earlier one")
    return [State(spec, epoch, by_spec[trained[spec]].parameters) for spec in all_specs]


class Sample(NamedTuple):
    """The images a surface is computed on, on the device."""

    images: Tensor  # (B, 3, H, W), normalised
    targets: Tensor  # (B,)
    branch_targets: Tensor  # (B,), for a run whose branches learn random labels


@dataclass(frozen=True)
class Subject:
    """A state, ready to be evaluated. Subjects with the same `network` share a plane."""

    level: Level
    counted: Parameters  # the parameters for which a direction has entries: the backbone and the live branches
    network: int
    idle: tuple[int, int]  # idle branches at each point, and how many weights one has over all points
    alpha: float | None = None  # of the total loss; None for the main loss

    def surface(self, parts: Floats, loss: Loss) -> Surface:
        """Its loss (n, m) from the parts on its plane (n, m, L): the main loss, and the branches' if any."""
        return parts[..., 0] if loss == "main" or self.alpha is None else parts[..., 0] + self.alpha * parts[..., 1]


@dataclass(eq=False)
class SharedNetwork:
    """A network that one or more states share, with the live branches of states whose total loss is wanted."""

    settings: tuple[object, ...]  # of the sample and the main loss
    sample: Sample
    backbone: Parameters
    scores: list[Score]  # of the main loss, and of the branches if any
    branches: Parameters = field(default_factory=dict)
    branch_settings: tuple[object, ...] = ()  # of the branches' loss

    @property
    def center(self) -> Parameters:
        """The parameters that move."""
        return {**self.backbone, **self.branches}

    def has(self, backbone: Parameters, settings: tuple[object, ...]) -> bool:
        return self.settings == settings and _equal(self.backbone, backbone)

    def takes(self, branches: Parameters, settings: tuple[object, ...]) -> bool:
        """Can these branches move with the network? It takes one set of branches; having no branches always fits."""
        free = not branches or not self.branches
        return free or (self.branch_settings == settings and _equal(self.branches, branches))

    def score(self, logits: Tensor, features: Sequence[Tensor], parameters: Parameters) -> Tensor:
        """Parts (R, L) of the loss, all from one forward pass."""
        return torch.stack([part(logits, features, parameters) for part in self.scores], 1)


def subjects_of(
    states: Sequence[State], dataset: Dataset, sample: int, losses: Collection[Loss], device: torch.device
) -> tuple[list[Subject], list[SharedNetwork]]:
    """The states, checked, and the networks that they share: on `sample` images, for these losses."""
    if not states:
        raise UsageError("there is no state to measure: give at least one")
    samples: dict[tuple[object, ...], Sample] = {}
    subjects: list[Subject] = []
    networks: list[SharedNetwork] = []
    keys: set[tuple[int, int, int]] = set()
    first = _backbone(states[0].spec)
    for state in states:
        spec, weights = state.spec, state.parameters
        if _backbone(spec) != first:
            raise UsageError(
                f"a landscape is of one backbone on one dataset, got {first} and {_backbone(spec)}: measure them apart"
            )
        check_state(state, build_backbone(spec, dataset))
        if bool(spec.redundancy) != any(map(is_branch, weights)):
            raise UsageError(f"the state of a run with redundancy {spec.redundancy} must hold its live branches")
        if (key := (spec.seed, state.epoch, spec.redundancy)) in keys:
            raise UsageError(f"redundancy {spec.redundancy} of seed {spec.seed} is there twice: measure them apart")
        keys.add(key)
        branches = [value for name, value in weights.items() if is_branch(name)]
        size = sum(value.numel() // len(value) for value in branches)
        idle = spec.redundancy - len(branches[0]) if branches else 0
        count = parameter_count(weights)
        level = Level(spec.id, spec.seed, spec.redundancy, state.epoch, count, count + idle * size)
        data = tuple(getattr(spec, name) for name in _DATA_FIELDS)
        if data not in samples:
            samples[data] = draw_sample(spec, dataset, sample, device)
        total = "total" in losses and spec.redundancy > 0
        if total and (spec.head == "tower" or spec.balance == "norms"):
            what = "head='tower'" if spec.head == "tower" else "balance='norms'"
            raise UsageError(f"there is no landscape of the total loss with {what}: measure that of the main loss")
        live = {name: value for name, value in weights.items() if is_branch(name)} if total else {}
        own, of_branches = (data, spec.label_smoothing), tuple(getattr(spec, name) for name in _LOSS_FIELDS)
        fitting = (
            candidate
            for candidate in networks
            if candidate.has(state.backbone, own) and candidate.takes(live, of_branches)
        )
        network = next(fitting, None)
        if network is None:
            main = main_score(samples[data].targets, spec.label_smoothing)
            network = SharedNetwork(own, samples[data], state.backbone, [main])
            networks.append(network)
        if live and not network.branches:
            network.branches, network.branch_settings = live, of_branches
            network.scores.append(_auxiliary_score(spec, dataset, network.sample))
        alpha = alpha_at(spec, min(state.epoch, spec.epochs - 1)) if total else None
        subjects.append(Subject(level, weights, networks.index(network), (idle, size), alpha))
    return subjects, networks


def _backbone(spec: RunSpec) -> str:
    options = ", ".join(f"{name}={value}" for name, value in spec.arch_options)
    return f"{spec.arch}{f' ({options})' if options else ''} on {spec.dataset}"


def _equal(first: Parameters, second: Parameters) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def draw_sample(spec: RunSpec, dataset: Dataset, size: int, device: torch.device) -> Sample:
    """Training images of a run, drawn without repeats and keyed by its seed, with the labels it learns."""
    data = run_data(spec, dataset)
    if size > len(data.train):
        raise UsageError(f"the sample of {size} is larger than the {len(data.train)} training images: give --sample")
    order = torch.randperm(len(data.train), generator=streams.generator(spec.seed, "landscape sample"))
    chosen = data.train[np.sort(order[:size].numpy())]
    images = normalise(torch.from_numpy(dataset.train.images[chosen]), data.mean, data.std)
    random = random_labels(spec.seed, len(dataset.train.labels), dataset.classes)[torch.from_numpy(chosen)]
    return Sample(images.to(device), torch.from_numpy(data.labels[chosen]).to(device), random.to(device))


def _auxiliary_score(spec: RunSpec, dataset: Dataset, sample: Sample) -> Score:
    """The sum of the engine's own losses over points."""
    objective = stack_loss([spec], build_backbone(spec, dataset))
    labels = sample.branch_targets if spec.branch_labels == "random" else sample.targets

    def score(logits: Tensor, features: Sequence[Tensor], parameters: Parameters) -> Tensor:
        targets = labels.expand(len(logits), -1)
        batch = Batch(sample.images, targets, torch.ones_like(labels), None)
        chosen = [(k, features[k]) for k in chosen_layers(len(features), spec.layers)]
        losses = objective.points(parameters, chosen, batch, logits).double().mean(1)
        return losses.mean(1) if spec.layer_reduction == "mean" else losses.sum(1)

    return score
