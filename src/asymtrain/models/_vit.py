"""The vision transformer: pre-norm blocks over patches and a class token, a branch after each block."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain.errors import UsageError
from asymtrain.models._backbone import Backbone, Outputs, Parameters, stacked_linear, trunc_normal_
from asymtrain.models._kernels import attention_kernels, gelu_kernels


class Attention(nn.Module):
    """Multi-head self-attention. Queries, keys and values come from one linear layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Mix tokens (B, T, D)."""
        query, key, value = self.split_heads(tokens)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def maps(self, tokens: Tensor) -> Tensor:
        """Attention weights (B, heads, T, T): rows are queries and sum to one."""
        query, key, _ = self.split_heads(tokens)
        return (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)

    def split_heads(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (B, heads, T, D / heads)."""
        qkv = self.qkv(tokens).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return qkv[0], qkv[1], qkv[2]


class EncoderBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, mlp_ratio * width), nn.GELU(), nn.Linear(mlp_ratio * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T, D) to tokens."""
        tokens = tokens + self.attention(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class ViT(Backbone):
    """Six blocks, four heads, width 128, patches of 4: 1,217,508 parameters at a hundred classes."""

    layout = "BTD"

    def __init__(
        self,
        classes: int,
        *,
        depth: int = 6,
        width: int = 128,
        heads: int = 4,
        mlp_ratio: int = 4,
        patch: int = 4,
        image_size: int = 32,
        channels: int = 3,
        branch_input: Literal["class_token", "mean"] = "class_token",
        points: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        if image_size % patch:
            raise UsageError(f"image_size {image_size} is not a multiple of patch {patch}: change one of them")
        if width % heads:
            raise UsageError(f"width {width} is not a multiple of heads {heads}")
        if branch_input not in ("class_token", "mean"):
            raise UsageError(f"branch_input must be 'class_token' or 'mean', got {branch_input!r}")
        self.classes, self.patch, self.heads, self.pool = classes, patch, heads, branch_input
        self.embed = nn.Linear(channels * patch**2, width)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (image_size // patch) ** 2 + 1, width))
        trunc_normal_(self.class_token, std=0.02)
        trunc_normal_(self.positions, std=0.02)
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads, mlp_ratio) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        self.set_points(range(depth) if points is None else points, [width] * depth)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, C) of images (B, 3, H, W)."""
        return self.classify(self.blocks(self.tokens(images)))

    def attention_maps(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits, bit-equal to `forward`, and each block's attention (B, heads, T, T); token 0 is the class token."""
        tokens, maps = self.tokens(images), []
        for block in self.blocks:
            assert isinstance(block, EncoderBlock)  # nn.Sequential forgets the type of its items
            maps.append(block.attention.maps(block.norm1(tokens)))
            tokens = block(tokens)
        return self.classify(tokens), maps

    def tokens(self, images: Tensor) -> Tensor:
        """Embedded patches behind the class token, with positions: (B, T, D)."""
        patches = self.embed(to_patches(images, self.patch))
        return torch.cat([self.class_token.expand(len(images), -1, -1), patches], 1) + self.positions

    def classify(self, tokens: Tensor) -> Tensor:
        """Logits from the class token."""
        return self.head(self.norm(tokens[:, 0]))

    def stacked(self, parameters: Parameters, images: Tensor, keep: Tensor | None = None) -> Outputs:
        """See `Backbone.stacked`."""
        runs, batch = images.shape[:2]
        patches = to_patches(images.flatten(0, 1), self.patch).unflatten(0, (runs, batch))
        count = patches.shape[2] + 1
        embedded = stacked_linear(parameters, "embed", patches.flatten(1, 2)).unflatten(1, (batch, count - 1))
        first = parameters["class_token"].expand(-1, batch, -1, -1)
        tokens = (torch.cat([first, embedded], 2) + parameters["positions"]).flatten(1, 2)  # (R, B T, D)
        outputs = {}
        for i in range(len(self.blocks)):
            tokens = self._stacked_block(parameters, f"blocks.{i}", tokens, batch)
            outputs[f"blocks.{i}"] = tokens.unflatten(1, (batch, count))
        last = tokens.unflatten(1, (batch, count))[:, :, 0]
        logits = stacked_linear(parameters, "head", stacked_norm(parameters, "norm", last))
        points = [outputs[name] for name in self.points]
        return logits, [p[:, :, 0] if self.pool == "class_token" else p.mean(2) for p in points]

    def _stacked_block(self, parameters: Parameters, name: str, tokens: Tensor, batch: int) -> Tensor:
        normed = stacked_norm(parameters, f"{name}.norm1", tokens)
        mixed = self._stacked_attention(parameters, f"{name}.attention.qkv", normed, batch)
        tokens = tokens + stacked_linear(parameters, f"{name}.attention.proj", mixed)
        normed = stacked_norm(parameters, f"{name}.norm2", tokens)
        hidden = self._stacked_hidden(parameters, f"{name}.mlp.0", normed)
        return tokens + stacked_linear(parameters, f"{name}.mlp.2", hidden)

    def _stacked_hidden(self, parameters: Parameters, name: str, normed: Tensor) -> Tensor:
        weight = parameters[f"{name}.weight"]
        kernels = gelu_kernels(normed, weight.shape[1])
        if kernels is not None:
            return kernels.bias_gelu(torch.bmm(normed, weight.mT), parameters[f"{name}.bias"])
        return F.gelu(stacked_linear(parameters, name, normed))

    def _stacked_attention(self, parameters: Parameters, name: str, normed: Tensor, batch: int) -> Tensor:
        runs, rows, width = normed.shape
        kernels = attention_kernels(normed, rows // batch, self.heads)
        if kernels is not None:
            raw = torch.bmm(normed, parameters[f"{name}.weight"].mT)
            return kernels.attend(raw, parameters[f"{name}.bias"], batch, self.heads)
        # (R, B T, 3 D) -> three of (R B, heads, T, D / heads): for attention, runs are just a larger batch.
        qkv = stacked_linear(parameters, name, normed).view(runs * batch, -1, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(runs, -1, width)


def to_patches(images: Tensor, patch: int) -> Tensor:
    """Images (B, C, H, W) cut into flat patches (B, T, C patch²), in the order of a convolution with that stride."""
    batch, channels, height, width = images.shape
    cut = images.view(batch, channels, height // patch, patch, width // patch, patch)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(batch, (height // patch) * (width // patch), -1)


def stacked_norm(parameters: Parameters, name: str, input: Tensor) -> Tensor:
    """`nn.LayerNorm` of R runs over the last axis of input (R, M, D)."""
    weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
    if len(weight) == 1:
        # One pass over memory instead of three, if no compiler fuses them.
        return F.layer_norm(input.squeeze(0), input.shape[-1:], weight.squeeze(0), bias.squeeze(0))[None]
    return F.layer_norm(input, input.shape[-1:]) * weight[:, None] + bias[:, None]
