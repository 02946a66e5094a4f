"""The documentation runs: code blocks from their source, in order, one namespace per page. What it names exists.

A block fenced ```python runs. One after the comment `<!-- not run: reason -->` does not.
"""

import ast
import doctest
import json
import pkgutil
import re
import tomllib
from pathlib import Path
from urllib.parse import unquote

import pytest

import asymtrain

ROOT = Path(__file__).parent.parent
SOURCE = "src/asymtrain"
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?P<indent>[ ]*)```python[^\S\n]*\n(?P<code>.*?)^(?P=indent)```[^\S\n]*$", re.MULTILINE | re.DOTALL
)
NOT_RUN = re.compile(r"<!-- not run: \S.*? -->\s*\Z", re.DOTALL)


def blocks_of(text):
    """Line number and code of each block that runs."""
    found = []
    for match in FENCE.finditer(text):
        if not NOT_RUN.search(text[: match.start()]):
            indent = len(match["indent"])
            code = "".join(line[indent:] or "\n" for line in match["code"].splitlines(keepends=True))
            found.append((text[: match.start("code")].count("\n") + 1, code))
    return found


def run_blocks(page, text):
    namespace = {"__name__": "__main__"}
    for line, code in blocks_of(text):
        # Blank lines in front, so that a traceback names the page's own line.
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)


# They train or start processes for as long as a reader would wait. What they call is in quicker pages and tests too.
LONG = ("practitioner.md", "researcher.md", "attach_to_your_model.ipynb")


def each_of(files, name):
    """Parameters: a file each, the long ones among the slow tests."""
    marks = {file: pytest.mark.slow if file.name in LONG else () for file in files}
    return [pytest.param(file, id=getattr(file, name), marks=mark) for file, mark in marks.items()]


@pytest.mark.parametrize("page", each_of(PAGES, "name"))
@pytest.mark.usefixtures("workplace")
def test_code_blocks_run(page):
    run_blocks(page, page.read_text())


def test_the_loop_of_the_readme_runs_before_and_after_the_change():
    from torch import randint, randn

    from asymtrain import models

    (diff,) = re.findall(r"^```diff\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert {line[:2] for line in diff.splitlines() if line} == {"  ", "+ ", "- "}
    x, y = randn(8, 3, 32, 32), randint(0, 100, (8,))
    for dropped in "+-":
        model = models.build("vit", classes=100)
        keys = model.state_dict().keys()
        code = "\n".join(line[2:] for line in diff.splitlines() if not line.startswith(dropped))
        exec(code, {"model": model, "loader": [(x, y)], "x": x})
        assert model.state_dict().keys() == keys


NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))


def run_cell(code, name, namespace):
    """Run the code of a cell; a last line that is an expression is shown as a notebook would show it."""
    *first, last = (tree := ast.parse(code)).body
    if not isinstance(last, ast.Expr):
        exec(compile(tree, name, "exec"), namespace)
        return
    exec(compile(ast.Module(first, []), name, "exec"), namespace)
    shown = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    if hasattr(shown, "_repr_html_"):
        assert shown._repr_html_()


# Without Jupyter, whose kernel would be the largest of the development tools: cells are run in order, in one namespace.
@pytest.mark.slow
@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize("notebook", each_of(NOTEBOOKS, "stem"))
def test_notebooks_run(notebook, monkeypatch, capsys):
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))  # a notebook draws it, and has no window
    content, namespace = json.loads(notebook.read_text()), {"__name__": "__main__"}
    for i, cell in enumerate(content["cells"]):
        if cell["cell_type"] == "code":
            run_cell("".join(cell["source"]), f"{notebook.name}, cell {i}", namespace)
    assert capsys.readouterr().out


def test_there_are_notebooks_and_they_hold_no_outputs():
    assert len(NOTEBOOKS) == 2
    for notebook in NOTEBOOKS:
        content = json.loads(notebook.read_text())
        assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
        assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
        for cell in content["cells"]:
            if cell["cell_type"] == "code":
                assert (cell["outputs"], cell["execution_count"]) == ([], None)


def test_the_package_docstring_runs():
    found = doctest.testmod(asymtrain, optionflags=doctest.ELLIPSIS)
    assert found.attempted > 5
    assert found.failed == 0


# Modules and errors need no example, and an `Alignment` is what `alignment` returns; the lab's functions are run by
# the tests beside theirs.
PUBLIC = sorted({*asymtrain.__all__} - {"Alignment", "UsageError", "models"})
OF_THE_LAB = {"compare", "search", "tune"}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_have_an_example_that_runs(name):
    value = getattr(asymtrain, name)
    (example, *_) = [test for test in doctest.DocTestFinder(recurse=False).find(value, name) if test.examples] or [None]
    assert example is not None, f"the docstring of {name} has no example"
    if name not in OF_THE_LAB:
        assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0


PAGE = """
Text
```python
x = 1
```
<!-- not run: it would fail -->
```python
raise SystemExit
```

- in a list
  ```python
  def double(value):

      return 2 * value
  x = double(x)
  ```
```pycon
nor this
```
```python
assert x == 2
{last}
```
"""


def test_blocks_run_in_order_in_one_namespace():
    assert [line for line, _ in blocks_of(PAGE)] == [4, 13, 22]
    run_blocks("page.md", PAGE.format(last=""))
    with pytest.raises(ZeroDivisionError) as problem:
        run_blocks("page.md", PAGE.format(last="1 / 0"))
    assert (str(problem.traceback[-1].path), problem.traceback[-1].lineno + 1) == ("page.md", 23)


def test_a_reason_must_be_given():
    assert len(blocks_of("<!-- not run: -->\n```python\nx\n```\n")) == 1
    assert len(blocks_of("<!-- not run: slow -->\nBut then text.\n```python\nx\n```\n")) == 1


def named_in(pages, pattern):
    return sorted({(page.name, name) for page in pages for name in re.findall(pattern, page.read_text())})


def resolves(name):
    """Is this dotted name a module, or something in one?"""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_modules_that_pages_name_exist():
    named = named_in([*PAGES, ROOT / "CONTRIBUTING.md"], r"`(asymtrain(?:\.\w+)+)")
    assert len(named) > 30
    assert not [(page, name) for page, name in named if not resolves(name)]


def test_files_that_pages_name_exist():
    named = named_in([*PAGES, ROOT / "CONTRIBUTING.md"], r"`((?:src|tests|lab|models)/[\w/.]+|\w+\.py)`")
    assert len(named) > 10
    assert not [(page, name) for page, name in named if not any((ROOT / top / name).exists() for top in ("", SOURCE))]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_paper_is_named_by_its_own_terms(page):
    text = " ".join((ROOT / page).read_text().split())
    for words in (
        "*Asymmetric Training Paradigm*",
        "*Principle of Architectural Resonance*",
        "neither title nor authors",
    ):
        assert words in text


def test_extras_are_installed_from_a_clone():
    """No package index has asymtrain."""
    written = [*PAGES, *NOTEBOOKS, ROOT / "CONTRIBUTING.md", *(ROOT / SOURCE).rglob("*.py")]
    named = named_in(written, r"""pip install (?:-e )?[\\'"]*([\w.]*\[\w+|asymtrain)""")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert len(named) > 5
    assert not [file.name for file in written if "asymtrain[" in file.read_text()]
    assert {name for _, name in named} - {"torchjd[quadprog"} <= {f".[{extra}" for extra in extras}


def test_badges_say_what_the_package_declares():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    badges = dict(re.findall(r"!\[(\w+)[^\]]*\]\(https://img.shields.io/badge/\w+-(.+?)-blue\)", README))
    assert badges.keys() == {"Python", "torch", "Apache"}
    pythons = [line.rsplit(" ", 1)[1] for line in project["classifiers"] if "Python :: 3." in line]
    assert unquote(badges["Python"]) == f"{pythons[0]} to {pythons[-1]}"
    oldest = next(line for line in project["dependencies"] if line.startswith("torch")).removeprefix("torch>=")
    pinned = re.search(r"^torch==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    assert unquote(badges["torch"]) == f"{oldest} to {pinned}"
    assert badges["Apache"].replace("--", "-") == project["license"]
