"""One name for one thing: retired words do not come back, and no name is a bare participle."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KINDS = {".md", ".py", ".toml", ".yml", ".j2", ".js", ".ipynb"}
# What has the words: the table of stored names with its test, and this file
EXEMPT = {ROOT / "src/asymtrain/lab/runs.py", ROOT / "tests/lab/test_runs_ids.py", Path(__file__)}
# Retired words, and what replaces them
INSTEAD = {
    "each place": "layer",
    "all places": "layer",
    "later places": "layer",
    "middle place": "layer",
    "over_classes": "class_reduction",
    "branch_bias": "bias",
    "branch_loss": "auxiliary_loss",
    "branch_reduction": "Parallel(reduction=...)",
    "dialogue": "alignment",
    "form of branches": "configuration",
    "forms of branches": "configuration",
    "selected form": "configuration",
    "short form": "asymtrain tune --minutes 1",
    "short tune": "asymtrain tune --minutes 1",
    "asymtrain probe": "asymtrain tune --minutes 1",
    "training form": "run, runs",
    "trainings": "run, runs",
    "undecided": "inconclusive, likely helps",
    "leans to attach": "inconclusive, likely helps",
    "stranger": "user",
    "strangers": "user",
}
# They do not say what a value is
PARTICIPLES = {"asked", "found", "given", "heard", "held", "kept", "known", "living", "looked", "meant", "said",
               "seen", "sent", "shown", "taken", "told"}  # fmt: skip


@cache
def texts() -> dict[str, str]:
    """What is searched: source with templates and texts, tests, pages, examples."""
    folders = [ROOT / name for name in ("src", "tests", "docs", "examples", "benchmarks")]
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "mkdocs.yml", "pyproject.toml")]
    files = [*pages, *(file for folder in folders for file in folder.rglob("*") if file.suffix in KINDS)]
    return {str(file.relative_to(ROOT)): file.read_text() for file in files if file not in EXEMPT}


@pytest.mark.parametrize("word", INSTEAD)
def test_a_retired_word_does_not_come_back(word):
    words = r"\s+".join(map(re.escape, word.split()))
    pattern = re.compile(rf"(?<![\w.-]){words}(?![\w-])", re.IGNORECASE)
    found = [name for name, text in texts().items() if pattern.search(text)]
    assert found == [], f"write {INSTEAD[word]!r} instead of {word!r}"


def test_the_words_are_found():
    assert {"over_classes", "selected form", "trainings", "later places", "dialogue"} <= INSTEAD.keys()
    assert len(texts()) > 400


def names_in(source: str) -> set[str]:
    """Variables, arguments, attributes and functions that a module makes."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    names |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return names | {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def test_no_name_is_a_bare_participle():
    assert names_in("def kept(a):\n    self.told = shown = [known for known in a]") == {
        "a", "kept", "known", "shown", "told"
    }  # fmt: skip
    found = {
        name: names_in(text) & PARTICIPLES
        for name, text in texts().items()
        if re.match(r"(src|benchmarks|examples)/.*py$", name)
    }
    assert not {name: names for name, names in found.items() if names}, "say what the value is"
