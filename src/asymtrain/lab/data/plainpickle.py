"""Pickle files of arrays and plain containers, and nothing else, in time and memory that the file's size bounds.

The unpickler knows the few names that an array needs and gives a stand-in of its own for each: nothing that the file
names is ever imported or called, not even a function of numpy's. A side effect: numpy's deprecation warnings about
its own old pickles, which CIFAR's are, do not appear.

It is Python's own unpickler in Python, not the one in C: there a few bytes ask for a memo of many gigabytes, or for
the hash of a tuple that holds itself a billion times over, and nothing can interrupt that.
"""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np

from asymtrain.errors import error_line

# What arrays of bytes and of integers are called in pickles.
_TYPES = {code: np.dtype(f"<{code}" if code != "u1" else "u1") for code in ("u1", "i4", "i8")}
_MOST_BYTES = 1 << 30  # of a file; the largest official one has 155 million
_SETS = pickle.EMPTY_SET + pickle.ADDITEMS + pickle.FROZENSET
_EXTENSIONS = pickle.EXT1 + pickle.EXT2 + pickle.EXT4
_BUFFERS = pickle.BYTEARRAY8 + pickle.NEXT_BUFFER + pickle.READONLY_BUFFER
_DEEPEST = 64  # containers in containers
_SHOWN = 80  # characters of a text out of the file


def read_plain_pickle(file: Path) -> object:
    """What the file holds; a ValueError when it is damaged or asks for anything but data."""
    if file.exists() and not file.is_file():  # a pipe would wait for its writer
        raise ValueError("it is not a regular file")
    with file.open("rb") as stream:
        content = stream.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    try:
        return _finished(_PlainUnpickler(content).load(), {})
    except pickle.UnpicklingError as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(f"it is damaged ({error_line(error)})") from None


class _PlainUnpickler(pickle._Unpickler):
    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.left_to_encode = len(content)

    def find_class(self, module: str, name: str) -> Any:
        full_name = f"{module}.{name}"
        if full_name == "_codecs.encode":
            return _Encode(self)
        if full_name not in _STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {_short_text(full_name)[1:-1]}, which data does not need")
        return _STAND_INS[full_name]

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to objects outside itself")

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_items([key, value])

    def load_setitems(self) -> None:
        self._set_items(self.pop_mark())

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._set_items(items)

    def refuse(self) -> NoReturn:
        raise pickle.UnpicklingError("it holds sets, extensions or buffers, which data does not need")

    def _set_items(self, items: list[Any]) -> None:
        target, keys = self.stack[-1], items[::2]
        # Of tuples in tuples the hash takes as long as their writer likes; hashes of integers can be made to collide.
        if type(target) is not dict or not all(type(key) in (str, bytes) for key in keys):
            raise pickle.UnpicklingError("it holds a dict whose keys are not texts")
        target.update(zip(keys, items[1::2], strict=True))

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.DICT[0]: load_dict,
        **dict.fromkeys(_SETS + _EXTENSIONS + _BUFFERS, refuse),
    }


class _Type:
    """Stands in for numpy.dtype."""

    def __init__(self, code: object, *_: object) -> None:
        code = code.decode("latin-1") if isinstance(code, bytes) else code
        if not isinstance(code, str) or code not in _TYPES:
            raise pickle.UnpicklingError(f"it holds an array of type {_short_text(code)}, not of bytes or integers")
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

    __slots__ = ("_unpickler",)
    _unpickler: _PlainUnpickler

    def __init__(self, unpickler: _PlainUnpickler) -> None:
        object.__setattr__(self, "_unpickler", unpickler)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise pickle.UnpicklingError("it sets an attribute of a function")

    def __call__(self, text: str, encoding: str | bytes) -> bytes:
        if encoding not in ("latin1", b"latin1"):
            raise pickle.UnpicklingError(f"it asks for the text encoding {_short_text(encoding)}, not latin1")
        # A text that is encoded once is as long as its bytes in the file; one that is encoded again and again is not.
        self._unpickler.left_to_encode -= len(text)
        if self._unpickler.left_to_encode < 0:
            raise pickle.UnpicklingError("it unpacks to more than it holds")
        return text.encode("latin1")


_STAND_INS: dict[str, object] = {
    "numpy.ndarray": _Array,
    "numpy.dtype": _Type,
    "numpy.core.multiarray._reconstruct": _Array,  # numpy 1
    "numpy._core.multiarray._reconstruct": _Array,  # numpy 2
}


def _short_text(value: object) -> str:
    """A text out of the file, short and in one line; of anything else its type, since its text may have no end."""
    text = value if isinstance(value, str) else value.decode("latin-1") if isinstance(value, bytes) else None
    return f"a {type(value).__name__}" if text is None else repr(text[:_SHOWN])


def _finished(value: object, done: dict[int, object], depth: int = 0) -> object:
    """The same containers with the stand-ins replaced by arrays; what is met twice is made once, and kept in `done`."""
    if isinstance(value, _Array):
        return value.value
    if not isinstance(value, dict | list | tuple):
        return value
    if depth > _DEEPEST:
        raise pickle.UnpicklingError(f"it holds containers more than {_DEEPEST} deep")
    if id(value) not in done:
        if isinstance(value, dict):
            done[id(value)] = {key: _finished(item, done, depth + 1) for key, item in value.items()}
        else:
            done[id(value)] = type(value)(_finished(item, done, depth + 1) for item in value)
    return done[id(value)]
