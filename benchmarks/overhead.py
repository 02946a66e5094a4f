"""What do branches and measurements cost, relative to a step without them?

    python benchmarks/overhead.py                  # on this machine's GPU, or its CPU
    python benchmarks/overhead.py --only models --model vit_small_patch16_224
    python benchmarks/overhead.py --device cpu --only backbones --arch mlp
    python benchmarks/overhead.py --only practice --store practice.sqlite --json practice-step.json

Ordinary models of timm (bf16 autocast, 224 px, 1,000 classes, fused AdamW): a step with branches against one without.
All run in one process and take turns, so that other work on the machine affects all equally. Two builds of the same
model differ in speed because of their memory addresses, and more turns do not change that: so each side is built
several times (`--builds`). The figure is the median build with branches over the median build without, each the median
over turns; in parentheses are the extremes over pairs of builds, one of each side, and under "none / none" the slowest
plain build over the fastest, which shows the error. "On the device" is the summed time of a plain step's kernels and
copies, and its ratio with branches: the time of a step if the processor keeps up with the GPU. The same for the models
of the practice study (`practice`: 32 px, 100 classes), with the branches that a store's rows select for each, else with
the paper's. `--json` keeps the rows, for `asymtrain practice show --step-costs`. Then the paper's small backbones,
which are bound by launches, with branches against none: in the loop a user would write (`loops`), beside a loop whose
optimizer has only the branches' weights; and with whole steps captured as CUDA graphs (`graphs`). Then 300 branches
against one (time, and memory beyond their weights) and in the engine the gradient cosine at every step and at every
16th, against none (`backbones`).
"""

import argparse
import copy
import functools
import gc
import itertools
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain import WithBranches, attach, models
from asymtrain.branches import Linear, find_blocks
from asymtrain.lab.candidates import Candidate
from asymtrain.lab.engine.setup import build_module, chosen_layers
from asymtrain.lab.studies.practice.protocol import FULL, NONE, Task, final_specs
from asymtrain.lab.studies.practice.protocol import MODELS as PRACTICE
from asymtrain.lab.studies.practice.selection import RunsById, select
from asymtrain.lab.studies.snapshot import read_store
from common import CLASSES, Timer, device_name, engine_step, plain_loop, stack_size, synthetic
from loops import captured

Step = Callable[[], None]
MODELS = {  # layers, and a batch that fits
    "resnet50": ("layer[1-4]", 128),
    "vit_small_patch16_224": ("blocks.*", 128),
    "swin_tiny_patch4_window7_224": ("layers.*", 96),
    "convnext_tiny": ("stages.*", 96),
}
TURNS, WARM, BUILDS, PROFILED = 15, 5, 3, 5
GROUPS = ["models", "practice", "loops", "graphs", "backbones"]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS)
    options.add_argument("--model", nargs="+", choices=[*MODELS, *PRACTICE], help="of `models` and `practice`")
    options.add_argument("--mode", nargs="+", default=["eager", "compiled"], choices=["eager", "compiled"])
    options.add_argument("--batch", type=int, help="instead of 96 or 128")
    options.add_argument("--turn", type=float, default=0.3, help="seconds of each of the turns")
    options.add_argument("--turns", type=int, default=TURNS)
    options.add_argument(
        "--builds", type=int, default=BUILDS, help="of each side, in `models`, `practice`, `loops`, `graphs`"
    )
    options.add_argument("--store", type=Path, help="of the practice study: what it selected for each model")
    options.add_argument("--json", type=Path, help="write the rows of `models` and `practice` here too")
    options.add_argument("--arch", nargs="+", default=list(models.BACKBONES))
    chosen = options.parse_args()
    if min(chosen.builds, chosen.turns) < 1:
        options.error("--builds and --turns must be 1 or more: the figures are medians over them")
    device = torch.device(chosen.device)
    print(f"{device_name(device)}, torch {torch.__version__}", flush=True)
    rows: list[dict[str, Any]] = []
    for group, cases in {"models": timm_cases, "practice": practice_cases}.items():
        if group in chosen.only:
            for row in print_models(cases(chosen), chosen, device):
                rows.append({"group": group, **row})
                if chosen.json:  # row by row, so that an interrupted call leaves what it measured
                    chosen.json.write_text(json.dumps(rows, indent=1) + "\n")
    if "loops" in chosen.only:
        print_loops(chosen, device)
    if "graphs" in chosen.only and device.type == "cuda":
        print_graphs(chosen, device)
    if "backbones" in chosen.only:
        print_backbones(chosen.arch, device)


@dataclass(frozen=True)
class Case:
    """A model, a batch for it, and the branches whose steps are compared with a plain one."""

    name: str
    model: nn.Module
    x: Tensor
    classes: int
    forms: list[tuple[Mapping[str, str], Mapping[str, Any]]]  # a description of the branches, and options of `attach`


def timm_cases(chosen: argparse.Namespace) -> Iterator[Case]:
    for name, (at, batch) in MODELS.items():
        if name in (chosen.model or MODELS):
            torch.manual_seed(0)
            model = import_module("timm").create_model(name, num_classes=1000)
            yield Case(name, model, torch.randn(chosen.batch or batch, 3, 224, 224), 1000, [({}, {"at": at})])


def practice_cases(chosen: argparse.Namespace) -> Iterator[Case]:
    """The study's models, with the layers that the study's branches use."""
    runs = read_store(chosen.store).runs if chosen.store else {}
    for name in PRACTICE:
        if name in (chosen.model or PRACTICE):
            task = Task(name)
            model = build_module(final_specs(FULL, task, [NONE])[0], synthetic(128))
            x = torch.randn(chosen.batch or FULL.fields["batch"], 3, 32, 32)
            at = find_blocks(model, x[:2])
            read = {"pool": model.pool, "layout": model.layout} if isinstance(model, models.Backbone) else {}
            form = practice_form(task, runs)
            about = {"objective": form.objective, "bias": form.bias, "layers": form.layers}
            head = {"head": Linear("prior") if form.bias == "prior" else "linear"}
            here = [at[k] for k in chosen_layers(len(at), form.layers)]
            forms = [(about, {"at": here, "objective": form.objective, **head, **read})]
            yield Case(name, model, x, CLASSES, forms)


def practice_form(task: Task, runs: RunsById) -> Candidate:
    """The configuration that was selected for a model; the paper's if none is selected yet."""
    selection = select(FULL, task, runs)
    return selection.configurations[selection.selected] if selection and selection.complete else Candidate()


def print_models(cases: Iterator[Case], chosen: argparse.Namespace, device: torch.device) -> Iterator[dict[str, Any]]:
    """A line and a row for each model, mode and configuration of branches."""
    print(f"\n{'':29} {'':8} {'layers':>6} {'plain':>9} {'branches / none':>22} {'none / none':>11}"
          f" {'on the device':>15} {'kernels':>13} {'memory':>16}")  # fmt: skip
    on_gpu = device.type == "cuda"
    for case, mode in ((case, mode) for case in cases for mode in chosen.mode):
        if mode == "compiled":
            torch._dynamo.reset()
            torch._dynamo.config.recompile_limit = 64  # the same function is compiled for every configuration
        build = functools.partial(alone, functools.partial(model_step, case, mode, device), device=device)
        # One of each side after the other, so that no side gets all the memory taken first. Builds share compiled code.
        rounds = [[build(options) for options in (None, *(options for _, options in case.forms))]
                  for _ in range(chosen.builds)]  # fmt: skip
        sides = [[step for step, *_ in side] for side in zip(*rounds, strict=True)]
        timed = in_turns(sides, device, chosen.turn, chosen.turns)
        (plain, _, without), *branched = rounds[0]
        without_branches = launches(plain) if on_gpu else None
        for (about, _), (step, layers, peak), ratio in zip(case.forms, branched, timed.ratios, strict=True):
            counts, busy, kernels, on_device = None, None, "-", "-"
            if without_branches:
                more = launches(step)
                counts = (without_branches.kernels, more.kernels - without_branches.kernels)
                busy = (without_branches.seconds, more.seconds)
                kernels = " + ".join(map(str, counts))
                on_device = f"{busy[0] * 1e3:.2f} ms {busy[1] / busy[0]:.3f}x"
            memory = f"{without} + {peak - without} MiB" if on_gpu else "-"
            label = ", ".join(about.values())
            print(f"{case.name:29} {mode:8} {layers:6} {timed.seconds * 1e3:6.1f} ms {ratio} {timed.error:10.3f}x"
                  f" {on_device:>15} {kernels:>13} {memory:>16}  {label}".rstrip(), flush=True)  # fmt: skip
            yield {
                "model": case.name, "mode": mode, "branches": dict(about), "attached": layers,
                "plain_seconds": timed.seconds, "ratio": ratio.value, "ratio_range": (ratio.low, ratio.high),
                "plain_ratio": timed.error, "builds": chosen.builds, "kernels": counts, "device_seconds": busy,
                "memory_mib": (without, peak - without) if on_gpu else None, "batch": len(case.x),
                "device": device_name(device), "torch": torch.__version__,
            }  # fmt: skip
        del rounds, sides, plain, branched, step


def alone(
    build: Callable[[Mapping[str, Any] | None], tuple[Step, int]],
    options: Mapping[str, Any] | None,
    device: torch.device,
) -> tuple[Step, int, int]:
    """A warmed-up step, the number of its layers, and its peak memory (MiB), including the optimizer.

    The peak is counted from before the build, not from before the step: branches hold features of the last step until
    the next forward begins, so memory freed in a step would look like a saving.
    """
    gc.collect()
    before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    step, layers = build(options)
    warm_up(step)
    if device.type != "cuda":
        return step, layers, 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return step, layers, round((torch.cuda.max_memory_allocated() - before) / 2**20)


def warm_up(step: Step) -> None:
    for _ in range(WARM):
        step()


def model_step(case: Case, mode: str, device: torch.device, options: Mapping[str, Any] | None) -> tuple[Step, int]:
    """A training step of a model, with branches if options of `attach` are given; and the number of layers."""
    torch.manual_seed(0)
    model = copy.deepcopy(case.model).to(device).train()
    x, y = case.x.to(device), torch.randint(case.classes, (len(case.x),), device=device)
    branches = None if options is None else attach(model, sample=x[:4], classes=case.classes, **options)
    auxiliary = [] if branches is None else list(branches.parameters())
    optimizer = torch.optim.AdamW([*model.parameters(), *auxiliary], lr=1e-4, fused=device.type == "cuda")
    net = None if branches is None else WithBranches(model, branches)

    def loss() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):  # slow on many CPUs
            if branches is None or net is None:
                return F.cross_entropy(model(x), y)
            if mode == "eager":
                return F.cross_entropy(model(x), y) + branches.loss(y)
            output, logits = net(x)
            return F.cross_entropy(output, y) + branches.loss(y, logits=logits)

    loss_of_step = torch.compile(loss) if mode == "compiled" else loss

    def step() -> None:
        total = loss_of_step()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()

    return step, 0 if branches is None else len(branches.layers)


@dataclass(frozen=True)
class Ratio:
    """A side's median build over the plain one's, with the extremes over pairs of builds."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:7.3f}x ({self.low:.3f}-{self.high:.3f})"


@dataclass(frozen=True)
class Timed:
    """Seconds of a plain step, the ratios of other sides to it, and of the slowest plain build to the fastest."""

    seconds: float
    ratios: list[Ratio]
    error: float


def in_turns(sides: Sequence[Sequence[Step]], device: torch.device, turn: float, turns: int = TURNS) -> Timed:
    """Time builds of several sides in turns; the first side is plain."""
    steps = [step for side in sides for step in side]
    for step in steps:
        warm_up(step)
    timer = Timer(device, turn)
    gc.collect()
    gc.freeze()  # the builds made many objects, and scanning them is not part of a step
    timed = [[timer.seconds(step, parts=1) for step in steps] for _ in range(turns)]
    gc.unfreeze()
    return summarise(timed, [len(side) for side in sides])


def summarise(timed: list[list[float]], sizes: list[int]) -> Timed:
    """The result from seconds by turn and build, plain builds first; `sizes` are the numbers of builds of each side."""
    means = [statistics.fmean(seconds[: sizes[0]]) for seconds in timed]
    # Relative to the plain builds of the same turn: a machine that is slow for a while slows all of them.
    relative = [[each / mean for each in seconds] for seconds, mean in zip(timed, means, strict=True)]
    builds = iter([statistics.median(column) for column in zip(*relative, strict=True)])
    plain, *others = (list(itertools.islice(builds, size)) for size in sizes)
    ratios = [
        Ratio(statistics.median(side) / statistics.median(plain), min(side) / max(plain), max(side) / min(plain))
        for side in others
    ]
    return Timed(statistics.median(means), ratios, max(plain) / min(plain))


class Launches(NamedTuple):
    """A step's work on the GPU: the number of kernels, and the summed seconds of kernels and copies."""

    kernels: int
    seconds: float


def launches(step: Step) -> Launches:
    """The launches of one step; the seconds are the median of several."""
    seconds = []
    for _ in range(PROFILED):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            step()
            torch.cuda.synchronize()
        on_device = [event for event in profile.events() or [] if event.device_type == torch.autograd.DeviceType.CUDA]
        seconds.append(sum(event.time_range.elapsed_us() for event in on_device) / 1e6)
    return Launches(
        sum(not event.name.startswith(("Memcpy", "Memset")) for event in on_device), statistics.median(seconds)
    )


def print_loops(chosen: argparse.Namespace, device: torch.device) -> None:
    """The small backbones: a plain step; the ratios of branches, other builds and the optimizer's part; kernels."""
    print(f"\n{'':9} {'plain':>9} {'branches / none':>22} {'none / none':>11} {'optimizer':>9} {'kernels':>10}")
    for arch in chosen.arch:
        for autocast in (False, True) if device.type == "cuda" else (False,):
            build = functools.partial(plain_loop, arch, device, autocast=autocast)
            rounds = [
                (build(redundancy=0), build(redundancy=1), build(redundancy=1, weights_alone=True))
                for _ in range(chosen.builds)
            ]
            timed = in_turns(list(zip(*rounds, strict=True)), device, chosen.turn, chosen.turns)
            ratio, optimizer = timed.ratios
            launch_words = "-"
            if device.type == "cuda":
                without, with_branches = (launches(step).kernels for step in rounds[0][:2])
                launch_words = f"{without} + {with_branches - without}"
            print(f"{arch:4} {'bf16' if autocast else 'fp32'} {timed.seconds * 1e3:6.3f} ms {ratio}"
                  f" {timed.error:10.3f}x {optimizer.value:8.3f}x {launch_words:>10}", flush=True)  # fmt: skip


def print_graphs(chosen: argparse.Namespace, device: torch.device) -> None:
    """The same steps, each captured as one CUDA graph and replayed."""
    print(f"\n{'captured':9} {'plain':>9} {'branches / none':>22} {'none / none':>11}")
    for arch in chosen.arch:
        for autocast in (False, True):
            build = functools.partial(plain_loop, arch, device, autocast=autocast, capturable=True)
            rounds = [[captured(build(redundancy=count)) for count in (0, 1)] for _ in range(chosen.builds)]
            timed = in_turns(list(zip(*rounds, strict=True)), device, chosen.turn, chosen.turns)
            print(f"{arch:4} {'bf16' if autocast else 'fp32'} {timed.seconds * 1e3:6.3f} ms {timed.ratios[0]}"
                  f" {timed.error:10.3f}x", flush=True)  # fmt: skip


def print_backbones(names: list[str], device: torch.device) -> None:
    print(f"\n{'':4} {'branches / none':>15} {'N=1 / N=1':>10} {'N=300 / N=1':>12} {'extra memory':>13}"
          f" {'its weights':>12} {'cosine each':>12} {'each 16th':>10}")  # fmt: skip
    for arch in names:
        one, again, many, extra, weights = redundancy_cost(arch, device)
        each, sixteenth = cosine_cost(arch, device)
        memory = f"{extra / 2**20:9.1f} MiB" if device.type == "cuda" else "         -   "
        print(f"{arch:4} {one:14.2f}x {again:9.3f}x {many:11.3f}x {memory} {weights / 2**20:8.1f} MiB"
              f" {each:11.2f}x {sixteenth:9.3f}x", flush=True)  # fmt: skip


def redundancy_cost(arch: str, device: torch.device) -> tuple[float, float, float, float, float]:
    """Time with one branch over none, over itself and under 300; bytes of 300 beyond one, and of their weights."""
    timer = Timer(device, 0.4)
    seconds: dict[str, float] = {}
    memory: dict[str, int] = {}
    # A new build of a loop may be a fifth faster or slower because of its memory addresses, whatever it trains. So each
    # is built several times, and timed in short turns, so that other work on the machine affects all equally; the best
    # counts.
    for _ in range(4):
        steps = {}
        for name, count in {"none": 0, "one": 1, "again": 1, "many": 300}.items():
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
            steps[name] = plain_loop(arch, device, redundancy=count)
            steps[name]()
            memory[name] = (torch.cuda.max_memory_allocated() if device.type == "cuda" else 0) - before
        for _ in range(3):
            for name, step in steps.items():
                seconds[name] = min(seconds.get(name, float("inf")), timer.seconds(step, parts=1))
    widths = sum(models.build(arch, classes=100).widths)
    ratios = (seconds[a] / seconds[b] for a, b in (("one", "none"), ("again", "one"), ("many", "one")))
    return *ratios, memory["many"] - memory["one"], 299 * widths * 100 * 4


def cosine_cost(arch: str, device: torch.device) -> tuple[float, float]:
    """Time of a measured step over a plain one; and the same with every 16th step measured."""
    precision = "bf16" if device.type == "cuda" else "fp32"
    stack, _ = engine_step(arch, stack_size(arch, device.type), precision, device)
    timer = Timer(device)

    def step(measure: bool) -> None:
        stack.data.step.fill_(0)
        stack.run_step(measure)

    def sixteen() -> None:
        for i in range(16):
            step(measure=i == 0)

    plain = timer.seconds(lambda: step(False))
    return timer.seconds(lambda: step(True)) / plain, timer.seconds(sixteen) / (16 * plain)


if __name__ == "__main__":
    main()
