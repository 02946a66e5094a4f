"""How fast is a loss surface here, and with the PyPI package loss-landscapes?

    pip install --target peer --no-deps loss-landscapes
    python benchmarks/landscape.py --peer peer           # on this machine's GPU, or its CPU
    python benchmarks/landscape.py --device cpu --arch mlp

Both use the same network, the same images and the same 51 x 51 points. The package's `random_plane` draws its own
directions, so `planar_interpolation` is used, which takes the plane's corners as models. It evaluates start + (i /
steps) * (end_1 - start) + (j + 1) / steps * (end_2 - start) in even columns i, and one step of j less in odd ones,
since it walks the grid as a snake. `same_points` gives our side exactly these points, and the surfaces must agree. The
package adds up its steps in place, so its points drift by rounding; the agreement shows by how much.

Without --peer, only our side is timed, and checked against `module_losses`, one network at a time.

    python benchmarks/landscape.py --tf32 --arch cnn vit --sample 500 --classes 100
    python benchmarks/landscape.py --tf32 --arch cnn vit --sample 2 --classes 100 --steps 5 --device cpu

--tf32 compares float32 with TF32 instead: a surface as in Table 6, along directions of unit variance and of unit norm.
The last column is the largest difference between the two surfaces, each minus its mean, divided by the standard
deviation of the float32 surface. A CPU has no TF32: there a CNN's difference is due to another order of sums.
"""

import argparse
import copy
import json
import math
import platform
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from asymtrain import models
from asymtrain.lab.instruments.landscape.backbone import main_score, plane, points_that_fit
from asymtrain.lab.instruments.landscape.surface import (
    evaluate,
    gaussian_direction,
    module_losses,
    plane_through,
    squared_norm,
)
from common import device_name

STEPS, EXTENT = 51, 0.01


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--arch", nargs="+", default=["mlp"])
    options.add_argument("--sample", type=int, default=1000)
    options.add_argument("--classes", type=int, default=10)
    options.add_argument("--peer", help="folder that holds the package loss_landscapes")
    options.add_argument("--rounds", type=int, default=3, help="in turns; the best of each side is taken")
    options.add_argument("--tf32", action="store_true", help="compare float32 with TF32 instead")
    options.add_argument("--steps", type=int, default=STEPS, help="points a side, with --tf32")
    options.add_argument("--json", type=Path, help="write the rows here too")
    chosen = options.parse_args()
    device = torch.device(chosen.device)
    machine = {"device": device_name(device), "torch": torch.__version__}
    peer = None if chosen.tf32 else import_peer(chosen.peer)
    print(
        f"{device_name(device)}, torch {torch.__version__}, Python {platform.python_version()}, {chosen.sample} images"
    )
    rows = []
    if chosen.tf32:
        print(f"{'':4} {'directions':13} {'fp32 (s)':>9} {'tf32 (s)':>9} {'ratio':>7} {'of the deviation':>17}")
        for arch in chosen.arch:
            for row in compare_precisions(arch, device, chosen.sample, chosen.classes, chosen.rounds, chosen.steps):
                rows.append({"arch": arch, **machine, **row})
                print(
                    f"{arch:4} {row['directions']:13} {row['fp32']:9.3f} {row['tf32']:9.3f} "
                    f"{row['fp32'] / row['tf32']:6.1f}x {row['share']:17.1e}",
                    flush=True,
                )
    else:
        print(f"{'':4} {'ours (s)':>9} {'peer (s)':>9} {'ratio':>7} {'largest difference':>19} {'of the range':>13}")
    for arch in () if chosen.tf32 else chosen.arch:
        row = measure(arch, device, chosen.sample, chosen.classes, peer, chosen.rounds)
        rows.append({"arch": arch, **machine, **row})
        of_peer = f"{row['peer']:9.3f} {row['peer'] / row['ours']:6.1f}x" if row["peer"] else f"{'-':>9} {'-':>7}"
        print(f"{arch:4} {row['ours']:9.3f} {of_peer} {row['difference']:19.2e} {row['share']:13.1e}", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1))


def import_peer(folder: str | None):  # type: ignore[no-untyped-def]
    if folder:
        sys.path.insert(0, folder)
    try:
        import loss_landscapes
        import loss_landscapes.metrics
    except ImportError:
        print("loss-landscapes is not installed: our side alone (see --help)")
        return None
    return loss_landscapes


def subject(arch: str, device: torch.device, sample: int, classes: int):  # type: ignore[no-untyped-def]
    """A network, images and targets, its weights, and two directions."""
    drawn = torch.Generator().manual_seed(0)
    images = torch.randn(sample, 3, 32, 32, generator=drawn).to(device)
    targets = torch.randint(classes, (sample,), generator=drawn).to(device)
    model = models.build(arch, classes=classes, seed=0).to(device).eval()
    center = {name: value.detach().clone() for name, value in model.named_parameters()}
    return model, images, targets, center, tuple(gaussian_direction(center, 0, 0, axis) for axis in (0, 1))


def compare_precisions(arch: str, device: torch.device, sample: int, classes: int, rounds: int, steps: int):  # type: ignore[no-untyped-def]
    """Seconds of one surface in each precision, in turns, and how far the surfaces differ, for both lengths."""
    model, images, targets, center, directions = subject(arch, device, sample, classes)
    norms = [math.sqrt(squared_norm(direction)) for direction in directions]
    for name, extents in (("unit variance", (EXTENT, EXTENT)), ("unit norm", [1 / norm for norm in norms])):
        grid = tuple(np.linspace(-extent, extent, steps) for extent in extents)

        def surface(precision: str, points=grid) -> np.ndarray:  # type: ignore[no-untyped-def]
            tf32 = precision == "tf32"
            along = plane(model, images, main_score(targets), center, directions, tf32=tf32)
            return evaluate(along, points, points_that_fit(along))

        surfaces, best = {}, {"fp32": math.inf, "tf32": math.inf}
        for precision in best:
            surface(precision, (grid[0][:3], grid[1]))  # libraries start up, kernels are compiled
        for _ in range(rounds):
            for precision in best:
                start = time.perf_counter()
                surfaces[precision] = surface(precision)  # ends with a copy to the host, so the device is done
                best[precision] = min(best[precision], time.perf_counter() - start)
        full, rough = (surfaces[precision] - surfaces[precision].mean() for precision in best)
        share = float(np.abs(rough - full).max() / full.std())
        yield {"directions": name, **best, "share": share, "sample": sample, "steps": steps}


def measure(arch: str, device: torch.device, sample: int, classes: int, peer, rounds: int) -> dict[str, float | None]:  # type: ignore[no-untyped-def]
    model, images, targets, center, directions = subject(arch, device, sample, classes)
    grid = (np.linspace(-EXTENT, EXTENT, STEPS), np.linspace(-EXTENT, EXTENT, STEPS))

    def ours(points: tuple[np.ndarray, np.ndarray] = grid) -> np.ndarray:
        along = plane(model, images, main_score(targets), center, directions)  # type: ignore[arg-type]
        return evaluate(along, points, points_that_fit(along))

    best = {"ours": float("inf"), "peer": float("inf")}
    theirs = None
    ours((grid[0][:3], grid[1]))  # libraries start up
    for _ in range(rounds):
        best["ours"] = min(best["ours"], seconds(ours, device))
        if peer is not None:
            ends = corner_models(model, center, directions)
            start = time.perf_counter()
            theirs = peer.planar_interpolation(
                *ends, peer.metrics.Loss(F.cross_entropy, images, targets), STEPS, deepcopy_model=False
            )
            best["peer"] = min(best["peer"], time.perf_counter() - start)
    if theirs is not None:
        mine = same_points(ours)
    else:
        points = (grid[0][::10], grid[1][::10])
        slow = module_losses(model, images, targets, F.cross_entropy)
        mine, theirs = ours(points), evaluate(plane_through(slow, center, directions), points, 16)  # type: ignore[arg-type]
    difference = float(np.abs(mine - theirs).max())
    return {
        "ours": best["ours"],
        "peer": best["peer"] if peer is not None else None,
        "difference": difference,
        "share": difference / float(np.ptp(theirs)),
        "sample": sample,
        "steps": STEPS,
    }


def corner_models(model, center, directions):  # type: ignore[no-untyped-def]
    """The plane's origin and its two ends, in the package's form: at -EXTENT, and 2 EXTENT further on."""
    models = []
    for a, b in ((-1, -1), (1, -1), (-1, 1)):
        one = copy.deepcopy(model)
        with torch.no_grad():
            for name, value in one.named_parameters():
                value.copy_(
                    center[name]
                    + EXTENT * a * directions[0][name].to(value)
                    + EXTENT * b * directions[1][name].to(value)
                )
        models.append(one)
    return models


def same_points(ours) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Our losses at the points that the package evaluates (see above)."""
    step = 2 * EXTENT / STEPS
    x = -EXTENT + step * np.arange(STEPS)
    even = ours((x, -EXTENT + step * np.arange(1, STEPS + 1)))
    odd = ours((x, -EXTENT + step * np.arange(STEPS)))
    return np.where(np.arange(STEPS)[:, None] % 2 == 0, even, odd)


def seconds(call, device: torch.device) -> float:  # type: ignore[no-untyped-def]
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()  # ends with a copy to the host, so the device is done
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
