"""The practice study: do branches help models that people use, under recipes that people use?

docs/practice-protocol.md is the protocol in words. How a number goes, each step a file:

    models       what timm has no option for
    protocol     models, data, recipes, seeds and candidates as data; the blocks and the specs of each
    selection    which candidates go on, from validation accuracies alone
    analysis     differences to Plain, verdicts, epochs to Plain's accuracy, calibration
    page         tables, the forest plot, one HTML file
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from asymtrain.lab.report.figure import Page
from asymtrain.lab.studies.study import Block, Needs, Study

if TYPE_CHECKING:
    from asymtrain.lab.studies.practice.protocol import Extent
    from asymtrain.lab.studies.snapshot import Snapshot


class Practice(Study):
    """Run the practice study: do branches help models that people use, under recipes that people use?"""

    name = "practice"
    blocks_are = "block of the practice study"
    in_results = "practice-*"
    file_option: ClassVar[tuple[str, str] | None] = (
        "step_costs",
        "File of `benchmarks/overhead.py --only practice --json FILE`: shows what a step costs, and the time to "
        "Plain's accuracy. May be given several times.",
    )

    def part(self, name: str) -> Any:
        """A module of the study, loaded when it is needed; a study of its kind has the same ones."""
        return import_module(f"{type(self).__module__}.{name}")

    @property
    def blocks(self) -> Mapping[str, Block]:
        blocks: Mapping[str, Block] = self.part("protocol").BLOCKS
        return blocks

    def scope(self, *, quick: bool = False) -> "Extent":
        protocol = self.part("protocol")
        extent: Extent = protocol.QUICK if quick else protocol.FULL
        return extent

    def needs(self, part: Any, scope: "Extent", snapshot: "Snapshot") -> Needs:
        needs: Needs = self.part("selection").needs(scope, part, snapshot.runs)
        return needs

    def page(self, scope: "Extent", snapshot: "Snapshot", files: Sequence[Path] = ()) -> Page:
        from asymtrain.lab.studies.practice.analysis import analyse, read_step_costs
        from asymtrain.lab.studies.practice.page import judged_page

        return judged_page(analyse(scope, snapshot.runs, read_step_costs(files)))

    def row(self, block: Block) -> dict[str, Any]:
        return {"models": list(dict.fromkeys(part.title for part in block.parts))}


STUDY = Practice()
