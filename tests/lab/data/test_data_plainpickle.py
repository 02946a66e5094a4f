"""The unpickler: data, and nothing that runs."""

import contextlib
import os
import pickle
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
        b"\x80\x02" + b"(" * 100_000 + b"l" * 100_000 + b".",  # lists in lists
        b"\x80\x04\x8e" + (1 << 50).to_bytes(8, "little") + b".",  # bytes that the file does not hold
    ],
)
def test_ways_around_are_refused(tmp_path, raw):
    (tmp_path / "file").write_bytes(raw)
    with pytest.raises(ValueError, match="it "):
        read_plain_pickle(tmp_path / "file")


SMALL = pickle.dumps({b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"labels": [1, 2]}, protocol=2)


def test_arrays_of_every_order_and_type(tmp_path):
    columns = np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    big = np.arange(3, dtype=">i8")
    (tmp_path / "file").write_bytes(pickle.dumps({"a": columns, "b": big}, protocol=2))
    back = read_plain_pickle(tmp_path / "file")
    assert (back["a"] == columns).all()
    assert back["b"].tolist() == [0, 1, 2]


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
