"""What is a step of the engine made of? Its rate, and the kernels that take most of it, on this machine's GPU.

    python benchmarks/step_profile.py --arch vit
    python benchmarks/step_profile.py --arch resnet18 --recipe strong
    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/step_profile.py --arch common:mlp_with_dropout --precision fp32

If the kernels' total time exceeds the step's, they ran in parallel. The parts of the compilation are those that torch
counts, each nested in the one before. Without a GPU: the operations of a step of one run, by the engine and by the
plain loop, with the largest differences first.
"""

import argparse
import time
from typing import Any

import torch
from torch._dynamo.utils import calculate_time_spent
from torch.profiler import ProfilerActivity, profile

from asymtrain.lab.recipes import RECIPES, recipe_fields
from common import Timer, bench_spec, engine_step, stack_size, synthetic
from loops import Loop

STEPS, CPU_STEPS, ROWS = 3, 30, 20
COMPILATION = ("total_wall_time", "entire_frame_compile", "backend_compile", "inductor_compile", "async_compile.wait")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--arch", default="vit")
    options.add_argument("--precision", default="bf16")
    options.add_argument("--recipe", choices=RECIPES, default="paper")
    options.add_argument("--runs", type=int, help="in the stack; what benchmarks/stack.py takes where nothing is given")
    chosen = options.parse_args()
    if not torch.cuda.is_available():
        beside_loop(chosen.arch, chosen.precision, recipe_fields(chosen.recipe, 1, {}))
        return
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
    spent = calculate_time_spent()
    print(f"compilation: {', '.join(f'{part} {spent.get(part, 0.0):.1f} s' for part in COMPILATION)}")
    for kernel in kernels[:ROWS]:
        own = kernel.self_device_time_total
        print(f"{own / STEPS:10.1f} µs {kernel.count / STEPS:6.0f} x {own / total:6.1%}  {kernel.key[:90]}")


def beside_loop(arch: str, precision: str, recipe: dict[str, Any]) -> None:
    """Print the time of both sides' operations in a step, on a CPU."""
    device, spent = torch.device("cpu"), []
    _, engine = engine_step(arch, 1, precision, device, **recipe)
    for step in (engine, Loop(bench_spec(arch, precision, **recipe), synthetic(), device).step):
        step()
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            for _ in range(CPU_STEPS):
                step()
        spent.append({one.key: one.self_cpu_time_total / CPU_STEPS for one in recorded.key_averages()})
    by_engine, by_loop = spent
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads: {arch}, {precision}; µs of a step by the "
          f"engine {sum(by_engine.values()):.0f}, by the loop {sum(by_loop.values()):.0f}")  # fmt: skip
    more = {name: by_engine.get(name, 0.0) - by_loop.get(name, 0.0) for name in {**by_engine, **by_loop}}
    for name in sorted(more, key=lambda name: -abs(more[name]))[:ROWS]:
        print(f"{by_engine.get(name, 0.0):10.0f} {by_loop.get(name, 0.0):10.0f} {more[name]:+10.0f}  {name}")


if __name__ == "__main__":
    main()
