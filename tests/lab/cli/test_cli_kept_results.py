"""The rows that are kept in results/: they can be read anywhere, and pages quote what they give.

What the sections about these rows quote must be in what the commands beside it print.
"""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from asymtrain.lab.report.table import duration

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results"
STUDY = ("--scale", "paper", "--precision", "bf16", "--reading", "every")
NUMBER = re.compile(r"[-+]?\d+\.\d+")
SIGNED = r"([-+]\d+(?:\.\d+)?)%?"
WITH_INTERVAL = re.compile(rf"{SIGNED}\s+\({SIGNED}\s+to\s+{SIGNED}(?:;\s+paper\s+{SIGNED})?")
VERDICT = re.compile(r"(c\d\d)(?:,| is) \*([^*]+)\*")


@pytest.fixture
def kept(cli):
    """A store of one kept folder."""

    def make(name):
        result = cli("store", "import", f"{name}.sqlite", RESULTS / name)
        assert result.code == 0, result.err
        return f"{name}.sqlite"

    return make


def numbers(text):
    """With and without their sign: a sentence may say a loss of 14.6%."""
    found = NUMBER.findall(text)
    return {*found, *(number.lstrip("+-") for number in found)}


def csv_rows(folder):
    for file in sorted(folder.glob("*.csv")):
        with file.open(newline="") as opened:
            yield from csv.reader(opened)


def assert_same_figure(drawn, shown):
    """The same words and, but for rounding, the same points."""
    assert NUMBER.split(drawn) == NUMBER.split(shown)
    np.testing.assert_allclose(*([float(n) for n in NUMBER.findall(text)] for text in (drawn, shown)), atol=0.01)


def shown_features(cli, kept):
    """What the kept rows of the first steps print. There is no CIFAR here, so nothing could be measured anew."""
    store = kept("features-20-steps")
    for arch, options in (
        (None, ("--variant", "trained,prior")),
        ("cnn", ("--variant", "softmax")),
        ("cnn", ("--variant", "trained", "--alpha", "100")),
    ):
        chosen = ("--data", "cifar100", "--scale", "paper", "--seeds", 3, *options, *(("--arch", arch) if arch else ()))
        out = "features-one" if arch else "features"
        shown = cli("measure", "features", *chosen, "--store", store, "--data-root", "nowhere", "--out", out)
        assert shown.code == 0, shown.err
        yield shown.out


def turned_by_the_rule(line):
    """A row of `paper verdicts --history` whose verdict changed with the rule, not with the rows."""
    _, earlier, now, _, decided = line.strip("| ").split(" | ")
    return earlier != now and decided == "after rows were seen"


@pytest.mark.slow
def test_the_study_is_shown_from_its_rows_and_pages_quote_them(cli, kept, monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")
    for folder in sorted(RESULTS.glob("*200-epochs*")):
        assert cli("store", "import", "study.sqlite", folder).code == 0
    whole = cli("paper", "show", "all", *STUDY, "--full", "--store", "study.sqlite", "--out", "page")
    assert whole.code == 0, whole.err
    assert 100_000 < Path("page/paper.html").stat().st_size <= 1_700_000
    shown = cli("paper", "show", "all", *STUDY[:4], "--store", "study.sqlite", "--out", "primary")
    assert shown.code == 0, shown.err
    assert "20/20 measurements" in shown.out
    assert "60 runs of another reading or recipe" in " ".join(shown.err.split())
    assert Path("primary/paper.html").stat().st_size <= 1_700_000  # as docs/reproduction-run.md says of both
    said = (ROOT / "docs" / "reproduction-run.md").read_text()
    for row in json.loads(cli("paper", "blocks", "--store", "study.sqlite", "--device", "cuda", "--json").out):
        left = "not known" if row["seconds_left"] is None else duration(row["seconds_left"])
        cells = "— | yes" if row["seconds_left"] == 0 else f"{left} | no"
        assert re.search(rf"^\| `{row['name']}` \|.*\| {cells} \|$", said, re.MULTILINE), f"{row['name']}: {cells}"
    again = "paper next --block mechanism --store study.sqlite --data-root nowhere --device cpu"
    finished = cli(*again.split())
    assert finished.code == 0, finished.err  # nothing is left to train, so CIFAR is not asked for
    assert "Block mechanism is finished. The next is frozen." in finished.err
    figures = {"figure5": "redundancy", "figure2": "cosine-200-epochs", "figure9": "attention-200-epochs"}
    for name, figure in {**figures, "verdicts": "verdicts"}.items():
        drawn = Path(f"page/paper-{name}.svg").read_text()
        assert_same_figure(drawn, (ROOT / "docs" / "figures" / f"{figure}.svg").read_text())

    page = (ROOT / "docs" / "reproduction.md").read_text()
    verdicts = cli("paper", "verdicts", *STUDY[:4], "--store", "study.sqlite", "--out", "verdicts")
    history = cli("paper", "verdicts", *STUDY[:4], "--store", "study.sqlite", "--history")
    rows = [line for line in page.splitlines() if re.match(r"\| c\d\d \|", line)]
    written, before = (
        [line for line in Path(f"verdicts/paper-{name}.md").read_text().splitlines() if line.startswith("| c")]
        for name in ("verdicts", "verdicts-history")
    )
    assert rows[:36] == written
    assert rows[36:] == [line for line in before if turned_by_the_rule(line)]
    conclusion = " ".join(verdicts.out.split()).partition("Of a claim with several parts")[2]
    assert (found := re.search(r"\d+ of 36 claims have a verdict \([^)]*\)\.", conclusion))
    assert found[0] in " ".join(page.split())
    assert cli("paper", "show", "table1", *STUDY[:4], "--store", "study.sqlite", "--out", "alone").code == 0

    rows = [set(row) for row in csv_rows(Path("page"))]
    judged_rows = Path("page/paper-verdicts.csv").read_text().splitlines()  # interval and unit stand in one cell there
    rows += [{number.removeprefix("+") for number in NUMBER.findall(row)} for row in judged_rows]
    sentences = WITH_INTERVAL.findall(" ".join(page.split()))
    assert len(sentences) > 15
    for found in sentences:  # effect, its interval and the paper's number are of one row
        wanted = {number.removeprefix("+") for number in found if number}
        assert any(wanted <= row for row in rows), f"docs/reproduction.md: no row has {found}"

    judged = {one["id"]: one["verdict"] for one in json.loads(Path("page/paper.json").read_text())["claims"]}
    said = VERDICT.findall(" ".join(page.split()))
    assert len(said) > 8
    assert said == [(name, judged[name]) for name, _ in said]

    first_steps = "".join(shown_features(cli, kept))
    drawn = Path("features/features-scale-1.svg").read_text()
    assert_same_figure(drawn, (ROOT / "docs" / "figures" / "features-scale.svg").read_text())

    untold = numbers(page) - numbers(whole.out + first_steps + verdicts.out + history.out)
    assert not untold, f"docs/reproduction.md has numbers that no row gives: {sorted(untold)}"

    # Effects without a number of the paper are those of the practice study.
    headline = [found for found in WITH_INTERVAL.findall((ROOT / "README.md").read_text()) if found[3]]
    assert len(headline) == 2
    alone = [set(row) for row in csv_rows(Path("alone"))]
    for quoted_effect in headline:
        wanted = {number.removeprefix("+") for number in quoted_effect}
        assert any(wanted <= row for row in alone), f"README.md: no row of Table 1 has {quoted_effect}"


@pytest.mark.parametrize("name", ["cifar100-5-epochs", "cifar10-5-epochs"])
def test_the_tables_of_short_runs_are_what_the_report_prints(cli, kept, name):
    shown = cli("report", "--store", kept(name), "--out", "page")
    assert shown.code == 0, shown.err
    text = (RESULTS / "README.md").read_text()
    rows = [line for line in shown.out.splitlines() if re.match(r"(MLP|CNN|ViT) +\d", line)]
    assert len(rows) == 3
    for row in rows:
        assert row.rstrip() in text


def test_what_was_not_recorded_yet_is_said(cli, kept):
    """These runs are older than gradient norms and conflicts: no table of dashes."""
    shown = cli("measure", "alignment", "--run", "all", "--store", kept("cifar100-5-epochs"), "--out", "page")
    assert shown.code == 0, shown.err
    assert "were not recorded yet" in " ".join(shown.out.split())
    assert "Gradient norms" not in shown.out
    later = cli("measure", "alignment", "--run", "all", "--store", kept("cifar10-5-epochs"), "--out", "page")
    assert "Gradient norms" in later.out
    assert "were not recorded yet" not in later.out


def test_results_stay_small():
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 40e6
    assert not [path for path in files if path.suffix in (".pt", ".safetensors", ".sqlite")]


@pytest.mark.slow
def test_the_reproduction_is_recomputed_without_asymtrain(tmp_path):
    """results/recompute.py agrees with the page, and sees a digit, verdict, count or word that is not of the rows."""
    page = (ROOT / "docs" / "reproduction.md").read_text()

    def recompute(text):
        (tmp_path / "page.md").write_text(text)
        script = [sys.executable, str(RESULTS / "recompute.py"), str(tmp_path / "page.md")]
        return subprocess.run(script, capture_output=True, text=True, check=False)

    same = recompute(page)
    assert (same.returncode, same.stderr) == (0, "")
    assert same.stdout.endswith("different: nothing\n")
    choices = re.findall(r"(c\d\d) .* {2}(\S.*)", same.stdout.partition("other choices")[2])
    assert choices
    deviations = (ROOT / "docs" / "deviations.md").read_text()
    assert sorted(choices) == sorted(VERDICT.findall(deviations))
    rates = re.findall(r"learning rate .* on cifar(\d+), .*: (\S+), (\S+)", same.stdout)
    stated = re.search(
        r"would be (\S+) instead of (\S+) on CIFAR-10, and (\S+), .* instead of (\S+) on CIFAR-100", deviations
    )
    assert {name: (last, best) for name, best, last in rates} == {
        "10": stated.group(1, 2),
        "100": stated.group(3, 4),
    }
    for right, wrong in {
        "| -18.1% to -13.3% |": "| -18.1% to -13.4% |",
        "| 10 | Paper's size excluded |": "| 10 | Inconclusive |",
        "| c06 | Reproduced |": "| c06 | Inconclusive |",
        "contradicted 10;": "contradicted 11;",
        "-6.2% to -0.1%;": "-6.2% to -0.2%;",
        "| -116.8% to -23.3% |": "| -116.8% to -23.4% |",
        "+22.6 points, with": "+22.7 points, with",
        "lower for the MLP": "higher for the MLP",
        "**What is open.**": "By 3.5%. **What is open.**",
    }.items():
        assert right in page
        page = page.replace(right, wrong, 1)
    other = recompute(page)
    assert (other.returncode, other.stderr) == (1, "")
    names = "c13, c14, c19, c06, before, by verdict, ViT minus CNN, attention, lower for the MLP, not recomputed"
    assert other.stdout.endswith(f"different: {names}\n")
