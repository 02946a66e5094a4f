"""The instrument `landscape`: the loss surface around a state, at several redundancies."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.instruments.instrument import Bench, Instrument, Interrupt, counting
from asymtrain.lab.report.figure import Page
from asymtrain.lab.texts import comma_numbers, comma_words

if TYPE_CHECKING:
    from asymtrain.lab.instruments.landscape.result import Landscape, LandscapeSettings
    from asymtrain.lab.runs import RunSpec

# What fits into a minute on two cores, for the small networks of --scale quick. For each image a convolutional network
# or a transformer costs several times as much as the MLP, whose first layer is computed once.
QUICK: dict[str, dict[str, int]] = {
    "mlp": {"draws": 3, "sample": 300},
    "cnn": {"draws": 3, "sample": 50, "grid": 25},
    "vit": {"draws": 3, "sample": 50, "grid": 25},
}
Measured = dict[str, tuple["Landscape", "list[RunSpec]"]]


@dataclass(frozen=True)
class LandscapeOptions:
    """What is compared, and how; the defaults equal those of `LandscapeSettings`, which a test checks."""

    redundancy: Annotated[str, typer.Option(help="Levels to compare, with commas; 0 is Plain.")] = "0,1,20,300"
    at: Annotated[int, typer.Option(help="Epoch to look at; 0 is before training, a later one is trained first.")] = 0
    loss: Annotated[str, typer.Option(help="main, or total: main + alpha * auxiliary.")] = "main"
    directions: Annotated[
        str, typer.Option(help="all (idle branches included), live, filter; several with commas.")
    ] = "all,live"
    draws: Annotated[int | None, typer.Option(help="Pairs of directions. Default: 10, quick fewer.")] = None
    grid: Annotated[int | None, typer.Option(help="Points a side. Default: 51, quick fewer.")] = None
    sample: Annotated[int | None, typer.Option(help="Images. Default: 500, quick fewer.")] = None
    step: Annotated[
        float, typer.Option(help="Between grid points, in deviations of a weight's direction (unit variance).")
    ] = 4e-4
    norm_step: Annotated[float, typer.Option(help="The same for unit-norm directions.")] = 0.04
    filter_step: Annotated[float, typer.Option(help="The same for filter-normalised ones.")] = 0.04
    precision: Annotated[
        str, typer.Option(help="Of the surfaces: fp32, or tf32: faster on a GPU, and rougher except for a CNN.")
    ] = "fp32"

    def __post_init__(self) -> None:
        self.levels()

    def levels(self) -> tuple[int, ...]:
        return comma_numbers(self.redundancy, "--redundancy {}: write levels with commas, as in 0,1,20 (0 is Plain)")

    def settings(self, **sizes: int) -> "LandscapeSettings":
        """The settings, with these sizes if none are given."""
        from asymtrain.lab.instruments.landscape.result import LandscapeSettings

        names = {field.name for field in dataclasses.fields(LandscapeSettings)}
        options = {name: value for name, value in vars(self).items() if name in names and value is not None}
        values: dict[str, Any] = {**sizes, **options, "directions": tuple(comma_words(self.directions))}
        return LandscapeSettings(**values)


class LandscapeInstrument(Instrument[LandscapeOptions, Measured]):
    """Measure the loss surface around a state: deviation, range, slope, how much of it is a plane.

    Before training by default, as in the paper, at redundancies 0, 1, 20 and 300, along directions over all
    parameters and over live ones. With --run, around the settings of stored runs.
    """

    name = "landscape"
    options = LandscapeOptions
    run_options = ("run", "data", "data_option", "arch", "scale", "seeds", "epochs", "alpha", "states")
    for_any_model = "measure_module_landscape measures any module"

    def measure(self, options: LandscapeOptions, bench: Bench) -> Measured:
        """A landscape for each backbone and setting, by label, with its specs."""
        from asymtrain.lab.engine import load_for
        from asymtrain.lab.instruments.landscape import measure
        from asymtrain.lab.instruments.landscape.states import states_of_redundancies

        options.settings()  # refuses wrong settings before anything else is done
        chosen = bench.choose(archs=("mlp",), default_seeds=(42,))
        self.check_backbones(chosen)
        groups = _by_backbone(chosen)
        plain = any(specs[0].redundancy == 0 for specs in groups.values())
        if plain and any(options.levels()) and (options.at or options.loss == "total"):
            raise UsageError(
                "a Plain run has no alpha: name Asymmetric runs (Plain is level 0 of them), or --redundancy 0"
            )
        for specs in groups.values():  # missing or broken data is reported before anything is trained
            load_for(specs[0], bench.data_root)
        measured: Measured = {}
        try:
            for number, (label, specs) in enumerate(groups.items(), 1):
                words = f"{number}/{len(groups)} {label}"
                settings = options.settings(**(QUICK.get(specs[0].arch, {}) if bench.quick else {}))
                with bench.telling(f"{words}: states") as say:
                    say(f"{words}: states at epoch {options.at}", brief=not options.at)  # training takes a while
                take = partial(bench.states, words=f"{words}: training epoch")
                states = states_of_redundancies(specs, options.levels(), options.at, take)
                dataset = load_for(specs[0], bench.data_root)
                with bench.telling(f"{words}: draws") as say:
                    tell = counting(say, f"{words}: draw")
                    landscape = measure.measure_landscape(states, dataset, settings, device=bench.device, progress=tell)
                for state in states:  # levels that are not stored are only in the document
                    values = {state.epoch: landscape.of_state(state.spec.id, state.epoch)}
                    bench.keep(state.spec, settings.key, values)
                measured[label] = landscape, specs
        except KeyboardInterrupt:
            # Whole landscapes are shown and written; draws of an unfinished one are not.
            folder = bench.states_folder
            rest = f", and trained states stay in {folder}" if options.at and folder.exists() else ""
            raise Interrupt(
                f"Stopped: {len(measured)} of {len(groups)} landscapes are measured; of an unfinished one no draw is "
                f"kept{rest}. The same command measures all of them again.",
                measured or None,
            ) from None
        return measured

    def page(self, options: LandscapeOptions, result: Measured) -> Page:
        from asymtrain.lab.instruments.landscape.show import landscape_page

        specs = [spec for _, members in result.values() for spec in members]
        return landscape_page({label: landscape for label, (landscape, _) in result.items()}, specs, options.at)


INSTRUMENT = LandscapeInstrument()


def _by_backbone(specs: "Sequence[RunSpec]") -> "dict[str, list[RunSpec]]":
    """Specs that differ only in their seed and redundancy, by a label; each seed once.

    Plain is one of the levels of its seed's Asymmetric run, which knows the settings of both.
    """
    from asymtrain.lab.instruments.curves import by_setting, differing_settings

    covered = {spec.plain() for spec in specs if spec.redundancy}
    once = {
        dataclasses.replace(spec, redundancy=min(1, spec.redundancy)): spec for spec in specs if spec not in covered
    }
    labels: dict[str, list[RunSpec]] = {}
    groups = by_setting(once, lambda level: level)
    for setting, levels in groups.items():
        alike = [other for other in groups if (other.arch, other.dataset) == (setting.arch, setting.dataset)]
        differing = differing_settings(alike)[alike.index(setting)]
        labels[", ".join([f"{setting.arch} on {setting.dataset}", *differing])] = [once[level] for level in levels]
    return labels
