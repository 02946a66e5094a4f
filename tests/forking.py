"""Processes for scripts of the tests: a script has no threads, so it may fork, and it pays for its imports once."""

import os
import sys
import traceback
from collections.abc import Callable


def start(work: Callable[[], None]) -> int:
    """Fork a process that does the work and ends."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        work()
        code = 0
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def end(process: int) -> int:
    """Wait for the process; its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
