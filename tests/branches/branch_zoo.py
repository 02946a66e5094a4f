"""Models as users write them. Every shared property is tested on each: a new model is one entry in CASES."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain.branches import Branches, attach

CLASSES = 5
BATCH = 3


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    at: Any
    sample: Callable[[], Any]  # a tensor, a tuple or a dict
    layers: tuple[str, ...]
    widths: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)


class Cnn(nn.Module):
    """Functional ReLU, max-pool and mean: no layer takes or makes the last feature itself."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 3, padding=1)])
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.convs[0](x))), 2)
        x = F.relu(self.convs[1](x), inplace=True)
        return self.head(self.drop(x.mean((2, 3))))


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(y)) + x)


class ChannelsLast(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.mix(self.norm(x)))


class Swin(nn.Module):
    """Channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 6, 4, stride=4)
        self.blocks = nn.ModuleList([ChannelsLast(6), ChannelsLast(6)])
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).permute(0, 2, 3, 1)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


class Tied(nn.Module):
    """One block, called twice in a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(7, 6)
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.block(self.stem(x))))


class Wave(nn.Module):
    """1-d convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(2, 6, 3), nn.ReLU(), nn.Conv1d(6, 6, 3), nn.ReLU())
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean(-1))


class Recurrent(nn.Module):
    """A layer whose output is a nested tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 6, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(7, 8), nn.ReLU(inplace=True), nn.Linear(8, 6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, CLASSES)
    )


def resnet() -> nn.Module:
    stem = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), Residual(4), Residual(4)]
    return nn.Sequential(*stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES))


def torch_transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    decoder_layer = nn.TransformerDecoderLayer(8, 2, 16)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Transformer(
        8, 2, custom_encoder=encoder, custom_decoder=nn.TransformerDecoder(decoder_layer, 1), dim_feedforward=16
    )


def vit() -> nn.Module:
    transformers = __import__("transformers")
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4
    )
    config.num_labels = CLASSES
    return transformers.ViTForImageClassification(config)


def bert() -> nn.Module:
    transformers = __import__("transformers")
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=30
    )
    config.num_labels = CLASSES
    return transformers.BertForSequenceClassification(config)


def images() -> Tensor:
    return torch.randn(BATCH, 3, 8, 8)


def rows() -> Tensor:
    return torch.randn(BATCH, 7)


def sequences() -> tuple[Tensor, Tensor]:
    return torch.randn(6, BATCH, 8), torch.randn(4, BATCH, 8)


def words() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 30, (BATCH, 7)), "attention_mask": torch.ones(BATCH, 7, dtype=torch.int64)}


# By version, not by looking: importing transformers takes seconds, and not every test needs it.
VIT = "vit.layers" if int(version("transformers").split(".")[0]) >= 5 else "vit.encoder.layer"
CASES = [
    Case("mlp", mlp, ["1", "3"], rows, ("1", "3"), (8, 6)),
    Case("cnn", Cnn, "convs.*", images, ("convs.0", "convs.1"), (8, 12)),
    Case("resnet", resnet, ["2", "3"], images, ("2", "3"), (4, 4)),
    Case("swin", Swin, "blocks.*", images, ("blocks.0", "blocks.1"), (6, 6)),
    Case("tied", Tied, "block", rows, ("block",), (6,)),
    Case("wave", Wave, "layers.[13]", lambda: torch.randn(BATCH, 2, 12), ("layers.1", "layers.3"), (6, 6)),
    Case("recurrent", Recurrent, "rnn", lambda: torch.randn(BATCH, 9, 4), ("rnn",), (6,)),
    Case(
        "torch_transformer",
        torch_transformer,
        "encoder.layers.*",
        sequences,
        ("encoder.layers.0", "encoder.layers.1"),
        (8, 8),
    ),
    Case("hf_vit", vit, f"{VIT}.*", images, (f"{VIT}.0", f"{VIT}.1"), (8, 8), {"pool": "class_token"}),
    Case("hf_bert", bert, "bert.encoder.layer.*", words, ("bert.encoder.layer.0", "bert.encoder.layer.1"), (8, 8)),
]


def call(model: nn.Module, sample: Any) -> Tensor:
    """The model's main output, one row a sample."""
    if isinstance(sample, dict):
        output = model(**sample)
    elif isinstance(sample, tuple):
        output = model(*sample)
    else:
        output = model(sample)
    output = getattr(output, "logits", output)
    return output.mean(0) if output.ndim == 3 else output


def targets() -> Tensor:
    return torch.arange(BATCH) % CLASSES


def build(case: Case, seed: int = 0) -> tuple[nn.Module, Any]:
    """The same model and sample for the same seed."""
    torch.manual_seed(seed)
    return case.build(), case.sample()


def attached(
    model: nn.Module | None = None, x: Tensor | None = None, **options: Any
) -> tuple[nn.Module, Tensor, Branches]:
    """A model, a batch, and branches on the model: by default on both activations of `mlp`."""
    model = mlp() if model is None else model
    x = rows() if x is None else x
    return model, x, attach(model, x, **{"classes": CLASSES, "at": ["1", "3"], **options})


def hooks_in(model: nn.Module) -> list[object]:
    """Every hook of any kind anywhere in the model."""
    kinds = [name for name in vars(nn.Module()) if name.endswith("_hooks") and "state_dict" not in name]
    assert len(kinds) >= 4
    return [hook for module in model.modules() for kind in kinds for hook in getattr(module, kind).values()]


def bits_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def assert_same_bits(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different
