"""Branches on a graph network: which rule made this graph?

    python examples/graph_classification.py     five seeds, Plain against Asymmetric, under two minutes on a CPU

Needs torch_geometric. Graphs of 20 to 40 nodes come from five rules, and a tenth of random edges is added to each.
Nodes know only their degree. A layer gives one row for each node, so the branches' `pool` takes the mean over each
graph: it reads from the current batch which node belongs to which graph.
"""

import itertools
from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_mean_pool
from torch_geometric.utils import (
    barabasi_albert_graph,
    coalesce,
    degree,
    erdos_renyi_graph,
    grid,
    stochastic_blockmodel_graph,
)

from asymtrain import attach
from paired import fit, main

RULES, WIDTH = 5, 32


def edges_of(rule: int, nodes: int) -> Tensor:
    """Edges (2, E) by one of the rules, all of about the same density."""
    if rule == 0:
        return erdos_renyi_graph(nodes, 4 / nodes)
    if rule == 1:
        return barabasi_albert_graph(nodes, 2)
    if rule == 2:
        half = nodes // 2
        return stochastic_blockmodel_graph([half, nodes - half], [[7 / nodes, 1 / nodes], [1 / nodes, 7 / nodes]])
    if rule == 3:
        return grid(nodes // 5, 5)[0]
    ring = torch.arange(nodes)
    return torch.cat([torch.stack([ring, (ring + step) % nodes]) for step in (1, 2, -1, -2)], 1)


@cache
def graphs(count: int, seed: int) -> list[Data]:
    """Graphs of all rules in turn, with a tenth of random edges added; features are the degrees."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = []
        for i in range(count):
            nodes = 5 * int(torch.randint(4, 9, ()))
            edges = edges_of(i % RULES, nodes)
            more = torch.randint(nodes, (2, edges.shape[1] // 10))
            edges = coalesce(torch.cat([edges, more, more.flip(0)], 1))
            sizes = (degree(edges[0], nodes) / 4).unsqueeze(1)
            made.append(Data(x=sizes, edge_index=edges, y=torch.tensor([i % RULES])))
    return made


class GraphNet(nn.Module):
    """Three GIN layers, mean over nodes, classifier."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [1, WIDTH, WIDTH, WIDTH]
        maps = [
            nn.Sequential(nn.Linear(a, WIDTH), nn.ReLU(), nn.Linear(WIDTH, b)) for a, b in itertools.pairwise(sizes)
        ]
        self.layers = nn.ModuleList(GINConv(one) for one in maps)
        self.head = nn.Linear(WIDTH, RULES)

    def forward(self, x: Tensor, edges: Tensor, index: Tensor) -> Tensor:
        """Logits (graphs, RULES) of nodes (nodes, 1), edges (2, E) and each node's graph (nodes,)."""
        for layer in self.layers:
            x = layer(x, edges).relu()
        return self.head(global_mean_pool(x, index))


def train(seed: int, strength: float, epochs: int) -> tuple[float, float | None]:
    """Test accuracy and mean gradient cosine of one run; strength 0 is Plain."""
    torch.manual_seed(seed)
    model = GraphNet()
    order = torch.Generator().manual_seed(seed)
    loader = DataLoader(graphs(500, seed), batch_size=50, shuffle=True, generator=order)
    first = next(iter(DataLoader(graphs(10, seed), batch_size=10)))
    here = {"index": first.batch}  # which node belongs to which graph, in the current batch
    branches = None
    if strength:
        sample = (first.x, first.edge_index, first.batch)
        mean = lambda nodes: global_mean_pool(nodes, here["index"])  # noqa: E731
        options = {"preset": "paper", "head": "linear", "strength": strength, "seed": seed}
        branches = attach(model, at="layers.*", sample=sample, classes=RULES, pool=mean, **options)

    def batches() -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        for batch in loader:
            here["index"] = batch.batch
            yield (batch.x, batch.edge_index, batch.batch), batch.y

    cosine = fit(model, branches, epochs, batches)
    test = next(iter(DataLoader(graphs(500, seed=1), batch_size=500)))
    with torch.no_grad():
        right = model.eval()(test.x, test.edge_index, test.batch).argmax(1) == test.y
    return right.float().mean().item(), cosine


if __name__ == "__main__":
    main("Graph network", train, strength=0.3, epochs=15, description=__doc__.splitlines()[0])
