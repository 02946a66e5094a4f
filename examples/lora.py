"""Branches while a Hugging Face ViT is adapted with LoRA: what is frozen stays frozen, and the branches go.

    python examples/lora.py     five seeds, Plain against Asymmetric, under two minutes on a CPU

Needs transformers. A small ViT learns five kinds of drawn shapes, in place of a checkpoint from the hub. It is then
adapted to five other kinds from few images: LoRA adds a product of two thin matrices to each query and value map, and
only these and the new classifier train. Branches read the class token of each block; their gradients reach the thin
matrices.
"""

import copy
from collections.abc import Iterator
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification
from transformers.modeling_outputs import ImageClassifierOutput

from asymtrain import attach
from asymtrain.lab.data import load
from paired import fit, main

DATA_SIZE, TRAIN_SIZE, CLASSES, SIZE, DEPTH, RANK = 2500, 300, 5, 24, 4, 4
Batches = Iterator[tuple[tuple[Tensor], Tensor]]


class LoRA(nn.Module):
    """A frozen linear layer plus a product of two thin matrices, which begins at 0."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The base's output plus a change within RANK dimensions."""
        return self.base(x) + self.up(self.down(x))


def add_lora(model: nn.Module) -> None:
    """Freeze the model except its classifier, and put LoRA on the query and value maps of its attention."""
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in ("query", "value", "q_proj", "v_proj") and isinstance(child, nn.Linear):
                setattr(module, name, LoRA(child))


@cache
def shapes(first: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images and labels of five kinds from the first one on: to train on, and to test with."""
    data = load("shapes", classes=2 * CLASSES, size=DATA_SIZE, test_size=1000, image_size=SIZE)
    parts = []
    for part in (data.train, data.test):
        labels = torch.from_numpy(part.labels).long() - first
        wanted = (labels >= 0) & (labels < CLASSES)
        parts.append(((torch.from_numpy(part.images) / 128 - 1)[wanted], labels[wanted]))
    return parts[0], parts[1]


def batches(images: Tensor, labels: Tensor, order: torch.Generator) -> Batches:
    """One epoch in random order."""
    for chosen in torch.randperm(len(images), generator=order).split(50):
        yield (images[chosen],), labels[chosen]


def main_loss(output: ImageClassifierOutput, labels: Tensor) -> Tensor:
    """Hugging Face's models return an object that has the logits."""
    return F.cross_entropy(output.logits, labels)


@cache
def pretrained(epochs: int) -> ViTForImageClassification:
    """A ViT trained on the first five kinds."""
    torch.manual_seed(0)
    model = ViTForImageClassification(
        ViTConfig(
            image_size=SIZE, patch_size=6, hidden_size=48, intermediate_size=96, num_hidden_layers=DEPTH,
            num_attention_heads=4, num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip
    (images, labels), _ = shapes(0)
    fit(model, None, epochs, lambda: batches(images, labels, torch.default_generator), main_loss)
    return model


def train(seed: int, strength: float, epochs: int) -> tuple[float, float | None]:
    """Test accuracy on the new kinds and mean gradient cosine of one run; strength 0 is Plain."""
    model = copy.deepcopy(pretrained(epochs))
    torch.manual_seed(seed)
    model.classifier.reset_parameters()
    add_lora(model)
    (images, labels), (unseen, wanted) = shapes(CLASSES)
    order = torch.Generator().manual_seed(seed)
    few = torch.randperm(len(images), generator=order)[:TRAIN_SIZE]
    branches = None
    if strength:
        inner = list(range(DEPTH - 1))  # blocks by number: their path is another in each version of transformers
        options = {"preset": "paper", "head": "linear", "strength": strength, "seed": seed}
        branches = attach(model, at=inner, sample=images[:2], classes=CLASSES, pool="class_token", **options)
    chosen = images[few], labels[few]
    cosine = fit(model, branches, epochs, lambda: batches(*chosen, order), main_loss, lr=5e-3)
    with torch.no_grad():
        right = model.eval()(unseen).logits.argmax(1) == wanted
    return right.float().mean().item(), cosine


if __name__ == "__main__":
    main("ViT with LoRA", train, strength=0.3, epochs=12, description=__doc__.splitlines()[0])
