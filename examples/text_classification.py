"""Branches on a small text transformer: how deep is a text of brackets nested?

    python examples/text_classification.py      five seeds, Plain against Asymmetric, under two minutes on a CPU

A text is a sequence of brackets of three kinds, between meaningless words; its class is the depth of the deepest
nesting, 1 to 6. The model is torch's own encoder: `attach` finds its layers by name. In the loop (`fit` in paired.py)
the loss takes one more term, and `strip` removes the branches.
"""

from collections.abc import Iterator
from functools import cache
from random import Random

import torch
from torch import Tensor, nn

from asymtrain import attach
from paired import fit, main

LENGTH, DEPTHS = 32, 6
OPENING, CLOSING, WORDS, BLANK = (1, 2, 3), (4, 5, 6), tuple(range(7, 12)), 0


def sentence(depth: int, drawn: Random) -> list[int]:
    """A text of this depth: it is reached once, followed by random steps up and down."""
    text: list[int] = []
    kinds: list[int] = []  # of the brackets that are open
    reached = False
    while len(text) + len(kinds) < LENGTH - 2 and (kinds or not reached or drawn.random() < 0.5):
        if drawn.random() < 0.3:
            text.append(drawn.choice(WORDS))
        if not kinds or not reached or (len(kinds) < depth and drawn.random() < 0.5):
            kinds.append(drawn.randrange(3))
            text.append(OPENING[kinds[-1]])
            reached = reached or len(kinds) == depth
        else:
            text.append(CLOSING[kinds.pop()])
    text += [CLOSING[kind] for kind in reversed(kinds)]
    return text + [BLANK] * (LENGTH - len(text))


@cache
def texts(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Token numbers (count, LENGTH) and depths less one (count,)."""
    drawn = Random(seed)
    labels = torch.arange(count) % DEPTHS
    return torch.tensor([sentence(int(label) + 1, drawn) for label in labels]), labels


class Reader(nn.Module):
    """Embedding, encoder, mean over positions, classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 32)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(32, DEPTHS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, DEPTHS) of token numbers (B, LENGTH)."""
        return self.head(self.encoder(self.words(tokens) + self.positions).mean(1))


def train(seed: int, strength: float, epochs: int) -> tuple[float, float | None]:
    """Test accuracy and mean gradient cosine of one run; strength 0 is Plain."""
    torch.manual_seed(seed)
    model = Reader()
    tokens, labels = texts(1500, seed)
    branches = None
    if strength:
        options = {"preset": "paper", "head": "linear", "strength": strength, "seed": seed}
        branches = attach(model, at="encoder.layers.*", sample=tokens[:2], classes=DEPTHS, layout="BTD", **options)
    order = torch.Generator().manual_seed(seed)

    def batches() -> Iterator[tuple[tuple[Tensor], Tensor]]:
        for chosen in torch.randperm(len(tokens), generator=order).split(50):
            yield (tokens[chosen],), labels[chosen]

    cosine = fit(model, branches, epochs, batches)
    unseen, depths = texts(1000, seed=1)
    with torch.no_grad():
        accuracy = (model.eval()(unseen).argmax(1) == depths).float().mean().item()
    return accuracy, cosine


if __name__ == "__main__":
    main("Text transformer", train, strength=0.3, epochs=8, description=__doc__.splitlines()[0])
