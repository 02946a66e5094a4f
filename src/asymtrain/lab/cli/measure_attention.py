"""`asymtrain measure attention`: where a vision transformer looks, Plain beside Asymmetric."""

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.cli import measure_options as options
from asymtrain.lab.cli.loading import loading
from asymtrain.lab.cli.screen import stderr

if TYPE_CHECKING:
    from asymtrain.lab.engine.states import State
    from asymtrain.lab.instruments.attention.result import AttentionResult
    from asymtrain.lab.runs import RunSpec


def attention(
    context: typer.Context,
    run: options.RunIds = None,
    data: options.Data = None,
    arch: options.Arch = None,
    scale: options.ScaleName = None,
    seeds: options.Seeds = None,
    epochs: options.Epochs = None,
    redundancy: options.Redundancy = None,
    alpha: options.Alpha = None,
    precision: options.Precision = None,
    at: Annotated[
        str | None, typer.Option(help="Epochs to look at, with commas; 0 is before training. Default: three of them.")
    ] = None,
    sample: Annotated[int, typer.Option(help="Test images to look at.")] = 100,
    layers: Annotated[str | None, typer.Option(help="Layers, by number from 1 or by name. Default: all.")] = None,
    query: Annotated[str, typer.Option(help="class_token, or mean: averaged over all queries.")] = "class_token",
    threshold: Annotated[
        float, typer.Option(help="A patch is covered above this multiple of the uniform value.")
    ] = 0.5,
    raw: Annotated[bool, typer.Option("--raw", help="Do not renormalise maps over the patches.")] = False,
    images: Annotated[int, typer.Option(help="Images in the figures of maps, 0 to 6.")] = 4,
    states: Annotated[Path | None, typer.Option(help="Folder that keeps weights. Default: states in --out.")] = None,
    device: options.Device = None,
    data_root: options.DataRoot = None,
    store: options.StorePath = None,
    out: options.Out = options.MEASURE_OUT,
    json: options.Json = False,
) -> None:
    """Measure how attention is spread over an image: peak, entropy, Gini, coverages, maps.

    Of stored runs (--run), or of pairs that are trained for it. A run is a function of its settings: weights that are
    not in the folder of states are trained again. Called again, it goes on with the states that are there.
    """
    with loading():
        from asymtrain.lab.engine import load_for
        from asymtrain.lab.instruments.attention.attention import check_spec, measure_states
        from asymtrain.lab.instruments.attention.page import write_attention
        from asymtrain.lab.instruments.attention.pictures import MOST_IMAGES
        from asymtrain.lab.instruments.attention.settings import AttentionSettings
    if not 0 <= images <= MOST_IMAGES:
        raise UsageError(f"--images must be between 0 and {MOST_IMAGES}, got {images}")
    asked: dict[str, Any] = {"sample": sample, "query": query, "threshold": threshold, "renormalise": not raw}
    AttentionSettings(**asked)  # what is wrong with them shows before anything else is done
    chosen = options.choose_runs(
        run=run, data=data, arch=arch, scale=scale, seeds=seeds, epochs=epochs, redundancy=redundancy, alpha=alpha,
        precision=precision, store=store, out=out, archs=("vit",),
    )  # fmt: skip
    specs = list(chosen.specs) if chosen.stored else chosen.with_plain()
    without = _without_attention(specs, run) if run else set()
    specs = [spec for spec in specs if spec not in without] or specs  # where none is left, they are refused below
    if len({(spec.dataset, spec.dataset_options) for spec in specs}) > 1:
        raise UsageError("these runs learn different data: measure those of one dataset at a time")
    dataset = load_for(specs[0], data_root)
    known = [check_spec(spec, dataset, AttentionSettings(**asked)) for spec in _one_of_each_kind(specs)]
    settings = AttentionSettings(**asked, layers=parse_layers(layers, known[0]))
    for spec in _one_of_each_kind(specs):
        check_spec(spec, dataset, settings)
    wanted = parse_epochs(at, min(spec.epochs for spec in specs))
    cache = states or out / "states"
    if without:
        archs = ", ".join(sorted({spec.arch for spec in without}))
        runs, have = ("run", "has") if len(without) == 1 else ("runs", "have")
        stderr().print(f"left out: {len(without)} {runs} of {archs}, which {have} no attention")
    try:
        found = _states(specs, wanted, device, data_root, cache)
        with options.telling("measuring") as say:
            results = measure_states(found, dataset, settings, device, keep=images, progress=_tell(say, len(found)))
    except KeyboardInterrupt:
        stderr().print(
            f"Stopped: {options.kept_states(cache, specs, wanted)}. Give the same command to go on; a run of which a "
            "state is missing is trained from its start."
        )
        raise typer.Exit(130) from None
    if not results:
        raise UsageError("every run diverged before these epochs: give smaller ones in --at")
    if chosen.stored:
        _keep(results, chosen.store)
    facts = options.common_facts(context, specs, Epochs=", ".join(map(str, wanted)))
    if lost := {spec for spec in specs if sum(one.spec == spec for one in results) < len(wanted)}:
        facts["Diverged"] = f"{len(lost)} of {len(specs)} runs, which are left out from that epoch on"
    tables, document, files = write_attention(results, dataset, out, facts, images=images)
    options.show_result(tables, document, files, json=json)


def parse_epochs(text: str | None, epochs: int) -> tuple[int, ...]:
    """Epochs from a list with commas; by default a fifth, three fifths and all of training (20, 60, 100 of 100)."""
    if text is None:
        return tuple(sorted({max(1, round(epochs * share)) for share in (0.2, 0.6, 1)}))
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) <= epochs for part in parts):
        raise UsageError(f"--at {text!r}: write epochs from 0 to {epochs} with commas, as in 0,{epochs}")
    return tuple(sorted({int(part) for part in parts}))


def parse_layers(text: str | None, known: Sequence[str]) -> tuple[str, ...]:
    """Layers from numbers (from 1) or names with commas; empty for all."""
    names = []
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        if part.isdecimal() and not 1 <= int(part) <= len(known):
            raise UsageError(f"--layers {text}: there are layers 1 to {len(known)}")
        names.append(known[int(part) - 1] if part.isdecimal() else part)
    return tuple(dict.fromkeys(names))


def _without_attention(specs: "Sequence[RunSpec]", texts: Sequence[str]) -> "set[RunSpec]":
    """The runs that `--run all` passes over: their backbone has no attention, and nobody named them."""
    from asymtrain.lab.instruments.attention.attention import has_attention

    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    if "all" not in names:
        return set()
    named = tuple(name.lower() for name in names if name != "all")
    lacking = {arch for arch in dict.fromkeys(spec.arch for spec in specs) if not has_attention(arch)}
    return {spec for spec in specs if spec.arch in lacking and not spec.id.startswith(named)}


def _tell(say: Callable[..., None], total: int) -> "Callable[[State], None]":
    numbers = count(1)

    def tell(state: "State") -> None:
        spec = state.spec
        say(f"{next(numbers)}/{total} {spec.arch} {spec.variant} seed {spec.seed}, epoch {state.epoch}: measured")

    return tell


def _one_of_each_kind(specs: "Sequence[RunSpec]") -> "list[RunSpec]":
    return list({(spec.arch, spec.arch_options): spec for spec in specs}.values())


def _states(
    specs: "Sequence[RunSpec]", epochs: Sequence[int], device: str | None, data_root: Path | None, cache: Path
) -> "list[State]":
    from asymtrain.lab.engine.states import states_at

    with options.telling("training") as say:
        return states_at(
            specs,
            epochs,
            device=device,
            data_root=data_root,
            cache=cache,
            progress=options.counting(say, "training: epoch"),
        )


def _keep(results: "Sequence[AttentionResult]", store: Path) -> None:
    """The numbers go beside the stored runs that they are of."""
    from asymtrain.lab.store import Store

    values: dict[tuple[str, str], dict[int, Any]] = {}
    for result in results:
        assert result.spec is not None, "states have a spec"
        assert result.epoch is not None, "states have an epoch"
        values.setdefault((result.spec.id, result.settings.key), {})[result.epoch] = result.to_dict()
    with Store(store) as opened:
        for (spec_id, name), found in values.items():
            opened.add_measurement(spec_id, name, found, again=True)
