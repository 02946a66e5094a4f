"""The wheel works outside of the repository: alone it is the library and a line about [lab], with the lab it trains."""

import os
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from asymtrain.errors import how_to_install
from asymtrain.version import VERSION

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A Python with the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("outside")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    # Not isolated: the backend is one of this environment's packages, and nothing is downloaded.
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = folder.glob("asymtrain-*.whl")
    venv.create(folder / "env", symlinks=True)
    python = folder / "env" / "bin" / "python"
    subprocess.run([*pip, "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)], check=True)
    return python


@pytest.fixture
def call(environment, tmp_path):
    def call(*words):
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        return subprocess.run(list(words), cwd=tmp_path, env=clean, capture_output=True, text=True)

    return call


def test_alone_it_has_help_a_version_and_a_line_about_the_extra(environment, call):
    program = str(environment.with_name("asymtrain"))
    assert call(program, "--version").stdout == f"asymtrain {VERSION}\n"
    assert "measure" in call(program, "--help").stdout
    refused = call(program, "run")
    assert refused.returncode == 2
    assert refused.stderr.endswith(f"{how_to_install('lab')}\n")
    assert refused.stderr.count("\n") == 1
    assert call(str(environment), "-c", "import asymtrain; asymtrain.UsageError").returncode == 0


def test_with_the_packages_of_the_lab_it_trains(environment, call, tmp_path):
    (packages,) = (environment.parent.parent / "lib").glob("python*/site-packages")
    (packages / "lab.pth").write_text("\n".join(site.getsitepackages()))
    where = call(str(environment), "-c", "import asymtrain; print(asymtrain.__file__)").stdout
    assert Path(where.strip()).is_relative_to(packages)
    done = call(str(environment.with_name("asymtrain")), "run", "--arch", "mlp", "--seeds", "1", "--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "asymtrain-report" / "report.html").is_file()
