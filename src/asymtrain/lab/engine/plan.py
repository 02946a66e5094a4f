"""Which specs share a stack, how large stacks are, and which strategy trains them.

Two specs share a stack if they differ only in what a stack keeps for each run: seed, learning rate and its schedule,
weight decay, clipping, averaging, alpha and its schedule, which layers have branches and with which weights, the parts
of their loss, label noise and smoothing, how much is erased or mixed, and whether the run is Plain. The plan depends
on the specs and on the kind of device; nothing is timed, so the same specs give the same stacks and the same numbers.

The GPU memory of a run is computed, not measured: what the forward pass keeps for the backward pass, on a tiny batch
on the host, scaled to the spec's batch. A rough value is enough: a stack that does not fit is halved.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from asymtrain.lab.checkpoints import StackPlan, Strategy
from asymtrain.lab.data import class_count
from asymtrain.lab.data.registry import input_shape
from asymtrain.lab.runs import AUXILIARY, RunSpec
from asymtrain.models import BACKBONES, Backbone, build

Key = tuple[tuple[str, object], ...]  # the fields of a spec that a stack's runs share

# What a stack holds as a vector over runs.
_PER_RUN = (
    "seed", "learning_rate", "weight_decay", "alpha", "alpha_schedule", "label_noise", "label_smoothing",
    "schedule", "schedule_by", "warmup", "clip", "averaging", "layers", "layer_reduction",
)  # fmt: skip
# The same, if all runs of a stack have a value above 0, or none.
_PER_RUN_IF_ANY = ("erasing", "mixup", "cutmix")
# What the loss selects for each run: `losses.Kind`, and the labels that branches learn.
_OF_KIND = ("objective", "class_reduction", "branch_labels", "bias", "branch_weights")

# Runs in one stack; more bring no further speed: benchmarks/stack.py prints the curve.
_MOST_ON_GPU = {"batched": 128, "side_by_side": 20}
_MOST_ON_CPU = {"batched": 6, "side_by_side": 1}
_MOST_TOKENS = 20  # runs of a backbone on token sequences: each run is already a large batch

_SAMPLE = 2  # images
_SHARE = 0.8  # of the device's memory: the rest is for the data, evaluation and fragments
_HEADROOM = 1.5  # gradients of activations, and what two captured graphs hold twice
_COPIES = 6  # of the weights: float32 and compute copies, gradient, two moments, the gathered gradient


def plan(specs: list[RunSpec], device: torch.device, *, workers: int = 1) -> list[StackPlan]:
    """Stacks for all specs, ordered by first member; at least `workers` of them, as far as there are runs."""
    groups: dict[Key, list[RunSpec]] = {}
    for spec in dict.fromkeys(specs):
        groups.setdefault(_key(spec), []).append(spec)
    stacks, order = [], {spec: i for i, spec in enumerate(specs)}
    # An early stop leaves complete pairs: they stay together, and Plain runs that join no stack keep their place.
    in_order = [sorted(joined, key=order.__getitem__) for joined in _join_plain(groups)]
    for members in sorted(in_order, key=lambda members: order[members[0]]):
        arch, on_gpu = members[0].arch, device.type == "cuda"
        strategy = strategy_for(arch, device)
        size = (_MOST_ON_GPU if on_gpu else _MOST_ON_CPU)[strategy]
        if on_gpu:
            widest = max(members, key=lambda spec: spec.redundancy)  # a Plain member has no branches to count
            small = arch in BACKBONES and BACKBONES[arch].bound_by_calls
            size = min(size, runs_that_fit(widest, device), size if small else _MOST_TOKENS)
        count = max(-(-len(members) // size), min(workers, len(members)))
        # Sizes differ by at most one: fewer shapes to compile, and no stack that takes much longer.
        parts = np.array_split(np.arange(len(members)), count)
        stacks += [StackPlan(tuple(members[i] for i in part), strategy) for part in parts]
    return stacks


def strategy_for(arch: str, device: torch.device) -> Strategy:
    """The faster strategy of a model on a kind of device, as benchmarks/stack.py measures it.

    Matrix products gain from batching over runs; convolutions do not (each run's is large enough). On a CPU only the
    MLP is so small that call overhead dominates its products.
    """
    if arch not in BACKBONES:
        return "side_by_side"
    batches_well = BACKBONES[arch].batches_well if device.type == "cuda" else BACKBONES[arch].bound_by_calls
    return "batched" if batches_well else "side_by_side"


def _key(spec: RunSpec) -> Key:
    fields = {name: getattr(spec, name) for name in spec.__dataclass_fields__ if name not in (*_PER_RUN, *_OF_KIND)}
    fields |= {name: bool(fields[name]) for name in _PER_RUN_IF_ANY}
    if spec.signal == "detached":
        fields["signal"] = "gradient"  # the run's loss distinguishes the two
    # A stack holds only live branches: with one live branch, their number does not matter.
    if spec.activation == "last":
        fields["redundancy"] = min(1, spec.redundancy)
    # `per_class` is in the key, so all runs have equal training-set sizes.
    return tuple(fields.items())


def _join_plain(groups: dict[Key, list[RunSpec]]) -> list[list[RunSpec]]:
    """Put Plain runs into the stack of an Asymmetric group that shares everything else."""
    sides = [
        (tuple(item for item in key if item[0] not in _auxiliary(group[0].arch)), group)
        for key, group in groups.items()
    ]
    plain = {backbone_side: group for backbone_side, group in sides if group[0].redundancy == 0}
    joined = [[*group, *plain.pop(backbone_side, [])] for backbone_side, group in sides if group[0].redundancy]
    return joined + list(plain.values())


def _auxiliary(arch: str) -> tuple[str, ...]:
    """Fields that only the auxiliary side reads: a Plain run fits into a stack with any values of them.

    For a backbone `cosine_every` is not one of them, since a Plain run measures its gradient norm at that interval.
    In another model a Plain run has no layers, so its norm is not measured.
    """
    return tuple(name for name in AUXILIARY if name != "cosine_every") if arch in BACKBONES else AUXILIARY


def runs_that_fit(spec: RunSpec, device: torch.device) -> int:
    if spec.arch not in BACKBONES:
        # The memory of other models is unknown before training: a stack that is too large is halved.
        return _MOST_ON_GPU["side_by_side"]
    total = torch.cuda.get_device_properties(device).total_memory
    return max(1, int(_SHARE * total / bytes_of_run(spec)))


def bytes_of_run(spec: RunSpec) -> int:
    """The memory in bytes that one run of this spec needs in training."""
    options = dict(spec.dataset_options)
    size, classes = int(str(options.get("image_size", 32))), class_count(spec.dataset, options) or 100
    channels, size, _ = input_shape(spec.dataset, options) or (3, size, size)
    arch_options: dict[str, Any] = {"image_size": size, "channels": channels, **dict(spec.arch_options)}
    backbone = build(spec.arch, classes=classes, seed=0, **arch_options)
    shape = (arch_options["channels"], arch_options["image_size"], arch_options["image_size"])
    activations = bytes_kept(backbone, shape) * spec.batch * (0.5 if spec.precision == "bf16" else 1.0)
    branches = max(1, spec.redundancy if spec.activation == "all" else 1) * classes * sum(backbone.widths)
    parameters = sum(value.numel() for value in backbone.parameters()) + branches
    return int(_HEADROOM * activations + (_COPIES + bool(spec.averaging)) * 4 * parameters)


def bytes_kept(backbone: Backbone, shape: tuple[int, ...]) -> float:
    """The memory in bytes that the forward pass of one image keeps for the backward pass."""
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    keeping = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with torch.inference_mode(False), torch.enable_grad(), keeping:
        weights = {name: torch.zeros(1, *v.shape, requires_grad=True) for name, v in backbone.named_parameters()}
        outputs = backbone.stacked(weights, torch.zeros(1, _SAMPLE, *shape))
    for value in weights.values():
        sizes.pop(value.untyped_storage().data_ptr(), None)
    del outputs  # not earlier: addresses would be reused
    return sum(sizes.values()) / _SAMPLE
