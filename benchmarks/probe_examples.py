"""The models of examples/ as families of benchmarks/probe.py: probed and trained by plain loops, on a CPU.

They are too small to gain from a GPU. A family's file keeps what is done seed by seed: the same call goes on there.
"""

import dataclasses
import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from asymtrain.errors import UsageError
from asymtrain.lab.probe import Shadow, Trial, probe
from asymtrain.lab.probe.budget import Plan
from asymtrain.lab.probe.inputs import Batches
from asymtrain.lab.probe.training import Settings, paired_trials
from probe_calibration import shadow_from_dict, trial_from_dict
from probe_families import ALPHAS, Family, Size

EXAMPLES = Path(__file__).parent.parent / "examples"
BATCH = 50
Item = tuple[Any, Tensor]


@dataclass(frozen=True)
class Example:
    """A model, its batches and the places for branches."""

    build: Callable[[], nn.Module]
    train: list[Item]
    test: list[Item]
    at: list[str]
    classes: int
    branch_options: dict[str, Any] = field(default_factory=dict)
    learning_rate: float = 2e-3


def measure_example(
    family: Family, size: Size, full_seeds: range, folder: Path, deadline: float
) -> tuple[Shadow, list[Trial], list[Trial]] | None:
    """The probe's shadow training and short trials, and full trials on test data; None where they stay missing."""
    short, full = size.example_steps
    file = folder / f"example-{family.name.replace(' ', '-')}-{short}-{full}.json"
    kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    wanted = [str(seed) for seed in full_seeds]
    if "shadow" not in kept or any(seed not in kept["full"] for seed in wanted):
        if time.monotonic() > deadline:
            return None
        torch.set_num_threads(1)  # for the same numbers on every machine; they are too small to gain from more
        made = EXAMPLES_BY_NAME[family.example]()
        if "shadow" not in kept:
            kept = {**_probed(made, size.probe_seeds, short), "full": {}}
            write_json(file, kept)
        for seed in wanted:
            if seed in kept["full"]:
                continue
            trials = _trained(made, int(seed), full, lambda: time.monotonic() < deadline)
            if not trials:
                return None
            kept["full"][seed] = [dataclasses.asdict(one) for one in trials]
            write_json(file, kept)
    by_seed = [[trial_from_dict(one) for one in kept["full"][seed]] for seed in wanted]
    return shadow_from_dict(kept["shadow"]), [trial_from_dict(one) for one in kept["trials"]], _joined(by_seed)


def _probed(made: Example, seeds: int, steps: int) -> dict[str, Any]:
    found = probe(
        made.build, made.train, made.at, classes=made.classes, alphas=ALPHAS, seeds=seeds, steps=steps,
        learning_rate=made.learning_rate, branch_options=made.branch_options,
    )  # fmt: skip
    return {"shadow": dataclasses.asdict(found.shadow), "trials": [dataclasses.asdict(one) for one in found.trials]}


def _trained(made: Example, seed: int, steps: int, go_on: Callable[[], bool]) -> list[Trial]:
    """Full runs of one seed, compared on the test batches."""
    items = [*made.train, *made.test]
    batches = Batches(items, range(len(made.train)), range(len(made.train), len(items)))
    settings = Settings(made.classes, learning_rate=made.learning_rate, branch_options=made.branch_options)
    return paired_trials(made.build, batches, settings, made.at, Plan(steps, (seed,), tuple(ALPHAS)), go_on)


def _joined(by_seed: list[list[Trial]]) -> list[Trial]:
    """One trial for each alpha, with all seeds."""
    return [
        dataclasses.replace(
            parts[0],
            seeds=tuple(part.seeds[0] for part in parts),
            plain=tuple(part.plain[0] for part in parts),
            asymmetric=tuple(part.asymmetric[0] for part in parts),
        )
        for parts in zip(*by_seed, strict=True)
    ]


def write_json(file: Path, values: dict[str, Any]) -> None:
    """In one piece: a process may be killed at any moment."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(values))
    new.replace(file)


def _module(name: str) -> Any:
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{name}.py does not import ({error}): install what it needs") from error


def text_example(train: int = 1500, test: int = 1000) -> Example:
    """The depth of nested brackets, read by a transformer encoder."""
    texts = _module("text_classification")

    def batches(count: int, seed: int) -> list[Item]:
        tokens, labels = texts.texts(count, seed)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        return [(tokens[chosen], labels[chosen]) for chosen in order.split(BATCH)]

    places = [f"encoder.layers.{i}" for i in range(4)]
    return Example(texts.Reader, batches(train, 0), batches(test, 1), places, texts.DEPTHS, {"layout": "BTD"})


def graph_example(train: int = 1500, test: int = 500) -> Example:
    """The rule that made a graph, seen by a graph network."""
    graphs = _module("graph_classification")
    here: dict[str, Tensor] = {}

    class Net(graphs.GraphNet):  # type: ignore[misc, name-defined]
        """Says which node belongs to which graph, for the branches."""

        def forward(self, x: Tensor, edges: Tensor, index: Tensor) -> Any:
            """As ever."""
            here["index"] = index
            return super().forward(x, edges, index)

    def batches(count: int, seed: int) -> list[Item]:
        order = torch.Generator().manual_seed(seed)
        loader = graphs.DataLoader(graphs.graphs(count, seed), batch_size=BATCH, shuffle=True, generator=order)
        return [((one.x, one.edge_index, one.batch), one.y) for one in loader]

    pool = {"pool": lambda nodes: graphs.global_mean_pool(nodes, here["index"])}
    places = [f"layers.{i}" for i in range(3)]
    return Example(Net, batches(train, 0), batches(test, 1), places, graphs.RULES, pool)


EXAMPLES_BY_NAME = {"text_classification": text_example, "graph_classification": graph_example}
