"""The paper as data and recipes: its printed numbers, its claims, what is run for them, and the verdicts.

The steps from printed numbers to verdicts, each one file:

    numbers, claims          what the paper prints (`printed/*.csv`) and claims
    study                    how it is reproduced: readings, sizes, seeds; the paper's words become specs
    blocks                   parts of recipes that are run in one go; `studies.frame` trains them into a store
    measurements             what is measured in addition to training, and how
    recipes/                 which rows a table or figure needs, and how they become it (`recipe`)
      comparisons, searches    Plain against Asymmetric, seed by seed; settings that a search chose
      tables                   the columns, cells and lines that recipes share
    evidence, verdicts       numbers for each seed under the label of a printed cell; the rule, and its words
    contradictions           where the paper's own numbers disagree with its text
    texts.toml               sentences of verdicts and contradictions; numbers are filled in
    page, spec_index         one HTML file, with every table, figure and spec behind a number
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asymtrain.lab.studies.study import Block, StudyOfBlocks

if TYPE_CHECKING:
    from asymtrain.lab.runs import RunSpec
    from asymtrain.lab.studies.paper.study import Scope
    from asymtrain.lab.studies.snapshot import Snapshot


class Paper(StudyOfBlocks):
    """Reproduce the paper: its tables and figures as recipes, beside its own numbers."""

    name = "paper"
    blocks_are = "block of the reproduction"
    in_results = "*200-epochs*"
    measures = True
    run_block = "next --block"

    @property
    def blocks(self) -> Mapping[str, Block]:
        from asymtrain.lab.studies.paper import blocks

        return blocks.BLOCKS

    def scope(self, *, quick: bool = False) -> "Scope":
        from asymtrain.lab.studies.paper.study import SIZES, Scope

        return Scope() if quick else Scope(sizes=SIZES["paper"], precision="bf16")

    def chooses_by(self, spec: "RunSpec") -> bool:
        """Only searches choose settings, and their trials are never tested."""
        return spec.test == "never"

    def is_small(self, scope: "Scope") -> bool:
        return scope.sizes.scale == "quick"

    def is_rated(self, scope: "Scope", snapshot: "Snapshot", device: str) -> bool:
        from asymtrain.lab.studies.timing import is_timed

        timed = {run.spec.precision for run in snapshot.runs.values() if is_timed(run, device)}
        return scope.precision in {"bf16" if device == "cuda" else "fp32", *timed}

    def measure(
        self, measurements: Sequence[Any], store: Path, device: str | None, data_root: Path | None
    ) -> Iterator[Any]:
        from asymtrain.lab.studies.paper.measurements import take

        return take(measurements, store, device, data_root)

    def measurement_seconds(
        self, measurements: Sequence[Any], snapshot: "Snapshot", device: str, workers: int, *, small: bool
    ) -> float:
        from asymtrain.lab.studies.paper.measurements import measurement_seconds

        return measurement_seconds(measurements, snapshot, device, workers, small)


STUDY = Paper()
