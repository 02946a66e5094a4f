"""Eight minutes of `asymtrain tune` on one GPU for each of five models, with logs kept.

    python benchmarks/tune_gpu.py                 # all, one after another, into build/tune-gpu
    python benchmarks/tune_gpu.py --only cnn      # one of them
    python benchmarks/tune_gpu.py --list          # the commands, and nothing else

The first four have rows of full length in results/, beside which docs/practice.md puts the gain of their branches; the
last is in no study. Needs timm, and CIFAR-100 under --data-root.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

MODELS = {
    "vit-tiny": "timm:vit_tiny_patch16_224 --arch-option img_size=32 --arch-option patch_size=4",
    "swin": "timm:swin_tiny_patch4_window7_224 --arch-option img_size=32 --arch-option patch_size=2 "
    "--arch-option window_size=4 --arch-option embed_dim=48",
    "resnet18": "asymtrain.lab.studies.practice.models:resnet18",
    "cnn": "cnn",
    "unseen": "timm:efficientnet_b0",
}
COMMON = "--data cifar100 --epochs 30 --minutes 8"


def commands(out: Path, data_root: str | None) -> dict[str, list[str]]:
    """By name."""
    root = ["--data-root", data_root] if data_root else []
    return {
        name: ["tune", *shlex.split(model), *shlex.split(COMMON), *root, "--out", str(out / name)]
        for name, model in MODELS.items()
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", choices=MODELS, help="one of the models")
    options.add_argument("--out", type=Path, default=Path("build/tune-gpu"))
    options.add_argument("--data-root")
    options.add_argument("--list", action="store_true", help="print the commands alone")
    chosen = options.parse_args()
    for name, words in commands(chosen.out, chosen.data_root).items():
        if chosen.only not in (None, name):
            continue
        print(shlex.join(["asymtrain", *words]), flush=True)
        if chosen.list:
            continue
        chosen.out.mkdir(parents=True, exist_ok=True)
        with (chosen.out / f"{name}.log").open("w") as log:
            subprocess.run(
                [sys.executable, "-m", "asymtrain", *words], stdout=log, stderr=subprocess.STDOUT, check=False
            )


if __name__ == "__main__":
    main()
