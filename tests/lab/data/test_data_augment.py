import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asymtrain import streams
from asymtrain.errors import UsageError
from asymtrain.lab.data.augment import flip_and_shift


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


def test_a_stack_is_its_runs_one_by_one():
    images = torch.randint(0, 256, (2, 4, 3, 8, 8), dtype=torch.uint8)
    bits = streams.bits(torch.tensor([[3], [9]]), torch.arange(4))
    together = flip_and_shift(images, bits)
    for r in range(2):
        assert torch.equal(together[r], flip_and_shift(images[r], bits[r]))
        assert torch.equal(together[r], slow(images[r], bits[r], 4))


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_same_on_the_gpu():
    images = torch.randint(0, 256, (3, 50, 3, 32, 32), dtype=torch.uint8)
    bits = streams.bits(torch.arange(3)[:, None], torch.arange(50))
    assert torch.equal(flip_and_shift(images, bits), flip_and_shift(images.cuda(), bits.cuda()).cpu())


def test_bad_shift():
    with pytest.raises(UsageError, match="max_shift must be at least 0"):
        flip_and_shift(torch.zeros(1, 3, 4, 4), torch.tensor([0]), -1)
