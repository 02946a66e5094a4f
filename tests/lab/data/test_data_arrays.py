from dataclasses import replace

import numpy as np
import pytest

from asymtrain.errors import UsageError
from asymtrain.lab.data import Dataset, Examples, load

KINDS = {
    "images": np.arange(4 * 2 * 3 * 5, dtype=np.uint8).reshape(4, 2, 3, 5),
    "vectors": np.arange(12, dtype=np.float32).reshape(4, 3),
    "tokens": np.arange(12, dtype=np.int64).reshape(4, 3),
}


def dataset(inputs, labels=(0, 1, 1, 0), names=("a", "b")):
    part = Examples(inputs, np.array(labels, np.int64))
    return Dataset("made", part, part, names)


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_follows_from_the_array(kind):
    data = dataset(KINDS[kind])
    assert data.kind == data.train.kind == kind
    assert len(data.train) == 4


def test_only_a_set_of_images_has_images():
    assert dataset(KINDS["images"]).train.images is KINDS["images"]
    for kind in ("vectors", "tokens"):
        with pytest.raises(UsageError, match=f"holds {kind}"):
            _ = dataset(KINDS[kind]).train.images


@pytest.mark.parametrize("kind", KINDS)
def test_a_fingerprint_changes_with_anything_that_is_learnt(kind):
    inputs = KINDS[kind]
    data = dataset(inputs)
    changed = inputs.copy()
    changed.flat[-1] += 1
    part = Examples(changed, data.test.labels)
    others = [
        dataset(changed),
        dataset(inputs, labels=(0, 1, 1, 1)),
        dataset(inputs, names=("a", "c")),
        dataset(inputs, names=("a", "b", "c")),
        dataset(inputs.reshape(4, *inputs.shape[:0:-1])) if kind == "images" else dataset(inputs[:, :2]),
        replace(data, test=part),
    ]
    prints = [other.fingerprint for other in (data, *others)]
    assert len(set(prints)) == len(prints)
    assert all(len(text) == 16 for text in prints)
    assert dataset(np.asfortranarray(inputs.copy())).fingerprint == data.fingerprint
    assert replace(data, name="elsewhere").fingerprint == data.fingerprint


def test_kinds_of_equal_bytes_have_other_fingerprints():
    zeros = np.zeros((4, 2), np.int64)
    assert dataset(zeros).fingerprint != dataset(np.zeros((4, 4), np.float32)).fingerprint


def test_a_fingerprint_is_the_same_in_every_version_and_taken_once():
    data = load("shapes", classes=2, size=4, test_size=2, image_size=8)
    assert data.fingerprint == "ca5386ec1e63449c"
    assert data.fingerprint is data.fingerprint
