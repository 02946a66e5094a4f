"""How good is the probe's advice, and how strongly does alignment predict gain?

    python benchmarks/probe.py --estimate                                                  # how long it will take
    python benchmarks/probe.py --data-root DATA --store probe.sqlite --out probe-out --jobs 8 --minutes 9    # a GPU
    python benchmarks/probe.py --store probe.sqlite --out probe-out --read --fit           # the rule's constants
    python benchmarks/probe.py --size tiny --store tiny.sqlite --out tiny-out              # a CPU

For each family (a backbone on a dataset) the probe runs once: a shadow training, and short paired runs at every alpha
with seeds of its own, a fifth of the full training or so. Then Plain and Asymmetric are trained fully with other seeds,
with branches at all points. A case is a family and an alpha. The rule's constants are fitted on the families of the
part `tune`; the probe is scored on those of `score`, which share none with them.

Everything is kept: the same command goes on where it stopped, and scores what is there. `--part` and `--only` train
some of the families. Families whose data or libraries are missing are left out and named. Writes cases.csv, scores.csv,
scatter.svg and table.md; with `--fit` fit.json; with `--docs docs/probe.md` the table and the scatter into that page.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from asymtrain.errors import UsageError
from asymtrain.gradients._intervals import mean
from asymtrain.lab.data import Dataset
from asymtrain.lab.engine import load_for
from asymtrain.lab.executors import execute
from asymtrain.lab.probe import Shadow, Trial, advise
from asymtrain.lab.probe.probing import FIRST_SEED
from asymtrain.lab.probe.rule import trial_scores
from asymtrain.lab.probe.stacks import read_trials, shadow_of, trial_specs
from asymtrain.lab.runs import Run, RunSpec, grid
from asymtrain.lab.store import stored_runs
from probe_calibration import Case, shadow_from_dict
from probe_examples import measure_example, write_json
from probe_families import ALPHAS, SIZES, Family, Size, base_spec, estimated_seconds
from probe_results import Row, line, stored_precision, write

FULL_SEED = 3000  # full trainings begin here: none of a probe's seeds
GRACE = 45.0  # seconds past the limit in which a process may end its epoch; what is stored is whole in any case


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--size", choices=SIZES, default="full")
    options.add_argument("--part", choices=("tune", "score", "all"), default="all", help="which families are trained")
    options.add_argument("--only", nargs="+", default=[], help="families, by name")
    options.add_argument("--length", type=float, default=1.0, help="epochs, as a multiple of the size's")
    options.add_argument("--minutes", type=float, help="stop training after this time, then score what is there")
    options.add_argument("--read", action="store_true", help="train nothing, score what is there")
    options.add_argument("--jobs", type=int, default=1, help="families that are trained at once, each in a process")
    options.add_argument("--fit", action="store_true", help="print the rule that the tuning cases give")
    options.add_argument("--estimate", action="store_true", help="print how long it will take on one H200, and stop")
    options.add_argument("--docs", type=Path, help="a page to put the table and the scatter into")
    options.add_argument("--precision", help="of the engine's runs; default: bf16 on a GPU; with --read the store's")
    options.add_argument("--device")
    options.add_argument("--data-root", type=Path)
    options.add_argument("--store", type=Path, default=Path("probe.sqlite"))
    options.add_argument("--out", type=Path, default=Path("probe-out"))
    chosen = options.parse_args(arguments)
    size = SIZES[chosen.size]
    families = wanted(size, chosen)
    if chosen.estimate:
        print_estimate(families, size, chosen.jobs)
        return
    chosen.out.mkdir(parents=True, exist_ok=True)
    on_gpu = torch.cuda.is_available() if chosen.device is None else chosen.device.startswith("cuda")
    kept = stored_precision(chosen.store) if chosen.read else None
    chosen.precision = chosen.precision or kept or ("bf16" if on_gpu else "fp32")
    deadline = float("inf") if chosen.minutes is None else time.monotonic() + 60 * chosen.minutes
    deadline = 0.0 if chosen.read else deadline
    if chosen.jobs > 1 and not chosen.read:
        run_processes([one for one in families if is_missing(one, size, chosen)], size, chosen, deadline)
        deadline = 0.0
    rows: list[Row] = []
    unread: list[str] = []
    for one in size.families:
        try:
            found = shown(one, size, chosen, deadline if one in families else 0.0)
        except UsageError as problem:
            print(f"{one.name}: left out, {problem}", flush=True)
            unread.append(one.name)
            continue
        rows += [(one.part, case, more) for case, more in found]
    if unread and chosen.read:
        # What is kept may rest on these: a score without them must not take its place.
        raise SystemExit(f"{len(unread)} families cannot be read, {unread[0]} first: nothing was written")
    write(rows, chosen.out, show_fit=chosen.fit, page=chosen.docs)


def wanted(size: Size, chosen: argparse.Namespace) -> list[Family]:
    """The families to train."""
    names = [one.name for one in size.families]
    unknown = [name for name in chosen.only if name not in names]
    if unknown:
        raise SystemExit(f"no family {unknown[0]!r}: there are {', '.join(names)}")
    return [
        one
        for one in size.families
        if chosen.part in (one.part, "all") and (not chosen.only or one.name in chosen.only)
    ]


def is_missing(one: Family, size: Size, chosen: argparse.Namespace) -> bool:
    """Is there something to train? Not where it is all kept, nor where data are missing."""
    try:
        return measure(one, size, chosen, 0.0) is None
    except UsageError:
        return False


def print_estimate(families: Sequence[Family], size: Size, jobs: int) -> None:
    found = {one.name: estimated_seconds(one, size) for one in families}
    for name, (beside, alone) in found.items():
        print(f"{name:30} {beside:5.0f} s that others can fill, {alone:4.0f} s of the GPU")
    beside, alone = (sum(values) for values in zip(*found.values(), strict=True))
    print(
        f"one after the other: {(beside + alone) / 60:.1f} minutes; {jobs} at once: {(beside / jobs + alone) / 60:.1f}"
    )


def run_processes(families: Sequence[Family], size: Size, chosen: argparse.Namespace, deadline: float) -> None:
    """A process for each family, the longest first: while one compiles, others train."""
    waiting = sorted(families, key=lambda one: -sum(estimated_seconds(one, size)))
    running: dict[str, subprocess.Popen[bytes]] = {}
    threads = str(max(1, (os.cpu_count() or 1) // chosen.jobs))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": threads}
    try:
        while waiting or running:
            for name in [name for name, process in running.items() if process.poll() is not None]:
                process = running.pop(name)
                if process.returncode:
                    print(f"{name}: its process ended with {process.returncode}", flush=True)
            left = deadline - time.monotonic()
            while waiting and len(running) < chosen.jobs and left > 0:
                one = waiting.pop(0)
                running[one.name] = subprocess.Popen(command_for(one, chosen, left), env=environment)
            if left < 0:
                waiting = []
            if left < -GRACE:
                return
            time.sleep(0.2)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def command_for(one: Family, chosen: argparse.Namespace, left: float) -> list[str]:
    """Trains one family and leaves its results to be read."""
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import probe; probe.train_one(sys.argv[1])"
    )
    kept = ("size", "length", "precision", "device", "data_root", "store", "out")
    given = {name: getattr(chosen, name) for name in kept}
    given |= {"only": one.name, "minutes": None if left == float("inf") else left / 60}
    return [sys.executable, "-c", program, json.dumps(given, default=str)]


def train_one(text: str) -> None:
    """What a process of `run_processes` does."""
    given = json.loads(text)
    for name in ("data_root", "store", "out"):
        given[name] = None if given[name] is None else Path(given[name])
    chosen = argparse.Namespace(**given)
    size = SIZES[chosen.size]
    deadline = float("inf") if chosen.minutes is None else time.monotonic() + 60 * chosen.minutes
    with suppress(UsageError):  # the parent tries too, and says it
        shown(next(one for one in size.families if one.name == chosen.only), size, chosen, deadline)


def shown(one: Family, size: Size, chosen: argparse.Namespace, deadline: float) -> list[tuple[Case, dict[str, Any]]]:
    """`measure`, with a line for each case or for why there is none."""
    start = time.monotonic()
    found = measure(one, size, chosen, deadline)
    if found is None:
        print(f"{one.name}: not finished", flush=True)
        return []
    print("\n".join(line(case) for case, _ in found), flush=True)
    if time.monotonic() - start > 5:
        print(f"{one.name}: {time.monotonic() - start:.0f} s", flush=True)
    return found


def measure(
    one: Family, size: Size, chosen: argparse.Namespace, deadline: float
) -> list[tuple[Case, dict[str, Any]]] | None:
    """The cases of a family; trained where they are missing and there is time, None where they stay missing."""
    seeds = range(FULL_SEED, FULL_SEED + size.seeds)
    if one.example:
        found = measure_example(one, size, seeds, chosen.out, deadline)
        if found is None:
            return None
        shadow, trials, full = found
        facts = {"kind": one.name, "arch": one.example, "dataset": "examples", "epochs": None, "device": "cpu"}
        cases = [
            made_case(one, shadow, trial, after.differences, mean([row[1] for row in after.plain]), None)
            for trial, after in zip(trials, full, strict=True)
        ]
        return [(case, {**facts, **columns(shadow, trial)}) for case, trial in zip(cases, trials, strict=True)]
    base = base_spec(one, size.length * chosen.length, chosen.precision)
    dataset = load_for(base, chosen.data_root)
    shadow = kept_shadow(one, base, dataset, size, chosen, deadline)
    if shadow is None:
        return None
    # A probe compares on validation images, on steps that are a part of the full training's.
    probe_seeds = range(FIRST_SEED, FIRST_SEED + size.probe_seeds)
    short = trial_specs(base, dataset, alphas=ALPHAS, seeds=probe_seeds, steps=size.steps)
    asymmetric = grid(base, seed=seeds, alpha=ALPHAS)
    full = list(dict.fromkeys(spec for run in asymmetric for spec in (run.plain(), run)))
    runs = {run.spec: run for run in trained([*short, *full], chosen, deadline)}
    if not all(spec in runs for spec in [*short, *full]):
        return None
    chance = 1 / dataset.classes
    plain = {spec.seed: accuracy(runs[spec], chance) for spec in full if spec.redundancy == 0}
    rows = []
    for trial in read_trials([runs[spec] for spec in short], ALPHAS, dataset, size.steps):
        mine = [runs[spec] for spec in asymmetric if spec.alpha == trial.alpha]
        differences = [accuracy(run, chance) - plain[run.spec.seed] for run in mine]
        cosines = [run.mean_cosine for run in mine if run.mean_cosine is not None]
        case = made_case(one, shadow, trial, differences, mean(list(plain.values())), mean(cosines))
        facts = {"kind": f"{base.arch} {base.dataset}", "arch": base.arch, "dataset": base.dataset,
                 "epochs": base.epochs, "device": mine[0].device}  # fmt: skip
        rows.append((case, {**facts, **columns(shadow, trial)}))
    return rows


def trained(specs: list[RunSpec], chosen: argparse.Namespace, deadline: float) -> list[Run]:
    """Runs of these specs: those in the store, and the others where there is time."""
    left = deadline - time.monotonic()
    if left <= 0:
        return stored_runs(chosen.store, (spec.id for spec in specs))
    minutes = None if left == float("inf") else left / 60
    where = {"store": chosen.store, "device": chosen.device, "data_root": chosen.data_root, "minutes": minutes}
    return list(execute(specs, **where))


def made_case(
    one: Family,
    shadow: Shadow,
    trial: Trial,
    differences: Sequence[float],
    plain: float | None,
    cosine: float | None,
) -> Case:
    """What the probe says of one alpha by itself, beside what came of it."""
    advice, (level, change) = advise(shadow, [trial]), trial_scores(trial)
    return Case(
        one.name, trial.alpha, shadow.together.alignment or 0.0, level, change, advice.probability, advice.verdict,
        tuple(differences), plain or shadow.chance, cosine,
    )  # fmt: skip


def columns(shadow: Shadow, trial: Trial) -> dict[str, Any]:
    """Further columns of a case."""
    return {
        "short_gain": mean(trial.differences), "held_out": trial.held_out, "alignment_low": shadow.together.low,
        "alignment_high": shadow.together.high, "alignment_trend": shadow.together.trend,
        "norm_ratio": shadow.together.ratio, "shadow_steps": shadow.steps, "shadow_accuracy": shadow.accuracy,
    }  # fmt: skip


def kept_shadow(
    one: Family, base: RunSpec, dataset: Dataset, size: Size, chosen: argparse.Namespace, deadline: float
) -> Shadow | None:
    """The family's shadow training, from a file where it was done before."""
    file = chosen.out / f"shadow-{one.name.replace(' ', '-')}-{size.steps}.json"
    if file.exists():
        return shadow_from_dict(json.loads(file.read_text()))
    if time.monotonic() > deadline:
        return None
    found = shadow_of(base, dataset, steps=size.steps, device=chosen.device)
    write_json(file, asdict(found))
    return found


def accuracy(run: Run, chance: float) -> float:
    """Test accuracy after the last epoch; a diverged run has chance."""
    return chance if run.outcome == "diverged" else run.test_accuracy or 0.0


if __name__ == "__main__":
    main()
