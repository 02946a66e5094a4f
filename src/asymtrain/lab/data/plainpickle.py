"""Pickle files of arrays and plain containers, and nothing else.

The unpickler knows the few names that an array needs and gives a stand-in of its own for each: nothing that the file
names is ever imported or called, not even a function of numpy's. A side effect: numpy's deprecation warnings about
its own old pickles, which CIFAR's are, do not appear.
"""

import pickle
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

# What arrays of bytes and of integers are called in pickles.
_TYPES = {code: np.dtype(f"<{code}" if code != "u1" else "u1") for code in ("u1", "i4", "i8")}


def read_plain_pickle(file: Path) -> object:
    """What the file holds; a ValueError when it is damaged or asks for anything but data."""
    with file.open("rb") as stream:
        try:
            return _finished(_PlainUnpickler(stream, encoding="bytes").load())
        except pickle.UnpicklingError as error:
            raise ValueError(str(error)) from None
        except OSError:
            raise
        except Exception as error:  # a damaged pickle can fail in every way there is
            raise ValueError(f"it is damaged ({type(error).__name__}: {error})") from None


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which data does not need")
        return _STAND_INS[f"{module}.{name}"]

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to objects outside itself")


class _Type:
    """Stands in for numpy.dtype."""

    def __init__(self, code: object, *_: object) -> None:
        code = code.decode("latin-1") if isinstance(code, bytes) else code
        if not isinstance(code, str) or code not in _TYPES:
            raise pickle.UnpicklingError(f"it holds an array of type {code!r}, not of bytes or integers")
        self.dtype = _TYPES[code]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in (">", b">"):
            self.dtype = self.dtype.newbyteorder(">")


class _Array:
    """Stands in for numpy.ndarray."""

    def __init__(self, *_: object) -> None:
        self.value: np.ndarray[Any, Any] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, column_major, raw = state
        if not isinstance(kind, _Type) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("it holds an array whose content is not bytes")
        order = "F" if column_major else "C"
        self.value = np.frombuffer(raw, kind.dtype).reshape(shape, order=order)  # type: ignore[call-overload]


class _Encode:
    """Stands in for _codecs.encode, which is how Python 3 writes bytes in the old pickle protocols."""

    __slots__ = ()  # unlike a function, it has no attributes that a pickle could set

    def __call__(self, text: str, encoding: str | bytes) -> bytes:
        if encoding not in ("latin1", b"latin1"):
            raise pickle.UnpicklingError(f"it asks for the text encoding {encoding!r}, not latin1")
        return text.encode("latin1")


_STAND_INS: dict[str, object] = {
    "numpy.ndarray": _Array,
    "numpy.dtype": _Type,
    "numpy.core.multiarray._reconstruct": _Array,  # numpy 1
    "numpy._core.multiarray._reconstruct": _Array,  # numpy 2
    "_codecs.encode": _Encode(),
}


def _finished(value: object) -> object:
    """The same containers with the stand-ins replaced by arrays."""
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, dict):
        return {key: _finished(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_finished(item) for item in value)
    return value
