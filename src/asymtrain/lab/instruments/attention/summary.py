"""Attention of many runs in few numbers: means over seeds, and Asymmetric less Plain, each with its interval."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from asymtrain.gradients._intervals import Bounds
from asymtrain.lab.instruments.attention.metrics import bounds
from asymtrain.lab.instruments.attention.result import AttentionResult, Floats, as_list, over_values
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.statistics.estimates import Estimate, estimate


@dataclass(frozen=True)
class Summary:
    """One number of a comparison: of a group of runs that differ in the seed alone, at one epoch."""

    group: str  # "Plain", "Asymmetric", or what was subtracted
    variant: Literal["plain", "asymmetric", "difference"]
    epoch: int
    scope: str
    metric: str
    estimate: Estimate
    over: Literal["seeds", "images"]  # what the interval is over: images where there is one seed

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**dataclasses.asdict(self), "estimate": as_list(self.estimate)}


def summarise(results: Sequence[AttentionResult], scopes: Sequence[str] | None = None) -> list[Summary]:
    """Mean and interval of each group of runs at each epoch: over seeds, or over images where there is one seed.

    Then, for each group of Asymmetric runs whose Plain partners are there, the difference Asymmetric - Plain, paired
    by seed, or by image where there is one seed.
    """
    groups = _groups(results)
    names = _names([spec for spec, _ in groups])
    found: list[Summary] = []
    for (spec, epoch), members in groups.items():
        for scope, metric in _parts(members[0], scopes):
            values, within = [m.of(metric, scope) for m in members], bounds(metric, members[0].patches)
            found.append(_summary(names[spec], spec.variant, epoch, scope, metric, values, within))
    for (spec, epoch), members in groups.items():
        partners = {m.spec.seed: m for m in groups.get((spec.plain(), epoch), []) if m.spec}
        both = [(m, partners[m.spec.seed]) for m in members if m.spec and m.spec.seed in partners]
        if spec.variant == "plain" or not both:
            continue
        name = f"{names[spec]} - {names[spec.plain()]}"
        for scope, metric in _parts(members[0], scopes):
            pairs = [one.of(metric, scope) - other.of(metric, scope) for one, other in both]
            _, largest = bounds(metric, members[0].patches)
            found.append(_summary(name, "difference", epoch, scope, metric, pairs, (-largest, largest)))
    return found


def _groups(results: Sequence[AttentionResult]) -> dict[tuple[RunSpec, int], list[AttentionResult]]:
    groups: dict[tuple[RunSpec, int], list[AttentionResult]] = {}
    for result in results:
        assert result.spec is not None, "only states of runs are summarised"
        assert result.epoch is not None, "only states of runs are summarised"
        groups.setdefault((dataclasses.replace(result.spec, seed=0), result.epoch), []).append(result)
    return groups


def _names(specs: Sequence[RunSpec]) -> dict[RunSpec, str]:
    """Plain and Asymmetric; with N and alpha where there are several groups of a variant."""
    unique = list(dict.fromkeys(specs))
    variants = [spec.variant for spec in unique]
    names = {}
    for spec in unique:
        name = spec.variant.capitalize()
        if variants.count(spec.variant) > 1:
            settings = f" N={spec.redundancy} alpha={spec.alpha:g}" if spec.redundancy else ""
            name += f"{settings} ({spec.id[:6]})"
        names[spec] = name
    return names


def _parts(result: AttentionResult, scopes: Sequence[str] | None) -> list[tuple[str, str]]:
    chosen = ["mean", "rollout", *result.layers] if scopes is None else scopes
    return [(scope, metric) for scope in chosen if scope in result.scopes for metric in result.values]


def _summary(
    group: str,
    variant: Literal["plain", "asymmetric", "difference"],
    epoch: int,
    scope: str,
    metric: str,
    values: Sequence[Floats],
    within: Bounds,
) -> Summary:
    if len(values) == 1:
        return Summary(group, variant, epoch, scope, metric, over_values(values[0], within), "images")
    seeds = estimate((over_values(one).mean for one in values), within=within)
    return Summary(group, variant, epoch, scope, metric, seeds, "seeds")
