"""How the paper can be read where it leaves a choice open: one primary reading and four alternates, fixed beforehand.

The primary reading takes the text at its word and a framework's defaults where it says nothing: the per-class losses
averaged (what a framework's binary cross-entropy does), only the last branch live, the class token as the ViT's branch
input, a constant learning rate, no augmentation, the test accuracy after the last epoch, branches as trained for the
cosine, and landscape directions whose entries have unit variance.

Each alternate changes one thing that could turn a verdict, and nothing else:

- `sum`: equation 3 as printed has no division by C, so alpha is C times as strong.
- `all`: every branch gives a loss. With single activation N cannot act on the backbone at all, so this is the only
  reading in which a claim about N could hold.
- `best`: the test accuracy at the epoch of the best validation accuracy; the MLP's printed Plain value is nearer to it.
- `instruments`: the other definition of each instrument: the cosine of branches on detached features (the backbone then
  trains as Plain), landscape directions of unit norm over all parameters, attention averaged over all queries.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from asymtrain.errors import UsageError, unknown_name

Part = Literal["training", "accuracy", "instruments"]


@dataclass(frozen=True)
class Reading:
    """One way to take the paper.

    Attributes:
        name: as `--reading` takes it.
        title: for a heading.
        changes: what it bears on; a recipe that does not touch it is the same under this reading.
        fields: of every Asymmetric spec.
        accuracy: of the last epoch, or of the best validation epoch.
        signal: of the branches whose cosine is taken.
        unit_norm: are landscape directions of norm one, instead of entries of unit variance times a step?
        queries: whose attention is looked at.
    """

    name: str
    title: str
    changes: Part | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    accuracy: Literal["last", "best"] = "last"
    signal: Literal["gradient", "detached"] = "gradient"
    unit_norm: bool = False
    queries: Literal["class_token", "mean"] = "class_token"


PRIMARY = Reading("primary", "primary reading")
ALTERNATES = (
    Reading("sum", "losses summed over classes", "training", {"over_classes": "sum"}),
    Reading("all", "all branches active", "training", {"activation": "all", "combine": "sum"}),
    Reading("best", "best validation epoch", "accuracy", accuracy="best"),
    Reading(
        "instruments", "other instruments", "instruments", signal="detached", unit_norm=True, queries="mean"
    ),
)  # fmt: skip
READINGS: Mapping[str, Reading] = {reading.name: reading for reading in (PRIMARY, *ALTERNATES)}
EVERY = "every"


def parse_readings(names: Iterable[str]) -> tuple[Reading, ...]:
    """Readings from repeated or comma-separated names, the primary one first and always there; `every` takes all."""
    parts = [part.strip() for name in names for part in name.split(",") if part.strip()]
    for part in parts:
        if part not in (*READINGS, EVERY):
            raise unknown_name("reading", part, (*READINGS, EVERY))
    if EVERY in parts:
        return tuple(READINGS.values())
    if len(set(parts)) < len(parts):
        raise UsageError(f"--reading names {', '.join(parts)}: each reading once")
    return tuple(reading for name, reading in READINGS.items() if name in {*parts, PRIMARY.name})
