"""AutoAugment's policy against PIL, operation by operation as the published scripts call it."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from asymtrain import streams
from asymtrain.lab.data.autoaugment import OPERATIONS, POLICY, autoaugment, policy_table

GREY = (128, 128, 128)
ENHANCED = {
    "colour": ImageEnhance.Color,
    "contrast": ImageEnhance.Contrast,
    "sharpness": ImageEnhance.Sharpness,
    "brightness": ImageEnhance.Brightness,
}
# PIL computes these in floats: where the exact result is a whole number, it may be one lower.
FLOATS = {*ENHANCED, "autocontrast", "shear_y"}
LEVELS = sorted({operation[::2] for pair in POLICY for operation in pair})


def affine(image, *matrix, how=Image.Resampling.NEAREST):
    return image.transform(image.size, Image.Transform.AFFINE, matrix, how, fillcolor=GREY)


def by_pil(image, name, level, sign):
    width, height = image.size
    if name in ENHANCED:
        return ENHANCED[name](image).enhance(1 + sign * level / 10)
    if name == "rotate":
        turned = image.convert("RGBA").rotate(np.linspace(0, 30, 10)[level])
        return Image.composite(turned, Image.new("RGBA", image.size, (128,) * 4), turned).convert("RGB")
    shear, translate = sign * np.linspace(0, 0.3, 10)[level], sign * np.linspace(0, 150 / 331, 10)[level]
    return {
        "shear_y": lambda: affine(image, 1, 0, 0, shear, 1, 0, how=Image.Resampling.BICUBIC),
        "translate_x": lambda: affine(image, 1, 0, translate * width, 0, 1, 0),
        "translate_y": lambda: affine(image, 1, 0, 0, 0, 1, translate * height),
        "posterize": lambda: ImageOps.posterize(image, int(np.round(np.linspace(8, 4, 10))[level])),
        "solarize": lambda: ImageOps.solarize(image, np.linspace(256, 0, 10)[level]),
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
        "invert": lambda: ImageOps.invert(image),
    }[name]()


def photos(count, height, width):
    """Noise, smooth images of few values, and one of a single colour."""
    source = np.random.default_rng(0)
    noise = source.integers(0, 256, (count, height, width, 3))
    steps = source.normal(0, 6, (count, height, width, 3)).cumsum(1) + source.integers(40, 200, (count, 1, 1, 3))
    images = np.where(np.arange(count)[:, None, None, None] % 2, noise, steps.clip(0, 255)).astype(np.uint8)
    images[0] = 77
    return images


@pytest.mark.parametrize(
    ("name", "level", "height", "width"),
    [(*operation, 20, 27) for operation in LEVELS] + [(*operation, 32, 32) for operation in dict(LEVELS).items()],
)
def test_every_operation_is_pils(name, level, height, width):
    images = photos(40, height, width)
    always = torch.tensor([[[OPERATIONS.index(name), 10, level], [0, 0, 0]]]).expand(25, 2, 3)
    for sign in (1, -1) if name != "rotate" else (1,):
        found = autoaugment(torch.from_numpy(images).permute(0, 3, 1, 2), torch.tensor((sign < 0) << 48), always)
        expected = np.stack([by_pil(Image.fromarray(image), name, level, sign) for image in images]).astype(int)
        above = found.permute(0, 2, 3, 1).numpy() - expected
        assert above.min() == 0
        assert above.max() <= (name in FLOATS)
        assert (above > 0).mean() < 0.05


def test_a_grey_image_is_changed_like_three_equal_channels():
    grey = torch.from_numpy(photos(400, 12, 12)[..., 0])[:, None]
    bits = streams.bits(torch.tensor(4), torch.arange(400))
    policy = policy_table(torch.device("cpu"))
    coloured = autoaugment(grey.expand(-1, 3, -1, -1), bits, policy)
    assert torch.equal(autoaugment(grey, bits, policy), coloured[:, :1])
    assert torch.equal(coloured[:, 0], coloured[:, 2])


def test_a_pair_is_two_operations_in_order_each_with_its_probability():
    """Every image against its operations one by one, as its bits say; images that get the same one in one call."""
    images = torch.from_numpy(photos(2000, 8, 9)).permute(0, 3, 1, 2)
    bits = streams.bits(torch.tensor(5), torch.arange(2000))
    found = autoaugment(images, bits, policy_table(torch.device("cpu")))
    words = bits.numpy()
    numbers = (words & 0xFFFF) % 25
    happened, chosen = Counter(), Counter(numbers.tolist())
    for i in range(2):
        wanted = np.array([POLICY[number][i][1] / 10 for number in numbers])
        happens = (words >> 16 * (i + 1) & 0xFFFF) / 65536 < wanted
        happened.update((number, i) for number in numbers[happens].tolist())
        for number, sign in product(range(25), range(2)):
            alike = torch.from_numpy(happens & (numbers == number) & ((words >> 48 + i & 1) == sign))
            name, _, level = POLICY[number][i]
            once = torch.tensor([[[OPERATIONS.index(name), 10, level], [0, 0, 0]]]).expand(25, 2, 3)
            images[alike] = autoaugment(images[alike], torch.tensor(sign << 48), once)
    assert torch.equal(images, found)
    assert min(chosen.values()) > 50
    shares = [
        happened[n, i] / chosen[n] - tenths / 10
        for n, pair in enumerate(POLICY)
        for i, (_, tenths, _) in enumerate(pair)
    ]
    assert max(map(abs, shares)) < 0.2


def test_the_policy_has_the_published_operations():
    """As they are counted in the table of the paper: shears along one axis alone, and equalize most often."""
    assert len(POLICY) == 25
    assert Counter(name for pair in POLICY for name, *_ in pair) == {
        "equalize": 9, "autocontrast": 7, "sharpness": 5, "translate_y": 5, "colour": 5, "brightness": 4, "solarize": 4,
        "invert": 3, "contrast": 2, "translate_x": 2, "shear_y": 2, "rotate": 1, "posterize": 1,
    }  # fmt: skip
    rare = {operation for pair in POLICY for operation in pair if operation[0] in ("rotate", "shear_y", "posterize")}
    assert rare == {("rotate", 7, 2), ("shear_y", 5, 8), ("shear_y", 2, 7), ("posterize", 3, 7)}
