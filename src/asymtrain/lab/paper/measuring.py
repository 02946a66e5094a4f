"""The measurements that recipes ask for, and how each kind is taken. Values go into the store under the spec's id."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from asymtrain.lab.engine import default_device
from asymtrain.lab.paper.attention_values import measure_attentions
from asymtrain.lab.paper.identity_values import measure_identities
from asymtrain.lab.paper.known import shown_versions
from asymtrain.lab.paper.landscape_values import measure_landscapes
from asymtrain.lab.paper.recipe import Measuring
from asymtrain.lab.store import Store
from asymtrain.lab.store.provenance import current

Values = Mapping[int, Any]
Take = Callable[["list[Any]", str | None, Path | None, Path], Iterator[tuple[Any, Values]]]

INSTRUMENTS: dict[str, Take] = {
    "landscape": measure_landscapes,
    "attention": measure_attentions,
    "identity": measure_identities,
}


@dataclass(frozen=True)
class Place:
    """Where measurements are taken and kept."""

    store: Path
    device: str | None = None
    data_root: Path | None = None

    @property
    def cache(self) -> Path:
        """Training states that were trained for a measurement."""
        return self.store.with_name(self.store.name + ".states")


def take(wanted: Iterable[Measuring], place: Place) -> Iterator[Measuring]:
    """Take what is wanted, store each value as it comes, and yield what was stored."""
    kinds: dict[str, list[Measuring]] = {}
    for one in wanted:
        kinds.setdefault(one.kind, []).append(one)
    for kind, members in kinds.items():
        began = time.perf_counter()
        for one, values in INSTRUMENTS[kind](members, place.device, place.data_root, place.cache):
            with Store(place.store) as store:
                store.know([one.spec])  # and not asked for: it need not be trained
                seconds = time.perf_counter() - began
                store.add_measurement(one.spec.id, one.name, with_origin(values, place.device, seconds))
            yield one
            began = time.perf_counter()


def with_origin(values: Values, device: str | None, seconds: float) -> Values:
    """The values with device, versions and seconds in the first of them, where the instrument did not say.

    Seconds count from the measurement before: of runs that are trained again together, the first has the training.
    Only their sum over a recipe's measurements is shown.
    """
    if not values:
        return values
    place = default_device(device)
    origin = {
        "device": torch.cuda.get_device_name(place) if place.type == "cuda" else place.type,
        "seconds": seconds,
        "versions": shown_versions(dataclasses.asdict(current())),
    }
    first = min(values)
    return {**values, first: {**origin, **values[first]}}
