"""Cores, memory, processes and GPUs of this machine, without torch."""

import os
import sys
from contextlib import suppress
from pathlib import Path

# Device files of GPU drivers: NVIDIA's (in servers and Jetson boards), AMD's, and that of Windows for WSL.
_DRIVERS = ("nvidia*", "nvhost*", "nvmap", "kfd", "dxg")

# A container's limit, in version 2 and version 1 of control groups.
_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def cores() -> int:
    """The number of cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def memory() -> int:
    """The memory in bytes that this process may use, if the system reports it."""
    limits = [sys.maxsize]
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):  # not on every system
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in _MEMORY_LIMITS:
        with suppress(OSError, ValueError):  # missing, or "max"
            limits.append(int(Path(file).read_text()))
    return min(limits)


def is_running(process: int) -> bool:
    """Whether there is a process with this id; True if the system cannot report it."""
    if os.name != "posix":
        return True  # there, os.kill would end it
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is another user's
    return True


def may_have_gpu() -> bool:
    """False if torch cannot find a GPU; True if only torch can tell."""
    return not sys.platform.startswith("linux") or any(any(Path("/dev").glob(name)) for name in _DRIVERS)
