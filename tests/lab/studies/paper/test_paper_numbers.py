"""The printed numbers: whole, consistent with each other, and reachable under their labels."""

import pytest

from asymtrain.errors import UsageError
from asymtrain.lab.studies.paper.numbers import (
    COMPARED,
    all_hyperparameters,
    cells,
    hyperparameters,
    labels,
    printed,
    rows,
)

TABLES = {
    "table1": 12, "table2": 12, "table3": 6, "table4": 9, "table5": 9, "table6": 18, "table7": 6, "table8": 7,
    "table9": 7, "table10": 3, "table11": 10, "table12": 10, "table14": 12, "table16": 6,
}  # fmt: skip


def test_every_table_has_its_cells():
    assert {table: len(labels(table)) for table in TABLES} == TABLES
    assert len(cells()) == sum(TABLES.values())


def test_a_cell_is_the_one_that_its_label_names():
    cell = printed("table1/vit/20")
    (row,) = [
        row for row in rows("table01_redundancy_cifar100") if (row["architecture"], row["redundancy"]) == ("vit", "20")
    ]
    assert (cell.plain, cell.asymmetric) == (float(row["plain_mean"]), float(row["asymmetric_mean"]))
    assert (cell.improvement, cell.p) == (float(row["improvement_pct"]), float(row["p_value"]))
    (row,) = [row for row in rows("table07_08_09_few_shot") if (row["table"], row["samples_per_class"]) == ("8", "200")]
    assert printed("table8/mlp/200").asymmetric_std == float(row["asymmetric_std"])
    assert printed("table2/cnn/min").value == float(rows("table02_15_gradient_conflict")[1]["min_similarity"])
    assert printed("table16/one/cnn").plain == float(rows("table16_dual_optimisation")[4]["plain_mean"])


@pytest.mark.parametrize("label", [label for table in COMPARED for label in labels(table)])
def test_printed_improvements_follow_from_the_printed_means(label):
    """To the rounding of the means; the largest case is MLP at 7x."""
    cell = printed(label)
    digits = 0.00005 if cell.plain != round(cell.plain, 3) or cell.asymmetric != round(cell.asymmetric, 3) else 0.0005
    reach = 100 * digits * (1 / cell.plain + cell.asymmetric / cell.plain**2) + 0.06
    assert 100 * (cell.asymmetric / cell.plain - 1) == pytest.approx(cell.improvement, abs=reach)


def test_changes_that_are_not_printed_are_computed():
    row = rows("table03_convergence")[2]
    ratio = float(row["final_val_acc_asymmetric"]) / float(row["final_val_acc_plain"])
    assert printed("table3/vit/final").improvement == pytest.approx(100 * ratio - 100)
    assert printed("table5/mlp/300/std_loss").improvement == float(rows("table05_06_landscape")[3]["std_change_pct"])
    assert printed("table6/vit/20/mean_grad").plain == float(rows("table05_06_landscape")[8]["mean_grad"])


def test_table_13_and_table_1_name_the_same_alphas():
    alphas = {
        (row["architecture"], int(row["redundancy"])): float(row["alpha"])
        for row in rows("table01_redundancy_cifar100")
    }
    assert {(row.arch, row.redundancy): row.alpha for row in all_hyperparameters()} == alphas
    assert hyperparameters("cnn", 10).alpha == alphas["cnn", 10]


def test_unknown_names_are_refused():
    with pytest.raises(UsageError, match="did you mean 'table1/vit/20'"):
        printed("table1/vt/20")
    with pytest.raises(UsageError, match="table of the paper 'table99'"):
        labels("table99")
    with pytest.raises(UsageError, match="redundancy"):
        hyperparameters("vit", 3)
    with pytest.raises(UsageError, match="table of the paper"):
        rows("table99")
