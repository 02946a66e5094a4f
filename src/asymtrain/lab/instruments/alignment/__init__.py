"""The instrument `alignment`: do the two objectives pull the same way?"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.instruments.instrument import RUN_OPTIONS, Bench, Instrument
from asymtrain.lab.report.figure import Page
from asymtrain.lab.texts import comma_words

if TYPE_CHECKING:
    from asymtrain.lab.runs import Run


@dataclass(frozen=True)
class AlignmentOptions:
    """Which branches, and how often."""

    variant: Annotated[
        str | None, typer.Option(help="Branches: trained (the default), frozen, detached; several with commas.")
    ] = None
    every: Annotated[int | None, typer.Option(help="Steps between measurements. Default: 16.")] = None

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise UsageError(f"--every must be 1 or more, got {self.every}")


class AlignmentInstrument(Instrument[AlignmentOptions, "list[Run]"]):
    """Measure the cosine between main and auxiliary gradients through training.

    Uses stored runs (--run), or trains runs for it. Called again, it goes on where it stopped.
    """

    name = "alignment"
    options = AlignmentOptions
    run_options = (*RUN_OPTIONS, "track")

    def measure(self, options: AlignmentOptions, bench: Bench) -> "list[Run]":
        """The runs; everything that is measured was recorded while they were trained."""
        if bench.stored and options != AlignmentOptions():
            raise UsageError("a stored run keeps what it recorded: leave out --variant and --every, or --run")
        from asymtrain.lab.instruments.alignment.measure import NO_BRANCHES, VARIANTS
        from asymtrain.lab.instruments.curves import in_variants

        specs = bench.choose(cosine_every=options.every)
        if bench.stored:
            if not any(spec.redundancy for spec in specs):
                raise UsageError(NO_BRANCHES)
            return bench.runs(specs)
        names = comma_words("trained" if options.variant is None else options.variant)
        if not names:
            raise UsageError(f"--variant {options.variant!r}: name trained, frozen or detached, several with commas")
        return bench.runs([variant for spec in specs for variant in in_variants(spec, names, VARIANTS)])

    def page(self, options: AlignmentOptions, result: "list[Run]") -> Page:
        from asymtrain.lab.instruments.alignment.show import alignment_page

        return alignment_page(result)


INSTRUMENT = AlignmentInstrument()
