"""Learning rate, weight decay and alpha if the paper gives none: the choice of our search, read from its runs."""

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from asymtrain.lab.runs import RunSpec
from asymtrain.lab.search import STRATEGIES, Search, SearchResult, replay
from asymtrain.lab.studies.paper.numbers import Hyperparameters
from asymtrain.lab.studies.paper.study import PRIMARY, Scope, Sizes, asymmetric_spec, table_values
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Needs
from asymtrain.lab.studies.timing import class_count

TRIED = 3  # branches at each point in Table 16
START = 1.0  # alpha during the search of Asymmetric's learning rate and weight decay: both losses with equal weight


def gold_search(study: Scope, arch: str, dataset: str) -> Search:
    """The three-stage search of one backbone on one dataset. With one live branch it is the same for every N."""
    base = asymmetric_spec(study, PRIMARY, arch, dataset, table_values(study, arch, 1), 1)
    linear = (arch, dataset) == ("mlp", "cifar10")
    alphas = study.sizes.alphas_mlp_cifar10 if linear else study.sizes.alphas
    return _search("gold", base, study.sizes, study.search_epochs, alphas)


def dual_of(study: Scope, arch: str, activation: str) -> Search:
    """The search of Table 16: Plain and Asymmetric separately, three branches, all or one active."""
    auxiliary = {"activation": "all"} if activation == "all" else {}
    start = dataclasses.replace(table_values(study, arch, 1), alpha=START)
    base = asymmetric_spec(study, PRIMARY, arch, "cifar100", start, TRIED, auxiliary)
    return _search("dual", base, study.sizes, study.search_epochs, study.sizes.alphas)


def _search(strategy: str, base: RunSpec, sizes: Sizes, epochs: int, alphas: tuple[float, ...]) -> Search:
    grids = {"learning_rates": sizes.learning_rates, "weight_decays": sizes.weight_decays, "alphas": alphas}
    return _cached(strategy, base, **grids, seeds=sizes.search_seeds, epochs=epochs)


@lru_cache(maxsize=256)  # recipes ask for the same ones again and again, and each validates all of its trials
def _cached(strategy: str, base: RunSpec, **options: Any) -> Search:
    return STRATEGIES[strategy](base, **options)


def state_of(search: Search, snapshot: Snapshot) -> SearchResult:
    return replay(search, snapshot.runs, lambda: 1 / class_count(search.base))


def chosen(search: Search, snapshot: Snapshot) -> Mapping[str, Hyperparameters] | None:
    """The values that a finished search chose for `plain` and `asymmetric`."""
    result = state_of(search, snapshot)
    if not result.complete:
        return None
    base = search.base
    return {
        variant: Hyperparameters(
            base.arch,
            base.redundancy,
            settings["learning_rate"],
            settings["weight_decay"],
            settings.get("alpha", base.alpha),
        )
        for variant, settings in result.chosen.items()
    }


def is_searched(study: Scope, dataset: str) -> bool:
    """Does the study search this dataset's settings? The paper prints those for CIFAR-100."""
    return dataset == "cifar10" and study.hyperparameters == "searched"


def values_for(study: Scope, snapshot: Snapshot, arch: str, dataset: str, redundancy: int) -> Hyperparameters | None:
    """Settings of both sides of a comparison; None until the search for them is finished."""
    if not is_searched(study, dataset):
        return table_values(study, arch, redundancy)
    settings = chosen(gold_search(study, arch, dataset), snapshot)
    return None if settings is None else settings["asymmetric"]


def waiting(study: Scope, snapshot: Snapshot, arch: str, dataset: str) -> Needs:
    return trials(gold_search(study, arch, dataset), snapshot) if is_searched(study, dataset) else Needs()


def trials(search: Search, snapshot: Snapshot) -> Needs:
    """Every trial of the known stages, trained or not, and the largest number of trials in later stages."""
    result = state_of(search, snapshot)
    ids = {spec.id: spec for spec in result.missing}
    specs = tuple(ids.get(spec_id) or snapshot.runs[spec_id].spec for spec_id in result.spec_ids)
    base = search.base
    name = f"{search.strategy} {base.dataset} {base.dataset_options} {base.activation}"
    return Needs(specs, later={(base.arch, name): result.runs_left - len(result.missing)})


def settled(study: Scope, snapshot: Snapshot, arch: str, dataset: str, redundancy: int) -> str:
    values = values_for(study, snapshot, arch, dataset, redundancy)
    if values is None:
        return "Its settings are those that the search of Table 13 chooses, which is not finished."
    words = f"learning rate {values.learning_rate:g}, weight decay {values.weight_decay:g}, alpha {values.alpha:g}"
    if is_searched(study, dataset):
        return f"Settings found by our search: {words}."
    own = "the scale's learning rate and " if arch in study.sizes.learning_rate else ""
    return f"Settings: {own}Table 13's at N = {redundancy} on CIFAR-100: {words}."
