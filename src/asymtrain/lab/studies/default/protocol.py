"""The study as data: candidates, models, seeds, and the blocks in which it is trained.

A change here is a change of the protocol: docs/default-protocol.md says the same in words, and lists deviations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from asymtrain.lab.candidates import RECOMMENDED, Candidate
from asymtrain.lab.studies.practice.protocol import FULL as PRACTICE
from asymtrain.lab.studies.practice.protocol import MODELS as PRACTISED
from asymtrain.lab.studies.practice.protocol import NONE, Arm, Extent, Model, arm_of
from asymtrain.lab.studies.practice.protocol import QUICK as PRACTICE_QUICK
from asymtrain.lab.studies.study import Block

Kind = Literal["tokens", "convolutions"]  # what the repeated blocks are made of, which `attach` can see
Part = Literal["select", "confirm", "unseen"]

CHOOSING = ("mlp", "cnn", "vit", "resnet18", "plain18", "convnext", "vit_tiny", "swin", "mixer")
"""The models of the practice study: they choose, and each is judged by the choice of the other families."""
UNSEEN: Mapping[str, Model] = {
    "eva02": Model("EVA-02", "transformer", "timm:eva02_tiny_patch14_224", {"img_size": 32, "patch_size": 4}),
    "cait": Model("CaiT", "transformer", "timm:cait_xxs24_224", {"img_size": 32, "patch_size": 4}),
    "regnet": Model("RegNetY", "residual convolutions", "timm:regnety_002", {"output_stride": 8}),
    "efficientnet": Model("EfficientNet", "residual convolutions", "timm:efficientnet_b0", {"output_stride": 8}),
}
"""Models that take part in no selection."""
MODELS: Mapping[str, Model] = {**{name: PRACTISED[name] for name in CHOOSING}, **UNSEEN}
OTHER_DATA = ("mlp", "cnn", "vit", "resnet18", "mixer")  # models that are also trained on a dataset without a selection

FULL = Extent(
    data={
        "cifar100": replace(PRACTICE.data["cifar100"], selection_epochs=30),  # as long as the final runs
        "cifar10": PRACTICE.data["cifar10"],
    },
    fields=PRACTICE.fields,
    selection_seeds=(2000, 2001),
    seeds=tuple(range(3000, 3015)),
    models=MODELS,
)
QUICK = Extent(
    data={name: replace(PRACTICE_QUICK.data[name], selection_epochs=2) for name in FULL.data},
    fields=PRACTICE_QUICK.fields,
    archs=PRACTICE_QUICK.archs,
    selection_seeds=FULL.selection_seeds,
    seeds=FULL.seeds,
    models=MODELS,
)
FIRST_SEEDS, MORE_SEEDS = 5, 5  # of a confirmation; and how many are added at a time
WIDE = 0.4  # points: if half of an interval is wider, seeds are added as long as there are any

_OWN_LAYERS: Mapping[Kind, str] = {"tokens": "mlp", "convolutions": "tower"}  # heads with layers of their own
DISTILLED = "distilled"
CANDIDATES: Mapping[str, Candidate] = {
    "prior": RECOMMENDED,
    "weak": replace(RECOMMENDED, alpha=0.1),
    "falling": replace(RECOMMENDED, alpha_schedule="cosine"),
    "later": replace(RECOMMENDED, layers="later"),
    "softmax": replace(RECOMMENDED, objective="softmax", bias="none"),
    "strong": replace(RECOMMENDED, objective="softmax", bias="none", alpha=2.0, layers="later"),
    DISTILLED: replace(RECOMMENDED, objective="distill", bias="none", layers="later"),  # with a head of its kind
    "balanced": replace(RECOMMENDED, balance="norms"),
}
"""By name; all but `strong` and `distilled` change one thing in the first."""

LARGEST_LOSS = 1.0  # points: a candidate that costs any model more on validation cannot be chosen
KEPT = 0.7  # the share of a model's own gain that the default must keep, if that gain is OWN_GAIN points or more
OWN_GAIN = 1.0
LEAST_HELPED = 5  # models


@dataclass(frozen=True)
class DefaultTask:
    """One model on one dataset, and what is asked of it.

    `select` trains every candidate. `confirm` trains, on fresh seeds, the choice of other families for the model, the
    choice of all models of its kind, and its own choice. `unseen` trains the choice of all models of its kind.
    """

    model: str
    part: Part
    data: str = "cifar100"
    recipe: str = "ordinary"

    @property
    def title(self) -> str:
        return MODELS[self.model].title

    @property
    def family(self) -> str:
        return MODELS[self.model].family

    @property
    def kind(self) -> Kind:
        return "convolutions" if "convolutions" in self.family else "tokens"


def candidate_for(kind: Kind, name: str) -> Candidate:
    """A candidate on models of a kind."""
    candidate = CANDIDATES[name]
    return replace(candidate, head=_OWN_LAYERS[kind]) if name == DISTILLED else candidate


def arms(kind: Kind) -> tuple[Arm, ...]:
    """The arm without branches, and every candidate."""
    return (NONE, *(arm_of(name, candidate_for(kind, name)) for name in CANDIDATES))


def _block(name: str, title: str, part: Part, *models: str, data: str = "cifar100") -> Block:
    return Block(name, title, tuple(DefaultTask(model, part, data) for model in models))


_GROUPS: Mapping[str, tuple[str, ...]] = {
    "backbones": ("mlp", "vit", "cnn"),
    **{name.replace("_", "-"): (name,) for name in ("plain18", "mixer", "convnext", "swin", "resnet18", "vit_tiny")},
}


def _groups(part: Part, title: str) -> list[Block]:
    """A block for each group of choosing models."""
    return [
        _block(f"{part}-{name}", f"{title}: {', '.join(MODELS[one].title for one in models)}", part, *models)
        for name, models in _GROUPS.items()
    ]


BLOCKS: Mapping[str, Block] = {
    block.name: block
    for block in (
        *_groups("select", "every candidate"),
        *_groups("confirm", "what was chosen, on fresh seeds"),
        *(
            _block(f"unseen-{name}", f"an unseen model: {model.title}", "unseen", name)
            for name, model in UNSEEN.items()
        ),
        _block("unseen-cifar10", "unseen data: CIFAR-10", "unseen", *OTHER_DATA, data="cifar10"),
    )
}
