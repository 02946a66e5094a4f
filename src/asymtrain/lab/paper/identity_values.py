"""Two identities, measured: a stripped network is one that never had branches, and idle branches change no weight."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from asymtrain.branches import attach
from asymtrain.lab.data.normalise import normalise
from asymtrain.lab.engine import load_for
from asymtrain.lab.engine.setup import build_backbone, run_data
from asymtrain.lab.engine.states import State, states_at
from asymtrain.lab.runs import RunSpec

MANY = 20
IMAGES = 64


@dataclass(frozen=True)
class IdentityWanted:
    """Both identities of one run, after one epoch."""

    spec: RunSpec  # with one branch
    name: str = "identity"
    epochs: tuple[int, ...] = (1,)
    kind: str = "identity"


def measure_identities(
    wanted: list[IdentityWanted], device: str | None, data_root: Path | None, cache: Path
) -> Iterator[tuple[IdentityWanted, dict[int, Any]]]:
    """How far the networks are apart: 0 where the identity is exact."""
    for one in wanted:
        short = dataclasses.replace(one.spec, epochs=1)
        pair = [dataclasses.replace(short, redundancy=count) for count in (1, MANY)]
        # Each by itself: a stack of other members may round otherwise.
        few, many = (states_at([spec], [1], device=device, data_root=data_root)[0] for spec in pair)
        yield one, {1: {"many": MANY, "weights": weights_apart(few, many), **_stripped(few, data_root)}}


def weights_apart(first: State, second: State) -> float:
    """The largest difference of a backbone weight."""
    names = [name for name in first.parameters if not name.startswith("branch.")]
    return max(float((first.parameters[name] - second.parameters[name]).abs().max()) for name in names)


def _stripped(state: State, data_root: Path | None) -> dict[str, float]:
    """A network that had branches against one that never had: outputs, and the number of weights."""
    dataset = load_for(state.spec, data_root)
    data = run_data(state.spec, dataset)
    images = normalise(torch.from_numpy(dataset.test.images[:IMAGES]), data.mean, data.std)
    weights = {name: value for name, value in state.parameters.items() if not name.startswith("branch.")}
    never, had = (build_backbone(state.spec, dataset) for _ in range(2))
    for network in (never, had):
        network.load_state_dict(weights)
        network.eval()
    branches = attach(
        had, list(had.points), images, dataset.classes, MANY, layout=had.layout, pool=had.pool, seed=state.spec.seed
    )
    with torch.inference_mode():
        branches.strip()
        apart = float((had(images) - never(images)).abs().max())
    count = sum(value.numel() for value in had.state_dict().values()) - sum(
        v.numel() for v in never.state_dict().values()
    )
    return {"outputs": apart, "parameters": float(count)}
