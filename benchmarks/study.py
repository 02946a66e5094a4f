"""How long does a whole study take, from a cold process to the last row in the store, and where do its seconds go?

    python benchmarks/study.py --arch cnn --epochs 3          # on this machine's GPU, or its CPU
    python benchmarks/study.py --arch mlp --epochs 1 --runs 4 --device cpu
    python benchmarks/study.py --arch vit --cache DIR         # twice: the second finds its compiled code there
    python benchmarks/study.py --arch vit --expert plain      # where time is short

36 runs: Plain and the 11 kinds of branches in `KINDS`, 3 seeds, batch 128, flips and shifts, validation at every epoch,
cosines at every 16th step, each run's rows and checkpoints in a store in a temporary folder. The data is CIFAR-100 if
$ASYMTRAIN_DATA has it, else random bytes of its shape; looking for it and writing those is not counted. Seconds so far
go to the error stream after each epoch, and every figure is printed when it is there: a study that is cut off leaves
those before.

Counted is everything from this script's first line to the last run. Compiled code is not taken from an earlier process
unless `--cache` names its folder. The parts:

- import; data (loading, fingerprints); setup (plans, splits, initial weights, data to the device)
- compile: the compiler wherever it runs, and the steps that warm up a capture; capture: recording the CUDA graphs
- steps, with the reading of their sums once an epoch; evaluation
- store: claims, rows, checkpoints; log: that of each epoch
- idle: what none of the timed functions had, Python between them

Beside it stands the expert's loop of loops.py, training the same runs one after another: of a Plain run and of one with
branches, the step and the evaluation are timed in this process after the study, and multiplied by the steps, epochs and
runs of the study. It measures no cosine and stores nothing. Its compilation is not in the first ratio; in the second it
is, once for each program: alpha and labels are inputs of one. `--expert plain` times the Plain run alone and counts
every run as one, so the ratios are too low, not too high; `--expert none` leaves the loop out.

What a longer study would take is reckoned: the start (import, data, setup, compile, capture) and the store once, and
everything else as often as there are epochs. Left out are the checkpoints that a stack writes on its way, one a minute.
"""

import time

BEGUN = time.perf_counter()

import argparse  # noqa: E402  (the clock runs from here)
import gc  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from functools import wraps  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING, Any, NamedTuple  # noqa: E402

if TYPE_CHECKING:
    from asymtrain.lab.engine import Progress
    from asymtrain.lab.runs import RunSpec

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
    "detached sigmoid": {"signal": "detached"},
    "sigmoid, alpha to zero by a cosine": {"alpha_schedule": "cosine"},
}
PARTS = ("import", "data", "setup", "compile", "capture", "steps", "evaluation", "store", "log", "idle")
ONCE = ("import", "data", "setup", "compile", "capture", "store")  # however many epochs there are
LONGER = 40  # epochs, for which the whole is reckoned from this one's parts


class Clock:
    """Seconds by part. A part inside of another is not counted twice; what is in none is idle."""

    def __init__(self, begun: float) -> None:
        self.seconds, self.open, self.since = dict.fromkeys((*PARTS, "not counted"), 0.0), ["idle"], begun

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block as this part."""
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def enter(self, name: str) -> None:
        """A part begins."""
        self._count()
        self.open.append(name)

    def leave(self) -> None:
        """It ends; what it lies in goes on."""
        self._count()
        self.open.pop()

    def _count(self) -> None:
        now = time.perf_counter()
        self.seconds[self.open[-1]] += now - self.since
        self.since = now

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Count the calls of a function as this part."""
        function: Callable[..., Any] = getattr(owner, name)

        @wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            with self.part(part):
                return function(*args, **options)

        setattr(owner, name, timed)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--arch", default="cnn")
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--runs", type=int, default=36, help="fewer make it small: the first of the list")
    options.add_argument("--images", type=int, default=50_000, help="of random data, where there is no CIFAR-100")
    options.add_argument("--device")
    options.add_argument("--precision", help="bf16 on a GPU, fp32 on a CPU, where nothing is given")
    options.add_argument("--cache", help="a folder of compiled code that outlives this process")
    options.add_argument(
        "--expert", choices=("both", "plain", "none"), default="both", help="which runs of the expert's loop are timed"
    )
    options.add_argument(
        "--seconds", type=float, default=1.0, help="of timed work for each figure of the expert's loop"
    )
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = chosen.cache or f"{folder}/compiled"
        os.environ["TRITON_CACHE_DIR"] = f"{os.environ['TORCHINDUCTOR_CACHE_DIR']}/triton"
        _measure(chosen, Path(folder))


def _measure(chosen: argparse.Namespace, folder: Path) -> None:
    clock = Clock(BEGUN)
    with clock.part("import"):
        import torch

        from asymtrain.lab import executors
        from asymtrain.lab.devices import default_device, device_name
        from asymtrain.lab.machine import cores

        device = default_device(chosen.device)
        _watch_all(clock)
    precision = chosen.precision or ("bf16" if device.type == "cuda" else "fp32")
    _say("imported", clock)
    specs = _specs(chosen, precision, folder, clock)
    _say("specs and data", clock)
    notes: list[str] = []

    stages: set[object] = set()

    def progress(state: "Progress") -> None:
        if state.note:
            notes.append(state.note)
        stage = (state.runs_done, state.epochs_done)  # on the way, for one that is cut off
        if stage not in stages:
            stages.add(stage)
            _say(f"{state.epochs_done} of {state.epochs_total} epochs of runs", clock)

    runs = list(executors.execute(specs, store=folder / "study.sqlite", device=chosen.device, progress=progress))
    clock.enter("not counted")  # the study is over
    seconds = dict(clock.seconds)
    total = sum(seconds[part] for part in PARTS)
    if len(runs) < len(specs) or any(run.outcome != "finished" for run in runs):
        print(f"only {sum(run.outcome == 'finished' for run in runs)} of {len(specs)} runs are finished")
    print(f"{device_name(device)}, torch {torch.__version__}: {chosen.arch}, {precision}, {len(specs)} runs of "
          f"{len({_kind(spec) for spec in specs})} kinds, {chosen.epochs} epochs")  # fmt: skip
    for note in dict.fromkeys(notes):
        print(f"  note: {note}")
    steps, images = _sizes(specs[0])
    study = Study(len(specs), chosen.epochs, images, total, sum(seconds[part] for part in ONCE))
    print(f"whole study: {total:.1f} s, {study.images / total:,.0f} images/s")
    for part in PARTS:
        print(f"  {part:10} {seconds[part]:8.1f} s {seconds[part] / total:6.1%}")
    in_parts = device.type != "cpu" or cores() == 1
    if not in_parts:
        print("  (runs trained in a process for each core: their parts are idle here)")
    else:
        print(f"start and store {study.once:.1f} s, then {study.epoch:.2f} s for an epoch of all runs; "
              f"steps alone: {study.images / seconds['steps']:,.0f} images/s")  # fmt: skip
        print(f"{LONGER} epochs, reckoned from these parts: {study.longer:.1f} s, "
              f"{images * len(specs) * LONGER / study.longer:,.0f} images/s", flush=True)  # fmt: skip
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if chosen.expert != "none":
        _compare(study, specs, device, steps, chosen, in_parts=in_parts)


def _say(what: str, clock: Clock) -> None:
    parts = ", ".join(f"{part} {clock.seconds[part]:.1f}" for part in PARTS if clock.seconds[part] >= 0.05)
    after = sum(clock.seconds[part] for part in PARTS)
    print(f"{what} after {after:.1f} s: {parts}", file=sys.stderr, flush=True)


class Study(NamedTuple):
    """What was measured, in seconds."""

    runs: int
    epochs: int
    images_of_epoch: int  # of one run
    total: float
    once: float  # of it, however many epochs there are

    @property
    def images(self) -> int:
        """Trained on, by all runs."""
        return self.runs * self.epochs * self.images_of_epoch

    @property
    def epoch(self) -> float:
        """One epoch of all runs."""
        return (self.total - self.once) / self.epochs

    @property
    def longer(self) -> float:
        """The same runs with `LONGER` epochs."""
        return self.once + LONGER * self.epoch


def _watch_all(clock: Clock) -> None:
    import torch

    from asymtrain.lab import executors
    from asymtrain.lab.engine import programs, training
    from asymtrain.lab.executors import outcomes, stacks
    from asymtrain.lab.store import Store

    clock.watch(training, "load", "data")
    clock.watch(executors, "check_sources", "data")
    clock.watch(outcomes, "take_fingerprints", "data")
    clock.watch(stacks, "plan", "setup")
    clock.watch(training.Stack, "__init__", "setup")
    clock.watch(training.Stack, "advance", "steps")
    clock.watch(training.Stack, "_accuracies", "evaluation")
    clock.watch(training, "load_checkpoint", "store")
    clock.watch(training, "save_checkpoint", "store")
    clock.watch(outcomes, "log_epochs", "log")
    for name in ("choose_stacks", "close_checkpoint", "tidy"):
        clock.watch(executors, name, "store")
    for name in ("__init__", "claim", "runs", "add", "close"):
        clock.watch(Store, name, "store")
    # The steps before a capture are there to compile; the capture itself is torch's.
    clock.watch(programs.CapturedSteps, "_capture", "compile")
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

        # Where else something is compiled: the forward of an evaluation.
        compiler.on_compile_start(lambda *_: clock.enter("compile"))
        compiler.on_compile_end(lambda *_: clock.leave())


def _specs(chosen: argparse.Namespace, precision: str, folder: Path, clock: Clock) -> "list[RunSpec]":
    """The runs, seed by seed."""
    from asymtrain.errors import UsageError
    from asymtrain.lab.data import load
    from asymtrain.lab.runs import RunSpec
    from common import network_fields

    fields: dict[str, Any] = {
        "dataset": "cifar100", "epochs": chosen.epochs, "precision": precision, "augmentation": "flip_shift",
        **network_fields(chosen.arch),
    }  # fmt: skip
    with clock.part("not counted"):
        try:
            # Not over the network: one that does not answer is waited for.
            load("cifar100", download=False)
        except UsageError:
            fields["dataset"] = _random_data(folder / "random.npz", chosen.images)
    seeds = range(-(-chosen.runs // len(KINDS)))
    return [RunSpec(seed=seed, **fields, **kind) for seed in seeds for kind in KINDS.values()][: chosen.runs]


def _random_data(file: Path, images: int) -> str:
    import numpy as np

    drawn = np.random.default_rng(0)
    sizes = {"": images, "_test": images // 5}
    arrays = {f"x{name}": drawn.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8) for name, n in sizes.items()}
    arrays |= {f"y{name}": np.arange(n) % 100 for name, n in sizes.items()}
    np.savez(file, **arrays)
    return f"npz:{file}"


def _kind(spec: "RunSpec", without: tuple[str, ...] = ()) -> tuple[object, ...]:
    names = dict.fromkeys(name for kind in KINDS.values() for name in kind)
    return tuple(getattr(spec, name) for name in names if name not in without)


def _program(spec: "RunSpec") -> tuple[object, ...]:
    """What the expert would compile once: alpha and labels are inputs of a step."""
    return _kind(spec, ("alpha", "alpha_schedule", "branch_labels"))


def _sizes(spec: "RunSpec") -> tuple[int, int]:
    """Steps and images of a run's epoch."""
    from asymtrain.lab.engine import load_for
    from asymtrain.lab.engine.schedule import steps_of
    from asymtrain.lab.engine.setup import run_data

    return steps_of(spec, len(run_data(spec, load_for(spec)).train))


def _compare(
    study: Study, specs: "list[RunSpec]", device: Any, steps: int, chosen: argparse.Namespace, *, in_parts: bool
) -> None:
    """The expert's loop on the same runs: first as if all were Plain, which takes it less time than they do."""
    from asymtrain.lab.engine import load_for
    from common import Timer
    from loops import Loop

    timer = Timer(device, chosen.seconds)

    def seconds(kind: str, own: "list[RunSpec]") -> tuple[float, float, float]:
        """An epoch, compiling, and how many programs there are of that."""
        begun = time.perf_counter()
        loop = Loop(own[0], load_for(own[0]), device, expert=device.type == "cuda")
        loop.step()
        loop.evaluate()
        warm_up = time.perf_counter() - begun
        step, evaluation = timer.seconds(loop.step), timer.seconds(loop.evaluate)
        print(f"  {kind}: {own[0].batch / step:,.0f} images/s in steps, {evaluation * 1e3:.1f} ms for an evaluation, "
              f"warm after {warm_up:.1f} s")  # fmt: skip
        return steps * step + evaluation, warm_up, len({_program(spec) for spec in own})

    def ratios(what: str, epoch: float, warm_up: float) -> None:
        loop = epoch * study.epochs
        print(f"expert's loop, {what}: {loop:.1f} s, {study.images / loop:,.0f} images/s; "
              f"its compilation, once for each program: {warm_up:.1f} s")  # fmt: skip
        print(f"whole study / expert's loop without its compilation: {loop / study.total:.2f}x; with it: "
              f"{(loop + warm_up) / study.total:.2f}x", flush=True)  # fmt: skip
        if in_parts:
            whole = epoch * LONGER
            print(f"at {LONGER} epochs, reckoned: {whole / study.longer:.2f}x without, "
                  f"{(whole + warm_up) / study.longer:.2f}x with it", flush=True)  # fmt: skip

    plain = [spec for spec in specs if not spec.redundancy]
    others = [spec for spec in specs if spec.redundancy]
    epoch, warm_up, programs = seconds("Plain", plain or [spec.plain() for spec in others])
    if chosen.expert == "plain" or (device.type == "cuda" and others):
        ratios("as if every run were a Plain one, which takes it less time", epoch * len(specs), warm_up * programs)
    if chosen.expert == "both" and others:
        own = epoch * len(plain), warm_up * programs if plain else 0.0
        epoch, warm_up, programs = seconds("branches", others)
        ratios("one run after another", own[0] + epoch * len(others), own[1] + warm_up * programs)


if __name__ == "__main__":
    main()
