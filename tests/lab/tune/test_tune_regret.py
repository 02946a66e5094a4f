"""benchmarks/tune.py: regret by hand, what an advisor may see, cases of stored rows, and the table in docs/tune.md."""

import dataclasses
import random
import re
import sys
from pathlib import Path

import pytest

from asymtrain.errors import UsageError
from asymtrain.lab.candidates import Candidate
from asymtrain.lab.report.export import as_markdown
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.tune import RULE, Question, replay
from asymtrain.lab.tune.planning import CONFIRMATION_SEED, RACE_SEED
from invented_runs import invented_epoch

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import tune as benchmark
from tune_regret import (
    ADVISORS,
    LITTLE_TIME,
    Advice,
    Case,
    advisors_for,
    always_none,
    best_elsewhere,
    examine,
    family_interval,
    none_for_convolutions,
    plan_of,
    relative,
    score_all,
    score_table,
    short_pairs,
    simulated_tune,
)

ROOT = Path(__file__).parents[3]
GOOD, BAD, OTHER = Candidate("softmax", alpha=1.0), Candidate(alpha=1.0), Candidate("softmax", alpha=0.1)
EPOCHS = 30


def curves(final, seeds, noise=0.0, early=None):
    """Accuracies that go from `early` in a straight line to `final`."""
    drawn, start = random.Random(f"{final} {early}"), final if early is None else early
    line = [start + (final - start) * epoch / EPOCHS for epoch in range(1, EPOCHS + 1)]
    return tuple(tuple(accuracy + drawn.gauss(0, noise) for accuracy in line) for _ in range(seeds))


def case(name, family, finals, *, seeds=10, noise=0.0, early=None, **fields):
    """Long rows whose first epochs are short rows; `finals` and `early` are accuracies, None is Plain's key."""
    long = {
        candidate: curves(final, seeds, noise=noise, early=(early or finals)[candidate])
        for candidate, final in finals.items()
    }
    base = RunSpec(epochs=EPOCHS, **fields)
    return Case("paper", name, family, base, 4, long, long)


def test_regret_by_hand():
    cases = [
        case("a", "mlp", {None: 0.50, GOOD: 0.53, BAD: 0.48}),  # best: GOOD, +3 points
        case("b", "mlp", {None: 0.50, GOOD: 0.505, BAD: 0.40}),  # +0.5
        case("c", "plain convolutions", {None: 0.60, GOOD: 0.56}),  # best: none
    ]
    none, always = score_all(cases, {"none": always_none, "good": lambda case, scored, others: Advice(GOOD)})
    # Families count alike: that of two cases lost (3 + 0.5) / 2 points, the other nothing.
    assert none.lost == pytest.approx((1.75 + 0) / 2)
    assert none.lost_ends == pytest.approx((0, 1.75))
    assert (none.gained, none.ahead) == (0, 0)
    assert (always.lost, always.gained) == (pytest.approx((0 + 4) / 2), pytest.approx((1.75 - 4) / 2))
    assert always.ahead == pytest.approx(-1.125)
    assert always.ahead_ends == pytest.approx((-4, 1.75))
    # None is right where no candidate gains a point: in one of the first family's two cases, and in the other's.
    assert (none.committed, none.right) == (1, pytest.approx((0.5 + 1) / 2))
    assert always.right == pytest.approx((1 + 0) / 2)
    assert (always.attached, always.attached_right, none.attached) == (30, 20, 0)
    assert always.lost_by_family == pytest.approx({"mlp": 0, "plain convolutions": 4})
    alone = score_all(cases[:1], {"none": always_none})[0]
    assert (alone.lost, alone.lost_ends) == (pytest.approx(3), None)
    silent = score_all(cases, {"silent": lambda case, scored, others: Advice(None, committed=False, trainings=2.0)})[0]
    assert (silent.committed, silent.right, silent.trainings) == (0, None, 2)


def test_seeds_that_raced_or_confirmed_do_not_say_whether_advice_was_right():
    made = case("a", "mlp", {None: 0.5, GOOD: 0.53})
    # Above Plain over all ten seeds, but not on 0 and 9, the two that are unseen when 0 is scored.
    worse = tuple((0.49,) * EPOCHS if seed in (0, 9) else curve for seed, curve in enumerate(made.long[GOOD]))
    made = dataclasses.replace(made, long={**made.long, GOOD: worse})
    assert made.gain(GOOD) > 0
    assert made.unseen_seeds(0) == [0, 9]
    attached = examine(lambda case, scored, others: Advice(GOOD), made, [made])
    assert (attached.attached, attached.attached_right) == (10, 9)
    assert examine(always_none, made, [made]).right == pytest.approx(0.1)


def test_the_interval_over_families_is_that_of_drawing_them_again():
    # Of two families a draw is both of them or one twice: the ends are the two.
    assert family_interval([1.0, 3.0]) == (1, 3)
    # One family of five is drawn X times, X binomial with 1/5: P(X <= 2) = 0.942, P(X <= 3) = 0.993.
    assert family_interval([0.0, 0.0, 0.0, 0.0, 5.0]) == (0, 3)


def test_advisors_choose_by_what_they_see():
    known = [
        case("a", "mlp", {None: 0.5, GOOD: 0.53, BAD: 0.49}),
        case("b", "transformer", {None: 0.5, OTHER: 0.49, BAD: 0.52}),
        case("c", "plain convolutions", {None: 0.5, GOOD: 0.4, BAD: 0.3}, early={None: 0.4, GOOD: 0.39, BAD: 0.5}),
    ]
    mlp, vit, cnn = known
    # OTHER differs from GOOD in alpha alone. GOOD: (-1 - 10) / 2, BAD: (2 - 20) / 2.
    assert relative(GOOD, vit) == OTHER
    assert relative(Candidate("sigmoid", "prior"), vit) is None
    assert best_elsewhere(mlp, 0, [vit, cnn]).candidate is None
    assert best_elsewhere(mlp, 0, [vit]).candidate == BAD
    assert best_elsewhere(cnn, 0, [mlp, vit]).candidate == GOOD  # (3 - 1) / 2 against (-1 + 2) / 2
    assert best_elsewhere(mlp, 0, []).candidate is None
    assert none_for_convolutions(cnn, 0, [mlp, vit]).candidate is None
    assert none_for_convolutions(mlp, 0, [vit]).candidate == BAD
    # A short pair sees the beginning, where BAD is ahead.
    advice = short_pairs(1)(cnn, 0, [])
    assert advice == Advice(BAD, trainings=pytest.approx(3 * 3 / EPOCHS))  # two candidates and Plain, 3 epochs each
    assert examine(short_pairs(3), cnn, known).lost == pytest.approx(20)
    # Of equals it takes fewer branches, and before all Plain, as tune does.
    middle = dataclasses.replace(GOOD, layers="middle")
    assert short_pairs(1)(case("d", "mlp", {None: 0.5, GOOD: 0.53, middle: 0.53}), 0, []).candidate == middle
    assert short_pairs(1)(case("e", "mlp", {None: 0.5, GOOD: 0.5, BAD: 0.4}), 0, []).candidate is None


def noisy_cases():
    """A clear gain, nothing clear, a clear loss, a gain that becomes a loss, and twice a Plain at chance."""
    gains = ((0.02, 0.03), (0.008, 0.008), (-0.05, -0.05), (0.04, -0.4), (0.1, 0.1), (-0.1, -0.1))
    for number, (early, final) in enumerate(gains):
        plain, others = 0.25 if number >= 4 else 0.5, -0.04 if number in (2, 5) else 0.0
        ends = {None: (0.0, 0.0), BAD: (-0.02, -0.03), OTHER: (others, others), GOOD: (early, final)}
        first, last = ({candidate: plain + pair[i] for candidate, pair in ends.items()} for i in (0, 1))
        yield case(f"{number}", "mlp", last, noise=0.008, early=first, dataset_options={"classes": 4})


@pytest.mark.parametrize(
    ("name", "own_rows"),
    [*((name, own) for name in ADVISORS for own in (False, True)), *((n, False) for n in LITTLE_TIME)],
)
def test_the_scored_seed_is_never_seen(name, own_rows):
    made = next(noisy_cases())
    if own_rows:
        short = {candidate: tuple(curve[:10] for curve in by_seed[:2]) for candidate, by_seed in made.long.items()}
        made = dataclasses.replace(made, short=short, length=10)
    advisor = advisors_for([made])[name]
    for scored in range(made.seeds):
        changed = {
            candidate: tuple(
                tuple(0.9 - a for a in curve) if seed == scored else curve for seed, curve in enumerate(by_seed)
            )
            for candidate, by_seed in made.long.items()
        }
        other = dataclasses.replace(made, long=changed, short=made.short if own_rows else changed)
        assert advisor(other, scored, []) == advisor(made, scored, [])
        race, confirmation = set(made.race_seeds(scored, 3)), set(made.confirmation_seeds(scored))
        assert scored not in confirmation
        assert own_rows or not ({scored} | race) & confirmation
        assert scored in made.unseen_seeds(scored)
        assert not set(made.unseen_seeds(scored)) & (confirmation | (set() if own_rows else race))


@pytest.mark.parametrize("share", [1.0, 0.5, 0.2])
def test_the_simulation_is_what_tune_does(share):
    """The same rows as runs of a tune, through its own code."""
    verdicts = set()
    for made in noisy_cases():
        scored = int(made.name)
        seeds = {"split": made.race_seeds(scored, 3), "none": made.confirmation_seeds(scored)}
        plan = plan_of(made, share, 3, 5)
        runs = {}
        question = Question(made.base, made.candidates)
        while missing := (race := replay(question, plan, runs)).missing:
            for spec in missing:
                first = RACE_SEED if spec.validation == "split" else CONFIRMATION_SEED
                candidate = Candidate.of(spec) if spec.redundancy else None
                accuracy = made.long[candidate][seeds[spec.validation][spec.seed - first]][spec.epochs - 1]
                epoch = invented_epoch(spec.epochs, accuracy, accuracy, None)
                runs[spec.id] = Run(spec, (epoch._replace(validation_accuracy=accuracy),))
        verdict = race.ruling.verdict
        advice = simulated_tune(share)(made, scored, [])
        assert advice.candidate == (race.winner if verdict == "helps" else None)
        assert advice.committed == race.ruling.is_settled
        spent = sum(run.spec.epochs for run in runs.values()) / EPOCHS
        assert advice.trainings == pytest.approx(spent)
        follow = simulated_tune(share, follow=True)(made, scored, [])
        assert follow.candidate == (race.winner if verdict in ("helps", "likely helps") else None)
        verdicts.add(verdict)
    settled = verdicts - {"inconclusive", "likely helps"}
    assert settled - {"helps"}
    assert verdicts - settled
    assert ("helps" in settled) == (share >= RULE.least_share)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A folder with the kept rows of the practice study alone."""
    folder = tmp_path_factory.mktemp("results")
    for rows in (ROOT / "results").glob("practice-*"):
        (folder / rows.name).symlink_to(rows)
    return folder


@pytest.fixture(scope="module")
def cases(results):
    return benchmark.read_cases(benchmark.read_runs(results))[0]


def test_cases_of_the_practice_study(cases):
    named = {case.name: case for case in cases}
    assert {"mlp-cifar100-ordinary", "vit-cifar100-ordinary"} <= set(named)
    mlp = named["mlp-cifar100-ordinary"]
    assert (mlp.part, mlp.family, mlp.seeds, mlp.length, len(mlp.short[None])) == ("practice", "mlp", 5, 10, 2)
    assert mlp.best == Candidate("softmax", alpha=1.0)
    assert mlp.gain(mlp.best) == pytest.approx(2.73, abs=0.005)  # docs/practice.md
    assert set(mlp.short) == set(mlp.long)
    assert mlp.selection == pytest.approx(22 * 2 * 10 / 30)  # 21 candidates and Plain, two seeds, 10 of 30 epochs
    assert all(len(curve) == 30 for by_seed in mlp.long.values() for curve in by_seed)
    # docs/practice.md: what the other families choose for all models
    elsewhere = {name: best_elsewhere(case, 0, []).candidate for name, case in named.items()}
    assert elsewhere["mlp-cifar100-ordinary"] == Candidate("sigmoid", "prior", 1.0)
    assert elsewhere["cnn-cifar100-ordinary"] == Candidate("sigmoid", "prior", 10.0)
    assert elsewhere["swin-cifar100-ordinary"] == Candidate("softmax", alpha=0.01)
    assert named["cnn-cifar100-ordinary"].gain(Candidate("sigmoid", "prior", 10.0)) == pytest.approx(-2.36, abs=0.005)


def test_rows_that_make_no_case_are_named(results):
    runs = benchmark.read_runs(results)
    finals = [run for run in runs if run.spec.arch == "mlp" and run.spec.test == "every"]
    assert benchmark.read_cases(finals) == ([], {"mlp-cifar100-ordinary": "no short runs of its own"})
    few = [run for run in runs if run.spec.arch == "mlp" and run.spec.seed != 42]
    cases, left_out = benchmark.read_cases(few)
    assert cases == []
    assert list(left_out) == ["mlp-cifar100-ordinary"]
    controls = [
        dataclasses.replace(run, spec=dataclasses.replace(run.spec, branch_labels="random"))
        for run in finals
        if run.spec.redundancy
    ]
    assert benchmark.read_cases(controls) == ([], {})
    with pytest.raises(UsageError, match="exported"):
        benchmark.read_runs(results / "nothing")


def page_block():
    page = (ROOT / "docs/tune.md").read_text()
    return page.partition(benchmark.BEGIN)[2].partition(benchmark.END)[0]


def test_the_page_has_the_scores_of_the_practice_study(cases):
    for table in benchmark.tables(cases):
        assert f"\n{as_markdown(table)}" in page_block()


def test_the_page_quotes_its_tables():
    page = (ROOT / "docs/tune.md").read_text()
    conclusion = page.partition(benchmark.END)[2].partition("\n## ")[0]
    quoted = re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.]*\d)", conclusion)
    known = set(re.findall(r"\d+(?:\.\d+)?", page_block())) | {"0", "100"}  # 0, and the alpha of a candidate
    assert len(quoted) > 10
    assert set(quoted) <= known


def test_the_readme_says_how_often_attach_was_right():
    told = " ".join((ROOT / "README.md").read_text().split())
    cells = re.findall(r"^\| tune \|.*\| (\d+), (\d+) \|", page_block(), re.MULTILINE)
    assert len(cells) == len(benchmark.PARTS)
    for attached, right in cells:
        assert f"{right} of {attached} " in told


@pytest.mark.slow
def test_the_page_has_what_the_command_prints(capsys):
    benchmark.main([])
    assert page_block() == f"\n\n{capsys.readouterr().out}\n"


def test_a_table_names_what_the_others_are_compared_with():
    made = case("a", "mlp", {None: 0.5, GOOD: 0.53}, noise=1e-6)
    table = score_table("t", "T", score_all([made], {"tune": ADVISORS["tune"], "none": always_none}))
    assert table.columns[3].name == "Ahead of tune (points)"
    assert table.texts()[1][:4] == ["none", "3.00", "+0.00", "-3.00"]
    assert table.texts()[0][3] == "—"
