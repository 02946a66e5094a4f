"""The instrument `trajectory`: how training went, Plain beside Asymmetric."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asymtrain.lab.instruments.instrument import RUN_OPTIONS, Bench, Instrument
from asymtrain.lab.report.figure import Page

if TYPE_CHECKING:
    from asymtrain.lab.runs import Run

QUICK_SEEDS = (42, 43)  # pairs of three backbones: under a minute on two cores; three seeds would take longer


@dataclass(frozen=True)
class TrajectoryOptions:
    """No options of its own: one chooses only the runs."""


class TrajectoryInstrument(Instrument[TrajectoryOptions, "list[Run]"]):
    """Measure convergence, generalisation gap and where the learning curves part.

    Uses stored runs (--run), or trains pairs for it. Called again, it goes on where it stopped.
    """

    name = "trajectory"
    options = TrajectoryOptions
    run_options = (*RUN_OPTIONS, "track")

    def measure(self, options: TrajectoryOptions, bench: Bench) -> "list[Run]":
        """The runs and their Plain partners; everything that is measured was recorded while they were trained."""
        return bench.runs(bench.choose(default_seeds=QUICK_SEEDS if bench.quick else (), with_plain=True))

    def page(self, options: TrajectoryOptions, result: "list[Run]") -> Page:
        from asymtrain.lab.instruments.trajectory.show import trajectory_page

        return trajectory_page(result)


INSTRUMENT = TrajectoryInstrument()
