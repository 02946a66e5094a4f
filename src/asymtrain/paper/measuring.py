"""The measurements that recipes ask for, and how each kind is taken. Values go into the store under the spec's id."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asymtrain.paper.attention_values import measure_attentions
from asymtrain.paper.identity_values import measure_identities
from asymtrain.paper.landscape_values import measure_landscapes
from asymtrain.paper.recipe import Measuring
from asymtrain.store import Store, records

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
        for one, values in INSTRUMENTS[kind](members, place.device, place.data_root, place.cache):
            with Store(place.store) as store:
                with store.database.writing() as connection:
                    records.insert_specs(connection, [one.spec])  # known, and not asked for: it need not be trained
                store.add_measurement(one.spec.id, one.name, values)
            yield one
