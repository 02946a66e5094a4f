"""A `Study` is how the paper is reproduced: how large, with which seeds, under which readings.

It turns the paper's words (a backbone, a dataset, a redundancy) into specs, in one place, so that recipes that mean the
same run name the same spec and nothing is trained twice.

Three rules make runs equal that are equal:

- With single activation the trained backbone does not depend on N (see docs/method.md), so N = 7 and N = 20 at the same
  learning rate, weight decay and alpha are one run, trained with one branch. The recipe `identity` shows it.
- One branch, all active, is one branch, the last one active.
- All images of a class are no few-shot subset.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.paper.numbers import Hyperparameters, hyperparameters
from asymtrain.lab.paper.readings import PRIMARY, Part, Reading
from asymtrain.lab.paper.sizes import SIZES, Sizes
from asymtrain.lab.runs import RunSpec, grid
from asymtrain.lab.scales import get_scale, scaled_spec

FULL = {"cifar10": 5000, "cifar100": 500}  # training images a class
LONG = 100  # epochs that the paper's learning curves show


@dataclass(frozen=True)
class Study:
    """What is asked for; everything that is left out is the scale's.

    Attributes:
        sizes: of the scale.
        readings: the primary one first.
        seeds: of final results.
        epochs: of final results; the trials of a search keep their share of it.
        precision: of every training.
        data: `stand-in` (what the scale says) or `cifar` (the real images, also at the scale `quick`).
        hyperparameters: where the paper gives none (CIFAR-10, Table 16), those that our search finds, or Table 13's.
        fair: do Tables 10, 13 and 16 also show a Plain that had as many trials as alpha (see `fairness`)?
    """

    sizes: Sizes = SIZES["quick"]
    readings: tuple[Reading, ...] = (PRIMARY,)
    seeds: tuple[int, ...] = ()
    epochs: int = 0
    precision: str = "fp32"
    data: Literal["stand-in", "cifar"] = "stand-in"
    hyperparameters: Literal["searched", "paper"] = "searched"
    fair: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "seeds", self.seeds or self.sizes.seeds)
        object.__setattr__(self, "epochs", self.epochs or self.sizes.epochs)
        if self.epochs < 1:
            raise UsageError(f"--epochs must be 1 or more, got {self.epochs}")
        if clash := set(self.seeds) & set(self.sizes.search_seeds):
            raise UsageError(f"seed {min(clash)} is one of the search's: final results need seeds of their own")
        for name, known in (("data", ("stand-in", "cifar")), ("hyperparameters", ("searched", "paper"))):
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        if self.fair and self.hyperparameters == "paper":
            raise UsageError(
                "--fair gives Plain trials in a search, --hyperparameters paper makes none: drop one of them"
            )

    @property
    def search_epochs(self) -> int:
        """Epochs of a trial: as many as the scale's, in proportion where the study is shorter."""
        return max(1, round(self.sizes.search_epochs * min(1.0, self.epochs / self.sizes.epochs)))

    @property
    def window(self) -> int:
        """Epochs that the paper's learning curves show: the first 100, or all where there are fewer."""
        return min(LONG, self.epochs)

    def at(self, epoch: int) -> int:
        """The epoch that stands for one of the paper's first 100: itself, or its share of a shorter run."""
        return max(1, round(epoch * self.window / LONG))

    @property
    def stand_in(self) -> str:
        """What stands in for the paper's data and networks; empty at the paper's scale."""
        if self.sizes.scale == "paper":
            return ""
        return f"small networks on {'a part of CIFAR' if self.data == 'cifar' else 'shapes'}"


def stands_note(study: Study, epochs: Sequence[int]) -> str:
    """A sentence for a table of a study that is too short for the paper's epochs."""
    return f"The epochs stand for {', '.join(map(str, epochs))}. " if study.window < epochs[-1] else ""


def readings_for(study: Study, redundancy: int, *parts: Part) -> list[Reading]:
    """The primary reading, and those that change one of these parts for this redundancy."""
    return [
        reading
        for reading in study.readings
        # With one branch, all active is the last active.
        if reading.changes is None
        or (reading.changes in parts and not (redundancy == 1 and "activation" in reading.fields))
    ]


def table_values(study: Study, arch: str, redundancy: int) -> Hyperparameters:
    """Table 13's learning rate, weight decay and alpha; a small scale has learning rates of its own."""
    values = hyperparameters(arch, redundancy)
    return dataclasses.replace(values, learning_rate=study.sizes.learning_rate.get(arch, values.learning_rate))


def data_fields(study: Study, dataset: str) -> dict[str, Any]:
    """Fields of a spec that say what is learnt, for one of the paper's datasets."""
    if dataset not in FULL:
        raise unknown_name("dataset of the paper", dataset, FULL)
    if study.data == "stand-in" and dataset in study.sizes.stands_for:
        return dict(study.sizes.stands_for[dataset])
    return {"dataset": dataset, **get_scale(study.sizes.scale).datasets.get(dataset, {})}


def shown_dataset(study: Study, dataset: str) -> str:
    """What the study learns in place of one of the paper's datasets, for a reader."""
    names = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
    fields = data_fields(study, dataset)
    if fields["dataset"] == dataset:
        images = f" ({fields['per_class']} images a class)" if "per_class" in fields else ""
        return names[dataset] + images
    options = dict(fields.get("dataset_options", ()))
    return f"{fields['dataset']} with {options.get('classes', '?')} classes (for {names[dataset]})"


def few_shot_size(study: Study, dataset: str, per_class: int) -> int | None:
    """Images a class that stand for the paper's number; None is all of them."""
    if per_class >= FULL[dataset]:
        return None
    if study.data == "cifar" and study.sizes.stands_for:
        # The quick scale's subset of CIFAR is all there is: keep the paper's share of it.
        whole = get_scale(study.sizes.scale).datasets.get(dataset, {}).get("per_class", FULL[dataset])
        return max(2, round(per_class * whole / FULL[dataset]))
    return study.sizes.few_shot.get(dataset, {}).get(per_class, per_class)


def plain_spec(study: Study, arch: str, dataset: str, values: Hyperparameters, **fields: Any) -> RunSpec:
    """The Plain spec of the study's first seed."""
    common = {
        "epochs": study.epochs,
        "precision": study.precision,
        "test": "every",  # so that the best validation epoch's accuracy needs no other run
        "learning_rate": values.learning_rate,
        "weight_decay": values.weight_decay,
        "seed": study.seeds[0],
    }
    asked = {name: value for name, value in fields.items() if value is not None}
    given = {**data_fields(study, dataset), **common, **study.sizes.archs.get(arch, {}), **asked, "redundancy": 0}
    return scaled_spec(get_scale(study.sizes.scale), arch, given.pop("dataset"), **given)


def asymmetric_spec(
    study: Study,
    reading: Reading,
    arch: str,
    dataset: str,
    values: Hyperparameters,
    redundancy: int,
    auxiliary: Mapping[str, Any] | None = None,
    **fields: Any,
) -> RunSpec:
    """The Asymmetric spec of the study's first seed, in the one form that equal runs share.

    `auxiliary` are fields of this side alone, which win over the reading's; `fields` are those of both sides.
    """
    chosen = {**reading.fields, **(auxiliary or {})}
    if redundancy == 1 or chosen.get("activation", "last") == "last":
        redundancy = 1
        chosen = {name: value for name, value in chosen.items() if name not in ("activation", "combine")}
    plain = plain_spec(study, arch, dataset, values, **fields)
    return dataclasses.replace(plain, **{"redundancy": redundancy, "alpha": values.alpha, **chosen})


def over_seeds(study: Study, spec: RunSpec) -> tuple[RunSpec, ...]:
    """The spec with each of the study's seeds."""
    return _with_seeds(spec, tuple(study.seeds))


@lru_cache(maxsize=10_000)  # recipes ask for the same ones many times, and each spec is checked as it is made
def _with_seeds(spec: RunSpec, seeds: tuple[int, ...]) -> tuple[RunSpec, ...]:
    return tuple(grid(spec, seed=seeds))


def unique(groups: Iterable[Iterable[RunSpec]]) -> tuple[RunSpec, ...]:
    """All specs of all groups, each once, in order."""
    return tuple(dict.fromkeys(spec for group in groups for spec in group))
