"""The attention that Table 14 and Figures 4, 7 and 9 ask for: of the ViT, Plain and Asymmetric, through training."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from asymtrain.lab.data import Dataset
from asymtrain.lab.engine import load_for
from asymtrain.lab.engine.states import states_at
from asymtrain.lab.instruments.attention.attention import measure_states
from asymtrain.lab.instruments.attention.result import AttentionResult
from asymtrain.lab.instruments.attention.settings import AttentionSettings
from asymtrain.lab.paper.readings import Reading
from asymtrain.lab.paper.study import Study, asymmetric_spec, over_seeds, plain_spec, table_values
from asymtrain.lab.runs import RunSpec

EPOCHS = (20, 60, 100)  # of Table 14
BETWEEN = (40, 80)  # more points for the curves of Figure 9
REDUNDANCY = 20
TOGETHER = 10  # runs that are trained again at a time: as fast as all at once, and within ten minutes on a large GPU
DIGITS = 5  # of a kept map: more than a figure can show


@dataclass(frozen=True)
class AttentionWanted:
    """One run's attention at several epochs; the maps of the first `keep` images are kept for the figures."""

    spec: RunSpec
    settings: AttentionSettings
    epochs: tuple[int, ...]
    keep: int = 0
    kind: str = "attention"

    @property
    def name(self) -> str:
        """Instrument, settings and epochs: the same run looked at elsewhere is another measurement."""
        kept = f" maps={self.keep}" if self.keep else ""
        return f"{self.settings.key} epochs={'+'.join(map(str, self.epochs))}{kept}"


def attention_epochs(study: Study) -> tuple[int, ...]:
    """Those of the table, some between, and the end of training."""
    return tuple(sorted({*(study.at(epoch) for epoch in (*EPOCHS, *BETWEEN)), study.epochs}))


def attentions_wanted(study: Study, reading: Reading, variant: str) -> tuple[AttentionWanted, ...]:
    """One for each seed of a variant: the runs of Table 1 at N = 20."""
    settings = AttentionSettings(**{"query": reading.queries, **study.sizes.attention})
    values = table_values(study, "vit", REDUNDANCY)
    if variant == "plain":
        spec = plain_spec(study, "vit", "cifar100", values)
    else:
        spec = asymmetric_spec(study, reading, "vit", "cifar100", values, REDUNDANCY)
    first, epochs = study.seeds[0], attention_epochs(study)
    return tuple(
        AttentionWanted(one, settings, epochs, study.sizes.attention_images if one.seed == first else 0)
        for one in over_seeds(study, spec)
    )


def measure_attentions(
    wanted: list[AttentionWanted], device: str | None, data_root: Path | None, cache: Path
) -> Iterator[tuple[AttentionWanted, dict[int, Any]]]:
    """Metrics by epoch, and maps where they are kept. Runs are trained to the epochs that the cache does not hold.

    A few runs at a time: what was measured is stored before the next ones are trained, so that little is lost when
    time is over.
    """
    groups: dict[RunSpec, list[AttentionWanted]] = {}
    for one in sorted(wanted, key=lambda one: one.spec.seed):
        groups.setdefault(one.spec, []).append(one)
    specs = list(groups)
    for start in range(0, len(specs), TOGETHER):
        chunk = specs[start : start + TOGETHER]
        epochs = sorted({epoch for spec in chunk for one in groups[spec] for epoch in one.epochs})
        states = states_at(chunk, epochs, device=device, data_root=data_root, cache=cache)
        for one in (one for spec in chunk for one in groups[spec]):
            dataset = load_for(one.spec, data_root)
            mine = [state for state in states if state.spec == one.spec and state.epoch in one.epochs]
            # A run that diverged has no state there, and its values say so by being absent.
            found = measure_states(mine, dataset, one.settings, device, keep=one.keep)
            yield one, {result.epoch or 0: _value(result, dataset, one.keep) for result in found}


def _value(result: AttentionResult, dataset: Dataset, keep: int) -> dict[str, Any]:
    value = result.to_dict()
    # The figures and tables look at layers and their mean; single heads would be most of the bytes.
    value["scopes"] = {scope: found for scope, found in value["scopes"].items() if ":" not in scope}
    if keep:
        shown = list(result.images[:keep])
        value["maps"] = {layer: maps.round(DIGITS).tolist() for layer, maps in result.maps.items()}
        value["pixels"] = [pixels_text(dataset.test.images[index]) for index in shown]
        value["labels"] = [dataset.class_names[dataset.test.labels[index]] for index in shown]
    return value


def pixels_text(image: npt.NDArray[np.uint8]) -> str:
    """An image (3, H, W) as text, so that a figure can be drawn where the data are not."""
    return base64.b64encode(np.ascontiguousarray(image).tobytes()).decode()


def pixels_of(text: str) -> npt.NDArray[np.uint8]:
    """Inverse of `pixels_text`, for square images."""
    flat = np.frombuffer(base64.b64decode(text), np.uint8)
    side = round((len(flat) / 3) ** 0.5)
    return flat.reshape(3, side, side)
