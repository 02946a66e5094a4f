"""Cores, memory, processes and GPUs of this machine, without torch."""

import os
import sys
from contextlib import suppress
from pathlib import Path

# Files of the drivers for GPUs of NVIDIA (in servers and in Jetson boards), of AMD, and those that Windows lends.
_DRIVERS = ("nvidia*", "nvhost*", "nvmap", "kfd", "dxg")

# Of a container, in the second and in the first version of control groups.
_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def cores() -> int:
    """How many cores this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def memory() -> int:
    """Bytes of memory that this process may use at most, if the system reports it."""
    limits = [sys.maxsize]
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):  # not on every system
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in _MEMORY_LIMITS:
        with suppress(OSError, ValueError):  # missing, or "max"
            limits.append(int(Path(file).read_text()))
    return min(limits)


def is_running(process: int) -> bool:
    """Is there a process of this number? True if the system cannot report it."""
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
