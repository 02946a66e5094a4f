"""Files that are there whole or not at all, and what killed processes leave of them."""

import os
import subprocess
import sys

import pytest

from asymtrain.lab.files import write_whole


@pytest.fixture
def gone():
    """The number of a process that has ended."""
    return int(subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True).stdout)


def test_what_a_killed_process_left_of_a_file_is_removed(tmp_path, gone):
    file = tmp_path / "report[1].html"
    torn = tmp_path / f"{file.name}.{gone}.new"
    others = [f"{file.name}.{os.getppid()}.new", f"{file.name}.old.new", f"{file.name}.{gone}", f"mine.{gone}.new"]
    for left in (torn, *(tmp_path / name for name in others)):
        left.touch()
    write_whole({file: b"whole"})
    assert {path.name for path in tmp_path.iterdir()} == {file.name, *others}
