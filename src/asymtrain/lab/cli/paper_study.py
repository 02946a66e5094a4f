"""What the options of `asymtrain paper` mean: the study, the recipes, the store, the device."""

from collections.abc import Sequence
from pathlib import Path

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.cli.options import STORE_NAME, parse_seeds
from asymtrain.lab.cli.paper_options import PAPER_OUT
from asymtrain.lab.devices import default_device
from asymtrain.lab.executors import EXECUTORS
from asymtrain.lab.executors.local import Local
from asymtrain.lab.paper.backbones import parts_of
from asymtrain.lab.paper.readings import parse_readings
from asymtrain.lab.paper.recipe import Recipe
from asymtrain.lab.paper.recipes import choose
from asymtrain.lab.paper.sizes import get_sizes
from asymtrain.lab.paper.study import Study


def build_study(
    scale: str,
    seeds: str | None,
    epochs: int | None,
    reading: list[str] | None,
    precision: str,
    data: str | None,
    hyperparameters: str,
    *,
    fair: bool = False,
) -> Study:
    """The study that the options mean; what contradicts itself is refused."""
    sizes = get_sizes(scale)
    if epochs is not None and epochs < 1:
        raise UsageError(f"--epochs must be 1 or more, got {epochs}")
    if data not in (None, "shapes", "cifar"):
        raise UsageError(f"--data must be shapes or cifar, got {data!r}")
    if data == "shapes" and not sizes.stands_for:
        raise UsageError(f"--scale {scale} is on CIFAR itself: leave out --data shapes, or take --scale quick")
    part = data == "cifar" and bool(sizes.stands_for)  # where nothing stands in, CIFAR is taken anyway
    return Study(
        sizes=sizes,
        readings=parse_readings(reading or []),
        seeds=parse_seeds(seeds) if seeds else (),
        epochs=epochs or 0,
        precision=precision,
        data="cifar" if part else "stand-in",
        hyperparameters=hyperparameters,  # type: ignore[arg-type]  # which the study checks
        fair=fair,
    )


def choose_parts(names: Sequence[str], study: Study, archs: Sequence[str]) -> tuple[Recipe, ...]:
    """What the named recipes have of these backbones; refused where that is nothing."""
    parts = parts_of(choose(names), study, archs)
    if not parts:
        raise UsageError(f"there is nothing of {', '.join(archs)} in {', '.join(names)}: leave out --arch")
    return parts


def place_of(store: Path | None, out: Path) -> Path:
    """The store that is meant."""
    return store or out / STORE_NAME


def find_store(store: Path | None, out: Path | None) -> Path:
    """The store that `show` reads: the one that is named, else that of the folder, else that of `paper run`."""
    places = (
        [store] if store is not None else [folder / STORE_NAME for folder in (out, PAPER_OUT) if folder is not None]
    )
    found = next((place for place in dict.fromkeys(places) if place.exists()), None)
    if found is None:
        looked = " nor at ".join(str(place) for place in dict.fromkeys(places))
        raise UsageError(
            f"there is no store at {looked}: name yours with --store, or make one with `asymtrain paper run`"
        )
    return found


def workers_of(executor: str, address: str | None, device: str | None) -> tuple[str, int]:
    """The kind of device (cpu, cuda) and how many stacks train at the same time; a cluster is taken for one GPU."""
    if executor not in EXECUTORS:
        raise unknown_name("executor", executor, EXECUTORS)
    if executor == "ray":
        return ("cpu" if device == "cpu" else "cuda"), 1
    if address is not None:
        raise UsageError("--address is of a Ray cluster: add --executor ray")
    place = default_device(device)
    return ("cuda" if place.type == "cuda" else "cpu"), Local(place).workers
