"""Branches in a model that FSDP2 shards: attach, wrap, shard, train, strip, and keep a full state dict.

    python examples/fsdp2.py        two processes on a CPU, under half a minute

The order of calls is all there is to learn. `attach` sees the whole model, `WithBranches` makes model and branches one
module, and `fully_shard` then splits the weights of both between the processes. At the end the branches are stripped,
and the full state dict, gathered on rank 0, loads into a model without branches or shards.
"""

import argparse
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from asymtrain import WithBranches, attach

PROCESSES, LENGTH, WIDTH, CLASSES = 2, 16, 32, 4


class Reader(nn.Module):
    """Embedding, four transformer blocks, mean over positions, classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(CLASSES, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(4)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, CLASSES) of token numbers (B, LENGTH)."""
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def texts(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random tokens (count, LENGTH), and which of them is the most frequent (count,)."""
    drawn = torch.Generator().manual_seed(seed)
    shares = torch.rand(count, CLASSES, generator=drawn) ** 2
    tokens = torch.multinomial(shares, LENGTH, replacement=True, generator=drawn)
    return tokens, F.one_hot(tokens, CLASSES).sum(1).argmax(1)


def train(rank: int, steps: int, folder: str) -> None:
    """Train in one of the processes; rank 0 writes the full state dict and the losses of its steps into the folder."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=PROCESSES)
    torch.set_num_threads(1)
    torch.manual_seed(0)  # every process begins with the same weights
    model = Reader()
    branches = attach(model, at="blocks.[0-2]", sample=texts(2, seed=0)[0], classes=CLASSES, layout="BTD")
    net = WithBranches(model, branches)
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)  # the rest: the embedding, the classifier and the branches
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)  # after sharding, since that replaces the parameters

    losses = []
    for step in range(steps):
        tokens, labels = texts(32, seed=PROCESSES * step + rank)  # each process has batches of its own
        output, logits = net(tokens)
        main = F.cross_entropy(output, labels)
        optimizer.zero_grad()
        (main + branches.loss(labels, logits=logits)).backward()
        optimizer.step()
        losses.append(main.item())

    branches.strip(optimizer)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        torch.save({"model": state, "losses": losses}, Path(folder) / "trained.pt")
    dist.destroy_process_group()


def main() -> None:
    """Start the processes, then use their trained weights without branches or shards."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be 1 or more")
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (options.steps, folder), nprocs=PROCESSES)
        trained = torch.load(Path(folder) / "trained.pt")
    bare = Reader().eval()
    bare.load_state_dict(trained["model"])  # strict: the same names and shapes
    tokens, labels = texts(1000, seed=10**6)
    with torch.no_grad():
        accuracy = (bare(tokens).argmax(1) == labels).float().mean().item()
    losses = trained["losses"]
    print(f"{PROCESSES} processes, {len(losses)} steps: main loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last")
    print(f"{len(trained['model'])} tensors of the full state dict load into the bare model")
    print(f"its accuracy on unseen texts: {accuracy:.3f} (chance: {1 / CLASSES})")


if __name__ == "__main__":
    main()
