from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from asymtrain.errors import UsageError
from asymtrain.lab.data import Dataset, Examples, cifar, class_count, data_root, load, registry, shapes


def test_shapes_by_name_with_options():
    data = load("shapes", classes=3, size=9, test_size=3, image_size=16)
    assert isinstance(data, Dataset)
    assert (data.name, data.classes, len(data.train), len(data.test)) == ("shapes", 3, 9, 3)
    assert data.train.images.shape[-1] == 16


def test_folder_by_name(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (4, 4)).save(tmp_path / "photos" / name / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    assert load("folder:photos", image_size=8).train.images.shape == (2, 3, 8, 8)
    with pytest.raises(UsageError, match="write folder:PATH"):
        load("folder:")
    with pytest.raises(UsageError, match="write folder:PATH"):
        load("folder")


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_by_name_from_the_data_root(tmp_path, monkeypatch, name):
    seen = []

    def spy(source, root, *, download=True):
        seen.append((source.name, root, download))
        part = Examples(np.zeros((0, 3, 32, 32), np.uint8), np.zeros(0, np.int64))
        return Dataset(name, part, part, ())

    monkeypatch.setattr(cifar, "load", spy)
    monkeypatch.setenv("ASYMTRAIN_DATA", str(tmp_path / "from-env"))
    load(name, root=tmp_path)
    load(name, download=False)
    assert seen == [(name, tmp_path, True), (name, tmp_path / "from-env", False)]


def test_where_data_lies(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ASYMTRAIN_DATA", raising=False)
    assert data_root() == tmp_path / ".cache" / "asymtrain"
    monkeypatch.setenv("ASYMTRAIN_DATA", "")
    assert data_root() == tmp_path / ".cache" / "asymtrain"
    monkeypatch.setenv("ASYMTRAIN_DATA", "~/there")
    assert data_root() == tmp_path / "there"
    assert data_root(Path("/here")) == data_root("/here") == Path("/here")


def test_a_folder_without_its_kind_is_told_how_to_write_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    with pytest.raises(UsageError, match="unknown dataset 'photos': for a folder of images write folder:photos"):
        load("photos")


def test_unknown_names_are_met_with_near_ones():
    with pytest.raises(UsageError, match="unknown dataset 'shape': did you mean 'shapes'"):
        load("shape")
    with pytest.raises(UsageError, match="'cifar100'"):
        load("CIFAR-100".lower())
    with pytest.raises(
        UsageError, match=r"write one of cifar10, cifar100, folder:PATH, npz:FILE, package.module:function, shapes"
    ):
        load("zzz")
    with pytest.raises(UsageError, match="unknown option of the dataset shapes 'clases': did you mean 'classes'"):
        load("shapes", clases=3)
    with pytest.raises(UsageError, match="unknown option of the dataset cifar10 'classes'"):
        load("cifar10", classes=3)


def test_the_names_are_those_that_load(tmp_path):
    for name in registry.NAMES:
        registry._loader(name, tmp_path)


def test_arrays_compare_by_identity():
    data = load("shapes", classes=2, size=2, test_size=2)
    assert data == data
    assert data.train != data.test
    assert isinstance(data.train.labels, np.ndarray)


def test_class_counts_are_known_without_the_data(tmp_path):
    for name in ("cats", "dogs", "eels", ".hidden"):
        (tmp_path / name).mkdir()
    assert class_count("shapes", {"classes": 7}) == 7
    assert class_count("cifar100") == 100
    assert class_count(f"folder:{tmp_path}") == 3
    assert class_count(f"folder:{tmp_path / 'gone'}") is None
    (tmp_path / "train").mkdir()
    assert class_count(f"folder:{tmp_path}") == 4  # there are trains to classify
    for part in ("train", "test"):
        for name in ("cats", "dogs"):
            (tmp_path / part / name).mkdir(parents=True)
    assert class_count(f"folder:{tmp_path}") == 2


def test_class_count_of_shapes_is_what_it_draws():
    default = class_count("shapes")
    drawn = shapes.load(size=200, test_size=200)
    assert len(drawn.class_names) == default


def test_the_shape_of_an_input_is_known_once_it_is_loaded():
    options = {"classes": 2, "size": 4, "test_size": 2, "image_size": 11}
    assert registry.input_shape("shapes", options) is None
    load("shapes", **options)
    assert registry.input_shape("shapes", dict(reversed(options.items()))) == (3, 11, 11)
    assert registry.input_shape("shapes") != (3, 11, 11)
