"""Attention maps are looked at without changing the result."""

import pytest
import torch

from asymtrain import models


@pytest.fixture(params=[{"patch": 4, "heads": 2}, {"patch": 2, "heads": 4}], ids=str)
def vit(request):
    return models.build("vit", classes=5, seed=0, image_size=8, width=16, depth=3, **request.param)


@pytest.mark.parametrize("training", [False, True])
def test_maps_leave_the_logits_bit_equal(vit, training):
    images = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    vit.train(training)
    logits, maps = vit.attention_maps(images)
    assert torch.equal(logits, vit(images))
    tokens = (8 // vit.patch) ** 2 + 1
    assert [m.shape for m in maps] == [(6, vit.heads, tokens, tokens)] * 3
    for one in maps:
        assert (one >= 0).all()
        torch.testing.assert_close(one.sum(-1), torch.ones(6, vit.heads, tokens))


def test_the_maps_are_what_the_block_attends_with(vit):
    """Mixing the values by the maps gives the block's own output."""
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    block, tokens = vit.blocks[0], vit.tokens(images)
    _, maps = vit.attention_maps(images)
    normed = block.norm1(tokens)
    value = block.attention.split_heads(normed)[2]
    mixed = block.attention.proj((maps[0] @ value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(mixed, block.attention(normed), rtol=1e-5, atol=1e-6)


def test_patches_are_read_as_a_strided_convolution_reads_them():
    vit = models.build("vit", classes=5, seed=0, image_size=8, width=16, depth=1, heads=2)
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    kernel = vit.embed.weight.view(16, 3, 4, 4)
    expected = torch.nn.functional.conv2d(images, kernel, vit.embed.bias, stride=4).flatten(2).mT + vit.positions[:, 1:]
    torch.testing.assert_close(vit.tokens(images)[:, 1:], expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(vit.tokens(images)[:, 0], (vit.class_token + vit.positions[:, :1])[:, 0].expand(2, -1))
