"""The results of the practice study as tables, the forest plot, sentences, and one page."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asymtrain.lab.instruments.curves import curve_of
from asymtrain.lab.report.figure import Bar, Bars, Figure, Headline, Lines, Page
from asymtrain.lab.report.summary import accuracy_cell
from asymtrain.lab.report.table import Cell, Column, Table, interval, make_rows, table_json, value_text
from asymtrain.lab.statistics import LEVEL, VERDICTS, colour_of
from asymtrain.lab.studies.frame import Left
from asymtrain.lab.studies.practice.analysis import MARGIN, ArmEffect, Reached, Results, StepCost, is_recommended
from asymtrain.lab.studies.practice.protocol import (
    ALPHAS,
    CONFIGURATIONS,
    ELSEWHERE,
    NONE,
    REPORTED,
    SELECTED,
    TITLES,
    TUNED,
    TUNED_BRANCHES,
    VARIATIONS,
    Extent,
    Part,
)
from asymtrain.lab.studies.practice.selection import ArmTrial, Selection, mean_ranks
from asymtrain.lab.studies.study import Block
from asymtrain.lab.texts import counted

POINTS = Column("Difference (points)", "number", digits=2, signed=True, short="Points")
PARTS: Mapping[Part, str] = {
    "tuned": "A tuned baseline",
    "signal": "What carries the effect",
    "length": "100 epochs of the recipe strong",
    "published": "Published baselines: branches against none",
    "seeds": "More seeds",
    "fixed": "One setting for all models",
    "transfer": "Other data",
    "strong": "The recipe strong",
    "controls": "Controls",
}
RULE = (
    f"An arm helps or hurts where p, corrected over the rows of its family by Holm's method, is below {LEVEL:g}; else "
    f"its interval shows no meaningful difference where it lies within {MARGIN:g} points on both sides of 0, and the "
    f"arm is harmless where only its lower end does; otherwise it is inconclusive."
)

_TUNED_NOTE = (
    f"{TUNED_BRANCHES}: the recipe that suits the baseline best, with branches against without. {TUNED}: that recipe "
    f"against the unchanged one, both without branches. {SELECTED}: branches under the unchanged recipe, against the "
    f"{TUNED}."
)


def judged_page(results: Results) -> Page:
    return Page(
        "Branches in practice",
        _lead(results),
        tables(results),
        document(results),
        figures(results),
        sentences(results),
        _headline(results),
    )


def _headline(results: Results) -> Headline | None:
    """How many models were helped."""
    counts = Counter(effect.verdict for effect in results.selected)
    helped = f"Branches helped {counts['helps']} of {counts.total()} models"
    return ("good" if counts["helps"] else "soft", helped) if counts else None


def _lead(results: Results) -> str:
    """The other verdicts and the largest gain, what the numbers are, and whether there is a preset for all models."""
    if not results.selected:
        return "No model is finished yet."
    counts = Counter(effect.verdict for effect in results.selected)
    best = _by_gain(results)[0]
    ends = interval(best.row["points_low"], best.row["points_high"])
    of = f"95% interval {value_text(ends, POINTS)}, " if ends else ""
    others = ", ".join(f"{verdict} {counts[verdict]}" for verdict in VERDICTS if counts[verdict])
    largest = (
        f"Verdicts: {others}. Largest gain: {best.task.title}, {value_text(best.row['points'], POINTS)} points "
        f"({of}{counted(best.row['n'], 'seed')}) with {best.arm.label}."
    )
    task = results.selected[0].task
    data = results.study.data[task.data]
    what = (
        f"Test accuracy after {data.epochs} epochs of {data.title} with the recipe {task.recipe}, as the difference to "
        "Plain, the baseline: the same model, seed and batches without branches. Validation accuracy selected the "
        "configuration of each model."
    )
    return "\n\n".join([largest, what, *preset_sentence(results)])


def document(results: Results) -> dict[str, Any]:
    """Everything as JSON values."""
    return {
        "sentences": sentences(results),
        "effects": [_effect_json(effect) for effect in results.selected],
        "parts": {part: [_effect_json(effect) for effect in results.parts[part]] for part in PARTS},
        "tables": [table_json(table) for table in tables(results)],
    }


def sentences(results: Results) -> list[str]:
    """One for each finished model of the main table, and one on a preset."""
    return [", ".join(_words(effect, results)) for effect in results.selected] + preset_sentence(results)


def preset_sentence(results: Results) -> list[str]:
    """Whether one setting suits all models, and the evidence for it; empty while models are missing."""
    recommended = is_recommended(results)
    if recommended is None:
        return []
    verdicts = Counter(effect.verdict for effect in results.parts["fixed"] if effect.arm.name == ELSEWHERE)
    counts = ", ".join(f"{verdict} {verdicts[verdict]}" for verdict in VERDICTS if verdicts[verdict])
    why = f"Verdicts on the one that other families choose: {counts}"
    if results.plain:
        why = f"Where it is {' or '.join(results.plain)}, Plain has the best mean rank"
    return [f"One setting for all models: {'' if recommended else 'none '}can be recommended. {why}."]


def _by_gain(results: Results) -> list[ArmEffect]:
    """The rows of the main table, largest gain first, which is also the order of the figure."""
    return sorted(results.selected, key=lambda effect: -effect.row["points"])


def _words(effect: ArmEffect, results: Results) -> tuple[str, str]:
    """The verdict on a model, and the evidence for it."""
    row = effect.row
    ends = "" if row["points_low"] is None else f"95% interval {row['points_low']:+.1f} to {row['points_high']:+.1f}, "
    text = f"{row['points']:+.1f} points ({ends}{counted(row['n'], 'seed')}) with {effect.arm.label}."
    more = " Validation accuracy was no better than without branches." if _is_no_better(effect, results) else ""
    return f"{effect.task.title}: {effect.verdict}", text + more


def _is_no_better(effect: ArmEffect, results: Results) -> bool:
    """Did validation select branches that were no better there than Plain?"""
    selection = next(selection for selection in results.selections if selection.task == effect.task)
    return selection.first[0].mean >= selection.best(selection.selected).mean


def tables(results: Results) -> list[Table]:
    """The main table and the tables behind it; a table without rows is left out."""
    no_better = ", ".join(effect.task.title for effect in results.selected if _is_no_better(effect, results))
    note = f"{RULE} Validation accuracy was no better than without branches: {no_better}." if no_better else RULE
    notes = {"fixed": " ".join(preset_sentence(results)), "tuned": _TUNED_NOTE}
    configurations = [effect for effects in results.configurations.values() for effect in effects]
    all_tables = [
        published_table(results.reached),
        effects_table("selected", "The configuration that validation selected", results.selected, results.study, note),
        target_table(results.selected),
        cost_table(results.selected),
        calibration_table(results.selected),
        *(
            effects_table(part, title, results.parts[part], results.study, notes.get(part, ""))
            for part, title in PARTS.items()
        ),
        effects_table(
            "configurations", "The best configuration of each objective", configurations, results.study, detail=True
        ),
        selection_table(results.selections),
        ranks_table(results.selections),
        missing_table(results.unfinished),
    ]
    return [table for table in all_tables if table.rows]


def published_table(reached: Sequence[Reached]) -> Table:
    """What networks of published tables reach, beside what is reported for them and for changed architectures."""
    points = {"kind": "number", "digits": 2, "signed": True}
    columns = (
        Column("Network"),
        Column("Branches"),
        Column("Last epoch", "share", digits=2),
        Column("95% interval", "share", digits=2),
        Column("Best epoch", "share", digits=2),
        Column("n", "count"),
        Column("Published", "share", digits=2),
        Column("Last less published (points)", **points),  # type: ignore[arg-type]
        Column("Changed architecture", "share", digits=2),
        Column("Last less changed (points)", **points),  # type: ignore[arg-type]
    )
    rows = []
    for own in reached:
        table = REPORTED[own.task.model]
        last, ends = Cell(own.last.mean, own.spec_ids), interval(own.last.low, own.last.high)
        less = [100 * ((own.last.mean or 0.0) - other) for other in (table.accuracy, table.changed)]
        compared = table.accuracy, less[0], table.changed, less[1]
        rows.append((own.task.title, own.arm.label, last, ends, own.best, own.last.n, *compared))
    changes = dict.fromkeys(f"{own.task.title}: {REPORTED[own.task.model].change}" for own in reached)
    note = (
        "Means over seeds, of test accuracy on CIFAR-100. A published number may be that of the best epoch. A changed "
        f"architecture was trained by the same script as its baseline. {'; '.join(changes)}."
    )
    return Table("reached", "Networks of published tables", columns, make_rows(rows), note)


def effects_table(
    name: str, title: str, effects: Sequence[ArmEffect], study: Extent, note: str = "", *, detail: bool = False
) -> Table:
    """One row for each effect; data and arm are named if the rows differ in them."""
    named = {"Data": [study.data[effect.task.data].title for effect in effects]}
    # The words for the branches name their objective.
    if any(effect.arm.name not in CONFIGURATIONS for effect in effects):
        named["Arm"] = [effect.arm.title for effect in effects]
    varied = {heading: words for heading, words in named.items() if len(set(words)) > 1}
    columns = (
        Column("Model"),
        *map(Column, varied),
        Column("Branches"),
        Column("Plain" if _against_plain(effects) else "Without it", "number"),
        Column("With it", "number"),
        POINTS,
        Column("95% interval", "number", digits=2, signed=True),
        Column("Verdict"),
        Column("p (Holm)", "p"),
        Column("n", "count"),
    )
    rows = make_rows(
        (
            effect.task.title,
            *(words[i] for words in varied.values()),
            effect.arm.label,
            *(accuracy_cell(effect.row, side) for side in ("plain", "asymmetric")),
            Cell(effect.row["points"], effect.spec_ids),
            interval(effect.row["points_low"], effect.row["points_high"]),
            Cell(effect.verdict, colour=colour_of(effect.verdict)),
            effect.p_holm,
            effect.row["n"],
        )
        for i, effect in enumerate(effects)
    )
    return Table(name, title, columns, rows, note, detail)


def target_table(effects: Sequence[ArmEffect]) -> Table:
    """Epochs until a run reaches the final test accuracy of its seed's Plain run; and time, if steps were timed."""
    modes = list(dict.fromkeys(cost.mode for effect in effects for cost in effect.step_costs))
    columns = (
        Column("Model"),
        Column("Plain (epochs)", "number", digits=1),
        Column("With branches (epochs)", "number", digits=1),
        *(Column(f"Time, {mode}", "number", unit="x", digits=2) for mode in modes),
        Column("Seeds that reach it", "number"),
    )
    rows = []
    for effect in effects:
        times = {cost.mode: effect.relative_time(cost) for cost in effect.step_costs}
        seeds = f"{len(effect.reached)} of {len(effect.epochs)}"
        rows.append((effect.task.title, *effect.mean_epochs, *map(times.get, modes), seeds))
    note = (
        "Of each seed the first epoch with the test accuracy that Plain ends with; both means are over the seeds whose "
        "run with branches reaches it."
    )
    if modes:
        note += (
            " Time is that of training with branches until then, relative to Plain's: the epochs, times what a step "
            "takes. Below 1 it is there sooner. Loading data and testing are not counted."
        )
    title = "Epochs and time to Plain's final accuracy" if modes else "Epochs to Plain's final accuracy"
    return Table("target", title, columns, make_rows(rows), note)


def cost_table(effects: Sequence[ArmEffect]) -> Table:
    """The time of a training step with branches relative to one without; empty if no step was timed."""
    columns = (
        Column("Model"),
        Column("Branches"),
        Column("Mode"),
        Column("Layers", "count"),
        Column("Plain (ms)", "number", digits=2),
        Column("With branches", "number", unit="x"),
        Column("Plain again", "number", unit="x"),
    )
    costs = [(effect, cost) for effect in effects for cost in effect.step_costs]
    rows = make_rows(
        (
            effect.task.title,
            effect.arm.label,
            cost.mode,
            cost.attached,
            1e3 * cost.plain_seconds,
            cost.ratio,
            cost.plain_ratio,
        )
        for effect, cost in costs
    )
    devices = dict.fromkeys(f"{cost.device}, torch {cost.torch}" for _, cost in costs)
    note = (
        f"{'; '.join(devices)}. Times are relative to a plain step of the same process. Those of plain builds among "
        "themselves show the error: a smaller difference says nothing."
    )
    return Table("cost", "Cost of a step", columns, rows, note)


def calibration_table(effects: Sequence[ArmEffect]) -> Table:
    columns = (
        Column("Model"),
        *(Column(side, "share", digits=2) for side in ("Plain", "With branches")),
        *(Column(side, "share", digits=2, signed=True) for side in ("Difference", "95% interval")),
        Column("n", "count"),
    )
    rows = make_rows(
        (
            effect.task.title,
            *effect.calibration_errors,
            effect.calibration.mean,
            interval(effect.calibration.low, effect.calibration.high),
            effect.calibration.n,
        )
        for effect in effects
        if effect.calibration.n
    )
    return Table("calibration", "Expected calibration error", columns, rows, "15 bins, after the last epoch.")


def selection_table(selections: Sequence[Selection]) -> Table:
    """Validation accuracy of every trial as a difference from Plain, in points."""
    points = {"kind": "number", "digits": 1, "signed": True}
    columns = (
        Column("Model"),
        Column("Plain", "number"),
        Column("Objective"),
        *(Column(f"alpha {alpha:g}", **points) for alpha in ALPHAS),  # type: ignore[arg-type]
        *(Column(name, **points) for name in VARIATIONS),  # type: ignore[arg-type]
        Column("Selected"),
    )
    rows = []
    for selection in selections:
        plain = selection.first[0]
        for name in CONFIGURATIONS:
            trials = [trial for trial in selection.trials if trial.arm.name == name]
            cells = [Cell(100 * (trial.mean - plain.mean), trial.spec_ids) for trial in trials]
            cells += [Cell(missing=True)] * (len(ALPHAS) + len(VARIATIONS) - len(cells))
            best = selection.best(name).arm.label if selection.complete else None
            mark = "(goes first)" if selection.complete and name == selection.selected else ""
            model = Cell(selection.task.title), Cell(plain.mean, plain.spec_ids), Cell(TITLES[name])
            rows.append((*model, *cells, Cell(best, mark=mark)))
    note = "Points of validation accuracy after the last epoch, mean over the seeds of the selection, less Plain's."
    return Table("selection", "Selection", columns, make_rows(rows), note, detail=True)


def ranks_table(selections: Sequence[Selection]) -> Table:
    """The settings that every model has tried, by mean rank on validation accuracy."""
    if not selections:
        return Table("ranks", "", (), ())
    columns = (
        Column("Setting"),
        Column("Mean rank", "number", digits=2),
        Column("Mean difference (points)", "number", digits=2, signed=True),
        Column("Worst difference (points)", "number", digits=2, signed=True),
    )
    ranks, rows = mean_ranks(selections), []
    for i, rank in enumerate(ranks):
        trials: list[ArmTrial] = [selection.first[i] for selection in selections]
        differences = [
            100 * (trial.mean - selection.first[0].mean) for trial, selection in zip(trials, selections, strict=True)
        ]
        rows.append((trials[0].arm.label, rank, sum(differences) / len(differences), min(differences)))
    rows.sort(key=lambda row: row[1])
    note = f"Over {len(selections)} models, by validation accuracy in the first wave."
    return Table("ranks", "One setting for all models: ranks", columns, make_rows(rows), note, detail=True)


def missing_table(unfinished: Iterable[tuple[Block, Left]]) -> Table:
    """The blocks that are not finished."""
    rows = make_rows(
        (block.name, block.title, "{runs_there}/{runs_needed}".format(**left.progress)) for block, left in unfinished
    )
    return Table("missing", "What is missing", (Column("Block"), Column("Holds"), Column("Runs", "number")), rows)


def figures(results: Results) -> list[Figure]:
    """The forest plot, the same for each objective, and one for each other part."""
    ordered = _by_gain(results)
    titled = {TITLES[name]: effects for name, effects in results.configurations.items() if effects}
    all_figures = [
        forest("forest", "Difference to Plain, with the configuration that validation selected", {"": ordered}),
        forest("configurations", "Difference to Plain, with the best configuration of each objective", titled),
        *(forest(part, title, _by_arm(results.parts[part])) for part, title in PARTS.items()),
        courses("length-courses", f"{PARTS['length']}, epoch by epoch", results.parts["length"]),
    ]
    return [
        figure for figure in all_figures if any(not isinstance(panel, Bars) or panel.bars for panel in figure.panels)
    ]


def courses(name: str, title: str, effects: Sequence[ArmEffect]) -> Figure:
    """Differences to Plain at each epoch: a panel for each model, and a line for each arm."""
    panels = [
        Lines(
            model,
            "epoch",
            _axis(effects),
            tuple(curve_of(effect.courses).line(effect.arm.title, at) for at, effect in enumerate(own)),
            zero=True,
            written=dataclasses.replace(POINTS, unit=" points"),
        )
        for model in dict.fromkeys(effect.task.title for effect in effects)
        for own in [[effect for effect in effects if effect.task.title == model]]
    ]
    return Figure(name, title, panels, min(2, max(1, len(panels))), "Means over seeds; bands are 95% intervals.")


def forest(name: str, title: str, panels: Mapping[str, Sequence[ArmEffect]]) -> Figure:
    """Effects below each other with their intervals; the dots are the seeds."""
    from asymtrain.lab.report.drawing import ends_of  # here: matplotlib is loaded to draw, not to print

    written = dataclasses.replace(POINTS, unit=" points")
    all_bars = [
        Bars(heading, _axis(effects), "asymmetric", tuple(_bar(effect, effects) for effect in effects), written=written)
        for heading, effects in panels.items()
    ]
    lefts, rights = zip(*map(ends_of, all_bars), strict=True) if all_bars else ((), ())
    return Figure(
        name,
        title,
        # One scale for all panels, so that their gains can be compared.
        [dataclasses.replace(bars, ends=(min(lefts), max(rights))) for bars in all_bars],
        columns=max(1, len(panels)),
        caption="Means with 95% intervals; the dots are the seeds. Green: helps; red: hurts; grey: neither.",
    )


def _against_plain(effects: Sequence[ArmEffect]) -> bool:
    return all(effect.against == NONE for effect in effects)


def _axis(effects: Sequence[ArmEffect]) -> str:
    return f"difference to {'Plain' if _against_plain(effects) else TUNED} (points)"


def _by_arm(effects: Sequence[ArmEffect]) -> dict[str, list[ArmEffect]]:
    """A panel for each arm; one for all if the arms do not have the same tasks."""
    arms: dict[str, list[ArmEffect]] = {}
    for effect in effects:
        arms.setdefault(effect.arm.title, []).append(effect)
    alike = len({tuple(effect.task for effect in own) for own in arms.values()}) == 1
    return arms if alike else {"": list(effects)}


def _bar(effect: ArmEffect, beside: Sequence[ArmEffect]) -> Bar:
    """A bar labelled by the model, and by what distinguishes it from the bars beside it."""
    label = [effect.task.title]
    if len({other.task.data for other in beside}) > 1:
        label.append(effect.task.data)
    if any(other.task == effect.task and other.arm.name != effect.arm.name for other in beside):
        label.append(effect.arm.title)
    row = effect.row
    colour = colour_of(effect.verdict)
    return Bar(", ".join(label), row["points"], row["points_low"], row["points_high"], effect.differences, colour)


def _effect_json(effect: ArmEffect) -> dict[str, Any]:
    names = ("n", "plain_mean", "asymmetric_mean", "points", "points_low", "points_high", "p")
    return {
        "model": effect.task.model,
        "data": effect.task.data,
        "recipe": effect.task.recipe,
        "arm": effect.arm.name,
        "branches": effect.arm.label,
        "against": effect.against.label,
        **{name: effect.row[name] for name in names},
        "p_holm": effect.p_holm,
        "verdict": effect.verdict,
        "differences": list(effect.differences),
        "epochs_to_plain": [list(pair) for pair in effect.epochs],
        "calibration_errors": list(effect.calibration_errors),
        "spec_ids": list(effect.spec_ids),
        **({"step_costs": [_cost_json(effect, cost) for cost in effect.step_costs]} if effect.step_costs else {}),
    }


def _cost_json(effect: ArmEffect, cost: StepCost) -> dict[str, Any]:
    return {**dataclasses.asdict(cost), "relative_time": effect.relative_time(cost)}
