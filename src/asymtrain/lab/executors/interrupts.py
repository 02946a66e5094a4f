"""Ctrl-C at a moment of our choosing: in the middle of a training step or of a message it would leave half of it."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def held_interrupt() -> Iterator[Callable[[], bool]]:
    """Hold a Ctrl-C back until the end of the block, and say whether one came; a second one is not held."""
    handler = signal.getsignal(signal.SIGINT)
    # Python calls handlers in the main thread alone. A process in the background may ignore Ctrl-C: so do we.
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield lambda: False
        return
    came: list[int] = []

    def note(number: int, frame: object) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, handler)
    if came:
        handler(signal.SIGINT, None)
