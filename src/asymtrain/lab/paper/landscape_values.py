"""The landscape of Tables 5 and 6: around initial networks, at every redundancy, along the same directions."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asymtrain.lab.engine import load_for
from asymtrain.lab.engine.states import initial_state
from asymtrain.lab.instruments.landscape.landscape import measure_landscape
from asymtrain.lab.instruments.landscape.result import row_values
from asymtrain.lab.instruments.landscape.settings import LandscapeSettings
from asymtrain.lab.paper.study import Study, plain_spec, table_values
from asymtrain.lab.runs import DEFAULTS, RunSpec

LEVELS = (0, 1, 20, 300)
CASES = (("mlp", "cifar10"), ("cnn", "cifar100"), ("vit", "cifar100"))
VIEWS = (("all", "variance"), ("all", "norm"))
_OF_TRAINING = ("learning_rate", "weight_decay", "batch", "precision", "test")
DIGITS = 7  # of a kept surface: more than a figure can show


@dataclass(frozen=True)
class LandscapeWanted:
    """The surfaces around one initial network; `keep` says whether the first draw's are kept for a figure."""

    spec: RunSpec  # Plain: all redundancies share its weights
    settings: LandscapeSettings
    keep: bool
    kind: str = "landscape"

    @property
    def name(self) -> str:
        """Instrument, settings and levels."""
        return f"{self.settings.key} N={'+'.join(map(str, LEVELS))}"

    @property
    def epochs(self) -> tuple[int, ...]:
        """Before training."""
        return (0,)


def landscapes_wanted(study: Study, arch: str, dataset: str) -> tuple[LandscapeWanted, ...]:
    """One for each seed.

    Initial weights do not depend on how they would be trained, so no setting of training is in the spec: studies of
    any length and precision share the measurement.
    """
    settings = LandscapeSettings(**study.sizes.landscape)
    spec = plain_spec(study, arch, dataset, table_values(study, arch, 20))
    spec = dataclasses.replace(spec, epochs=1, **{name: DEFAULTS[name] for name in _OF_TRAINING})
    keep = (arch, dataset) == CASES[0]
    return tuple(
        LandscapeWanted(dataclasses.replace(spec, seed=seed), settings, keep and seed == study.seeds[0])
        for seed in study.seeds
    )


def measure_landscapes(
    wanted: list[LandscapeWanted], device: str | None, data_root: Path | None, cache: Path
) -> Iterator[tuple[LandscapeWanted, dict[int, Any]]]:
    """Surfaces in numbers, and those that are kept."""
    for one in wanted:
        dataset = load_for(one.spec, data_root)
        specs = [one.spec, *(dataclasses.replace(one.spec, redundancy=level, alpha=1.0) for level in LEVELS[1:])]
        found = measure_landscape(
            [initial_state(spec, dataset) for spec in specs], dataset, one.settings, device=device
        )
        value: dict[str, Any] = {
            "rows": [row_values(row) for row in found.rows],
            "seconds": found.seconds,
            "device": found.device,
        }
        if one.keep:
            value["surfaces"] = [
                {"redundancy": level, "scaling": scaling, "losses": losses.round(DIGITS).tolist()}
                for (_, level, directions, scaling), losses in found.surfaces.items()
                if (directions, scaling) in VIEWS
            ]
        yield one, {0: value}
