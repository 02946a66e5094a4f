"""The states that a landscape compares: one run at several redundancies."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from asymtrain.errors import UsageError
from asymtrain.lab.engine import load_for
from asymtrain.lab.engine.states import State, initial_state, states_at
from asymtrain.lab.runs import RunSpec

REDUNDANCIES = (0, 1, 20, 300)


def states_of_redundancies(
    specs: Iterable[RunSpec],
    redundancies: Sequence[int] = REDUNDANCIES,
    epoch: int = 0,
    *,
    device: torch.device | str | None = None,
    data_root: Path | None = None,
    cache: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[State]:
    """States of each spec at each redundancy after an epoch (0: before training); 0 is Plain.

    With single activation and an independent draw, every redundancy from 1 on trains the same network with the same
    live branch: it is made once, for the least of them. A run that diverged before the epoch is an error. `progress`
    is that of `states_at`.
    """
    if not redundancies or min(redundancies) < 0:
        raise UsageError(f"redundancies must be 0 (Plain) or more, got {list(redundancies)}")
    wanted = [dataclasses.replace(spec, redundancy=n) for spec in specs for n in dict.fromkeys(redundancies)]
    least = min((n for n in redundancies if n), default=0)
    trained = {spec: _representative(spec, least) for spec in wanted}
    distinct = list(dict.fromkeys(trained.values()))
    if epoch == 0:
        found = [initial_state(spec, load_for(spec, data_root)) for spec in distinct]
    else:
        found = states_at(distinct, [epoch], device=device, data_root=data_root, cache=cache, progress=progress)
    known = {state.spec: state for state in found}
    for spec in distinct:
        if spec not in known:
            raise UsageError(f"the run of seed {spec.seed} diverged before epoch {epoch}: look at an earlier one")
    return [State(spec, epoch, known[trained[spec]].parameters) for spec in wanted]


def _representative(spec: RunSpec, least: int) -> RunSpec:
    if spec.redundancy and spec.activation == "last" and spec.draw == "independent":
        return dataclasses.replace(spec, redundancy=least)
    return spec
