"""What this machine has, found out without torch: for what is said before anything is trained."""

import os
import sys
from pathlib import Path

# Files of the drivers for GPUs of NVIDIA (in servers and in Jetson boards), of AMD, and those that Windows lends.
_DRIVERS = ("nvidia*", "nvhost*", "nvmap", "kfd", "dxg")


def cores() -> int:
    """How many cores this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def may_have_gpu() -> bool:
    """False where torch cannot find a GPU; True where it has to be asked."""
    return not sys.platform.startswith("linux") or any(any(Path("/dev").glob(name)) for name in _DRIVERS)
