"""What readers see of a search: the tables and the page, made from hand-made runs."""

import dataclasses
import json

import pytest
from search_examples import base_of, finish, run_of

from asymtrain.lab.search import dual_search, gold_standard, replay
from asymtrain.lab.search.page import chosen_table, sentence, tried_table, write_search

GRIDS = {"learning_rates": (1e-3, 1e-2), "weight_decays": (1e-3, 1e-1), "alphas": (0.1, 1.0, 10.0), "seeds": (7, 8)}


def score(spec):
    """Best at learning rate 0.01, weight decay 0.001 and alpha 1; seed 8 is better than seed 7."""
    alpha = 0.2 if spec.alpha == 1.0 else 0.0
    return [spec.learning_rate - spec.weight_decay / 10 + alpha + (0.1 if spec.seed == 8 else 0.0) + 0.3]


@pytest.fixture
def finished():
    return finish(gold_standard(base_of(), **GRIDS), score)


def test_the_chosen_values_are_starred_at_the_ends_of_their_grids(finished):
    table = chosen_table([finished])
    names = [column.name for column in table.columns]
    plain, asymmetric = [dict(zip(names, row, strict=True)) for row in table.texts()]
    assert [plain[name] for name in ("Learning rate", "Weight decay", "Alpha")] == ["0.01*", "0.001*", "—"]
    assert [asymmetric[name] for name in ("Learning rate", "Weight decay", "Alpha")] == ["0.01*", "0.001*", "1"]
    # 0.3 + 0.01 - 0.0001 and a tenth more with the other seed; with alpha two tenths more.
    assert (plain["Accuracy"], asymmetric["Accuracy"]) == ("0.360 ± 0.071", "0.560 ± 0.071")
    assert "a better value may lie beyond" in table.note
    assert "Plain learning rate (highest), Plain weight decay (lowest)" in sentence(finished)
    assert "alpha (" not in sentence(finished)


def test_every_trial_has_a_row_and_one_of_a_stage_is_chosen(finished):
    rows = tried_table(finished).texts()
    assert [row[0] for row in rows] == ["learning rate"] * 2 + ["weight decay"] * 2 + ["alpha"] * 3
    assert [row[2] for row in rows if "chosen" in row[-1]] == ["learning rate 0.01", "weight decay 0.001", "alpha 1"]


def test_an_unfinished_search_shows_what_is_there():
    search = dual_search(base_of(), **GRIDS)
    first, *_ = replay(search, {}).missing
    result = replay(search, {first.id: run_of(first, 0.5)})
    table = tried_table(result)
    assert [row[3:5] for row in table.texts()] == [["0.500", "1 of 2"]] + [["—", "0 of 2"]] * 3
    assert table.note == f"Not finished: at most {result.runs_left} runs are left."
    assert "nothing is chosen yet" in sentence(result)
    assert {row[3] for row in chosen_table([result]).texts()} == {"—"}


def test_diverged_runs_are_counted_and_explained():
    search = gold_standard(base_of(), **GRIDS)
    asked = replay(search, {}).missing
    runs = {spec.id: run_of(spec, 0.9, outcome="diverged" if spec.seed == 7 else "finished") for spec in asked}
    table = tried_table(replay(search, runs, chance=lambda: 0.25))
    assert [row[3] for row in table.texts()[:2]] == ["0.575 ± 0.460"] * 2
    assert "1 diverged" in table.texts()[0][-1]
    assert "chance accuracy" in table.note


def test_the_page_is_the_same_bytes_each_time_and_its_numbers_are_the_results(finished, tmp_path):
    files = [write_search(tmp_path / name, [finished], {"Command": "asymtrain search"}) for name in "ab"]
    assert [path.name for path in files[0].values()] == [path.name for path in files[1].values()]
    for kind in files[0]:
        assert files[0][kind].read_bytes() == files[1][kind].read_bytes()
    document = json.loads(files[0]["json"].read_text(encoding="utf-8"))
    assert document["searches"] == [finished.to_dict()]
    page = files[0]["page"].read_text(encoding="utf-8")
    assert page.count("<svg") == 3
    assert "0.560 ± 0.071" in page


def test_a_model_by_name_has_a_page_with_figures(tmp_path):
    named = dataclasses.replace(base_of(), arch="package.module:net", arch_options={})
    files = write_search(tmp_path, [finish(gold_standard(named, **GRIDS), score)], {})
    assert (tmp_path / "search-package.module-net-0-plain-learning_rate.svg").exists()
    assert "package.module:net" in files["page"].read_text()
