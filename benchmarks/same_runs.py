"""Do two versions of the sources train the same networks? Accuracies of the runs that two stores share, at one epoch.

    asymtrain store import long.sqlite results/cifar100-200-epochs
    asymtrain store import short.sqlite results/cifar100-5-epochs
    python benchmarks/same_runs.py long.sqlite short.sqlite --epoch 5

With a constant learning rate, the first epochs of a long run are a short run, and one live branch that is drawn
independently of N is the same for every N; such runs count as shared. Two correct programs round differently, so single
pairs differ: the criterion is a 90% interval of the mean difference within one point, as in the GPU tests.
"""

import argparse
import dataclasses
from pathlib import Path

from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.statistics import t_interval
from asymtrain.lab.store import Store

BOUND = 1.0  # points of accuracy


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("stores", nargs=2, type=Path)
    options.add_argument("--epoch", type=int, required=True)
    chosen = options.parse_args()
    ours, theirs = (runs_at(path, chosen.epoch) for path in chosen.stores)
    shared = sorted(ours.keys() & theirs.keys(), key=lambda spec: (spec.arch, spec.variant, spec.alpha, spec.seed))
    if not shared:
        raise SystemExit(f"the stores share no run with a test accuracy at epoch {chosen.epoch}")
    groups: dict[RunSpec, list[float]] = {}
    for spec in shared:
        group = dataclasses.replace(spec, seed=0)
        groups.setdefault(group, []).append(100 * (ours[spec] - theirs[spec]))
    print(f"test accuracy at epoch {chosen.epoch}, first store minus second, in points; 90% t interval over seeds")
    for group, differences in groups.items():
        if len(differences) < 2:
            continue  # one pair says nothing about the mean
        effect = t_interval(differences, confidence=0.9)
        within = "within" if effect.low >= -BOUND and effect.high <= BOUND else "not within"
        print(f"{group.arch:4} {group.variant:10} alpha {group.alpha:<5g} {effect.estimate:+.2f} [{effect.low:+.2f},"
              f" {effect.high:+.2f}]  n={len(differences)}, {within} {BOUND:g} point")  # fmt: skip


def runs_at(path: Path, epoch: int) -> dict[RunSpec, float]:
    """Test accuracies at an epoch, by the spec of a run of that length."""
    if not path.exists():
        raise SystemExit(f"{path} does not exist")
    with Store(path, read_only=True) as store:
        return {
            short(run, epoch): accuracy
            for run in store.runs()
            if _has(run, epoch) and (accuracy := run.history[epoch - 1].test_accuracy) is not None
        }


def _has(run: Run, epoch: int) -> bool:
    """Does this run contain a run of so many epochs? Schedules depend on the length."""
    steady = run.spec.schedule == run.spec.alpha_schedule == "constant"
    return len(run.history) == epoch or (steady and len(run.history) > epoch)


def short(run: Run, epoch: int) -> RunSpec:
    spec = run.spec
    redundancy = min(1, spec.redundancy) if spec.activation == "last" else spec.redundancy
    return dataclasses.replace(spec, epochs=epoch, test="last", redundancy=redundancy)


if __name__ == "__main__":
    main()
