"""What a reader sees of a tune: sentence, next step, tables, page, and code that runs."""

import dataclasses
import json

import pytest
import torch
from tune_examples import BAD, BASE, FAIR, GOOD, answer, question

from asymtrain import models
from asymtrain.branches import Branches
from asymtrain.errors import UsageWarning
from asymtrain.lab.candidates import RECOMMENDED, Candidate
from asymtrain.lab.engine.schedule import alpha_at
from asymtrain.lab.tune import Plan, Timing, write_tuned
from asymtrain.lab.tune.answer import plan_words, tune_figures, tune_tables
from asymtrain.lab.tune.snippet import AttachCall, attach_code

HELPS = {GOOD: 0.1, FAIR: 0.05, BAD: -0.2}


@pytest.fixture(scope="module")
def helped():
    return answer(HELPS)


def test_the_first_line_has_the_verdict_the_number_and_how_it_was_trained(helped):
    first = str(helped).splitlines()[0]
    assert first == helped.sentence
    assert first.startswith("Helps: +")
    assert "points of test accuracy with softmax, alpha 1 (95% interval +" in first
    assert "trained with batch 128, learning rate 0.001, 9 epochs and fp32" in first
    assert helped.sentence in repr(helped)
    assert helped.next_step == "Next: attach them by the code."
    assert helped.snippet.startswith("# Measured with batch 128, learning rate 0.001, 9 epochs and fp32")


@pytest.mark.parametrize(("epochs", "verdict"), [(5, "helps"), (3, "likely helps")])
def test_a_gain_at_less_than_full_length_is_said_as_such(epochs, verdict):
    result = answer(HELPS, plan=Plan(epochs, 4))
    assert result.verdict == verdict
    assert f" after {epochs} of 9 epochs with " in result.sentence
    assert f"trained with batch 128, learning rate 0.001, {epochs} epochs and fp32" in result.sentence
    assert result.sentence.endswith("; gains usually shrink with longer training.")
    assert "more minute" in result.next_step
    assert result.snippet.startswith("# Not settled") == (verdict == "likely helps")


def test_an_open_answer_says_how_many_minutes_would_decide():
    result = answer(HELPS, GOOD, left_out=4)
    assert (result.verdict, result.race.ruling.because) == ("likely helps", "few pairs")
    assert result.minutes_needed >= 1
    assert f"about {result.minutes_needed} more minute" in result.next_step
    assert "if you must decide now" in result.next_step


def test_pairs_too_short_to_settle_it_need_the_minutes_of_longer_ones():
    result = dataclasses.replace(answer(HELPS, plan=Plan(3, 4)), timing=Timing(10.0, 0.0))
    four_whole_pairs = 4 * 2 * 9 * 10.0 / 60
    assert four_whole_pairs < result.minutes_needed < 2 * four_whole_pairs


def test_a_loss_ends_in_training_without_branches():
    result = answer({BAD: -0.2}, BAD)
    assert result.verdict == "hurts"
    assert result.next_step == "Next: train without branches."
    assert not result.snippet


def test_nothing_trained_is_an_answer_too():
    result = answer(HELPS, GOOD, left_out=99)
    assert result.sentence.startswith("Inconclusive: no pair is finished yet (trained with batch 128")
    assert not tune_tables(result)
    assert not tune_figures(result)


def test_the_second_question_has_a_sentence(helped):
    assert helped.more[0] == "Of 2 alternatives, none was above the default in short pairs."
    better = answer({FAIR: 0.05, GOOD: 0.15}, FAIR, GOOD)
    assert better.candidate == GOOD
    assert better.more[0].startswith(
        "Of 1 alternative, softmax, alpha 1 was best in short pairs; against the default +"
    )
    assert "fresh seeds" in better.more[0]
    race = dataclasses.replace(better.race, second=None, ahead=None)
    assert "not confirmed: take it if" in dataclasses.replace(better, race=race).more[0]


def test_the_plan_is_said_before_it_is_followed():
    said = plan_words(question(), Plan(9, 5), Timing(2.0, 1.0))
    assert said.startswith("Plan: pairs of 9 epochs, with and without branches, 36 s a pair; 5 fit.")
    assert "then 2 alternatives if time is left" in said
    assert "5 of 9 epochs" in plan_words(question(), Plan(5, 4), Timing(2.0, 1.0))
    assert "at best an indication" in plan_words(question(), Plan(2, 1), Timing(2.0, 1.0))


def test_tables_and_figures(helped):
    pairs, race, removal = tune_tables(helped)
    assert [cells[-1] for cells in pairs.texts()][:2] == ["—", "—"]  # an interval needs three
    assert len(pairs.rows) == helped.pairs.n
    assert not race.detail  # it had more than one rung
    assert {row[1] for row in race.texts()} == {"1", "2", "3"}
    assert removal.detail
    assert [figure.name for figure in tune_figures(helped)] == ["curves", "race"]


def test_the_page(helped, tmp_path):
    files = write_tuned(tmp_path, helped)
    page = files["page"].read_text()
    assert '<h1 class="headline good">Helps: +' in page
    assert page.count(helped.headline) == 1  # what follows does not repeat it
    assert helped.sentence == f"{helped.headline} {helped.evidence}"
    assert "Do branches help MLP on shapes?" in page
    assert "branches = attach(" in page
    document = json.loads(files["json"].read_bytes())
    assert document == json.loads(json.dumps(helped.to_dict()))
    assert document["default"]["n"] == len(document["default"]["pairs"]) == helped.pairs.n
    names = dataclasses.replace(helped.race.question.base, arch="timm:vit_tiny_patch16_224", arch_options={})
    asked = dataclasses.replace(helped.race.question, base=names)
    race = dataclasses.replace(helped.race, question=asked)
    other = write_tuned(tmp_path / "other", dataclasses.replace(helped, race=race))["page"].read_text()
    assert "Do branches help vit_tiny_patch16_224 on shapes?" in other


def test_the_branches_leave_nothing_behind(helped):
    before, during, after = helped.removal.parameters
    assert before == after < during
    assert helped.removal.hooks[::2] == (0, 0)
    assert helped.removal.hooks[1] > 0
    assert helped.removal.difference == 0
    assert helped.to_dict()["removal"]["images"] == helped.removal.images == 64


def test_what_is_left_behind_is_seen(monkeypatch):
    monkeypatch.setattr(Branches, "strip", lambda self, optimizer: None)
    removal = answer(HELPS, GOOD).removal
    assert removal.parameters[2] == removal.parameters[1]
    assert removal.hooks[2] == removal.hooks[1]


def test_a_check_that_fails_costs_no_answer(monkeypatch):
    monkeypatch.setattr(Branches, "strip", lambda self, optimizer: 1 / 0)
    with pytest.warns(UsageWarning, match="could not be checked: ZeroDivisionError"):
        result = answer(HELPS, GOOD)
    assert result.verdict == "helps"


def test_the_page_says_what_the_docstring_of_the_model_says(helped, tmp_path):
    told = dataclasses.replace(helped, model="Eight layers & no shortcut.")
    assert '<p class="lead">Eight layers &amp; no shortcut.</p>' in write_tuned(tmp_path, told)["page"].read_text()
    assert told.to_dict()["model"] == told.model
    assert helped.model == ""


def code_of(spec, *layers, **options):
    return attach_code(AttachCall(spec, layers, 4, **options))


FORMS = [
    RECOMMENDED,
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
    strengths = []

    class Loader:
        def __iter__(self):
            if "epochs" in namespace:
                strengths.append(float(namespace["branches"].strength))
            return iter([(x, y)])

    namespace = {"model": model, "loader": Loader(), "labels": y}
    exec(compile(code, "snippet", "exec"), namespace)
    # In the paper's unit losses are means over classes and summed over layers, of which there are two here.
    unit = 1.0 if form == RECOMMENDED else 2.0 if form.objective == "softmax" else 2 / 4
    assert strengths == pytest.approx([unit * alpha_at(spec, epoch) for epoch in range(4)], rel=1e-3)
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert not any(module._forward_hooks for module in model.modules())


def test_the_strength_in_the_code_weighs_the_loss_as_the_run_did():
    """The value of the auxiliary loss, in the paper's unit and in the library's."""
    spec = dataclasses.replace(BASE, warmup=0.0, **Candidate(alpha=3.0).fields())
    model = models.build("mlp", classes=4, widths=(8, 8, 8, 8), image_size=8)
    x, y = torch.rand(8, 3, 8, 8), torch.arange(8) % 4
    branches = AttachCall(spec, ("blocks.0", "blocks.2"), 4).call(model, x, y)
    model(x)
    by_layer = branches.losses(y)  # summed over the classes
    model(x)
    assert branches.loss(y).item() == pytest.approx(3.0 * sum(loss.item() for loss in by_layer.values()) / 4)


def test_the_code_says_what_of_the_training_it_leaves_out():
    spec = dataclasses.replace(BASE, warmup=0.0, signal="gated", clip=1.0, schedule="cosine", **Candidate().fields())
    code = code_of(spec, "blocks.0")
    assert "fp32; with\n# signal=gated, schedule=cosine, clip=1:\n# these parts" in code
    bare = dataclasses.replace(spec, signal="gradient", clip=0.0, schedule="constant")
    assert "left out" not in code_of(bare, "blocks.0")
