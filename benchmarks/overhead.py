"""What do branches and measurements cost, relative to a step without them?

    python benchmarks/overhead.py                  # on this machine's GPU, or its CPU
    python benchmarks/overhead.py --only models --model vit_small_patch16_224
    python benchmarks/overhead.py --device cpu --only backbones --arch mlp

Ordinary models of timm (bf16 autocast, 224 px, 1,000 classes, fused AdamW): a step with branches against one without.
Both are in one process and take turns, so that whatever else happens on the machine meets both alike; the figure is the
median over turns, beside that of a second plain model against the first, which shows the error. Then the paper's small
backbones in the loop a user would write, which are bound by launches: with branches against none, and 300 branches
against one (time, and memory beyond their weights). In the engine: the gradient cosine at every step and at every 16th,
against none.
"""

import argparse
import statistics
from collections.abc import Callable
from importlib import import_module

import torch
import torch.nn.functional as F

from asymtrain import WithBranches, attach, models
from common import Timer, device_name, engine_step, plain_loop, stack_size

Step = Callable[[], None]
MODELS = {  # places, and a batch that fits
    "resnet50": ("layer[1-4]", 128),
    "vit_small_patch16_224": ("blocks.*", 128),
    "swin_tiny_patch4_window7_224": ("layers.*", 96),
    "convnext_tiny": ("stages.*", 96),
}
TURNS, WARM = 15, 5


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--only", choices=["models", "loops", "backbones"])
    options.add_argument("--model", nargs="+", default=list(MODELS), choices=list(MODELS))
    options.add_argument("--mode", nargs="+", default=["eager", "compiled"], choices=["eager", "compiled"])
    options.add_argument("--batch", type=int, help="instead of 96 or 128")
    options.add_argument("--arch", nargs="+", default=list(models.BACKBONES))
    chosen = options.parse_args()
    device = torch.device(chosen.device)
    print(f"{device_name(device)}, torch {torch.__version__}", flush=True)
    if chosen.only in (None, "models"):
        print_models(chosen, device)
    if chosen.only in (None, "loops"):
        print_loops(chosen.arch, device)
    if chosen.only in (None, "backbones"):
        print_backbones(chosen.arch, device)


def print_models(chosen: argparse.Namespace, device: torch.device) -> None:
    print(f"\n{'':29} {'':8} {'places':>6} {'plain':>9} {'branches / none':>15} {'none / none':>11} {'kernels':>13}"
          f" {'memory':>16}")  # fmt: skip
    for name in chosen.model:
        at, batch = MODELS[name][0], chosen.batch or MODELS[name][1]
        for mode in chosen.mode:
            torch._dynamo.reset()
            plain, again = (model_step(name, None, batch, mode, device) for _ in range(2))
            branched = model_step(name, at, batch, mode, device)
            seconds, ratio, error = in_turns(plain[0], branched[0], again[0], device)
            counts, memory = (
                ["-", "-"]
                if device.type == "cpu"
                else [" + ".join(map(str, added(of, plain[0], branched[0]))) for of in (kernels, mebibytes)]
            )
            print(f"{name:29} {mode:8} {branched[1]:6} {seconds * 1e3:6.1f} ms {ratio:14.3f}x {error:10.3f}x"
                  f" {counts:>13} {memory:>12} MiB", flush=True)  # fmt: skip


def model_step(name: str, at: str | None, batch: int, mode: str, device: torch.device) -> tuple[Step, int]:
    """A training step of a model of timm, with branches where places are given; and the number of places."""
    torch.manual_seed(0)
    model = import_module("timm").create_model(name, num_classes=1000).to(device).train()
    x, y = torch.randn(batch, 3, 224, 224, device=device), torch.randint(1000, (batch,), device=device)
    branches = None if at is None else attach(model, at=at, sample=x[:4], classes=1000)
    auxiliary = [] if branches is None else list(branches.parameters())
    optimizer = torch.optim.AdamW([*model.parameters(), *auxiliary], lr=1e-4, fused=device.type == "cuda")
    net = None if branches is None else WithBranches(model, branches)

    def loss() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            if branches is None or net is None:
                return F.cross_entropy(model(x), y)
            if mode == "eager":
                return F.cross_entropy(model(x), y) + 0.3 * branches.loss(y)
            output, logits = net(x)
            return F.cross_entropy(output, y) + 0.3 * branches.loss(y, logits=logits)

    loss_of_step = torch.compile(loss) if mode == "compiled" else loss

    def step() -> None:
        total = loss_of_step()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()

    return step, 0 if branches is None else len(branches.places)


def in_turns(plain: Step, branched: Step, again: Step, device: torch.device) -> tuple[float, float, float]:
    """Seconds of a plain step, and the ratios of the other two to it: medians over turns of three."""
    for step in (plain, branched, again):
        for _ in range(WARM):
            step()
    timer, turns = Timer(device, 0.3), []
    for _ in range(TURNS):
        turns.append([timer.seconds(step, parts=1) for step in (plain, branched, again)])
    ratios = [statistics.median(turn[i] / turn[0] for turn in turns) for i in (1, 2)]
    return statistics.median(turn[0] for turn in turns), *ratios


def added(measure: Callable[[Step], int], plain: Step, branched: Step) -> tuple[int, int]:
    """What a plain step has of something, and what branches add to it."""
    without = measure(plain)
    return without, measure(branched) - without


def kernels(step: Step) -> int:
    """Kernels that a step launches."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    on_device = [event for event in profile.events() or [] if event.device_type == torch.autograd.DeviceType.CUDA]
    return sum(not event.name.startswith(("Memcpy", "Memset")) for event in on_device)


def mebibytes(step: Step) -> int:
    """The most memory that a step takes beyond what was there before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 2**20)


def print_loops(names: list[str], device: torch.device) -> None:
    """The small backbones as the models above: plain step, branches / none, none / none, kernels."""
    print()
    for arch in names:
        for autocast in (False, True) if device.type == "cuda" else (False,):
            plain, branched, again = (
                plain_loop(arch, device, redundancy=count, autocast=autocast) for count in (0, 1, 0)
            )
            seconds, ratio, error = in_turns(plain, branched, again, device)
            launches = "-" if device.type == "cpu" else " + ".join(map(str, added(kernels, plain, branched)))
            precision = "bf16" if autocast else "fp32"
            print(f"{arch} {precision} {seconds * 1e3:.3f} ms {ratio:.3f}x {error:.3f}x kernels {launches}", flush=True)


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
    # A loop that is built anew may be a fifth faster or slower, by where its memory lies, whatever it trains. So each
    # is built several times, and timed in short turns, so that other work on the machine meets all alike; the best
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
    """Time of a measured step over a plain one; and with every 16th step measured."""
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
