"""Attention maps laid out for a figure: which maps stand in which row and column. Plain data, drawn elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass

from asymtrain.errors import UsageError
from asymtrain.lab.data import Dataset
from asymtrain.lab.data.arrays import Bytes
from asymtrain.lab.instruments.attention.result import AttentionResult, Floats

MOST_IMAGES = 6  # a page embeds them


@dataclass(frozen=True, eq=False)
class MapRow:
    """An image (3, H, W) and its maps (patches,), one for each column; None where there is none."""

    label: str
    pixels: Bytes
    maps: tuple[Floats | None, ...]


@dataclass(frozen=True, eq=False)
class MapPicture:
    """Rows of maps under columns (variant, title); Plain stands beside Asymmetric."""

    title: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[MapRow, ...]


def evolution(
    results: Sequence[AttentionResult], dataset: Dataset, title: str, *, scope: str | None = None, images: int = 4
) -> MapPicture:
    """A row for each image; for each epoch the maps of Plain and Asymmetric.

    `scope` is a layer (by default the last) or "rollout".
    """
    sides = _sides(results, images)
    scope = scope or next(iter(sides.values())).layers[-1]
    columns = [(variant, epoch) for epoch, variant in sorted(sides, key=_order)]
    found = [sides[epoch, variant] for variant, epoch in columns]
    rows = [
        MapRow("", dataset.test.images[found[0].images[i]], tuple(_map(result, scope, i) for result in found))
        for i in range(min(images, len(found[0].images)))
    ]
    return MapPicture(title, tuple((variant, f"epoch {epoch}") for variant, epoch in columns), tuple(rows))


def layers_of_image(
    results: Sequence[AttentionResult],
    dataset: Dataset,
    title: str,
    *,
    layers: Sequence[str] | None = None,
    image: int = 0,
) -> MapPicture:
    """A row for each layer of one image of the sample; for each epoch the maps of Plain and Asymmetric."""
    sides = _sides(results, image + 1)
    columns = [(variant, epoch) for epoch, variant in sorted(sides, key=_order)]
    found = [sides[epoch, variant] for variant, epoch in columns]
    pixels, known = dataset.test.images[found[0].images[image]], found[0].layers
    rows = [
        MapRow(f"layer {known.index(name) + 1}", pixels, tuple(_map(result, name, image) for result in found))
        for name in layers or known
    ]
    return MapPicture(title, tuple((variant, f"epoch {epoch}") for variant, epoch in columns), tuple(rows))


def _sides(results: Sequence[AttentionResult], images: int) -> dict[tuple[int, str], AttentionResult]:
    """The first result of each epoch and variant: of the first seed, and of the first settings."""
    if images > MOST_IMAGES:
        raise UsageError(f"a figure of maps shows {MOST_IMAGES} images at most, got {images}")
    sides: dict[tuple[int, str], AttentionResult] = {}
    for result in results:
        assert result.spec is not None, "only states of runs are laid out"
        assert result.epoch is not None, "only states of runs are laid out"
        sides.setdefault((result.epoch, result.spec.variant), result)
    return sides


def _order(key: tuple[int, str]) -> tuple[int, int]:
    return key[0], ("plain", "asymmetric").index(key[1])


def _map(result: AttentionResult, scope: str, image: int) -> Floats | None:
    kept = result.maps.get(scope)
    return kept[image] if kept is not None and image < len(kept) else None
