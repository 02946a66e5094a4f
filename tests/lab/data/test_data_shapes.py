import hashlib
import time

import numpy as np
import pytest

from asymtrain.errors import UsageError
from asymtrain.lab.data import shapes
from asymtrain.lab.data.shapes import FILLS, OUTLINES


@pytest.mark.parametrize(("classes", "size", "image_size"), [(2, 70, 32), (7, 65, 33), (100, 130, 16)])
def test_arrays_are_as_promised(classes, size, image_size):
    data = shapes.load(classes=classes, size=size, test_size=classes, image_size=image_size)
    for part, n in ((data.train, size), (data.test, classes)):
        assert part.images.shape == (n, 3, image_size, image_size)
        assert part.images.dtype == np.uint8
        assert part.images.flags.c_contiguous
        assert part.labels.shape == (n,)
        assert part.labels.dtype == np.int64
        assert part.masks.shape == (n, image_size, image_size)
        assert part.masks.dtype == np.bool_
        counts = np.bincount(part.labels, minlength=classes)
        assert len(counts) == classes
        assert counts.max() - counts.min() <= 1
    assert data.classes == len(set(data.class_names)) == classes


def test_same_bytes_in_every_process_and_on_every_machine():
    data = shapes.load(classes=100, size=300, test_size=100, seed=3)
    digest = hashlib.sha256()
    for part in (data.train, data.test):
        for array in (part.images, part.labels.astype("<i8"), part.masks):
            digest.update(array.tobytes())
    assert digest.hexdigest() == "7d12a67043eefd29f6728b02cb1011288f3f61bc7a28bcde1b534baa239da767"


def test_seed_matters_and_train_and_test_share_no_image():
    zero, one = shapes.load(size=200, test_size=200), shapes.load(size=200, test_size=200, seed=1)
    drawn = [image.tobytes() for d in (zero, one) for part in (d.train, d.test) for image in part.images]
    assert len(set(drawn)) == 800
    assert (zero.train.labels != one.train.labels).any()
    assert (zero.train.labels != zero.test.labels).any()


def test_a_longer_set_begins_with_the_shorter():
    short, long = shapes.load(size=100, test_size=20).train, shapes.load(size=333, test_size=20).train
    assert (long.images[:100] == short.images).all()
    assert (long.labels[:100] == short.labels).all()
    assert (long.masks[:100] == short.masks).all()


def test_the_first_square_number_of_classes_crosses_outlines_with_fills():
    table = shapes.class_table()
    for k in range(1, 11):
        assert set(table[: k * k]) == {(outline, fill) for outline in range(k) for fill in range(k)}
    assert table[:2] == [(0, 0), (1, 1)]
    names = shapes.load(classes=4, size=4, test_size=4).class_names
    assert names == ("solid disc", "striped square", "solid square", "striped disc")


def test_masks_hold_the_object():
    data = shapes.load(classes=2, size=400, test_size=2).train
    solid = data.labels == 0
    images, masks = data.images[solid].astype(float).mean(axis=1), data.masks[solid]
    area = masks.mean(axis=(1, 2))
    # A disc of radius 0.85 * (9.5 to 14) pixels, of which clutter in front hides little.
    assert area.min() > 0.12
    assert area.max() < 0.47
    inside = np.array([image[mask].std() for image, mask in zip(images, masks, strict=True)])
    gap = np.array([abs(image[mask].mean() - image[~mask].mean()) for image, mask in zip(images, masks, strict=True)])
    assert np.median(inside) < 15
    assert np.median(gap) > 40


def test_thousands_of_images_a_second():
    def seconds():
        start = time.process_time()
        shapes.load(size=4000, test_size=20)
        return time.process_time() - start

    # Half a second on an idle core; other processes slow it through the shared caches, so one turn of five counts.
    assert any(seconds() < 4 for _ in range(5))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"classes": 1}, "classes must be from 2 to 100, not 1"),
        ({"classes": 101}, "from 2 to 100"),
        ({"classes": 2.5}, "whole number"),
        ({"classes": "ten"}, "whole number"),
        ({"classes": True}, "whole number"),
        ({"size": 19}, "size must be at least 20, not 19"),
        ({"test_size": 0}, "test_size"),
        ({"image_size": 4}, "image_size"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(UsageError, match=words):
        shapes.load(**options)


AREAS = {
    "disc": np.pi * 0.85**2,
    "square": 1.5**2,
    "triangle": 3 * 3**0.5 * 0.55**2,
    "cross": 2 * 4 * 0.95 * 0.33 - 4 * 0.33**2,
    "ring": np.pi * (0.93**2 - 0.39**2),
    "bar": 4 * 0.42,
    "hourglass": 4 * (0.15 * 0.85 + 0.4 * 0.85**2),
    "corner": 1.6**2 - 0.95**2,
    # Ten triangles between the centre, a point and an inner corner.
    "star": 5 * 0.38**2 * np.sin(np.pi / 5) / (np.cos(np.pi * 0.4) * np.cos(np.pi / 5)),
}


def grid(n=600):
    axis = (np.arange(n, dtype=np.float32) + 0.5) * (3 / n) - 1.5
    u, v = np.meshgrid(axis, axis)
    return u[None], v[None]


def test_outlines_have_their_areas_and_differ():
    u, v = grid()
    inside = {name: outline(u, v) < 0 for name, outline in OUTLINES.items()}
    for name, area in AREAS.items():
        assert inside[name].mean() * 9 == pytest.approx(area, rel=0.02), name
    assert 0.5 < inside["crescent"].mean() * 9 < 2
    names = list(inside)
    for i, first in enumerate(names):
        for second in names[:i]:
            both, either = inside[first] & inside[second], inside[first] | inside[second]
            assert both.sum() / either.sum() < 0.9, (first, second)


def test_fills_are_shares_and_differ():
    u, v = grid(100)
    noise = np.random.default_rng(0).uniform(-1, 1, u.shape).astype(np.float32)
    phase, freq = np.full((1, 1, 1), 0.3, np.float32), np.full((1, 1, 1), 2, np.float32)
    distance = OUTLINES["square"](u, v)
    inside = distance < 0
    shares = {name: fill(u, v, distance, phase, freq, noise) for name, fill in FILLS.items()}
    for name, share in shares.items():
        assert share.dtype == np.float32, name
        assert share.min() >= 0, name
        assert share.max() <= 1, name
        assert name == "solid" or 0.1 < share[inside].mean() < 0.9, name
        others = [s for other, s in shares.items() if other != name]
        assert min(np.abs(share - s)[inside].mean() for s in others) > 0.1, name
