"""What a run starts from: its images and labels, its initial weights, its random keys.

Everything is keyed by (seed, purpose) alone, so every loop starts a spec from the same numbers.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asymtrain import objectives, streams
from asymtrain.branches import draw_branches
from asymtrain.errors import UsageError
from asymtrain.lab.data import Dataset
from asymtrain.lab.data.augment import beta_quantiles
from asymtrain.lab.data.normalise import channel_statistics
from asymtrain.lab.data.subsets import few_shot, flip_labels, split
from asymtrain.lab.runs import RunSpec
from asymtrain.models import Backbone, build

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RunData:
    """Which images one run trains and validates on, with which labels."""

    train: Indices
    validation: Indices  # empty where the spec trains on everything
    labels: Indices  # of all training images, noise included
    mean: Tensor  # (3,), of the images this run trains on
    std: Tensor


def run_data(spec: RunSpec, dataset: Dataset) -> RunData:
    labels = dataset.train.labels
    seed = spec.seed if spec.split_seed is None else spec.split_seed
    if spec.validation == "split":
        train, validation = split(labels, seed)
    else:
        train, validation = np.arange(len(labels)), np.arange(0)
    if spec.per_class is not None:
        train = few_shot(labels, train, spec.per_class, spec.seed)
    noisy = flip_labels(labels, train, spec.label_noise, dataset.classes, spec.seed)
    mean, std = channel_statistics(dataset.train, train)
    return RunData(train, validation, noisy, torch.as_tensor(mean), torch.as_tensor(std))


def build_backbone(spec: RunSpec, dataset: Dataset) -> Backbone:
    """The spec's backbone with its initial weights, sized for the dataset's images."""
    channels, height, width = dataset.train.images.shape[1:]
    if height != width:
        raise UsageError(f"the backbones take square images, {dataset.name} has {height} x {width}: give image_size")
    seed = streams.key(spec.seed, "backbone") & (2**63 - 1)
    options = {"image_size": height, "channels": channels, **dict(spec.arch_options)}
    return build(spec.arch, classes=dataset.classes, seed=seed, **options)


def live_branches(spec: RunSpec, backbone: Backbone) -> list[Tensor]:
    """Initial weights of the branches that can be live at each point: [(N_live, C, D_k)]."""
    weights = draw_branches(spec.seed, backbone.widths, backbone.classes, max(1, spec.redundancy), spec.draw)
    return [w[-1:] if spec.activation == "last" else w for w in weights]


def initial_parameters(spec: RunSpec, dataset: Dataset, data: RunData, lead: RunSpec) -> dict[str, Tensor]:
    """What a run starts from by name: its backbone and, where `lead` has them, `branch.k` and `branch.k.bias`.

    A Plain run has a branch as well where its neighbours in a stack do; nothing of it reaches the backbone.
    """
    backbone = build_backbone(spec, dataset)
    start = {name: value.detach() for name, value in backbone.named_parameters()}
    if lead.redundancy:
        weights = live_branches(spec, backbone)
        start |= {f"branch.{k}": weight for k, weight in enumerate(weights)}
        if lead.branch_bias == "prior":
            prior = prior_bias(spec, data, dataset.classes)
            start |= {f"branch.{k}.bias": prior.expand(len(weight), -1) for k, weight in enumerate(weights)}
    return start


def prior_bias(spec: RunSpec, data: RunData, classes: int) -> Tensor:
    """Logits (C,) at which a branch gives each class its share of the training labels."""
    labels = torch.as_tensor(data.labels[data.train], dtype=torch.int64)
    return objectives.prior_bias(objectives.find_objective(spec.objective), classes, labels)


def random_labels(seed: int, count: int, classes: int) -> Tensor:
    """A label for each of `count` images that says nothing about it: (count,)."""
    keys = torch.tensor(streams.key(seed, "random branch labels"))
    return (streams.bits(keys, torch.arange(count)) & (2**63 - 1)) % classes


def stream_keys(specs: list[RunSpec], purpose: str, device: torch.device) -> Tensor:
    """One key for each run: (R,)."""
    return torch.tensor([streams.key(spec.seed, purpose) for spec in specs], device=device)


STREAMS = ("shuffle", "augment", "transform", "erase", "mix", "dropout", "noise")
"""Purposes of what is drawn at every epoch or step."""


def mixing_tables(specs: list[RunSpec], field: str, device: torch.device) -> Tensor | None:
    """The shares that mixup or cutmix chooses from in each run, (R, Q); None where there is no such mixing."""
    parameters = [getattr(spec, field) for spec in specs]
    if not any(parameters):
        return None
    assert all(parameters), "runs that mix and runs that do not are planned apart"
    return torch.stack([beta_quantiles(value) for value in parameters]).to(device)


def dropout_mask(keys: Tensor, step: Tensor | int, batch: int, width: int, rate: float) -> Tensor:
    """The scaled dropout mask of R runs at a step, (R, B, width): 0 or 1 / (1 - rate)."""
    position = torch.arange(batch * width, device=keys.device)
    drawn = streams.uniform(keys[:, None], step, position).view(len(keys), batch, width)
    return (drawn >= rate).to(torch.float32) / (1 - rate)


def learning_rates(spec: RunSpec, epoch: int, steps: int) -> npt.NDArray[np.float64]:
    """The rate at each of the steps of an epoch (from 0): one for the whole epoch, or one for each step.

    After the warm-up, a rise in equal parts, the schedule takes the updates that are left: constant; cosine and
    linear fall to zero; one_cycle rises from a 25th for three tenths of the training and falls to almost nothing,
    both by half a cosine, as `torch.optim.lr_scheduler.OneCycleLR` does.
    """
    by_step = spec.schedule_by == "step"
    unit = steps if by_step else 1  # moves of the rate in an epoch
    at = epoch * unit + np.arange(unit, dtype=np.float64)
    warm, total = spec.warmup * unit, spec.epochs * unit
    done, left = np.maximum(at - warm, 0), total - warm
    if spec.schedule == "cosine":
        rates = spec.learning_rate * 0.5 * (1 + np.cos(np.pi * done / left))
    elif spec.schedule == "linear":
        rates = spec.learning_rate * (1 - done / left)
    elif spec.schedule == "one_cycle":
        top, last, low = 0.3 * total - 1, total - 1, spec.learning_rate / 25
        rise = low + (spec.learning_rate - low) * 0.5 * (1 - np.cos(np.pi * at / max(top, 1)))
        fall = low / 1e4 + (spec.learning_rate - low / 1e4) * 0.5 * (1 + np.cos(np.pi * (at - top) / (last - top)))
        rates = np.where(at < top, rise, fall)
    else:
        rates = np.full(unit, spec.learning_rate)
    if warm:
        rates = rates * np.minimum(1, (at + 1) / warm)
    return rates if by_step else np.repeat(rates, steps)


def alpha_at(spec: RunSpec, epoch: int) -> float:
    """The weight of the auxiliary objective in an epoch (from 0)."""
    part = epoch / spec.epochs
    shares = {
        "constant": 1.0,
        "linear": 1 - part,
        "cosine": 0.5 * (1 + math.cos(math.pi * part)),
        "early": float(part < 0.5),
    }
    return spec.alpha * shares[spec.alpha_schedule]


def measures_at(every: int, step: int, steps: int) -> bool:
    """Is the cosine measured at this step (from 0) of training? At every so many, and at the first of each epoch."""
    return bool(every) and (step % every == 0 or step % steps == 0)


def tests_at(spec: RunSpec, epoch: int) -> bool:
    """Are the test images classified after this epoch (from 0)?"""
    return spec.test == "every" or (spec.test == "last" and epoch + 1 == spec.epochs)


def decays(spec: RunSpec, name: str, value: Tensor) -> bool:
    """Does weight decay act on this parameter? `value` is one run's tensor."""
    branch = name.startswith("branch.")
    if branch and spec.branch_weights == "frozen":
        return False
    if spec.decay == "all":
        return True
    matrix = not name.endswith("bias") and value.ndim >= 2 and "token" not in name and "position" not in name
    return matrix and not (branch and spec.decay == "backbone_matrices")
