"""The study of a default: is there one configuration that helps, or does no harm, on models that nobody tuned it for?

docs/default-protocol.md is the protocol in words. How a number goes, each step a file:

    protocol     candidates, models, data, seeds and blocks as data, and the specs of each
    selection    which candidate the models of a kind choose, from validation accuracies alone
    page         differences to Plain on fresh seeds, the conditions that the default must meet, the forest plot
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from asymtrain.lab.report.figure import Page
from asymtrain.lab.studies.practice import Practice

if TYPE_CHECKING:
    from asymtrain.lab.studies.practice.protocol import Extent
    from asymtrain.lab.studies.snapshot import Snapshot


class Default(Practice):
    """Run the study of a default: one configuration that helps, or does no harm, on models it was not chosen for."""

    name = "default"
    blocks_are = "block of the study of a default"
    in_results = "default-*"
    file_option = None

    def page(self, scope: "Extent", snapshot: "Snapshot", files: Sequence[Path] = ()) -> Page:
        from asymtrain.lab.studies.default.page import judged_page

        return judged_page(scope, snapshot.runs)


STUDY = Default()
