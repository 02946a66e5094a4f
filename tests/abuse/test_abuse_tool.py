"""The tool itself: planted faults are seen, and a few cases of its parts run. `make test-abuse` runs all of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("abuse"),
    pytest.mark.skipif(sys.platform != "linux", reason="the tool forks, and looks into /proc"),
]


def call(*arguments: str, temporary: Path, code: int = 0) -> str:
    """Run a script; where it finds faults, it keeps their files in the temporary folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=900, env=environment, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tallies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    folder = tmp_path_factory.mktemp("planted")
    call(str(HERE / "planted_faults.py"), str(folder), temporary=folder)
    return json.loads((folder / "tallies.json").read_text())


@pytest.mark.parametrize(
    ("reader", "fault"),
    [("drops_rows", "silently different"), ("raises", "ValueError"), ("hangs", "hangs for 1 s"), ("grows", " MiB")],
)
def test_a_reader_with_a_fault_is_found(reader: str, fault: str, tallies: dict[str, dict]) -> None:
    assert any(fault in line for line in tallies[reader]["faults"]), tallies[reader]
    assert all("--seed 5" in line for line in tallies[reader]["faults"])


def test_a_reader_without_a_fault(tallies: dict[str, dict]) -> None:
    assert tallies["whole"]["faults"] == []
    assert tallies["whole"]["counts"] == {"rows: refused": 12}


def test_writers_that_lose_rows_or_leave_files_are_found(tallies: dict[str, dict]) -> None:
    lost, left = tallies["kills"]["faults"]  # and none of `store import`
    assert "never_gives_back: AssertionError" in lost
    assert "rows differ" in lost
    assert "leaves_files: AssertionError" in left
    assert "differs from an undisturbed folder" in left
    assert sum(count for name, count in tallies["kills"]["counts"].items() if name.startswith("import, ")) == 3


def test_the_command_prints_a_table(tmp_path: Path) -> None:
    out = call(str(HERE), "damage", "--cases", "10", "--seed", "3", temporary=tmp_path)
    assert "seed 3: ABUSE_SEED=3 repeats this run" in out
    assert out.splitlines()[-2].split() == ["part", "seed", "cases", "faults", "seconds", "outcomes"]
    part, seed, cases, faults, *_ = out.splitlines()[-1].split()
    assert (part, seed, faults) == ("damage", "3", "0")
    assert int(cases) >= 10  # at least one of each kind of file


def test_an_unknown_part(tmp_path: Path) -> None:
    call(str(HERE), "nothing", temporary=tmp_path, code=2)
