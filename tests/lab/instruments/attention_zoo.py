"""Small models with attention: this package's, Hugging Face's, torch's, and modules written as timm writes its own."""

import torch
import torch.nn.functional as F
from torch import nn

from asymtrain import models


class Fused(nn.Module):
    """Attention with the attribute names of timm's: one `qkv` layer, or three; norms of queries and keys."""

    def __init__(self, width, heads, *, one_layer=True, qk_norm=False, fused_attn=True):
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.scale, self.fused_attn = self.head_dim**-0.5, fused_attn
        self.qkv = nn.Linear(width, 3 * width) if one_layer else None
        if not one_layer:
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.q_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.attn_drop = nn.Dropout(0.1)
        self.norm = nn.Identity()
        self.proj = nn.Linear(width, width)
        self.proj_drop = nn.Dropout(0.1)
        self.last = None  # the weights that the slow path used

    def forward(self, x, attn_mask=None):
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.num_heads, self.head_dim)
        if self.qkv is not None:
            q, k, v = self.qkv(x).reshape(batch, tokens, 3, *shape[2:]).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            q, k, v = (f(x).reshape(shape).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.q_norm(q), self.k_norm(k)
        if self.fused_attn:
            x = F.scaled_dot_product_attention(q, k, v, attn_mask, self.attn_drop.p if self.training else 0.0)
        else:
            weights = q * self.scale @ k.transpose(-2, -1)
            weights = (weights if attn_mask is None else weights + attn_mask).softmax(-1)
            self.last = weights.detach()
            x = self.attn_drop(weights) @ v
        return self.proj_drop(self.proj(self.norm(x.transpose(1, 2).reshape(batch, tokens, width))))


class Tower(nn.Module):
    """Patches of an image, a class token, blocks of `x + attention(norm(x))`, a classifier."""

    def __init__(self, make_attention, *, width=16, depth=2, patch=4, size=16):
        super().__init__()
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(width), "attn": make_attention(width)}) for _ in range(depth)
        )
        self.head = nn.Linear(width, 5)

    def forward(self, images):
        tokens = self.embed(images).flatten(2).mT
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), tokens], 1) + self.positions
        for block in self.blocks:
            tokens = tokens + block["attn"](block["norm"](tokens))
        return self.head(tokens[:, 0])


class SelfOnly(nn.Module):
    """torch's own attention, called with one input for all three."""

    def __init__(self, width, batch_first):
        super().__init__()
        self.inner = nn.MultiheadAttention(width, 4, batch_first=batch_first)

    def forward(self, x):
        x = x if self.inner.batch_first else x.transpose(0, 1)
        mixed, _ = self.inner(x, x, value=x, need_weights=False)
        return mixed if self.inner.batch_first else mixed.transpose(0, 1)


def own_vit():
    return models.build("vit", classes=5, image_size=16, width=16, depth=2, heads=4)


def hugging_face_vit(implementation="sdpa"):
    transformers = __import__("transformers")
    config = transformers.ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
                                    image_size=16, patch_size=4, num_labels=5)  # fmt: skip
    config._attn_implementation = implementation
    return transformers.ViTForImageClassification(config)


TOWERS = {
    "own": own_vit,
    "timm-like": lambda: Tower(lambda width: Fused(width, 4)),
    "timm-like, qk norm": lambda: Tower(lambda width: Fused(width, 4, qk_norm=True)),
    "timm-like, three layers": lambda: Tower(lambda width: Fused(width, 4, one_layer=False)),
    "timm-like, not fused": lambda: Tower(lambda width: Fused(width, 4, fused_attn=False)),
    "torch, batch first": lambda: Tower(lambda width: SelfOnly(width, True)),
    "torch, tokens first": lambda: Tower(lambda width: SelfOnly(width, False)),
    "hugging face": hugging_face_vit,
}


def logits(output):
    return getattr(output, "logits", output)


def pictures(count=3, size=16, seed=0):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))
