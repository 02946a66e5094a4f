import io
import sys
import types
import zipfile

import numpy as np
import pytest

from asymtrain.errors import UsageError
from asymtrain.lab.data import class_count, load
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
    with pytest.raises(UsageError, match=r"image_size is of images, and npz:data.npz holds vectors"):
        load(write(x=VECTORS, y=LABELS), image_size=16)


WRONG = {
    "other keys": ({"x": BYTES, "y": LABELS, "z": LABELS}, "has the key 'z', which is none of x, y, x_test"),
    "no labels": ({"x": BYTES}, "has no y: write it with numpy.savez"),
    "no inputs": ({"y": LABELS}, "has no x: write it"),
    "two names": ({"x": BYTES, "images": BYTES, "y": LABELS}, "has x twice"),
    "half a test set": ({"x": BYTES, "y": LABELS, "x_test": BYTES}, "has no y_test: give both"),
    "objects": ({"x": np.array([BYTES, None], object), "y": LABELS}, "x holds Python objects"),
    "object labels": ({"x": BYTES, "y": np.array([None] * COUNT)}, "y holds Python objects"),
    "texts": ({"x": np.array(["a"] * COUNT), "y": LABELS}, "x holds <U1: give numbers"),
    "complex": ({"x": VECTORS + 0j, "y": LABELS}, "x holds complex64"),
    "fewer labels": ({"x": BYTES, "y": LABELS[:-1]}, r"y has the shape \(19,\), and there are 20 inputs"),
    "columns": ({"x": BYTES, "y": LABELS[:, None]}, r"y has the shape \(20, 1\)"),
    "halves": ({"x": BYTES, "y": LABELS / 2}, "y must be whole numbers"),
    "no number": ({"x": BYTES, "y": LABELS * np.nan}, "y must be whole numbers"),
    "words": ({"x": BYTES, "y": np.array(["cat"] * COUNT)}, "y must be whole numbers"),
    "below 0": ({"x": BYTES, "y": LABELS - 1}, "y goes from -1 to 2: number the classes from 0"),
    "a gap": ({"x": BYTES, "y": LABELS * 2}, "no example to train on has label 1: number"),
    "from 1": ({"x": BYTES, "y": LABELS + 1}, "no example to train on has label 0"),
    "huge": ({"x": BYTES, "y": LABELS + 10**15}, "number the classes from 0"),
    "an unknown class": (
        {"x": BYTES, "y": LABELS, "x_test": BYTES, "y_test": LABELS + 1}, "no example to train on has label 4"
    ),
    "one class": ({"x": BYTES, "y": LABELS * 0}, "all labels are 0: number two or more"),
    "a name too few": ({"x": BYTES, "y": LABELS, "class_names": list("abc")}, "a label 3, and class_names has 3"),
    "names twice": ({"x": BYTES, "y": LABELS, "class_names": list("aabc")}, "class_names must be two or more texts"),
    "names of numbers": ({"x": BYTES, "y": LABELS, "class_names": np.arange(4)}, "class_names must be"),
    "one of a class": ({"x": BYTES, "y": np.r_[LABELS[:-1], 4]}, "has one example of class 4: it needs two"),
    "normalised images": ({"x": BYTES / 255 - 0.5, "y": LABELS}, "from -0.5 to 0.5 are neither shares"),
    "fractions of bytes": ({"x": BYTES / 2, "y": LABELS}, "nor whole numbers of 0 to 255: write bytes"),
    "two types": ({"x": BYTES, "y": LABELS, "x_test": BYTES / 255, "y_test": LABELS}, "x and x_test are uint8"),
    "two shapes": ({"x": VECTORS, "y": LABELS, "x_test": VECTORS[:, 1:], "y_test": LABELS}, r"and float32 \(20, 4\)"),
    "grey images": ({"x": BYTES[:, 0], "y": LABELS}, r"images of one channel as \(N, 1, H, W\), x\[:, None\]"),
    "one axis": ({"x": LABELS, "y": LABELS}, r"x has the shape \(20,\): give images \(N, C, H, W\)"),
    "a number": ({"x": np.float32(3), "y": LABELS}, r"x has the shape \(\)"),
    "five axes": ({"x": BYTES[None], "y": LABELS}, "give images"),
    "nothing": ({"x": BYTES[:0], "y": LABELS[:0]}, "and nothing in it"),
    "flat pixels": ({"x": BYTES.reshape(COUNT, -1), "y": LABELS}, "may be pixels, features or tokens"),
    "negative tokens": ({"x": TOKENS - 50, "y": LABELS}, "a token is negative"),
    "missing values": ({"x": np.where(VECTORS < -1.5, np.nan, VECTORS), "y": LABELS}, "not a finite float32"),
    "too large": ({"x": VECTORS.astype(np.float64) * 1e300, "y": LABELS}, "not a finite float32"),
    "either axis": ({"x": BYTES[..., :3], "y": LABELS}, r"\(20, 3, 8, 3\) the second or the last axis may be the"),
    "neither axis": ({"x": np.zeros((COUNT, 9, 8, 6), np.uint8), "y": LABELS}, "layout=nchw or --data-option layout="),
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
    with pytest.raises(UsageError, match="layout must be nchw or nhwc, not 'hwc'"):
        load(write(x=BYTES, y=LABELS), layout="hwc")
    with pytest.raises(UsageError, match="layout is of images"):
        load(write(x=VECTORS, y=LABELS), layout="nchw")
    with pytest.raises(UsageError, match="unknown option of the dataset npz 'sed': did you mean 'seed'"):
        load(write(x=VECTORS, y=LABELS), sed=1)
    with pytest.raises(UsageError, match="seed must be a whole number"):
        load(write(x=VECTORS, y=LABELS), seed="a")


def test_files_that_are_no_npz(folder):
    with pytest.raises(UsageError, match="write npz:FILE"):
        load("npz:")
    with pytest.raises(UsageError, match=r"gone.npz is not a file: write it with numpy.savez"):
        load("npz:gone.npz")
    np.save("array.npy", BYTES)
    with pytest.raises(UsageError, match=r"array.npy is not an npz file"):
        load("npz:array.npy")
    whole = (folder / write(x=BYTES, y=LABELS).partition(":")[2]).read_bytes()
    for damaged in (whole[:200], whole.replace(b"NUMPY", b"MUMPY"), whole[:400] + bytes(200) + whole[600:]):
        (folder / "data.npz").write_bytes(damaged)
        with pytest.raises(UsageError, match=r"is not an npz file|cannot be read \(") as caught:
            load("npz:data.npz")
        assert "\n" not in str(caught.value)


def test_a_file_that_unpacks_to_more_than_the_memory_is_not_unpacked():
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 1 << 10)})
    with zipfile.ZipFile("data.npz", "w") as file:
        file.writestr("x.npy", header.getvalue())
    with pytest.raises(UsageError, match="unpacks to 4,503,599,627,370,496 bytes, more than this machine's memory"):
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
def module(folder, monkeypatch):
    (folder / "mine.py").write_text(MODULE)
    (folder / "helper.py").write_text("import numpy\nvectors = numpy.ones((20, 5))")
    (folder / "broken.py").write_text("import")
    yield
    for name in ("mine", "helper", "broken"):
        sys.modules.pop(name, None)


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
    with pytest.raises(UsageError, match="unknown option of the dataset mine:named 'siz': did you mean 'size'"):
        load("mine:named", siz=3)


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine:chance", "returned other arrays when it was called again: draw them with a fixed seed"),
        ("mine:three", r"returned 3 values: return \(x, y\)"),
        ("mine:nothing", "returned a NoneType"),
        ("mine:ragged", r"x is no array \(ValueError"),
        (
            "mine:fails",
            r"failed \(RuntimeError: no disk, at mine.py:\d+\): mend it, or give what it needs with --data-option",
        ),
        ("mine:ends", r"failed \(SystemExit"),
        ("mine:wants", "missing 1 required positional argument: 'path'"),
        ("mine:value", "unknown function in mine 'value'"),
        ("mine:par", "did you mean 'pair'"),
        ("mind:pair", "mind cannot be imported .*check the name, and that you are in its folder"),
        ("mine.py:pair", "a module is named without .py: mine:pair"),
        ("broken:pair", "broken cannot be imported .*mend the file"),
        ("__main__:pair", "__main__ is no file that a worker process could import"),
    ],
)
def test_functions_that_cannot_be_used(name, words):
    with pytest.raises(UsageError, match=words) as caught:
        load(name)
    assert "\n" not in str(caught.value)


def test_a_module_that_lives_in_this_process_alone_is_refused(monkeypatch):
    made = types.ModuleType("made")
    made.data = lambda: (VECTORS, LABELS)
    monkeypatch.setitem(sys.modules, "made", made)
    with pytest.raises(UsageError, match="made is no file that a worker process could import"):
        load("made:data")


def test_what_looks_like_a_function():
    assert is_function("package.module:function")
    assert not any(map(is_function, ["shapes", "a:", ":b", "a/b:c", "a.b:c.d", "a b:c"]))
