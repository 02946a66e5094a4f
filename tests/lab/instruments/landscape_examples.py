"""Small networks and slow ways to compute their losses, for the tests of landscapes."""

import dataclasses
import functools

import torch
import torch.nn.functional as F

from asymtrain.lab.data import registry
from asymtrain.lab.engine.setup import build_backbone
from asymtrain.lab.engine.states import initial_state
from asymtrain.lab.instruments.landscape.surface import evaluate, plane_through
from asymtrain.lab.runs import RunSpec
from small_backbones import SMALL


@functools.cache
def tiny_dataset():
    return registry.load("shapes", classes=3, size=60, test_size=10)


def spec_of(arch="mlp", **fields):
    options = {"dataset": "shapes", "dataset_options": {"classes": 3, "size": 60, "test_size": 10}}
    return RunSpec(arch=arch, arch_options=SMALL[arch], **{**options, "redundancy": 1, "epochs": 2, **fields})


def states_of(arch="mlp", redundancies=(0, 1, 20), **fields):
    specs = [dataclasses.replace(spec_of(arch, **fields), redundancy=n) for n in redundancies]
    return [initial_state(spec, tiny_dataset()) for spec in specs]


def slow_loss(spec, parameters, images, targets, *, total=False):
    """The loss of one network, in its own module with loaded weights; branches by their definition."""
    module = build_backbone(spec, tiny_dataset()).eval()
    module.load_state_dict({name: value for name, value in parameters.items() if not name.startswith("branch.")})
    seen = []
    hooks = [module.get_submodule(p).register_forward_hook(lambda m, i, out: seen.append(out)) for p in module.points]
    with torch.no_grad():
        loss = F.cross_entropy(module(images), targets)
        for k, out in enumerate(seen if total else []):
            features = {"BD": lambda x: x, "BCHW": lambda x: x.mean((2, 3)), "BTD": lambda x: x[:, 0]}[module.layout](
                out
            )
            for weight in parameters[f"branch.{k}"]:
                logits = features @ weight.T
                goal = F.one_hot(targets, logits.shape[1]).float()
                loss = loss + spec.alpha * F.binary_cross_entropy_with_logits(logits, goal)
    for hook in hooks:
        hook.remove()
    return loss.item()


def moved(center, directions, a, b):
    first, second = directions
    return {name: value + a * first[name] + b * second[name] for name, value in center.items()}


def surface(losses_at, center, directions, grid, chunk=16):
    return evaluate(plane_through(losses_at, center, directions), grid, chunk)
