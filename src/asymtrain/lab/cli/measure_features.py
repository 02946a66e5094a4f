"""`asymtrain measure features`: what branches do to a network's units in the first steps."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.cli import measure_options as options
from asymtrain.lab.cli.loading import loading
from asymtrain.lab.cli.screen import stderr

if TYPE_CHECKING:
    from pathlib import Path

    from asymtrain.lab.instruments.features.page import Seen
    from asymtrain.lab.runs import RunSpec


def features(
    context: typer.Context,
    data: options.Data = None,
    arch: options.Arch = None,
    scale: options.ScaleName = None,
    seeds: options.Seeds = None,
    redundancy: options.Redundancy = None,
    alpha: options.Alpha = None,
    variant: Annotated[
        str, typer.Option(help="Branches beside Plain: trained, prior, softmax, random, frozen; several with commas.")
    ] = "trained,prior",
    steps: Annotated[str, typer.Option(help="After which steps to look, with commas; 0 is before.")] = "0,2,5,10,20",
    images: Annotated[int, typer.Option(help="Test images to look with.")] = 500,
    device: options.Device = None,
    data_root: options.DataRoot = None,
    store: options.StorePath = None,
    out: options.Out = options.MEASURE_OUT,
    json: options.Json = False,
) -> None:
    """Measure what units do in the first steps: how many fall silent, how large they get, in how many directions.

    Trains these steps with the plainest loop, for each seed and kind of branches. Called again, it goes on where it
    stopped.
    """
    wanted = parse_steps(steps)
    names = [name.strip() for name in variant.split(",") if name.strip()]
    with loading():
        from asymtrain.lab.engine import default_device
        from asymtrain.lab.instruments.features.features import feature_variants
        from asymtrain.lab.instruments.features.page import write_features
    chosen = options.choose_runs(
        run=None, data=data, arch=arch, scale=scale, seeds=seeds, epochs=None, redundancy=redundancy, alpha=alpha,
        store=store, out=out,
    )  # fmt: skip
    specs = list(dict.fromkeys(one for spec in chosen.specs for one in feature_variants(spec, names)))
    found = _kept(specs, wanted, images, chosen.store)
    missing = [spec for spec in specs if spec not in found]
    place = str(default_device(device))
    try:
        found |= _follow(missing, wanted, images, place, data_root, chosen.store)
    except KeyboardInterrupt:
        there = len(_kept(specs, wanted, images, chosen.store))
        stderr().print(
            f"Stopped: {there} of {len(specs)} runs are in {chosen.store}. The same command goes on from there."
        )
        raise typer.Exit(130) from None
    facts = options.common_facts(context, specs, Steps=", ".join(map(str, wanted)), Images=str(images))
    tables, document, files = write_features({spec: found[spec] for spec in specs}, out, facts)
    options.show_result(tables, document, files, json=json)


def parse_steps(text: str) -> tuple[int, ...]:
    """Steps from a list with commas."""
    advice = "--steps {}: write steps with commas, as in 0,5,20 (0 is before training)"
    return tuple(sorted(options.comma_numbers(text, advice)))


def _name(images: int) -> str:
    return f"features of {images} images"


def _kept(specs: "list[RunSpec]", steps: tuple[int, ...], images: int, store: "Path") -> "dict[RunSpec, Seen]":
    """What the store holds of the runs, where it holds all steps."""
    from asymtrain.lab.instruments.features.features import FeatureStatistics
    from asymtrain.lab.store import Store

    if not store.exists():
        return {}
    by_id: dict[str, dict[int, tuple[FeatureStatistics, ...]]] = {}
    with Store(store, read_only=True) as opened:
        for one in opened.measurements(_name(images), [spec.id for spec in specs]):
            by_id.setdefault(one.spec_id, {})[one.epoch] = tuple(FeatureStatistics(**point) for point in one.value)
    seen = {spec: by_id.get(spec.id, {}) for spec in specs}
    return {spec: {step: by[step] for step in steps} for spec, by in seen.items() if by.keys() >= set(steps)}


def _follow(
    specs: "list[RunSpec]", steps: tuple[int, ...], images: int, device: str, data_root: "Path | None", store: "Path"
) -> "dict[RunSpec, Seen]":
    """Measure runs, and store each as it comes. Without any, the data need not be there."""
    from asymtrain.lab.engine import load_for
    from asymtrain.lab.instruments.features.features import check_steps, follow_features, variant_of
    from asymtrain.lab.store import Store

    found: dict[RunSpec, Seen] = {}
    if not specs:
        return found
    dataset = load_for(specs[0], data_root)
    check_steps(specs[0], dataset, steps)
    if not 2 <= images <= len(dataset.test.images):
        raise UsageError(f"--images must lie in 2..{len(dataset.test.images)}, got {images}")
    store.parent.mkdir(parents=True, exist_ok=True)
    with options.telling("first steps") as say:
        for number, spec in enumerate(specs, 1):
            words = f"{number}/{len(specs)} {spec.arch} {variant_of(spec)} seed {spec.seed}"
            say(words)
            tell = partial(_tell_step, say, words)
            found[spec] = follow_features(spec, dataset, steps, images=images, device=device, progress=tell)
            values = {step: [one.to_dict() for one in points] for step, points in found[spec].items()}
            with Store(store) as opened:
                opened.know([spec])  # and not asked for: it need not be trained to its end
                opened.add_measurement(spec.id, _name(images), values, again=True)
    return found


def _tell_step(say: Callable[..., None], words: str, done: int, total: int) -> None:
    """On a terminal alone: a run is over in seconds to a minute."""
    say(f"{words}: step {done} of {total}", brief=True)
