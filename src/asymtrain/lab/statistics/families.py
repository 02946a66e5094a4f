"""Corrections for many tests. A family is what is read together: a table's cells."""

from collections.abc import Sequence

import pandas as pd

from asymtrain.errors import UsageError


def bonferroni(p_values: Sequence[float], family: int | None = None) -> list[float]:
    """Each p times the size of the family, at most 1."""
    return _adjusted(p_values, family, "bonferroni")


def holm(p_values: Sequence[float], family: int | None = None) -> list[float]:
    """Holm's step-down p: as safe as Bonferroni's and never larger.

    Where the family has more tests than p values are known, the missing ones count as 1: the known ones are
    then corrected at least as hard as they would be.
    """
    return _adjusted(p_values, family, "holm")


def corrected(comparison: pd.DataFrame) -> pd.DataFrame:
    """A frame of `compare` as one family: with columns p_bonferroni and p_holm. A row without p takes no part."""
    tested = [p for p in comparison["p"] if p is not None]
    columns = {f"p_{name}": iter(adjust(tested)) for name, adjust in (("bonferroni", bonferroni), ("holm", holm))}
    made = {
        name: pd.Series([None if p is None else next(values) for p in comparison["p"]], comparison.index, dtype=object)
        for name, values in columns.items()
    }
    return comparison.assign(**made)


def _adjusted(p_values: Sequence[float], family: int | None, method: str) -> list[float]:
    from statsmodels.stats.multitest import multipletests  # takes seconds to load; most commands never ask

    known = [float(p) for p in p_values]
    size = len(known) if family is None else family
    if size < len(known):
        raise UsageError(f"a family of {size} tests cannot hold {len(known)} p values")
    if not known:
        return []
    adjusted = multipletests([*known, *[1.0] * (size - len(known))], method=method)[1]
    return [float(p) for p in adjusted[: len(known)]]
