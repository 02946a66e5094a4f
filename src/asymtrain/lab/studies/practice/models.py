"""Models for images of 32 x 32 that timm has no option for: `package.module:function` of a spec.

Four are made of timm's parts; the two of published tables follow their authors' scripts.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def resnet18(classes: int, drop_rate: float = 0.0) -> nn.Module:
    """ResNet-18 with a stem of 3 x 3, without stride or pooling."""
    from timm.models.resnet import BasicBlock

    return _resnet(BasicBlock, classes, (64, 128, 256, 512), drop_rate)


def plain18(classes: int, drop_rate: float = 0.0) -> nn.Module:
    """The same 18 layers without shortcuts, half as wide after the stem."""
    from timm.models.resnet import BasicBlock

    class PlainBlock(BasicBlock):  # type: ignore[misc]  # timm is not installed where mypy runs
        """A block whose input is not added to its output."""

        def forward(self, maps: Tensor) -> Tensor:
            inner = self.act1(self.bn1(self.conv1(maps)))
            return cast(Tensor, self.act2(self.bn2(self.conv2(inner))))

    model = _resnet(PlainBlock, classes, (32, 64, 128, 256), drop_rate)
    for module in model.modules():
        if isinstance(module, PlainBlock):
            module.downsample = None  # part of the shortcut
            nn.init.ones_(module.bn2.weight)  # timm initialises it with 0, and nothing would pass
    return model


def convnext(classes: int, drop_rate: float = 0.0) -> nn.Module:
    """ConvNeXt-Atto whose maps begin at 16 x 16 and end at 2 x 2; timm's would end at one pixel."""
    from timm import create_model

    model = create_model("convnext_atto", num_classes=classes, patch_size=2, drop_rate=drop_rate)
    model.stages[0].downsample = nn.Identity()
    return cast(nn.Module, model)


def mixer(classes: int, image_size: int = 32, drop_rate: float = 0.0, drop_path_rate: float = 0.0) -> nn.Module:
    """MLP-Mixer of 8 blocks, 256 wide, with patches of 4 x 4."""
    from timm.models.mlp_mixer import MlpMixer

    sizes = {"img_size": image_size, "patch_size": 4, "num_blocks": 8, "embed_dim": 256}
    rates = {"drop_rate": drop_rate, "drop_path_rate": drop_path_rate}
    return cast(nn.Module, MlpMixer(num_classes=classes, **sizes, **rates))


def _resnet(block: Any, classes: int, widths: tuple[int, ...], drop_rate: float) -> nn.Module:
    from timm.models.resnet import ResNet

    model = ResNet(block, (2, 2, 2, 2), num_classes=classes, channels=widths, drop_rate=drop_rate)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return cast(nn.Module, model)


def vit_lite(
    classes: int, depth: int = 7, width: int = 256, heads: int = 4, drop_path_rate: float = 0.1, patch: int = 4
) -> nn.Module:
    """ViT-Lite of Compact Transformers: attention dropout 0.1, drop-path that rises with depth, and tokens that each
    block normalises in its middle."""
    rates = [drop_path_rate * i / max(1, depth - 1) for i in range(depth)]
    blocks = [_Block(width, heads, rate, attention_dropout=0.1, normalised=True) for rate in rates]
    model = _Transformer(classes, width, patch, blocks)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
    nn.init.kaiming_normal_(model.patches.weight)
    nn.init.uniform_(model.patches.bias, -(model.patches.in_features**-0.5), model.patches.in_features**-0.5)
    nn.init.trunc_normal_(model.positions, std=0.2)
    nn.init.zeros_(model.class_token)
    return model


def small_vit(
    classes: int, depth: int = 9, width: int = 192, heads: int = 12, drop_path_rate: float = 0.1, patch: int = 4
) -> nn.Module:
    """The ViT of the literature on small data (SPT + LSA): the same drop-path in all blocks."""
    model = _Transformer(classes, width, patch, [_Block(width, heads, drop_path_rate) for _ in range(depth)])
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)
    return model


class _Transformer(nn.Module):
    """An image of 32 x 32 as patches and a class token through blocks; the class token is classified."""

    def __init__(self, classes: int, width: int, patch: int, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.patch = patch
        self.patches = nn.Linear(3 * patch**2, width)
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (32 // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        count, channels, height, width = images.shape
        rows, columns = height // self.patch, width // self.patch
        patches = images.reshape(count, channels, rows, self.patch, columns, self.patch).permute(0, 2, 4, 1, 3, 5)
        tokens = self.patches(patches.reshape(count, rows * columns, -1))
        tokens = torch.cat([self.class_token.expand(count, -1, -1), tokens], 1) + self.positions
        for block in self.blocks:
            tokens = block(tokens)
        return cast(Tensor, self.head(self.norm(tokens)[:, 0]))


class _Block(nn.Module):
    """Attention, then two layers twice as wide; their outputs are dropped for a whole image at a time.

    With `normalised`, the second half adds its outputs to the normalised tokens, as in Compact Transformers.
    """

    def __init__(
        self, width: int, heads: int, drop_path: float, attention_dropout: float = 0.0, normalised: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.drop_path, self.dropout, self.normalised = heads, drop_path, attention_dropout, normalised
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.dropped(self.attended(self.norm1(tokens)))
        normed = self.norm2(tokens)
        added = self.narrow(F.gelu(self.wide(normed)))
        return (normed if self.normalised else tokens) + self.dropped(added)

    def attended(self, tokens: Tensor) -> Tensor:
        query, key, value = self.qkv(tokens).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        rate = self.dropout if self.training else 0.0
        return cast(
            Tensor,
            self.out(F.scaled_dot_product_attention(query, key, value, dropout_p=rate).transpose(1, 2).flatten(2)),
        )

    def dropped(self, added: Tensor) -> Tensor:
        if not self.drop_path or not self.training:
            return added
        mask = added.new_empty(len(added), 1, 1).bernoulli_(1 - self.drop_path)
        return added * mask / (1 - self.drop_path)
