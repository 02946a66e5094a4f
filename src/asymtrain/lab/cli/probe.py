"""`asymtrain probe`: will auxiliary branches help this model, where, and how strongly?"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from asymtrain.errors import UsageError
from asymtrain.lab.cli.groups import flattened
from asymtrain.lab.cli.loading import loading
from asymtrain.lab.cli.options import (
    AT,
    DATA,
    DATA_OPTION,
    MODEL,
    OUT,
    TRAINED,
    DeviceOptions,
    PageOptions,
    TrackOptions,
    above_zero,
    one_or_more,
    parse_data_options,
    parse_values,
    typed_command,
)
from asymtrain.lab.cli.screen import clock_display, show_page, stderr

if TYPE_CHECKING:
    from asymtrain.lab.probe import Probe

SHORTER = "--minutes makes one shorter, --no-pairs measures the alignment alone."


@dataclass(frozen=True)
class ModelOptions:
    """What is probed: a model by name and the data that it learns."""

    heading = TRAINED

    model: Annotated[str, MODEL]
    data: Annotated[str, DATA] = "shapes"
    data_option: Annotated[list[str] | None, DATA_OPTION] = None
    at: Annotated[list[str] | None, AT] = None
    batch: Annotated[int | None, Option(help="Images in a batch. Default: 32; for a backbone, the scale's value.")] = (
        None
    )
    image_size: Annotated[int | None, Option(help="Pixels. Default: the model's own; on a CPU at most 64.")] = None
    learning_rate: Annotated[
        float | None, Option(help="Default: 0.001; for a backbone, the scale's value.", callback=above_zero)
    ] = None
    option: Annotated[
        list[str] | None,
        Option(metavar="NAME=VALUE", help="An option of the model's builder, such as hidden_size=64; may be repeated."),
    ] = None
    scale: Annotated[str, Option(help="Of a backbone: quick (small networks) or paper (as published).")] = "quick"


@dataclass(frozen=True)
class EffortOptions:
    """How long the probe measures."""

    heading = "How much is measured"

    alphas: Annotated[str | None, Option(help="Weights to try in paired runs. Default: 0.1,1.")] = None
    no_pairs: Annotated[bool, Option("--no-pairs", help="Measure the alignment only.")] = False
    seeds: Annotated[int, Option(help="Pairs of short runs at each alpha.", callback=one_or_more)] = 3
    steps: Annotated[int, Option(help="Steps of the measurement and of each paired run.", callback=one_or_more)] = 400
    minutes: Annotated[
        float, Option(help="Time limit: runs are shortened or left out to keep it.", callback=above_zero)
    ] = 8.0
    every: Annotated[int, Option(help="Steps between measurements.", callback=one_or_more)] = 5

    def arguments(self) -> dict[str, Any]:
        alphas = () if self.no_pairs else parse_values("--alphas", self.alphas, (0.1, 1.0))
        if any(not alpha > 0 for alpha in alphas):
            raise UsageError(f"--alphas {self.alphas}: write numbers above 0; 0 is Plain, and is always run")
        counts = {name: getattr(self, name) for name in ("seeds", "steps", "minutes", "every")}
        return {"alphas": alphas, **counts}


@dataclass(frozen=True)
class ProbeOutput(PageOptions):
    """The folder of a probe."""

    out: Annotated[Path, OUT] = Path("asymtrain-probe")


@flattened
def probe(
    context: typer.Context,
    subject: ModelOptions,
    effort: EffortOptions,
    where: DeviceOptions,
    output: ProbeOutput,
    tracks: TrackOptions,
) -> None:
    """Measure on a short training whether auxiliary branches would help a model, where, and how strongly.

    No model or weights are downloaded, and no test image is used. The answer may be that the probe cannot tell.
    """
    arguments = effort.arguments()
    with loading():
        from asymtrain.lab.probe.page import probe_tables, write_probe
        from asymtrain.lab.report import current_versions, duration
        from asymtrain.lab.trackers import tracking
        from asymtrain.models import BACKBONES
    options = dict(parse_option(text) for text in subject.option or ())
    if tracks.track is not None and (effort.no_pairs or subject.model not in BACKBONES):
        raise UsageError(f"--track logs the paired runs of {', '.join(BACKBONES)}: leave it out, or --no-pairs")
    output.check()
    tracker = tracks.open(output.out)
    probe_named = probe_backbone if subject.model in BACKBONES else probe_other_model
    try:
        with clock_display(effort.minutes) as tell, tracking(tracker, lambda _: None, stderr().print) as update:
            arguments |= {"progress": tell} | ({} if tracker is None else {"on_epochs": update})
            result, facts = probe_named(subject, options, where, arguments)
    except KeyboardInterrupt:
        nothing = "nothing" if tracker is None else "no page"
        stderr().print(f"Interrupted: {nothing} was written to {output.out}, and no part of a probe is kept. {SHORTER}")
        raise
    facts = {
        "Command": typed_command(context),
        "Model": subject.model,
        "Data": subject.data,
        **facts,
        "Rule": result.advice.basis,
        "Time": duration(result.seconds),
        "Versions": ", ".join(f"{name} {version}" for name, version in current_versions().items()),
    }
    files = write_probe(output.out, result, facts)
    show_page(files, result.to_dict(), probe_tables(result), [str(result)], json=output.json)


def parse_option(text: str) -> tuple[str, Any]:
    """`depth=4` as a name and a value: a JSON value where it is one, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--option {text}: write NAME=VALUE, such as hidden_size=64")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
    except RecursionError as error:
        raise UsageError(f"--option {name}: the value is nested too deeply; write one that has a few levels") from error


def probe_backbone(
    subject: ModelOptions, options: dict[str, Any], where: DeviceOptions, arguments: Mapping[str, Any]
) -> "tuple[Probe, dict[str, str]]":
    """The probe of a backbone of this package, and what the page says of its training."""
    from asymtrain.lab.engine import load_for
    from asymtrain.lab.probe import stacks
    from asymtrain.lab.scales import get_scale, scaled_spec

    if subject.at or subject.image_size is not None:
        given = "--at" if subject.at else "--image-size"
        raise UsageError(f"{given} works only with models of your own: for a backbone write --option points=[0,2]")
    fields = {"batch": subject.batch, "learning_rate": subject.learning_rate}
    spec = scaled_spec(get_scale(subject.scale), subject.model, subject.data, **fields)
    chosen: Any = {**dict(spec.arch_options), **options}
    data: Any = {**dict(spec.dataset_options), **parse_data_options(subject.data_option)}
    spec = dataclasses.replace(spec, arch_options=chosen, dataset_options=data)
    dataset = load_for(spec, where.data_root)
    result = stacks.probe_backbone(spec, dataset, device=where.device, data_root=where.data_root, **arguments)
    rate = f"learning rate {spec.learning_rate:g}, weight decay {spec.weight_decay:g}, batch {spec.batch}"
    return result, {"Training": rate}


def probe_other_model(
    subject: ModelOptions, options: dict[str, Any], where: DeviceOptions, arguments: Mapping[str, Any]
) -> "tuple[Probe, dict[str, str]]":
    """The probe of any other model, and what the page says of its images and its training."""
    from asymtrain.lab import probe as probing
    from asymtrain.lab.data import cifar, load
    from asymtrain.lab.data.resize import resized
    from asymtrain.lab.devices import default_device
    from asymtrain.lab.probe.sources import ImageBatches
    from asymtrain.lab.sources import named_model

    named, device = named_model(subject.model, options), default_device(where.device)
    batch, learning_rate = subject.batch or 32, subject.learning_rate or 1e-3
    size = named.size_for(subject.image_size, small=device.type == "cpu")
    given = parse_data_options(subject.data_option)
    if subject.data == "shapes" or subject.data.startswith("folder:"):
        given = {"image_size": size, **given}  # drawn, or read from its files, at this size
    dataset = load(subject.data, root=where.data_root, **given)
    if "image_size" not in given and (subject.image_size or subject.data not in cifar.SOURCES):
        dataset = resized(dataset, size)
    size = dataset.train.images.shape[-1]  # CIFAR has a size of its own
    batches = ImageBatches(dataset, batch)
    result = probing.probe(
        lambda: named.build(dataset.classes, size).to(device),
        batches,
        subject.at or None,
        learning_rate=learning_rate,
        **arguments,
    )
    if size != named.image_size:
        stderr().print(f"Images of {size} pixels; the model's own size is {named.image_size}.")
    images = f"{len(dataset.train)} images of {size} pixels, {dataset.classes} classes"
    return result, {"Images": images, "Training": f"learning rate {learning_rate:g}, batch {batch}"}
