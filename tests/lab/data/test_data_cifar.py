"""Reading the unpacked folder."""

import pickle

import numpy as np
import pytest
from cifar_files import HUNDRED, TEN, batch, contents, python2_pickle, write_folder

from asymtrain.errors import UsageError
from asymtrain.lab.data import cifar


@pytest.mark.parametrize("source", [TEN, HUNDRED], ids=lambda source: source.name)
@pytest.mark.parametrize("python2", [False, True])
def test_reads_the_official_layout(tmp_path, source, python2):
    made = contents(source)
    write_folder(source, tmp_path, **({f: python2_pickle(c) for f, c in made.items()} if python2 else {}))
    data = cifar.load(source, tmp_path)
    assert data.name == source.name
    assert data.class_names == tuple(f"name {i}" for i in range(source.classes))
    for part, files in ((data.train, source.train_files), (data.test, source.test_files)):
        expected = np.concatenate([made[f][b"data"] for f in files]).reshape(-1, 3, 32, 32)
        assert (part.images == expected).all()
        assert part.images.dtype == np.uint8
        assert part.images.flags.c_contiguous
        assert part.images.flags.writeable
        assert part.labels.tolist() == [label for f in files for label in made[f][source.labels_key.encode()]]
        assert part.labels.dtype == np.int64
        assert part.masks is None


def change(**fields):
    return {**batch(3, 10, 0, "labels"), **{key.encode(): value for key, value in fields.items()}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "damaged"),
        (b"\x1f\x8b something else", "data_batch_2"),
        (b"<html>not found</html>", "data_batch_2"),
        (pickle.dumps(change(), protocol=2)[:-3000], "truncated"),
        ([1, 2], "a list, not a dict"),
        ({b"data": 1, b"labels": []}, "no 'data'"),
        (batch(3, 10, 0, "fine_labels"), "no 'labels'"),
        (batch(2, 10, 0, "labels"), "2 images and 2 labels, not 3"),
        (change(labels=[1, 2]), "3 images and 2 labels"),
        (change(labels=[1, 2, 10]), "from 0 to 9"),
        (change(labels=[1, 2, -1]), "from 0 to 9"),
        (change(labels=[1, 2, "3"]), "from 0 to 9"),
        (change(data=np.zeros((3, 784), np.uint8)), "rows of 3072"),
        (change(data=np.zeros(9216, np.uint8)), "rows of 3072"),
        (change(data=np.zeros((3, 3072), np.int64)), "rows of 3072"),
        (change(data=np.zeros((3, 3072), np.float32)), "'f4'"),
        (change(data=np.array([[None] * 3072] * 3)), "'O8'"),
    ],
)
def test_a_foreign_or_truncated_file_is_named_in_one_line(tmp_path, content, words):
    folder = write_folder(TEN, tmp_path, data_batch_2=content)
    with pytest.raises(UsageError, match=words) as caught:
        cifar.load(TEN, tmp_path)
    assert str(folder / "data_batch_2") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_foreign_names(tmp_path):
    folder = write_folder(TEN, tmp_path, **{"batches.meta": {b"label_names": [b"cat"]}})
    with pytest.raises(UsageError, match=r"batches\.meta is not a whole CIFAR-10 file"):
        cifar.load(TEN, tmp_path)
    (folder / "test_batch").unlink()
    with pytest.raises(UsageError, match=r"test_batch is not .* missing"):
        cifar.load(TEN, tmp_path)
