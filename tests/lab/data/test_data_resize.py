import numpy as np
import pytest
from PIL import Image

from asymtrain.errors import UsageError
from asymtrain.lab.data import Dataset, Examples
from asymtrain.lab.data.resize import _resize_on, resize_bytes, resized


def draw(count, channels, height, width):
    return np.random.default_rng(0).integers(0, 256, (count, channels, height, width), dtype=np.uint8)


def oracle(image, sides):
    """Bilinear with antialiasing, by its definition: a triangle as wide as a new pixel, in float64."""
    for axis, new in ((1, sides[0]), (2, sides[1])):
        old = image.shape[axis]
        scale = max(1, old / new)
        centre = (np.arange(new) + 0.5) * old / new
        weight = np.maximum(0, 1 - np.abs(np.arange(old) + 0.5 - centre[:, None]) / scale)
        image = np.moveaxis(np.moveaxis(image, axis, -1) @ (weight / weight.sum(1, keepdims=True)).T, -1, axis)
    return np.floor(image + 0.5 + 1e-6).astype(np.uint8)


@pytest.mark.parametrize("side", [5, 8, 20])
def test_square_images_are_scaled_with_antialiasing(side):
    images = draw(3, 2, 10, 10)
    for image, new in zip(images, resize_bytes(images, side), strict=True):
        np.testing.assert_array_equal(new, oracle(image.astype(np.float64), (side, side)))


def test_other_images_cover_the_square_and_are_cropped_at_the_centre():
    images = draw(2, 3, 12, 20)
    for image, new in zip(images, resize_bytes(images, 6), strict=True):
        np.testing.assert_array_equal(new, oracle(image.astype(np.float64), (6, 10))[..., 2:8])


def test_it_is_what_pillow_does():
    image = draw(1, 3, 40, 40)
    pillow = np.asarray(Image.fromarray(image[0].transpose(1, 2, 0)).resize((9, 9), Image.Resampling.BILINEAR))
    apart = resize_bytes(image, 9)[0].transpose(1, 2, 0).astype(int) - pillow
    assert np.abs(apart).max() <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("side", [5, 24, 48, 64, 224])
def test_the_gpu_gives_the_same_bytes(side):
    images = draw(20, 3, 48, 36)
    np.testing.assert_array_equal(_resize_on("cuda", images, side), _resize_on("cpu", images, side))


def test_a_dataset_of_another_size():
    part = Examples(draw(4, 1, 8, 8), np.arange(4) % 2)
    data = Dataset("made", part, part, ("a", "b"))
    assert resized(data, None) is data
    assert resized(data, 8).train is part
    small = resized(data, 4)
    assert small.train.images.shape == small.test.images.shape == (4, 1, 4, 4)
    assert small.train.images.dtype == np.uint8
    for wrong in (0, 5000, "a", 4.5):
        with pytest.raises(UsageError, match="image_size must be"):
            resized(data, wrong)
