import os
import platform
import subprocess

import pytest
import torch

import asymtrain
from asymtrain.lab.store import provenance


def git(folder, *arguments):
    names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # Nothing of the user's: a hook, or a signature that a commit must have.
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**own, **names, **alone},
    )
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path):
    package = tmp_path / "checkout" / "package"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("x = 1\n")
    (package / "__pycache__" / "x.pyc").write_text("bytes")
    return package


def test_git_says_commit_and_changes(package, monkeypatch):
    git(package.parent, "init", "-q")
    assert provenance.find_commit(package) is None  # not added yet
    (package.parent / ".gitignore").write_text("__pycache__\nvenv\n")
    git(package.parent, "add", ".")
    assert provenance.find_commit(package) is None  # no commit yet
    git(package.parent, "commit", "-qm", "first")
    commit = git(package.parent, "rev-parse", "HEAD")
    assert provenance.find_commit(package) == (commit, False)
    (package.parent / "notes.txt").write_text("not part of the package")
    assert provenance.find_commit(package) == (commit, False)
    (package / "__init__.py").write_text("x = 2\n")
    assert provenance.find_commit(package) == (commit, True)
    # A hook of another checkout has started this process.
    monkeypatch.setenv("GIT_DIR", str(package.parent.parent / "elsewhere"))
    assert provenance.find_commit(package) == (commit, True)
    installed = package.parent / "venv" / "package"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("x = 1\n")
    assert provenance.find_commit(installed) is None  # in somebody's checkout, not of it


def test_without_git_the_source_stands_for_the_commit(package, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert provenance.find_commit(package) is None
    provenance.current.cache_clear()
    here = provenance.current()
    provenance.current.cache_clear()
    assert here.commit == f"source-{here.source[:16]}"
    assert not here.dirty


def test_the_hash_is_of_names_and_contents(package):
    first = provenance.hash_source(package)
    (package / "__pycache__" / "x.pyc").write_text("other bytes")
    assert provenance.hash_source(package) == first
    (package / "__init__.py").rename(package / "renamed.py")
    second = provenance.hash_source(package)
    (package / "renamed.py").write_text("x = 2\n")
    assert len({first, second, provenance.hash_source(package)}) == 3


def test_versions_are_those_of_this_process():
    here = provenance.current()
    assert (here.python, here.torch) == (platform.python_version(), str(torch.__version__))
    assert here.asymtrain == asymtrain.__version__
    assert len(here.source) == 64
