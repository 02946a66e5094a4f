import io
import sys
import zipfile

import numpy as np
import pytest

from asymtrain.errors import UsageError
from asymtrain.lab.data import class_count, load, own
from asymtrain.lab.functions import is_function

COUNT = 20
LABELS = np.arange(COUNT) % 4
BYTES = np.random.default_rng(0).integers(0, 256, (COUNT, 3, 8, 6), dtype=np.uint8)
VECTORS = np.random.default_rng(1).normal(size=(COUNT, 5)).astype(np.float32)
TOKENS = np.random.default_rng(2).integers(0, 99, (COUNT, 7))
KINDS = {"images": BYTES, "vectors": VECTORS, "tokens": TOKENS}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(**arrays):
    np.savez("data.npz", **arrays)
    return "npz:data.npz"


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_with_a_test_set(kind):
    x = KINDS[kind]
    name = write(x=x, y=LABELS, x_test=x[:9], y_test=LABELS[:9])
    data = load(name)
    assert (data.kind, data.classes, data.class_names) == (kind, 4, ("0", "1", "2", "3"))
    np.testing.assert_array_equal(data.train.inputs, x)
    np.testing.assert_array_equal(data.test.inputs, x[:9])
    np.testing.assert_array_equal(data.test.labels, LABELS[:9])
    assert data.train.inputs.dtype == x.dtype
    assert data.train.labels.dtype == np.int64
    assert class_count(name) == 4


def test_other_names_compression_and_class_names():
    np.savez_compressed("data.npz", images=BYTES, labels=LABELS.astype(np.float64), class_names=list("abcde"))
    data = load("npz:data.npz")
    assert data.class_names == tuple("abcde")
    assert class_count("npz:data.npz") == 5
    write(x=BYTES, y=LABELS, class_names=np.array([b"\xc3\xa4", b"b", b"c", b"d"]))
    assert load("npz:data.npz").class_names == ("ä", "b", "c", "d")
    assert class_count("npz:data.npz") == 4  # the file is another one now
    assert class_count("npz:gone.npz") is None


def test_without_a_test_set_a_fifth_of_each_class_is_held_out_by_the_seed():
    x = np.arange(100, dtype=np.float32)[:, None]
    name = write(x=x, y=np.repeat(np.arange(4), 25))
    data, again, other = load(name), load(name), load(name, seed=1)
    assert np.bincount(data.test.labels).tolist() == [5, 5, 5, 5]
    rows = np.concatenate([data.train.inputs, data.test.inputs])[:, 0]
    np.testing.assert_array_equal(np.sort(rows), np.arange(100))
    np.testing.assert_array_equal(data.test.inputs[:, 0] // 25, data.test.labels)
    np.testing.assert_array_equal(data.test.inputs, again.test.inputs)
    assert not np.array_equal(data.test.inputs, other.test.inputs)


def test_types_that_can_be_told_are_converted():
    channels_last = BYTES.transpose(0, 2, 3, 1)
    for x in (channels_last, BYTES / 255, BYTES.astype(np.float32), BYTES.astype(np.int64), BYTES.astype(np.float16)):
        data = load(write(x=x, y=LABELS, x_test=x, y_test=LABELS))
        np.testing.assert_array_equal(data.train.images, BYTES)
        assert data.train.images.flags.c_contiguous
    shares = load(write(x=BYTES > 127, y=LABELS, x_test=BYTES > 127, y_test=LABELS))
    np.testing.assert_array_equal(shares.test.images, 255 * (BYTES > 127))
    assert load(write(x=VECTORS.astype(np.float64), y=LABELS)).train.inputs.dtype == np.float32
    assert load(write(x=TOKENS.astype(np.uint16), y=LABELS)).train.inputs.dtype == np.int64


def test_both_parts_are_read_on_one_scale():
    dark = np.zeros_like(BYTES, np.float32)
    data = load(write(x=BYTES.astype(np.float32), y=LABELS, x_test=dark + 1, y_test=LABELS))
    assert data.test.images.max() == 1  # of 255: alone, it would be white


def test_the_layout_can_be_given():
    many = np.zeros((COUNT, 10, 8, 6), np.uint8)
    name = write(x=many, y=LABELS)
    assert load(name, layout="nchw").train.images.shape[1:] == (10, 8, 6)
    assert load(name, layout="nhwc").train.images.shape[1:] == (6, 10, 8)


def test_images_take_another_size_and_others_do_not():
    name = write(x=BYTES, y=LABELS)
    assert load(name, image_size=16).train.images.shape[1:] == (3, 16, 16)
    with pytest.raises(UsageError, match=r"image_size is of images, and npz:data\.npz holds vectors"):
        load(write(x=VECTORS, y=LABELS), image_size=16)


WRONG = {
    "other keys": ({"x": BYTES, "y": LABELS, "z": LABELS}, "key 'z'"),
    "no labels": ({"x": BYTES}, r"no y: .*savez"),
    "no inputs": ({"y": LABELS}, "no x"),
    "two names": ({"x": BYTES, "images": BYTES, "y": LABELS}, "x twice"),
    "half a test set": ({"x": BYTES, "y": LABELS, "x_test": BYTES}, "no y_test"),
    "objects": ({"x": np.array([BYTES, None], object), "y": LABELS}, "Object arrays"),
    "object labels": ({"x": BYTES, "y": np.array([None] * COUNT)}, "Object arrays"),
    "texts": ({"x": np.array(["a"] * COUNT), "y": LABELS}, "<U1"),
    "complex": ({"x": VECTORS + 0j, "y": LABELS}, "complex64"),
    "fewer labels": ({"x": BYTES, "y": LABELS[:-1]}, r"\(19,\).* 20 inputs"),
    "columns": ({"x": BYTES, "y": LABELS[:, None]}, r"\(20, 1\)"),
    "halves": ({"x": BYTES, "y": LABELS / 2}, "whole numbers"),
    "no number": ({"x": BYTES, "y": LABELS * np.nan}, "whole numbers"),
    "words": ({"x": BYTES, "y": np.array(["cat"] * COUNT)}, "whole numbers"),
    "below 0": ({"x": BYTES, "y": LABELS - 1}, "-1 to 2"),
    "a gap": ({"x": BYTES, "y": LABELS * 2}, "label 1"),
    "from 1": ({"x": BYTES, "y": LABELS + 1}, "label 0"),
    "huge": ({"x": BYTES, "y": LABELS + 10**15}, "from 0"),
    "an unknown class": (
        {"x": BYTES, "y": LABELS, "x_test": BYTES, "y_test": LABELS + 1}, "label 4"
    ),
    "one class": ({"x": BYTES, "y": LABELS * 0}, "two or more"),
    "a name too few": ({"x": BYTES, "y": LABELS, "class_names": list("abc")}, "class_names has 3"),
    "names twice": ({"x": BYTES, "y": LABELS, "class_names": list("aabc")}, "each once"),
    "names of numbers": ({"x": BYTES, "y": LABELS, "class_names": np.arange(4)}, "class_names"),
    "one of a class": ({"x": BYTES, "y": np.r_[LABELS[:-1], 4]}, "one example of class 4"),
    "normalised images": ({"x": BYTES / 255 - 0.5, "y": LABELS}, "-0.5 to 0.5"),
    "fractions of bytes": ({"x": BYTES / 2, "y": LABELS}, "uint8"),
    "two types": ({"x": BYTES, "y": LABELS, "x_test": BYTES / 255, "y_test": LABELS}, "x_test are uint8"),
    "two shapes": ({"x": VECTORS, "y": LABELS, "x_test": VECTORS[:, 1:], "y_test": LABELS}, r"\(20, 4\)"),
    "grey images": ({"x": BYTES[:, 0], "y": LABELS}, r"x\[:, None\]"),
    "one axis": ({"x": LABELS, "y": LABELS}, r"\(20,\)"),
    "a number": ({"x": np.float32(3), "y": LABELS}, r"\(\)"),
    "five axes": ({"x": BYTES[None], "y": LABELS}, "give images"),
    "nothing": ({"x": BYTES[:0], "y": LABELS[:0]}, "nothing in it"),
    "flat pixels": ({"x": BYTES.reshape(COUNT, -1), "y": LABELS}, "may be pixels"),
    "negative tokens": ({"x": TOKENS - 50, "y": LABELS}, "negative"),
    "missing values": ({"x": np.where(VECTORS < -1.5, np.nan, VECTORS), "y": LABELS}, "finite"),
    "too large": ({"x": VECTORS.astype(np.float64) * 1e300, "y": LABELS}, "finite"),
    "either axis": ({"x": BYTES[..., :3], "y": LABELS}, r"\(20, 3, 8, 3\).*layout=nchw"),
    "neither axis": ({"x": np.zeros((COUNT, 9, 8, 6), np.uint8), "y": LABELS}, "layout=nhwc"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_one_line(case, folder):
    arrays, words = WRONG[case]
    name = write(**arrays)
    with pytest.raises(UsageError, match=words) as caught:
        load(name)
    assert "\n" not in str(caught.value)
    assert [file.name for file in folder.iterdir()] == ["data.npz"]


def test_wrong_options():
    with pytest.raises(UsageError, match="'hwc'"):
        load(write(x=BYTES, y=LABELS), layout="hwc")
    with pytest.raises(UsageError, match="layout is of images"):
        load(write(x=VECTORS, y=LABELS), layout="nchw")
    with pytest.raises(UsageError, match="'seed'"):
        load(write(x=VECTORS, y=LABELS), sed=1)
    with pytest.raises(UsageError, match="whole number"):
        load(write(x=VECTORS, y=LABELS), seed="a")


def test_files_that_are_no_npz(folder):
    with pytest.raises(UsageError, match="write npz:FILE"):
        load("npz:")
    with pytest.raises(UsageError, match="not a file"):
        load("npz:gone.npz")
    np.save("array.npy", BYTES)
    with pytest.raises(UsageError, match="not an npz file"):
        load("npz:array.npy")
    whole = (folder / write(x=BYTES, y=LABELS).partition(":")[2]).read_bytes()
    for damaged in (whole[:200], whole.replace(b"NUMPY", b"MUMPY"), whole[:400] + bytes(200) + whole[600:]):
        (folder / "data.npz").write_bytes(damaged)
        with pytest.raises(UsageError, match=r"is not an npz file|cannot be read \(") as caught:
            load("npz:data.npz")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["x", "y"])
def test_an_entry_that_is_no_array_is_refused(key):
    write(x=BYTES, y=LABELS)
    with zipfile.ZipFile("data.npz") as file:
        contents = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile("data.npz", "w") as file:
        for name, content in {**contents, f"{key}.npy": b"not an array"}.items():
            file.writestr(name, content)
    with pytest.raises(UsageError, match=rf"cannot be read \(ValueError: {key} is no array\)"):
        load("npz:data.npz")
    assert class_count("npz:data.npz") == (None if key == "y" else LABELS.max() + 1)


def test_a_file_that_unpacks_to_more_than_the_memory_is_not_unpacked(monkeypatch):
    name = write(x=BYTES, y=LABELS)
    monkeypatch.setattr(own, "memory", lambda: BYTES.nbytes)
    with pytest.raises(UsageError, match="more than this machine's memory"):
        load(name)
    header = io.BytesIO()  # which lies: what it asks for is not in the file
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 1 << 10)})
    with zipfile.ZipFile("data.npz", "w") as file:
        file.writestr("x.npy", header.getvalue())
    with pytest.raises(UsageError, match="cannot be read"):
        load("npz:data.npz")


MODULE = """
import numpy, torch
labels = numpy.arange(20) % 4
vectors = numpy.arange(100, dtype=numpy.float32).reshape(20, 5)
images = torch.arange(20 * 3 * 5 * 5).reshape(20, 3, 5, 5).to(torch.uint8)

def pair(scale=1.0): return scale * vectors, labels
def four(): return torch.tensor(vectors), torch.tensor(labels), vectors[:4].tolist(), labels[:4]
def keras(): return (vectors, labels), (vectors[:4], labels[:4])
def named(size=5): return {"images": images[..., :size], "labels": labels, "class_names": list("abcd")}
def sized(image_size=4, seed=0): return torch.full((20, 3, image_size, image_size), float(seed)), labels
def half(): return torch.tensor(vectors).bfloat16().requires_grad_(), labels
def local():
    import helper
    return helper.vectors, labels
def chance(): return numpy.random.rand(20, 5), labels
def three(): return 1, 2, 3
def nothing(): pass
def ragged(): return [[1, 2], [3]], labels
def fails(): raise RuntimeError("no disk\\nat all")
def ends(): raise SystemExit
def wants(path): return vectors, labels
value = 3
"""


@pytest.fixture
def module(own_module):
    own_module("mine", MODULE)
    own_module("helper", "import numpy\nvectors = numpy.ones((20, 5))")
    own_module("broken", "import")


@pytest.mark.usefixtures("module")
def test_functions_return_arrays_in_several_forms():
    path = list(sys.path)
    assert load("mine:pair").kind == "vectors"
    assert load("mine:pair", scale=2).train.inputs.max() == 2 * load("mine:pair").train.inputs.max()
    for name in ("four", "keras"):
        data = load(f"mine:{name}")
        assert (len(data.train), len(data.test), data.name) == (20, 4, f"mine:{name}")
    data = load("mine:named")
    assert (data.kind, data.class_names) == ("images", tuple("abcd"))
    assert class_count("mine:named") == 4
    assert class_count("mine:unseen") is None
    assert load("mine:half").train.inputs.dtype == np.float32
    assert load("mine:local").train.inputs.max() == 1
    assert sys.path == path


@pytest.mark.usefixtures("module")
def test_functions_take_their_own_options_and_ours():
    assert load("mine:named", image_size=6).train.images.shape[2:] == (6, 6)
    assert load("mine:sized", image_size=9, seed=7, layout="nchw").train.images.max() == 7
    assert load("mine:sized", image_size=9, layout="nchw").train.images.shape[2:] == (9, 9)
    with pytest.raises(UsageError, match="'size'"):
        load("mine:named", siz=3)


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine:chance", "fixed seed"),
        ("mine:three", r"3 values.*\(x, y\)"),
        ("mine:nothing", "NoneType"),
        ("mine:ragged", "ValueError"),
        ("mine:fails", r"RuntimeError: no disk, at mine.py:\d+"),
        ("mine:ends", "SystemExit"),
        ("mine:wants", "'path'"),
        ("mine:value", "'value'"),
        ("mine.py:pair", "mine:pair"),
        ("broken:pair", "mend the file"),
    ],
)
def test_functions_that_cannot_be_used(name, words):
    with pytest.raises(UsageError, match=words) as caught:
        load(name)
    assert "\n" not in str(caught.value)


def test_what_looks_like_a_function():
    assert is_function("package.module:function")
    assert not any(map(is_function, ["shapes", "a:", ":b", "a/b:c", "a.b:c.d", "a b:c"]))
