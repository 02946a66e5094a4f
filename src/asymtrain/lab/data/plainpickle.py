"""Reads pickle files of a dict of arrays and plain values, without importing or calling anything that the file names.

The few names that an array needs are replaced by our own classes, so not even numpy's functions run. As a side effect,
numpy's warnings about old pickles, such as CIFAR's, do not appear.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from asymtrain.errors import error_line

# The type codes of byte and integer arrays in pickles.
_TYPES = {code: np.dtype(f"<{code}" if code != "u1" else "u1") for code in ("u1", "i4", "i8")}


def read_plain_pickle(file: Path) -> dict[object, object]:
    """The dict in the file; raises a ValueError if it is damaged or names anything but data."""
    if file.exists() and not file.is_file():  # a pipe would wait for its writer
        raise ValueError("it is not a regular file")
    content = file.read_bytes()
    try:
        value = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except _Refused as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(f"it is damaged ({error_line(error)})") from None
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, not a dict")
    return {key: item.value if isinstance(item, _Array) else item for key, item in value.items()}


class _Refused(Exception):
    """The pickle names something that data does not need."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _STAND_INS:
            raise _Refused(f"it asks for {module}.{name}, which data does not need")
        return _STAND_INS[f"{module}.{name}"]


class _Type:
    """Stands in for numpy.dtype."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        code = code.decode("latin-1") if isinstance(code, bytes) else code
        if code not in _TYPES:
            raise _Refused(f"it holds an array of type {code!r:.80}, not of bytes or integers")
        self.dtype = _TYPES[code]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in (">", b">"):
            self.dtype = self.dtype.newbyteorder(">")


class _Array:
    """Stands in for numpy.ndarray."""

    value: object = None

    def __init__(self, *_: object) -> None:
        """Ignore the arguments: `__setstate__` gets the content."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, column_major, raw = state
        if not isinstance(kind, _Type) or not isinstance(raw, bytes):
            raise _Refused("it holds an array whose content is not bytes")
        order = "F" if column_major else "C"
        self.value = np.frombuffer(raw, kind.dtype).reshape(shape, order=order)  # type: ignore[call-overload]


class _Encode:
    """Stands in for _codecs.encode, with which Python 3 writes bytes in old pickle protocols."""

    def __new__(cls, text: str, encoding: str | bytes) -> bytes:  # type: ignore[misc]
        if encoding not in ("latin1", b"latin1"):
            raise _Refused(f"it asks for the text encoding {encoding!r:.80}, not latin1")
        return text.encode("latin1")

    def __setstate__(self, state: object) -> None:
        raise _Refused("it sets an attribute of a function")  # our class would store it


_STAND_INS: dict[str, object] = {
    "_codecs.encode": _Encode,
    "numpy.ndarray": _Array,
    "numpy.dtype": _Type,
    "numpy.core.multiarray._reconstruct": _Array,  # numpy 1
    "numpy._core.multiarray._reconstruct": _Array,  # numpy 2
}
