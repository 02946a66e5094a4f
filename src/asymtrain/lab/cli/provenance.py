"""Which versions the runs of a store were trained with."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from asymtrain.lab.runs import Run
from asymtrain.lab.store import Store

SHOWN = {"asymtrain": "asymtrain", "torch": "torch", "python": "Python"}


def versions_in(store: Path, runs: Iterable[Run]) -> dict[str, str]:
    """Versions behind these runs; several of one thing are all named."""
    ids = [run.spec.id for run in runs]
    if not ids:
        return {}
    with Store(store, read_only=True) as opened:
        seen = [dataclasses.asdict(record.provenance) for record in opened.records(ids)]
    return {shown: " and ".join(sorted({str(one[name]) for one in seen})) for name, shown in SHOWN.items()}
