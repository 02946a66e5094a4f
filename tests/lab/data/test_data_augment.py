"""Every augmentation against a slow loop, on images whose sides differ, of one channel and of several."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage, stats

from asymtrain import streams
from asymtrain.errors import UsageError
from asymtrain.lab.data.augment import (
    TRANSFORMS,
    beta_quantiles,
    erase,
    flip_and_shift,
    mix,
    mixing_weights,
    transform,
)
from asymtrain.lab.data.autoaugment import autoaugment, policy_table


def slow(images, bits, max_shift):
    """One image and one pixel at a time."""
    out = torch.zeros_like(images)
    height, width = images.shape[-2:]
    for i, word in enumerate(bits.tolist()):
        image = images[i].flip(-1) if word & 1 else images[i]
        right = (word >> 1 & 0xFFFF) % (2 * max_shift + 1) - max_shift
        down = (word >> 17 & 0xFFFF) % (2 * max_shift + 1) - max_shift
        for y in range(height):
            for x in range(width):
                if 0 <= y - down < height and 0 <= x - right < width:
                    out[i, :, y, x] = image[:, y - down, x - right]
    return out


@settings(deadline=None)
@given(
    seed=st.integers(0, 10_000),
    height=st.integers(1, 7),
    width=st.integers(1, 7),
    max_shift=st.integers(0, 8),
    dtype=st.sampled_from([torch.uint8, torch.float32]),
)
def test_equals_the_slow_loop(seed, height, width, max_shift, dtype):
    source = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (5, 3, height, width), generator=source).to(dtype)
    bits = streams.bits(torch.tensor(seed), torch.arange(5))
    moved = flip_and_shift(images, bits, max_shift)
    assert moved.dtype == dtype
    assert torch.equal(moved, slow(images, bits, max_shift))


def test_all_shifts_and_flips_occur_evenly():
    image = torch.zeros(9000, 1, 13, 13)
    image[:, :, 6, 5] = 1  # off the middle by one, so that a flip shows
    bits = streams.bits(torch.tensor(1), torch.arange(9000))
    moved = flip_and_shift(image, bits)
    assert moved.sum() == 9000
    rows, columns = moved[:, 0].sum((0, 2)), moved[:, 0].sum((0, 1))
    assert rows[2:11].min() > 850
    assert rows[2:11].max() < 1150
    assert columns[[1, 11]].min() > 400  # one column is reached by the unflipped alone, the other by the flipped
    assert columns[[0, 12]].sum() == 0


def test_float_not_a_number_outside_does_not_leak():
    images = torch.full((1, 3, 4, 4), float("nan"))
    assert not flip_and_shift(images, torch.tensor([0]), 4).isnan().any()


def test_bad_shift():
    with pytest.raises(UsageError, match="max_shift must be at least 0"):
        flip_and_shift(torch.zeros(1, 3, 4, 4), torch.tensor([0]), -1)


# Transforms, one pixel at a time.


def word(kind, level, sign=1):
    return TRANSFORMS.index(kind) | level << 16 | (sign < 0) << 32


def whole(values):
    """The nearest whole numbers; halves go up."""
    return np.floor(values + 0.5 + 1e-6)


def slow_transform(image, kind, level, sign):
    """In float64, by the words of `transform`; scipy blurs."""
    channels, height, width = image.shape
    image, strength = image.double().numpy(), level / 30
    grey = np.tensordot([0.299, 0.587, 0.114], image, 1)[None] if channels == 3 else image.mean(0, keepdims=True)
    grey = whole(grey)
    factor, out = 1 + sign * 0.9 * strength, image.copy()
    if kind == "posterize":
        cleared = 2 ** round(4 * strength)
        return image // cleared * cleared
    if kind == "solarize":
        return np.where(image >= 255 * (30 - level) / 30, 255 - image, image)
    others = {
        "brightness": 0 * image,
        "contrast": np.full_like(image, whole(grey.mean())),
        "saturation": grey + 0 * image,
    }
    if kind == "sharpness":
        others[kind] = image.copy()
        if min(height, width) > 2:
            kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
            blurred = np.stack([ndimage.convolve(channel, kernel) for channel in image])
            others[kind][:, 1:-1, 1:-1] = whole(blurred[:, 1:-1, 1:-1])
    if kind in others:
        return (others[kind] + factor * (image - others[kind])).clip(0, 255)
    out[:] = 0
    angle = math.radians(30) * strength * sign
    for y in range(height):
        for x in range(width):
            dx, dy = x - (width - 1) / 2, y - (height - 1) / 2
            fromx, fromy = {
                "rotate": (math.cos(angle) * dx + math.sin(angle) * dy, math.cos(angle) * dy - math.sin(angle) * dx),
                "shear_x": (dx + 0.3 * strength * sign * dy, dy),
                "shear_y": (dx, dy + 0.3 * strength * sign * dx),
                "translate_x": (dx - math.floor((3 * width // 10) * strength * sign + 0.5 + 1e-9), dy),
                "translate_y": (dx, dy - math.floor((3 * height // 10) * strength * sign + 0.5 + 1e-9)),
                "identity": (dx, dy),
            }[kind]
            column = math.floor(fromx + (width - 1) / 2 + 0.5 + 1 / 2048)
            row = math.floor(fromy + (height - 1) / 2 + 0.5 + 1 / 2048)
            if 0 <= row < height and 0 <= column < width:
                out[:, y, x] = image[:, row, column]
    return out


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("shape", [(3, 9, 14), (1, 12, 7), (3, 2, 5), (2, 8, 8)], ids=str)
@pytest.mark.parametrize("kind", TRANSFORMS)
def test_every_transform_equals_the_slow_loop(kind, shape, dtype):
    settings_of_images = [(level, sign) for level in (0, 1, 7, 15, 16, 29, 30) for sign in (1, -1)]
    source = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (len(settings_of_images), *shape), generator=source).to(dtype)
    changed = transform(images, torch.tensor([word(kind, *setting) for setting in settings_of_images]))
    assert changed.dtype == dtype
    for image, setting, found in zip(images, settings_of_images, changed, strict=True):
        expected = slow_transform(image, kind, *setting)
        # A byte is rounded: half a level, and what float32 makes of it.
        assert np.abs(found.double().numpy() - expected).max() <= (0.501 if dtype == torch.uint8 else 1e-3), setting
        if setting[0] == 0 and kind != "solarize":
            assert torch.equal(found, image)


def test_transforms_strengths_and_signs_occur_evenly():
    bits = streams.bits(torch.tensor(3), torch.arange(60_000))
    for count, drawn in ((len(TRANSFORMS), bits & 0xFFFF), (31, bits >> 16 & 0xFFFF), (2, bits >> 32 & 1)):
        counts = (drawn % count).bincount(minlength=count)
        assert ((counts - 60_000 / count) ** 2 / (60_000 / count)).sum() < 60


# Erasing.


def slow_erase(image, bits, probability, largest):
    out, (height, width) = image.clone(), image.shape[-2:]
    share = [(bits >> start & (1 << count) - 1) / (1 << count) for start, count in ((0, 16), (16, 12), (28, 12))]
    if share[0] >= probability:
        return out
    area = (0.02 + (largest - 0.02) * share[1]) * height * width
    ratio = 0.3 ** (1 - 2 * share[2])
    tall, wide = min(height, max(1, round((area * ratio) ** 0.5))), min(width, max(1, round((area / ratio) ** 0.5)))
    top = int((bits >> 40 & 0xFFF) / 4096 * (height - tall + 1))
    left = int((bits >> 52 & 0xFFF) / 4096 * (width - wide + 1))
    for y in range(top, top + tall):
        for x in range(left, left + wide):
            out[:, y, x] = 0
    return out


@pytest.mark.parametrize("shape", [(3, 9, 14), (1, 12, 7), (3, 1, 2), (3, 32, 32)], ids=str)
@pytest.mark.parametrize("probability", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("largest", [1 / 3, 0.4])
def test_erasing_equals_the_slow_loop(largest, probability, shape):
    images = torch.rand(60, *shape, generator=torch.Generator().manual_seed(0)) + 1
    bits = streams.bits(torch.tensor(5), torch.arange(60))
    found = erase(images, bits, torch.tensor(probability), largest)
    for image, drawn, changed in zip(images, bits.tolist(), found, strict=True):
        assert torch.equal(changed, slow_erase(image, drawn, probability, largest))


def test_erasing_has_its_probability_area_and_place():
    images, bits = torch.ones(4000, 1, 32, 32), streams.bits(torch.tensor(6), torch.arange(4000))
    gone = 1 - erase(images, bits, 0.25)[:, 0]
    share = gone.mean((1, 2))
    assert abs((share > 0).float().mean() - 0.25) < 0.03
    assert 0.015 < share[share > 0].min() < 0.05
    assert 0.3 < share[share > 0].max() < 0.36
    assert gone.mean(0).min() > 0, "every pixel is erased at times"


# Mixing.


@pytest.mark.parametrize("parameter", [0.2, 1.0, 4.0])
def test_shares_are_of_the_beta_distribution(parameter):
    quantiles = beta_quantiles(parameter).numpy()
    assert stats.kstest(quantiles, stats.beta(parameter, parameter).cdf).statistic < 3e-4
    assert quantiles == pytest.approx(1 - quantiles[::-1], abs=1e-9)


@pytest.mark.parametrize(
    ("height", "width"),
    [(9, 14), pytest.param(12, 7, marks=pytest.mark.slow), (1, 3), pytest.param(32, 32, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("given", ["mixup", "cutmix", "both"])
def test_mixing_weights_equal_the_slow_loop(given, height, width):
    runs = 40
    tables = torch.stack([beta_quantiles(0.2 + r / 10) for r in range(runs)])
    mixup, cutmix = (tables if given in (name, "both") else None for name in ("mixup", "cutmix"))
    bits = streams.bits(torch.tensor(8), torch.arange(runs))
    found = mixing_weights(bits, mixup, cutmix, height, width)
    for r, drawn in enumerate(bits.tolist()):
        share = tables[r, drawn & 4095].item()
        expected = torch.full((height, width), share)
        if given == "cutmix" or (given == "both" and drawn >> 12 & 1):
            side = (1 - share) ** 0.5
            tall, wide = int(height * side) // 2, int(width * side) // 2
            y0, x0 = (drawn >> 13 & 0xFFFF) % height, (drawn >> 29 & 0xFFFF) % width
            for y in range(height):
                for x in range(width):
                    expected[y, x] = float(not (y0 - tall <= y < y0 + tall and x0 - wide <= x < x0 + wide))
        assert torch.allclose(found[r], expected), r


def test_half_of_the_batches_are_mixed_and_half_of_these_by_each_way():
    tables = beta_quantiles(1.0).expand(8000, -1)
    bits = streams.bits(torch.tensor(9), torch.arange(8000))
    weights = mixing_weights(bits, tables, tables, 24, 24, probability=0.5).flatten(1)
    whole = (weights == 1).all(1)
    assert abs(whole.float().mean() - 0.5) < 0.02  # of cutmix too, where its rectangle has no pixel
    mixed = ((weights != 0) & (weights != 1)).any(1)
    assert abs(mixed.float().mean() - 0.25) < 0.02
    always = mixing_weights(bits, tables, tables, 24, 24).flatten(1)
    assert torch.equal(weights[~whole], always[~whole])


def test_images_are_mixed_pixel_by_pixel():
    source = torch.Generator().manual_seed(0)
    images, partners = (torch.randn(2, 4, 3, 5, 6, generator=source) for _ in range(2))
    weights = torch.rand(2, 5, 6, generator=source)
    mixed = mix(images, partners, weights)
    for r, i, y, x in itertools.product(range(2), range(4), range(5), range(6)):
        own = weights[r, y, x]
        expected = own * images[r, i, :, y, x] + (1 - own) * partners[r, i, :, y, x]
        assert torch.allclose(mixed[r, i, :, y, x], expected, atol=1e-6)


CHANGES = {
    "flip_and_shift": flip_and_shift,
    "transform": transform,
    "erase": lambda images, bits: erase(images, bits, 0.7),
    "autoaugment": lambda images, bits: autoaugment(images, bits, policy_table(images.device)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_stack_is_its_runs_one_by_one(change, layout):
    images = torch.randint(0, 256, (2, 30, 3, 8, 11), dtype=torch.uint8)
    if layout == torch.channels_last:
        images = images.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    bits = streams.bits(torch.tensor([[3], [9]]), torch.arange(30))
    together = change(images, bits)
    for r in range(2):
        assert torch.equal(together[r], change(images[r].contiguous(), bits[r]))
        assert torch.equal(together[r, 3:9], change(images[r, 3:9].contiguous(), bits[r, 3:9]))


@pytest.mark.gpu
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("compiled", [False, True])
def test_same_on_the_gpu(change, compiled):
    images = torch.randint(0, 256, (3, 500, 3, 32, 32), dtype=torch.uint8)
    bits = streams.bits(torch.arange(3)[:, None], torch.arange(500))
    there = torch.compile(change, dynamic=False) if compiled else change
    assert torch.equal(there(images.cuda(), bits.cuda()).cpu(), change(images, bits))
