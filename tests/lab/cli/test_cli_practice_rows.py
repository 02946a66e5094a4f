"""The kept rows of the practice study: pages quote what the commands print from them, and nothing else."""

import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from asymtrain.lab.studies.practice.protocol import MODELS

ROOT = Path(__file__).parents[3]
PAGE, FINDINGS, README = ROOT / "docs/practice.md", ROOT / "docs/findings.md", ROOT / "README.md"
COSTS = sorted(ROOT.glob("results/benchmarks/practice-step-*.json"))
FIGURES = ("practice-forest.svg", "practice-fixed.svg", "practice-tuned.svg", "practice-signal.svg")
NUMBER = re.compile(r"[-+]?\d+\.\d+")
TITLES = "|".join(sorted((model.title for model in MODELS.values()), key=len, reverse=True))  # ViT-Tiny before ViT
SIGNED = r"([-+]\d\.\d\d)"
# `the CNN, -2.36 (-2.73 to -1.99)`, or `+6.12 points (+5.63 to +6.61) for ViT-Tiny`
EFFECT = re.compile(rf"(?:({TITLES}), )?{SIGNED}(?: points)? \({SIGNED} to {SIGNED}\)(?: for (?:the )?({TITLES}))?")


@pytest.fixture
def shown(cli, tmp_path, monkeypatch):
    """What `practice show` and `practice list` print, and the folder of the page."""
    monkeypatch.setenv("COLUMNS", "120")
    assert cli("store", "import", "practice.sqlite", *sorted(ROOT.glob("results/practice-*"))).code == 0
    costs = [word for file in COSTS for word in ("--step-costs", file)]
    result = cli("practice", "show", "--store", "practice.sqlite", "--out", "page", *costs)
    assert result.code == 0, result.err
    blocks = cli("practice", "list", "--store", "practice.sqlite", "--device", "cuda")
    return result.out + blocks.out, Path("page")


def test_a_block_is_exported_by_itself(cli, refused):
    rows = [ROOT / "results" / f"practice-{name}" for name in ("swin", "signal", "tuned")]
    assert cli("store", "import", "practice.sqlite", *rows).code == 0
    command = ("store", "export", "practice.sqlite", "one", "--format", "parquet")
    one = cli(*command, "--block", "practice/signal-swin", "--without", rows[0])
    assert one.out == "Exported 20 runs to one as parquet\n"  # of the models that are not in it nothing
    assert "did you mean 'practice'" in refused(*command, "--block", "practise/signal-swin")
    assert "block of the practice study 'signal-swim'" in refused(*command, "--block", "practice/signal-swim")


def test_pages_quote_what_the_rows_give(shown):
    printed, folder = shown
    lines = {line.rstrip() for line in printed.splitlines()}
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    blocks = [block for language, block in fenced if not language]
    assert len(blocks) == 1
    assert {line.rstrip() for block in blocks for line in block.splitlines()} <= lines
    known = {number.lstrip("+-") for number in NUMBER.findall(printed + (folder / "practice.json").read_text())}
    quoted = {number.lstrip("+-") for number in NUMBER.findall(PAGE.read_text())}
    assert quoted <= known
    document = json.loads((folder / "practice.json").read_text())
    effects = effects_of(document)
    text = " ".join(f"{PAGE.read_text()} {FINDINGS.read_text()} {README.read_text()}".split())
    for before, points, low, high, after in EFFECT.findall(text):
        of_models = {title for title, *numbers in effects if numbers == [points, low, high]}
        assert of_models, (points, low, high)
        assert {before, after} <= {"", *of_models}, (points, low, high)
    by_model = re.findall(rf"^\| ({TITLES}) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert len(by_model) == 4 + len(MODELS)  # tuned baselines, and the best of each objective
    for title, cells in by_model:
        of_cells = EFFECT.findall(cells)
        assert len(of_cells) == 3
        assert all([title, points, low, high] in effects for _, points, low, high, _ in of_cells), title
    assert "none can be recommended" in document["sentences"][-1]  # README and PAGE: no setting suits all
    models = [row["model"] for row in sorted(document["effects"], key=lambda row: -row["points"])]
    (selected,) = (block for block in blocks if block.startswith("The configuration that validation selected\n"))
    assert all(re.search(rf"^{MODELS[name].title} ", selected, re.MULTILINE) for name in models)
    quoted_models = {effect[0] for effect in EFFECT.findall(" ".join(README.read_text().split()))}
    assert {
        MODELS[models[0]].title,
        MODELS[models[-1]].title,
    } <= quoted_models  # README has the largest and the smallest


def test_tables_are_recomputed_without_asymtrain(tmp_path, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] == "asymtrain"]:
        monkeypatch.setitem(sys.modules, name, None)  # to import it is an error

    def recompute(**changes):
        pages = [tmp_path / path.name for path in (PAGE, FINDINGS)]
        for page, path in zip(pages, (PAGE, FINDINGS), strict=True):
            page.write_text(path.read_text().replace(*changes.get(path.stem, ("", ""))))
        monkeypatch.setattr(sys, "argv", ["recompute_practice.py", *map(str, pages)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / "results/recompute_practice.py"), run_name="__main__")
        return ended.value.code, capsys.readouterr().out.splitlines()[-1]

    assert recompute() == (0, "different: nothing")
    changed = {"practice": ("| +0.36 (-0.30 to +1.02)", "| +0.46 (-0.30 to +1.02)"), "findings": ("± 0.66", "± 0.65")}
    assert recompute(**changed) == (1, "different: 2")

    findings = FINDINGS.read_text()
    gains, counts = re.findall(r"^```\n(.*?)^```$", findings, re.DOTALL | re.MULTILINE)
    # Prose: a number with half its interval is a cell of the table, and other numbers are of a page that is checked.
    prose = " ".join(line for line in findings.splitlines() if "arxiv.org" not in line and not line.startswith("|"))
    cells = dict.fromkeys(re.findall(r"[-+]\d\.\d\d ± \d\.\d\d", prose))
    assert len(cells) > 3
    assert all(cell in gains for cell in cells)
    pages = gains + PAGE.read_text() + (ROOT / "docs/reproduction.md").read_text()
    assert {n.lstrip("+-") for n in NUMBER.findall(prose)} <= {n.lstrip("+-") for n in NUMBER.findall(pages)}
    rows = {name: numbers for name, *numbers in re.findall(r"^(.*?) +(\d+) +(\d+) +(\d+)$", counts, re.MULTILINE)}
    tests, _, left = rows.pop("all")
    assert all(sum(int(row[i]) for row in rows.values()) == int(n) for i, n in ((0, tests), (2, left)))
    accuracy = int(tests) - int(rows["calibration"][0])
    for words in (f"all {tests} comparisons", f"are {tests} comparisons", f"{accuracy} of test accuracy"):
        assert words in " ".join(prose.split()), words
    assert f"After the correction {left} are clear" in prose
    assert rows["selected configuration"][2] == "5"  # "the gains of the five models without convolutions"
    assert rows["selected configuration, tuned recipe"][2] == "3"
    verdicts = r"\d+ of 36 claims have a verdict \(reproduced[^)]*cannot differ \d+"
    found = [re.findall(verdicts, " ".join(text.split())) for text in (findings, pages)]
    assert found[0]
    assert found[0] == found[1]


def effects_of(document: dict) -> list[list[str]]:
    """Model, points and both ends of the interval of every row that has an effect."""
    found = []
    for table in document["tables"]:
        for row in table["rows"] if "Difference (points)" in table["columns"] else ():
            texts = dict(zip(table["columns"], (cell["text"] for cell in row), strict=True))
            found.append([texts["Model"], texts["Difference (points)"], *texts["95% interval"].split(" to ")])
    return found


@pytest.mark.slow
def test_the_figures_are_drawn_from_the_rows(shown):
    for figure in FIGURES:
        texts = [(folder / figure).read_text() for folder in (shown[1], ROOT / "docs/figures")]
        assert NUMBER.split(texts[0]) == NUMBER.split(texts[1])
        np.testing.assert_allclose(*([float(n) for n in NUMBER.findall(text)] for text in texts), atol=0.01)
