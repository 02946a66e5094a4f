"""How much faster is the engine than the loop you would have written, and how close to the device's limits?

    python benchmarks/stack.py                     # on this machine's GPU, or its CPU
    python benchmarks/stack.py --device cpu --arch mlp

For each backbone of the paper with branches (C = 100, batch 128): images per second of a plain eager loop of one run
(data on the device, fused AdamW), and of the engine, summed over its runs. Then the engine's model TFLOP/s, and its
share of what the device reaches in a large matrix product and in a large copy.

Operations are those of the products, forward and backward. Bytes are the inputs and outputs of the products, each
once, and the optimiser's state: what no arrangement of these products can avoid moving. Elementwise work between
them comes on top, so a share of the copy ceiling near 1 is out of reach.
"""

import argparse
import json
import platform

import torch

from asymtrain.engine import Stack
from asymtrain.engine.plan import path_for
from asymtrain.runs import RunSpec, grid
from common import CLASSES, RUNS, Timer, ceilings, counts, device_name, plain_loop, synthetic


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--arch", nargs="+", default=["mlp", "cnn", "vit"])
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
        runs = chosen.runs or RUNS[device.type][arch]
        row = measure(arch, device, precision, runs, matmul, copy)
        rows.append({"arch": arch, "device": device_name(device), "torch": torch.__version__, **row})
        print(f"{arch:4} {row['plain']:12,.0f} {row['plain_bf16']:10,.0f} {row['engine']:13,.0f} {runs:5}"
              f" {row['engine'] / row['plain']:7.1f}x {row['flops'] / 1e12:8.2f} {row['of_product']:10.1%}"
              f" {row['of_copy']:8.1%}", flush=True)  # fmt: skip
    if chosen.json:
        with open(chosen.json, "w") as file:  # noqa: PTH123  (a plain script)
            json.dump(rows, file, indent=1)


def measure(arch: str, device: torch.device, precision: str, runs: int, matmul: float, copy: float) -> dict[str, float]:
    spec = RunSpec(dataset="synthetic", arch=arch, redundancy=20, precision=precision, epochs=1)
    timer = Timer(device)
    plain = timer.rate(plain_loop(arch, device), 128)
    half = timer.rate(plain_loop(arch, device, autocast=True), 128) if device.type == "cuda" else float("nan")
    stack = Stack(grid(spec, seed=range(runs)), synthetic(), device=device, path=path_for(arch, device))
    stack.data.start_epoch(0)

    def step() -> None:
        stack.data.step.fill_(0)
        stack.programs.train_step(False)

    engine = timer.rate(step, 128 * runs)
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
