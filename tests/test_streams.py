import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asymtrain import streams

int64 = st.integers(-(2**63), 2**63 - 1)
counters = st.integers(0, 2**40)


def keys_of(seeds, purpose="shuffle"):
    return torch.tensor([streams.key(seed, purpose) for seed in seeds])


def splitmix(z):
    """The finaliser as published, on Python's unbounded integers."""
    mask = 2**64 - 1
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return z ^ z >> 31


@settings(deadline=None)
@given(key=int64, position=st.lists(st.integers(-3, 2**62), min_size=1, max_size=3))
def test_bits_are_splitmix64_and_int_and_tensor_counters_agree(key, position):
    state = key
    for counter in position:
        state = splitmix((state + counter) % 2**64)
    expected = state - 2**64 if state >= 2**63 else state
    keys = torch.tensor([key])
    assert streams.bits(keys, *position).tolist() == [expected]
    assert streams.bits(keys, *map(torch.tensor, position)).tolist() == [expected]


@pytest.mark.slow
def test_another_process_draws_the_same():
    program = (
        "import torch; from asymtrain import streams;"
        "keys = torch.tensor([streams.key(42, 'shuffle'), streams.key(43, 'shuffle')]);"
        "print(streams.permutations(keys, 7, 20).tolist(), streams.uniform(keys, 3).tolist(),"
        "torch.rand(3, generator=streams.generator(42, 'noise')).tolist())"
    )
    keys = keys_of([42, 43])
    here = (
        f"{streams.permutations(keys, 7, 20).tolist()} {streams.uniform(keys, 3).tolist()} "
        f"{torch.rand(3, generator=streams.generator(42, 'noise')).tolist()}\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert there.stdout == here


def test_the_bits_never_change():
    """Every stored result depends on them."""
    assert streams.key(42, "shuffle") == 6886176918351417034
    assert streams.bits(keys_of([42]), 1, 2).tolist() == [2569070825209962382]
    assert streams.permutations(keys_of([42]), 0, 8).tolist() == [[3, 4, 6, 2, 1, 5, 7, 0]]


@settings(deadline=None, max_examples=30)
@given(seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=5), epoch=counters, n=st.integers(1, 50))
def test_a_run_draws_the_same_alone_and_in_any_stack(seeds, epoch, n):
    together = streams.permutations(keys_of(seeds), epoch, n)
    for seed, row in zip(seeds, together, strict=True):
        assert torch.equal(row, streams.permutations(keys_of([seed]), epoch, n)[0])
        assert row.sort().values.tolist() == list(range(n))


def test_a_position_is_drawn_the_same_in_a_batch_of_any_size():
    keys, many = keys_of([0, 1])[:, None], torch.arange(100)
    assert torch.equal(streams.uniform(keys, 5, many)[:, :7], streams.uniform(keys, 5, many[:7]))


@pytest.mark.parametrize("purposes", [("shuffle", "dropout"), ("split", "noise")])
def test_seeds_and_purposes_part_the_streams(purposes):
    keys = [streams.key(seed, purpose) for seed in range(1000) for purpose in purposes]
    assert len(set(keys)) == 2000
    first, second = (torch.rand(5, generator=streams.generator(3, purpose)) for purpose in purposes)
    assert not torch.equal(first, second)


def test_a_generator_is_fresh_and_leaves_the_global_state():
    state = torch.get_rng_state()
    first, second = (torch.rand(5, generator=streams.generator(1, "x")) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


def chi_square(counts):
    expected = counts.sum() / counts.numel()
    return ((counts - expected) ** 2 / expected).sum().item()


@pytest.mark.parametrize("axis", ["position", "step", "seed"])
def test_uniform_numbers_fill_the_unit_interval_along_each_axis(axis):
    count = 64_000
    along = torch.arange(count)
    drawn = {
        "position": lambda: streams.uniform(keys_of([0]), 3, along),
        "step": lambda: streams.uniform(keys_of([0]), along, 3),
        "seed": lambda: streams.uniform(keys_of(range(count)), 3, 3),
    }[axis]()
    assert drawn.min() >= 0
    assert drawn.max() < 1
    # 63 degrees of freedom: mean 63, deviation 11. A pair of neighbours tells serial correlation.
    cells = (drawn * 8).long()
    assert 30 < chi_square(torch.bincount((drawn * 64).long(), minlength=64).double()) < 120
    assert 30 < chi_square(torch.bincount(cells[:-1] * 8 + cells[1:], minlength=64).double()) < 120


def test_every_bit_is_a_fair_coin_and_uniform_reaches_its_ends():
    drawn = streams.bits(keys_of([0]), torch.arange(40_000))
    for bit in range(64):
        assert abs((drawn >> bit & 1).double().mean().item() - 0.5) < 5 * 0.5 / 200
    fine = streams.uniform(keys_of([0]), torch.arange(400_000))
    assert fine.min() < 1e-4
    assert fine.max() > 1 - 1e-4
    assert torch.equal(fine * 2**24, (fine * 2**24).round())


def test_permutations_place_every_item_everywhere():
    places = streams.permutations(keys_of(range(4000)), 0, 8)
    counts = torch.stack([torch.bincount(places[:, at], minlength=8) for at in range(8)]).double()
    assert 20 < chi_square(counts) < 100  # 49 degrees of freedom
    assert not torch.equal(streams.permutations(keys_of([1]), 0, 50), streams.permutations(keys_of([1]), 1, 50))
