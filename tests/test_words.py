"""One name for one thing: words that the glossary retired do not come back."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
KINDS = {".md", ".py", ".toml", ".j2", ".js", ".ipynb"}
# Where the stored names are mapped, and what tells of earlier versions
EXEMPT = {GLOSSARY, ROOT / "src/asymtrain/lab/runs.py"}
_, _, TABLE = GLOSSARY.read_text().partition("## Words no longer used")
_, *ROWS = re.findall(r"^\| (.+?) \| .+ \|$", TABLE, re.MULTILINE)
RETIRED = [
    word.strip().strip("`")
    for row in ROWS
    for word in row.split(",")
    if " in `" not in word and not word.strip().endswith("=`")
]


def searched() -> list[Path]:
    folders = [ROOT / name for name in ("src", "docs", "examples", "benchmarks")]
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in KINDS]
    return [file for file in [*files, ROOT / "README.md", ROOT / "CONTRIBUTING.md"] if file not in EXEMPT]


@pytest.mark.parametrize("word", RETIRED)
def test_a_retired_word_does_not_come_back(word):
    pattern = re.compile(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", re.IGNORECASE)
    found = [f"{file.relative_to(ROOT)}: {line.strip()}" for file in searched()
             for line in file.read_text().splitlines() if pattern.search(line)]  # fmt: skip
    assert found == [], f"write what docs/glossary.md has instead of {word!r}"


def test_the_words_are_found():
    assert {"over_classes", "selected form", "trainings", "later places"} <= set(RETIRED)
    assert len(searched()) > 200
