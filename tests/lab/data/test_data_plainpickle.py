"""The unpickler: data, and nothing that runs."""

import contextlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cifar_files import TEN, write_folder
from hypothesis import given, settings
from hypothesis import strategies as st

from asymtrain.errors import UsageError
from asymtrain.lab.data import cifar
from asymtrain.lab.data.plainpickle import read_plain_pickle


class Call:
    def __init__(self, function, *arguments):
        self.parts = (function, arguments)

    def __reduce__(self):
        return self.parts


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path, protocol):
    mark = tmp_path / "ran"
    attacks = [
        Call(os.mkdir, str(mark)),
        Call(eval, f"__import__('os').mkdir({str(mark)!r})"),
        Call(Path.mkdir, mark),
        Call(np.fromfile, str(mark)),
    ]
    for i, attack in enumerate(attacks):
        folder = write_folder(TEN, tmp_path / str(i), data_batch_1=pickle.dumps({b"data": attack}, protocol))
        with pytest.raises(UsageError, match="which data does not need"):
            cifar.load(TEN, tmp_path / str(i))
        assert not mark.exists()
        assert folder.exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",  # another codec
        b"\x80\x02c_codecs\nencode\nN}X\x08\x00\x00\x00__code__Ns\x86b.",  # sets an attribute of the stand-in
        b"\x80\x02cnumpy\nndarray\nN}X\x01\x00\x00\x00aNs\x86b.",
        b"\x80\x04X\x05\x00\x00\x00numpyX\x0c\x00\x00\x00ctypeslib.os\x93.",  # a dotted way to a module
        b"Pname\n.",  # an object outside
        b"\x82\x01.",  # an extension code
        b"\x80\x02]q\x00h\x00a.",  # a list in itself
        b"\x80\x02]q\x00h\x00ah\x00a.",  # twice
        b"\x80\x04\x8f(K\x01\x90.",  # a set
    ],
)
def test_ways_around_are_refused(tmp_path, raw):
    (tmp_path / "file").write_bytes(raw)
    with pytest.raises(ValueError, match="it "):
        read_plain_pickle(tmp_path / "file")


def doubled(empty: bytes, add: bytes, levels: int = 60) -> bytes:
    """A container that holds the one before it twice, and so on: a few bytes that unfold to 2 ** levels."""
    raw = empty + b"q\x00"
    for level in range(1, levels):
        raw += add.replace(b"?", b"h" + bytes([level - 1])) + b"q" + bytes([level])
    return raw


LISTS = doubled(b"]", b"](??e")
TUPLES = doubled(b")", b"??\x86")
BOMBS = {
    "lists in lists": b"\x80\x02}U\x04data" + LISTS + b"s.",
    "tuples in tuples": b"\x80\x02}U\x04data" + TUPLES + b"s.",
    "a key whose hash has no end": b"\x80\x02}" + TUPLES + b"Ns.",
    "keys": b"\x80\x02(" + TUPLES + b"Nd.",
    "keys in a set": b"\x80\x04\x8f(" + TUPLES + b"\x90.",
    "a type whose text has no end": b"\x80\x02cnumpy\ndtype\n" + LISTS + b"\x85R.",
    "an encoding whose text has no end": b"\x80\x02c_codecs\nencode\nU\x01a" + LISTS + b"\x86R.",
    "a memo of 32 GB": b"\x80\x02Nr\xff\xff\xff\xff.",
    "a buffer of 1 TB": b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",
    "bytes of 1 TB": b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b".",
    "a frame of 1 TB": b"\x80\x04\x95" + (1 << 40).to_bytes(8, "little") + b"N.",
    "deep": b"\x80\x02" + b"(" * 100_000 + b"l" * 100_000 + b".",
    "a deep key": b"\x80\x02})" + b"\x85" * 100_000 + b"Ns.",
    "texts encoded again and again": b"\x80\x02X\x00\x00\x10\x00"
    + b"a" * (1 << 20)
    + b"q\x000c_codecs\nencode\nq\x01U\x06latin1q\x02"
    + b"h\x01h\x00h\x02\x86R" * 10_000
    + b".",
}


# Beyond 4 GB or 20 s of processor time the system ends it, and the last name printed is that of the bomb.
READ_ALL = """
import resource, sys
from pathlib import Path
from asymtrain.lab.data.plainpickle import read_plain_pickle
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
for file in sorted(Path(sys.argv[1]).iterdir()):
    print(file.name, flush=True)
    try:
        read_plain_pickle(file)
    except ValueError as error:
        assert "MemoryError" not in str(error), error
"""


def test_a_few_bytes_cannot_ask_for_much_time_or_memory(tmp_path):
    for name, raw in BOMBS.items():
        (tmp_path / name).write_bytes(raw)
    done = subprocess.run([sys.executable, "-c", READ_ALL, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == sorted(BOMBS)


def test_what_is_said_about_a_bomb_is_one_short_line(tmp_path):
    for number, raw in enumerate(BOMBS.values()):
        folder = write_folder(TEN, tmp_path / str(number), data_batch_1=raw)
        with pytest.raises(UsageError) as caught:
            cifar.load(TEN, tmp_path / str(number))
        message = str(caught.value).replace(str(folder), "")
        assert len(message) < 400
        assert message.isprintable()


def test_names_that_are_no_texts_are_refused(tmp_path):
    write_folder(TEN, tmp_path, **{"batches.meta": b"\x80\x02}U\x0blabel_names](" + LISTS + b"N" * 9 + b"es."})
    with pytest.raises(UsageError, match="does not hold 10 'label_names'"):
        cifar.load(TEN, tmp_path)


SMALL = pickle.dumps({b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"labels": [1, 2]}, protocol=2)


def test_arrays_of_every_order_and_type(tmp_path):
    columns = np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    big = np.arange(3, dtype=">i8")
    (tmp_path / "file").write_bytes(pickle.dumps({"a": [columns, (big,)]}, protocol=2))
    back = read_plain_pickle(tmp_path / "file")["a"]
    assert (back[0] == columns).all()
    assert back[1][0].tolist() == [0, 1, 2]


@settings(deadline=None)
@given(cut=st.integers(0, len(SMALL) - 1))
def test_a_truncated_pickle_gives_a_value_error(tmp_path_factory, cut):
    file = tmp_path_factory.mktemp("cut") / "file"
    file.write_bytes(SMALL[:cut])
    with pytest.raises(ValueError, match=r"."):
        read_plain_pickle(file)


@settings(deadline=None)
@given(place=st.integers(0, len(SMALL) - 1), value=st.integers(0, 255))
def test_a_damaged_pickle_gives_data_or_a_value_error(tmp_path_factory, place, value):
    file = tmp_path_factory.mktemp("flip") / "file"
    file.write_bytes(SMALL[:place] + bytes([value]) + SMALL[place + 1 :])
    with contextlib.suppress(ValueError):
        read_plain_pickle(file)
