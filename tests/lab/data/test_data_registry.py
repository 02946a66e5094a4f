from pathlib import Path

import numpy as np
import pytest

from asymtrain.errors import UsageError
from asymtrain.lab.data import Dataset, Examples, class_count, data_root, load, registry, shapes, source_names
from asymtrain.lab.engine import train
from asymtrain.lab.runs import RunSpec


def test_shapes_by_name_with_options():
    data = load("shapes", classes=3, size=9, test_size=3, image_size=16)
    assert isinstance(data, Dataset)
    assert (data.name, data.classes, len(data.train), len(data.test)) == ("shapes", 3, 9, 3)
    assert data.train.images.shape[-1] == 16
    assert data.train != data.test  # compared by identity
    assert registry.size_of("shapes") == (len(shapes.load().class_names), shapes.SIZE, shapes.TEST_SIZE)
    assert registry.size_of("shapes", {"size": 9}).train == 9


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_from_the_data_root(tmp_path, monkeypatch, name):
    monkeypatch.setenv("ASYMTRAIN_DATA", str(tmp_path / "from-env"))
    for root, given in ((tmp_path, {"root": tmp_path}), (tmp_path / "from-env", {})):
        with pytest.raises(UsageError, match=f"is not in {root},"):
            load(name, download=False, **given)
    with pytest.raises(UsageError, match="not asked for"):
        registry.load_offline(name)


def one_of_each():
    """A source as its author writes it: images of one brightness for each class."""

    def load_grey(*, levels: int = 4, seed: int = 0) -> Dataset:
        labels = np.arange(levels * 16) % levels
        drawn = np.random.default_rng(seed).integers(0, 40, (len(labels), 3, 8, 8))
        part = Examples((drawn + (200 * labels // levels)[:, None, None, None]).astype(np.uint8), labels)
        return Dataset("grey", part, part, tuple(map(str, range(levels))))

    return registry.Source(
        load=load_grey,
        size=lambda _, options: registry.Size(int(options.get("levels", 4))),
        holds="levels of grey",
        note="always there",
    )


def test_a_source_is_added_by_one_entry(monkeypatch):
    monkeypatch.setitem(registry.SOURCES, "grey", one_of_each())
    assert "grey" in source_names()
    assert {"name": "grey", "holds": "levels of grey", "state": "always there"} in registry.catalogue()
    assert class_count("grey", {"levels": 3}) == load("grey", levels=3).classes == 3
    with pytest.raises(UsageError, match=r"unknown option.*'levles'.*'levels'"):
        load("grey", levles=3)
    spec = RunSpec(dataset="grey", dataset_options={"levels": 3}, arch_options={"widths": (16, 16)}, batch=8, epochs=8)
    (run,) = train([spec], device="cpu")
    assert run.outcome == "finished"
    assert run.test_accuracy > 0.5


def test_a_source_with_a_path_and_one_that_is_downloaded_are_added_alike(monkeypatch, tmp_path):
    source = one_of_each()
    paths = []

    def load_from(path: Path, *, download: bool = True) -> Dataset:
        paths.append((path, download))
        return source.load()

    entry = {"load": load_from, "size": source.size, "holds": "greys"}
    monkeypatch.setitem(registry.SOURCES, "greys:", registry.Source(**entry, argument="FILE"))
    monkeypatch.setitem(registry.SOURCES, "web", registry.Source(**entry, is_in=lambda root: False))
    load("greys:~/here")
    load("web", root=tmp_path)
    registry.load_offline("web", root=tmp_path)
    assert paths == [(Path("~/here").expanduser(), True), (tmp_path, True), (tmp_path, False)]
    with pytest.raises(UsageError, match="greys:FILE"):
        load("greys:")
    assert "asymtrain data get web" in registry.catalogue(tmp_path)[-2]["state"]


def test_where_data_lies(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ASYMTRAIN_DATA", raising=False)
    assert data_root() == tmp_path / ".cache" / "asymtrain"
    monkeypatch.setenv("ASYMTRAIN_DATA", "")
    assert data_root() == tmp_path / ".cache" / "asymtrain"
    monkeypatch.setenv("ASYMTRAIN_DATA", "~/there")
    assert data_root() == tmp_path / "there"
    assert data_root(Path("/here")) == data_root("/here") == Path("/here")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("folder:", {}, "folder:PATH"),
        ("photos", {}, "write folder:photos"),
        ("shape", {}, "'shapes'"),
        ("cifar-100", {}, "'cifar100'"),
        ("zzz", {}, r"cifar10, .*folder:PATH, .*module:function"),
        ("shapes", {"clases": 3}, "'classes'"),
        ("cifar10", {"classes": 3}, "unknown option"),
    ],
)
def test_a_wrong_name_is_met_with_what_to_write(tmp_path, monkeypatch, name, options, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    with pytest.raises(UsageError, match=words):
        load(name, **options)


def test_the_help_of_the_command_line_names_every_source():
    from asymtrain.lab.cli.options import DATA, offered_datasets

    for name in source_names():
        assert name in DATA.help
    assert offered_datasets("c") == ["cifar10", "cifar100"]


def test_class_counts_are_known_without_the_data(tmp_path):
    for name in ("cats", "dogs", "eels", ".hidden"):
        (tmp_path / name).mkdir()
    assert class_count("shapes", {"classes": 7}) == 7
    assert registry.size_of("cifar100") == (100, 50_000, 10_000)
    assert class_count(f"folder:{tmp_path}") == 3
    assert class_count(f"folder:{tmp_path / 'gone'}") is None
    (tmp_path / "train").mkdir()
    assert class_count(f"folder:{tmp_path}") == 4  # there are trains to classify
    for part in ("train", "test"):
        for name in ("cats", "dogs"):
            (tmp_path / part / name).mkdir(parents=True)
    assert class_count(f"folder:{tmp_path}") == 2


def test_the_shape_of_an_input_is_known_once_it_is_loaded():
    options = {"classes": 2, "size": 4, "test_size": 2, "image_size": 11}
    assert registry.input_shape("shapes", options) is None
    load("shapes", **options)
    assert registry.input_shape("shapes", dict(reversed(options.items()))) == (3, 11, 11)
    assert registry.input_shape("shapes") != (3, 11, 11)


def test_the_catalogue_counts_the_images_of_a_release(tmp_path):
    holds = {row["name"]: row["holds"] for row in registry.catalogue(tmp_path)}
    assert holds["cifar10"] == "60,000 images, 10 classes"
    assert holds["cifar100"] == "60,000 images, 100 classes"
