"""A spec only names its model and data, and both can change: each run stores fingerprints of both.

Before anything is trained or written, `check_sources` builds the requested models and compares them, and the data,
with those that the store's runs were trained with. This builds one model for each kind of spec.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from asymtrain.errors import UsageError
from asymtrain.lab.checkpoints import begun_sources, checkpoints_of
from asymtrain.lab.data import Dataset
from asymtrain.lab.engine import load_for
from asymtrain.lab.engine.setup import build_module, build_network
from asymtrain.lab.runs import Run, RunSpec
from asymtrain.lab.sources import Inputs, difference, fingerprint, is_named
from asymtrain.lab.store import Store, store_exists

# The fields that a forward in training depends on, including the last one of an epoch.
_TRIED = ("at", "head", "pool", "layout", "batch", "last_batch", "validation", "per_class", "precision")


class Fingerprints(NamedTuple):
    """Fingerprints of the model with the initial values of seed 0, and of the data."""

    model: str
    data: str


def take_fingerprints(specs: Iterable[RunSpec], dataset: Dataset) -> dict[tuple[object, ...], Fingerprints]:
    """The fingerprints of each kind of spec on a dataset, by `kind_of`."""
    first = first_of_each_kind(specs)
    return {kind_of(spec): Fingerprints(_model_fingerprint(spec, dataset), dataset.fingerprint) for spec in first}


def with_sources(
    runs: Iterable[Run], fingerprints: dict[tuple[object, ...], Fingerprints], dataset: Dataset
) -> tuple[Run, ...]:
    """The runs with their fingerprints, and with the class numbers that chance accuracy depends on."""
    return tuple(
        dataclasses.replace(
            run,
            model_fingerprint=fingerprints[kind].model,
            data_fingerprint=fingerprints[kind].data,
            classes=dataset.classes,
            largest_class=dataset.test.largest_class,
        )
        for run in runs
        for kind in [kind_of(run.spec)]
    )


def kind_of(spec: RunSpec) -> tuple[object, ...]:
    """A key of everything that the model of seed 0 depends on; the data determine its sizes."""
    return (spec.dataset, spec.dataset_options, spec.arch, spec.arch_options, spec.initial_weights)


def first_of_each_kind(specs: Iterable[RunSpec]) -> list[RunSpec]:
    kinds: dict[tuple[object, ...], RunSpec] = {}
    for spec in specs:
        kinds.setdefault(kind_of(spec), spec)
    return list(kinds.values())


def check_sources(
    specs: Sequence[RunSpec], store: Path | None = None, *, data_root: Path | None = None, fresh: bool = False
) -> None:
    """Refuse models and layers that cannot be built, and models or data that changed since the store's runs."""
    models: defaultdict[tuple[object, ...], list[str]] = defaultdict(list)
    data: defaultdict[tuple[object, ...], list[str]] = defaultdict(list)
    if store is not None and not fresh and store_exists(store):
        with Store(store, read_only=True) as record:
            sources = [*record.fingerprints(), *begun_sources(checkpoints_of(store))]
        for spec, model_print, data_print in sources:
            models[kind_of(spec)] += [model_print] if model_print else []
            data[kind_of(spec)[:2]] += [data_print] if data_print else []
    # Sorted by dataset, since only one is kept in memory.
    for spec in sorted(first_of_each_kind(specs), key=lambda spec: repr(kind_of(spec)[:2])):
        kind = kind_of(spec)
        # A backbone without earlier runs needs no comparison.
        if not (is_named(spec.arch) or models[kind] or data[kind[:2]]):
            continue
        dataset = load_for(spec, data_root)
        others = sum(earlier != dataset.fingerprint for earlier in data[kind[:2]])
        _refuse(f"the data {spec.dataset}", others, "they hold other examples, labels or classes", store)
        now = _model_fingerprint(spec, dataset)
        changes = [change for earlier in models[kind] if (change := difference(now, earlier))]
        _refuse(f"the model {spec.arch}", len(changes), f"{', '.join(dict.fromkeys(changes))} changed", store)
        if is_named(spec.arch):
            same = [other for other in specs if kind_of(other) == kind]
            same = [other for other in same if other.redundancy] or same  # a Plain run has no layers
            for tried in {tuple(getattr(other, name) for name in _TRIED): other for other in same}.values():
                build_network(
                    tried, dataset
                )  # refuses models that would fail in training, and layers that no branch can read


def check_data(specs: Iterable[RunSpec], data_root: Path | None = None) -> None:
    """Refuse data that are missing or broken, or that one of the backbones does not take.

    Commands call this before anything is written. `check_sources` checks the data with other models.
    """
    for spec in {(*kind_of(spec), spec.head): spec for spec in specs}.values():
        dataset = load_for(spec, data_root)
        if not is_named(spec.arch):
            build_module(spec, dataset)


def _refuse(what: str, others: int, how: str, store: Path | None) -> None:
    """Raise the error if `others`, a number of runs, is not 0."""
    if others:
        runs = f"{others} runs in {store} were" if others > 1 else f"a run in {store} was"
        cure = "give another --store, or train again what is asked for with --fresh (of run and search)"
        raise UsageError(f"{what} changed since {runs} trained: {how}; {cure}")


def _model_fingerprint(spec: RunSpec, dataset: Dataset) -> str:
    model = build_module(dataclasses.replace(spec, seed=0), dataset)
    return fingerprint(model, Inputs(tuple(dataset.train.inputs.shape[1:]), dataset.kind))
