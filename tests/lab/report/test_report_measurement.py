"""The page of a measurement, and the pages of alignment and trajectories from invented runs."""

import dataclasses
import json
import re
from html.parser import HTMLParser

import pytest

from asymtrain.lab.instruments.alignment.conflict import conflicts
from asymtrain.lab.instruments.alignment.figures import cosines_by_layer, cosines_over_training
from asymtrain.lab.instruments.alignment.page import write_alignment
from asymtrain.lab.instruments.trajectory.figures import norm_curves
from asymtrain.lab.instruments.trajectory.page import write_trajectory
from asymtrain.lab.instruments.trajectory.trajectory import Curve, compare_trajectories
from asymtrain.lab.report.measurement import Drawn, Listed, interval, number, spec_labels, write_measurement
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.statistics.estimates import estimate

SVG = '<svg viewBox="0 0 {0} 100" xmlns="http://www.w3.org/2000/svg"><g id="axes"/><use href="#axes"/></svg>'


class Outline(HTMLParser):
    """Ids, links and headings of a page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.cells = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.cells += [values["data-heading"]] if "data-heading" in values else []


def written(out, **changes):
    values = {
        "title": "A <measurement>",
        "lead": "First.\n\nSecond.",
        "tables": [Listed("Numbers", ("Name", "Value"), [("a <b>", "1"), ("c", "2")], "A note.")],
        "figures": [Drawn("one", "One", SVG.format(280), "A caption."), Drawn("two", "Two", SVG.format(800))],
        "facts": {"Command": "asymtrain measure x", "Runs": "3"},
        "document": {"value": 1.5, "missing": None, "name": "α"},
    }
    return write_measurement(out, "x", **values | changes)


def test_the_files_and_what_they_hold(tmp_path):
    paths = written(tmp_path / "a" / "b")
    assert {kind: path.name for kind, path in paths.items()} == {
        "page": "x.html", "json": "x.json", "one": "x-one.svg", "two": "x-two.svg",
    }  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == sorted(p.name for p in paths.values())
    assert json.loads(paths["json"].read_text()) == {"value": 1.5, "missing": None, "name": "α"}
    assert paths["one"].read_text() == SVG.format(280)
    text = paths["page"].read_text()
    for expected in ("A &lt;measurement&gt;", "First.", "Second.", "A note.", "A caption.", "a &lt;b&gt;"):
        assert expected in text
    assert "<code>asymtrain measure x</code>" in text


def test_ids_on_the_page_are_unique_and_references_lead_somewhere(tmp_path):
    """Both figures call a thing of theirs `axes`."""
    outline = Outline(written(tmp_path)["page"].read_text())
    assert len(set(outline.ids)) == len(outline.ids)
    inner = [link for link in outline.links if link.startswith("#")]
    assert len(inner) == 2
    assert {link[1:] for link in inner} <= set(outline.ids)
    assert all(link.startswith(("#", "data:")) for link in outline.links)


def test_a_wide_figure_gets_the_whole_row(tmp_path):
    text = written(tmp_path)["page"].read_text()
    assert re.search(r"<figure><h3>One</h3>", text)
    assert re.search(r'<figure class="wide"><h3>Two</h3>', text)


def test_short_tables_become_cards_on_a_phone_and_long_ones_scroll(tmp_path):
    rows = [(str(i), "1") for i in range(30)]
    text = written(tmp_path, tables=[Listed("Long", ("Name", "Value"), rows)])["page"].read_text()
    assert 'class="summary"' not in text
    assert Outline(text).cells == ["Value"] * 30
    assert 'class="summary"' in written(tmp_path)["page"].read_text()


def test_written_again_it_has_the_same_bytes(tmp_path):
    first, second = written(tmp_path / "1"), written(tmp_path / "2")
    assert [p.read_bytes() for p in first.values()] == [p.read_bytes() for p in second.values()]


def test_a_page_without_figures_or_tables_is_whole(tmp_path):
    text = written(tmp_path, figures=[], tables=[])["page"].read_text()
    assert "Figures" not in text
    assert "How it was made" in text


def test_what_is_not_finite_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        written(tmp_path / "new", document={"value": float("nan")})
    assert not (tmp_path / "new").exists()


def test_figures_with_one_name_and_ragged_rows_are_our_mistake(tmp_path):
    twice = [Drawn("one", "One", SVG.format(1)), Drawn("one", "Two", SVG.format(1))]
    with pytest.raises(AssertionError, match="share a name"):
        written(tmp_path, figures=twice)
    with pytest.raises(AssertionError, match="other columns"):
        written(tmp_path, tables=[Listed("T", ("a", "b"), [("1",)])])


def test_cells_of_numbers():
    assert (number(0.12345), number(-0.5, "+.1f"), number(None)) == ("0.123", "-0.5", "–")
    assert interval(estimate([1.0])) == "–"
    assert interval(estimate([1.0, 1.0]), "+.1f") == "+1.0 to +1.0"


def test_labels_name_what_differs_and_nothing_else():
    base = RunSpec(arch="vit", learning_rate=0.5)
    specs = [RunSpec(seed=1), RunSpec(seed=2, alpha=3.0), base]
    assert spec_labels(specs) == ["MLP, alpha 1.0", "MLP, alpha 3.0", "ViT"]
    assert spec_labels(specs, without=["alpha"]) == ["MLP", "MLP", "ViT"]
    assert spec_labels([base, dataclasses.replace(base, dataset="cifar10")]) == ["ViT, shapes", "ViT, cifar10"]


def with_details(run):
    """An invented run that recorded norms, conflict and layers as well."""
    if run.spec.redundancy == 0:
        return run
    more = {"conflict": 0.25, "main_norm": 2.0, "auxiliary_norm": 0.5, "cosine_std": 0.1}
    layers = (("blocks.0", 0.5), ("blocks.1", None))
    history = tuple(dataclasses.replace(epoch, layer_cosines=layers, **more) for epoch in run.history)
    return dataclasses.replace(run, history=history)


def test_the_alignment_page(study, tmp_path):
    runs = [with_details(run) for run in study]
    tables, document, paths = write_alignment(runs, tmp_path, {"Runs": "18"})
    found = conflicts(runs)
    assert [group["label"] for group in document["groups"]] == ["MLP", "CNN", "ViT"]
    assert document["groups"][0]["mean"]["mean"] == found[0].mean.mean
    assert tables[0].rows[0][3] == f"{found[0].mean.mean:+.3f}"
    assert tables[0].rows[0][7] == "25%"
    assert [table.detail for table in tables] == [False, False, True, True]
    assert len(tables[2].rows) == 9
    assert [row[0] for row in tables[3].rows[:2]] == ["MLP, blocks.0", "MLP, blocks.1"]
    assert tables[3].rows[1][2] == "–"  # undefined, and not 0
    assert set(paths) == {"page", "json", "cosine-trained", "layers-0", "layers-1", "layers-2"}
    text = paths["page"].read_text()
    outline = Outline(text)
    assert len(set(outline.ids)) == len(outline.ids)
    assert not re.search(r"\bnan\b", text, re.IGNORECASE)
    assert len(json.loads(paths["json"].read_text())["groups"][0]["cosine"]) == 4


def test_the_alignment_page_of_runs_that_recorded_less(study, tmp_path):
    tables, _, paths = write_alignment(study, tmp_path, {})
    assert tables[0].rows[0][7] == "–"
    assert "not recorded yet" in tables[0].note
    assert [table.title for table in tables] == ["Gradient cosine", "Within each run"]  # no table of dashes
    assert set(paths) == {"page", "json", "cosine-trained"}


def test_the_trajectory_page(study, tmp_path):
    found = compare_trajectories([with_details(run) for run in study])
    tables, document, paths = write_trajectory(found, tmp_path, {})
    assert [row[:2] for row in tables[0].rows[:2]] == [("MLP", "Plain"), ("MLP", "Asymmetric")]
    assert tables[0].rows[0][5] == f"{found.comparisons[0].plain.final.mean:.3f}"
    assert [row[0] for row in tables[2].rows] == ["MLP", "CNN", "ViT"]
    assert document["comparisons"][0]["parting"]["epoch"] == found.comparisons[0].parting.epoch
    kinds = {f"{kind}-{i}" for kind in ("accuracy", "difference", "gap", "loss", "norm") for i in range(3)}
    assert set(paths) == {"page", "json"} | kinds
    outline = Outline(paths["page"].read_text())
    assert len(set(outline.ids)) == len(outline.ids)


def test_the_trajectory_page_without_pairs(make_run, tmp_path):
    alone = [make_run(RunSpec(epochs=3, seed=seed)) for seed in (1, 2)]
    lost = make_run(RunSpec(epochs=3, arch="cnn"), epochs=1, diverged=True)
    tables, document, paths = write_trajectory(compare_trajectories([*alone, lost]), tmp_path, {})
    assert [table.title for table in tables] == ["Convergence and accuracy", "Generalisation gap"]
    assert document["comparisons"] == []
    assert [one["arch"] for one in document["lost"]] == ["cnn"]
    assert "every seed diverged" in paths["page"].read_text()
    assert "difference-0" not in paths


def test_figures_have_the_same_bytes_twice_and_both_themes(study):
    curve = Curve((1, 2, 3), tuple(estimate(values) for values in ([0.1, 0.2], [None, None], [0.3, 0.2])), ())
    layers = [("blocks.0", estimate([0.1, 0.2])), ("blocks.1", estimate([]))]
    for draw in (
        lambda: cosines_over_training({"MLP": curve, "ViT": curve}, "c", "Cosine"),
        lambda: cosines_by_layer(layers, [[0.1, 0.2], [None, None]], "l", "Layers"),
    ):
        svg = draw()
        assert svg == draw()
        assert svg.startswith("<svg")
        assert "var(--ink, #222)" in svg
        assert "nan" not in svg.lower()
    assert norm_curves([compare_trajectories(study).comparisons[0].plain], "n", "Norms") is None
