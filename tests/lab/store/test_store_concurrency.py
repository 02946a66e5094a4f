"""Real processes: writing at the same time, being killed, being refused by the disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("store_processes.py")


@pytest.mark.timeout(1500)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the scenes fork")
@pytest.mark.parametrize("scene", ["race", pytest.param("kill", marks=pytest.mark.slow), "read-only", "file-limit"])
def test_scene(scene, tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), scene, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=1200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
