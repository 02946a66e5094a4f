"""From matrices to maps, rollout, and regions: against numpy loops."""

import numpy as np
import pytest
import torch

from asymtrain.errors import UsageError
from asymtrain.lab.instruments.attention.maps import from_class_token, over_queries, rollout
from asymtrain.lab.instruments.attention.metrics import patch_shares, saliency, saliency_region
from asymtrain.lab.instruments.attention.result import patch_grid


def attention(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).softmax(-1)


@pytest.mark.parametrize("prefix", [1, 2])
def test_rows_against_a_loop(prefix):
    maps = attention(2, 3, 6, 6)
    first, mean = from_class_token(maps, prefix=prefix), over_queries(maps, prefix=prefix)
    for b in range(2):
        for h in range(3):
            a = maps[b, h].numpy()
            for got, row in ((first, a[0]), (mean, sum(a[q] for q in range(6)) / 6)):
                np.testing.assert_allclose(got[b, h].numpy(), row[prefix:] / row[prefix:].sum(), rtol=1e-12)


def test_a_map_needs_a_class_token_and_patches():
    with pytest.raises(UsageError, match='query="mean"'):
        from_class_token(attention(1, 1, 4, 4), prefix=0)
    assert over_queries(attention(1, 1, 4, 4), prefix=0).shape == (1, 1, 4)
    with pytest.raises(UsageError, match="no patch is left"):
        from_class_token(attention(1, 1, 4, 4), prefix=4)


def test_rollout_against_a_loop():
    layers = [attention(2, 3, 5, 5, seed=s) for s in range(4)]
    got = rollout(layers)
    for b in range(2):
        flow = np.eye(5)
        for layer in layers:
            mean = sum(layer[b, h].numpy() for h in range(3)) / 3
            step = np.zeros((5, 5))
            for i in range(5):
                for j in range(5):
                    step[i, j] = 0.5 * mean[i, j] + 0.5 * (i == j)
                step[i] /= step[i].sum()
            flow = np.array([[sum(step[i, k] * flow[k, j] for k in range(5)) for j in range(5)] for i in range(5)])
        np.testing.assert_allclose(got[b].numpy(), flow, rtol=1e-12)
    torch.testing.assert_close(got.sum(-1), torch.ones(2, 5, dtype=torch.float64))


def test_patches_are_counted_row_by_row():
    pixels = torch.zeros(1, 4, 6)
    pixels[0, :2, 2:4] = 1  # the whole second patch of the first row
    pixels[0, 2, 0] = 1  # a quarter of the first patch of the second row
    assert patch_shares(pixels, 2, 3).tolist() == [[0, 1, 0, 0.25, 0, 0]]
    with pytest.raises(UsageError, match="do not divide"):
        patch_shares(pixels, 3, 3)


@pytest.mark.parametrize(
    ("patches", "size", "grid"),
    [(64, (32, 32), (8, 8)), (6, (4, 6), (2, 3)), (196, (224, 224), (14, 14)), (7, (32, 32), None), (2, (8, 8), None)],
)
def test_patches_as_a_grid(patches, size, grid):
    assert patch_grid(patches, *size) == grid


def slow_saliency(image):
    """Loops over every pixel and tap, mirrored at the edges."""
    taps = np.array([1, 4, 6, 4, 1]) / 16
    _, height, width = image.shape
    mean = image.reshape(3, -1).mean(1)

    def mirror(i, n):
        return -i if i < 0 else 2 * (n - 1) - i if i >= n else i

    out = np.zeros((height, width))
    for y in range(height):
        for x in range(width):
            colour = np.zeros(3)
            for dy in range(-2, 3):
                for dx in range(-2, 3):
                    weight = taps[dy + 2] * taps[dx + 2]
                    colour += weight * image[:, mirror(y + dy, height), mirror(x + dx, width)]
            out[y, x] = np.sqrt(((colour - mean) ** 2).sum())
    return out


def test_saliency_against_a_loop():
    images = torch.randint(0, 256, (2, 3, 6, 8), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    got = saliency(images)
    for b in range(2):
        np.testing.assert_allclose(got[b].numpy(), slow_saliency(images[b].numpy().astype(float)), rtol=1e-4, atol=1e-3)


def test_the_region_is_the_object_on_a_plain_ground_and_has_its_share():
    images = torch.full((1, 3, 16, 16), 40, dtype=torch.uint8)
    images[:, 0, 4:12, 4:12] = 250
    region = saliency_region(images)[0]
    assert region.sum() == 64
    assert region[4:12, 4:12].sum() >= 60  # smoothing rounds the corners
    flat = saliency_region(torch.zeros(3, 3, 8, 8, dtype=torch.uint8))
    assert (flat.flatten(1).sum(1) == 16).all()
