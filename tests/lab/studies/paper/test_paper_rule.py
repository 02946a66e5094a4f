"""The rule by mutation: every threshold and every branch of the decision has a case that a change of it turns."""

import ast
import contextlib
import dataclasses
import inspect
import textwrap

import numpy as np
import pytest
from synthetic_evidence import SEEDS, VIT, effect, quantity

from asymtrain.lab.statistics import Interval
from asymtrain.lab.studies.paper import verdicts
from asymtrain.lab.studies.paper.claims import Part, claim, epochs_wanted
from asymtrain.lab.studies.paper.evidence import Effect
from asymtrain.lab.studies.paper.study import LATER
from asymtrain.lab.studies.paper.verdicts import LIMITS, Limits, judge, ruling_on

GAIN, LOSS = Part("effect", ("a",), 20.0, sign=1), Part("effect", ("a",), -20.0, sign=-1)
SIGN, COSINE = Part("sign", ("a",), 20.0, sign=1), Part("effect", ("a",), 0.2, "value", 1)
NULL, NEAR = Part("no effect", ("a",), 0.3), Part("near zero", ("a",), -0.08, "value", -1)
STEP, DOWN = (Part("not reversed", ("a", "b"), 5.0 * sign, sign=sign) for sign in (1, -1))
RIGHT, EXCLUDED = "Right direction, different size", "Paper's size excluded"

# Part, low, estimate, high, ruling: on both sides of each boundary, and on it
CASES = [
    (GAIN, 10, 12, 30, "Reproduced"),  # all of it in the band, both ends included
    (GAIN, 10, 15, 19, "Reproduced"),
    (GAIN, 21, 25, 30, "Reproduced"),
    (GAIN, 1, 10, 20, "Reproduced"),  # estimate at the edge of the band, the paper's number at that of the interval
    (GAIN, 20, 30, 40, "Reproduced"),
    (GAIN, 9.9, 15, 19.9, RIGHT),  # meets the band, and holds neither
    (GAIN, 1, 9.9, 21, RIGHT),  # so wide that it holds the paper's number
    (GAIN, 19, 30.1, 41, RIGHT),
    (GAIN, 20.1, 28, 30.1, RIGHT),
    (GAIN, 0.1, 0.2, 0.3, RIGHT),
    (GAIN, 35, 40, 45, RIGHT),
    (GAIN, -9.9, -5, 0, EXCLUDED),
    (GAIN, 0, 5, 9.9, EXCLUDED),
    (GAIN, -5, 2, 10, "Inconclusive"),
    (GAIN, -5, 15, 35, "Inconclusive"),  # around 0: an estimate of the paper's size does not help
    (GAIN, -1, 0, 0.5, EXCLUDED),
    (GAIN, -0.5, 0, 1, EXCLUDED),
    (GAIN, -0.9, 0, 0.9, "No effect"),
    (GAIN, -30, -15, -0.1, "Contradicted"),
    (LOSS, -30, -15, -10, "Reproduced"),
    (LOSS, -9, -5, -1, RIGHT),
    (LOSS, -9.9, -1, 30, EXCLUDED),
    (LOSS, -10, 3, 5, "Inconclusive"),
    (LOSS, 0.1, 2, 5, "Contradicted"),
    (SIGN, 0.1, 1, 2, "Reproduced"),  # of any size
    (SIGN, -2, 1, 2, "Inconclusive"),
    (SIGN, -0.9, 0, 0.9, "No effect"),
    (SIGN, -2, -1, -0.1, "Contradicted"),
    (COSINE, -0.009, 0, 0.009, "No effect"),
    (COSINE, -0.02, 0, 0.02, EXCLUDED),
    (NULL, -0.9, 0, 0.9, "Reproduced"),
    (NULL, 0.1, 0.5, 0.9, "Reproduced"),
    (NULL, -0.9, 0.5, 1, "Inconclusive"),
    (NULL, -1, 0.5, 0.9, "Inconclusive"),
    (NULL, 0.1, 0.5, 1, "Contradicted"),
    (NULL, -2, -1, -0.1, "Contradicted"),
    (NEAR, -0.11, 0, 0.11, "Reproduced"),
    (NEAR, -0.2, 0, 0.1, "Inconclusive"),
    (NEAR, 0.1, 0.2, 0.3, "Inconclusive"),
    (NEAR, 0.13, 0.2, 0.3, "Contradicted"),
    (NEAR, -0.3, -0.2, -0.13, "Contradicted"),
    (NEAR, -0.3, -0.2, -0.12, "Inconclusive"),  # on the margin
    (NEAR, 0.12, 0.2, 0.3, "Inconclusive"),
    (STEP, -3, -2, -0.1, "Contradicted"),
    (STEP, -0.9, -0.5, -0.1, "Contradicted"),  # clear, and smaller than the margin
    (STEP, -3, 0, 1, "Inconclusive"),  # until 2026-11-19 the wider the interval, the more surely this passed
    (STEP, -1, 0, 5, "Inconclusive"),  # on the margin
    (STEP, -0.9, 0, 5, "Reproduced"),
    (STEP, 1, 2, 3, "Reproduced"),
    (DOWN, -5, 0, 0.9, "Reproduced"),
    (DOWN, -5, 0, 3, "Inconclusive"),
    (DOWN, 0.1, 2, 3, "Contradicted"),
]  # fmt: skip


def decide():
    """The rulings on all cases; nothing where one of them cannot be ruled on at all."""
    with contextlib.suppress(TypeError):
        return [verdicts.ruling_on(part, Interval(at, low, high, 0.5, 10)) for part, low, at, high, _ in CASES]
    return None


@pytest.mark.parametrize(("part", "low", "estimate", "high", "expected"), CASES)
def test_the_ruling_by_an_interval(part, low, estimate, high, expected):
    assert ruling_on(part, Interval(estimate, low, high, 0.5, 10)) == expected


# Branches: each comparison, connection, condition and answer of the decision is changed, one at a time

DECISION = ("ruling_on", "has_size", "excludes_size", "is_within", "_null_margin", "direction")
OTHERS = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.Is: (ast.IsNot,),
    ast.And: (ast.Or,), ast.Or: (ast.And,),
}  # fmt: skip


def changes(node):
    """What can be done to a node of the tree, as functions without arguments."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            for other in OTHERS[type(op)]:
                yield lambda i=i, other=other: node.ops.__setitem__(i, other())
    if isinstance(node, ast.BoolOp):
        yield lambda: setattr(node, "op", OTHERS[type(node.op)][0]())
    if isinstance(node, ast.If | ast.IfExp):
        yield lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield lambda: setattr(node, "op", ast.UAdd())
    # An answer: of a return, or of one side of a condition
    sides = ("value",) if isinstance(node, ast.Return) else ("body", "orelse") if isinstance(node, ast.IfExp) else ()
    for answer in (getattr(node, name) for name in sides):
        if isinstance(answer, ast.Constant) and isinstance(answer.value, str):
            yield lambda answer=answer: setattr(answer, "value", f"not {answer.value}")


def mutants(name):
    """The function with one change each, as code."""
    source = textwrap.dedent(inspect.getsource(getattr(verdicts, name)))
    at = 0
    while True:
        tree = ast.parse(source)
        todo = [change for node in ast.walk(tree) for change in changes(node)]
        if at == len(todo):
            return
        todo[at]()
        at += 1
        yield compile(ast.fix_missing_locations(tree), name, "exec"), ast.unparse(tree)


@pytest.mark.parametrize("name", DECISION)
def test_each_branch_of_the_decision_has_a_case_that_turns_with_it(name, monkeypatch):
    expected, count = [case[-1] for case in CASES], 0
    for code, text in mutants(name):
        namespace = dict(vars(verdicts))
        exec(code, namespace)  # our own function with one operator changed
        with monkeypatch.context() as patch:
            patch.setattr(verdicts, name, namespace[name])
            outcome = decide()
        assert outcome != expected, f"no case notices this:\n{text}"
        count += 1
    assert count >= 2


# Thresholds: whole judgements that stand near each of them


def near_strict(label, p):
    """An effect with this paired p after correction for Table 1, and a d_av that is far above large."""
    from scipy import stats

    t = stats.t.isf(p / 12 / 2, 9)
    wave = np.linspace(-1, 1, 10)
    changes = 0.1 * (1 + wave / wave.std(ddof=1) * np.sqrt(10) / t)
    return Effect(label, (0.4,) * 5 + (0.4001,) * 5, tuple(0.4 + changes), 200, (), SEEDS)


def of_size(label, d_av):
    """An effect without spread in its differences, and with this d_av."""
    plain = np.linspace(0.3, 0.5, 10)
    return Effect(label, tuple(plain), tuple(plain + d_av * plain.std(ddof=1)), 200, (), SEEDS)


def all_cells(one):
    rest = [effect(label, 20, 30) for label in claim("c35").needs[1:]]
    return ("c35", [one(claim("c35").needs[0]), *rest])


def plain_at(share):
    """The paper's gain at a Plain that is this share of the paper's 0.361."""
    changes = 0.254 * (1 + 0.05 * np.cos(np.arange(10)))
    plain = 0.361 * share
    return Effect(VIT, (plain,) * 10, tuple(plain * (1 + changes)), 200, (), SEEDS)


JUDGED = {
    "level: hardly clear of 0": ("c02", [effect("table1/cnn/1", -30, -1)]),
    "level: hardly not": ("c02", [effect("table1/cnn/1", -30, 1)]),
    "band: ends inside": ("c01", [effect(VIT, 13.5, 37)]),
    "band: its low end": ("c01", [effect(VIT, 12, 15)]),
    "band: its high end": ("c01", [effect(VIT, 30, 39)]),
    "band: below its high end": ("c01", [effect(VIT, 30, 37)]),
    "size: just excluded": ("c01", [effect(VIT, -5, 12)]),
    "size: just not": ("c01", [effect(VIT, -5, 13.5)]),
    "percent: just within": ("c01", [effect(VIT, -0.95, 0.95)]),
    "percent: just not": ("c01", [effect(VIT, -1.05, 1.05)]),
    "value: just within": ("c07", [quantity("table2/vit/average", -0.0095, 0.0095)]),
    "value: just not": ("c07", [quantity("table2/vit/average", -0.0105, 0.0105)]),
    "strict level: just below": all_cells(lambda label: near_strict(label, 0.00095)),
    "strict level: just above": all_cells(lambda label: near_strict(label, 0.00105)),
    "large: just": all_cells(lambda label: of_size(label, 0.82)),
    "large: just not": all_cells(lambda label: of_size(label, 0.78)),
    "seeds: enough": ("c01", [effect(VIT, 20, 30)]),
    "seeds: one short": ("c01", [effect(VIT, 20, 30, seeds=SEEDS[:9])]),
    "plain: near": ("c01", [plain_at(0.905)]),
    "plain: far": ("c01", [plain_at(0.895)]),
}


def told(case):
    name, evidence = JUDGED[case]
    found = judge(claim(name), {"primary": {one.label: one for one in evidence}})
    return found.verdict, found.preliminary, "Our Plain is" in found.sentence


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Limits)])
@pytest.mark.parametrize("factor", [0.9, 1.1], ids=["lower", "higher"])
def test_each_threshold_has_a_judgement_that_turns_with_it(field, factor, monkeypatch):
    value = getattr(LIMITS, field)
    moved = type(value)(value + (1 if factor > 1 else -1)) if isinstance(value, int) else value * factor
    if field == "level":  # an interval of 10 seeds hardly knows 4.5% from 5%
        moved = 0.1 if factor > 1 else 0.02
    before = {case: told(case) for case in JUDGED}
    monkeypatch.setattr(verdicts, "LIMITS", dataclasses.replace(LIMITS, **{field: moved}))
    assert {case: told(case) for case in JUDGED} != before, f"no judgement notices {field} = {moved}"


def test_the_judgements_near_the_thresholds():
    assert [told(case)[0] for case in JUDGED] == [
        "Reproduced", "Inconclusive", "Reproduced", RIGHT, RIGHT, "Reproduced", EXCLUDED, "Inconclusive", "No effect",
        EXCLUDED, "No effect", EXCLUDED, "Reproduced", "Inconclusive", "Reproduced", "Contradicted", "Reproduced",
        "Not yet run", "Reproduced", "Reproduced",
    ]  # fmt: skip


# What stands beside a verdict


@pytest.mark.parametrize("estimate", [8, 45])
def test_an_estimate_outside_the_band_is_not_reproduced_by_noise(estimate):
    found = [
        judge(claim("c01"), {"primary": {VIT: effect(VIT, estimate - reach, estimate + reach)}}).verdict
        for reach in (1, 5, 7.9, 20, 60)
    ]
    assert "Reproduced" not in found
    assert found[-1] == "Inconclusive"


def test_cells_of_the_same_runs_cannot_differ_and_the_papers_own_settings_stand_beside():
    needs = claim("c03").needs
    one = dataclasses.replace(effect(needs[0], -5, 12), spec_ids=("a", "b"))
    same = {label: dataclasses.replace(one, label=label) for label in needs}
    own = {label: effect(label, *ends) for label, ends in (("table1/vit/1", (-1, 1)), (VIT, (20, 30)))}
    found = judge(claim("c03"), {"primary": {**same, **own}})
    assert (found.verdict, found.effect, found.low) == ("Cannot differ", None, None)
    assert found.sentence.startswith("Cannot differ: with one live branch the trained network does not depend on N")
    assert "At the paper's own settings for each N" in found.sentence
    assert "Reproduced: +25.0 points (10 seeds" in found.sentence
    short = {**own, VIT: dataclasses.replace(own[VIT], epochs=100)}
    assert "own settings" not in judge(claim("c03"), {"primary": {**same, **short}}).sentence
    varied = {label: dataclasses.replace(numbers, spec_ids=(label,)) for label, numbers in same.items()}
    assert judge(claim("c03"), {"primary": varied}).verdict == "No effect"  # equal by their numbers alone
    assert judge(claim("c03"), {"primary": same, "all": varied}, alternates=("all",)).verdict == "Cannot differ"
    whole, *steps, anchor = found.parts
    assert {part.ruling for part in (whole, *steps)} == {"Cannot differ"}
    assert anchor.ruling == "Inconclusive"


@pytest.mark.parametrize(("low", "high", "at_20"), [(-9, -2, "Contradicted"), (-0.5, 0.5, "No effect")])
def test_what_cannot_differ_is_said_of_the_claim_whatever_its_other_parts_are(low, high, at_20):
    needs = claim("c03").needs
    one = dataclasses.replace(effect(needs[0], low, high), spec_ids=("a", "b"))
    found = judge(claim("c03"), {"primary": {label: dataclasses.replace(one, label=label) for label in needs}})
    assert (found.verdict, found.parts[-1].ruling) == ("Cannot differ", at_20)


def test_one_surface_cannot_differ_from_itself():
    (label,) = claim("c18").needs
    measured = Effect(label, (0.1, 0.2) * 5, (0.1, 0.2) * 5, 0, ("a",), tuple(range(10)))
    assert judge(claim("c18"), {"primary": {label: measured}}).verdict == "No effect"  # equal by its numbers alone
    found = judge(
        claim("c18"),
        {
            "primary": {label: dataclasses.replace(measured, same=True)},
            "instruments": {label: effect(label, -62, -40)},
        },
        alternates=("instruments",),
    )
    assert (found.verdict, found.effect, found.low) == ("Cannot differ", None, None)
    assert found.sentence.startswith("Cannot differ: branches do not enter the main loss")
    assert "Under instruments (not corrected for the number of readings): Right direction" in found.sentence


def test_two_cells_of_which_one_is_one_measurement_can_differ():
    early, late = (dataclasses.replace(effect(label, 1, 2), same=i == 0) for i, label in enumerate(claim("c27").needs))
    assert judge(claim("c27"), {"primary": {one.label: one for one in (early, late)}}).verdict != "Cannot differ"


@pytest.mark.parametrize(("name", "arch", "final"), [("c13", "cnn", (-80, -60)), ("c15", "vit", (25, 35))])
def test_convergence_is_also_told_over_all_epochs(name, arch, final):
    parts = [effect(f"table3/{arch}/convergence", -10, 10), effect(f"table3/{arch}/final", *final)]
    whole = effect(f"convergence/{arch}", -50, 45)
    found = judge(claim(name), {"primary": {one.label: one for one in (*parts, whole)}})
    assert found.verdict == EXCLUDED
    assert "Over all 200 epochs instead of the first 100: Inconclusive: -2.5%" in found.sentence
    assert epochs_wanted(f"convergence/{arch}") == 200


def test_the_mean_of_the_last_20_epochs_stands_beside_and_changes_no_verdict():
    noisy, clear = effect(VIT, -5, 20), effect(VIT, 20, 30)
    evidence = {"primary": {VIT: noisy}, "last20": {VIT: clear}}
    found = judge(claim("c01"), evidence, alternates=("best",), later=LATER)
    assert (found.verdict, found.reading) == ("Inconclusive", "primary")
    assert "By the mean of the last 20 epochs (declared on 2026-11-16, after rows were seen): Reproduced: +25.0%" in (
        found.sentence
    )
    without = judge(claim("c01"), {"primary": {VIT: noisy}}, later=LATER).sentence
    assert "declared on" not in without  # a reading without rows is not told
    needs = claim("c35").needs
    others = {"primary": {label: effect(label, 20, 30) for label in needs}}
    others["last20"] = others["primary"]
    assert "last 20" not in judge(claim("c35"), others, later=LATER).sentence  # declared for four claims alone
    assert [reading.claims for reading in LATER] == [("c01", "c02", "c06", "c30"), ("c01", "c02", "c06")]


def test_the_ordinary_reading_stands_beside_and_changes_no_verdict():
    evidence = {"primary": {VIT: effect(VIT, -5, 20)}, "ordinary": {VIT: effect(VIT, 20, 30)}}
    found = judge(claim("c01"), evidence, alternates=("best",), later=LATER)
    assert (found.verdict, found.reading) == ("Inconclusive", "primary")
    assert "By the cosine schedule, flips and shifts (declared on 2026-11-16, after rows were seen): Reproduced" in (
        found.sentence
    )


def test_a_plain_far_from_the_papers_is_told_with_the_verdict():
    cells = {label: effect(label, 3, 6) for label in claim("c28").needs}  # Plain near 0.4, the paper's far below
    sentence = judge(claim("c28"), {"primary": cells}).sentence
    assert "Our Plain is 55 to 151% above the paper's there." in sentence
    both = {label: dataclasses.replace(one, plain=(0.18,) * 10) for label, one in cells.items()}
    assert "Our Plain is 31% below to 13% above the" in judge(claim("c28"), {"primary": both}).sentence
    some = {label: dataclasses.replace(one, plain=(0.2131,) * 10) for label, one in cells.items()}  # one is the paper's
    assert "Our Plain is 18% below to 34% above the" in judge(claim("c28"), {"primary": some}).sentence
    assert "Our Plain" not in judge(claim("c01"), {"primary": {VIT: plain_at(1.0)}}).sentence
    far = plain_at(0.5)
    nine = dataclasses.replace(far, plain=far.plain[:9], asymmetric=far.asymmetric[:9], seeds=far.seeds[:9])
    assert "Our Plain" not in judge(claim("c01"), {"primary": {VIT: nine}}).sentence  # too few rows to tell
