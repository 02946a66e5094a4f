"""How good is the advice of `asymtrain tune`? Its rule and simpler advisors, scored by regret on stored long rows.

    python benchmarks/tune.py                                   # the tables
    python benchmarks/tune.py --cases                           # and each case
    python benchmarks/tune.py --docs docs/tune.md               # the tables into that page

The rows are those of the folders in `--results`: final runs of the practice study with its selection, and runs of the
paper's study. A case whose rows do not allow a simulation is named and left out. `tune_regret.py` has the advisors and
says what is scored.

What is simulated: the rule of `tune`, by its own code, sees accuracies of stored runs in the place of runs of its own.
It has only those candidates to choose from that were trained to the end. In the practice study its race is one rung,
the selection's runs of 10 epochs on two seeds; it is confirmed by final runs of four seeds, and the fifth is scored. In
the paper's study, where the learning rate is constant, the first epochs of a long run are a short run: the race has
three other seeds, cut off, the confirmation five more, and one of the rest is scored. The clock is not simulated.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asymtrain.errors import UsageError
from asymtrain.lab.candidates import Candidate
from asymtrain.lab.data import class_count
from asymtrain.lab.recipes import RECIPES, recipe_fields
from asymtrain.lab.report.export import as_markdown
from asymtrain.lab.report.table import Column, Table, make_rows
from asymtrain.lab.runs import AUXILIARY, DEFAULTS, Run, RunSpec
from asymtrain.lab.store.exchange import MANIFEST, read_export
from asymtrain.lab.studies.practice.protocol import ELSEWHERE, FULL, MODELS, Task, final_specs
from asymtrain.lab.studies.practice.selection import final_arms
from asymtrain.lab.tune import RULE
from tune_regret import (
    ADVISORS,
    Advice,
    Case,
    Curves,
    advisors_for,
    examine,
    family_table,
    score_all,
    score_table,
)

LEAST_EPOCHS = 30  # of a long run
LEAST_SEEDS = RULE.least_seeds
BEGIN, END = "<!-- scores: benchmarks/tune.py -->", "<!-- end of scores -->"
PARTS = {"practice": "The practice study", "paper": "The paper's study"}
# Fields of a short run that belong to its length and to what is measured.
OF_LENGTH = ("epochs", "warmup", "validation", "test")
ROOT = Path(__file__).parents[1]


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--results", type=Path, default=ROOT / "results", help="a folder of exported folders")
    options.add_argument("--cases", action="store_true", help="print each case too")
    options.add_argument("--docs", type=Path, help="a page to put the tables into")
    chosen = options.parse_args(arguments)
    try:
        show(*read_cases(read_runs(chosen.results)), chosen)
    except UsageError as problem:
        raise SystemExit(f"{problem}") from None


def read_runs(results: Path) -> list[Run]:
    """The last attempt of every run in a folder of exports."""
    folders = sorted(path.parent for path in results.glob(f"*/{MANIFEST}"))
    if not folders:
        raise UsageError(f"{results} holds no exported folder: give the repository's results with --results")
    known = {run_id: attempts[-1].run for folder in folders for run_id, attempts in read_export(folder).runs.items()}
    return list(known.values())


def read_cases(runs: Iterable[Run]) -> tuple[list[Case], dict[str, str]]:
    """Cases, practice first, and for what cannot be one, by name, why not."""
    long: dict[tuple[Any, ...], list[Run]] = {}
    short: dict[tuple[Any, ...], list[Run]] = {}
    known = {run.spec.id: run for run in runs}
    for run in known.values():
        spec = run.spec
        if (spec.redundancy and not is_candidate(spec)) or has_own_warmup(spec):  # controls, and tuned baselines
            continue
        if spec.test == "every" and spec.epochs >= LEAST_EPOCHS:
            long.setdefault(setting(spec), []).append(run)
        elif spec.test == "never" and spec.validation == "split":
            short.setdefault(setting(spec, without=OF_LENGTH), []).append(run)
    cases, left_out, chosen = [], {}, chosen_elsewhere(known)
    for shared, members in long.items():
        base = next((run.spec for run in members if run.spec.redundancy), None)
        if base is None or not any(run.spec.redundancy == 0 for run in members):
            continue  # nothing to compare
        trials = short.get(setting(base, without=OF_LENGTH), [])
        made = make_case(base, members, [run for run in trials if run.spec.epochs < base.epochs])
        if isinstance(made, str):
            left_out[name_of(base)] = made
        else:
            cases.append(dataclasses.replace(made, elsewhere=chosen.get(shared)))
    names = [case.name for case in cases]
    cases = [case if names.count(case.name) == 1 else with_number(case) for case in cases]
    models = [model.arch for model in MODELS.values()]
    order = {case.name: (case.part == "paper", *_layer(models, case.base.arch), case.name) for case in cases}
    return sorted(cases, key=lambda case: order[case.name]), left_out


def chosen_elsewhere(known: Mapping[str, Run]) -> dict[tuple[Any, ...], Advice]:
    """The setting that the other families of the practice study choose, by the setting that a case shares."""
    found = {}
    for task in (Task(model, part="fixed") for model in MODELS):
        arms = [arm for arm in final_arms(FULL, task, known) or () if arm.name == ELSEWHERE]
        for spec in final_specs(FULL, task, arms):
            found[setting(spec)] = Advice(Candidate.of(spec) if spec.redundancy else None)
    return found


def with_number(case: Case) -> Case:
    """Named apart from another that differs in something without a word."""
    number = dataclasses.replace(case.base.plain(), seed=0).id[:6]
    return dataclasses.replace(case, name=f"{case.name}-{number}")


def _layer(models: Sequence[str], arch: str) -> tuple[int, str]:
    return (models.index(arch) if arch in models else len(models), arch)


def is_candidate(spec: RunSpec) -> bool:
    """Are the branches those of a `Candidate`, and no control?"""
    free = {*Candidate().fields(), "cosine_every", "at", "pool", "layout"}
    return spec.alpha > 0 and all(getattr(spec, name) == DEFAULTS[name] for name in AUXILIARY if name not in free)


def setting(spec: RunSpec, without: Sequence[str] = ()) -> tuple[Any, ...]:
    """What Plain and all candidates of a case share."""
    return tuple(getattr(spec, name) for name in DEFAULTS if name not in (*AUXILIARY, "seed", *without))


def make_case(base: RunSpec, long: Sequence[Run], trials: Sequence[Run]) -> Case | str:
    """A case, or why it is none.

    With a constant rate and alpha, and without warm-up, the first epochs of a run are a shorter run. With a schedule
    they are not, and there must be short runs with whole schedules.
    """
    recipe = recipe_of(base)
    constant = base.schedule == "constant" and base.warmup == 0
    if constant:
        long = [run for run in long if run.spec.alpha_schedule == "constant"]
    tested = curves_of(long, "test_accuracy", LEAST_SEEDS)
    if constant:
        measure = "validation_accuracy" if base.validation == "split" else "test_accuracy"
        held_out, length = curves_of(long, measure, LEAST_SEEDS), None
        if tested and len(tested[None]) < 1 + RULE.race_seeds + RULE.seeds:
            return "too few seeds for a race, a confirmation and a score"
    else:
        length = max((run.spec.epochs for run in trials), default=0)
        held_out = curves_of([run for run in trials if run.spec.epochs == length], "validation_accuracy", 2)
        if None not in held_out:
            return "no short runs of its own"
        tested = {candidate: curves for candidate, curves in tested.items() if candidate in held_out}
    if len(tested) < 2:
        return "no candidate with short and long rows over enough seeds"
    part = "paper" if recipe == "paper" else "practice"
    family = next((model.family for model in MODELS.values() if model.arch == base.arch), base.arch)
    shown = {candidate: held_out[candidate] for candidate in tested}
    selection = 0.0 if constant else sum(run.spec.epochs for run in trials) / base.epochs
    return Case(part, name_of(base), family, base, classes_of(base), tested, shown, length, selection=selection)


def classes_of(spec: RunSpec) -> int:
    classes = class_count(spec.dataset, dict(spec.dataset_options))
    assert classes is not None, f"{spec.dataset} does not tell its classes"
    return classes


def curves_of(runs: Iterable[Run], measure: str, seeds: int) -> Curves:
    """Accuracy by candidate, seed and epoch, over the seeds that Plain and all candidates share.

    A candidate of fewer seeds is left out. A run that diverged has chance accuracy from there on.
    """
    by_seed: dict[Candidate | None, dict[int, tuple[float, ...]]] = {}
    for run in runs:
        values = [getattr(epoch, measure) for epoch in run.history]
        if run.outcome == "diverged":
            values += [1 / classes_of(run.spec)] * (run.spec.epochs - len(values))
        if values and None not in values:
            candidate = Candidate.of(run.spec) if run.spec.redundancy else None
            by_seed.setdefault(candidate, {})[run.spec.seed] = tuple(values)
    enough = {candidate: curves for candidate, curves in by_seed.items() if len(curves) >= seeds}
    shared = sorted(set.intersection(*map(set, enough.values()))) if enough else []
    if None not in enough or len(shared) < seeds:
        return {}
    # Plain first, then by label: whatever the order of the rows.
    order = sorted(enough, key=lambda candidate: "" if candidate is None else candidate.label)
    return {candidate: tuple(enough[candidate][seed] for seed in shared) for candidate in order}


def recipe_of(spec: RunSpec) -> str:
    """The recipe by what every run of it has; rates, decay, batch and warm-up may be one's own."""
    own = ("learning_rate", "weight_decay", "batch", "warmup")
    for name, fields in RECIPES.items():
        if all(getattr(spec, field) == value for field, value in fields.items() if field not in own):
            return name
    return "own"


def has_own_warmup(spec: RunSpec) -> bool:
    recipe = recipe_of(spec)
    return recipe in RECIPES and spec.warmup != recipe_fields(recipe, spec.epochs, {})["warmup"]


def name_of(spec: RunSpec) -> str:
    """A case for the command line: `mlp-cifar100-ordinary`."""
    model = next((name for name, model in MODELS.items() if model.arch == spec.arch), spec.arch)
    recipe = recipe_of(spec)
    words = [model, spec.dataset, recipe]
    words += [f"{spec.per_class}-images"] if spec.per_class else []
    words += [f"{100 * spec.label_noise:g}%-flipped"] if spec.label_noise else []
    if recipe == "paper":
        words += [f"decay-{spec.weight_decay:g}", *(["split"] if spec.validation == "split" else [])]
    return "-".join(words)


def show(cases: Sequence[Case], left_out: Mapping[str, str], chosen: argparse.Namespace) -> None:
    text = "\n".join(map(as_markdown, tables(cases)))
    print("\n".join([text, *([as_markdown(case_table(cases))] if chosen.cases else [])]), end="")
    for name, reason in left_out.items():
        print(f"left out: {name}, {reason}", file=sys.stderr)
    if chosen.docs is not None:
        chosen.docs.write_text(with_scores(chosen.docs.read_text(), text))


def with_scores(page: str, text: str) -> str:
    """The page with this text between its marked lines."""
    before, first, rest = page.partition(BEGIN)
    _, last, after = rest.partition(END)
    if not (first and last):
        raise UsageError(f"the page has no place for the scores: add the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def tables(cases: Sequence[Case]) -> Iterator[Table]:
    """For each part the scores, and what was lost by family."""
    for part, title in PARTS.items():
        every = [case for case in cases if case.part == part]
        if every:
            scores = score_all(every, advisors_for(every))
            yield score_table(part, f"{title}: {sizes(every)}", scores, note_on(every))
            yield family_table(f"{part}-families", f"{title}: lost against the best, by family", scores)


def note_on(cases: Sequence[Case]) -> str:
    """On how many seeds advice was right or not, and what the column of trainings leaves out."""
    counts = [len(case.unseen_seeds(0)) for case in cases]
    unseen = " to ".join(str(count) for count in dict.fromkeys((min(counts), max(counts))))
    told = f"Right: by the mean over the seeds that neither raced nor confirmed, {unseen} for each advice."
    if not any(case.selection for case in cases):
        return told
    spent = sum(case.selection for case in cases) / len(cases)
    return (
        f"{told} Trainings: without those of the short runs that selected the candidates, {spent:.1f} for each model, "
        "which are also the runs of the race and of the short pairs."
    )


def sizes(cases: Sequence[Case]) -> str:
    families = list(dict.fromkeys(case.family for case in cases))
    counted = f"{len(cases)} case{'s'[: len(cases) != 1]}"
    return f"{counted} of {len(families)} famil{'ies' if len(families) != 1 else 'y'} ({', '.join(families)})"


def case_table(cases: Sequence[Case]) -> Table:
    columns = (
        Column("Case"),
        Column("Family"),
        Column("Seeds", "count"),
        Column("Candidates", "count"),
        Column("Best"),
        Column("Its gain (points)", "number", digits=2, signed=True),
        Column("Lost by tune (points)", "number", digits=2),
        Column("Committed", "share", digits=0),
    )
    rows = []
    for case in cases:
        result = examine(ADVISORS["tune"], case, cases)
        best = case.best.label if case.best else "none"
        rows.append(
            (case.name, case.family, case.seeds, len(case.candidates), best, case.gain(case.best), result.lost,
             result.committed)
        )  # fmt: skip
    return Table("cases", "Cases", columns, make_rows(rows))


if __name__ == "__main__":
    main()
