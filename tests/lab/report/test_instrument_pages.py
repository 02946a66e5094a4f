"""The pages of alignment and trajectories, from invented runs."""

import dataclasses
import re

from asymtrain.lab.instruments.alignment.measure import conflicts
from asymtrain.lab.instruments.alignment.show import alignment_page
from asymtrain.lab.instruments.curves import spec_labels
from asymtrain.lab.instruments.trajectory.measure import compare_trajectories
from asymtrain.lab.instruments.trajectory.show import trajectory_page
from asymtrain.lab.report.page import write_page
from asymtrain.lab.runs import RunSpec


def with_details(run):
    """An invented run that recorded norms, conflict and layers as well."""
    if run.spec.redundancy == 0:
        return run
    more = {"conflict": 0.25, "main_norm": 2.0, "auxiliary_norm": 0.5, "cosine_std": 0.1}
    layers = (("blocks.0", 0.5), ("blocks.1", None))
    history = tuple(dataclasses.replace(epoch, layer_cosines=layers, **more) for epoch in run.history)
    return dataclasses.replace(run, history=history)


def texts(tables):
    return [table.texts() for table in tables]


def test_the_alignment_page(study):
    runs = [with_details(run) for run in study]
    page = alignment_page(runs)
    groups = conflicts(runs)
    shown = texts(page.tables)
    assert [group["label"] for group in page.document["groups"]] == ["MLP", "CNN", "ViT"]
    assert page.document["groups"][0]["mean"]["mean"] == groups[0].mean.mean
    assert len(page.document["groups"][0]["cosine"]) == 4
    assert shown[0][0][3] == f"{groups[0].mean.mean:+.3f}"
    assert shown[0][0][7] == "25%"
    assert [table.detail for table in page.tables] == [False, False, True, True]
    assert len(shown[2]) == 9
    assert [row[0] for row in shown[3][:2]] == ["MLP, blocks.0", "MLP, blocks.1"]
    assert shown[3][1][2] == "—"  # undefined, and not 0
    assert {figure.name for figure in page.figures} == {"cosine-trained", "layers-0", "layers-1", "layers-2"}


def test_the_alignment_page_of_runs_that_recorded_less(study):
    page = alignment_page(study)
    assert texts(page.tables)[0][0][7] == "—"
    assert "not recorded yet" in page.tables[0].note
    assert [table.title for table in page.tables] == ["Gradient cosine", "Within each run"]  # no table of dashes
    assert [figure.name for figure in page.figures] == ["cosine-trained"]


def test_the_trajectory_page(study):
    runs = [with_details(run) for run in study]
    page, result = trajectory_page(runs), compare_trajectories(runs)
    shown = texts(page.tables)
    assert [row[:2] for row in shown[0][:2]] == [["MLP", "Plain"], ["MLP", "Asymmetric"]]
    assert shown[0][0][5] == f"{result.comparisons[0].plain.final.mean:.3f}"
    assert [row[0] for row in shown[2]] == ["MLP", "CNN", "ViT"]
    assert page.document["comparisons"][0]["parting"]["epoch"] == result.comparisons[0].parting.epoch
    kinds = {f"{kind}-{i}" for kind in ("accuracy", "difference", "gap", "loss", "norm") for i in range(3)}
    assert {figure.name for figure in page.figures} == kinds


def test_the_trajectory_page_without_pairs(make_run):
    alone = [make_run(RunSpec(epochs=3, seed=seed)) for seed in (1, 2)]
    lost = make_run(RunSpec(epochs=3, arch="cnn"), epochs=1, diverged=True)
    page = trajectory_page([*alone, lost])
    assert [table.title for table in page.tables] == ["Convergence and accuracy", "Generalisation gap"]
    assert page.document["comparisons"] == []
    assert [spec["arch"] for spec in page.document["lost"]] == ["cnn"]
    assert "every seed diverged" in page.lead
    assert "difference-0" not in {figure.name for figure in page.figures}


def test_both_pages_can_be_written(study, tmp_path):
    runs = [with_details(run) for run in study]
    for name, page in (("alignment", alignment_page(runs)), ("trajectory", trajectory_page(runs))):
        paths = write_page(tmp_path, name, title=page.title, lead=page.lead, tables=page.tables, figures=page.figures,
                           facts={}, document=page.document)  # fmt: skip
        text = paths["page"].read_text()
        ids = re.findall(r'\bid="([^"]+)"', text)
        assert len(set(ids)) == len(ids)
        assert not re.search(r"\bnan\b", text, re.IGNORECASE)


def test_labels_name_what_differs_and_nothing_else():
    base = RunSpec(arch="vit", learning_rate=0.5)
    specs = [RunSpec(seed=1), RunSpec(seed=2, alpha=3.0), base]
    assert spec_labels(specs) == ["MLP, alpha 1.0", "MLP, alpha 3.0", "ViT"]
    assert spec_labels(specs, without=["alpha"]) == ["MLP", "MLP", "ViT"]
    assert spec_labels([base, dataclasses.replace(base, dataset="cifar10")]) == ["ViT, shapes", "ViT, cifar10"]
