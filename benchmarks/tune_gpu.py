"""Eight minutes of `asymtrain tune` on one GPU for each of five models, with logs kept.

    python benchmarks/tune_gpu.py                 # all, one after another
    python benchmarks/tune_gpu.py --only cnn      # one of them
    python benchmarks/tune_gpu.py --list          # only print the commands
    python benchmarks/tune_gpu.py --only cnn -- --data shapes --minutes 2    # a trial without a GPU

Each model leaves three files in --out: its log, which ends with the seconds that it took, tune.json and the page. Runs
and checkpoints stay in --work, where the same command continues. For the first four models, results/ has rows of full
length, and docs/practice.md the gain of their branches; the last is in no study. Needs timm, except for the CNN, and
CIFAR-100 under --data-root.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODELS = {
    "vit-tiny": "timm:vit_tiny_patch16_224 --arch-option img_size=32 --arch-option patch_size=4",
    "swin": "timm:swin_tiny_patch4_window7_224 --arch-option img_size=32 --arch-option patch_size=2 "
    "--arch-option window_size=4 --arch-option embed_dim=48",
    "resnet18": "asymtrain.lab.studies.practice.models:resnet18",
    "cnn": "cnn",
    "unseen": "timm:efficientnet_b0",
}
COMMON = "--data cifar100 --epochs 30 --minutes 8"


def run(name: str, words: list[str], work: Path, out: Path) -> int:
    """Run a command from the sources, and keep its output and results; its exit status."""
    out.mkdir(parents=True, exist_ok=True)
    paths = filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])
    began = time.monotonic()
    with (out / f"{name}.log").open("a") as log:
        log.write(f"{shlex.join(['asymtrain', *words])}\n")
        log.flush()
        status = subprocess.run(
            [sys.executable, "-m", "asymtrain", *words],
            stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, check=False,
        ).returncode  # fmt: skip
        log.write(f"Took {time.monotonic() - began:.0f} s, exit status {status}.\n")
    for file in (work / name / "tune.json", work / name / "report.html"):
        if file.exists():
            shutil.copy(file, out / f"{name}{file.suffix}")
    return status


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", choices=MODELS, help="one of the models")
    options.add_argument("--work", type=Path, default=ROOT / "build" / "tune-gpu", help="a folder for runs")
    options.add_argument("--out", type=Path, default=ROOT / "build" / "tune-gpu", help="a folder for results")
    options.add_argument("--data-root")
    options.add_argument("--list", action="store_true", help="print the commands alone")
    options.add_argument("further", nargs="*", help="after --: further options of each command, such as --minutes 2")
    chosen = options.parse_args()
    statuses = []
    for name, model in MODELS.items():
        if chosen.only not in (None, name):
            continue
        root = ["--data-root", chosen.data_root] if chosen.data_root else []
        words = ["tune", *shlex.split(f"{model} {COMMON}"), *root, "--out", str(chosen.work / name), *chosen.further]
        print(shlex.join(["asymtrain", *words]), flush=True)
        if not chosen.list:
            statuses.append(run(name, words, chosen.work, chosen.out))
    sys.exit(max(statuses, default=0))


if __name__ == "__main__":
    main()
