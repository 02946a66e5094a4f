"""How long does a whole study take, from a cold process to the last row in the store, and where do its seconds go?

    python benchmarks/study.py --arch cnn --epochs 3          # on this machine's GPU, or its CPU
    python benchmarks/study.py --arch mlp --epochs 1 --runs 4 --device cpu
    python benchmarks/study.py --arch vit --cache DIR         # twice: the second finds its compiled code there
    python benchmarks/study.py --arch vit --expert plain      # where time is short

36 runs: Plain and the 11 kinds of branches in `KINDS`, 3 seeds, batch 128, flips and shifts, validation at every epoch,
cosines at every 16th step, each run's rows and checkpoints in a store in a temporary folder. The data is CIFAR-100 if
$ASYMTRAIN_DATA has it, else random bytes of its shape; writing those is not counted. Seconds so far go to the error
stream after each epoch.

Counted is everything from this script's first line to the last run. Compiled code is not taken from an earlier process
unless `--cache` names its folder. The parts:

- import; data (loading, fingerprints); setup (plans, splits, initial weights, data to the device)
- compile: the compiler wherever it runs, and the steps that warm up a capture; capture: recording the CUDA graphs
- steps, with the reading of their sums once an epoch; evaluation
- store: claims, rows, logs of epochs, checkpoints
- idle: what none of the timed functions had, Python between them

Beside it stands the expert's loop of loops.py, training the same runs one after another: of a Plain run and of one with
branches, the step and the evaluation are timed in this process after the study, and multiplied by the steps, epochs and
runs of the study. It measures no cosine and stores nothing. Its compilation is not in the first ratio; in the second it
is, once for each program: alpha and labels are inputs of one. `--expert plain` times the Plain run alone and counts
every run as one, so the ratios are too low, not too high; `--expert none` leaves the loop out.
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
from typing import TYPE_CHECKING, Any  # noqa: E402

if TYPE_CHECKING:
    from asymtrain.lab.engine import Progress
    from asymtrain.lab.runs import RunSpec

KINDS: dict[str, dict[str, Any]] = {
    "Plain": {"redundancy": 0},
    "sigmoid, alpha 0.1": {"alpha": 0.1},
    "sigmoid, alpha 0.3": {"alpha": 0.3},
    "sigmoid, alpha 1": {"alpha": 1.0},
    "sigmoid with prior bias, alpha 0.3": {"branch_bias": "prior", "alpha": 0.3},
    "sigmoid with prior bias, alpha 1": {"branch_bias": "prior", "alpha": 1.0},
    "softmax, alpha 0.3": {"objective": "softmax", "alpha": 0.3},
    "softmax, alpha 1": {"objective": "softmax", "alpha": 1.0},
    "sigmoid on random labels": {"branch_labels": "random"},
    "frozen sigmoid": {"branch_weights": "frozen"},
    "detached sigmoid": {"signal": "detached"},
    "sigmoid, alpha to zero by a cosine": {"alpha_schedule": "cosine"},
}
PARTS = ("import", "data", "setup", "compile", "capture", "steps", "evaluation", "store", "idle")
ONCE = ("import", "data", "setup", "compile", "capture")  # however many epochs there are
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

        device = default_device(chosen.device)
        _watch_all(clock)
    precision = chosen.precision or ("bf16" if device.type == "cuda" else "fp32")
    specs = _specs(chosen, precision, folder, clock)
    notes: list[str] = []

    def progress(state: "Progress") -> None:
        if state.note:
            notes.append(state.note)
        if state.recorded:  # on the way, for one that is cut off
            parts = ", ".join(f"{part} {clock.seconds[part]:.1f}" for part in PARTS if clock.seconds[part] >= 0.05)
            print(f"{state.epochs_done} of {state.epochs_total} epochs of runs: {parts}", file=sys.stderr, flush=True)

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
    trained = images * chosen.epochs * len(specs)
    print(f"whole study: {total:.1f} s, {trained / total:,.0f} images/s")
    for part in PARTS:
        print(f"  {part:10} {seconds[part]:8.1f} s {seconds[part] / total:6.1%}")
    if device.type == "cpu":
        print("  (runs trained in processes of their own, where there are several cores: their parts are idle here)")
    else:
        once = sum(seconds[part] for part in ONCE)
        longer = once + (total - once) / chosen.epochs * LONGER
        print(f"steps alone: {trained / seconds['steps']:,.0f} images/s")
        print(f"{LONGER} epochs, reckoned from these parts: {longer:.1f} s, "
              f"{trained / chosen.epochs * LONGER / longer:,.0f} images/s")  # fmt: skip
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if chosen.expert == "none":
        return
    loop, warm_up = _expert(specs, device, steps, chosen)
    if chosen.expert == "plain":
        print("  (every run is counted as a Plain one: the loop takes longer than this with branches)")
    print(f"expert's loop, one run after another: {loop:.1f} s, {trained / loop:,.0f} images/s; "
          f"its compilation, once for each program: {warm_up:.1f} s")  # fmt: skip
    print(f"whole study / expert's loop without its compilation: {loop / total:.2f}x; with it: "
          f"{(loop + warm_up) / total:.2f}x")  # fmt: skip
    if device.type == "cuda":
        whole = loop / chosen.epochs * LONGER
        print(f"at {LONGER} epochs, reckoned: {whole / longer:.2f}x without, {(whole + warm_up) / longer:.2f}x with it")


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
    clock.watch(outcomes, "log_epochs", "store")
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
    from asymtrain.lab.engine import load_for
    from asymtrain.lab.runs import RunSpec

    fields: dict[str, Any] = {
        "dataset": "cifar100", "arch": chosen.arch, "epochs": chosen.epochs, "precision": precision,
        "augmentation": "flip_shift",
    }  # fmt: skip
    if ":" in chosen.arch:
        from common import OPTIONS

        fields["arch_options"] = OPTIONS.get(chosen.arch, {})
    try:
        load_for(RunSpec(**fields))
    except UsageError:
        with clock.part("not counted"):
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
    from asymtrain.lab.engine.setup import run_data, steps_of

    return steps_of(spec, len(run_data(spec, load_for(spec)).train))


def _expert(specs: "list[RunSpec]", device: Any, steps: int, chosen: argparse.Namespace) -> tuple[float, float]:
    """Seconds of training these runs one after another, and of compiling each of their programs once."""
    from asymtrain.lab.engine import load_for
    from common import Timer
    from loops import Loop

    timer = Timer(device, chosen.seconds)
    whole = compiled = 0.0
    for plain in (True, False):
        own = [spec for spec in specs if (spec.redundancy == 0) == plain]
        if chosen.expert == "plain":
            own = [spec.plain() for spec in specs] if plain else []
        if not own:
            continue
        begun = time.perf_counter()
        loop = Loop(own[0], load_for(own[0]), device, expert=device.type == "cuda")
        loop.step()
        loop.evaluate()
        warm_up = time.perf_counter() - begun
        step, evaluation = timer.seconds(loop.step), timer.seconds(loop.evaluate)
        print(f"  {'Plain' if plain else 'branches'}: {own[0].batch / step:,.0f} images/s in steps, "
              f"{evaluation * 1e3:.1f} ms for an evaluation, warm after {warm_up:.1f} s")  # fmt: skip
        whole += len(own) * chosen.epochs * (steps * step + evaluation)
        compiled += warm_up * len({_program(spec) for spec in own})
    return whole, compiled


if __name__ == "__main__":
    main()
