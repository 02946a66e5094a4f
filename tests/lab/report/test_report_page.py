import csv
import os
import random
import re
import shutil
from dataclasses import replace

import pytest
from test_page import Outline

from asymtrain.errors import UsageError
from asymtrain.lab.report import write_report
from asymtrain.lab.report.page import check_folder
from asymtrain.lab.report.run_report import FILES
from asymtrain.lab.report.table import true_minus
from asymtrain.lab.runs import RunSpec, pairs
from asymtrain.lab.texts import printable


@pytest.fixture(scope="module")
def written(study, tmp_path_factory):
    """The summary and the folder of a report of the study."""
    folder = tmp_path_factory.mktemp("report") / "a" / "b"
    return write_report(study, folder, command="asymtrain run --seeds 3", versions={"torch": "9.9"}), folder


def test_the_folder_holds_rows_history_and_page(study, written):
    summary, folder = written
    assert {path.name for path in folder.iterdir()} == set(FILES.values())
    with (folder / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(study) == 18
    assert {row["variant"] for row in rows} == {"plain", "asymmetric"}
    assert len(summary.comparisons) == 3


@pytest.mark.slow
def test_a_page_built_again_has_the_same_bytes(study, tmp_path):
    write_report(study, tmp_path / "first", command="asymtrain run")
    write_report(random.Random(1).sample(study, len(study)), tmp_path / "second", command="asymtrain run")
    for name in FILES.values():
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name


def test_the_page_needs_nothing_from_outside(written):
    text = (written[1] / "report.html").read_text()
    assert all(link.startswith(("#", "data:")) for link in Outline(text).links)
    assert "url(http" not in text
    assert "default-src 'none'" in text  # and a browser would refuse it


def test_what_others_wrote_is_escaped(make_run, tmp_path):
    nasty = "folder:<script>alert(1)</script>"
    runs = [make_run(spec) for spec in pairs(RunSpec(dataset=nasty, epochs=2), [1, 2])]
    write_report(runs, tmp_path, command='asymtrain run --data "<b>"')
    text = (tmp_path / "report.html").read_text()
    assert "<script>alert" not in text
    assert "--data &#34;&lt;b&gt;&#34;" in text
    assert "&lt;script&gt;" in text


def test_no_file_of_a_report_can_steer_a_terminal(make_run, tmp_path):
    specs = pairs(RunSpec(dataset="folder:\x1b]0;owned\x07", epochs=2), [1, 2])
    runs = [replace(make_run(spec), device="cpu\x9b2J", path="\x1b[31m") for spec in specs]
    write_report(runs, tmp_path)
    for file in tmp_path.iterdir():
        text = file.read_text()
        assert printable(text) == text, file.name


def test_the_page_says_what_was_run_and_how(study, written):
    text = (written[1] / "report.html").read_text()
    for expected in ("asymtrain run --seeds 3", "torch 9.9", "MLP, CNN and ViT", "3 seeds each"):
        assert expected in text
    assert "1 min 48 s" in text  # 18 runs of 4 epochs of 1.5 s
    for run in study:
        assert run.spec.id in text


@pytest.mark.parametrize(("gain", "look"), [(0.1, "good"), (-0.1, "bad")])
def test_the_page_begins_with_its_number_and_folds_its_settings(make_run, tmp_path, gain, look):
    specs = pairs(RunSpec(epochs=2), range(5))
    summary = write_report([make_run(spec, gain=gain) for spec in specs], tmp_path)
    text = (tmp_path / "report.html").read_text()
    (row,) = summary.comparisons
    header = text[text.index("<header") : text.index("</header>")]
    sentence = true_minus(row["sentence"])
    assert f'<h1 class="headline {look}">{sentence}</h1>' in header
    assert "<svg" in header
    assert text.count(sentence) == 1
    assert f'<td class="left {look}" data-heading="Verdict">{row["verdict"]}' in text
    text = text[text.rindex("<details", 0, text.index('id="made"')) :]
    folded = text[text.index('<details class="fold">') : text.index("</details>")]
    assert folded.count("<dt>") > 40
    assert text[text.index("</details>") :].count("<dt>") == 0


def test_nothing_to_compare_is_said(make_run, tmp_path):
    write_report([make_run(RunSpec(epochs=2))], tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert "nothing to compare" in text
    assert re.search(r"1 finished run\s+waits", text)
    write_report([], tmp_path)
    assert "nothing to compare" in (tmp_path / "report.html").read_text()


def test_a_control_is_named_at_the_top(make_run, tmp_path):
    base = RunSpec(epochs=2, signal="noise", branch_labels="random", alpha=0.5)
    write_report([make_run(spec) for spec in pairs(base, [1, 2])], tmp_path / "control")
    lead = re.search(r'<p class="lead">(.*?)</p>', (tmp_path / "control" / "report.html").read_text(), re.DOTALL)[1]
    assert lead.endswith("The branches differ from the paper&#39;s: branch labels random and signal noise.")
    write_report([make_run(spec) for spec in pairs(RunSpec(epochs=2, alpha=0.5), [1, 2])], tmp_path)
    assert "differ from the paper&#39;s" not in (tmp_path / "report.html").read_text()


def test_one_seed_and_a_diverged_run_are_shown(make_run, tmp_path):
    plain, asymmetric = pairs(RunSpec(arch="vit", epochs=3), [5])
    write_report([make_run(plain), make_run(asymmetric, epochs=1, diverged=True)], tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert "with 1 seed each" in text
    assert "0.0500 (diverged)" in text  # one of twenty shapes
    assert not re.search(r"\bnan\b", text, re.IGNORECASE)


def test_a_run_at_chance_is_flagged_where_its_number_stands(make_run, tmp_path):
    plain, asymmetric, *others = pairs(RunSpec(arch="vit", epochs=3), [5, 6])
    # An accuracy of 0.2 and more, less the gain: at chance, which is 0.05 here.
    write_report([make_run(plain), make_run(asymmetric, gain=-0.4), *map(make_run, others)], tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert len(re.findall(r">0\.0\d{3} \(at chance\)<", text)) == 1  # in its row
    assert len(re.findall(r">0\.\d{3} ± 0\.\d{3} \(1 at chance\)<", text)) == 1  # and beside the mean
    assert "1 of 2 Asymmetric runs stayed at chance accuracy." in text


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_written_is_refused_before_and_after(study, tmp_path, place):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match="--out"):
        check_folder(tmp_path / place)
    with pytest.raises(UsageError, match="--out"):
        write_report(study[:2], tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "in the way"


def test_checking_a_folder_leaves_nothing_behind(tmp_path):
    check_folder(tmp_path / "new" / "deeper")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="Permission denied"):
        check_folder(tmp_path / "new")


def test_a_failed_write_keeps_the_old_report_whole(study, written, tmp_path, monkeypatch):
    shutil.copytree(written[1], tmp_path, dirs_exist_ok=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    fsync, written = os.fsync, []

    def full_disk(handle):
        written.append(handle)
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(UsageError, match="No space left"):
        write_report(study[:6], tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_of_several_comparisons_the_page_begins_with_how_many_were_helped(written):
    text = (written[1] / "report.html").read_text()
    assert '<h1 class="headline soft">Branches helped in 0 of 3 comparisons</h1>' in text  # three seeds each
    assert '<p class="lead">0 hurt, 3 inconclusive. Largest difference: ' in text


def test_settings_in_which_comparisons_differ_are_a_table(make_run, tmp_path):
    bases = RunSpec(arch="mlp", epochs=2, alpha=0.5), RunSpec(arch="cnn", epochs=2, alpha=0.25, bias="prior")
    write_report([make_run(spec) for base in bases for spec in pairs(base, [1, 2])], tmp_path)
    text = (tmp_path / "report.html").read_text()
    differing = text[text.index("<h3>Settings that differ") : text.index("<h3>Settings that all share")]
    rows = re.findall(r"<tr><th>(.*)<td>(.*)<td>(.*)", differing)
    assert rows == [("alpha", "0.5", "0.25"), ("bias", "none", "prior")]


def test_a_link_that_leads_in_a_circle_is_refused(tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(UsageError, match="--out"):
        check_folder(tmp_path / "circle")
