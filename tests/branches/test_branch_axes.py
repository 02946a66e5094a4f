"""Layouts are told by evidence or asked for, never guessed."""

import random

import pytest
import torch
import torch.nn.functional as F
from branch_zoo import CLASSES, Recurrent, Swin, Wave, bert, images, resnet, sequences, torch_transformer, vit, words
from torch import Tensor, nn

from asymtrain.branches import attach
from asymtrain.branches._axes import (
    Axis,
    BatchEvidence,
    LayerEvidence,
    feature_axis_of,
    infer_layout,
    lets_through,
)
from asymtrain.errors import UsageError


def layouts(model: nn.Module, at: object, sample: object, **options: object) -> list[str | None]:
    with attach(model, sample, CLASSES, at=at, **options) as branches:
        return [reader.layout for reader in branches.readers.values()]


class LayerNorm2d(nn.LayerNorm):
    """Libraries derive channels-first norms from torch's."""


FIRST = [nn.Conv2d(1, 1, 1), nn.Conv1d(1, 1, 1), nn.BatchNorm2d(1), nn.InstanceNorm1d(1), nn.GroupNorm(1, 1),
         nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)]  # fmt: skip
LAST = [nn.Linear(1, 1), nn.LayerNorm(4), nn.MultiheadAttention(2, 1)]
UNKNOWN = [nn.LayerNorm((3, 4)), LayerNorm2d(4), nn.ReLU(), nn.Sequential()]


def test_layers_know_their_axis() -> None:
    assert [[*map(feature_axis_of, layers)] for layers in (FIRST, LAST, UNKNOWN)] == [[1] * 7, [-1] * 3, [None] * 4]
    assert not any(map(lets_through, (nn.GLU(), nn.MultiheadAttention(2, 1), nn.Flatten())))  # not by elements


@pytest.mark.parametrize("layer", [nn.ReLU(), nn.GELU(), nn.Dropout2d(), nn.Identity(), nn.Softmax(1)])
def test_what_follows_a_layer_element_by_element_has_its_layout(layer: nn.Module) -> None:
    # A cube (B, 4, 4, 4) that no layer takes: the convolution before tells, through any number of such layers.
    class Cube(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Conv2d(3, 4, 1), layer, nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return self.block(x).mean((2, 3))

    assert layouts(Cube(), "block", torch.randn(2, 3, 4, 4)) == ["BCHW"]


# Width 4: the feature (B, 4, 4, 4) is told by the layers alone, and (B, 4, 4, 6) looks like (B, H, W, C).
@pytest.mark.parametrize("size", [(4, 4), (5, 5), (8, 8), (4, 6)])
def test_a_cnn_needs_no_layout_even_where_sizes_agree(size: tuple[int, int]) -> None:
    assert layouts(resnet(), ["0", "1", "2", "3"], torch.randn(4, 3, *size)) == ["BCHW"] * 4


def test_channels_last_is_told_by_its_layers() -> None:
    assert layouts(Swin(), "blocks.*", torch.randn(2, 3, 8, 8)) == ["BHWC"] * 2
    # Patches of 4: here the feature is (B, 6, 6, 6). The second block's norm tells of the first block only; at the
    # second, the axis that keeps its size on a smaller image tells.
    assert layouts(Swin(), "blocks.*", torch.randn(2, 3, 24, 24)) == ["BHWC"] * 2


class Functional(nn.Module):
    """No layer of torch is called, and images have one size."""

    def __init__(self, permute: bool = False, size: int | None = 8) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, 1, 1))
        self.stem = nn.Identity()
        self.permute, self.size = permute, size

    def forward(self, x: Tensor) -> Tensor:
        if self.size is not None and x.shape[2:] != (self.size, self.size):
            raise ValueError("another size")
        x = F.conv2d(x, self.weight)
        return self.stem(x.permute(0, 2, 3, 1) if self.permute else x).flatten(1)


@pytest.mark.parametrize("permute", [False, True])
def test_the_axis_that_keeps_its_size_on_a_smaller_image_has_the_features(permute: bool) -> None:
    model, x, layout = Functional(permute), images(), "BHWC" if permute else "BCHW"
    with pytest.raises(UsageError, match=r"'stem' gives shape .*pass layout='BCHW' .* or 'BHWC'"):
        attach(model, x, CLASSES, at="stem")
    assert layouts(model, "stem", x, layout=layout) == [layout]
    for size in (6, 8):
        assert layouts(Functional(permute, size=None), "stem", torch.randn(3, 3, size, size)) == [layout]


class Last(nn.Module):
    """A last block that ends in functions only, as many hand-written networks do."""

    def __init__(self, permute: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 1)
        self.body = Body(permute)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.conv(x)).flatten(1)[:, :CLASSES]


class Body(nn.Module):
    def __init__(self, permute: bool) -> None:
        super().__init__()
        self.conv, self.permute = nn.Conv2d(6, 6, 1), permute

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x) + x)
        return x.permute(0, 2, 3, 1) if self.permute else x


@pytest.mark.parametrize(
    ("permute", "size", "layout"), [(False, 8, "BCHW"), (True, 8, ""), (False, 6, ""), (True, 6, "")]
)
def test_a_shape_that_layers_make_is_read_as_theirs_where_no_other_axis_has_their_width(
    permute: bool, size: int, layout: str
) -> None:
    model, x = OneSize(Last(permute), size), torch.randn(2, 3, size, size)
    if layout:
        assert layouts(model, "model.body", x) == [layout]
    else:
        with pytest.raises(UsageError, match="pass layout="):
            attach(model, x, CLASSES, at="model.body")


class OneSize(nn.Module):
    """Takes images of one size only."""

    def __init__(self, model: nn.Module, size: int) -> None:
        super().__init__()
        self.model, self.size = model, size

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.size:
            raise ValueError("another size")
        return self.model(x)


def test_torch_transformer_is_sequence_first() -> None:
    layers = ["encoder.layers.0", "encoder.layers.1", "decoder.layers.0"]
    assert layouts(torch_transformer(), layers, sequences()) == ["TBD"] * 3


class TokenClassifier(nn.Module):
    """Images in, (B, classes) out, and a sequence-first encoder between."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 4, stride=4)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        tokens = (
            self.embed(x).flatten(2).permute(0, 2, 1) if self.batch_first else self.embed(x).flatten(2).permute(2, 0, 1)
        )
        return self.head(self.encoder(tokens).mean(1 if self.batch_first else 0))


@pytest.mark.parametrize("batch", [1, 3, 4, 5])
def test_sequence_first_is_never_read_as_batch_first(batch: int) -> None:
    # Four tokens: with a batch of four the sizes agree.
    model = TokenClassifier(batch_first=False)
    assert layouts(model, "encoder.layers.*", torch.randn(batch, 3, 8, 8)) == ["TBD"] * 2
    if batch > 1:
        assert layouts(model.encoder, "layers.*", torch.randn(4, batch, 8)) == ["TBD"] * 2


@pytest.mark.parametrize("batch", [1, 3, 4, 5])
def test_batch_first_layers_are_believed(batch: int) -> None:
    model = TokenClassifier(batch_first=True)
    assert layouts(model, "encoder.layers.*", torch.randn(batch, 3, 8, 8)) == ["BTD"] * 2
    assert layouts(model.encoder, "layers.*", torch.randn(batch, 4, 8)) == ["BTD"] * 2
    assert layouts(Recurrent(), "rnn", torch.randn(batch, 9, 4)) == ["BTD"]


def test_conv1d_is_channels_first() -> None:
    assert layouts(Wave(), "layers.*", torch.randn(3, 2, 12)) == ["BCT"] * 4


def test_hugging_face_blocks_need_no_layout() -> None:
    assert layouts(vit(), "vit.**.[01]", images()) == ["BTD"] * 2
    assert layouts(bert(), "bert.encoder.layer.*", words()) == ["BTD"] * 2
    # As many tokens as the batch, and as the width: told by no size.
    for size in (7, 8):
        square = {"input_ids": torch.randint(0, 30, (size, size))}
        assert layouts(bert(), "bert.encoder.layer.*", square) == ["BTD"] * 2


WORDS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2}
SEGFORMER = {"hidden_sizes": [8, 16, 16, 16], "depths": [1] * 4, "num_attention_heads": [1] * 4,
             "decoder_hidden_size": 16}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "task", "sizes", "blocks", "layout"),
    [
        ("Llama", "ForCausalLM", WORDS, "LlamaDecoderLayer", "BTD"),
        ("Qwen2", "ForCausalLM", WORDS | {"num_key_value_heads": 2}, "Qwen2DecoderLayer", "BTD"),
        ("GPT2", "LMHeadModel", GPT2, "GPT2Block", "BTD"),
        ("T5", "EncoderModel", T5, "T5Block", "BTD"),
        ("Bert", "ForTokenClassification", WORDS, "BertLayer", "BTD"),
        # In the first stage of 16 x 16 positions the width is 16 too.
        ("ConvNext", "ForImageClassification", {"hidden_sizes": [16, 16, 32, 64]}, "ConvNextStage", "BCHW"),
        ("Segformer", "ForSemanticSegmentation", SEGFORMER, "SegformerLayer", "BTD"),
    ],
)
def test_layouts_that_were_once_refused(
    family: str, task: str, sizes: dict[str, object], blocks: str, layout: str
) -> None:
    """Words have as many tokens as the batch has sentences."""
    transformers = pytest.importorskip("transformers")
    pixels = {"pixel_values": torch.randn(2, 3, 64, 64)}
    sample = pixels if family in ("ConvNext", "Segformer") else {"input_ids": torch.randint(0, 30, (4, 4))}
    vocabulary = {} if sample is pixels else {"vocab_size": 30}
    model = getattr(transformers, family + task)(getattr(transformers, f"{family}Config")(**sizes, **vocabulary))
    layers = [module for module in model.modules() if type(module).__name__ == blocks]
    assert layouts(model, layers, sample) == [layout] * len(layers) != []


class Mixing(nn.Module):
    """A block of an MLP-Mixer, which may give its axes exchanged."""

    def __init__(self, tokens: int, width: int, exchange: bool = False) -> None:
        super().__init__()
        self.norm, self.tokens, self.exchange = nn.LayerNorm(width), nn.Linear(tokens, tokens), exchange
        self.features = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm(x).mT).mT
        x = x + self.features(x).relu()
        return x.mT if self.exchange else x


class Mixer(nn.Module):
    def __init__(self, tokens: int, width: int, exchange: bool = False) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(5, width), nn.Linear(width, CLASSES)
        self.body = nn.ModuleList([Mixing(tokens, width), Mixing(tokens, width), Mixing(tokens, width, exchange)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.body:
            x = block(x)
        return self.head(x.mean(2 if self.body[-1].exchange else 1))


@pytest.mark.parametrize(("tokens", "width", "exchange"), [(6, 8, False), (6, 8, True), (8, 8, False), (8, 8, True)])
def test_where_layers_mix_tokens_a_last_block_is_asked_for(tokens: int, width: int, exchange: bool) -> None:
    """Tokens are features of the layer that mixes them. Earlier blocks are told by the norm of the next."""
    model, x = Mixer(tokens, width, exchange), torch.randn(4, tokens, 5)
    assert layouts(model, "body.[01]", x) == ["BTD", "BTD"]
    with pytest.raises(UsageError, match=r"'body.2' .* axis 1 or axis 2 may hold the features"):
        attach(model, x, CLASSES, at="body.*")


TAGGER = BatchEvidence(frozenset(), frozenset({(6, 3)}), frozenset())  # sequence-first, it returns (T, B)
IMAGES = BatchEvidence(frozenset({3}), frozenset(), frozenset({True}))
PAIRS = BatchEvidence(frozenset({2}), frozenset(), frozenset())


@pytest.mark.parametrize(
    ("shape", "axes", "batch", "layout"),
    [
        ((6, 3, 8), {-1}, TAGGER, ""),
        ((6, 4, 8), {-1}, TAGGER, "BTD"),
        ((4, 3, 8), {-1}, IMAGES, ""),  # the first axis is not the batch
        ((3, 3, 8), {-1}, IMAGES, "BTD"),
        ((4, 5, 3, 8), {-1}, IMAGES, ""),
        ((3, 5, 3, 8), {-1}, IMAGES, "BHWC"),
        ((2, 4, 5, 6), {1, -1}, PAIRS, ""),  # layers that contradict each other
        ((2, 4, 5, 6), {1}, PAIRS, "BCHW"),
        ((3,), {1}, BatchEvidence(frozenset(), frozenset(), frozenset()), ""),
        ((3, 2, 2, 2, 2, 2), {1}, BatchEvidence(frozenset(), frozenset(), frozenset()), ""),
    ],
)
def test_evidence_settles_a_layout_or_it_is_asked_for(
    shape: tuple[int, ...], axes: set[Axis], batch: BatchEvidence, layout: str
) -> None:
    evidence = LayerEvidence(by_identity=axes)
    if layout:
        assert infer_layout("x", shape, evidence, batch) == layout
    else:
        with pytest.raises(UsageError, match="pass layout="):
            infer_layout("x", shape, evidence, batch)


def test_rows_that_are_not_samples_are_asked_about() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.mix(x.flatten(0, 1)).unflatten(0, x.shape[:2]).mean(1)

    with pytest.raises(UsageError, match="gives 15 rows for a batch of 3"):
        attach(Flat(), torch.randn(3, 5, 8), CLASSES, at="mix")
    assert layouts(Flat(), "mix", torch.randn(3, 5, 8), layout="BD") == ["BD"]


def test_video_is_read_by_the_same_rule() -> None:
    model = nn.Sequential(nn.Conv3d(3, 4, 1), nn.ReLU())
    assert layouts(model, ["0", "1"], torch.randn(2, 3, 2, 5, 5)) == ["BCTHW"] * 2


def test_a_dict_gives_each_layer_its_own() -> None:
    model, x = TokenClassifier(batch_first=False), torch.randn(3, 3, 8, 8)
    layers = ["embed", "encoder.layers.0", "encoder.layers.1"]
    assert layouts(model, layers, x, layout={"encoder.**": "TBD"}) == ["BCHW", "TBD", "TBD"]
    with pytest.raises(UsageError, match=r"unknown layer in `layout` 'encodr.layers.0': did you mean"):
        attach(model, x, CLASSES, at=layers, layout={"encodr.layers.0": "TBD"})


@pytest.mark.parametrize("layout", ["BTT", "TD", "BCD", "BB", "", "BHW", "b d"])
def test_words_that_are_no_layout(layout: str) -> None:
    with pytest.raises(UsageError, match="is not one letter an axis with one B"):
        attach(resnet(), images(), CLASSES, at="2", layout=layout)


def test_a_layout_of_another_length_is_refused() -> None:
    with pytest.raises(UsageError, match=r"gives shape \(3, 4, 8, 8\), which does not have the axes of layout 'BTD'"):
        attach(resnet(), images(), CLASSES, at="2", layout="BTD")


class Drawn(nn.Module):
    """A model of random layers on random axes, whose layout is known by construction.

    Sizes are 2 to 4, so that batch, widths and positions coincide all the time.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = self.draw = random.Random(seed)
        torch.manual_seed(seed)
        self.images, self.width = draw.random() < 0.5, draw.randint(2, 4)
        self.batch, self.second, self.size = (draw.randint(2, 4) for _ in range(3))
        self.neighbours, self.steps = nn.ModuleList(), []
        channels = self.width
        for _ in range(draw.randint(1, 4)):
            kinds = ["linear", "mix", "norm", "cat", "add", "relu", "functional", *(["conv"] * 2 * self.images)]
            kind, wider = draw.choice(kinds), draw.randint(2, 4)
            if kind in ("linear", "cat"):
                self.neighbours.append(nn.Linear(channels, wider))
                channels = wider if kind == "linear" else channels + wider
            elif kind == "conv":
                self.neighbours.append(nn.Conv2d(channels, wider, 3, padding=1))
                channels = wider
            elif kind == "mix":  # positions mixed by a layer, as in an MLP-Mixer
                self.neighbours.append(nn.Linear(self.size, self.size))
            else:
                self.neighbours.append(
                    {"norm": nn.LayerNorm(channels), "add": nn.Linear(channels, channels)}.get(kind, nn.ReLU())
                )
            self.steps.append(kind)
        self.layer, self.head = nn.Identity(), nn.Linear(channels, CLASSES)
        self.axes = 4 if self.images else 3
        # Where the axes go before the layer: features and positions anywhere, the batch mostly first.
        self.order = list(range(1, self.axes))
        draw.shuffle(self.order)
        self.order.insert(draw.choice([0, 0, 0, 1]), 0)
        self.tagger = draw.random() < 0.3
        self.mixing = draw.random() < 0.7
        self.time_first = not self.images and draw.random() < 0.3

    def sample(self) -> Tensor:
        spatial = (self.second, self.size) if self.images else (self.size,)
        shape = (self.batch, self.width, *spatial) if self.images else (self.batch, *spatial, self.width)
        return torch.randn(shape).transpose(0, 1) if self.time_first else torch.randn(shape)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1) if self.time_first else x
        x = x.movedim(1, -1) if self.images else x
        if self.mixing:
            x = x + x.cumsum(1)
        for kind, layer in zip(self.steps, self.neighbours, strict=True):
            if kind == "conv":
                x = layer(x.movedim(-1, 1)).movedim(1, -1)
            elif kind == "mix":
                x = layer(x.transpose(-1, -2)).transpose(-1, -2)
            elif kind == "cat":
                x = torch.cat([x, layer(x)], -1)
            elif kind == "add":
                x = x + layer(x)
            elif kind == "functional":
                x = F.gelu(x) * 2
            else:
                x = layer(x)
        x = self.layer(x.permute(self.order).clone()).permute([self.order.index(axis) for axis in range(self.axes)])
        x = self.head(x if self.tagger else x.flatten(1, -2).mean(1))
        return x.transpose(0, 1) if self.tagger and self.time_first else x

    def truth(self) -> tuple[int, int]:
        return self.order.index(0), self.order.index(self.axes - 1)


def test_layouts_of_drawn_models_are_right_or_refused() -> None:
    told = 0
    for seed in range(200):
        model = Drawn(seed)
        try:
            (layout,) = layouts(model, "layer", model.sample())
        except UsageError:
            continue
        assert layout is not None
        told += 1
        assert (layout.index("B"), max(layout.find("C"), layout.find("D"))) == model.truth(), f"seed {seed}: {layout}"
    assert told > 100
