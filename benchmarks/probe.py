"""How good is the probe's advice, and how strongly does alignment predict gain?

    python benchmarks/probe.py --data-root DATA --store probe.sqlite --out probe-out --minutes 9     # a GPU
    python benchmarks/probe.py --size tiny --store tiny.sqlite --out tiny-out                        # a CPU
    python benchmarks/probe.py --store probe.sqlite --out probe-out --minutes 0.01 --fit             # constants

For each family (a backbone on a dataset) the probe runs once: a shadow training, and short paired runs at every alpha
with seeds of its own, a fifth of the full training or so. Then Plain and Asymmetric are trained fully with other seeds.
A case is a family and an alpha. The rule's constants are fitted on the families of the part `tune`; the probe is scored
on those of `score`, which share none with them.

Everything is kept: the same command goes on where it stopped, and scores what is there. `--part` trains one part only.
Families whose data are missing are left out, and named. Writes cases.csv, scores.csv, scatter.svg and table.md.
"""

import argparse
import csv
import dataclasses
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from asymtrain.alignment.intervals import mean
from asymtrain.engine import load_for
from asymtrain.errors import UsageError
from asymtrain.executors import execute
from asymtrain.report.probe_figures import alignment_against_gain
from asymtrain.resonance import RULE, Shadow, advise
from asymtrain.resonance.calibration import Case, Score, fit, score_parts, score_text, shadow_from_dict, trial_scores
from asymtrain.resonance.probing import FIRST_SEED
from asymtrain.resonance.stacks import read_trials, shadow_of, trial_specs
from asymtrain.runs import Run, RunSpec, grid

ALPHAS = (0.1, 1.0, 10.0)
FULL_SEED = 3000  # full trainings begin here: none of a probe's seeds


@dataclass(frozen=True)
class Family:
    """A backbone on a dataset; `fields` are those of its specs."""

    name: str
    part: str  # tune or score
    fields: dict[str, Any] = field(default_factory=dict)


# Epochs are chosen so that a full training takes about 1,500 steps.
C100 = {"dataset": "cifar100", "per_class": 200, "epochs": 10}
C10 = {"dataset": "cifar10", "per_class": 2000, "epochs": 10}
FEW = {"dataset": "cifar100", "per_class": 50, "epochs": 40}


def shapes(classes: int, size: int) -> dict[str, Any]:
    options = {"classes": classes, "size": size, "test_size": 4000}
    return {"dataset": "shapes", "dataset_options": options, "epochs": 20}


def family(name: str, part: str, arch: str, data: dict[str, Any], rate: float, **options: Any) -> Family:
    return Family(name, part, {"arch": arch, "arch_options": options, "learning_rate": rate, **data})


SMALL_CNN = {"widths": (32, 64, 64, 64, 64, 32), "hidden": (128, 64)}
FULL = (
    # The rule's constants come from these. The MLP is the paper's.
    family("mlp cifar100", "tune", "mlp", C100, 1e-4),
    family("small cnn cifar100", "tune", "cnn", C100, 1e-3, **SMALL_CNN),
    family("small vit cifar100", "tune", "vit", C100, 1e-3, depth=4, width=64),
    family("wide mlp shapes", "tune", "mlp", shapes(20, 12000), 1e-3, widths=(256, 256, 256, 256, 128)),
    family("small cnn shapes", "tune", "cnn", shapes(20, 12000), 1e-3, **SMALL_CNN),
    family("mean vit shapes", "tune", "vit", shapes(20, 12000), 1e-3, depth=4, width=96, branch_input="mean"),
    # It is scored on these. The first two are the paper's.
    family("cnn cifar100", "score", "cnn", C100, 3e-4),
    family("vit cifar100", "score", "vit", C100, 1e-3),
    family("wide mlp cifar100", "score", "mlp", C100, 3e-4, widths=(512, 512, 512, 256, 128)),
    family("cnn without dropout cifar100", "score", "cnn", C100, 1e-3, **SMALL_CNN, dropout=0.0),
    family("few-shot vit cifar100", "score", "vit", FEW, 1e-3, depth=6, width=96),
    family("deep mlp shapes", "score", "mlp", shapes(49, 12000), 1e-3, widths=(128,) * 8),
    family("wide cnn shapes", "score", "cnn", shapes(49, 12000), 1e-3, widths=(48, 96, 96, 96, 64), pool_after=(0, 1)),
    family("vit shapes", "score", "vit", shapes(49, 12000), 1e-3, depth=6, width=64),
    family("mlp cifar10", "score", "mlp", C10, 3e-4),
    family("small cnn cifar10", "score", "cnn", C10, 1e-3, **SMALL_CNN),
    family("deep vit cifar10", "score", "vit", C10, 1e-3, depth=8, width=64),
)
_LITTLE = {"dataset": "shapes", "dataset_options": {"classes": 6, "size": 900, "test_size": 400}, "batch": 32}
TINY = tuple(
    Family(name, part, {**_LITTLE, "arch": arch, "arch_options": options, "epochs": 4, "learning_rate": rate})
    for name, part, arch, rate, options in (
        ("mlp", "tune", "mlp", 1e-3, {"widths": (32, 32, 32)}),
        ("narrow mlp", "tune", "mlp", 1e-3, {"widths": (16, 16, 16, 16)}),
        ("vit", "tune", "vit", 2e-3, {"depth": 2, "width": 24, "patch": 8}),
        ("deep mlp", "score", "mlp", 1e-3, {"widths": (32,) * 5}),
        ("wide mlp", "score", "mlp", 1e-3, {"widths": (96, 96, 64)}),
        ("mlp at a low rate", "score", "mlp", 3e-4, {"widths": (48, 48, 48)}),
        ("vit of three blocks", "score", "vit", 2e-3, {"depth": 3, "width": 24, "patch": 8}),
    )
)


@dataclass(frozen=True)
class Size:
    """How much is trained: epochs are the family's times `length`."""

    families: tuple[Family, ...]
    seeds: int
    probe_seeds: int  # equal counts make stacks of one shape, which compile once
    steps: int
    length: float


SIZES = {
    "full": Size(FULL, 5, 5, 300, 1.0),
    "small": Size(FULL, 5, 5, 150, 0.5),
    "tiny": Size(TINY, 3, 3, 80, 1.0),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--size", choices=SIZES, default="full")
    options.add_argument("--part", choices=("tune", "score", "all"), default="all", help="which families are trained")
    options.add_argument("--only", nargs="+", help="families, by name")
    options.add_argument("--length", type=float, help="epochs, as a multiple of the size's")
    options.add_argument("--minutes", type=float, help="stop training after this time, then score what is there")
    options.add_argument("--fit", action="store_true", help="print the constants that the tuning cases give")
    options.add_argument("--precision", help="of the engine's runs; default: bf16 on a GPU")
    options.add_argument("--device")
    options.add_argument("--data-root", type=Path)
    options.add_argument("--store", type=Path, required=True)
    options.add_argument("--out", type=Path, required=True)
    chosen = options.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    size = SIZES[chosen.size]
    deadline = float("inf") if chosen.minutes is None else time.monotonic() + 60 * chosen.minutes
    on_gpu = torch.cuda.is_available() if chosen.device is None else chosen.device.startswith("cuda")
    precision = chosen.precision or ("bf16" if on_gpu else "fp32")
    rows: list[tuple[str, Case, dict[str, Any]]] = []
    for one in size.families:
        wanted = chosen.part in (one.part, "all") and (not chosen.only or one.name in chosen.only)
        try:
            found = measure(one, size, chosen, precision, deadline if wanted else 0.0)
        except UsageError as problem:
            print(f"{one.name}: left out, {problem}", flush=True)
            continue
        if found is None:
            print(f"{one.name}: not finished", flush=True)
            continue
        rows += [(one.part, case, more) for case, more in found]
        print("\n".join(line(case) for case, _ in found), flush=True)
    write(rows, chosen.out, show_fit=chosen.fit)


def measure(
    one: Family, size: Size, chosen: argparse.Namespace, precision: str, deadline: float
) -> list[tuple[Case, dict[str, Any]]] | None:
    """The cases of a family; trained where they are missing and there is time, None where they stay missing."""
    length = size.length * (chosen.length or 1.0)
    fields = {**one.fields, "epochs": max(2, round(one.fields["epochs"] * length))}
    base = RunSpec(**fields, precision=precision)
    dataset = load_for(base, chosen.data_root)
    start = time.perf_counter()
    shadow = kept_shadow(one, base, size, chosen, deadline)
    if shadow is None:
        return None
    probe_seeds = range(FIRST_SEED, FIRST_SEED + size.probe_seeds)
    # A probe compares on validation images, on steps that are a part of the full training's.
    short = trial_specs(base, dataset, alphas=ALPHAS, seeds=probe_seeds, steps=size.steps)
    asymmetric = grid(base, seed=range(FULL_SEED, FULL_SEED + size.seeds), alpha=ALPHAS)
    full = list(dict.fromkeys(spec for run in asymmetric for spec in (run.plain(), run)))
    # Without time only what the store has is read: a limit of nothing ends before the first stack.
    minutes = None if deadline == float("inf") else max(1e-7, (deadline - time.monotonic()) / 60)
    where = {"store": chosen.store, "device": chosen.device, "data_root": chosen.data_root, "minutes": minutes}
    runs = {run.spec: run for run in execute([*short, *full], **where)}
    if not all(spec in runs for spec in [*short, *full]):
        return None
    seconds = time.perf_counter() - start
    trials = read_trials([runs[spec] for spec in short], ALPHAS, dataset, size.steps)
    chance = 1 / dataset.classes
    plain = {spec.seed: accuracy(runs[spec], chance) for spec in full if spec.redundancy == 0}
    cases = []
    for trial in trials:
        advice = advise(shadow, [trial])
        mine = [runs[spec] for spec in asymmetric if spec.alpha == trial.alpha]
        level, change = trial_scores(trial)
        cosines = [run.mean_cosine for run in mine if run.mean_cosine is not None]
        case = Case(
            one.name, trial.alpha, shadow.together.alignment or 0.0, level, change, advice.probability, advice.verdict,
            tuple(accuracy(run, chance) - plain[run.spec.seed] for run in mine), mean(list(plain.values())) or chance,
            mean(cosines),
        )  # fmt: skip
        more = {
            "arch": base.arch, "dataset": base.dataset, "epochs": base.epochs, "device": mine[0].device,
            "short_gain": advice.outlooks[0].gain, "alignment_low": shadow.together.low,
            "alignment_high": shadow.together.high, "alignment_trend": shadow.together.trend,
            "norm_ratio": shadow.together.ratio, "shadow_steps": shadow.steps, "shadow_accuracy": shadow.accuracy,
            "seconds": round(seconds, 1),
        }  # fmt: skip
        cases.append((case, more))
    return cases


def kept_shadow(one: Family, base: RunSpec, size: Size, chosen: argparse.Namespace, deadline: float) -> Shadow | None:
    """The family's shadow training, from a file where it was done before."""
    file = chosen.out / f"shadow-{one.name.replace(' ', '-')}-{size.steps}.json"
    if file.exists():
        return shadow_from_dict(json.loads(file.read_text()))
    if time.monotonic() > deadline:
        return None
    found = shadow_of(base, load_for(base, chosen.data_root), steps=size.steps, device=chosen.device)
    file.write_text(json.dumps(dataclasses.asdict(found)))
    return found


def accuracy(run: Run, chance: float) -> float:
    """Test accuracy after the last epoch; a diverged run has chance."""
    return chance if run.outcome == "diverged" else run.test_accuracy or 0.0


def line(case: Case) -> str:
    low, high = case.interval
    word = {1: "helped", -1: "hurt", 0: "unclear"}[case.outcome]
    return (
        f"{case.family:30} alpha {case.alpha:<5g} alignment {case.alignment:+.2f}  p {case.probability:.2f} "
        f"({case.verdict})  full: {case.gain:+.1f}% ({100 * low:+.2f} to {100 * high:+.2f} points), {word}"
    )


def write(rows: Sequence[tuple[str, Case, dict[str, Any]]], out: Path, *, show_fit: bool) -> None:
    """Cases, scores, the scatter and the table; what cannot be computed yet is said and left out."""
    if not rows:
        print("no family is finished: give more minutes")
        return
    with (out / "cases.csv").open("w", newline="") as file:
        names = ["part", "family", "alpha", "n", "plain", "gain", "low", "high", "outcome", "alignment", "cosine",
                 "level", "change", "probability", "verdict", *rows[0][2]]  # fmt: skip
        table = csv.DictWriter(file, names)
        table.writeheader()
        for part, case, more in rows:
            low, high = (100 * end / case.plain for end in case.interval)
            table.writerow({
                "part": part, "family": case.family, "alpha": case.alpha, "n": len(case.differences),
                "plain": case.plain, "gain": case.gain, "low": low, "high": high, "outcome": case.outcome,
                "alignment": case.alignment, "cosine": case.cosine, "level": case.level, "change": case.trend,
                "probability": case.probability, "verdict": case.verdict, **more,
            })  # fmt: skip
    points = []
    for _, case, more in rows:
        low, high = (100 * end / case.plain for end in case.interval)
        points.append((f"{more['arch']} {more['dataset']}", case.alignment, case.gain, low, high))
    (out / "scatter.svg").write_text(alignment_against_gain(points, "scatter", "Alignment in the probe against gain"))
    parts = {part: [case for p, case, _ in rows if p == part] for part in ("tune", "score")}
    if show_fit and parts["tune"]:
        print("fitted on the tuning cases:", fit(parts["tune"]))
        print("in the rule:               ", RULE)
    scores = score_parts(parts["tune"], parts["score"])
    with (out / "scores.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["part", *(f.name for f in dataclasses.fields(Score))])
        writer.writeheader()
        writer.writerows({"part": part, **dataclasses.asdict(found)} for part, found in scores)
    text = score_text(scores, [case for _, case, _ in rows])
    (out / "table.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
