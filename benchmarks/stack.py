r"""How much faster is the engine than the loops you would have written, and how close to the device's limits?

    python benchmarks/stack.py                     # on this machine's GPU, or its CPU
    python benchmarks/stack.py --device cpu --arch mlp
    python benchmarks/stack.py --columns expert engine --json rows.json \
        --arch mlp cnn vit resnet18 vit_tiny swin mixer
    python benchmarks/stack.py --read rows.json --figure engine.svg      # the table and its figure from stored rows
    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/stack.py --device cpu --processor-time --columns plain engine \
        --arch common:mlp_with_dropout common:cnn_with_dropout common:transformer_with_dropout

For each model (a name of the practice study, or any other that a spec takes), with branches (C = 100, batch 128, flips
and shifts, 40,000 training images on the device): images per second in training steps alone, without evaluation,
compilation and measured steps. All columns train the same specs in the same precision; loops.py has their code.

- plain: one run, eager, fused AdamW.
- expert: one run; on a GPU compiled, the whole step in one CUDA graph. On a CPU the plain loop is the fastest one.
- vmap: an ensemble by `torch.func.vmap`, summed over its runs; on a GPU compiled and captured where that works.
- engine: summed over the runs of a stack; on a CPU over a process for each core, as the local executor runs it.
- strong: the engine again, with the recipe `strong` in place of flips and shifts; only if it is named. The table has
  its ratio to the engine.

Then the engine's ratio to the expert's loop, its model TFLOP/s and its share of the device's speed in a large matrix
product and in a large copy; and the ceiling, the rate at which the larger of these two shares would be 100%. On a GPU
each figure has its own process: the processes of a group compile at the same time, and are timed one after the other.

Operations are those of the products, forward and backward. Bytes are the inputs and outputs of the products, each once,
and the optimiser's state: the minimum for these products. Elementwise work comes on top, so the ceiling itself is out
of reach.
"""

import argparse
import json
import multiprocessing
import os
import platform
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from asymtrain.lab.machine import cores
from asymtrain.lab.recipes import recipe_fields
from asymtrain.lab.report.drawing import draw
from asymtrain.lab.report.figure import Bar, Bars, Figure
from asymtrain.lab.runs import grid
from asymtrain.lab.studies.practice.protocol import NETWORKS
from asymtrain.models import BACKBONES
from common import (
    CLASSES,
    SECONDS,
    Timer,
    bench_spec,
    ceilings,
    counts,
    device_name,
    engine_step,
    rate_in_processes,
    stack_size,
    synthetic,
)
from loops import Ensemble, Loop

COLUMNS = ("plain", "expert", "vmap", "engine", "strong")
RECIPE = {"augmentation": "flip_shift"}
OF_ENGINE = {"engine": RECIPE, "strong": recipe_fields("strong", 1, {})}
CPU_ROUNDS = 3
NAN = float("nan")
AXIS_END = 4.0  # of the figure
Measured = dict[str, Any]  # measurements of one column: `rate`, and more
Row = dict[str, Any]  # of a model, as `--json` writes it


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--arch", nargs="+", default=list(BACKBONES))
    options.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS[:4]))
    options.add_argument("--precision", help="of all columns: fp32 (on a CPU), tf32 or bf16 (on a GPU)")
    options.add_argument("--runs", type=int, help="runs in the engine's stack, and in vmap's ensemble")
    options.add_argument("--seconds", type=float, default=SECONDS, help="of timed work for each figure")
    options.add_argument("--at-once", type=int, default=6, help="processes that compile at the same time, on a GPU")
    options.add_argument(
        "--processor-time", action="store_true", help="on one CPU core that has other work too: count only its own time"
    )
    options.add_argument("--json", type=Path, help="write the rows here too")
    options.add_argument("--read", type=Path, help="measure nothing: take the rows that --json has written here")
    options.add_argument("--figure", type=Path, help="draw the engine beside the expert's loop and the ceiling here")
    chosen = options.parse_args()
    rows = json.loads(chosen.read.read_text()) if chosen.read else measured_rows(options, chosen)
    show(rows)
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1))
    if chosen.figure:
        chosen.figure.write_text(draw(figure_of(rows)))


def measured_rows(options: argparse.ArgumentParser, chosen: argparse.Namespace) -> list[Row]:
    """A row for each model."""
    device = torch.device(chosen.device)
    if chosen.processor_time:
        if device.type != "cpu" or cores() > 1:
            options.error("--processor-time is for one core of a CPU: OMP_NUM_THREADS=1 taskset -c 0 python ...")
        Timer.clock = staticmethod(time.process_time)
    precision = chosen.precision or ("bf16" if device.type == "cuda" else "fp32")
    matmul, copy = ceilings(device)
    print(f"{device_name(device)}, torch {torch.__version__}, Python {platform.python_version()}, {precision}")
    print(f"ceilings: matrix product {matmul / 1e12:.1f} TFLOP/s, copy {copy / 1e12:.3f} TB/s")
    runs = {arch: chosen.runs or stack_size(arch, device.type) for arch in chosen.arch}
    wanted = [
        (arch, column, runs[arch], precision, chosen.seconds) for arch in chosen.arch for column in chosen.columns
    ]
    measured: dict[str, dict[str, Measured]] = {arch: {} for arch in chosen.arch}
    figures = in_processes(wanted, chosen.at_once, device) if device.type == "cuda" else on_cpu(wanted)
    for (arch, column, *_), figure in figures:
        measured[arch][column] = figure
        print(f"  {arch} {column}: {describe(figure)}", flush=True)
    about = {"device": device_name(device), "torch": torch.__version__, "precision": precision, "classes": CLASSES}
    processes = 1 if device.type == "cuda" else cores()
    return [
        {"arch": arch, **about, **row_of(by_column, runs[arch] * processes, matmul, copy)}
        for arch, by_column in measured.items()
    ]


def row_of(by_column: dict[str, Measured], runs: int, matmul: float, copy: float) -> Row:
    """A model's row; None for values that were not measured."""
    rate = {column: by_column.get(column, {}).get("rate") for column in COLUMNS}
    row: Row = {**rate, "runs": runs, "warm_up": {name: figure.get("warm_up") for name, figure in by_column.items()}}
    engine = by_column.get("engine", {})
    if "operations" in engine:
        flops, moved = (engine["rate"] * engine[name] for name in ("operations", "bytes"))
        shares = {"of_product": flops / matmul, "of_copy": moved / copy}
        row |= {"flops": flops, **shares, "ceiling": engine["rate"] / max(shares.values())}
    return {**row, "vmap_form": by_column.get("vmap", {}).get("form")}


def show(rows: list[Row]) -> None:
    """Print the table."""
    width = max(len(row["arch"]) for row in rows)
    print(f"{'':{width}} {'plain loop':>12} {'expert':>10} {'vmap':>11} {'engine':>13} {'runs':>5} {'of expert':>9}"
          f" {'TFLOP/s':>8} {'of product':>10} {'of copy':>8} {'ceiling':>13} {'strong':>11}")  # fmt: skip
    for row in rows:
        numbers = {"strong": NAN, **{name: NAN if value is None else value for name, value in row.items()}}
        flops, of_product, of_copy, ceiling = (
            numbers.get(name, NAN) for name in ("flops", "of_product", "of_copy", "ceiling")
        )
        line = (f"{row['arch']:{width}} {numbers['plain']:12,.0f} {numbers['expert']:10,.0f} {numbers['vmap']:11,.0f}"
                f" {numbers['engine']:13,.0f} {row['runs']:5} {numbers['engine'] / numbers['expert']:8.2f}x"
                f" {flops / 1e12:8.2f} {of_product:10.1%} {of_copy:8.1%} {ceiling:13,.0f}"
                f" {numbers['strong'] / numbers['engine']:10.2f}x")  # fmt: skip
        for unknown in ("nan%", "nanx", "nan"):
            line = line.replace(unknown, "-".rjust(len(unknown)))
        print(line, flush=True)


def figure_of(rows: list[Row]) -> Figure:
    """The engine as a multiple of the expert's loop, and as a share of the ceiling."""
    both = [row for row in rows if row["engine"] and row["expert"]]
    multiples = [row["engine"] / row["expert"] for row in both]
    shares = [row["engine"] / row["ceiling"] if "ceiling" in row else None for row in both]
    # Far beyond the axis, a bar is cut at its end, and the label has its value.
    names = [NETWORKS[row["arch"]].title if row["arch"] in NETWORKS else row["arch"] for row in both]
    labels = [f"{name} ({one:.0f}x)" if one > AXIS_END else name for name, one in zip(names, multiples, strict=True)]
    bars = [tuple(map(Bar, labels, values, values, values)) for values in (multiples, shares)]
    panels = (
        Bars("beside an expert's loop", "times", "asymmetric", bars[0], marks=(1.0,), ends=(0.0, AXIS_END)),
        Bars("beside the ceiling", "share", "asymmetric", bars[1], ends=(0.0, 1.0)),
    )
    return Figure("engine", "The engine beside an expert's loop of one run, and beside the ceiling", panels, 2)


Wanted = tuple[str, str, int, str, float]  # arch, column, runs, precision, seconds


class Prepared:
    """A column's step, warmed up: compiled and captured, if it is at all."""

    def __init__(self, arch: str, column: str, runs: int, precision: str, device: torch.device) -> None:
        begun = time.perf_counter()
        spec = bench_spec(arch, precision, **RECIPE)
        self.about: Measured = {}
        if column in OF_ENGINE:
            stack, self.step = engine_step(arch, runs, precision, device, **OF_ENGINE[column])
            operations, moved = counts(stack, 2 if precision == "bf16" else 4)
            self.about = {"operations": operations, "bytes": moved}
        elif column == "vmap":
            ensemble = Ensemble(grid(spec, seed=range(runs)), synthetic(), device)
            self.step, self.about = ensemble.step, {"form": ensemble.form}
        else:
            self.step = Loop(spec, synthetic(), device, expert=column == "expert" and device.type == "cuda").step
        self.images = spec.batch * (1 if column in ("plain", "expert") else runs)
        self.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            self.about["memory"] = torch.cuda.max_memory_allocated(device)
        self.about["warm_up"] = time.perf_counter() - begun

    def measure(self, device: torch.device, seconds: float) -> Measured:
        """Images a second, and further facts about the column."""
        return {"rate": Timer(device, seconds).rate(self.step, self.images), **self.about}


def on_cpu(wanted: list[Wanted]) -> Iterator[tuple[Wanted, Measured]]:
    """Measure here, and the engine in a process for each core. A model's columns take turns; the best turns count."""
    device = torch.device("cpu")
    for arch in dict.fromkeys(arch for arch, *_ in wanted):
        # On a CPU the expert's loop equals the plain one.
        own: dict[Wanted, Measured] = {
            item: {"rate": 0.0}
            for item in wanted
            if item[0] == arch and (item[1] != "expert" or (arch, "plain", *item[2:]) not in wanted)
        }
        ready = {item: Prepared(arch, item[1], *item[2:4], device) for item in own}
        for _ in range(CPU_ROUNDS):
            for item, best in own.items():
                figure = ready[item].measure(device, item[4])
                if item[1] in OF_ENGINE and cores() > 1:
                    figure["rate"] = rate_in_processes(arch, item[2], item[3], **OF_ENGINE[item[1]])
                if figure["rate"] > best["rate"]:
                    own[item] = figure
        for item, figure in own.items():
            yield item, figure
            expert = (arch, "expert", *item[2:])
            if item[1] == "plain" and expert in wanted:
                yield expert, figure


def in_processes(wanted: list[Wanted], at_once: int, device: torch.device) -> Iterator[tuple[Wanted, Measured]]:
    """Measure on the GPU. One that fails beside others, perhaps for lack of memory, is tried again by itself."""
    again = []
    for start in range(0, len(wanted), at_once):
        for item, figure in _group(wanted[start : start + at_once], device):
            if "error" in figure:
                again.append(item)
                print(f"  {item[0]} {item[1]}: {describe(figure)}: once more by itself", flush=True)
            else:
                yield item, figure
    for item in again:
        yield from _group([item], device)


def _group(wanted: list[Wanted], device: torch.device) -> Iterator[tuple[Wanted, Measured]]:
    context = multiprocessing.get_context("spawn")
    threads = max(1, cores() // len(wanted))  # for each process: more would compete for the cores
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(threads)
    workers: list[tuple[Wanted, Any, Connection]] = []
    for item in wanted:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, item, device, threads), daemon=True)
        process.start()
        theirs.close()
        workers.append((item, process, ours))
    begun, answers = time.perf_counter(), {}
    while len(answers) < len(workers):  # all are warmed up before any is timed
        for pipe in wait([pipe for *_, pipe in workers if pipe not in answers]):
            answers[pipe] = _receive(pipe)
            (arch, column, *_) = next(item for item, _, own in workers if own is pipe)
            print(f"  {arch} {column}: ready after {time.perf_counter() - begun:.0f} s", flush=True)
    for item, process, pipe in workers:
        answer = answers[pipe]
        if "error" not in answer:
            pipe.send("go")
            answer = _receive(pipe)
        process.join()
        yield item, answer


def _receive(pipe: Connection) -> Measured:
    try:
        return pipe.recv()  # type: ignore[no-any-return]
    except EOFError:
        return {"error": "its process died"}


def _work(pipe: Connection, item: Wanted, device: torch.device, threads: int) -> None:
    arch, column, runs, precision, seconds = item
    torch.set_num_threads(threads)
    try:
        prepared = Prepared(arch, column, runs, precision, device)
        pipe.send({})
        pipe.recv()
        pipe.send(prepared.measure(device, seconds))
    except Exception as problem:  # a failed figure must not stop the others
        pipe.send({"error": f"{type(problem).__name__}: {str(problem).strip().partition(chr(10))[0]}"})


def describe(figure: Measured) -> str:
    if "error" in figure:
        return str(figure["error"])
    memory = f", {figure['memory'] / 2**30:.1f} GiB" if "memory" in figure else ""
    form = f", {figure['form']}" if "form" in figure else ""
    return f"{figure['rate']:,.0f} images/s, warm after {figure['warm_up']:.1f} s{memory}{form}"


if __name__ == "__main__":
    main()
