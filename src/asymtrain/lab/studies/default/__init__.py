"""The study of a default: is there one configuration that helps, or does no harm, on models that nobody tuned it for?

docs/default-protocol.md is the protocol in words. How a number goes, each step a file:

    protocol     candidates, models, data, seeds and blocks as data, and the specs of each
    selection    which candidate the models of a kind choose, from validation accuracies alone
    page         differences to Plain on fresh seeds, the conditions that the default must meet, the forest plot
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asymtrain.lab.studies.study import Block, JudgedPage, Needs, Study

if TYPE_CHECKING:
    from asymtrain.lab.studies.default.protocol import Task
    from asymtrain.lab.studies.practice.protocol import Extent
    from asymtrain.lab.studies.snapshot import Snapshot


class Default(Study):
    """Run the study of a default: one configuration that helps, or does no harm, on models it was not chosen for."""

    name = "default"
    blocks_are = "block of the study of a default"
    in_results = "default-*"

    @property
    def blocks(self) -> Mapping[str, Block]:
        from asymtrain.lab.studies.default import protocol

        return protocol.BLOCKS

    def scope(self, *, quick: bool = False) -> "Extent":
        from asymtrain.lab.studies.default import protocol

        return protocol.QUICK if quick else protocol.FULL

    def needs(self, part: "Task", scope: "Extent", snapshot: "Snapshot") -> Needs:
        from asymtrain.lab.studies.default.selection import needs

        return needs(scope, part, snapshot.runs)

    def page(self, scope: "Extent", snapshot: "Snapshot", files: Sequence[Path] = ()) -> JudgedPage:
        from asymtrain.lab.studies.default.page import judged_page

        return judged_page(scope, snapshot.runs)

    def row(self, block: Block) -> dict[str, Any]:
        return {"models": list(dict.fromkeys(part.title for part in block.parts))}


STUDY = Default()
