"""What do branches and measurements cost, relative to a step without them?

    python benchmarks/overhead.py                  # on this machine's GPU, or its CPU
    python benchmarks/overhead.py --device cpu --arch mlp

In the loop a user would write: a step with branches against one without, and 300 branches against one (time, and
memory beyond their weights). Small loops are bound by launches and calls, whose times vary: "N=1 / N=1" is the same
loop built twice, which shows by how much. In the engine: the gradient cosine at every step and at every 16th, against
none.
"""

import argparse

import torch

from asymtrain import models
from common import Timer, device_name, engine_step, plain_loop, stack_size


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--arch", nargs="+", default=list(models.BACKBONES))
    chosen = options.parse_args()
    device = torch.device(chosen.device)
    print(f"{device_name(device)}, torch {torch.__version__}")
    print(f"{'':4} {'branches / none':>15} {'N=1 / N=1':>10} {'N=300 / N=1':>12} {'extra memory':>13}"
          f" {'its weights':>12} {'cosine each':>12} {'each 16th':>10}")  # fmt: skip
    for arch in chosen.arch:
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
