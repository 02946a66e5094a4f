"""Reading the unpacked folder."""

import os
import pickle

import numpy as np
import pytest
from cifar_files import HUNDRED, TEN, batches, write_folder

from asymtrain.errors import UsageError
from asymtrain.lab.data import cifar


@pytest.mark.parametrize("release", [TEN, HUNDRED], ids=lambda release: release.name)
def test_reads_the_official_layout(tmp_path, release):
    write_folder(release, tmp_path)
    data = cifar.load(release, tmp_path)
    assert data.name == release.name
    assert data.class_names == tuple(f"name {i}" for i in range(release.classes))
    made = dict(batches(release))
    for part, files, count in (
        (data.train, release.train_files, release.train_images),
        (data.test, release.test_files, release.test_images),
    ):
        assert len(part) == count
        assert (part.images == np.concatenate([made[f][0] for f in files]).reshape(-1, 3, 32, 32)).all()
        assert part.images.dtype == np.uint8
        assert part.images.flags.c_contiguous
        assert part.images.flags.writeable
        assert part.labels.tolist() == [label for f in files for label in made[f][1]]
        assert part.labels.dtype == np.int64
        assert part.masks is None


def test_the_official_files():
    for release in cifar.RELEASES.values():
        assert (release.train_images, release.test_images) == (50_000, 10_000)
        digests = [release.archive.md5, *release.files.values()]
        assert len(set(digests)) == len(digests)
        assert all(len(digest) == 32 and int(digest, 16) for digest in digests)


class Call:
    def __init__(self, function, *arguments):
        self.parts = (function, arguments)

    def __reduce__(self):
        return self.parts


def test_a_file_that_is_not_the_official_one_is_refused_before_it_is_unpickled(tmp_path):
    mark = tmp_path / "ran"
    whole = write_folder(TEN, tmp_path / "whole") / "data_batch_2"
    flipped = bytearray(whole.read_bytes())
    flipped[-1000] ^= 1
    contents = [b"", b"<html>not found</html>", whole.read_bytes()[:-100], bytes(flipped), pickle.dumps({}),
                pickle.dumps({"data": Call(os.mkdir, str(mark))})]  # fmt: skip
    for number, content in enumerate(contents):
        root = tmp_path / str(number)
        folder = write_folder(TEN, root, data_batch_2=content)
        with pytest.raises(UsageError, match=r"not the official file.*md5") as caught:
            cifar.load(TEN, root)
        assert str(folder / "data_batch_2") in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not mark.exists()


@pytest.mark.parametrize("file", ["test_batch", "batches.meta"])
def test_a_file_that_is_missing_or_a_folder(tmp_path, file):
    folder = write_folder(TEN, tmp_path)
    (folder / file).unlink()
    for make in (lambda: None, (folder / file).mkdir):
        make()
        with pytest.raises(UsageError, match=f"{file} .*missing"):
            cifar.load(TEN, tmp_path)
