"""The practice study: do branches help models that people use, under recipes that people use?

docs/practice-protocol.md is the protocol in words. How a number goes, each step a file:

    models       what timm has no option for
    protocol     models, data, recipes, seeds and candidates as data; the blocks and the specs of each
    selection    which candidates go on, from validation accuracies alone
    analysis     differences to Plain, verdicts, epochs to Plain's accuracy, calibration
    page         tables, the forest plot, one HTML file
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asymtrain.lab.studies.study import Block, JudgedPage, Needs, Study

if TYPE_CHECKING:
    from asymtrain.lab.studies.practice.protocol import Extent, Task
    from asymtrain.lab.studies.snapshot import Snapshot


class Practice(Study):
    """Run the practice study: do branches help models that people use, under recipes that people use?"""

    name = "practice"
    blocks_are = "block of the practice study"
    in_results = "practice-*"
    file_option = (
        "step_costs",
        "File of `benchmarks/overhead.py --only practice --json FILE`: shows what a step costs, and the time to "
        "Plain's accuracy. May be given several times.",
    )

    @property
    def blocks(self) -> Mapping[str, Block]:
        from asymtrain.lab.studies.practice import protocol

        return protocol.BLOCKS

    def scope(self, *, quick: bool = False) -> "Extent":
        from asymtrain.lab.studies.practice import protocol

        return protocol.QUICK if quick else protocol.FULL

    def needs(self, part: "Task", scope: "Extent", snapshot: "Snapshot") -> Needs:
        from asymtrain.lab.studies.practice.selection import needs

        return needs(scope, part, snapshot.runs)

    def page(self, scope: "Extent", snapshot: "Snapshot", files: Sequence[Path] = ()) -> JudgedPage:
        from asymtrain.lab.studies.practice.analysis import analyse, read_step_costs
        from asymtrain.lab.studies.practice.page import judged_page

        return judged_page(analyse(scope, snapshot.runs, read_step_costs(files)))

    def row(self, block: Block) -> dict[str, Any]:
        return {"models": list(dict.fromkeys(part.title for part in block.parts))}


STUDY = Practice()
