"""What is a step of the engine made of? Its rate, and the kernels that take most of it, on this machine's GPU.

    python benchmarks/step_profile.py --arch vit
    python benchmarks/step_profile.py --arch resnet18 --recipe strong

Where the kernels' time together is more than a step takes, they ran side by side.
"""

import argparse
import time

import torch
from torch.profiler import ProfilerActivity, profile

from asymtrain.lab.recipes import RECIPES, recipe_fields
from common import Timer, bench_spec, engine_step, stack_size

STEPS, ROWS = 3, 20


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--arch", default="vit")
    options.add_argument("--precision", default="bf16")
    options.add_argument("--recipe", choices=RECIPES, default="paper")
    options.add_argument("--runs", type=int, help="in the stack; what benchmarks/stack.py takes where nothing is given")
    chosen = options.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU here: the engine's step on a CPU is plain torch, profile it as any other program")
    runs, device, begun = chosen.runs or stack_size(chosen.arch, "cuda"), torch.device("cuda"), time.perf_counter()
    _, step = engine_step(chosen.arch, runs, chosen.precision, device, **recipe_fields(chosen.recipe, 1, {}))
    built = time.perf_counter() - begun
    step()
    torch.cuda.synchronize()
    warm = time.perf_counter() - begun
    seconds = Timer(device).seconds(step)
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    kernels = sorted(recorded.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    total = sum(kernel.self_device_time_total for kernel in kernels)
    launches = sum(kernel.count for kernel in kernels) / STEPS
    images = runs * bench_spec(chosen.arch, chosen.precision).batch
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: {chosen.arch}, {runs} runs, "
          f"{chosen.precision}, recipe {chosen.recipe}")  # fmt: skip
    print(f"{images / seconds:,.0f} images/s, step {1e6 * seconds:.0f} µs, kernels {total / STEPS:.0f} µs in "
          f"{launches:.0f} launches; built after {built:.1f} s, warm after {warm:.1f} s")  # fmt: skip
    for kernel in kernels[:ROWS]:
        spent = kernel.self_device_time_total
        print(f"{spent / STEPS:10.1f} µs {kernel.count / STEPS:6.0f} x {spent / total:6.1%}  {kernel.key[:90]}")


if __name__ == "__main__":
    main()
