"""How much of a device one run of a stack takes: counted, not tried.

What the forward pass keeps for the backward pass is counted on a tiny batch on the host and scaled to the spec's. The
estimate only has to be of the right order: a stack that does not fit after all is halved.
"""

from typing import Any

import torch
from torch import Tensor

from asymtrain.lab.runs import RunSpec
from asymtrain.models import build

_SAMPLE = 2  # images
_SHARE = 0.8  # of the device's memory: the rest is for the data, evaluation and fragments
_HEADROOM = 1.5  # gradients of activations, and what two captured graphs hold twice
_COPIES = 6  # of the weights: float32 and compute copies, gradient, two moments, the gathered gradient


def runs_that_fit(spec: RunSpec, device: torch.device) -> int:
    """How many runs like this one fit into a GPU's memory, at least one."""
    total = torch.cuda.get_device_properties(device).total_memory
    return max(1, int(_SHARE * total / bytes_of_run(spec)))


def bytes_of_run(spec: RunSpec) -> int:
    """Bytes that one run of this spec takes while it trains."""
    options = dict(spec.dataset_options)
    size, classes = int(str(options.get("image_size", 32))), int(str(options.get("classes", 100)))
    given: dict[str, Any] = {"image_size": size, "channels": 3, **dict(spec.arch_options)}
    backbone = build(spec.arch, classes=classes, seed=0, **given)
    weights = {name: value[None] for name, value in backbone.named_parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        images = torch.zeros(1, _SAMPLE, given["channels"], given["image_size"], given["image_size"])
        outputs = backbone.stacked(weights, images)
    for value in weights.values():
        kept.pop(value.untyped_storage().data_ptr(), None)
    activations = sum(kept.values()) / _SAMPLE * spec.batch * (0.5 if spec.precision == "bf16" else 1.0)
    branches = max(1, spec.redundancy if spec.activation != "last" else 1) * classes * sum(backbone.widths)
    parameters = sum(value.numel() for value in backbone.parameters()) + branches
    del outputs
    return int(_HEADROOM * activations + _COPIES * 4 * parameters)
