"""Token branches on a causal language model, which learns to answer from every depth: early exit.

    python examples/language_model.py       five seeds, Plain against Asymmetric, under two minutes on a CPU

Sentences of a small grammar are nested ("the fox that the owls see sleeps ."), and each verb agrees with its noun. The
generator knows the probability of each word that it draws, so the perplexity of a perfect model is known too. Branches
at the inner layers use the model's own norm and output layer (`head="tied"`). `branches.exits()` gives them as modules,
with which inference can stop at any depth.
"""

import math
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain import attach
from asymtrain.lab.report.table import Column, Table, make_rows
from asymtrain.lab.terminal import show_table
from paired import Measure, fit, main

NOUNS = [("fox", "foxes"), ("owl", "owls"), ("wolf", "wolves"), ("hare", "hares"), ("crow", "crows")]
SEES = [("sees", "see"), ("fears", "fear"), ("follows", "follow"), ("hears", "hear")]
SLEEPS = [("sleeps", "sleep"), ("runs", "run"), ("waits", "wait"), ("sings", "sing")]
WORDS = ["the", "that", ".", *(word for pair in (*NOUNS, *SEES, *SLEEPS) for word in pair)]
TRAIN_SIZE, LENGTH, WIDTH, DEPTH, DEEPEST, NESTS = 1000, 24, 48, 4, 3, 0.5


def sentence(drawn: Random) -> Iterator[tuple[str, float]]:
    """The words of a sentence, each with its probability after those before it."""
    numbers: list[int] = []  # of the nouns that wait for their verbs: 0 for one animal, 1 for several
    nests = True
    while nests:
        number = drawn.randrange(2)
        numbers.append(number)
        nests = len(numbers) < DEEPEST and drawn.random() < NESTS
        yield "the", 1.0
        yield drawn.choice(NOUNS)[number], 0.5 / len(NOUNS)
        if nests:
            yield "that", NESTS
    # Where the deepest noun could have been followed by "that" and was not, its verb says so.
    verb = 1.0 if len(numbers) == DEEPEST else 1 - NESTS
    for depth, number in reversed(list(enumerate(numbers))):
        verbs = SEES if depth else SLEEPS
        yield drawn.choice(verbs)[number], verb / len(verbs)
        verb = 1.0
    yield ".", 1.0


@cache
def texts(count: int, seed: int) -> tuple[Tensor, float]:
    """Word numbers (count, LENGTH + 1), and the perplexity of a reader who knows the grammar on all but the first."""
    drawn, rows, surprise = Random(seed), [], 0.0
    for _ in range(count):
        row: list[tuple[str, float]] = []
        while len(row) <= LENGTH:
            row += sentence(drawn)
        rows.append([WORDS.index(word) for word, _ in row[: LENGTH + 1]])
        surprise -= sum(math.log(chance) for _, chance in row[1 : LENGTH + 1])
    return torch.tensor(rows), math.exp(surprise / (count * LENGTH))


class Writer(nn.Module):
    """Embedding, layers that look back, norm, output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(len(WORDS), WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(DEPTH)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(WORDS))

    def states(self, tokens: Tensor, depth: int) -> Tensor:
        """What the first layers make of tokens (B, T): (B, T, WIDTH)."""
        x = self.words(tokens) + self.positions[: tokens.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for layer in self.layers[:depth]:
            x = layer(x, src_mask=mask, is_causal=True)
        return x

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, words) for the word after each."""
        return self.head(self.norm(self.states(tokens, DEPTH)))


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy over all positions."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


BY_DEPTH: dict[bool, list[list[float]]] = {False: [], True: []}  # perplexities at each depth, with and without branches


def train(seed: int, strength: float, epochs: int) -> tuple[float, float | None]:
    """Perplexity on unseen text and mean gradient cosine of one run; strength 0 is Plain."""
    torch.manual_seed(seed)
    model = Writer()
    rows, _ = texts(TRAIN_SIZE, seed)
    branches = None
    if strength:
        options = {"preset": "early_exit", "strength": strength}
        branches = attach(model, at=f"layers.[0-{DEPTH - 2}]", sample=rows[:2, :-1], classes=len(WORDS), **options)
    order = torch.Generator().manual_seed(seed)

    def batches() -> Iterator[tuple[tuple[Tensor], Tensor]]:
        for chosen in torch.randperm(len(rows), generator=order).split(25):
            yield (rows[chosen, :-1],), rows[chosen, 1:]  # the target of each word is the next

    cosine = fit(model, branches, epochs, batches, token_loss, lr=4e-3)
    exits = branches.exits() if branches else {}  # before or after strip: they need no hooks
    BY_DEPTH[bool(strength)].append(perplexities(model.eval(), exits))
    return BY_DEPTH[bool(strength)][-1][-1], cosine


def perplexities(model: Writer, exits: dict[str, nn.Module]) -> list[float]:
    """On unseen text, of an answer after each layer; layers without an exit answer by the model's own output layer."""
    rows, _ = texts(300, seed=1)
    found = []
    with torch.no_grad():
        for depth in range(1, DEPTH + 1):
            leave: Callable[[Tensor], Tensor] = exits.get(f"layers.{depth - 1}", nn.Sequential(model.norm, model.head))
            found.append(math.exp(token_loss(leave(model.states(rows[:, :-1], depth)), rows[:, 1:])))
    return found


def show_exits() -> None:
    """A table of perplexity by depth, mean over seeds."""
    columns = (Column("Answer after layer", "count"), Column("Plain", "number"), Column("Asymmetric", "number"))
    means = [[fmean(values) for values in zip(*BY_DEPTH[side], strict=True)] for side in (False, True)]
    note = f"A reader who knows the grammar: {texts(300, seed=1)[1]:.3f}."
    rows = make_rows(zip(range(1, DEPTH + 1), *means, strict=True))
    show_table(Table("exits", "\nPerplexity on unseen text at each exit, mean over seeds", columns, rows, note))


if __name__ == "__main__":
    text = __doc__.splitlines()[0]
    main("Writer", train, strength=0.9, epochs=4, description=text, measure=Measure("perplexity", lower_is_better=True))
    show_exits()
