"""The instrument `features`: what branches do to a network's units in the first steps."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.instruments.instrument import Bench, Instrument, Page, Stopped, comma_numbers, comma_words

if TYPE_CHECKING:
    from asymtrain.lab.instruments.features.show import Followed
    from asymtrain.lab.runs import RunSpec


@dataclass(frozen=True)
class FeatureOptions:
    """Which branches, after which steps, on how many images."""

    variant: Annotated[
        str, typer.Option(help="Branches beside Plain: trained, prior, softmax, random, frozen; several with commas.")
    ] = "trained,prior"
    steps: Annotated[str, typer.Option(help="After which steps to look, with commas; 0 is before.")] = "0,2,5,10,20"
    images: Annotated[int, typer.Option(help="Test images to look with.")] = 500

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
    run_options = ("data", "arch", "scale", "seeds", "redundancy", "alpha")

    def measure(self, options: FeatureOptions, bench: Bench) -> "dict[RunSpec, Followed]":
        """The features of each run by step: from the store, or followed and kept there one run after the other."""
        from asymtrain.lab.instruments.features.measure import feature_variants

        names = comma_words(options.variant)
        specs = list(dict.fromkeys(variant for spec in bench.choose() for variant in feature_variants(spec, names)))
        kept = _kept(specs, options, bench)
        try:
            _follow([spec for spec in specs if spec not in kept], options, bench)
        except KeyboardInterrupt:
            done = len(_kept(specs, options, bench))
            message = f"Stopped: {done} of {len(specs)} runs are in {bench.store}. The same command goes on from there."
            raise Stopped(message) from None
        kept = _kept(specs, options, bench)
        return {spec: kept[spec] for spec in specs}

    def page(self, options: FeatureOptions, result: "dict[RunSpec, Followed]") -> Page:
        from asymtrain.lab.instruments.features.show import features_page

        return features_page(result, options.images)


INSTRUMENT = FeaturesInstrument()


def _name(options: FeatureOptions) -> str:
    return f"features of {options.images} images"


def _kept(specs: "Sequence[RunSpec]", options: FeatureOptions, bench: Bench) -> "dict[RunSpec, Followed]":
    """What the store holds of the runs, where it holds all steps."""
    from asymtrain.lab.instruments.features.measure import FeatureStatistics

    steps = options.parse_steps()
    return {
        spec: {step: tuple(FeatureStatistics(**point) for point in values[step]) for step in steps}
        for spec, values in bench.kept(_name(options), specs).items()
        if values.keys() >= set(steps)
    }


def _follow(specs: "Sequence[RunSpec]", options: FeatureOptions, bench: Bench) -> None:
    """Measure runs, and keep each as it comes. Without any, the data need not be there."""
    from asymtrain.lab.engine import default_device, load_for
    from asymtrain.lab.instruments.features.measure import check_steps, follow_features, variant_of

    if not specs:
        return
    steps, images, device = options.parse_steps(), options.images, str(default_device(bench.device))
    dataset = load_for(specs[0], bench.data_root)
    check_steps(specs[0], dataset, steps)
    if not 2 <= images <= len(dataset.test.images):
        raise UsageError(f"--images must lie in 2..{len(dataset.test.images)}, got {images}")
    with bench.telling("first steps") as say:
        for number, spec in enumerate(specs, 1):
            words = f"{number}/{len(specs)} {spec.arch} {variant_of(spec)} seed {spec.seed}"
            say(words)

            def tell(done: int, total: int, words: str = words) -> None:
                say(f"{words}: step {done} of {total}", brief=True)  # a run is over in seconds to a minute

            followed = follow_features(spec, dataset, steps, images=images, device=device, progress=tell)
            values = {step: list(map(asdict, points)) for step, points in followed.items()}
            bench.keep(spec, _name(options), values, fresh=True)
