"""Policy as tests: import direction, what an import loads, the public face, machine paths."""

import ast
import graphlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp  # what import-linter stands on
import pytest
import yaml

import asymtrain

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "asymtrain"


@pytest.mark.slow  # `make lint` does it too
def test_the_import_contracts_hold():
    """Those of pyproject.toml; a module that no contract names is an error too."""
    tool = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    assert tool, "lint-imports is not installed beside this Python: pip install -e '.[dev]'"
    found = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_the_import_graph_has_no_circle():
    """Module by module, imports inside functions and for types included: the contracts name packages alone."""
    graph = grimp.build_graph("asymtrain", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    imports["asymtrain"] = set()  # the face offers what stands above it, when it is asked for
    graphlib.TopologicalSorter(imports).prepare()


def test_the_lab_imports_only_public_modules_of_the_library():
    """Imports inside functions and for types included."""
    graph = grimp.build_graph("asymtrain", cache_dir=None)
    found = {
        f"{module} imports {imported}"
        for module in graph.modules
        if f"{module}.".startswith("asymtrain.lab.")
        for imported in graph.find_modules_directly_imported_by(module)
        if not imported.startswith("asymtrain.lab") and any(part.startswith("_") for part in imported.split("."))
    }
    assert not found


def modules_in(folder):
    modules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    return modules - {"__init__"}


@pytest.mark.parametrize(("package", "folder"), [("asymtrain", SOURCE), ("asymtrain.lab", SOURCE / "lab")])
def test_every_module_is_in_the_contract(package, folder):
    """A module left out of the layers could import anything."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {name.strip() for c in contracts if c["type"] == "layers" for layer in c["layers"]
              for name in re.split(r"[|:]", layer)}  # fmt: skip
    drawn = {name.rpartition(".")[2] for name in layers if name.rpartition(".")[0] == package}
    assert modules_in(folder) == drawn


IN_CHILDREN = """
import json, os, sys
exec(sys.argv[1])
for program in sys.argv[2:]:
    if not (child := os.fork()):
        exec(program)
        print(json.dumps(sorted(sys.modules)), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, program
"""


def modules_loaded_by(*programs, first="import torch"):
    """The modules that each program loads, in processes of their own; what all begin with is done once for all."""
    command = [sys.executable, "-c", IN_CHILDREN, first, *programs]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [set(json.loads(line)) for line in found.stdout.splitlines()]


def test_import_asymtrain_loads_nothing_and_its_names_torch_and_the_standard_library_only():
    # A star import asks for every public name.
    for first, program in (("", "import asymtrain"), ("import torch", "from asymtrain import *")):
        before, after = modules_loaded_by("", program, first=first)
        assert {name.partition(".")[0] for name in after - before} - sys.stdlib_module_names == {"asymtrain"}


@pytest.mark.slow
def test_the_public_face_imports_the_lab_through_its_api_alone():
    entries = dict.fromkeys(("compare", "search", "tune"), "asymtrain.lab.api")
    names = ", ".join(name for name in asymtrain.__all__ if name not in entries)
    library, *through = modules_loaded_by(*(f"from asymtrain import {name}" for name in (names, *entries)))
    assert not {name for name in library if name.startswith("asymtrain.lab")}
    for loaded, package in zip(through, entries.values(), strict=True):
        assert {".".join(part.split(".")[:3]) for part in loaded if part.startswith("asymtrain.lab.")} == {package}


@pytest.mark.slow
def test_the_name_alignment_is_the_function_whatever_was_imported_before():
    program = """
import pickle, types, asymtrain
from asymtrain import alignment
assert asymtrain.alignment is alignment is asymtrain.gradients.alignment
assert isinstance(alignment, types.FunctionType) and isinstance(asymtrain.gradients, types.ModuleType)
assert pickle.loads(pickle.dumps(alignment)) is alignment
assert set(asymtrain.__all__) <= set(dir(asymtrain))
"""
    before = ["import asymtrain.gradients._alignment", "import asymtrain.lab.engine", ""]
    assert len(modules_loaded_by(*(first + program for first in before))) == 3


def test_a_name_that_the_package_does_not_have():
    with pytest.raises(AttributeError, match="'asymtrain' has no attribute 'atach'"):
        asymtrain.atach  # noqa: B018
    with pytest.raises(ImportError, match="atach"):
        from asymtrain import atach  # noqa: F401


PUBLIC = {
    **{name: getattr(asymtrain, name) for name in asymtrain.__all__},
    **{f"models.{name}": getattr(asymtrain.models, name) for name in asymtrain.models.__all__},
}


@pytest.mark.parametrize(("name", "thing"), PUBLIC.items(), ids=PUBLIC)
def test_public_names_have_docstrings(name, thing):
    if inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing):
        assert len((thing.__doc__ or "").strip()) > 20
        # Dataclasses get their signature as a docstring.
        assert not (thing.__doc__ or "").startswith(f"{getattr(thing, '__name__', '')}(")
    if inspect.isclass(thing):
        for method, value in vars(thing).items():
            if not method.startswith("_") and inspect.isfunction(value):
                assert value.__doc__, f"{name}.{method} has no docstring"


def test_all_is_sorted_and_complete():
    assert list(asymtrain.__all__) == sorted(asymtrain.__all__)
    assert 12 <= len(asymtrain.__all__) <= 17, "the public face is about fifteen names"


@pytest.mark.parametrize("name", asymtrain.__all__)
def test_public_names_are_in_the_documentation(name):
    text = "".join(page.read_text() for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
    assert re.search(rf"(?<![\w.]){name}\b|`(asymtrain\.)?{name}\b", text), (
        f"{name} is in no page of docs/ or README.md"
    )


def python_files(*folders):
    return [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


def test_modules_say_what_they_are():
    silent = [str(file) for file in python_files("src") if not ast.get_docstring(ast.parse(file.read_text()))]
    assert not silent


def tracked_files():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name]


# In parts, so that this file does not find itself.
MACHINE_PATHS = re.compile(
    "|".join([r"\.\./" + "shared", "/work" + "/", "/root" + "/", "/home" + r"/\w+/", "/Users" + "/"])
)


def test_no_tracked_file_names_a_path_of_one_machine():
    found = []
    for file in tracked_files():
        if file.is_file():
            text = file.read_bytes().decode("utf-8", "ignore")
            found += [f"{file.relative_to(ROOT)}: {match.group()}" for match in MACHINE_PATHS.finditer(text)]
    assert not found


def test_the_workflow_does_what_the_check_does_on_every_machine_and_python_that_is_declared():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    check = (ROOT / ".ci" / "run").read_text()
    assert re.search(r"^make test test-all\b", check, re.MULTILINE)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r"Python :: 3\.\d+$", line)]
    assert job["strategy"]["matrix"] == {"machine": ["ubuntu-24.04", "ubuntu-24.04-arm"], "python": declared}
    assert project["requires-python"] == f">={declared[0]}"


def test_every_test_is_in_one_of_the_two_commands():
    """`make test` leaves out what is marked slow, `make test-all` adds exactly that."""
    commands = re.findall(r"^\t\$\(PYTEST\) -m (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert commands == ['"not slow"', "slow"]
