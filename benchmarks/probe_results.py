"""What benchmarks/probe.py writes: cases, scores, the fitted rule, the scatter, and the table for docs/probe.md."""

import csv
import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asymtrain.lab.probe import RULE
from asymtrain.lab.probe.page import alignment_against_gain
from asymtrain.lab.report.drawing import draw
from asymtrain.lab.store import stored_runs
from probe_calibration import CONSTANTS, Case, Score, fit, rule_line, score_parts, score_text

Row = tuple[str, Case, dict[str, Any]]  # part, case, further columns
BEGIN, END = "<!-- scores: benchmarks/probe.py -->", "<!-- end of scores -->"
PICTURE = "probe-scatter.svg"


def line(case: Case) -> str:
    """A case for the screen."""
    low, high = case.interval
    word = {1: "helped", -1: "hurt", 0: "unclear"}[case.outcome]
    return (
        f"{case.family:30} alpha {case.alpha:<5g} alignment {case.alignment:+.2f}  p {case.probability:.2f} "
        f"({case.verdict})  full: {case.gain:+.1f}% ({100 * low:+.2f} to {100 * high:+.2f} points), {word}"
    )


def write(rows: Sequence[Row], out: Path, *, show_fit: bool, page: Path | None = None) -> None:
    """Everything that the cases give; what cannot be computed yet is said and left out."""
    if not rows:
        print("no family is finished: give more minutes")
        return
    write_cases(rows, out / "cases.csv")
    points = [(more["kind"], case.alignment, case.gain, *percent(case)) for _, case, more in rows]
    picture = draw(alignment_against_gain(points, "scatter", "Alignment in the probe against gain"))
    (out / "scatter.svg").write_text(picture)
    parts = {part: [case for p, case, _ in rows if p == part] for part in ("tune", "score")}
    if show_fit:
        write_fit(parts["tune"], out / "fit.json")
    scores = score_parts(parts["tune"], parts["score"])
    with (out / "scores.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["part", *(f.name for f in dataclasses.fields(Score))], lineterminator="\n")
        writer.writeheader()
        writer.writerows({"part": part, **dataclasses.asdict(found)} for part, found in scores)
    text = score_text(scores, [case for _, case, _ in rows])
    (out / "table.md").write_text(text)
    print(text)
    if page is not None:
        page.with_name(PICTURE).write_text(picture)
        page.write_text(with_scores(page.read_text(), text))


def write_cases(rows: Sequence[Row], path: Path) -> None:
    """One line for each case, with all its numbers."""
    with path.open("w", newline="") as file:
        names = ["part", "family", "alpha", "n", "plain", "gain", "low", "high", "outcome", "alignment", "cosine",
                 "level", "change", "probability", "verdict", *rows[0][2]]  # fmt: skip
        table = csv.DictWriter(file, names, lineterminator="\n")
        table.writeheader()
        for part, case, more in rows:
            low, high = percent(case)
            table.writerow({
                "part": part, "family": case.family, "alpha": case.alpha, "n": len(case.differences),
                "plain": case.plain, "gain": case.gain, "low": low, "high": high, "outcome": case.outcome,
                "alignment": case.alignment, "cosine": case.cosine, "level": case.level, "change": case.trend,
                "probability": case.probability, "verdict": case.verdict, **more,
            })  # fmt: skip


def write_fit(cases: Sequence[Case], path: Path) -> None:
    """The rule that the tuning cases give, as JSON and as the lines for src/asymtrain/lab/probe/rule.py."""
    if len({case.family for case in cases}) < 2:
        print("nothing to fit: at least two families of the part tune must be finished")
        return
    found = fit(cases)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    found = dataclasses.replace(found, basis=f"{found.basis} by benchmarks/probe.py on {day}")
    constants = {name: getattr(found, name) for name in CONSTANTS}
    families = list(dict.fromkeys(case.family for case in cases))
    path.write_text(json.dumps({**constants, "basis": found.basis, "families": families}, indent=2) + "\n")
    same = all(value == getattr(RULE, name) for name, value in constants.items())
    print("The rule has these constants already:" if same else "For src/asymtrain/lab/probe/rule.py:")
    print(rule_line(found))


def with_scores(page: str, table: str) -> str:
    """The page with the table and the scatter between its markers."""
    shown = f"![Alignment in the probe against gain after full training]({PICTURE})"
    return put_between(page, BEGIN, END, f"{table}\n{shown}\n")


def put_between(page: str, begin: str, end: str, text: str) -> str:
    """The page with this text between two marked lines."""
    before, first, rest = page.partition(begin)
    _, last, after = rest.partition(end)
    if not (first and last):
        raise SystemExit(f"the page has no place for the scores: add the lines {begin} and {end}")
    return f"{before}{begin}\n\n{text}\n{end}{after}"


def percent(case: Case) -> tuple[float, float]:
    """The interval of the gain, in percent of Plain."""
    low, high = case.interval
    return 100 * low / case.plain, 100 * high / case.plain


def stored_precision(store: Path) -> str | None:
    """That of a store's runs: they may come from another kind of device."""
    found = {run.spec.precision for run in stored_runs(store)}
    return found.pop() if len(found) == 1 else None
