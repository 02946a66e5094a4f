"""The page of a measurement of attention: its tables, its figures, and the numbers beside them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asymtrain.lab.data import Dataset
from asymtrain.lab.instruments.attention.figures import maps_over_images, metrics_over_epochs, metrics_over_layers
from asymtrain.lab.instruments.attention.metrics import LABELS
from asymtrain.lab.instruments.attention.pictures import evolution, layers_of_image
from asymtrain.lab.instruments.attention.result import AttentionResult
from asymtrain.lab.instruments.attention.settings import AttentionSettings
from asymtrain.lab.instruments.attention.summary import Summary, summarise
from asymtrain.lab.report.measurement import Drawn, Listed, write_measurement
from asymtrain.lab.statistics.estimates import Estimate

Written = tuple[list[Listed], dict[str, Any], dict[str, Path]]


def write_attention(
    results: Sequence[AttentionResult], dataset: Dataset, out: Path, facts: Mapping[str, str], *, images: int = 4
) -> Written:
    """Write attention.html, .json and figures into `out`; the tables, the document and the paths of the files."""
    summaries, settings = summarise(results), results[0].settings
    tables = [over_epochs(summaries), by_part(summaries, results[0].layers)]
    document = {
        "settings": settings.key,
        "layers": list(results[0].layers),
        "patches": results[0].patches,
        "images": list(results[0].images),
        "shares": dict(results[0].shares),
        "summary": [one.to_dict() for one in summaries],
        "runs": [_run(result) for result in results],
    }
    files = write_measurement(
        out,
        "attention",
        title="Attention",
        lead=_lead(summaries, results[0]),
        tables=tables,
        figures=_figures(results, summaries, dataset, images),
        facts={**facts, "Maps": describe(settings), "Sample": _sample(results[0])},
        document=document,
    )
    return tables, document, files


def over_epochs(summaries: Sequence[Summary], scope: str = "mean") -> Listed:
    """Each metric at each epoch, one column for each group of runs and for their differences."""
    chosen = [one for one in summaries if one.scope == scope]
    groups = list(dict.fromkeys(one.group for one in chosen))
    found = {(one.metric, one.epoch, one.group): one.estimate for one in chosen}
    rows = []
    for metric in _metrics(chosen):
        for epoch in sorted({one.epoch for one in chosen}):
            cells = [found.get((metric, epoch, group)) for group in groups]
            rows.append((LABELS[metric], str(epoch), *(_cell(cell) for cell in cells)))
    note = f"Mean over layers. ± is half of the 95% interval over {_over(chosen)}"
    cut = any("(" in cell for row in rows for cell in row[2:])
    note += "; one that would leave the possible values is cut there and given by its ends." if cut else "."
    if any(one.over == "images" for one in chosen):
        note += " An interval over images is of one seed: other seeds may lie outside."
    return Listed("Metrics over training", ("metric", "epoch", *groups), rows, note)


def by_part(summaries: Sequence[Summary], layers: Sequence[str]) -> Listed:
    """Each part of the network at the last epoch, one column for each metric."""
    last = max(one.epoch for one in summaries)
    chosen = [one for one in summaries if one.epoch == last and one.variant != "difference"]
    found = {(one.scope, one.group, one.metric): one.estimate for one in chosen}
    metrics = _metrics(chosen)
    rows = []
    for scope in dict.fromkeys(one.scope for one in chosen):
        label = f"layer {layers.index(scope) + 1}" if scope in layers else {"mean": "mean of layers"}.get(scope, scope)
        for group in dict.fromkeys(one.group for one in chosen):
            cells = [found.get((scope, group, metric)) for metric in metrics]
            rows.append((f"{label}, {group}", *(_number(None if cell is None else cell.mean) for cell in cells)))
    columns = ("part", *(_SHORT[m] for m in metrics))
    return Listed(f"Parts of the network after epoch {last}", columns, rows, "Means of the runs.", detail=True)


def describe(settings: AttentionSettings) -> str:
    """Which maps the settings choose, in words."""
    query = "from the class token" if settings.query == "class_token" else "averaged over all queries"
    whole = "renormalised over the patches" if settings.renormalise else "not renormalised over the patches"
    return f"{query}, {whole}; a patch counts as covered above {settings.threshold:g} times the uniform value"


def _figures(
    results: Sequence[AttentionResult], summaries: Sequence[Summary], dataset: Dataset, images: int
) -> list[Drawn]:
    layers, epochs = results[0].layers, sorted({one.epoch for one in summaries})
    drawn = []
    if len(epochs) > 1:
        title = "Metrics over training, mean over layers"
        drawn.append(Drawn("epochs", title, metrics_over_epochs(summaries, "mean", "attention-epochs", title), _BANDS))
    if len(layers) > 1:
        title = f"Metrics by layer after epoch {epochs[-1]}"
        svg = metrics_over_layers(summaries, layers, epochs[-1], "attention-layers", title)
        drawn.append(Drawn("layers", title, svg, _BANDS))
    if images:
        seed = results[0].spec.seed if results[0].spec else 0
        title = f"Maps of layer {len(layers)}, seed {seed}"
        picture = evolution(results, dataset, title, images=images)
        drawn.append(Drawn("maps", title, maps_over_images(picture, "attention-maps"), _SCALE))
        title = f"Maps of one image by layer, seed {seed}"
        picture = layers_of_image(results, dataset, title)
        drawn.append(Drawn("maps-by-layer", title, maps_over_images(picture, "attention-maps-by-layer"), _SCALE))
    return drawn


_SHORT = {
    "peak_strength": "peak",
    "entropy": "entropy",
    "gini": "Gini",
    "coverage_above": "above threshold",
    "coverage_of_mask": "on object",
    "coverage_of_saliency": "on salient",
}
_BANDS = "Means of the runs; bands are 95% intervals."
_SCALE = "The average of the heads, in multiples of the uniform value; one scale for all maps."


def _lead(summaries: Sequence[Summary], result: AttentionResult) -> str:
    last = max(one.epoch for one in summaries)
    text = f"How the attention of {result.patches} patches is spread, on {len(result.images)} test images."
    for one in summaries:
        found = one.estimate
        chosen = one.variant == "difference" and one.epoch == last and one.scope == "mean" and one.metric == "entropy"
        if chosen and found.mean is not None and found.low is not None and found.high is not None:
            word = "higher" if found.low > 0 else "lower" if found.high < 0 else "not clearly different"
            text += (
                f" After epoch {last} the entropy of the maps of {one.group.split(' - ')[0]} is {word}: by "
                f"{found.mean:+.3f} nats (95% interval over {one.over}: {found.low:+.3f} to {found.high:+.3f})."
            )
    return text


def _sample(result: AttentionResult) -> str:
    shares = {"mask": "objects fill", "saliency": "the salient region fills"}
    parts = [f"{shares[name]} {share:.1%} of them" for name, share in result.shares.items()]
    return f"{len(result.images)} test images, the same for every run; {', '.join(parts)}"


def _run(result: AttentionResult) -> dict[str, Any]:
    assert result.spec is not None, "only states of runs are written"
    spec = result.spec
    return {"id": spec.id, "variant": spec.variant, "seed": spec.seed, "epoch": result.epoch, **result.to_dict()}


def _metrics(chosen: Sequence[Summary]) -> list[str]:
    return [metric for metric in LABELS if any(one.metric == metric for one in chosen)]


def _over(chosen: Sequence[Summary]) -> str:
    return " or ".join(sorted({f"{one.estimate.n} {one.over}" for one in chosen}))


def _cell(found: Estimate | None) -> str:
    if found is None or found.mean is None:
        return "undefined" if found else ""
    if found.low is None or found.high is None:
        return f"{found.mean:.3f}"
    below, above = found.mean - found.low, found.high - found.mean
    if math.isclose(below, above, rel_tol=1e-6, abs_tol=1e-9):
        return f"{found.mean:.3f} ± {above:.3f}"
    return f"{found.mean:.3f} ({found.low:.3f} to {found.high:.3f})"


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"
