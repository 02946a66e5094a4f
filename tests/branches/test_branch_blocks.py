"""Which layers are found where none are named."""

import pytest
import torch
from torch import Tensor, nn

from asymtrain import UsageError, models
from asymtrain.branches import attach, find_blocks


class Stage(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())


class ResNetLike(nn.Module):
    def __init__(self, depths: tuple[int, ...] = (2, 2, 6, 2)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        for i, depth in enumerate(depths):
            setattr(self, f"layer{i + 1}", nn.Sequential(*(Stage(4) for _ in range(depth))))
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.conv1(x)))))
        return self.fc(self.pool(x).flatten(1))


class Wrapped(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.GELU()) for _ in range(depth))
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.encoder.layer:
            x = layer(x)
        return self.head(x)


def test_repeated_blocks_are_found_at_any_depth() -> None:
    assert find_blocks(Wrapped(3), torch.randn(4, 6)) == [f"encoder.layer.{i}" for i in range(3)]


def test_stages_are_layers_though_one_holds_most_layers() -> None:
    images = torch.randn(2, 3, 8, 8)
    assert find_blocks(ResNetLike(), images) == [f"layer{i}" for i in range(1, 5)]
    assert find_blocks(ResNetLike((1, 1, 30, 1)), images) == [f"layer{i}" for i in range(1, 5)]


def test_of_many_blocks_six_are_taken_the_last_among_them() -> None:
    assert find_blocks(Wrapped(24), torch.randn(4, 6)) == [f"encoder.layer.{i}" for i in (3, 7, 11, 15, 19, 23)]


def test_the_layer_that_gives_the_logits_is_no_layer() -> None:
    plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 4))
    assert find_blocks(plain, torch.randn(4, 6)) == ["0", "2", "4"]


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(UsageError, match="no repeated blocks"):
        find_blocks(nn.Linear(6, 4), torch.randn(4, 6))


def test_our_backbones_know_their_points() -> None:
    model = models.build("mlp", classes=4, seed=0)
    assert find_blocks(model, torch.randn(2, 3, 32, 32)) == list(model.points)


def test_of_two_blocks_the_one_that_is_not_the_output() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    assert find_blocks(encoder, torch.randn(12, 8, 16)) == ["layers.0"]


class Attention(nn.Module):
    """Products of one tensor stand side by side, and are no series."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.out((self.query(x) @ self.key(x).mT).softmax(-1) @ self.value(x))


class InPlace(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        x += super().forward(x)
        return x


def wrapped(*blocks: nn.Module) -> Wrapped:
    model = Wrapped(0)
    model.encoder.layer.extend(blocks)
    return model


def test_a_block_alone_is_a_layer_and_its_products_are_none() -> None:
    tokens = torch.randn(2, 3, 6)
    assert find_blocks(wrapped(Attention()), tokens) == ["encoder.layer.0"]


class Staged(nn.Module):
    """Stages in lists that are never called, each behind an embedding, as in CoaT."""

    def __init__(self) -> None:
        super().__init__()
        for i in range(3):
            setattr(self, f"embed{i}", nn.Linear(6, 6))
            setattr(self, f"stage{i}", nn.ModuleList(Attention() for _ in range(1 + i)))
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        for i in range(3):
            x = getattr(self, f"embed{i}")(x)
            for block in getattr(self, f"stage{i}"):
                x = block(x)
        return self.head(x)


def test_of_several_kinds_the_one_with_most_layers_is_repeated() -> None:
    found = find_blocks(Staged(), torch.randn(2, 3, 6))
    assert found == ["stage0.0", "stage1.0", "stage1.1", "stage2.0", "stage2.1", "stage2.2"]


def test_blocks_that_change_one_tensor_are_a_series() -> None:
    found = find_blocks(wrapped(*(InPlace(6, 6) for _ in range(4))), torch.randn(2, 3, 6))
    assert found == [f"encoder.layer.{i}" for i in range(4)]


def test_points_of_another_kind_are_no_layers() -> None:
    model = Wrapped(3)
    model.points = ("nose", "eye")
    assert find_blocks(model, torch.randn(4, 6)) == [f"encoder.layer.{i}" for i in range(3)]


def test_a_sample_on_which_the_model_cannot_be_called_is_refused_in_one_line() -> None:
    for sample, message in (
        (torch.randn(4, 7), "the model cannot be called on `sample` .*: give what the training loop gives"),
        ([torch.randn(4, 6), torch.zeros(4)], r"of a data loader, the inputs of one batch: x, _ = next"),
        (torch.full((4, 6), torch.nan), "`sample` contains NaN"),
    ):
        with pytest.raises(UsageError, match=message) as raised:
            attach(Wrapped(3), sample, 5)
        assert "\n" not in str(raised.value)


def test_attach_takes_the_blocks_where_no_layer_is_named() -> None:
    branches = attach(ResNetLike(), torch.randn(2, 3, 16, 16), 4)
    assert branches.layers == ("layer1", "layer2", "layer3", "layer4")
