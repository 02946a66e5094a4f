"""Does one strength mean the same everywhere? The gradients of main loss and branches in the trunk, on small models.

    python benchmarks/strength.py                the tables, in Markdown; some minutes
    python benchmarks/strength.py --model MLP    the tables of docs/attaching.md; about a minute

For every number of classes, number of layers with branches, width and objective: the norm of the branches' gradient
over the main loss's, at strength 1, in the model's parameters that both reach, for a new model and after one epoch of
training with strength 0.5. The second table has the largest factor between two settings that differ in only one of
these, and between any two; beside it the same in the paper's unit, where losses are averaged over classes and summed
over layers.
"""

import argparse
import itertools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain import attach
from asymtrain.branches import Branches

DEPTH, FEATURES, BATCH, SAMPLES = 12, 48, 128, 2048
AXES: dict[str, tuple[Any, ...]] = {
    "model": ("MLP", "transformer"),
    "classes": (10, 100, 1000),
    "layers": (2, 4, 12),
    "width": (64, 128),
    "objective": ("sigmoid", "softmax"),
}


class Setting(NamedTuple):
    """A case in which one strength should mean the same as in all others."""

    model: str
    classes: int
    layers: int
    width: int
    objective: str


class Residual(nn.Module):
    """A block of an MLP with skip connections."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Output of the same shape."""
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Tokens (B, T, FEATURES) to classes, through `DEPTH` blocks."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        width = setting.width
        self.stem = nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList(
            Residual(width)
            if setting.model == "MLP"
            else nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(DEPTH)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, setting.classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.mean(1)))


def data_of(setting: Setting) -> tuple[Tensor, Tensor]:
    """Noisy prototypes of the classes, as four tokens."""
    drawn = torch.Generator().manual_seed(1)
    prototypes = torch.randn(setting.classes, 4, FEATURES, generator=drawn)
    y = torch.randint(0, setting.classes, (SAMPLES,), generator=drawn)
    return prototypes[y] + torch.randn(SAMPLES, 4, FEATURES, generator=drawn), y


def ratio(model: nn.Module, branches: Branches, x: Tensor, y: Tensor) -> float:
    """|gradient of the branches| / |gradient of the main loss|, over what both reach."""
    weights = list(model.parameters())
    main = F.cross_entropy(model(x), y)
    sides = [torch.autograd.grad(loss, weights, allow_unused=True, retain_graph=True)
             for loss in (main, branches.loss(y))]  # fmt: skip
    both = [(one, other) for one, other in zip(*sides, strict=True) if one is not None and other is not None]
    of_main, of_branches = (torch.cat([value.flatten() for value in side]).norm() for side in zip(*both, strict=True))
    return float(of_branches / of_main)


def measure(setting: Setting, preset: str) -> tuple[float, float]:
    """The ratio at strength 1, when the model is new and after an epoch."""
    torch.manual_seed(0)
    model = Net(setting)
    x, y = data_of(setting)
    at = [DEPTH * (k + 1) // setting.layers - 1 for k in range(setting.layers)]
    paper = {"head": "linear"} if preset == "paper" else {}
    objective = {} if preset == "paper" and setting.objective == "sigmoid" else {"objective": setting.objective}
    branches = attach(
        model, x[:4], setting.classes, at=at, layout="BTD", strength=1, preset=preset, **objective, **paper
    )
    optimizer = torch.optim.AdamW([*model.parameters(), *branches.parameters()], lr=1e-3)
    new = ratio(model, branches, x[:BATCH], y[:BATCH])
    for part in torch.arange(SAMPLES).split(BATCH):
        optimizer.zero_grad()
        (F.cross_entropy(model(x[part]), y[part]) + 0.5 * branches.loss(y[part])).backward()
        optimizer.step()
    return new, ratio(model, branches, x[:BATCH], y[:BATCH])


def factors(ratios: dict[Setting, float]) -> Iterator[tuple[str, float]]:
    """For each axis the largest factor between two settings that differ only in it; and between any two."""
    for axis in Setting._fields:
        groups: dict[Setting, list[float]] = {}
        for setting, value in ratios.items():
            groups.setdefault(setting._replace(**{axis: None}), []).append(value)
        yield axis, max(spread(values) for values in groups.values())
    yield "all of these", spread(list(ratios.values()))


def spread(values: Sequence[float]) -> float:
    return max(values) / min(values)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", nargs="+", choices=AXES["model"], default=AXES["model"])
    options.add_argument("--all", action="store_true", help="print every setting")
    chosen = options.parse_args()
    settings = [Setting(*values) for values in itertools.product(*(AXES | {"model": chosen.model}).values())]
    columns = {}
    for preset in ("recommended", "paper"):
        pairs = {setting: measure(setting, preset) for setting in settings}
        for index, when in enumerate(("new", "after an epoch")):
            columns[preset, when] = {setting: pair[index] for setting, pair in pairs.items()}
    ours = {when: columns["recommended", when] for when in ("new", "after an epoch")}
    if chosen.all:
        rows = [
            [*map(str, setting), *(f"{column[setting]:.2f}" for column in columns.values())] for setting in settings
        ]
        print(table([*Setting._fields, *(f"{preset}, {when}" for preset, when in columns)], rows) + "\n")
    rows = []
    for axis in Setting._fields:
        for value in dict.fromkeys(getattr(setting, axis) for setting in settings):
            medians = [
                statistics.median(v for s, v in column.items() if getattr(s, axis) == value) for column in ours.values()
            ]
            rows.append([axis, str(value), *(f"{median:.2f}" for median in medians)])
    print(table(["median ratio by", "", *ours], rows) + "\n")
    spreads = [dict(factors(column)) for column in columns.values()]
    rows = [[axis, *(f"{each[axis]:.1f}" for each in spreads)] for axis in spreads[0]]
    names = {"recommended": "strength", "paper": "the paper's alpha"}
    print(table(["largest factor by", *(f"{names[preset]}, {when}" for preset, when in columns)], rows))


if __name__ == "__main__":
    main()
