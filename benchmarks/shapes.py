"""How fast is `shapes` drawn, and how difficult is it? Prints the figures that docs/data.md quotes.

    OMP_NUM_THREADS=1 python benchmarks/shapes.py        # about a minute on one core

Seconds to draw 20,000 images are processor time, the median of three. Accuracies are on 1,000 test images after
learning from 4,000: ridge regression on the pixels in numpy, its strength chosen on a fifth of the training images, and
a network of three convolutions after 5 epochs of the engine, once for each seed.
"""

import platform
import statistics
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from asymtrain.lab.data import Examples, load
from asymtrain.lab.engine import train
from asymtrain.lab.runs import RunSpec, grid

DRAWN = 20_000
SIZES: dict[str, Any] = {"size": 4000, "test_size": 1000}
SEEDS = (42, 43)
STRENGTHS = (1e2, 1e3, 1e4, 1e5)  # of the ridge, for pixels from 0 to 1
NETWORK = {"widths": (16, 32, 32), "pool_after": (0, 1, 2), "hidden": (64,)}

Matrix = npt.NDArray[np.float64]


def main() -> None:
    torch.set_num_threads(1)
    print(
        f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}, torch {torch.__version__}"
    )
    print(f"{DRAWN:,} images drawn in {drawing_seconds():.1f} s on one core")
    print(f"{'classes':>7} {'chance':>7} {'ridge':>7} {'CNN':>7}   CNN, each seed")
    for classes in (10, 20):
        data = load("shapes", classes=classes, **SIZES)
        linear = ridge_accuracy(data.train, data.test, classes)
        network = network_accuracies(classes)
        each = ", ".join(f"{accuracy:.1%}" for accuracy in network)
        print(f"{classes:7} {1 / classes:7.1%} {linear:7.1%} {statistics.mean(network):7.1%}   {each}", flush=True)


def drawing_seconds() -> float:
    """Processor time, which other work on the machine does not affect."""
    seconds = []
    for _ in range(3):
        start = time.process_time()
        load("shapes", size=DRAWN, test_size=20)
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def ridge_accuracy(train_set: Examples, test_set: Examples, classes: int) -> float:
    """Test accuracy of ridge regression from pixels to one-hot labels; test images take no part in choices."""
    images, labels = pixels(train_set), train_set.labels
    fifth = len(labels) // 5
    chosen_on = (images[-fifth:], labels[-fifth:])
    accuracies = ridge_accuracies(images[:-fifth], labels[:-fifth], *chosen_on, classes, STRENGTHS)
    strength = STRENGTHS[int(np.argmax(accuracies))]
    (accuracy,) = ridge_accuracies(images, labels, pixels(test_set), test_set.labels, classes, (strength,))
    return accuracy


def ridge_accuracies(
    x: Matrix, labels: npt.NDArray[np.int64], t: Matrix, truth: npt.NDArray[np.int64], classes: int,
    strengths: tuple[float, ...],
) -> list[float]:  # fmt: skip
    """Accuracy on `t` for each strength, after fitting on `x`."""
    mean = x.mean(axis=0)
    x, t = x - mean, t - mean
    gram = x.T @ x
    target = x.T @ (np.eye(classes)[labels] - 1 / classes)
    accuracies = []
    for strength in strengths:
        answers = t @ np.linalg.solve(gram + strength * np.eye(len(gram)), target)
        accuracies.append(float((answers.argmax(axis=1) == truth).mean()))
    return accuracies


def pixels(images: Examples) -> Matrix:
    """One row for each image, values from 0 to 1."""
    return images.images.reshape(len(images), -1) / 255.0


def network_accuracies(classes: int) -> list[float]:
    """Test accuracy of the network for each seed; it trains on all 4,000 images."""
    fields: dict[str, Any] = {
        "dataset_options": {"classes": classes, **SIZES},
        "validation": "none",
        "arch_options": NETWORK,
        "learning_rate": 2e-3,
        "batch": 32,
        "epochs": 5,
    }
    spec = RunSpec(dataset="shapes", arch="cnn", redundancy=0, **fields)
    return [run.test_accuracy or 0.0 for run in train(grid(spec, seed=SEEDS), device="cpu")]


if __name__ == "__main__":
    main()
