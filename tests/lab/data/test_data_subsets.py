import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asymtrain.errors import UsageError
from asymtrain.lab.data.subsets import few_shot, flip_labels, split

seeds = st.integers(0, 2**32)


def labels_of(n, classes):
    return np.arange(n, dtype=np.int64) % classes


@settings(deadline=None)
@given(n=st.integers(5, 300), seed=seeds)
def test_split_parts_all_indices(n, seed):
    train, validation = split(labels_of(n, 3), seed)
    assert len(validation) == round(0.2 * n)
    assert np.sort(np.concatenate([train, validation])).tolist() == list(range(n))
    for part in (train, validation):
        assert part.dtype == np.int64
        assert (np.diff(part) > 0).all()


def test_split_is_a_function_of_the_seed_alone():
    labels = labels_of(20, 2)
    assert split(labels, 0)[1].tolist() == [3, 6, 8, 11]
    assert split(labels * 0, 0)[1].tolist() == split(labels, 0)[1].tolist()
    assert len({tuple(split(labels, seed)[1]) for seed in range(50)}) > 40
    with pytest.raises(UsageError, match="2 images are too few"):
        split(labels[:2], 0)


@settings(deadline=None)
@given(seed=seeds, small=st.integers(1, 5), more=st.integers(0, 5))
def test_few_shot_is_stratified_within_the_indices_and_nested(seed, small, more):
    labels = labels_of(100, 4)
    train, _ = split(labels, 1)
    few, many = few_shot(labels, train, small, seed), few_shot(labels, train, small + more, seed)
    assert np.bincount(labels[few]).tolist() == [small] * 4
    assert np.bincount(labels[many]).tolist() == [small + more] * 4
    assert set(few) <= set(many) <= set(train)
    assert (np.diff(few) > 0).all()
    assert (few == few_shot(labels, train[::-1], small, seed)).all()


def test_few_shot_draws_by_seed():
    labels = labels_of(40, 2)
    assert few_shot(labels, np.arange(40), 2, 0).tolist() == [2, 13, 21, 36]
    assert len({tuple(few_shot(labels, np.arange(40), 2, seed)) for seed in range(50)}) > 40


def test_few_shot_needs_enough_of_every_class():
    labels = labels_of(10, 2)
    with pytest.raises(UsageError, match="class 1 has 2 "):
        few_shot(labels, np.array([0, 2, 4, 1, 3]), 3, 0)
    with pytest.raises(UsageError, match="class 1 has 0"):
        few_shot(labels, np.array([0, 2, 4]), 1, 0)
    with pytest.raises(UsageError, match="per_class"):
        few_shot(labels, np.arange(10), 0, 0)


@settings(deadline=None)
@given(seed=seeds, rate=st.floats(0, 1), classes=st.integers(2, 12))
def test_noise_flips_the_exact_share_of_the_given_labels_to_wrong_ones(seed, rate, classes):
    labels = labels_of(120, classes)
    train, validation = split(labels, 3)
    before = labels.copy()
    noisy = flip_labels(labels, train, rate, classes, seed)
    assert (labels == before).all()
    assert (noisy[validation] == labels[validation]).all()
    assert (noisy != labels).sum() == round(rate * len(train))
    assert noisy.min() >= 0
    assert noisy.max() < classes
    assert noisy.dtype == np.int64


@settings(deadline=None)
@given(seed=seeds, rate=st.floats(0, 1))
def test_more_noise_keeps_the_flips_of_less(seed, rate):
    labels = labels_of(90, 5)
    less = flip_labels(labels, np.arange(90), rate / 2, 5, seed)
    more = flip_labels(labels, np.arange(90), rate, 5, seed)
    flipped = less != labels
    assert (more[flipped] == less[flipped]).all()


def test_wrong_labels_are_even_over_the_other_classes():
    labels = np.zeros(30_000, np.int64)
    counts = np.bincount(flip_labels(labels, np.arange(30_000), 1.0, 4, 0), minlength=4)
    assert counts[0] == 0
    assert np.abs(counts[1:] - 10_000).max() < 400


def test_noise_is_the_same_in_every_process():
    assert flip_labels(labels_of(10, 5), np.arange(10), 0.5, 5, 0).tolist() == [0, 1, 4, 3, 4, 0, 0, 0, 1, 1]


def test_bad_noise():
    labels = labels_of(10, 5)
    for rate in (-0.1, 1.1, float("nan")):
        with pytest.raises(UsageError, match="rate"):
            flip_labels(labels, np.arange(10), rate, 5, 0)
    with pytest.raises(UsageError, match="classes"):
        flip_labels(labels, np.arange(10), 0.5, 1, 0)
    with pytest.raises(UsageError, match="from 0 to 3"):
        flip_labels(labels, np.arange(10), 0.5, 4, 0)
