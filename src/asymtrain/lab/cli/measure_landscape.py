"""`asymtrain measure landscape`: the loss surface around a state, at several redundancies."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.cli import measure_options as options
from asymtrain.lab.cli.loading import loading
from asymtrain.lab.cli.screen import stderr

if TYPE_CHECKING:
    from asymtrain.lab.instruments import Landscape, LandscapeSettings
    from asymtrain.lab.runs import RunSpec

# The defaults below are those of LandscapeSettings: a test holds them to it, and help does not wait for torch.
# What fits into a minute on two cores, for the small networks of --scale quick. For one image a convolutional network
# or a transformer costs several times as much there as the MLP behind its first layer.
QUICK: dict[str, dict[str, int]] = {
    "mlp": {"draws": 3, "sample": 300},
    "cnn": {"draws": 3, "sample": 50, "grid": 25},
    "vit": {"draws": 3, "sample": 50, "grid": 25},
}


def landscape(
    context: typer.Context,
    run: options.RunIds = None,
    data: options.Data = None,
    arch: options.Arch = None,
    scale: options.ScaleName = None,
    seeds: options.Seeds = None,
    epochs: options.Epochs = None,
    alpha: options.Alpha = None,
    redundancy: Annotated[
        str, typer.Option("--redundancy", help="Levels to compare, with commas; 0 is Plain.")
    ] = "0,1,20,300",
    at: Annotated[int, typer.Option(help="Epoch to look at; 0 is before training, more is trained for it.")] = 0,
    loss: Annotated[str, typer.Option(help="main, or total: main + alpha * auxiliary.")] = "main",
    directions: Annotated[
        str, typer.Option(help="all (idle branches included), live, filter; several with commas.")
    ] = "all,live",
    draws: Annotated[int | None, typer.Option(help="Pairs of directions. Default: 10, quick fewer.")] = None,
    grid: Annotated[int | None, typer.Option(help="Points a side. Default: 51, quick fewer.")] = None,
    sample: Annotated[int | None, typer.Option(help="Images. Default: 500, quick fewer.")] = None,
    step: Annotated[
        float, typer.Option(help="Between grid points, in deviations of a weight's direction (unit variance).")
    ] = 4e-4,
    norm_step: Annotated[float, typer.Option(help="The same for unit-norm directions.")] = 0.04,
    filter_step: Annotated[float, typer.Option(help="The same for filter-normalised ones.")] = 0.04,
    precision: Annotated[
        str, typer.Option(help="Of the surfaces: fp32, or tf32: faster on a GPU, and rougher except for a CNN.")
    ] = "fp32",
    states: Annotated[Path | None, typer.Option(help="Folder that keeps weights. Default: states in --out.")] = None,
    device: options.Device = None,
    data_root: options.DataRoot = None,
    store: options.StorePath = None,
    out: options.Out = options.MEASURE_OUT,
    json: options.Json = False,
) -> None:
    """Measure the loss surface around a state: deviation, range, slope, how much of it is a plane.

    Before training by default, as in the paper, at redundancies 0, 1, 20 and 300, along directions over all
    parameters and over live ones. With --run, around the settings of stored runs.
    """
    levels = parse_levels(redundancy)
    with loading():
        from asymtrain.lab.instruments import LandscapeSettings
        from asymtrain.lab.instruments.landscape.page import write_landscape
    asked: dict[str, Any] = {"loss": loss, "directions": tuple(filter(None, map(str.strip, directions.split(",")))),
                             "step": step, "norm_step": norm_step, "filter_step": filter_step,
                             "precision": precision}  # fmt: skip
    sizes: dict[str, Any] = {
        name: value for name, value in (("draws", draws), ("grid", grid), ("sample", sample)) if value is not None
    }
    LandscapeSettings(**{**asked, **sizes})  # what is wrong with them shows before anything else is done
    chosen = options.choose_runs(
        run=run, data=data, arch=arch, scale=scale, seeds=seeds, epochs=epochs, redundancy=None, alpha=alpha,
        store=store, out=out, archs=("mlp",), default_seeds=(42,),
    )  # fmt: skip
    quick = not chosen.stored and scale in (None, "quick")
    groups = _by_backbone(chosen.specs)
    if any(specs[0].redundancy == 0 for specs in groups.values()) and any(levels) and (at or loss == "total"):
        raise UsageError("a Plain run has no alpha: name Asymmetric runs (Plain is level 0 of them), or --redundancy 0")
    places: dict[str, Any] = {"device": device, "data_root": data_root, "cache": states or out / "states"}
    found: dict[str, Landscape] = {}
    try:
        for number, (label, specs) in enumerate(groups.items(), 1):
            settings = LandscapeSettings(**{**asked, **(QUICK.get(specs[0].arch, {}) if quick else {}), **sizes})
            found[label] = _measure(f"{number}/{len(groups)} {label}", specs, levels, at, settings, places)
            if chosen.stored:
                _keep(found[label], chosen.store)
    except KeyboardInterrupt:
        stderr().print(_stopped(found, groups, at, places["cache"]))
        if not found:
            raise typer.Exit(130) from None
    measured = [spec for label in found for spec in groups[label]]
    facts = options.common_facts(context, measured, Epoch=str(at), Device=next(iter(found.values())).device)
    tables, document, files = write_landscape(found, out, facts)
    options.show_result(tables, document, files, json=json)
    if len(found) < len(groups):
        raise typer.Exit(130)


def parse_levels(text: str) -> tuple[int, ...]:
    """Redundancies from a list with commas."""
    return options.comma_numbers(text, "--redundancy {}: write levels with commas, as in 0,1,20 (0 is Plain)")


def _stopped(found: "dict[str, Landscape]", groups: "dict[str, list[RunSpec]]", at: int, cache: Path) -> str:
    """What Ctrl-C leaves: whole landscapes are shown and written, draws of an unfinished one are not."""
    done = f"Stopped: {len(found)} of {len(groups)} landscapes are measured"
    rest = f", and trained states stay in {cache}" if at and cache.exists() else ""
    return f"{done}; of an unfinished one no draw is kept{rest}. The same command measures all of them again."


def _by_backbone(specs: "tuple[RunSpec, ...]") -> "dict[str, list[RunSpec]]":
    """Specs that differ in their seed and redundancy alone, by a label; each seed once.

    Plain is one of the levels of the Asymmetric run of its seed, which knows the settings of both.
    """
    from asymtrain.lab.report.measurement import spec_labels

    groups: dict[RunSpec, dict[int, RunSpec]] = {}
    covered = {spec.plain() for spec in specs if spec.redundancy}
    for spec in specs:
        if spec not in covered:
            same = dataclasses.replace(spec, seed=0, redundancy=min(1, spec.redundancy))
            groups.setdefault(same, {})[spec.seed] = spec
    labels: dict[str, list[RunSpec]] = {}
    for same, members in groups.items():
        alike = [one for one in groups if (one.arch, one.dataset) == (same.arch, same.dataset)]
        _, *differing = spec_labels(alike)[alike.index(same)].split(", ")
        labels[", ".join([f"{same.arch} on {same.dataset}", *differing])] = list(members.values())
    return labels


def _measure(
    label: str,
    specs: "list[RunSpec]",
    levels: tuple[int, ...],
    at: int,
    settings: "LandscapeSettings",
    places: dict[str, Any],
) -> "Landscape":
    from asymtrain.lab.engine import load_for
    from asymtrain.lab.instruments import measure_landscape
    from asymtrain.lab.instruments.landscape.levels import states_of_redundancies

    with options.telling(f"{label}: states") as say:
        say(f"{label}: states at epoch {at}", brief=not at)  # training them takes a while
        trained = options.counting(say, f"{label}: training epoch")
        found = states_of_redundancies(specs, levels, at, **places, progress=trained)
        dataset = load_for(specs[0], places["data_root"])
        drawn = options.counting(say, f"{label}: draw")
        return measure_landscape(found, dataset, settings, device=places["device"], progress=drawn)


def _keep(found: "Landscape", store: Path) -> None:
    """The numbers go beside the stored runs that they are of; other levels are in the document alone."""
    from asymtrain.lab.store import Store

    levels = {(row.level.spec_id, row.level.epoch) for row in found.rows}
    with Store(store) as opened:
        known = {run.spec.id for run in opened.runs()}
        for spec_id, epoch in sorted(levels):
            if spec_id in known:
                values = {epoch: found.of_state(spec_id, epoch)}
                opened.add_measurement(spec_id, found.settings.key, values, again=True)
