"""The page of a measurement of attention: metrics over training and by layer, and maps over images."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from asymtrain.lab.data import Dataset
from asymtrain.lab.instruments.attention.result import (
    LABELS,
    AttentionResult,
    Floats,
    GroupMetric,
    group_names,
    patch_grid,
    summarise,
)
from asymtrain.lab.instruments.curves import by_setting, line_of
from asymtrain.lab.report.figure import VALUE, Colour, Figure, Headline, Image, Lines, Page
from asymtrain.lab.report.table import Cell, Column, Mean, Range, Table
from asymtrain.lab.statistics.estimates import Estimate
from asymtrain.lab.texts import listing

VARIANTS = ("plain", "asymmetric")  # beside each other, at each epoch
SCALE = "attention / uniform"
SHORT = {
    "peak_strength": "peak",
    "entropy": "entropy",
    "gini": "Gini",
    "coverage_above": "above threshold",
    "coverage_of_mask": "on object",
    "coverage_of_saliency": "on salient",
}
BANDS = "Means of the runs; bands are 95% intervals."
MAPS = "The average of the heads, in multiples of the uniform value; one scale for all maps."


def attention_page(
    results: Sequence[AttentionResult], dataset: Dataset, facts: Mapping[str, str], *, images: int = 4
) -> Page:
    summaries, first = summarise(results), results[0]
    regions = {"mask": "objects fill", "saliency": "the salient region fills"}
    shares = ", ".join(f"{regions[name]} {share:.1%} of them" for name, share in first.shares.items())
    settings, differences = first.settings, _entropy_differences(summaries)
    query = "from the class token" if settings.query == "class_token" else "averaged over all queries"
    covered = f"a patch counts as covered above {settings.threshold:g} times the uniform value"
    runs = []
    for result in results:
        spec, epoch = result.state
        runs.append({"id": spec.id, "variant": spec.variant, "seed": spec.seed, "epoch": epoch, **result.to_dict()})
    return Page(
        title="Attention",
        headline=_headline(differences),
        lead=_lead(differences, first),
        tables=[over_epochs(summaries), by_part(summaries, first.layers)],
        figures=[*metric_figures(summaries, first.layers), *map_figures(results, dataset, images)],
        document={
            "settings": settings.key,
            "layers": list(first.layers),
            "patches": first.patches,
            "images": list(first.images),
            "shares": dict(first.shares),
            "summary": [summary.to_dict() for summary in summaries],
            "runs": runs,
        },
        specs=list(dict.fromkeys(result.state[0] for result in results)),
        facts={
            **facts,
            "Maps": f"{query}, renormalised over the patches; {covered}",
            "Sample": f"{len(first.images)} test images, the same for every run; {shares}",
        },
    )


def over_epochs(summaries: Sequence[GroupMetric]) -> Table:
    """Each metric at each epoch, one column for each group of runs and for their differences."""
    chosen = [summary for summary in summaries if summary.scope == "mean"]
    groups = list(dict.fromkeys(summary.group for summary in chosen))
    estimates = {(summary.metric, summary.epoch, summary.group): summary.estimate for summary in chosen}
    epochs = sorted({summary.epoch for summary in chosen})
    rows = tuple(
        (Cell(LABELS[metric]), Cell(epoch), *(_cell(estimates.get((metric, epoch, group))) for group in groups))
        for metric in _metrics(chosen)
        for epoch in epochs
    )
    over = " or ".join(sorted({f"{summary.estimate.n} {summary.over}" for summary in chosen}))
    note = f"Mean over layers. ± is half of the 95% interval over {over}"
    is_cut = any(cell.interval for row in rows for cell in row)
    note += "; one that would leave the possible values is cut there and given by its ends." if is_cut else "."
    if any(summary.over == "images" for summary in chosen):
        note += " An interval over images is of one seed: other seeds may lie outside."
    columns = (Column("metric"), Column("epoch", "count"), *(Column(group, "number") for group in groups))
    return Table("epochs", "Metrics over training", columns, rows, note)


def by_part(summaries: Sequence[GroupMetric], layers: Sequence[str]) -> Table:
    """Each part of the network at the last epoch, one column for each metric."""
    last = max(summary.epoch for summary in summaries)
    chosen = [summary for summary in summaries if summary.epoch == last and summary.variant != "difference"]
    estimates = {(summary.scope, summary.group, summary.metric): summary.estimate for summary in chosen}
    names = {"mean": "mean of layers", **{layer: f"layer {i}" for i, layer in enumerate(layers, 1)}}
    metrics = _metrics(chosen)
    rows = tuple(
        (Cell(f"{names.get(scope, scope)}, {group}"), *(_mean(estimates.get((scope, group, m))) for m in metrics))
        for scope in dict.fromkeys(summary.scope for summary in chosen)
        for group in dict.fromkeys(summary.group for summary in chosen)
    )
    columns = (Column("part"), *(Column(SHORT[metric], "number") for metric in metrics))
    title = f"Parts of the network after epoch {last}"
    return Table("parts", title, columns, rows, "Means of the runs.", detail=True)


def metric_figures(summaries: Sequence[GroupMetric], layers: Sequence[str]) -> list[Figure]:
    """A panel for each metric, Plain beside Asymmetric: over the epochs, and over the layers at the last of them."""
    epochs, figures = sorted({summary.epoch for summary in summaries}), []
    runs = [summary for summary in summaries if summary.variant != "difference"]
    if len(epochs) > 1:
        means = [summary for summary in runs if summary.scope == "mean"]
        title = "Metrics over training, mean over layers"
        figures.append(_metric_figure("epochs", title, "epoch", means, lambda summary: summary.epoch))
    if len(layers) > 1:
        last = [summary for summary in runs if summary.scope in layers and summary.epoch == epochs[-1]]
        title = f"Metrics by layer after epoch {epochs[-1]}"
        figures.append(_metric_figure("layers", title, "layer", last, lambda summary: layers.index(summary.scope) + 1))
    return figures


def map_figures(results: Sequence[AttentionResult], dataset: Dataset, images: int) -> list[Figure]:
    """Maps of the last layer over several images, and of every layer over one, of the first seed."""
    if not images:
        return []
    layers, seed = results[0].layers, results[0].state[0].seed
    rows = [("", image, layers[-1]) for image in range(min(images, len(results[0].images)))]
    last = maps_figure("maps", f"Maps of layer {len(layers)}, seed {seed}", results, dataset, rows)
    rows = [(f"layer {i}", 0, layer) for i, layer in enumerate(layers, 1)]
    return [last, maps_figure("maps-by-layer", f"Maps of one image by layer, seed {seed}", results, dataset, rows)]


def maps_figure(
    name: str,
    title: str,
    results: Sequence[AttentionResult],
    dataset: Dataset,
    rows: Sequence[tuple[str, int, str]],
) -> Figure:
    """Rows (label, image of the sample, layer or "rollout"): the image, then at each epoch Plain beside Asymmetric.

    For each epoch and variant the first result is shown: the first seed, with the first settings.
    """
    result_of: dict[tuple[int, str], AttentionResult] = {}
    for result in results:
        spec, epoch = result.state
        result_of.setdefault((epoch, spec.variant), result)
    columns = sorted(result_of, key=lambda column: (column[0], VARIANTS.index(column[1])))
    names = group_names(by_setting(results, lambda result: result.state[0]))
    row_names = [names[spec] for spec in by_setting(result_of.values(), lambda result: result.state[0])]
    which = f" Shown: {'; '.join(row_names)}." if len(row_names) < len(names) else ""
    pictures = [dataset.test.images[index] for index in results[0].images]

    def heat(epoch: int, variant: str, scope: str, image: int) -> Floats | None:
        maps = result_of[epoch, variant].maps.get(scope)
        return maps[image] if maps is not None and image < len(maps) else None

    return Figure(name, title, map_panels(rows, columns, pictures, heat), 1 + len(columns), MAPS + which)


def map_panels(
    rows: Sequence[tuple[str, int, str]],
    columns: Sequence[tuple[int, str]],
    pictures: Sequence[Any],
    heat: Callable[[int, str, str, int], Floats | None],
) -> list[Image]:
    """Rows (label, image, layer): the image, then its map for each column (epoch, variant), which `heat` looks up."""
    panels: list[Image] = []
    for label, image, scope in rows:
        is_first = not panels
        panels.append(map_image(pictures[image], label=label))
        for c, (epoch, variant) in enumerate(columns):
            heading = f"{variant.capitalize()}\nepoch {epoch}" if is_first else ""
            apart = c == 0 or columns[c - 1][0] != epoch
            look = {"colour": variant, "apart": apart, "frame": f"epoch {epoch}"}
            panels.append(map_image(pictures[image], heat(epoch, variant, scope, image), heading, is_map=True, **look))
    return panels


def map_image(pixels: Any, heat: Floats | None = None, title: str = "", *, is_map: bool = False, **look: Any) -> Image:
    """An image (C, H, W) of bytes, under a map (patches,) if given; an undefined map is shown as "none".

    With more than three channels the first three are shown as colours, with fewer the first as grey.
    """
    channels = (0, 1, 2) if len(pixels) >= 3 else (0, 0, 0)
    picture = np.asarray(pixels)[list(channels)].transpose(1, 2, 0) / 255
    if not is_map:
        return Image(title, picture, **look)
    if heat is None or not np.isfinite(heat).all():
        return Image(title, None, scale=SCALE, **look)
    grid = patch_grid(len(heat), *picture.shape[:2])
    assert grid is not None, "the maps of a picture lie on the grid of its patches"
    return Image(title, picture, heat.reshape(grid) * len(heat), SCALE, **look)


def _metric_figure(
    name: str, title: str, x_label: str, summaries: Sequence[GroupMetric], x_of: Callable[[GroupMetric], int]
) -> Figure:
    variants = {summary.group: summary.variant for summary in summaries}
    alone = [variant for variant, count in Counter(variants.values()).items() if count == 1]
    colours: dict[str, Colour] = {group: v if v in alone else i for i, (group, v) in enumerate(variants.items())}
    panels = []
    for metric in _metrics(summaries):
        lines = []
        for group, colour in colours.items():
            chosen = [summary for summary in summaries if (summary.group, summary.metric) == (group, metric)]
            chosen.sort(key=x_of)
            lines.append(line_of(group, colour, map(x_of, chosen), [summary.estimate for summary in chosen]))
        panels.append(Lines(LABELS[metric], x_label, "", tuple(lines), written=VALUE))
    return Figure(name, title, panels, 2 if len(panels) <= 4 else 3, BANDS)


def _headline(metrics: Sequence[GroupMetric]) -> Headline | None:
    """How the entropy of the maps differs after the last epoch."""
    words = []
    for summary in metrics:
        low, high = summary.estimate.low, summary.estimate.high
        assert low is not None
        assert high is not None
        word = "higher" if low > 0 else "lower" if high < 0 else "not clearly different"
        words.append(f"{summary.estimate.mean:+.3f} nats for {summary.of} ({word})")
    return ("soft", f"Entropy of the attention maps against Plain: {listing(words)}") if words else None


def _lead(metrics: Sequence[GroupMetric], result: AttentionResult) -> str:
    text = f"How the attention of {result.patches} patches is spread, on {len(result.images)} test images."
    ends = [f"{one.estimate.low:+.3f} to {one.estimate.high:+.3f} over {one.over}" for one in metrics]
    return f"{text} 95% interval after epoch {metrics[0].epoch}: {'; '.join(ends)}." if metrics else text


def _entropy_differences(summaries: Sequence[GroupMetric]) -> list[GroupMetric]:
    """The differences after the last epoch, mean over layers, that have an interval."""
    key = "difference", max(summary.epoch for summary in summaries), "mean", "entropy"
    return [
        summary
        for summary in summaries
        if (summary.variant, summary.epoch, summary.scope, summary.metric) == key and summary.estimate.low is not None
    ]


def _metrics(chosen: Sequence[GroupMetric]) -> list[str]:
    return [metric for metric in LABELS if any(summary.metric == metric for summary in chosen)]


def _mean(values: Estimate | None) -> Cell:
    return Cell("undefined" if values is None or values.mean is None else values.mean)


def _cell(values: Estimate | None) -> Cell:
    """The mean, with half of its interval, or with both ends if the interval is clipped at one side."""
    if values is None:
        return Cell("")
    if values.mean is None or values.low is None or values.high is None:
        return _mean(values)
    below, above = values.mean - values.low, values.high - values.mean
    if math.isclose(below, above, rel_tol=1e-6, abs_tol=1e-9):
        return Cell(Mean(values.mean, above))
    return Cell(values.mean, interval=Range(values.low, values.high))
