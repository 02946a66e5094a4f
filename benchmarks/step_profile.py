"""What is a step of the engine made of? The kernels that take most of it, on this machine's GPU.

python benchmarks/step_profile.py --arch vit
"""

import argparse

import torch
from torch.profiler import ProfilerActivity, profile

from common import engine_step, stack_size

STEPS, ROWS = 3, 20


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--arch", default="vit")
    options.add_argument("--precision", default="bf16")
    chosen = options.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU here: the engine's step on a CPU is plain torch, profile it as any other program")
    runs = stack_size(chosen.arch, "cuda")
    _, step = engine_step(chosen.arch, runs, chosen.precision, torch.device("cuda"))
    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    kernels = sorted(recorded.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    total = sum(kernel.self_device_time_total for kernel in kernels)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: {chosen.arch}, {runs} runs, {chosen.precision}")
    for kernel in kernels[:ROWS]:
        time = kernel.self_device_time_total
        print(f"{time / STEPS:10.1f} µs {kernel.count / STEPS:6.0f} x {time / total:6.1%}  {kernel.key[:90]}")


if __name__ == "__main__":
    main()
