"""What a reader sees of a tune: sentence, tables, page, and code that runs."""

import dataclasses
import json

import pytest
import torch
from tune_examples import BAD, BASE, FAIR, GOOD, PLAN, TIMING, all_runs, question

from asymtrain import models
from asymtrain.branches import Branches
from asymtrain.errors import UsageWarning
from asymtrain.lab.candidates import Candidate
from asymtrain.lab.engine.schedule import alpha_at
from asymtrain.lab.tune import replay
from asymtrain.lab.tune.answer import budget_words, tune_figures, tune_tables, write_tuned
from asymtrain.lab.tune.planning import CONFIRMATION_SEED, short_plan
from asymtrain.lab.tune.running import describe
from asymtrain.lab.tune.snippet import AttachCall, attach_code
from invented_runs import invent

HELPS, HURTS = {GOOD: 0.1, FAIR: 0.05, BAD: -0.2}, {GOOD: -0.1, FAIR: -0.1, BAD: -0.2}


def answer(gains, left_out=0):
    """An answer from invented runs, the last of them left out."""
    asked = question()
    runs = all_runs(asked, PLAN, gains)
    runs = dict(list(runs.items())[: len(runs) - left_out])
    return describe(replay(asked, PLAN, runs), TIMING, runs, None)


@pytest.fixture(scope="module")
def helped():
    return answer(HELPS)


def test_the_sentence_names_what_was_measured(helped):
    assert str(helped) == helped.sentence
    assert helped.sentence in repr(helped)
    assert helped.sentence.startswith("Attach softmax, alpha 1: +")
    assert "5 fresh seeds, 9 epochs, 1,000 test images" in helped.sentence
    told = "Attach nothing: every candidate was clearly worse than Plain in the race."
    assert answer(HURTS).sentence == told
    assert answer(HELPS, left_out=1).sentence.startswith("Inconclusive: 1 run of the confirmation is missing")


def test_curves_of_an_unfinished_confirmation_are_those_of_whole_pairs():
    asked = question()
    runs = all_runs(asked, PLAN, HELPS)
    specs = asked.confirmation_specs(GOOD, PLAN)
    last = CONFIRMATION_SEED + PLAN.seeds - 1
    runs[specs[None, last].id] = invent(specs[None, last], 0.9)  # alone it lifts Plain's mean above the other's
    del runs[specs[GOOD, last].id]
    unfinished = describe(replay(asked, PLAN, runs), TIMING, runs, None)
    (panel,) = tune_figures(unfinished)[0].panels
    ends = {line.colour: line.y[-1] for line in panel.lines}
    pairs = unfinished.race.pairs
    assert len(pairs) == PLAN.seeds - 1
    assert ends["plain"] == pytest.approx(sum(plain for _, plain, _ in pairs) / len(pairs))
    assert ends["asymmetric"] == pytest.approx(sum(after for _, _, after in pairs) / len(pairs))


def test_a_plan_of_the_whole_question_has_one_length(helped):
    assert budget_words(helped).endswith("for 1 min 0 s: the whole question")
    fewer = dataclasses.replace(helped.race, plan=dataclasses.replace(PLAN, epochs=8))
    assert budget_words(dataclasses.replace(helped, race=fewer)).endswith("; the whole question takes about 1 min 0 s")


def test_the_tables(helped):
    race, pairs, removal = tune_tables(helped)
    texts = race.texts()
    assert [row[0] for row in texts] == [GOOD.label, FAIR.label, BAD.label, GOOD.label, FAIR.label]
    assert [row[-1] for row in texts] == ["goes on", "goes on", "3 at chance, clearly worse", "winner", "dropped"]
    assert len(pairs.rows) == 5
    assert [row[-1] for row in removal.texts()] == ["—", "—", "bit-equal"]
    assert all(row[1] == f"{cells[1].value:,}" for row, cells in zip(removal.texts(), removal.rows, strict=True))
    first_rung = next(figure for figure in tune_figures(helped) if figure.name == "rung1")
    assert [bar.label for bar in first_rung.panels[0].bars] == [row[0] for row in texts[:3]]  # one name for one thing
    assert "Prior bias" not in race.note
    assert tune_tables(answer(HURTS))[0].rows
    assert len(tune_tables(answer(HURTS))) == 1
    assert not tune_tables(describe(replay(question(), PLAN, {}), TIMING, {}, None))  # nothing to show yet


def test_the_race_says_what_words_of_its_candidates_mean():
    forms = Candidate(bias="prior", alpha_schedule="cosine"), Candidate(layers="later")
    asked = question(*forms)
    runs = all_runs(asked, PLAN, {})
    note = tune_tables(describe(replay(asked, PLAN, runs), TIMING, runs, None))[0].note
    assert "Prior bias: " in note
    assert "Later layers: " in note
    assert "Falling: " in note


def test_the_page(helped, tmp_path):
    files = write_tuned(tmp_path, dataclasses.replace(helped, command="asymtrain tune mlp", versions={"torch": "2"}))
    assert files["page"] == tmp_path / "report.html"
    page = files["page"].read_text()
    points = f"{helped.comparison['points']:+.1f} points"
    assert f'<h1 class="headline good">Helps: {points} of test accuracy with softmax, alpha 1</h1>' in page
    assert f'<p class="lead">Attach softmax, alpha 1: {points}' in page
    assert "branches = attach(" in page
    assert "asymtrain tune mlp" in page
    assert "saw no test image" in page
    document = json.loads(files["json"].read_bytes())
    assert (tmp_path / "tune.json") == files["json"]
    assert document["verdict"] == "helps"
    assert document["comparison"]["n"] == 5
    assert [rung["epochs"] for rung in document["rungs"]] == [3, 9]
    assert {"rung1", "rung2", "course", "curves"} <= files.keys()


@pytest.mark.parametrize("asked", [question(minutes=None), question(short=True)], ids=["whole", "short"])
def test_what_is_not_timed_and_stops_before_its_plan_asks_for_no_minutes(asked):
    stopped = describe(replay(asked, None, {}), None, {}, None)
    assert stopped.sentence == "Inconclusive: nothing is planned yet: give the same command again to go on."
    assert budget_words(stopped).endswith("no plan was made")


def test_the_page_of_an_answer_without_advice(tmp_path):
    page = write_tuned(tmp_path, answer(HURTS))["page"].read_text()
    assert '<h1 class="headline soft">Likely hurts</h1>' in page
    assert '<p class="lead">Attach nothing: every candidate was clearly worse' in page
    assert "branches = attach(" not in page
    assert "It has no winner, so nothing was tried on the test images." in page
    assert "tried again" not in page
    page = write_tuned(tmp_path, answer(HELPS, left_out=3))["page"].read_text()
    assert "Its winner was" in page
    assert '<h1 class="headline soft">Inconclusive' in page


def test_code_is_given_where_something_is_to_be_attached(helped):
    assert 'at=["blocks.0", "blocks.1", "blocks.2"]' in helped.snippet
    assert helped.layers == ("blocks.0", "blocks.1", "blocks.2")
    assert not answer(HURTS).snippet
    assert not answer(HELPS, left_out=1).snippet


def test_an_answer_above_plain_that_settles_nothing_likely_helps(tmp_path):
    asked = question()
    runs = all_runs(asked, PLAN, HELPS)
    first = asked.confirmation_spec(GOOD, PLAN.epochs, CONFIRMATION_SEED)
    assert first.id in runs
    runs[first.id] = invent(first, 0.9)  # so far from the others that five pairs do not tell
    likely = describe(replay(asked, PLAN, runs), TIMING, runs, None)
    assert (likely.verdict, likely.race.ruling.because) == ("likely helps", "wide")
    assert likely.sentence.startswith("Likely helps: the best candidate, softmax, alpha 1, gave +")
    assert likely.snippet.startswith("# Not confirmed: the interval holds 0")
    assert "branches = attach(" in likely.snippet
    assert "Not confirmed" in write_tuned(tmp_path, likely)["page"].read_text()


MIDDLE = dataclasses.replace(GOOD, layers="middle")


@pytest.mark.parametrize(("winner", "loser"), [(GOOD, FAIR), (MIDDLE, GOOD)])
@pytest.mark.parametrize("short", [False, True])
def test_a_tie_is_named_and_fewer_branches_win_it(winner, loser, short):
    """Two candidates with the same accuracies, and one that is worse."""
    asked = question(*sorted((winner, loser), key=GOOD.__ne__), BAD, short=short)
    plan = short_plan(candidates=3, epochs=9) if short else PLAN
    runs = {}
    while missing := replay(asked, plan, runs).missing:
        for spec in missing:
            twin = dataclasses.replace(spec, **GOOD.fields()) if spec.redundancy else spec
            runs[spec.id] = dataclasses.replace(invent(twin, -0.2 if Candidate.of(spec) == BAD else 0.1), spec=spec)
    result = describe(replay(asked, plan, runs), TIMING, runs, None)
    assert (result.candidate, result.to_dict()["tied"]) == (winner, [loser.fields()])
    assert f" {'It' if short else 'In the race it'} tied with {loser.label}. Of equals the one" in result.sentence
    table = tune_tables(result)[0]
    *_, first, second = [row for row in table.texts() if row[0] != BAD.label]
    assert [first[0], second[0]] == [winner.label, loser.label]
    assert [first[-1], second[-1]] == (["best", "—"] if short else ["winner", "dropped"])


def test_without_a_tie_none_is_named(helped):
    assert "tied" not in helped.sentence
    assert helped.to_dict()["tied"] == []


def test_a_run_that_learnt_nothing_is_marked_where_its_number_stands(helped):
    asked = question()
    runs = all_runs(asked, PLAN, HELPS)
    first, second, *_ = [run.spec for run in helped.race.confirmation]
    runs[first.id] = invent(first, diverged=True)
    runs[second.id] = invent(second, -0.4)
    table = tune_tables(describe(replay(asked, PLAN, runs), TIMING, runs, None))[1]
    marks = [cell.mark for row in table.rows for cell in row if cell.mark]
    assert marks == ["(diverged)", "(at chance)"]
    assert not any(cell.mark for row in tune_tables(helped)[1].rows for cell in row)


def test_the_race_counts_runs_that_learnt_nothing():
    asked = question()
    runs = all_runs(asked, PLAN, HELPS)
    first = next(run.spec for run in runs.values() if run.spec.redundancy == 0)
    runs[first.id] = invent(first, epochs=1)
    table = tune_tables(describe(replay(asked, PLAN, runs), TIMING, runs, None))[0]
    assert [row[-1] for row in table.texts()][2] == "3 at chance, dropped"
    assert "At chance: " in table.note
    assert "At chance" not in tune_tables(answer({GOOD: 0.1, FAIR: 0.05, BAD: 0.0}))[0].note


def test_the_branches_leave_nothing_behind(helped):
    before, during, after = helped.removal.parameters
    assert before == after < during
    assert helped.removal.hooks[::2] == (0, 0)
    assert helped.removal.hooks[1] > 0
    assert helped.removal.difference == 0
    assert helped.to_dict()["removal"]["images"] == helped.removal.images == 64
    assert answer(HURTS).removal is None


def test_what_is_left_behind_is_seen(monkeypatch):
    monkeypatch.setattr(Branches, "strip", lambda self, optimizer: None)
    removal = answer(HELPS).removal
    assert removal.parameters[2] == removal.parameters[1]
    assert removal.hooks[2] == removal.hooks[1]


def test_a_check_that_fails_costs_no_answer(monkeypatch):
    monkeypatch.setattr(Branches, "strip", lambda self, optimizer: 1 / 0)
    with pytest.warns(UsageWarning, match="could not be checked: ZeroDivisionError"):
        result = answer(HELPS)
    assert result.verdict == "helps"
    assert len(tune_tables(result)) == 2


def test_the_page_says_what_the_docstring_of_the_model_says(helped, tmp_path):
    told = dataclasses.replace(helped, model="Eight layers & no shortcut.")
    assert '<p class="lead">Eight layers &amp; no shortcut.</p>' in write_tuned(tmp_path, told)["page"].read_text()
    assert told.to_dict()["model"] == told.model
    assert helped.model == ""


def code_of(spec, *layers, **options):
    return attach_code(AttachCall(spec, layers, 4, **options))


FORMS = [
    Candidate(),
    Candidate("softmax", "prior", 1.0),
    Candidate("softmax", alpha=0.3, layers="later", alpha_schedule="cosine"),
    Candidate("sigmoid", "prior", 0.1, alpha_schedule="linear"),
    Candidate(alpha=2.0, alpha_schedule="early"),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.label)
@pytest.mark.parametrize("changes", [{}, {"redundancy": 3, "activation": "all"}], ids=["bare", "more"])
def test_the_code_runs(form, changes):
    spec = dataclasses.replace(BASE, epochs=4, warmup=0.0, **form.fields(), **changes)
    model = models.build("mlp", classes=4, widths=(8, 8, 8, 8), image_size=8)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    code = code_of(spec, "blocks.0", "blocks.2", layout="BD")
    x, y = torch.rand(8, 3, 8, 8), torch.arange(8) % 4
    alphas = []

    class Loader:
        def __iter__(self):
            alphas.append(namespace.get("alpha"))
            return iter([(x, y)])

    namespace = {"model": model, "loader": Loader(), "labels": y}
    exec(compile(code, "snippet", "exec"), namespace)
    assert alphas[1:] == pytest.approx([alpha_at(spec, epoch) for epoch in range(4)])
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert not any(module._forward_hooks for module in model.modules())


def test_the_code_says_what_of_the_training_it_leaves_out():
    spec = dataclasses.replace(BASE, warmup=0.0, signal="gated", clip=1.0, schedule="cosine", **Candidate().fields())
    code = code_of(spec, "blocks.0")
    assert code.startswith("# Measured with signal=gated, schedule=cosine, clip=1:\n# these parts")
    bare = dataclasses.replace(spec, signal="gradient", clip=0.0, schedule="constant")
    assert "Measured" not in code_of(bare, "blocks.0")
