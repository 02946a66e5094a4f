"""The pages of alignment and trajectories, from invented runs."""

import dataclasses
import json

from asymtrain.lab.instruments.alignment.measure import conflicts
from asymtrain.lab.instruments.alignment.show import alignment_page
from asymtrain.lab.instruments.curves import Curve, spec_labels
from asymtrain.lab.instruments.trajectory.measure import compare_trajectories
from asymtrain.lab.instruments.trajectory.show import trajectory_page
from asymtrain.lab.report.table import Range
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.statistics.estimates import estimate


def test_labels_name_what_differs_and_nothing_else():
    base = RunSpec(arch="vit", learning_rate=0.5)
    specs = [RunSpec(seed=1), RunSpec(seed=2, alpha=3.0), base]
    assert spec_labels(specs) == ["MLP, alpha 1.0", "MLP, alpha 3.0", "ViT"]
    assert spec_labels(specs, without=["alpha"]) == ["MLP", "MLP", "ViT"]
    assert spec_labels([base, dataclasses.replace(base, dataset="cifar10")]) == ["ViT, shapes", "ViT, cifar10"]


def with_details(run):
    """An invented run that recorded norms and conflict as well."""
    if run.spec.redundancy == 0:
        return run
    more = {"conflict": 0.25, "main_norm": 2.0, "auxiliary_norm": 0.5, "cosine_std": 0.1}
    history = tuple(epoch._replace(**more) for epoch in run.history)
    return dataclasses.replace(run, history=history)


def column(table, name):
    """The cells of a column."""
    index = [column.name for column in table.columns].index(name)
    return [row[index] for row in table.rows]


def test_the_alignment_page(study):
    runs = [with_details(run) for run in study]
    page, groups = alignment_page(runs), conflicts(runs)
    assert [group["label"] for group in page.document["groups"]] == ["MLP", "CNN", "ViT"]
    assert page.document["groups"][0]["mean"]["mean"] == groups[0].mean.mean
    assert len(page.document["groups"][0]["cosine"]) == 4
    json.dumps(page.document, allow_nan=False)
    cosine, _, within = page.tables
    assert [cell.value for cell in column(cosine, "Average")] == [group.mean.mean for group in groups]
    assert column(cosine, "95% interval")[0].value == Range(groups[0].mean.low, groups[0].mean.high)
    assert column(cosine, "Average")[0].spec_ids == tuple(run.id for run in groups[0].runs)
    assert cosine.texts()[0][7] == "25%"
    assert [table.detail for table in page.tables] == [False, False, True]
    assert len(within.rows) == 9
    assert [figure.name for figure in page.figures] == ["cosine-trained"]
    (panel,) = page.figures[0].panels
    assert [line.label for line in panel.lines] == ["MLP", "CNN", "ViT"]


def test_kinds_of_branches_are_compared_in_one_figure(study):
    trained = [run for run in study if run.spec.redundancy and run.spec.arch == "mlp"]
    frozen = [dataclasses.replace(run, spec=dataclasses.replace(run.spec, branch_weights="frozen")) for run in trained]
    page = alignment_page([*trained, *frozen])
    assert [figure.name for figure in page.figures] == ["cosine-0"]
    assert [line.label for line in page.figures[0].panels[0].lines] == ["trained", "frozen"]


def test_the_alignment_page_of_runs_that_recorded_less(study):
    page = alignment_page(study)
    assert page.tables[0].texts()[0][7] == "—"
    assert "not recorded yet" in page.tables[0].note
    assert [table.title for table in page.tables] == ["Gradient cosine", "Within each run"]  # no table of dashes
    assert [figure.name for figure in page.figures] == ["cosine-trained"]


def test_the_trajectory_page(study):
    runs = [with_details(run) for run in study]
    page, found = trajectory_page(runs), compare_trajectories(runs)
    convergence, _, parting = page.tables
    assert [row[:2] for row in convergence.texts()[:2]] == [["MLP", "Plain"], ["MLP", "Asymmetric"]]
    assert column(convergence, "Final accuracy")[0].value == found.comparisons[0].plain.final.mean
    plain = [run.spec.id for run in runs if run.spec.arch == "mlp" and not run.spec.redundancy]
    assert list(column(convergence, "Final accuracy")[0].spec_ids) == plain
    assert [row[0] for row in parting.texts()] == ["MLP", "CNN", "ViT"]
    assert page.document["comparisons"][0]["parting"]["epoch"] == found.comparisons[0].parting.epoch
    kinds = {f"{kind}-{i}" for kind in ("accuracy", "difference", "gap", "loss", "norm") for i in range(3)}
    assert {figure.name for figure in page.figures} == kinds
    (accuracy,) = page.figures[0].panels
    assert accuracy.kinds == ("validation", "training")
    assert [(line.colour, line.thin) for line in accuracy.lines] == [
        ("plain", True), ("asymmetric", True), ("plain", False), ("asymmetric", False),
    ]  # fmt: skip
    assert accuracy.marks == (found.comparisons[0].parting.epoch,)


def test_the_trajectory_page_without_pairs(make_run):
    alone = [make_run(RunSpec(epochs=3, seed=seed)) for seed in (1, 2)]
    lost = make_run(RunSpec(epochs=3, arch="cnn"), epochs=1, diverged=True)
    page = trajectory_page([*alone, lost])
    assert [table.title for table in page.tables] == ["Convergence and accuracy", "Generalisation gap"]
    assert page.document["comparisons"] == []
    assert [spec["arch"] for spec in page.document["lost"]] == ["cnn"]
    assert "every seed diverged" in page.lead
    assert {figure.name for figure in page.figures} == {"accuracy-0", "gap-0", "loss-0"}  # no norms were recorded


def test_a_curve_is_a_line_with_its_intervals():
    points = tuple(estimate(values) for values in ([0.1, 0.2], [None, None], [0.3, 0.2]))
    line = Curve((1, 2, 3), points, ()).line("MLP", 0)
    assert (line.x, line.y[1], line.low[1]) == ((1.0, 2.0, 3.0), None, None)
    assert line.low[0] == points[0].low
    thin = Curve((1, 2, 3), points, ()).line("MLP", 0, thin=True)
    assert (thin.y, thin.low, thin.thin) == (line.y, (), True)
