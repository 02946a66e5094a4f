"""The study as data: models, data, recipes, seeds, candidates, and the blocks in which it is trained.

A change here is a change of the protocol: docs/practice-protocol.md says the same in words, and lists deviations.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, Protocol

from asymtrain.lab.candidates import RECOMMENDED, RECOMMENDED_ON_CONVOLUTIONS, Candidate
from asymtrain.lab.recipes import recipe_fields
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.scales import get_scale
from asymtrain.lab.studies.study import Block

_OWN = "asymtrain.lab.practice.models"  # the module's name in stored specs, which still refer to it


@dataclass(frozen=True)
class Model:
    """A model of the study."""

    title: str
    family: str  # left out as a whole when a fixed setting is scored
    arch: str
    options: Mapping[str, Any] = field(default_factory=dict)
    dropout: Mapping[str, Any] = field(default_factory=dict)  # options that change its dropout or stochastic depth


MODELS: Mapping[str, Model] = {
    "mlp": Model("MLP", "mlp", "mlp"),
    "cnn": Model("CNN", "plain convolutions", "cnn", dropout={"dropout": 0.3}),
    "vit": Model("ViT", "transformer", "vit"),
    "resnet18": Model("ResNet-18", "residual convolutions", f"{_OWN}:resnet18", dropout={"drop_rate": 0.2}),
    "plain18": Model("Plain-18", "plain convolutions", f"{_OWN}:plain18"),
    "convnext": Model("ConvNeXt", "residual convolutions", f"{_OWN}:convnext"),
    "vit_tiny": Model(
        "ViT-Tiny",
        "transformer",
        "timm:vit_tiny_patch16_224",
        {"img_size": 32, "patch_size": 4},
        {"drop_path_rate": 0.1},
    ),
    "swin": Model(
        "Swin",
        "transformer",
        "timm:swin_tiny_patch4_window7_224",
        {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 48},
        {"proj_drop_rate": 0.1},  # timm's Swin has a stochastic depth of 0.1 already
    ),
    "mixer": Model("MLP-Mixer", "mlp", f"{_OWN}:mixer", dropout={"drop_path_rate": 0.1}),
}
"""The models of the main table."""
NETWORKS: Mapping[str, Model] = {
    **MODELS,
    "vit_lite": Model("ViT-Lite-7/4", "published", f"{_OWN}:vit_lite"),
    "small_vit": Model("ViT of SPT + LSA", "published", f"{_OWN}:small_vit"),
}
"""These, and the networks of published tables."""


@dataclass(frozen=True)
class Reported:
    """What a published table reports of a network on CIFAR-100: its test accuracy, and a changed architecture's."""

    accuracy: float
    changed: float
    change: str


REPORTED: Mapping[str, Reported] = {
    "vit_lite": Reported(0.6975, 0.7301, "CVT-7/4"),
    "small_vit": Reported(0.7381, 0.7692, "SPT + LSA"),
}


@dataclass(frozen=True)
class Data:
    """What is learnt, for how long, and on how many seeds."""

    title: str
    fields: Mapping[str, Any]  # of a spec
    epochs: int = 30  # of a final run
    selection_epochs: int = 10
    seeds: int | None = None  # of a final run: the first ones of the study; None for all


@dataclass(frozen=True, eq=False)
class Extent:
    """How large the study is."""

    data: Mapping[str, Data]
    fields: Mapping[str, Any]  # of every spec
    archs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # options in place of a model's own
    selection_seeds: tuple[int, ...] = (1000, 1001)
    seeds: tuple[int, ...] = (42, 43, 44, 45, 46)
    more_seeds: tuple[int, ...] = tuple(range(47, 62))
    models: Mapping[str, Model] = field(default_factory=lambda: NETWORKS)


FASHION = "/usr/share/datasets/fashion-mnist"  # the path of Debian's package dataset-fashion-mnist
FULL = Extent(
    data={
        "cifar100": Data("CIFAR-100", {"dataset": "cifar100"}),
        "cifar10": Data("CIFAR-10", {"dataset": "cifar10"}, seeds=3),
        "fashion": Data(
            "Fashion-MNIST",
            {"dataset": f"idx:{FASHION}", "dataset_options": {"image_size": 32, "channels": 3}},
            seeds=3,
        ),
        # A tenth of the images, and a third of the steps.
        "cifar100-tenth": Data("10% of CIFAR-100", {"dataset": "cifar100", "per_class": 50}, epochs=100, seeds=3),
        "cifar100-long": Data("CIFAR-100, 100 epochs", {"dataset": "cifar100"}, epochs=100, seeds=3),
        "cifar100-200": Data("CIFAR-100, 200 epochs", {"dataset": "cifar100"}, epochs=200, seeds=3),
    },
    fields={"batch": 128, "last_batch": "drop", "precision": "bf16", "cosine_every": 0},
)
# The whole study in minutes on a CPU, to try it; not a part of the study.
QUICK = Extent(
    data={
        name: Data(
            f"{size} shapes",
            {"dataset": "shapes", "dataset_options": {"classes": 4, "size": size, "test_size": 64}},
            epochs=2,
            selection_epochs=1,
        )
        for name, size in zip(FULL.data, (160, 192, 208, 224, 288, 256), strict=True)
    },
    fields={"batch": 32, "last_batch": "drop", "cosine_every": 0},
    archs={
        **{name: settings.get("arch_options", {}) for name, settings in get_scale("quick").archs.items()},
        **{name: {"depth": 2, "width": 16, "heads": 2, "patch": 8} for name in REPORTED},
    },
    more_seeds=(47, 48, 49),
)

ALPHAS = (0.01, 0.1, 1.0, 10.0)
CONFIGURATIONS: Mapping[str, Candidate] = {
    "sigmoid": Candidate(objective="sigmoid"),
    "prior": Candidate(objective="sigmoid", bias="prior"),
    "softmax": Candidate(objective="softmax"),
}
"""The objectives; each has its own alpha, layers and schedule."""
TITLES = {"sigmoid": "sigmoid", "prior": "sigmoid, prior bias", "softmax": "softmax"}
VARIATIONS: Mapping[str, Mapping[str, Any]] = {
    "later layers": {"layers": "later"},
    "middle layer": {"layers": "middle"},
    "falling": {"alpha_schedule": "cosine"},
}
"""What is changed, one at a time, in a configuration at its best alpha."""
PLAIN_TRIALS: Mapping[str, Mapping[str, Any]] = {
    "label smoothing 0.1": {"label_smoothing": 0.1},
    "learning rate x 0.3": {"learning_rate": 3e-4},
    "learning rate x 3": {"learning_rate": 3e-3},
}
"""What a few trials of its own could have gained Plain, since branches had trials; a model's dropout is added."""
TUNING: Mapping[str, Mapping[str, Any]] = {
    "learning rate x 0.1": {"learning_rate": 1e-4},
    **PLAIN_TRIALS,
    "twice the warm-up": {"warmup_factor": 2},  # of the recipe's warm-up, which depends on the length of a run
    "weight decay x 0.2": {"weight_decay": 0.01},
}
"""The changes that tune the baseline of the part `tuned`, one at a time; a model's dropout is added."""
CONTROLS: Mapping[str, Mapping[str, Any]] = {
    "random labels": {"branch_labels": "random"},
    "frozen branches": {"branch_weights": "frozen"},
    "detached": {"signal": "detached"},
    "noise": {"signal": "noise"},
}
"""Changes of the selected configuration, one at a time, to see what causes its effect."""
SELECTED = "selected configuration"  # the arm of a later part with that configuration, of any objective
FALLING = "prior bias, alpha 10, falling"  # the arm that all models of the part `length` share
LASTING = Candidate(objective="sigmoid", bias="prior", alpha=10.0, alpha_schedule="cosine")
"""Among the settings of the first wave, the one with the best mean rank over the models of `length`, falling to 0."""
AHEAD: Mapping[str, Candidate] = {
    "softmax, later layers": Candidate(objective="softmax", alpha=1.0, layers="later"),
    FALLING: LASTING,
}
"""The arms of the part `published`, named before its first row: rows of these networks did not choose them."""
RECOMMENDATION = "recommended"  # the arm with the library's recommendation for the model
TUNED, TUNED_BRANCHES = "tuned baseline", "tuned, with branches"  # arms of the part `tuned`

Part = Literal[
    "study", "transfer", "strong", "controls", "fixed", "tuned", "signal", "length", "published", "seeds"
]  # fmt: skip


class StudyTask(Protocol):
    """A model on a dataset by a recipe: the task of this study, or of another one with its models."""

    @property
    def model(self) -> str: ...
    @property
    def data(self) -> str: ...
    @property
    def recipe(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def part(self) -> str: ...
    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class Task:
    """One model on one dataset by one recipe, and what is asked of it.

    `study` selects candidates and trains the final runs. The others take what the study selected for the model on
    CIFAR-100: `transfer` trains it on other data, `strong` by another recipe, `controls` beside other explanations,
    `fixed` beside the one setting that is best for all models, `tuned` on top of a recipe tuned for the baseline,
    `signal` with parts of its signal taken away, `length` for 100 epochs of the recipe strong, `seeds` on seeds that
    are used nowhere else. `published` trains a network of a published table by its recipe, and takes nothing.
    """

    model: str
    data: str = "cifar100"
    recipe: str = "ordinary"
    part: Part = "study"
    arm: str = ""  # for the part `published`, which is split into blocks: the arm beside the baseline

    @property
    def title(self) -> str:
        return NETWORKS[self.model].title

    @property
    def origin(self) -> "Task":
        """The task whose selection this one takes."""
        return Task(self.model)


def _block(name: str, title: str, *models: str, data: str = "cifar100", **fields: Any) -> Block:
    return Block(name, title, tuple(Task(model, data, **fields) for model in models))


_SMALL = ("mlp", "cnn", "vit", "plain18", "convnext")
_SUBSET = ("cnn", "vit", "resnet18")
_OTHER = ("mlp", "cnn", "vit", "resnet18", "vit_tiny", "mixer")
_UNSURE = ("resnet18", "cnn", "plain18", "convnext")  # models whose gain is unclear after five seeds
_GAINED = ("mlp", "mixer", "vit_tiny", "swin")  # models with large effects
_LONG = ("vit_tiny", "swin", "mixer", "resnet18")
# By information a minute: new models first, cheap ones before expensive ones.
BLOCKS: Mapping[str, Block] = {
    block.name: block
    for block in (
        _block("backbones", "the paper's backbones on CIFAR-100", "mlp", "vit", "cnn"),
        *(
            _block(model.replace("_", "-"), f"{MODELS[model].title} on CIFAR-100", model)
            for model in ("plain18", "mixer", "convnext", "swin", "resnet18", "vit_tiny")
        ),
        _block("fixed", "one setting for all models: the small ones", *_SMALL, part="fixed"),
        _block(
            "fixed-large",
            "one setting for all models: the others",
            "mixer",
            "swin",
            "resnet18",
            "vit_tiny",
            part="fixed",
        ),
        *(
            _block(f"{part}-{model.replace('_', '-')}", f"{title}: {MODELS[model].title}", model, part=part)
            for part, title in (("tuned", "a tuned baseline"), ("signal", "what carries the effect"))
            for model in _GAINED
        ),
        *(
            _block(
                f"length-{model.replace('_', '-')}",
                f"100 epochs of the recipe strong: {MODELS[model].title}",
                model,
                data="cifar100-long",
                recipe="strong",
                part="length",
            )
            for model in _LONG
        ),
        *(
            _block(
                f"published-{model.replace('_', '-')}-{word}",
                f"a published baseline: {NETWORKS[model].title}, {arm}",
                model,
                data=data,
                recipe=model,
                part="published",
                arm=arm,
            )
            for model, data in (("vit_lite", "cifar100-200"), ("small_vit", "cifar100-long"))
            for word, arm in zip(("softmax", "falling"), AHEAD, strict=True)
        ),
        *(
            _block(data, FULL.data[data].title, *_OTHER, data=data, part="transfer")
            for data in ("cifar10", "fashion", "cifar100-tenth")
        ),
        *(_block(f"seeds-{model}", f"more seeds: {MODELS[model].title}", model, part="seeds") for model in _UNSURE),
        _block("strong", "the recipe strong on CIFAR-100", "mlp", *_SUBSET, recipe="strong", part="strong"),
        _block("controls", "controls on CIFAR-100", *_SUBSET, part="controls"),
    )
}


@dataclass(frozen=True)
class Arm:
    """One of the settings that a task compares: its row in the tables, and the fields that make it."""

    name: str
    label: str
    settings: tuple[tuple[str, Any], ...]

    @property
    def title(self) -> str:
        return TITLES.get(self.name, self.name)

    @property
    def fields(self) -> dict[str, Any]:
        """The arm's fields of a spec."""
        return dict(self.settings)


NONE = Arm("none", "none", (("redundancy", 0),))
ELSEWHERE = "chosen by other families"  # the arm with the setting that suits the models of other families


def arm_of(name: str, candidate: Candidate | None, **changes: Any) -> Arm:
    """A configuration of branches as an arm; None is Plain."""
    if candidate is None:
        return dataclasses.replace(NONE, name=name)
    return Arm(name, candidate.label, (("redundancy", 1), *candidate.fields().items(), *changes.items()))


@lru_cache
def first_wave() -> tuple[Arm, ...]:
    """Plain, and every configuration at every alpha, at all layers and constant."""
    return (NONE, *(arm_of(name, at_alpha(name, alpha)) for name in CONFIGURATIONS for alpha in ALPHAS))


def recommended_arm(model: str) -> Arm:
    """The arm with the library's recommendation for a model."""
    convolves = "convolutions" in NETWORKS[model].family
    return arm_of(RECOMMENDATION, RECOMMENDED_ON_CONVOLUTIONS if convolves else RECOMMENDED)


def at_alpha(name: str, alpha: float) -> Candidate:
    return dataclasses.replace(CONFIGURATIONS[name], alpha=alpha)


def second_wave(best: Mapping[str, Candidate]) -> list[Arm]:
    """For each configuration, what may be better than its best alpha at all layers and constant."""
    return [arm for name, candidate in best.items() for arm in _variations(name, candidate)]


@lru_cache
def _variations(name: str, candidate: Candidate) -> tuple[Arm, ...]:
    return tuple(arm_of(name, dataclasses.replace(candidate, **change)) for change in VARIATIONS.values())


def plain_trials(task: Task) -> list[Arm]:
    """The changes of Plain that a task tries; empty if it tries none."""
    tried = {"controls": PLAIN_TRIALS, "tuned": TUNING}.get(task.part, {})
    dropout = NETWORKS[task.model].dropout
    trials = {**tried, **({"dropout": {"arch_options": tuple(dropout.items())}} if tried and dropout else {})}
    name = TUNED if task.part == "tuned" else "Plain, changed"
    return [Arm(name, f"Plain, {label}", (*NONE.settings, *fields.items())) for label, fields in trials.items()]


def selection_specs(study: Extent, task: StudyTask, arms: Iterable[Arm]) -> list[RunSpec]:
    """Short runs on seeds of their own, judged by held-out images; no test image is read."""
    return list(dict.fromkeys(spec for arm in arms for spec in _specs(study, task, arm, final=False)))


def final_specs(study: Extent, task: StudyTask, arms: Iterable[Arm]) -> list[RunSpec]:
    """Runs on all training images, tested after every epoch."""
    return list(dict.fromkeys(spec for arm in arms for spec in _specs(study, task, arm, final=True)))


@lru_cache(maxsize=10_000)  # asked for again and again, to find what is missing
def _specs(study: Extent, task: StudyTask, arm: Arm, *, final: bool) -> tuple[RunSpec, ...]:
    model, data = study.models[task.model], study.data[task.data]
    epochs = data.epochs if final else data.selection_epochs
    measured = {"validation": "none", "test": "every"} if final else {"validation": "split", "test": "never"}
    options = {**model.options, **study.archs.get(task.model, {}), **dict(arm.fields.get("arch_options", ()))}
    fields: dict[str, Any] = {
        **recipe_fields(task.recipe, epochs, {}), **study.fields, **data.fields, **measured, **arm.fields,
        "arch": model.arch, "arch_options": options, "epochs": epochs,
    }  # fmt: skip
    fields["warmup"] *= fields.pop("warmup_factor", 1)
    seeds = final_seeds(study, task) if final else study.selection_seeds
    return tuple(RunSpec(**fields, seed=seed) for seed in seeds)


def final_seeds(study: Extent, task: StudyTask) -> tuple[int, ...]:
    """The seeds of a task's final runs."""
    if task.part == "seeds":
        return study.more_seeds
    return study.seeds[: study.data[task.data].seeds]
