"""The instrument `trajectory`: how training went, Plain beside Asymmetric."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.instruments.instrument import RUN_OPTIONS, Bench, Instrument, Page
from asymtrain.lab.texts import comma_numbers

if TYPE_CHECKING:
    from asymtrain.lab.runs import Run

QUICK_SEEDS = (42, 43)  # pairs of three backbones: under a minute on two cores, which three seeds would exceed


@dataclass(frozen=True)
class TrajectoryOptions:
    """When a run has converged, and where the gap is reported."""

    tolerance: Annotated[
        float, typer.Option(help="Share of the best validation accuracy within which a run has converged.")
    ] = 0.01
    gap_at: Annotated[
        str | None, typer.Option(help="Epochs of the generalisation gap, with commas. Default: early, half, last.")
    ] = None

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < 1:
            raise UsageError(f"--tolerance is a share between 0 and 1, got {self.tolerance:g}")
        self.gap_epochs()

    def gap_epochs(self) -> tuple[int, ...] | None:
        advice = "--gap-at {}: write epochs from 1 with commas, as in 10,50,100"
        return None if self.gap_at is None else comma_numbers(self.gap_at, advice, least=1)


class TrajectoryInstrument(Instrument[TrajectoryOptions, "list[Run]"]):
    """Measure convergence, generalisation gap and where the learning curves part.

    Of stored runs (--run), or of pairs that are trained for it. Called again, it goes on where it stopped.
    """

    name = "trajectory"
    options = TrajectoryOptions
    run_options = (*RUN_OPTIONS, "track")

    def measure(self, options: TrajectoryOptions, bench: Bench) -> "list[Run]":
        """The runs and their Plain partners; everything that is measured was recorded while they were trained."""
        specs = bench.choose(default_seeds=QUICK_SEEDS if bench.quick else (), with_plain=True)
        for spec in specs:
            if max(options.gap_epochs() or (0,)) > spec.epochs:
                raise UsageError(f"--gap-at {options.gap_at}: run {spec.id} has {spec.epochs} epochs")
        return bench.runs(specs)

    def page(self, options: TrajectoryOptions, result: "list[Run]") -> Page:
        from asymtrain.lab.instruments.trajectory.show import trajectory_page

        return trajectory_page(result, options.tolerance, options.gap_epochs())


INSTRUMENT = TrajectoryInstrument()
