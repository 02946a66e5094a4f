"""From the results of recipes to verdicts on the claims."""

from collections.abc import Iterable
from typing import Any

from asymtrain.lab.paper.readings import ALTERNATES, PRIMARY
from asymtrain.lab.paper.result import RecipeResult
from asymtrain.lab.paper.verdicts import Judgement, judge_all


def gather(results: Iterable[RecipeResult]) -> dict[str, dict[str, Any]]:
    """The evidence of all recipes, by reading and label.

    A claim may need a cell that an alternate reading does not touch (the best epoch's accuracy has no other cosine):
    such cells are those of the primary reading. A reading that trains otherwise touches all of them.
    """
    found: dict[str, dict[str, Any]] = {}
    for result in results:
        for reading, labelled in result.evidence.items():
            found.setdefault(reading, {}).update(labelled)
    primary = found.get(PRIMARY.name, {})
    for alternate in ALTERNATES:
        own = found.get(alternate.name)
        if own and alternate.changes != "training":
            tables = {label.partition("/")[0] for label in own}
            rest = {label: one for label, one in primary.items() if label.partition("/")[0] not in tables}
            found[alternate.name] = {**rest, **own}
    return found


def judge_results(results: Iterable[RecipeResult]) -> tuple[Judgement, ...]:
    """All 36 verdicts, from whatever was run."""
    alternates = [reading.name for reading in ALTERNATES]
    return judge_all(gather(results), primary=PRIMARY.name, alternates=alternates)
