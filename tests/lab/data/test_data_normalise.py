import numpy as np
import pytest
import torch

from asymtrain.errors import UsageError
from asymtrain.lab.data import Examples
from asymtrain.lab.data.normalise import channel_statistics, normalise, statistics


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (2500, 3, 5, 7), dtype=np.uint8)


@pytest.fixture
def data(images):
    return Examples(images, np.zeros(len(images), np.int64))


def test_statistics_are_those_of_the_chosen_images(images, data):
    indices = np.flatnonzero(np.arange(2500) % 3 > 0)
    mean, std = channel_statistics(data, indices)
    chosen = images[indices] / 255
    assert mean.dtype == std.dtype == torch.float32
    np.testing.assert_allclose(mean.numpy(), chosen.mean(axis=(0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(std.numpy(), chosen.std(axis=(0, 2, 3)), rtol=1e-6)


def test_statistics_do_not_depend_on_the_order(data):
    first = channel_statistics(data, np.arange(2500))
    second = channel_statistics(data, np.random.default_rng(1).permutation(2500))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_white_images_do_not_overflow_and_a_constant_channel_is_left_finite():
    mean, std = channel_statistics(
        Examples(np.full((1100, 3, 32, 32), 255, np.uint8), np.zeros(1100, np.int64)), np.arange(1100)
    )
    assert mean.tolist() == [1, 1, 1]
    assert std.tolist() == [1, 1, 1]


def test_pixels_are_summed_once_for_all_runs(data):
    sums = data.channel_sums
    assert data.channel_sums is sums
    np.testing.assert_array_equal(sums[:, :, 0], data.images.sum((2, 3), dtype=np.int64))
    np.testing.assert_array_equal(sums[:, :, 1], (data.images.astype(np.int64) ** 2).sum((2, 3)))


def test_no_images(data):
    with pytest.raises(UsageError, match="at least one image"):
        channel_statistics(data, np.array([], np.int64))


def test_vectors_have_statistics_of_each_feature():
    source = np.random.default_rng(0)
    vectors = (source.normal(size=(70_000, 4)) * (1, 1e-3, 1e4, 0) + (0, 500, -3, 0.1)).astype(np.float32)
    data = Examples(vectors, np.zeros(len(vectors), np.int64))
    rows = source.permutation(len(vectors))[:66_000]
    mean, std = statistics(data, rows)
    exact = vectors[rows].astype(np.float64)
    np.testing.assert_allclose(mean.numpy(), exact.mean(0), rtol=1e-6)
    np.testing.assert_allclose(std.numpy()[:3], exact.std(0)[:3], rtol=1e-6)
    assert std[3] == 1  # constant
    seen = normalise(torch.from_numpy(vectors), mean, std)
    assert seen[:, 3].abs().max() == 0
    assert seen[rows].std(0)[:3].tolist() == pytest.approx([1, 1, 1], rel=1e-3)
    assert all(torch.equal(a, b) for a, b in zip((mean, std), statistics(data, np.sort(rows)), strict=True))
    with pytest.raises(UsageError, match="at least one vector"):
        statistics(data, rows[:0])


def test_tokens_stay_as_they_are():
    tokens = torch.randint(0, 1 << 40, (2, 6, 3))
    data = Examples(tokens[0].numpy(), np.zeros(6, np.int64))
    mean, std = (torch.stack([value, value]) for value in statistics(data, np.arange(6)))
    assert normalise(tokens, mean, std) is tokens


def test_images_are_normalised_as_bytes_also_where_an_augmentation_left_floats(images, data):
    mean, std = statistics(data, np.arange(2500))
    batch = torch.from_numpy(images[:8])
    assert torch.equal(normalise(batch.float(), mean, std), normalise(batch, mean, std))
