"""A small network, its data, and the loop that every adapter must equal: the one a user writes by hand."""

import os
import socket
import subprocess
import sys
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from asymtrain import attach

CLASSES, WIDTH, BATCH = 3, 8, 16
LAYERS = ["blocks.0", "blocks.1"]


class Net(nn.Module):
    """Two layers and a head."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def seeded(build, seed=0):
    torch.manual_seed(seed)
    return build()


def examples(batches=6):
    drawn = torch.Generator().manual_seed(1)
    x = torch.randn(batches * BATCH, WIDTH, generator=drawn)
    return x, torch.randint(0, CLASSES, (len(x),), generator=drawn)


def branches_on(model, **options):
    return attach(model, **{"sample": examples()[0][:2], "at": "blocks.*", "classes": CLASSES, **options})


def mixed(targets):
    """One value for each class, as mixup makes them."""
    rows = F.one_hot(targets, CLASSES).float()
    return 0.7 * rows + 0.3 * rows.flip(0)


def by_hand(model, *, epochs=2, accumulate=1, bf16=False, soft=False, **options):
    """Trains the model and gives back its branches: attach, the summed loss, one AdamW, strip."""
    x, y = examples()
    batches = epochs * [(a, mixed(b) if soft else b) for a, b in zip(x.split(BATCH), y.split(BATCH), strict=True)]
    branches = branches_on(model, **options)
    optimizer = torch.optim.AdamW([*model.parameters(), *branches.parameters()], lr=0.01)
    for i, (inputs, targets) in enumerate(batches, 1):
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            loss = F.cross_entropy(model(inputs), targets) + branches.loss(targets)
        (loss / accumulate).backward()
        if i % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            branches.step(i / len(batches))
    branches.strip(optimizer)
    return branches


def run_ranks(code, folder, ranks=2):
    """Runs Python code in processes that torch.distributed can bring together, as torchrun starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    here = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks),
                   "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}  # fmt: skip
    if sys.platform == "linux":  # the address that the machine's own name stands for may not be reachable
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    started = [
        subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], cwd=folder, stderr=-1, text=True,
                         env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0"})
        for rank in range(ranks)
    ]  # fmt: skip
    for process in started:
        _, error = process.communicate(timeout=300)
        assert process.returncode == 0, error[-2000:]


def assert_same_bits(first, second):
    first, second = first.state_dict(), second.state_dict()
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def assert_no_hooks(model):
    assert not [hook for part in model.modules() for hook in (*part._forward_hooks, *part._forward_pre_hooks)]


def assert_bare(model):
    """No hook, and the ONNX graph and weights of a model that never had branches."""
    assert_no_hooks(model)
    nodes, weights = _exported(model)
    assert nodes == _nodes_of_a_model_that_never_had_branches()
    assert weights == {name: value.numpy().tobytes() for name, value in model.state_dict().items()}


@cache
def _nodes_of_a_model_that_never_had_branches():
    nodes, _ = _exported(Net())
    assert len(nodes) > 3
    return nodes


def _exported(model):
    program = torch.onnx.export(model.eval(), (torch.zeros(2, WIDTH),), dynamo=True, verbose=False)
    graph = program.model_proto.graph
    nodes = [(node.op_type, tuple(node.input), tuple(node.output)) for node in graph.node]
    return nodes, {weight.name: weight.raw_data for weight in graph.initializer}
