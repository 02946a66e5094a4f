"""The instrument `usage`: how much of the answer is at each point already, and what of the point it reads."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.instruments.instrument import (
    RUN_OPTIONS,
    Bench,
    Instrument,
    Page,
    Stopped,
    comma_numbers,
    telling_states,
)

if TYPE_CHECKING:
    from asymtrain.lab.instruments.usage.show import Measured

AT = "--at {}: write epochs with commas, as in 0,5 (0 is before training)"


@dataclass(frozen=True)
class UsageOptions:
    """When it is looked at, and on how many images."""

    at: Annotated[str | None, typer.Option(help="Epochs, with commas; 0 is before training. Default: the last.")] = None
    images: Annotated[int, typer.Option(help="Number of test images, more than a point has units.")] = 1000

    def __post_init__(self) -> None:
        if self.at is not None:
            comma_numbers(self.at, AT)


class UsageInstrument(Instrument[UsageOptions, "Measured"]):
    """Measure how much of the answer each point holds already, and how much of its variance the answer reads.

    Of stored runs (--run), or of pairs that are trained for it. Called again, it goes on with what is in the folder of
    states; values of stored runs are kept beside them.
    """

    name = "usage"
    options = UsageOptions
    run_options = (*RUN_OPTIONS, "states")
    for_any_model = "head_usage takes features and logits of any model"

    def measure(self, options: UsageOptions, bench: Bench) -> "Measured":
        """The usage of each point by run and epoch; what the store has of it is not measured again."""
        from asymtrain.lab.devices import default_device
        from asymtrain.lab.engine import load_for
        from asymtrain.lab.engine.setup import build_backbone
        from asymtrain.lab.instruments.usage.measure import Usage, check_images, measure_usage

        specs, name = bench.choose(with_plain=True), f"usage of {options.images} images"
        self.check_backbones(specs)
        least = min(spec.epochs for spec in specs)
        epochs = (least,) if options.at is None else tuple(sorted(comma_numbers(options.at, AT)))
        if epochs[-1] > least:
            raise UsageError(f"--at {options.at}: a run has {least} epochs")
        kept = bench.kept(name, specs)
        missing = [spec for spec in specs if not kept.get(spec, {}).keys() >= set(epochs)]
        for spec in missing:
            dataset = load_for(spec, bench.data_root)
            most = len(dataset.test.images)
            if not 2 <= options.images <= most:
                raise UsageError(f"--images must lie in 2..{most}, got {options.images}")
            check_images(options.images, max(build_backbone(spec, dataset).widths))
        try:
            states = bench.states(missing, epochs) if missing else []
            with bench.telling("measuring") as say:
                tell, device = telling_states(say, len(states)), default_device(bench.device)
                for state in states:
                    dataset = load_for(state.spec, bench.data_root)
                    points = measure_usage(state, dataset, images=options.images, device=device)
                    kept.setdefault(state.spec, {})[state.epoch] = [asdict(point) for point in points]
                    tell(state)
        except KeyboardInterrupt:
            raise Stopped(f"Stopped: trained states stay in {bench.states_folder}; the same command goes on.") from None
        for spec in missing:
            bench.keep(spec, name, kept.get(spec, {}))
        measured = {
            spec: {at: tuple(Usage(**point) for point in kept[spec][at]) for at in epochs if at in kept.get(spec, {})}
            for spec in specs
        }
        if not any(measured.values()):
            raise UsageError("every run diverged before these epochs: give smaller ones in --at")
        return {spec: by_epoch for spec, by_epoch in measured.items() if by_epoch}

    def page(self, options: UsageOptions, result: "Measured") -> Page:
        from asymtrain.lab.instruments.usage.show import usage_page

        return usage_page(result, options.images)


INSTRUMENT = UsageInstrument()
