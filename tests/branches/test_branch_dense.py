"""Positions that are kept: maps and tokens, their targets, resolutions, shifts and masks."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain.branches import Branches, Dense, Parallel, attach
from asymtrain.errors import UsageError
from asymtrain.objectives import Huber

C, VOCABULARY = 4, 11


class UNet(nn.Module):
    """Two resolutions; the middle is half as wide as the image."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.up, self.head = nn.ConvTranspose2d(8, 6, 2, stride=2), nn.Conv2d(6, C, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.down(x)
        return self.head(F.relu(self.up(F.relu(self.middle(h)))) + h)


class Language(nn.Module):
    """Reads tokens (B, T) and gives logits of the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 6)
        self.blocks = nn.ModuleList([nn.Linear(6, 6) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = x + block(x).relu()
        return self.head(self.norm(x))


@pytest.fixture
def unet() -> tuple[nn.Module, Tensor]:
    return UNet(), torch.randn(2, 3, 8, 6)


@pytest.fixture
def language() -> tuple[nn.Module, Tensor]:
    return Language(), torch.randint(VOCABULARY, (3, 5))


OBJECTIVES = ["sigmoid", "softmax", "dice", "mse", "huber"]
TAGS = {"pool": "none", "objective": "softmax", "layout": "BTD"}


def masks(*shape: int) -> Tensor:
    return torch.randint(C, shape)


def at_pixels(unet: tuple[nn.Module, Tensor], at: str = "down", **options: object) -> Branches:
    """Branches at every pixel, after a forward."""
    model, x = unet
    branches = attach(model, x, C, at=at, **{"pool": "none", **options})
    model(x)
    return branches


def at_tokens(model: nn.Module, tokens: Tensor, at: str = "blocks.1", **options: object) -> Branches:
    """Branches at every token, after a forward."""
    branches = attach(model, tokens, VOCABULARY, at=at, **{**TAGS, **options})
    model(tokens)
    return branches


@pytest.mark.parametrize("activation", ["last", "all"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_maps_are_rows_of_pixels(unet: tuple[nn.Module, Tensor], objective: str, activation: str) -> None:
    """Against branches that read every pixel as a sample of its own."""
    model, x = unet
    options = {"head": Parallel(3, activation=activation), "objective": objective}
    dense = attach(model, x, C, at="down", pool="none", **options)
    by_pixel = attach(model, x, C, at="down", pool=lambda h: h.movedim(1, -1).flatten(0, 2), **options)
    model(x)
    y = masks(2, 8, 6)
    y[0, :3] = -100
    (logits,) = dense.logits().values()
    assert logits.shape == ((3,) if activation == "all" else ()) + (2, C, 8, 6)
    assert torch.allclose(dense.loss(y), by_pixel.loss(y.flatten()), atol=1e-6)
    assert torch.allclose(dense.accuracies(y)["down"], by_pixel.accuracies(y.flatten())["down"])
    first, second = (
        torch.autograd.grad(b.loss(t), model.down.weight, retain_graph=True)
        for b, t in ((dense, y), (by_pixel, y.flatten()))
    )
    assert torch.allclose(first[0], second[0], atol=1e-6)


def test_values_for_each_class_and_pixel(unet: tuple[nn.Module, Tensor]) -> None:
    branches, y = at_pixels(unet), masks(2, 8, 6)
    assert torch.allclose(branches.loss(F.one_hot(y, C).movedim(-1, 1).float()), branches.loss(y))


def test_one_output_takes_targets_without_a_class_axis(unet: tuple[nn.Module, Tensor]) -> None:
    model, x = unet
    branches = attach(model, x, at="down", objective=Huber(outputs=1), strength=1, pool="none")
    depth = model(x).detach()[:, 0]
    expected = F.huber_loss(branches.logits()["down"], depth[:, None])
    assert torch.allclose(branches.loss(depth), expected)
    assert torch.allclose(branches.loss(depth[:, None]), expected)


@pytest.mark.parametrize("resize", ["targets", "logits"])
def test_resolutions_that_differ(unet: tuple[nn.Module, Tensor], resize: str) -> None:
    model, x = unet
    branches = attach(model, x, C, at=["down", "middle"], objective="softmax", pool=Dense(resize))
    model(x)
    y, logits = masks(2, 8, 6), branches.logits()
    assert logits["middle"].shape == (2, C, 4, 3)
    if resize == "targets":
        near = F.interpolate(y[:, None].float(), (4, 3), mode="nearest-exact")[:, 0].long()
        expected = F.cross_entropy(logits["middle"], near)
    else:
        wide = F.interpolate(logits["middle"], (8, 6), mode="bilinear", align_corners=False)
        expected = F.cross_entropy(wide, y)
    losses = branches.losses(y)
    assert torch.allclose(losses["middle"], expected)
    assert torch.allclose(losses["down"], F.cross_entropy(logits["down"], y))


def test_resolutions_that_differ_are_refused_unless_a_rule_is_given(unet: tuple[nn.Module, Tensor]) -> None:
    branches = at_pixels(unet, "middle")
    assert branches.loss(masks(2, 4, 3)) > 0
    for mask in (None, torch.ones(2, 4, 3)):
        with pytest.raises(UsageError, match="4 x 3 positions, and the targets have 8 x 6"):
            branches.loss(masks(2, 8, 6), mask=mask)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.zeros(2, dtype=torch.int64), r"\(2, 8, 6\).*got \(2,\)"),
        (torch.full((2, 8, 6), C), rf"0\.\.{C - 1}.*check `classes`"),
        (torch.zeros(2, 8, 6), "class indices must be integers"),
        (torch.zeros(2, C + 1, 8, 6), "targets must have shape"),
        (torch.zeros(2, 1, 8, 6).long(), r"\(2, 1, 8, 6\): call .*squeeze\(1\)"),
        (torch.zeros(2, 8, 6, C), r"\(2, 8, 6, 4\): call targets.movedim\(-1, 1\)"),
        (torch.zeros(3, 8, 6, dtype=torch.int64), "one for each sample"),
        (torch.zeros(3, C, 8, 6), "one for each sample"),
    ],
)
def test_targets_that_fit_no_map(unet: tuple[nn.Module, Tensor], y: Tensor, message: str) -> None:
    for mask in (None, torch.ones(2, 8, 6)):
        with pytest.raises(UsageError, match=message):
            at_pixels(unet).loss(y, mask=mask)


def test_tokens_of_patches_become_maps_by_output(language: tuple[nn.Module, Tensor]) -> None:
    model, _ = language
    x = torch.randint(VOCABULARY, (2, 7))  # a class token, and 3 x 2 patches
    tokens = attach(model, x, C, at="blocks.*", preset="deep_supervision", layout="BTD")
    as_maps = {"layout": "BCHW", "output": lambda tokens: tokens[:, 1:].mT.unflatten(-1, (3, 2))}
    maps = attach(model, x, C, at="blocks.*", preset="deep_supervision", **as_maps)
    model(x)
    y = masks(2, 9, 6)
    with pytest.raises(UsageError, match=r"'blocks.0': .* got \(2, 9, 6\): .* make maps of the tokens"):
        tokens.loss(y)
    logits = maps.logits()["blocks.0"]
    assert logits.shape == (2, C, 3, 2)
    assert torch.allclose(maps.losses(y)["blocks.0"], F.cross_entropy(logits, y[:, 1::3, 1::3]))


def test_channels_last_and_time_first_become_the_usual_shapes() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.time = nn.Identity(), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x.movedim(1, -1)).mean((1, 2)) + self.time(x.flatten(2).permute(2, 0, 1)).mean(0)

    model, x = Odd(), torch.randn(2, 3, 5, 4)
    branches = attach(
        model, x, C, at=["last", "time"], head="linear", pool="none", layout={"last": "BHWC", "time": "TBD"}
    )
    model(x)
    logits = branches.logits()
    assert {name: tuple(values.shape) for name, values in logits.items()} == {"last": (2, C, 5, 4), "time": (2, 20, C)}
    expected = torch.einsum("bdhw,cd->bchw", x, branches.head("last").live)
    assert torch.allclose(logits["last"], expected, atol=1e-6)


def test_tokens_against_the_loop_written_out(language: tuple[nn.Module, Tensor]) -> None:
    branches, tokens = at_tokens(*language, "blocks.*", shift=1), language[1]
    logits = branches.logits()["blocks.0"]
    assert logits.shape == (3, 5, VOCABULARY)
    rows = [F.cross_entropy(logits[b, t], tokens[b, t + 1]) for b in range(3) for t in range(4)]
    assert torch.allclose(branches.losses(tokens)["blocks.0"], torch.stack(rows).mean())


def test_targets_that_are_the_inputs_are_refused(language: tuple[nn.Module, Tensor]) -> None:
    """A branch would learn to copy the token that it stands on."""
    model, tokens = language
    labels = tokens.clone()
    labels[0, 3:] = -100
    with pytest.raises(UsageError, match=r"the model's own inputs.*shift=1.*shift=0"):
        at_tokens(model, tokens).loss(labels)
    assert at_tokens(model, tokens, shift=0).loss(tokens) > 0
    assert at_tokens(model, tokens).loss((tokens + 1) % VOCABULARY) > 0

    class Batched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Language()

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return self.inner(batch["words"])

    outer, batch = Batched(), {"scale": torch.ones(3, 5), "words": tokens}
    branches = attach(outer, (batch,), VOCABULARY, at="inner.blocks.1", **TAGS)
    outer(batch)
    with pytest.raises(UsageError, match="the model's own inputs"):
        branches.loss(tokens)


def test_targets_that_are_shifted_already_are_not_shifted_again(language: tuple[nn.Module, Tensor]) -> None:
    """A branch would learn the token after the next."""
    model, text = language[0], torch.randint(VOCABULARY, (3, 6))
    tokens, later = text[:, :-1], text[:, 1:].clone()
    later[0, 2:] = -100
    branches = at_tokens(model, tokens, shift=1)
    for ask in (branches.loss, branches.losses):
        with pytest.raises(UsageError, match=r"shifted by one already.*shift=0"):
            ask(later)
    assert branches.loss(tokens) > 0
    for shift, right in ((0, later), (2, tokens), (1, tokens), (1, torch.full_like(tokens, 7))):
        branches.strip()
        # A text of one word is equal to all that follows.
        branches = at_tokens(model, right if right.unique().numel() == 1 else tokens, shift=shift)
        assert branches.loss(right) > 0


@pytest.mark.parametrize("options", [{"preset": "early_exit"}, {"pool": "none", "objective": "softmax"}])
def test_the_default_shift_of_a_causal_model_takes_no_shifted_targets(options: dict[str, str]) -> None:
    model = hugging_face("GPT2", "LMHeadModel")
    text = torch.randint(23, (3, 7))
    tokens, later = text[:, :-1], text[:, 1:]
    branches = attach(model, {"input_ids": tokens}, 23, at="transformer.h.0", **options)
    model(tokens)
    with pytest.raises(UsageError, match="shifted by one already"):
        branches.loss(later)
    assert branches.loss(tokens) > 0


@pytest.mark.parametrize(("shift", "message"), [(1, "shift moves the targets of tokens"), (-1, "shift must be")])
def test_a_shift_needs_tokens(unet: tuple[nn.Module, Tensor], shift: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        at_pixels(unet, pool="mean", shift=shift)


def test_targets_that_are_shifted_already_are_not_resized(language: tuple[nn.Module, Tensor]) -> None:
    model, tokens = language
    for shift, remedy in ((1, "which shift=1 moves"), (0, r"attach with shift=1; a class token.*tokens\[:, 1:\]")):
        branches = at_tokens(model, tokens, shift=shift)
        with pytest.raises(UsageError, match=rf"5 positions, and the targets have 4: .*{remedy}"):
            branches.loss(tokens[:, 1:])
        branches.strip()
    branches = at_tokens(model, tokens, shift=1, pool=Dense("targets"))
    model(tokens, padding=torch.ones(3, 5))
    for labels in (tokens[:, 1:], tokens.repeat(1, 2)):
        with pytest.raises(UsageError, match=r"labels of all tokens .* which shift=1 moves"):
            branches.loss(labels)


@pytest.mark.parametrize("shift", [5, 7])
def test_a_shift_beyond_the_last_token_is_refused(language: tuple[nn.Module, Tensor], shift: int) -> None:
    model, tokens = language
    branches = at_tokens(model, tokens, shift=shift)
    for ask in (branches.loss, branches.losses, branches.accuracies):
        with pytest.raises(UsageError, match=f"shift={shift} leaves none of the 5 tokens"):
            ask(tokens)
    longer = tokens.repeat(1, 2)
    model(longer)
    assert branches.loss(longer) > 0


@pytest.mark.parametrize("mask", ["padding", lambda tokens, padding=None: padding])
def test_padding_counts_neither_in_means_nor_in_losses(language: tuple[nn.Module, Tensor], mask: object) -> None:
    model, tokens = language
    padding = torch.ones(3, 5)
    padding[0, 2:] = padding[1, 4:] = 0
    options = {"at": "blocks.1", "head": "linear", "strength": 1, "layout": "BTD", "mask": mask}
    pooled = attach(model, tokens, VOCABULARY, **options)
    dense = attach(model, tokens, VOCABULARY, objective="softmax", pool="none", **options)
    model(tokens, padding=padding)
    feature = model.blocks[1](model.words(tokens) + model.blocks[0](model.words(tokens)).relu())
    mean = torch.stack([feature[b, : int(padding[b].sum())].mean(0) for b in range(3)])
    assert torch.allclose(pooled.logits()["blocks.1"], mean @ pooled.head("blocks.1").live.T, atol=1e-6)
    y = (tokens + 1) % VOCABULARY
    ignored = y.where(padding != 0, -100)
    assert torch.allclose(dense.loss(y), F.cross_entropy(dense.logits()["blocks.1"].mT, ignored))
    assert torch.allclose(dense.loss(y, mask=torch.ones(3, 5)), F.cross_entropy(dense.logits()["blocks.1"].mT, y))
    model(tokens)
    assert torch.allclose(dense.loss(y), F.cross_entropy(dense.logits()["blocks.1"].mT, y))


def test_masks_of_another_shape(language: tuple[nn.Module, Tensor]) -> None:
    model, tokens = language
    pooled = attach(model, tokens, VOCABULARY, at="blocks.1", layout="BTD", mask="padding")
    dense = attach(model, tokens, VOCABULARY, at="blocks.1", layout="BTD", pool="none", mask=None)
    model(tokens, padding=torch.ones(3, 4))
    with pytest.raises(UsageError, match=r"5 positions for each of 3 samples, and the mask has shape \(3, 4\)"):
        pooled.loss(tokens[:, 0])
    with pytest.raises(UsageError, match=r"shape \(3, 4\), and the targets need \(3, 5\): .* mask=None"):
        dense.loss((tokens + 1) % VOCABULARY, mask=torch.ones(3, 4))
    model(tokens, padding=torch.ones(3, 5))
    for shape in ((3, 5), (3, VOCABULARY)):
        with pytest.raises(UsageError, match=r"the targets need \(3,\)"):
            pooled.loss(torch.rand(3, VOCABULARY), mask=torch.ones(shape))
    with pytest.raises(UsageError, match="`mask` is the name"):
        attach(model, tokens, VOCABULARY, at="blocks.0", layout="BTD", mask=torch.ones(3, 5))


def additive(tokens: Tensor) -> Tensor:
    return torch.zeros(3, 5).masked_fill(torch.arange(5) > 2, float("-inf"))


@pytest.mark.parametrize(
    "mask",
    [additive, lambda tokens: torch.zeros(3, 5, dtype=torch.bool), lambda tokens: torch.full((3, 5), 0.5)],
    ids=["added", "none", "weights"],
)
@pytest.mark.parametrize("pool", ["mean", "none"])
def test_masks_that_mean_another_thing_are_refused(language: tuple[nn.Module, Tensor], mask: object, pool: str) -> None:
    """Added to attention scores, 0 is what counts; a `key_padding_mask` of torch is False there."""
    model, tokens = language
    branches = attach(model, tokens, VOCABULARY, at="blocks.*", layout="BTD", pool=pool, mask=mask)
    model(tokens)
    y = tokens[:, 0] if pool == "mean" else (tokens + 1) % VOCABULARY
    for ask in (branches.loss, branches.accuracies):
        with pytest.raises(UsageError, match="mask is not 1 where a position counts and 0 at padding: attach with ma"):
            ask(y)


class Usual(Language):
    """Its mask has the usual name."""

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return super().forward(tokens)


@pytest.mark.parametrize("pool", ["mean", "none"])
@pytest.mark.parametrize("flipped", [False, True], ids=["padded at the end", "padded at the beginning"])
@pytest.mark.parametrize(("kind", "name"), [(Language, "padding"), (Usual, "attention_mask")])
def test_an_argument_that_is_one_at_padding_is_refused(
    kind: type[nn.Module], name: str, pool: str, flipped: bool
) -> None:
    model, tokens = kind(), torch.randint(VOCABULARY, (3, 5))
    at_padding = torch.arange(5) >= torch.tensor([[2], [5], [4]])
    at_padding = at_padding.flip(1) if flipped else at_padding
    y = tokens[:, 0] if pool == "mean" else (tokens + 1) % VOCABULARY
    branches = attach(model, tokens, VOCABULARY, at="blocks.*", layout="BTD", pool=pool, mask=name)
    for mask in (at_padding, at_padding.float()):
        model(tokens, mask)
        with pytest.raises(UsageError, match=rf"the model's {name} looks like 1 at padding, .* Attach with mask=, a f"):
            branches.loss(y)
    model(tokens, ~at_padding)
    assert branches.loss(y) > 0


@pytest.mark.parametrize(
    ("mask", "counted"),
    [
        ("padding", [[1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 1, 0, 0, 0]]),  # a row of the batch that is empty
        ("padding", [[0, 1, 0, 0, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]]),  # some positions alone are learnt
        ("padding", [[1, 1, 0, 0, 0], [1, 1, 1, 1, 0], [1, 0, 0, 0, 0]]),
        (lambda tokens, padding: padding, [[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]]),  # who knows better
    ],
)
def test_masks_that_may_be_meant_are_taken(
    language: tuple[nn.Module, Tensor], mask: object, counted: list[list[int]]
) -> None:
    model, tokens = language
    branches = attach(model, tokens, VOCABULARY, at="blocks.*", layout="BTD", mask=mask)
    model(tokens, padding=torch.tensor(counted))
    assert branches.loss(tokens[:, 0]) > 0


def test_the_padding_mask_of_torch_is_refused_by_its_name() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2, enable_nested_tensor=False)
    with pytest.raises(UsageError, match=r"src_key_padding_mask is True at padding, .* returns the opposite"):
        attach(model, torch.randn(3, 5, 8), C, at="layers.*", mask="src_key_padding_mask")
    branches = attach(
        model, torch.randn(3, 5, 8), C, at="layers.*", mask=lambda src, src_key_padding_mask: ~src_key_padding_mask
    )
    model(torch.randn(3, 5, 8), src_key_padding_mask=torch.arange(5).expand(3, 5) > 2)
    assert branches.loss(torch.arange(3)) > 0


@pytest.mark.parametrize(
    ("objective", "values"),
    [*((name, values) for name in OBJECTIVES for values in (False, True)), (F.cross_entropy, False)],
)
def test_what_is_masked_may_be_anything(unet: tuple[nn.Module, Tensor], objective: object, values: bool) -> None:
    """Missing depths are NaN, and pixels at the border 255."""
    model, x = unet
    branches = attach(model, x, C, at="down", objective=objective, pool="none")
    mask = torch.rand(2, 8, 6) > 0.5
    known = torch.rand(2, C, 8, 6).softmax(1) if values else masks(2, 8, 6).byte()
    y = known.masked_fill(~mask.unsqueeze(1), float("nan")) if values else known.masked_fill(~mask, 255)
    losses, accuracies = [], []
    for goal in (y, known):
        model(x)
        losses.append(branches.loss(goal, mask=mask))
        accuracies.append(branches.accuracies(goal, mask=mask)["down"])
    assert torch.equal(*losses)
    assert torch.equal(*accuracies)
    losses[1].backward()
    assert model.down.weight.grad.isfinite().all()


@pytest.mark.parametrize("y", [torch.rand(2, 8, 6), torch.zeros(2, C, 8, 6).long(), torch.zeros(2, 8, 6).bool()])
def test_ones_own_objective_of_values_takes_no_mask(unet: tuple[nn.Module, Tensor], y: Tensor) -> None:
    with pytest.raises(UsageError, match="a mask cannot be used with an objective of your own"):
        at_pixels(unet, objective=lambda logits, y: logits.mean()).loss(y, mask=torch.ones(2, 8, 6))


def test_a_mask_of_samples(language: tuple[nn.Module, Tensor]) -> None:
    model, tokens = language
    branches = attach(model, tokens, VOCABULARY, at="blocks.1", layout="BTD")
    model(tokens)
    y, kept = tokens[:, 0], torch.tensor([True, False, True])
    logits = {name: values[kept] for name, values in branches.logits().items()}
    assert torch.allclose(branches.loss(y, mask=kept), branches.loss(y[kept], logits=logits))


@pytest.mark.parametrize("pool", [Dense(), Dense("targets")], ids=str)
def test_ones_own_objective_of_positions_needs_targets_with_positions(
    unet: tuple[nn.Module, Tensor], pool: Dense
) -> None:
    with pytest.raises(UsageError, match=r"targets must have shape \(2, 8, 6\) .* got \(2,\)$"):
        at_pixels(unet, objective=lambda logits, y: logits.mean(), pool=pool).loss(torch.tensor([0, 1]))


def test_ones_own_objective_sees_the_usual_shapes(unet: tuple[nn.Module, Tensor]) -> None:
    model, x = unet
    branches = attach(model, x, C, at=["down", "middle"], objective=F.cross_entropy, pool=Dense("targets"))
    by_name = attach(model, x, C, at=["down", "middle"], objective="softmax", pool=Dense("targets"))
    model(x)
    y = masks(2, 8, 6)
    assert torch.allclose(branches.loss(y), by_name.loss(y))
    assert torch.allclose(branches.accuracies(y)["middle"], by_name.accuracies(y)["middle"])


BERT = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIDES = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in
         {"ffn_dim": 16, "layers": 1, "attention_heads": 2}.items()}  # fmt: skip
SIZES = {
    "Bert": BERT,
    "GPT2": {"n_layer": 3, "n_embd": 16, "n_head": 2, "n_positions": 8, "eos_token_id": None, "bos_token_id": None},
    "T5": {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0},
    "Bart": {**SIDES, "d_model": 16, "eos_token_id": 2},
}


def hugging_face(family: str, task: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{family}Config")(**SIZES[family], vocab_size=23)
    return getattr(transformers, family + task)(config).eval()


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(7, 7), nn.Linear(7, 7)])
        self.head = nn.Linear(7, 10)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x).relu()
        return self.head(x)


class Segmenter(UNet):
    """Its decoder is a list, and gives two resolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.ModuleList([self.middle, self.up])


class Mixing(nn.Linear):
    """Each position sees those before it, as attention would have it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.cumsum(1))


class Reader(Language):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(50, 6), nn.Linear(6, 50)
        self.blocks = nn.ModuleList([Mixing(6, 6), Mixing(6, 6)])


def test_the_first_screen_of_the_guide_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "attaching.md").read_text()
    block = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert block is not None
    head, *uses = block[1].strip().split("\n\n")
    rows = {"model": Classifier(), "x": torch.randn(5, 7), "y": torch.arange(5), "depth": torch.randn(5)}
    pixels = {"unet": Segmenter(), "x": torch.randn(2, 3, 8, 6), "y": masks(2, 8, 6)}
    names = [rows, pixels, {"lm": Reader(), "tokens": torch.randint(50, (3, 5))}, rows, {**rows, "model": Classifier()}]
    assert len(uses) == len(names)
    for use, values in zip(uses, names, strict=True):
        space = {"F": F, "torch": torch, "alpha": 0.3, **values}
        exec(f"{head}\n{use}", space)
        space["loss"].backward()
        model = next(value for value in values.values() if isinstance(value, nn.Module))
        (branches,) = (value for value in space.values() if type(value).__name__ == "Branches")
        assert all(parameter.grad is not None for parameter in branches.parameters())
        assert {parameter.grad is None for parameter in model.parameters()} == {"probes" in space}
        branches.strip()


def test_a_causal_model_of_hugging_face_needs_no_options() -> None:
    """Its labels are its inputs, which it shifts itself; its padding is in `attention_mask`."""
    model = hugging_face("GPT2", "LMHeadModel")
    tokens, mask = torch.randint(23, (3, 6)), torch.ones(3, 6, dtype=torch.int64)
    mask[1, 4:] = 0
    sample = {"input_ids": tokens, "attention_mask": mask}
    branches = attach(model, sample, 23, at=[0, 1], preset="early_exit")
    output = model(**sample, output_hidden_states=True)
    labels = tokens.masked_fill(mask == 0, -100)
    logits = model.lm_head(model.transformer.ln_f(output.hidden_states[1]))
    expected = F.cross_entropy(logits[:, :-1].mT, labels[:, 1:])
    assert torch.allclose(branches.losses(labels)["transformer.h.0"], expected)
    assert torch.allclose(branches.losses(tokens)["transformer.h.0"], expected)  # the mask leaves the padding out


def test_a_decoder_has_padding_of_its_own() -> None:
    """Texts of both sides are equally long, so that a mask of the wrong side would fit."""
    model = hugging_face("T5", "ForConditionalGeneration")
    read, written = torch.ones(3, 6, dtype=torch.int64), torch.ones(3, 6, dtype=torch.int64)
    read[:, 2:] = written[1, 4:] = 0
    labels = torch.randint(1, 23, (3, 6))
    options = {"sample": {"input_ids": labels.flip(1), "labels": labels}, "classes": 23, "objective": "softmax"}
    options |= {"head": "linear", "strength": 1}
    decoder = attach(model, at="decoder.block.0", pool="none", shift=0, **options)
    encoder = attach(model, at="encoder.block.0", **options)
    inputs = {**options["sample"], "attention_mask": read}

    model(**inputs)
    logits = decoder.logits()["decoder.block.0"]
    assert torch.allclose(decoder.loss(labels), F.cross_entropy(logits.mT, labels))
    model(inputs["input_ids"], read, labels=labels, decoder_attention_mask=written, output_hidden_states=True)
    logits = decoder.logits()["decoder.block.0"]
    assert torch.allclose(decoder.loss(labels), F.cross_entropy(logits.mT, labels.where(written != 0, -100)))
    feature = model.encoder(inputs["input_ids"], read, output_hidden_states=True).hidden_states[1]
    rows = feature[:, :2].mean(1) @ encoder.head("encoder.block.0").live.T
    assert torch.allclose(encoder.logits()["encoder.block.0"], rows, atol=1e-5)

    both = attach(model, at="*.block.1", **options)
    with pytest.raises(UsageError, match="have different padding: attach to each side by itself"):
        model(**inputs)
    both.strip()


def test_a_decoder_that_reads_the_encoders_text_has_its_padding() -> None:
    model = hugging_face("Bart", "ForSequenceClassification")
    text = torch.tensor([[5, 6, 7, 2], [8, 2, 1, 1]])
    sample = {"input_ids": text, "attention_mask": (text != 1).long()}
    branches = attach(model, sample, 3, at="model.*coder.layers.0", head="linear")
    output = model(**sample, output_hidden_states=True)
    feature = output.decoder_hidden_states[1]
    rows = torch.stack([feature[0].mean(0), feature[1, :2].mean(0)])
    layer = "model.decoder.layers.0"
    assert torch.allclose(branches.logits()[layer], rows @ branches.head(layer).live.T, atol=1e-5)


def test_the_decoders_mask_is_not_one_at_padding_either() -> None:
    model = hugging_face("T5", "ForConditionalGeneration")
    text = torch.randint(1, 23, (3, 5))
    branches = attach(model, {"input_ids": text, "labels": text}, 4, at="decoder.block.0")
    model(text, labels=text, decoder_attention_mask=torch.arange(5) >= torch.tensor([[2], [5], [4]]))
    with pytest.raises(UsageError, match="decoder_attention_mask looks like 1 at padding"):
        branches.loss(torch.arange(3))


class Translator(nn.Module):
    """Source and target go through layers of their own; the mask is the source's."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 6)
        self.source, self.target, self.head = Mixing(6, 6), Mixing(6, 6), nn.Linear(6, VOCABULARY)

    def forward(self, target: Tensor, source: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        memory = self.source(self.words(source))
        if attention_mask is not None:
            memory = memory * attention_mask[..., None]
        return self.head(self.target(self.words(target)) + memory.sum(1, keepdim=True))


@pytest.mark.parametrize("pool", ["mean", "none"])
@pytest.mark.parametrize("with_mask", [False, True])
def test_the_usual_mask_is_of_the_input_that_it_masks(pool: str, with_mask: bool) -> None:
    """Both inputs have the mask's shape; a layer behind the other one is not masked."""
    model, mask = Translator(), torch.ones(3, 5)
    target, source = torch.randint(VOCABULARY, (2, 3, 5))
    mask[0, 2:] = mask[1, 4:] = 0
    y = torch.arange(3) if pool == "mean" else (target + 1) % VOCABULARY
    losses = {}
    for name, rule in (("usual", "attention_mask"), ("none", None), ("own", lambda *_, attention_mask: attention_mask)):
        sample = {"target": target, "source": source} | ({"attention_mask": mask} if with_mask else {})
        options = {"pool": pool, "mask": rule, "layout": "BTD", "objective": "softmax"}
        branches = attach(model, sample, VOCABULARY, at=["source", "target"], **options)
        model(target, source, attention_mask=mask)
        losses[name] = branches.losses(y)
        branches.strip()
    assert torch.equal(losses["usual"]["source"], losses["own"]["source"])
    assert torch.equal(losses["usual"]["target"], losses["none"]["target"])
    assert not torch.equal(losses["own"]["target"], losses["none"]["target"])


def test_the_mask_of_the_text_is_not_that_of_the_image() -> None:
    """Both have 17 positions."""
    transformers = pytest.importorskip("transformers")
    text = {**BERT, "vocab_size": 50, "max_position_embeddings": 17, "eos_token_id": 49, "bos_token_id": 0}
    config = transformers.CLIPConfig(text_config=text, vision_config={**BERT, "image_size": 16, "patch_size": 4})
    model, mask = transformers.CLIPModel(config).eval(), torch.ones(3, 17, dtype=torch.int64)
    mask[1, 9:] = 0
    inputs = {"input_ids": torch.randint(2, 50, (3, 17)), "pixel_values": torch.randn(3, 3, 16, 16)}
    branches = attach(model, {**inputs, "attention_mask": mask}, 4, at="*_model.encoder.layers.0", head="linear")
    output = model(**inputs, attention_mask=mask, output_hidden_states=True)
    feature = output.vision_model_output.hidden_states[1]
    text, image = branches.layers
    logits = branches.logits()
    assert torch.allclose(logits[image], feature.mean(1) @ branches.head(image).live.T, atol=1e-5)
    counted = output.text_model_output.hidden_states[1][1, :9]
    assert torch.allclose(logits[text][1], branches.head(text).live @ counted.mean(0), atol=1e-5)


@pytest.mark.parametrize("more", ["token_type_ids", "labels"])
def test_inputs_that_must_be_as_long_as_the_mask_hide_nothing(more: str) -> None:
    model = hugging_face("Bert", "ForMaskedLM")
    sample = {"input_ids": torch.randint(23, (3, 6)), "attention_mask": torch.ones(3, 6, dtype=torch.int64)}
    sample["attention_mask"][1, 4:] = 0
    sample[more] = torch.zeros(3, 6, dtype=torch.int64)
    branches = attach(model, sample, 4, at="bert.encoder.layer.0", head="linear")
    feature = model(**sample, output_hidden_states=True).hidden_states[1]
    (head,) = branches.heads.values()
    (logits,) = branches.logits().values()
    assert torch.allclose(logits[1], head.live @ feature[1, :4].mean(0), atol=1e-5)


class Causal(Language):
    """Its mask says which positions (T, T) see each other, and nothing about padding."""

    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.words(tokens)
        seen = F.scaled_dot_product_attention(x, x, x, attn_mask=attention_mask.bool())
        return self.head(self.blocks[0](seen))


@pytest.mark.parametrize("pool", ["mean", "none"])
@pytest.mark.parametrize(("batch", "seen"), [(5, 5), (3, 5), (5, 3)])
def test_a_mask_of_nothing_that_is_shown_is_refused(batch: int, seen: int, pool: str) -> None:
    model, tokens = Causal(), torch.randint(VOCABULARY, (batch, 5))
    mask = torch.ones(5, 5).tril()
    branches = attach(model, (tokens[:seen], mask), VOCABULARY, at="blocks.0", pool=pool, layout="BTD")
    model(tokens, mask)
    y = tokens[:, 0] if pool == "mean" else (tokens + 1) % VOCABULARY
    with pytest.raises(UsageError, match=r"nothing shows that the model's mask is about them.*mask=None"):
        branches.loss(y)


@pytest.mark.parametrize("mask", [torch.ones(3), torch.ones(3, 1, 5, 5)], ids=["samples", "scores"])
def test_usual_masks_of_other_shapes_are_no_crash(mask: Tensor) -> None:
    model, tokens = Usual(), torch.randint(VOCABULARY, (3, 5))
    branches = attach(model, (tokens, mask), VOCABULARY, at="blocks.0", layout="BTD")
    model(tokens, mask)
    with pytest.raises(UsageError, match="nothing shows"):
        branches.loss(tokens[:, 0])


def test_a_sample_without_the_mask_may_not_show_whose_it_is() -> None:
    model, texts = Translator(), (torch.randint(VOCABULARY, (3, 4)), torch.randint(VOCABULARY, (3, 5)))
    branches = attach(model, texts, VOCABULARY, at="target", layout="BTD")
    model(*texts)
    assert branches.loss(torch.arange(3)) > 0
    model(*texts, torch.ones(3, 5))
    with pytest.raises(UsageError, match="attach with a sample that has the mask"):
        branches.loss(torch.arange(3))
