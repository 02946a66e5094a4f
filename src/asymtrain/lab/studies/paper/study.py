"""A `Scope` is how the paper is reproduced: under which readings, at which size, with which seeds.

It turns the paper's words (a backbone, a dataset, a redundancy) into specs, in one place, so that recipes that mean the
same run name the same spec and nothing is trained twice.

Readings are ways to take the paper where it leaves a choice open: one primary reading and four alternates, fixed before
any row of 200 epochs; rows of five epochs are older. The primary one takes the text literally, and a framework's
defaults where it says nothing: the per-class losses averaged (what a framework's binary cross-entropy does), only the
last branch live, the class token as the ViT's branch input, a constant learning rate, no augmentation, the test
accuracy after the last epoch, branches as trained for the cosine, and landscape directions whose entries have unit
variance. Each alternate changes one thing that could change a verdict, and nothing else:

- `sum`: equation 3 as printed has no division by C, so alpha is C times as strong.
- `all`: every branch gives a loss. With single activation N cannot act on the backbone at all, so this is the only
  reading in which a claim about N could hold.
- `best`: the test accuracy at the epoch of the best validation accuracy; the MLP's printed Plain value is nearer to it.
- `instruments`: the other definition of each instrument: the cosine of branches on detached features (the backbone then
  trains as Plain), landscape directions of unit norm over all parameters, attention averaged over all queries.

Two more were declared after rows were seen, so they are shown with the verdicts and change none:

- `last20`: the mean test accuracy of the last 20 epochs. With a constant learning rate a single epoch is noisy: for the
  ViT one epoch's drop of two points is common.
- `ordinary`: a cosine schedule, flips and shifts, on both sides. The paper names neither a schedule nor augmentation,
  and few train without them. Only for Tables 1 and 3; half of such a run is not a run, so Table 3 uses all its epochs.

Three rules identify runs that are equal:

- With single activation the trained backbone does not depend on N (see docs/method.md), so N = 7 and N = 20 at the same
  learning rate, weight decay and alpha are one run, trained with one branch. The recipe `identity` shows it.
- One branch, all active, is one branch, the last one active.
- All images of a class are not a few-shot subset.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from asymtrain.errors import UsageError, unknown_name
from asymtrain.lab.runs import RunSpec, grid
from asymtrain.lab.scales import get_scale, scaled_spec
from asymtrain.lab.search import grids
from asymtrain.lab.studies.paper.numbers import Hyperparameters, hyperparameters

Part = Literal["training", "accuracy", "instruments", "recipe"]


@dataclass(frozen=True)
class Reading:
    """One way to read the paper."""

    name: str  # as `--reading` takes it
    title: str
    changes: Part | None = None  # the part it changes; a recipe without that part is the same under this reading
    fields: Mapping[str, Any] = field(default_factory=dict)  # of every Asymmetric spec
    both: Mapping[str, Any] = field(default_factory=dict)  # of every spec, Plain's too
    accuracy: Literal["last", "best", "last20"] = "last"  # of the last epoch, the best validation epoch, the last 20
    signal: Literal["gradient", "detached"] = "gradient"  # of the branches whose cosine is measured
    unit_norm: bool = False  # landscape directions of norm one, instead of entries of unit variance times a step?
    queries: Literal["class_token", "mean"] = "class_token"  # whose attention is measured
    declared: str = ""  # when, if after rows were seen: its results then only stand beside the verdicts on `claims`
    claims: tuple[str, ...] = ()


PRIMARY = Reading("primary", "primary reading")
ALTERNATES = (
    Reading("sum", "losses summed over classes", "training", {"class_reduction": "sum"}),
    Reading("all", "all branches active", "training", {"activation": "all"}),
    Reading("best", "best validation epoch", "accuracy", accuracy="best"),
    Reading("instruments", "other instruments", "instruments", signal="detached", unit_norm=True, queries="mean"),
)
LATER = (
    Reading("last20", "mean of the last 20 epochs", "accuracy", accuracy="last20", declared="2026-11-16",
            claims=("c01", "c02", "c06", "c30")),
    Reading("ordinary", "cosine schedule, flips and shifts", "recipe",
            both={"schedule": "cosine", "augmentation": "flip_shift"}, declared="2026-11-16",
            claims=("c01", "c02", "c06")),
)  # fmt: skip
READINGS: Mapping[str, Reading] = {reading.name: reading for reading in (PRIMARY, *ALTERNATES, *LATER)}
EVERY = "every"


def parse_readings(names: Iterable[str]) -> tuple[Reading, ...]:
    """Readings from repeated or comma-separated names, always with the primary one first; `every` means all."""
    parts = [part.strip() for name in names for part in name.split(",") if part.strip()]
    for part in parts:
        if part not in (*READINGS, EVERY):
            raise unknown_name("reading", part, (*READINGS, EVERY))
    if EVERY in parts:
        return tuple(READINGS.values())
    if len(set(parts)) < len(parts):
        raise UsageError(f"--reading names {', '.join(parts)}: each reading once")
    return tuple(reading for name, reading in READINGS.items() if name in {*parts, PRIMARY.name})


ARCHS = ("mlp", "cnn", "vit")


@dataclass(frozen=True)
class Sizes:
    """The sizes of a scale of the reproduction: of final results, of searches and of measurements."""

    scale: str  # name in `scales.SCALES`, which gives backbones and batch
    seeds: tuple[int, ...]
    epochs: int
    search_epochs: int  # of each trial
    search_seeds: tuple[int, ...]  # not among the seeds of final results
    learning_rates: tuple[float, ...]  # of the search, like the next three
    weight_decays: tuple[float, ...]
    alphas: tuple[float, ...]
    alphas_mlp_cifar10: tuple[float, ...]  # a linear grid
    learning_rate: Mapping[str, float] = field(default_factory=dict)  # by backbone, if not the paper's
    archs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # fields of specs that replace the scale's
    # Dataset fields that stand for each of the paper's datasets; empty if the dataset itself is used.
    stands_for: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Images a class that stand for the paper's, by the paper's dataset and number; empty: the same.
    few_shot: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    landscape: Mapping[str, Any] = field(default_factory=dict)  # of `LandscapeSettings`
    landscape_of: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the same of one backbone
    attention: Mapping[str, Any] = field(default_factory=dict)  # of `AttentionSettings`
    attention_images: int = 6  # in the figures of maps


SIZES: dict[str, Sizes] = {
    "quick": Sizes(
        scale="quick",
        seeds=(42, 43),
        epochs=6,
        search_epochs=2,
        search_seeds=(1000,),
        learning_rates=(1e-3, 3e-3),
        weight_decays=(1e-1, 1e-3),
        alphas=(0.1, 1.0, 10.0),
        alphas_mlp_cifar10=(0.0, 25.0, 50.0),
        learning_rate={"mlp": 1e-3, "cnn": 2e-3, "vit": 1e-3},
        stands_for={
            "cifar10": {"dataset": "shapes", "dataset_options": {"classes": 4, "size": 1000, "test_size": 500}},
            "cifar100": {"dataset": "shapes", "dataset_options": {"classes": 9, "size": 1000, "test_size": 500}},
        },
        few_shot={
            "cifar10": {10: 2, 50: 5, 100: 10, 500: 25, 1000: 50},
            "cifar100": {5: 2, 10: 3, 20: 5, 50: 10, 100: 25, 200: 50},
        },
        landscape={"grid": 11, "sample": 50, "draws": 2},
        attention={"sample": 50},
        attention_images=3,
    ),
    "paper": Sizes(
        scale="paper",
        seeds=tuple(range(42, 52)),
        epochs=200,
        search_epochs=150,
        search_seeds=(1000,),
        learning_rates=grids.LEARNING_RATES,
        weight_decays=grids.WEIGHT_DECAYS[::-1],
        alphas=grids.LOG_ALPHAS,
        alphas_mlp_cifar10=grids.LINEAR_ALPHAS,
        landscape={"draws": 1},  # of each of the initial networks: ten in all
        landscape_of={"cnn": {"precision": "tf32"}},  # on differences: faster on a GPU, and hardly rounded
        attention={"sample": 100},
    ),
}


def get_sizes(name: str) -> Sizes:
    if name not in SIZES:
        raise unknown_name("scale", name, SIZES)
    return SIZES[name]


NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
FULL = {"cifar10": 5000, "cifar100": 500}  # training images a class
LONG = 100  # epochs that the paper's learning curves show


@dataclass(frozen=True)
class Scope:
    """What is reproduced; omitted values are the scale's."""

    sizes: Sizes = SIZES["quick"]
    readings: tuple[Reading, ...] = (PRIMARY,)  # the primary one first
    seeds: tuple[int, ...] = ()  # of final results
    epochs: int = 0  # of final results; the trials of a search keep their share of it
    precision: str = "fp32"
    data: Literal["stand-in", "cifar"] = "stand-in"  # as the scale says, or real images even at the scale `quick`
    # Where the paper gives none (CIFAR-10, Table 16): the ones that our search finds, or Table 13's.
    hyperparameters: Literal["searched", "paper"] = "searched"

    def __post_init__(self) -> None:
        object.__setattr__(self, "seeds", self.seeds or self.sizes.seeds)
        object.__setattr__(self, "epochs", self.epochs or self.sizes.epochs)
        if self.epochs < 1:
            raise UsageError(f"--epochs must be 1 or more, got {self.epochs}")
        if clash := set(self.seeds) & set(self.sizes.search_seeds):
            raise UsageError(f"seed {min(clash)} is one of the search's: final results need seeds of their own")
        for name, choices in (("data", ("stand-in", "cifar")), ("hyperparameters", ("searched", "paper"))):
            if getattr(self, name) not in choices:
                raise unknown_name(name, getattr(self, name), choices)

    @property
    def search_epochs(self) -> int:
        """Epochs of a trial: as many as the scale's, in proportion if the study is shorter."""
        return max(1, round(self.sizes.search_epochs * min(1.0, self.epochs / self.sizes.epochs)))

    @property
    def window(self) -> int:
        """Epochs that the paper's learning curves show: the first 100, or all if there are fewer."""
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


def with_every_reading(study: Scope) -> Scope:
    return dataclasses.replace(study, readings=tuple(READINGS.values()))


def stands_note(study: Scope, epochs: Sequence[int]) -> str:
    """A sentence for a table of a study that is too short for the paper's epochs."""
    return f"The epochs stand for {', '.join(map(str, epochs))}. " if study.window < epochs[-1] else ""


def readings_for(study: Scope, redundancy: int, *parts: Part) -> list[Reading]:
    """The primary reading, and those that change one of these parts for this redundancy."""
    return [
        reading
        for reading in study.readings
        # With a single branch, "all active" equals "the last active".
        if reading.changes is None
        or (reading.changes in parts and not (redundancy == 1 and "activation" in reading.fields))
    ]


def table_values(study: Scope, arch: str, redundancy: int) -> Hyperparameters:
    """Table 13's learning rate, weight decay and alpha; a small scale has its own learning rates."""
    values = hyperparameters(arch, redundancy)
    return dataclasses.replace(values, learning_rate=study.sizes.learning_rate.get(arch, values.learning_rate))


def data_fields(study: Scope, dataset: str) -> dict[str, Any]:
    """Fields of a spec for the data, for one of the paper's datasets."""
    if dataset not in FULL:
        raise unknown_name("dataset of the paper", dataset, FULL)
    if study.data == "stand-in" and dataset in study.sizes.stands_for:
        return dict(study.sizes.stands_for[dataset])
    return {"dataset": dataset, **get_scale(study.sizes.scale).datasets.get(dataset, {})}


def shown_dataset(study: Scope, dataset: str) -> str:
    """The dataset that the study uses in place of one of the paper's, in a reader's words."""
    name, fields = NAMES[dataset], data_fields(study, dataset)
    if fields["dataset"] == dataset:
        return f"{name} ({fields['per_class']} images a class)" if "per_class" in fields else name
    classes = dict(fields.get("dataset_options", ())).get("classes", "?")
    return f"{fields['dataset']} with {classes} classes (for {name})"


def title_for(study: Scope, title: str) -> str:
    """The title with the study's datasets in place of the paper's."""
    datasets = {name: dataset for dataset, name in NAMES.items()}
    return re.sub("CIFAR-100?", lambda match: shown_dataset(study, datasets[match[0]]), title)


def few_shot_size(study: Scope, dataset: str, per_class: int) -> int | None:
    """Images a class that stand for the paper's number; None means all of them."""
    if per_class >= FULL[dataset]:
        return None
    if study.data == "cifar" and study.sizes.stands_for:
        # The quick scale has only a subset of CIFAR: keep the paper's share of it.
        whole: int = get_scale(study.sizes.scale).datasets.get(dataset, {}).get("per_class", FULL[dataset])
        return max(2, round(per_class * whole / FULL[dataset]))
    return study.sizes.few_shot.get(dataset, {}).get(per_class, per_class)


def plain_spec(study: Scope, arch: str, dataset: str, values: Hyperparameters, **fields: Any) -> RunSpec:
    """The Plain spec of the study's first seed."""
    common = {
        "epochs": study.epochs,
        "precision": study.precision,
        "test": "every",  # so that no other run is needed for the accuracy at the best validation epoch
        "learning_rate": values.learning_rate,
        "weight_decay": values.weight_decay,
        "seed": study.seeds[0],
    }
    own = {name: value for name, value in fields.items() if value is not None}
    all_fields = {**data_fields(study, dataset), **common, **study.sizes.archs.get(arch, {}), **own, "redundancy": 0}
    return scaled_spec(get_scale(study.sizes.scale), arch, all_fields.pop("dataset"), **all_fields)


def asymmetric_spec(
    study: Scope,
    reading: Reading,
    arch: str,
    dataset: str,
    values: Hyperparameters,
    redundancy: int,
    auxiliary: Mapping[str, Any] | None = None,
    **fields: Any,
) -> RunSpec:
    """The Asymmetric spec of the study's first seed, in the one form that equal runs share.

    `auxiliary` are fields of this side alone, which replace the reading's; `fields` belong to both sides.
    """
    chosen = {**reading.fields, **(auxiliary or {})}
    if redundancy == 1 or chosen.get("activation", "last") == "last":
        redundancy = 1
        chosen = {name: value for name, value in chosen.items() if name != "activation"}
    plain = plain_spec(study, arch, dataset, values, **fields)
    return dataclasses.replace(plain, **{"redundancy": redundancy, "alpha": values.alpha, **chosen})


def over_seeds(study: Scope, spec: RunSpec) -> tuple[RunSpec, ...]:
    return _with_seeds(spec, tuple(study.seeds))


@lru_cache(maxsize=10_000)  # recipes ask for the same ones many times, and each new spec is validated
def _with_seeds(spec: RunSpec, seeds: tuple[int, ...]) -> tuple[RunSpec, ...]:
    return tuple(grid(spec, seed=seeds))


def unique(groups: Iterable[Iterable[RunSpec]]) -> tuple[RunSpec, ...]:
    return tuple(dict.fromkeys(spec for group in groups for spec in group))
