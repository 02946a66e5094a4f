"""How much faster is the engine than the loop you would have written, and how close to the device's limits?

    python benchmarks/stack.py                     # on this machine's GPU, or its CPU
    python benchmarks/stack.py --device cpu --arch mlp

For each backbone of the paper with branches (C = 100, batch 128): images per second of a plain eager loop of one run
(data on the device, fused AdamW), and of the engine, summed over its runs (on a CPU: over a process for each core, as
the local executor runs it). Then the engine's model TFLOP/s, and its
share of what the device reaches in a large matrix product and in a large copy.

Operations are those of the products, forward and backward. Bytes are the inputs and outputs of the products, each
once, and the optimiser's state: what no arrangement of these products can avoid moving. Elementwise work between
them comes on top, so a share of the copy ceiling near 1 is out of reach.
"""

import argparse
import json
import platform

import torch

from asymtrain.lab.executors.local import cores
from asymtrain.models import BACKBONES
from common import (
    CLASSES,
    Timer,
    ceilings,
    counts,
    device_name,
    engine_step,
    plain_loop,
    rate_in_processes,
    stack_size,
)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--arch", nargs="+", default=list(BACKBONES))
    options.add_argument("--precision", default=None, help="of the engine: fp32, tf32 or bf16 (default on a GPU)")
    options.add_argument("--runs", type=int, help="runs in the engine's stack")
    options.add_argument("--json", type=str, help="write the rows here too")
    chosen = options.parse_args()
    device = torch.device(chosen.device)
    precision = chosen.precision or ("bf16" if device.type == "cuda" else "fp32")
    matmul, copy = ceilings(device)
    print(
        f"{device_name(device)}, torch {torch.__version__}, Python {platform.python_version()}, engine in {precision}"
    )
    print(f"ceilings: matrix product {matmul / 1e12:.1f} TFLOP/s, copy {copy / 1e12:.3f} TB/s")
    print(f"{'':4} {'plain loop':>12} {'(bf16)':>10} {'engine':>13} {'runs':>5} {'ratio':>8}"
          f" {'TFLOP/s':>8} {'of product':>10} {'of copy':>8}")  # fmt: skip
    rows = []
    for arch in chosen.arch:
        runs = chosen.runs or stack_size(arch, device.type)
        shown = runs if device.type == "cuda" else runs * cores()
        row = measure(arch, device, precision, runs, matmul, copy)
        rows.append({"arch": arch, "device": device_name(device), "torch": torch.__version__, **row})
        print(f"{arch:4} {row['plain']:12,.0f} {row['plain_bf16']:10,.0f} {row['engine']:13,.0f} {shown:5}"
              f" {row['engine'] / row['plain']:7.1f}x {row['flops'] / 1e12:8.2f} {row['of_product']:10.1%}"
              f" {row['of_copy']:8.1%}", flush=True)  # fmt: skip
    if chosen.json:
        with open(chosen.json, "w") as file:  # noqa: PTH123  (a plain script)
            json.dump(rows, file, indent=1)


def measure(arch: str, device: torch.device, precision: str, runs: int, matmul: float, copy: float) -> dict[str, float]:
    timer = Timer(device)
    plain, half = timer.rate(plain_loop(arch, device), 128), float("nan")
    stack, step = engine_step(arch, runs, precision, device)
    if device.type == "cuda":
        half = timer.rate(plain_loop(arch, device, autocast=True), 128)
        engine = timer.rate(step, 128 * runs)
    else:
        # As the executor does it: a single-threaded process for each core. In turns with the loop, the best of each.
        engine = 0.0
        for _ in range(3):
            engine = max(engine, rate_in_processes(arch, runs, precision))
            plain = max(plain, timer.rate(plain_loop(arch, device), 128))
    operations, moved = counts(stack, 2 if precision == "bf16" else 4)
    return {
        "plain": plain,
        "plain_bf16": half,
        "engine": engine,
        "runs": runs,
        "flops": engine * operations,
        "of_product": engine * operations / matmul,
        "of_copy": engine * moved / copy,
        "classes": CLASSES,
    }


if __name__ == "__main__":
    main()
