"""The instrument `features`: what branches do to a network's units in the first steps."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.instruments.instrument import Bench, Instrument, Interrupt
from asymtrain.lab.report.figure import Page
from asymtrain.lab.texts import comma_numbers, comma_words

if TYPE_CHECKING:
    from asymtrain.lab.instruments.features.show import Followed
    from asymtrain.lab.runs import RunSpec


@dataclass(frozen=True)
class FeatureOptions:
    """Which branches, after which steps, on how many images."""

    variant: Annotated[
        str, typer.Option(help="Branches beside Plain: trained, prior, softmax, random, frozen; several with commas.")
    ] = "trained,prior"
    steps: Annotated[str, typer.Option(help="Steps after which to measure, with commas; 0 is before training.")] = (
        "0,2,5,10,20"
    )
    images: Annotated[int, typer.Option(help="Number of test images.")] = 500

    def __post_init__(self) -> None:
        self.parse_steps()

    def parse_steps(self) -> tuple[int, ...]:
        advice = "--steps {}: write steps with commas, as in 0,5,20 (0 is before training)"
        return tuple(sorted(comma_numbers(self.steps, advice)))


class FeaturesInstrument(Instrument[FeatureOptions, "dict[RunSpec, Followed]"]):
    """Measure what units do in the first steps: how many fall silent, how large they get, in how many directions.

    Trains these steps with the plainest loop, for each seed and kind of branches. Called again, it goes on where it
    stopped.
    """

    name = "features"
    options = FeatureOptions
    run_options = ("data", "data_option", "arch", "scale", "seeds", "redundancy", "alpha")
    for_any_model = "feature_statistics takes features of any model"

    def measure(self, options: FeatureOptions, bench: Bench) -> "dict[RunSpec, Followed]":
        """The features of each run by step: from the store, or followed and kept there one run after the other."""
        from asymtrain.lab.devices import default_device
        from asymtrain.lab.engine import load_for
        from asymtrain.lab.instruments.features import measure

        name, steps, images = f"features of {options.images} images", options.parse_steps(), options.images
        variants = comma_words(options.variant)
        chosen = bench.choose()
        self.check_backbones(chosen)
        specs = list(dict.fromkeys(s for spec in chosen for s in measure.feature_variants(spec, variants)))

        def stored_results() -> "dict[RunSpec, Followed]":
            """The stored values of the runs that have all steps in the store."""
            return {
                spec: {step: tuple(measure.FeatureStatistics(**point) for point in values[step]) for step in steps}
                for spec, values in bench.stored_values(name, specs).items()
                if values.keys() >= set(steps)
            }

        done = stored_results()
        missing = [spec for spec in specs if spec not in done]
        if not missing:  # the data may be absent then
            return {spec: done[spec] for spec in specs}
        dataset, device = load_for(missing[0], bench.data_root), str(default_device(bench.device))
        measure.check_steps(missing[0], dataset, steps)
        measure.check_branches(missing, dataset)
        if not 2 <= images <= len(dataset.test.images):
            raise UsageError(f"--images must lie in 2..{len(dataset.test.images)}, got {images}")
        try:
            with bench.telling("first steps") as say:
                for number, spec in enumerate(missing, 1):
                    words = f"{number}/{len(missing)} {spec.arch} {measure.variant_of(spec)} seed {spec.seed}"
                    say(words)

                    def tell(done: int, total: int, words: str = words) -> None:
                        say(f"{words}: step {done} of {total}", brief=True)  # a run takes seconds to a minute

                    followed = measure.follow_features(
                        spec, dataset, steps, images=images, device=device, progress=tell
                    )
                    values = {step: [point.to_dict() for point in points] for step, points in followed.items()}
                    bench.keep(spec, name, values, fresh=True)
        except KeyboardInterrupt:
            message = f"Stopped: {len(stored_results())} of {len(specs)} runs are in {bench.store}. "
            raise Interrupt(f"{message}The same command goes on from there.") from None
        done = stored_results()
        return {spec: done[spec] for spec in specs}

    def page(self, options: FeatureOptions, result: "dict[RunSpec, Followed]") -> Page:
        from asymtrain.lab.instruments.features.show import features_page

        return features_page(result, options.images)


INSTRUMENT = FeaturesInstrument()
