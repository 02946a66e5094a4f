"""The files of MNIST's form, written byte by byte."""

import gzip
import struct

import numpy as np
import pytest

from asymtrain.errors import UsageError
from asymtrain.lab.data import load, registry

IMAGES = np.arange(7 * 4 * 5, dtype=np.uint8).reshape(7, 4, 5)
LABELS = np.array([0, 2, 1, 0, 2, 1, 0], np.uint8)


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def written(folder, packed=(), **changed):
    """The folder with a whole dataset, but for files that are changed."""
    folder.mkdir(exist_ok=True)
    files = {
        "train-images-idx3-ubyte": idx(IMAGES),
        "train-labels-idx1-ubyte": idx(LABELS),
        "t10k-images-idx3-ubyte": idx(IMAGES[:3]),
        "t10k-labels-idx1-ubyte": idx(LABELS[:3]),
    }
    for name, content in {**files, **{name.replace("_", "-"): content for name, content in changed.items()}}.items():
        if content is not None:
            file = folder / (f"{name}.gz" if name in packed else name)
            file.write_bytes(gzip.compress(content) if name in packed else content)
    return folder


@pytest.mark.parametrize("packed", [(), ("train-images-idx3-ubyte", "t10k-labels-idx1-ubyte")])
def test_reads_plain_and_packed_files(tmp_path, packed):
    name = f"idx:{written(tmp_path / 'grey', packed)}"
    data = load(name)
    assert np.array_equal(data.train.images, IMAGES[:, None])
    assert np.array_equal(data.test.images, IMAGES[:3, None])
    assert data.train.labels.tolist() == LABELS.tolist()
    assert (data.train.labels.dtype, data.class_names) == (np.int64, ("0", "1", "2"))
    assert registry.size_of(name) == (3, 7, 3)
    coloured = load(name, channels=3, image_size=8)
    assert coloured.train.images.shape == (7, 3, 8, 8)
    assert np.array_equal(coloured.train.images[:, 0], coloured.train.images[:, 2])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"train_labels_idx1_ubyte": None}, "train-labels-idx1-ubyte cannot be read .* takes train-images"),
        ({"train_labels_idx1_ubyte": idx(LABELS[:6])}, "7 images and 6 labels in train"),
        ({"t10k_images_idx3_ubyte": idx(IMAGES[:3, :, :4])}, "differ in size"),
        ({"train_images_idx3_ubyte": idx(IMAGES)[:-1]}, "140 bytes that its head announces"),
        ({"train_images_idx3_ubyte": idx(IMAGES) + b"0"}, "140 bytes that its head announces"),
        ({"train_images_idx3_ubyte": idx(LABELS)}, "no idx file, or is damaged .*3 axes"),
        ({"train_images_idx3_ubyte": b"\0\0"}, "no idx file, or is damaged"),
        ({"train_images_idx3_ubyte": struct.pack(">HBBIII", 0, 8, 3, 2**31, 2**31, 9)}, "announces"),
    ],
)
def test_damaged_files_are_named_in_one_line(tmp_path, changed, words):
    with pytest.raises(UsageError, match=words) as refused:
        load(f"idx:{written(tmp_path / 'grey', **changed)}")
    assert "\n" not in str(refused.value)


def test_a_damaged_archive_and_a_folder_that_is_not_there(tmp_path):
    folder = written(tmp_path / "grey", ["train-images-idx3-ubyte"])
    file = folder / "train-images-idx3-ubyte.gz"
    for content in (file.read_bytes()[:40], b"no archive", b""):
        file.write_bytes(content)
        with pytest.raises(UsageError, match="damaged"):
            load(f"idx:{folder}")
    with pytest.raises(UsageError, match="cannot be read"):
        load(f"idx:{tmp_path / 'gone'}")
    assert registry.size_of(f"idx:{tmp_path / 'gone'}") is None
    with pytest.raises(UsageError, match="channels must be from 1 to 3"):
        load(f"idx:{folder}", channels=4)
