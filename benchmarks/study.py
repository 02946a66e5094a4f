"""How long does a whole study take, from a cold process to the last row in the store, and where do its seconds go?

    python benchmarks/study.py --arch cnn                      # on this machine's GPU, or its CPU
    python benchmarks/study.py --arch mlp --epochs 1 --runs 4 --device cpu
    python benchmarks/study.py --arch vit_tiny --loop-runs 4   # where the loop would take too long
    python benchmarks/study.py --arch vit --cache DIR          # twice: the second finds its compiled code there
    python benchmarks/study.py --arch cnn --epochs 5 --reckon 200    # what a study of 200 epochs would take

The same specs are trained twice, each time by a new process: by the engine, and by the expert's loop of loops.py, one
run after another (on a GPU compiled and captured, once for all runs that differ in seed, alpha or branch labels; on a
CPU eager). There are 36: Plain and the 11 kinds of branches in `KINDS`, 3 seeds, batch 128, flips and shifts,
validation at every epoch, test images at the last, cosines at every 16th step. Both sides write each run's rows into a
store, and a checkpoint every minute. The data is CIFAR-100 if $ASYMTRAIN_DATA has it, else random bytes of its shape.

The time counts from the start of the process to its last row. Compiled code is not taken from an earlier process unless
`--cache` names its folder. The ratio is the loop's seconds over the engine's. `--loop-runs` trains only the first runs
by the loop and estimates the others: a run that reuses a compiled program takes as long as such runs took on average,
and one that compiles a program as long as those that did. On a GPU, `--reckon` adds to both sides the time of further
epochs in steps, evaluation and log, if each takes as long as the trained ones. The parts:

- import; data (loading, fingerprints); setup (plans, splits, initial weights, data to the device)
- compile: the compiler at any time, and the steps that warm up a capture; capture: recording the CUDA graphs
- steps, including reading their sums once an epoch; evaluation
- store: claims, rows, checkpoints; log: the log of each epoch
- other: Python between them, and on several CPU cores all work of the engine's processes

The rows of both sides are compared: if the mean test accuracies differ by more than one point, it is an error.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from asymtrain.lab.engine import Progress
    from asymtrain.lab.runs import Run, RunSpec

KINDS: dict[str, dict[str, Any]] = {
    "Plain": {"redundancy": 0},
    "sigmoid, alpha 0.1": {"alpha": 0.1},
    "sigmoid, alpha 0.3": {"alpha": 0.3},
    "sigmoid, alpha 1": {"alpha": 1.0},
    "sigmoid with prior bias, alpha 0.3": {"bias": "prior", "alpha": 0.3},
    "sigmoid with prior bias, alpha 1": {"bias": "prior", "alpha": 1.0},
    "softmax, alpha 0.3": {"objective": "softmax", "alpha": 0.3},
    "softmax, alpha 1": {"objective": "softmax", "alpha": 1.0},
    "sigmoid on random labels": {"branch_labels": "random"},
    "frozen sigmoid": {"branch_weights": "frozen"},
    "sigmoid, alpha to zero on a line": {"alpha_schedule": "linear"},
    "sigmoid, alpha to zero by a cosine": {"alpha_schedule": "cosine"},
}
INPUTS_OF_A_STEP = ("seed", "alpha", "alpha_schedule", "branch_labels")  # runs differing only in these share a program
PARTS = ("import", "data", "setup", "compile", "capture", "steps", "evaluation", "store", "log", "other")
GROWING = ("steps", "evaluation", "log")  # parts that grow with the epochs
SIDES = ("engine", "loop")
CHECKPOINT_SECONDS = 60.0
LARGEST_DIFFERENCE = 0.01  # of the mean test accuracies


class Clock:
    """Seconds by part. Nested parts are not counted twice; time outside all parts is `other`."""

    def __init__(self, begun: float) -> None:
        self.seconds, self.open, self.since = dict.fromkeys(PARTS, 0.0), ["import"], begun

    def enter(self, name: str) -> None:
        """Begin a part."""
        self._count()
        self.open.append(name)

    def leave(self) -> None:
        """End the part; the one around it continues."""
        self._count()
        self.open.pop()

    def _count(self) -> None:
        now = time.monotonic()
        self.seconds[self.open[-1]] += now - self.since
        self.since = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block as this part."""
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def watch(self, owner: Any, part: str, *names: str) -> None:
        """Count the calls of these functions as this part."""
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name), part))

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            with self.part(part):
                return function(*args, **options)

        return timed


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--arch", default="cnn", help="a backbone, or a model of the practice study by its name there")
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--runs", type=int, default=36, help="fewer make it small: the first of the list")
    options.add_argument("--loop-runs", type=int, help="how many of them the loop trains; the rest is reckoned")
    options.add_argument("--reckon", type=int, metavar="EPOCHS", help="say what a study of so many epochs would take")
    options.add_argument("--images", type=int, default=50_000, help="of random data, where there is no CIFAR-100")
    options.add_argument("--device")
    options.add_argument("--precision", help="bf16 on a GPU, fp32 on a CPU, where nothing is given")
    options.add_argument("--cache", help="a folder of compiled code that outlives this process")
    options.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)  # what a process of this script trains
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--begun", type=float, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.side:
        _train(chosen.side, chosen.folder, chosen.device, Clock(chosen.begun))
        return
    if chosen.loop_runs is not None and not 3 <= chosen.loop_runs <= chosen.runs:
        options.error("--loop-runs must be between 3 and --runs: two runs that share a program are timed")
    if chosen.reckon and chosen.device == "cpu":
        options.error(
            "--reckon is for a GPU: on a CPU, the engine's steps are in other processes and not counted apart"
        )
    with tempfile.TemporaryDirectory() as folder:
        _measure(chosen, Path(folder))


def _measure(chosen: argparse.Namespace, folder: Path) -> None:
    import torch

    from asymtrain.lab.devices import default_device, device_name

    device = default_device(chosen.device)
    precision = chosen.precision or ("bf16" if device.type == "cuda" else "fp32")
    data = _data(folder / "random.npz", chosen.images)
    specs = study_specs(chosen.arch, chosen.runs, dataset=data, epochs=chosen.epochs, precision=precision)
    if chosen.loop_runs:  # kind by kind: then the compared rows are of several seeds
        specs = [spec for kind in range(len(KINDS)) for spec in specs[kind :: len(KINDS)]]
    by_loop = specs[: chosen.loop_runs]
    sides: dict[str, dict[str, Any]] = {}
    for side, own in zip(SIDES, (specs, by_loop), strict=True):
        (folder / f"{side}.specs.json").write_text(json.dumps([spec.to_dict() for spec in own]))
        compiled = f"{chosen.cache or folder}/{side}"
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": compiled, "TRITON_CACHE_DIR": f"{compiled}/triton"}
        command = [sys.executable, __file__, *sys.argv[1:], "--side", side, "--folder", str(folder)]
        subprocess.run([*command, "--begun", str(time.monotonic())], env=environment, check=True)
        sides[side] = json.loads((folder / f"{side}.json").read_text())
    engine, loop = (sum(sides[side]["parts"].values()) for side in SIDES)
    rest = reckoned(sides["loop"]["runs"], specs)
    what = f"{chosen.arch}, {precision}, {len(specs)} runs of {chosen.epochs} epochs"
    print(f"{device_name(device)}, torch {torch.__version__}: {what}, from a cold process to the last row")
    how = "" if not rest else f" ({loop:.1f} s for {len(by_loop)} of {len(specs)} runs, the rest reckoned)"
    print(f"engine {engine:.1f} s, expert's loop {loop + rest:.1f} s{how}: {(loop + rest) / engine:.2f}x")
    if chosen.reckon:
        trained = {"engine": len(specs), "loop": len(by_loop)}
        epoch = {side: sum(map(sides[side]["parts"].get, GROWING)) / trained[side] / chosen.epochs for side in SIDES}
        further = len(specs) * (chosen.reckon - chosen.epochs)
        engine, loop = engine + further * epoch["engine"], loop + rest + further * epoch["loop"]
        reckon = f"engine {engine:.0f} s, expert's loop {loop:.0f} s: {loop / engine:.2f}x"
        print(f"{chosen.reckon} epochs, reckoned: {reckon}")
    print(f"  {'':10} {'engine':>8} {'loop':>10}")
    for part in PARTS:
        print(f"  {part:10} {sides['engine']['parts'][part]:8.1f} s {sides['loop']['parts'][part]:8.1f} s")
    print(_agreement(folder, specs, by_loop))


def study_specs(arch: str, runs: int, **fields: Any) -> "list[RunSpec]":
    """The runs, seed by seed."""
    from asymtrain.lab.runs import RunSpec
    from common import network_fields

    # Equal batch sizes, so that one captured graph trains them all.
    common = {"augmentation": "flip_shift", "last_batch": "drop", **network_fields(arch), **fields}
    seeds = range(-(-runs // len(KINDS)))
    return [RunSpec(seed=seed, **common, **kind) for seed in seeds for kind in KINDS.values()][:runs]


def program(spec: "RunSpec") -> tuple[object, ...]:
    """The settings for which the expert's loop compiles once."""
    return tuple(value for name, value in vars(spec).items() if name not in INPUTS_OF_A_STEP and name != "id")


def reckoned(seconds: list[float], specs: "list[RunSpec]") -> float:
    """Estimated seconds of the runs that the loop did not train, from the first ones, which it did."""
    programs = [program(spec) for spec in specs]
    first = [own not in programs[:i] for i, own in enumerate(programs)]
    mean = {kind: statistics.fmean(s for s, new in zip(seconds, first, strict=False) if new is kind)
            for kind in set(first[len(seconds) :])}  # fmt: skip
    return sum(mean[kind] for kind in first[len(seconds) :])


def _data(file: Path, images: int) -> str:
    import numpy as np

    from asymtrain.errors import UsageError
    from asymtrain.lab.data import load

    try:
        # Without the network, which might hang.
        load("cifar100", download=False)
    except UsageError:
        drawn = np.random.default_rng(0)
        sizes = {"": images, "_test": images // 5}
        arrays = {f"x{name}": drawn.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8) for name, n in sizes.items()}
        arrays |= {f"y{name}": np.arange(n) % 100 for name, n in sizes.items()}
        np.savez(file, **arrays)
        return f"npz:{file}"
    return "cifar100"


def _agreement(folder: Path, specs: "list[RunSpec]", by_loop: "list[RunSpec]") -> str:
    """How far the rows of the two stores differ; an error if rows are missing or far apart."""
    from asymtrain.lab.store import Store

    rows: dict[str, dict[str, Run]] = {}
    for side, wanted in zip(SIDES, (specs, by_loop), strict=True):
        with Store(folder / f"{side}.sqlite", read_only=True) as record:
            rows[side] = {run.spec.id: run for run in record.runs([spec.id for spec in wanted])}
        finished = sum(run.outcome == "finished" for run in rows[side].values())
        if finished < len(wanted):
            sys.exit(f"only {finished} of {len(wanted)} runs of the {side} are finished: see the lines above")
    pairs = [(rows["engine"][spec.id].history[-1], rows["loop"][spec.id].history[-1]) for spec in by_loop]
    differences = [one.test_accuracy - other.test_accuracy for one, other in pairs]
    losses = [abs(one.main_loss / other.main_loss - 1) for one, other in pairs]
    mean, largest = statistics.fmean(differences), max(map(abs, differences))
    agreement = (f"rows of {len(pairs)} runs on both sides: test accuracies differ by {100 * mean:+.2f} points in the "
             f"mean, at most {100 * largest:.2f}; main losses at most {max(losses):.1e} of theirs")  # fmt: skip
    if abs(mean) > LARGEST_DIFFERENCE:
        sys.exit(f"{agreement}: the two sides do not train the same")
    return agreement


def _train(side: str, folder: Path, device: str | None, clock: Clock) -> None:
    """Train one side in this process."""
    from asymtrain.lab.devices import default_device
    from asymtrain.lab.runs import RunSpec

    _watch_all(clock)
    specs = [RunSpec.from_dict(values) for values in json.loads((folder / f"{side}.specs.json").read_text())]
    train = by_engine if side == "engine" else by_loop
    with clock.part("other"):
        seconds = train(specs, folder / f"{side}.sqlite", default_device(device))
    (folder / f"{side}.json").write_text(json.dumps({"parts": clock.seconds, "runs": seconds}))


def by_engine(specs: "list[RunSpec]", store: Path, device: "torch.device") -> list[float]:
    """Train by the engine; the seconds of runs."""
    from asymtrain.lab import executors

    notes: set[str] = set()

    def progress(state: "Progress") -> None:
        if state.note and state.note not in notes:
            notes.add(state.note)
            print(f"engine: {state.note}", file=sys.stderr, flush=True)

    runs = executors.execute(
        specs, store=store, device=str(device), progress=progress, checkpoint_seconds=CHECKPOINT_SECONDS
    )
    return [run.seconds for run in runs]


def by_loop(specs: "list[RunSpec]", store: Path, device: "torch.device") -> list[float]:
    """Train by the expert's loop, one run after another; the seconds of each, including compilation."""
    import torch

    from asymtrain.lab.devices import compiler_settings, products_of
    from asymtrain.lab.engine import load_for
    from asymtrain.lab.store import Store
    from loops import Loop

    loops: dict[tuple[object, ...], Loop] = {}
    seconds, saved = [], time.monotonic()

    def checkpoint() -> None:
        nonlocal saved
        if time.monotonic() - saved > CHECKPOINT_SECONDS:
            saved = time.monotonic()
            state = {"weights": (loop.net or loop.model).state_dict(), "optimizer": loop.optimizer.state_dict()}
            torch.save(state, store.with_suffix(".pt"))

    dataset = load_for(specs[0])
    on_gpu = device.type == "cuda"
    with Store(store) as record, compiler_settings() if on_gpu else nullcontext(), products_of(specs[0].precision):
        record.claim(specs)
        for spec in specs:
            begun = time.monotonic()
            if (own := program(spec)) not in loops:
                loops[own] = Loop(spec, dataset, device, expert=on_gpu)
                loops[own].prepare()
            loop = loops[own]
            record.add(loop.train(spec, checkpoint))
            seconds.append(time.monotonic() - begun)
            print(f"loop: run {len(seconds)} of {len(specs)}, {seconds[-1]:.1f} s", file=sys.stderr, flush=True)
    return seconds


def _watch_all(clock: Clock) -> None:
    import torch

    import loops
    from asymtrain.lab import executors
    from asymtrain.lab.engine import programs, training
    from asymtrain.lab.executors import outcomes, stacks
    from asymtrain.lab.store import Store

    clock.watch(training, "data", "load")
    clock.watch(executors, "data", "check_sources")
    clock.watch(outcomes, "data", "take_fingerprints")
    clock.watch(stacks, "setup", "plan")
    clock.watch(training.Stack, "setup", "__init__")
    clock.watch(training.Stack, "steps", "advance")
    clock.watch(training.Stack, "evaluation", "_accuracies")
    clock.watch(training, "store", "load_checkpoint", "save_checkpoint")
    clock.watch(outcomes, "log", "log_epochs")
    clock.watch(executors, "store", "choose_stacks", "close_checkpoint", "tidy")
    clock.watch(Store, "store", "__init__", "claim", "runs", "add", "close")
    clock.watch(torch, "store", "save")
    clock.watch(loops.Loop, "setup", "__init__", "begin")
    clock.watch(loops.Loop, "steps", "epoch")
    clock.watch(loops.Loop, "evaluation", "answers")
    # The steps before a capture only compile; the capture itself is torch's.
    clock.watch(programs.CapturedSteps, "compile", "_capture")
    clock.watch(loops, "compile", "captured")
    enter, leave = torch.cuda.graph.__enter__, torch.cuda.graph.__exit__

    def begin(graph: Any) -> None:
        clock.enter("capture")
        enter(graph)

    def end(graph: Any, *error: Any) -> None:
        leave(graph, *error)
        clock.leave()

    torch.cuda.graph.__enter__, torch.cuda.graph.__exit__ = begin, end  # type: ignore[method-assign,assignment]
    if torch.cuda.is_available():
        import torch._dynamo.callback as compiler

        # Other compilation: the forward of an evaluation.
        compiler.on_compile_start(lambda *_: clock.enter("compile"))
        compiler.on_compile_end(lambda *_: clock.leave())


if __name__ == "__main__":
    main()
