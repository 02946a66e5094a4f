"""Which code produced a result: versions, commit, and a hash of the source files."""

import functools
import hashlib
import importlib.util
import os
import platform
import runpy
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asymtrain.version import VERSION

PACKAGE = Path(__file__).resolve().parents[2]
_OF_A_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


@dataclass(frozen=True)
class Provenance:
    """The code behind a run.

    `commit` is git's; if the package is not part of a checkout, or git is absent, it is "source-" and the
    start of `source`. `dirty` says that the package had uncommitted changes; `source` distinguishes two such states.
    """

    python: str
    torch: str
    asymtrain: str
    commit: str
    dirty: bool
    source: str

    @property
    def versions(self) -> dict[str, str]:
        """The versions that a page shows."""
        return {"asymtrain": self.asymtrain, "torch": self.torch, "Python": self.python}


def joined_versions(versions: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The versions of several runs; if they differ, all are named."""
    names = dict.fromkeys(name for each in versions for name in each)
    return {name: " and ".join(sorted({each[name] for each in versions if name in each})) for name in names}


@functools.cache
def current() -> Provenance:
    """The provenance of this process's code, determined once."""
    source = hash_source(PACKAGE)
    commit, dirty = find_commit(PACKAGE) or (f"source-{source[:16]}", False)
    return Provenance(platform.python_version(), torch_version(), VERSION, commit, dirty, source)


def torch_version() -> str:
    """The value of `torch.__version__`, read from torch's file, since importing torch takes seconds.

    The version of the installed package lacks the build, such as +cpu.
    """
    module = importlib.util.find_spec("torch")
    if module is None or module.origin is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    return str(runpy.run_path(str(Path(module.origin).with_name("version.py")))["__version__"])


def find_commit(package: Path) -> tuple[str, bool] | None:
    """The commit of a package's folder, and whether it is dirty; None if git does not track it."""
    # A package installed inside another checkout (in .venv, say) is not part of it.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit, changes = _git(package, "rev-parse", "HEAD"), _git(package, "status", "--porcelain", "--", ".")
    return None if commit is None or changes is None else (commit, changes != "")


def hash_source(package: Path) -> str:
    """SHA-256 over the names and contents of a package's files."""
    digest = hashlib.sha256()
    files = sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    for path in files:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(package).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def _git(folder: Path, *arguments: str) -> str | None:
    """The stripped output of git; None if git is absent or fails."""
    # Without the checkout that a git hook sets: the package may belong to another one.
    environment = {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}
    environment["GIT_OPTIONAL_LOCKS"] = "0"  # `status` would write to the index
    command = ["git", "-C", str(folder), *arguments]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, env=environment)
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()
