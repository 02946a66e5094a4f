"""What a run starts from: its images and labels, its initial weights, its random keys.

Everything is keyed by (seed, purpose) alone, so every loop starts a spec from the same numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from asymtrain import objectives, streams
from asymtrain.branches import MAP_HEADS, convolutional, draw_branches, module_at, module_heads
from asymtrain.errors import UsageError
from asymtrain.lab.candidates import RECOMMENDED, RECOMMENDED_ON_CONVOLUTIONS, Candidate
from asymtrain.lab.data import Dataset
from asymtrain.lab.data.augment import beta_quantiles, flip_and_shift, transform
from asymtrain.lab.data.autoaugment import autoaugment, policy_table
from asymtrain.lab.data.normalise import normalise, statistics
from asymtrain.lab.data.subsets import few_shot, flip_labels, split
from asymtrain.lab.engine.modules import HeadName, ModuleNetwork
from asymtrain.lab.engine.schedule import steps_of
from asymtrain.lab.runs import DEFAULTS, RunSpec
from asymtrain.models import BACKBONES, Backbone, build

Indices = npt.NDArray[np.int64]
Network = Backbone | ModuleNetwork
OF_IMAGES = ("augmentation", "erasing", "mixup", "cutmix")  # parts of a recipe
_OF_DATA = ("seed", "validation", "per_class", "label_noise")  # the fields that `run_data` depends on
_SAMPLE = 4  # rows of the sample for a model's dry run


@dataclass(frozen=True)
class RunData:
    """The images that one run trains and validates on, and their labels."""

    train: Indices
    validation: Indices  # empty if the spec trains on everything
    labels: Indices  # of all training images, with label noise
    mean: Tensor  # for each channel or feature, over the inputs this run trains on
    std: Tensor


def check_data(spec: RunSpec, dataset: Dataset) -> None:
    """Refuse data that the spec cannot train on: augmentations need images, backbones need square images."""
    parts = [name for name in OF_IMAGES if getattr(spec, name) != DEFAULTS[name]]
    if parts and dataset.kind != "images":
        what = " and ".join(spec.augmentation if name == "augmentation" else name for name in parts)
        settings = ", ".join(f"--set {name}={'none' if name == 'augmentation' else 0}" for name in parts)
        changes, them = ("changes", "it") if len(parts) == 1 else ("change", "them")
        raise UsageError(
            f"{what} {changes} images, and {dataset.name} holds {dataset.kind}: leave {them} out ({settings})"
        )
    if is_backbone(spec):
        _square_images(dataset)


def run_data(spec: RunSpec, dataset: Dataset) -> RunData:
    check_data(spec, dataset)
    labels = dataset.train.labels
    if spec.validation == "split":
        train, validation = split(labels, spec.seed)
    else:
        train, validation = np.arange(len(labels)), np.arange(0)
    if spec.per_class is not None:
        train = few_shot(labels, train, spec.per_class, spec.seed)
    noisy = flip_labels(labels, train, spec.label_noise, dataset.classes, spec.seed)
    mean, std = statistics(dataset.train, train)
    return RunData(train, validation, noisy, mean, std)


def build_network(
    spec: RunSpec, dataset: Dataset, device: torch.device | str = "cpu", *, layers: RunSpec | None = None
) -> Network:
    """The network that a spec trains, with its initial weights; branches are where `layers`, by default it, says."""
    layers = layers or spec
    if is_backbone(spec):
        return build_backbone(spec, dataset, layers.head)
    data = run_data(spec, dataset)
    rows = torch.from_numpy(dataset.train.inputs[data.train[:_SAMPLE]])
    if dataset.kind == "tokens":  # so that a token outside the model's vocabulary fails here, not during training
        rows[0] = max(map(_row_of_largest, (dataset.train.inputs, dataset.test.inputs)), key=torch.max)
    sample = normalise(rows, data.mean, data.std).to(device)
    module = build_module(spec, dataset).to(device)
    network = ModuleNetwork(
        module,
        dataset.classes,
        sample,
        branches=layers.redundancy > 0,
        at=layers.at,
        head=layers.head,
        pool=layers.pool,
        layout=layers.layout,
        autocast=torch.bfloat16 if spec.precision == "bf16" else None,
    )
    if steps_of(spec, len(data.train))[1] % spec.batch == 1 or spec.batch == 1:
        network.try_batch_of_one()
    return network


def _row_of_largest(inputs: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(inputs[np.unravel_index(inputs.argmax(), inputs.shape)[0]])


def build_module(spec: RunSpec, dataset: Dataset) -> nn.Module:
    """The spec's model with its initial weights, as a module."""
    if is_backbone(spec):
        return build_backbone(spec, dataset)
    from asymtrain.lab.sources import build_model

    return build_model(
        spec.arch,
        dict(spec.arch_options),
        classes=dataset.classes,
        input_shape=dataset.train.inputs.shape[1:],
        seed=streams.key(spec.seed, "backbone") & (2**63 - 1),
        weights=spec.initial_weights,
        kind=dataset.kind,
    )


def is_backbone(spec: RunSpec) -> bool:
    """Whether the model is one of the paper's backbones, which have a stacked form."""
    return spec.arch in BACKBONES


def check_backbone(spec: RunSpec, advice: str = "") -> None:
    if not is_backbone(spec):
        raise UsageError(f"this is for the backbones {', '.join(BACKBONES)}, and {spec.arch} is none of them{advice}")


def build_backbone(spec: RunSpec, dataset: Dataset, head: str | None = None) -> Backbone:
    """The spec's backbone with its initial weights, for the dataset's image size; `head` decides about pooling."""
    check_backbone(spec)
    channels, height = _square_images(dataset)
    seed = streams.key(spec.seed, "backbone") & (2**63 - 1)
    options: dict[str, Any] = {"image_size": height, "channels": channels, **dict(spec.arch_options)}
    backbone, head = build(spec.arch, classes=dataset.classes, seed=seed, **options), head or spec.head
    if head in MAP_HEADS:
        if backbone.layout != "BCHW":
            raise UsageError(f"head={head!r} reads maps, and the layers of {spec.arch} give none: use head='mlp'")
        backbone.pooled = False
    return backbone


def _square_images(dataset: Dataset) -> tuple[int, int]:
    """The number of channels, and of pixels on a side."""
    if dataset.kind != "images":
        raise UsageError(
            f"the backbones take images, {dataset.name} holds {dataset.kind}: choose another model with --arch"
        )
    channels, height, width = dataset.train.images.shape[1:]
    if height != width:
        raise UsageError(f"the backbones take square images, {dataset.name} has {height} x {width}: give image_size")
    return channels, height


def recommended_branches(spec: RunSpec, dataset: Dataset) -> tuple[Candidate, str | None]:
    """The recommended branches for a spec's model, and the layer with a convolution that decides it, if any."""
    network = build_network(spec, dataset)
    if isinstance(network, ModuleNetwork):
        layers = {name: module_at(network.module, path) for name, path in network.paths.items()}
    else:
        layers = {name: module_at(network, name) for name in network.points}
    layer = convolutional(layers)
    return (RECOMMENDED if layer is None else RECOMMENDED_ON_CONVOLUTIONS), layer


def live_branches(spec: RunSpec, network: Network, head: HeadName = "linear") -> dict[str, Tensor]:
    """Initial weights of the live branches at each point, by name.

    Linear ones are `branch.k` (N_live, C, D_k); others have `branch.k.NAME` (N_live, ...) for each parameter.
    """
    count, classes = max(1, spec.redundancy), network.classes
    if head == "linear":
        initial_weights = draw_branches(spec.seed, network.widths, classes, count)
        weights = {f"branch.{k}": weight for k, weight in enumerate(initial_weights)}
    else:
        weights = {}
        for k in range(len(network.widths)):
            modules = branch_modules(head, network, k, spec.seed, count)
            if buffers := [name for name, _ in modules[0].named_buffers()]:
                raise UsageError(f"head={head!r} has buffers ({', '.join(buffers)}), and runs train heads without any")
            heads = [dict(module.named_parameters()) for module in modules]
            weights |= {f"branch.{k}.{name}": torch.stack([h[name].detach() for h in heads]) for name in heads[0]}
    return {name: w[-1:] if spec.activation == "last" else w for name, w in weights.items()}


def branch_modules(head: HeadName, network: Network, k: int, seed: int = 0, count: int = 1) -> list[nn.Module]:
    """The branches at point k as modules, for heads that are not linear."""
    axes = 0
    if head in MAP_HEADS:
        axes = network.readers[network.points[k]].positions if isinstance(network, ModuleNetwork) else 2
    return module_heads(head, seed, k, network.widths[k], network.classes, count, positions=axes)


class Start(NamedTuple):
    """A run's initial tensors, by name."""

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]


def starts_of(
    specs: list[RunSpec], dataset: Dataset, network: Network, lead: RunSpec
) -> tuple[list[RunData], list[Start]]:
    """The data and start of each run of a stack; runs of one seed share a module."""
    data: dict[tuple[object, ...], RunData] = {}
    modules: dict[int, nn.Module] = {}
    run_data_list, starts = [], []
    for spec in specs:
        key = tuple(getattr(spec, name) for name in _OF_DATA)
        if key not in data:
            data[key] = run_data(spec, dataset)
        if spec.seed not in modules:
            modules[spec.seed] = build_module(spec, dataset)
        run_data_list.append(data[key])
        starts.append(initial_state(spec, dataset, data[key], network, lead, modules[spec.seed]))
    return run_data_list, starts


def initial_state(
    spec: RunSpec, dataset: Dataset, data: RunData, network: Network, lead: RunSpec, module: nn.Module | None = None
) -> Start:
    """A run's initial model weights and, if `lead` has branches, `branch.k` and `branch.k.bias`.

    A Plain run also has branches if its neighbours in the stack have; they do not affect the model. `network` gives
    the form of model and branches. `module` is the result of `build_module` for the spec, if already there.
    """
    module, buffers = module or build_module(spec, dataset), {}
    start = {name: value.detach() for name, value in module.named_parameters()}
    if isinstance(network, ModuleNetwork):
        buffers = {name: value for name, value in start.items() if name not in network.trained}
        buffers |= {name: value.detach() for name, value in module.named_buffers()}
        start = {name: value for name, value in start.items() if name in network.trained}
    if lead.redundancy:
        weights = live_branches(spec, network, lead.head)
        start |= weights
        if (spec if spec.redundancy else lead).bias == "prior":
            prior = prior_bias(spec, data, dataset.classes)
            start |= {f"{name}.bias": prior.expand(len(weight), -1) for name, weight in weights.items()}
    return Start(start, buffers)


def prior_bias(spec: RunSpec, data: RunData, classes: int) -> Tensor:
    """The logits (C,) by which a branch predicts the class shares of the training labels."""
    labels = torch.as_tensor(data.labels[data.train], dtype=torch.int64)
    return objectives.prior_bias(objectives.find_objective(spec.objective), classes, labels)


def chosen_layers(count: int, layers: str) -> range:
    """The indices of the layers that have branches, by the spec's `layers` option."""
    if layers == "middle":
        return range(count // 2, min(count // 2 + 1, count))
    return range(count // 2 if layers == "later" else 0, count)


def reached_by_branches(network: Network, sample: Tensor, layers: str = "all") -> list[str]:
    """Names of the parameters that get a gradient from the auxiliary loss."""
    chosen = chosen_layers(len(network.points), layers)
    if isinstance(network, ModuleNetwork):
        return network.reached_from(chosen)
    parameters = dict(network.named_parameters())
    features = network.features(sample)[1]
    gradients = torch.autograd.grad([features[k].sum() for k in chosen], list(parameters.values()), allow_unused=True)
    return [name for name, gradient in zip(parameters, gradients, strict=True) if gradient is not None]


def layer_weights(specs: Sequence[RunSpec], count: int) -> Tensor | None:
    """The weight of each of K layers in a run's auxiliary loss, (R, K), 0 without branches; None if all are 1."""
    if all(spec.layers == "all" and spec.layer_reduction == "sum" for spec in specs):
        return None
    chosen = [chosen_layers(count, spec.layers) for spec in specs]
    shares = [
        1 / len(one) if spec.layer_reduction == "mean" and one else 1.0 for spec, one in zip(specs, chosen, strict=True)
    ]
    return torch.tensor([[share * (k in one) for k in range(count)] for share, one in zip(shares, chosen, strict=True)])


def random_labels(seed: int, count: int, classes: int) -> Tensor:
    """Random labels for `count` images, independent of the images: (count,)."""
    keys = torch.tensor(streams.key(seed, "random branch labels"))
    return (streams.bits(keys, torch.arange(count)) & (2**63 - 1)) % classes


def stream_keys(specs: list[RunSpec], purpose: str, device: torch.device) -> Tensor:
    """One key for each run: (R,)."""
    return torch.tensor([streams.key(spec.seed, purpose) for spec in specs], device=device)


STREAMS = ("shuffle", "augment", "transform", "erase", "mix", "dropout", "noise", "draws")
"""The purposes of random numbers that are drawn at every epoch or step."""


def image_changes(spec: RunSpec, device: torch.device) -> list[tuple[str, Callable[[Tensor, Tensor], Tensor]]]:
    """The functions (images, random bits) -> images of an augmentation, in order, each with its stream's purpose."""
    shift, other = ("augment", flip_and_shift), ("transform", transform)
    # The table is made in advance: a captured step allows no copy from the host.
    policy = ("transform", partial(autoaugment, policy=policy_table(device)))
    changes: dict[str, list[tuple[str, Callable[[Tensor, Tensor], Tensor]]]] = {
        "none": [],
        "flip_shift": [shift],
        "trivial": [shift, other],
        "policy": [shift, policy],
        "policy_first": [policy, shift],
    }
    return changes[spec.augmentation]


def mixing_tables(specs: list[RunSpec], field: str, device: torch.device) -> Tensor | None:
    """The shares that mixup or cutmix chooses from in each run, (R, Q); None without such mixing."""
    parameters = [getattr(spec, field) for spec in specs]
    if not any(parameters):
        return None
    assert all(parameters), "runs that mix and runs that do not are planned apart"
    return torch.stack([beta_quantiles(value) for value in parameters]).to(device)


def dropout_mask(keys: Tensor, step: Tensor | int, batch: int, width: int, rate: float) -> Tensor:
    """The scaled dropout mask of R runs at a step, (R, B, width): 0 or 1 / (1 - rate)."""
    position = torch.arange(batch * width, device=keys.device)
    values = streams.uniform(keys[:, None], step, position).view(len(keys), batch, width)
    return (values >= rate).to(torch.float32) / (1 - rate)
