"""`asymtrain run`: train Plain and Asymmetric, compare, report."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.cli.loading import loading
from asymtrain.lab.cli.options import (
    DEFAULT_OUT,
    STORE_NAME,
    parse_archs,
    parse_seeds,
    parse_settings,
    seeds_option,
    typed_command,
)
from asymtrain.lab.cli.screen import progress_display, show_json, show_summary, stderr

if TYPE_CHECKING:
    from asymtrain.lab.report import Summary
    from asymtrain.lab.runs import Run, RunSpec


def run(
    context: typer.Context,
    data: Annotated[str | None, typer.Option(help="shapes, cifar10, cifar100 or folder:PATH.")] = None,
    arch: Annotated[list[str] | None, typer.Option(help="mlp, cnn, vit; several with commas. Default: all.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Weight of the auxiliary objective.")] = None,
    redundancy: Annotated[int | None, typer.Option(help="Branches at each point.")] = None,
    seeds: Annotated[str | None, seeds_option] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of each run.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="A control, such as signal=noise or objective=softmax; repeat it. An unknown one lists all.",
        ),
    ] = None,
    scale: Annotated[str, typer.Option(help="quick: small nets, minutes on a CPU. paper: as published.")] = "quick",
    out: Annotated[Path, typer.Option(help="Folder of the report, the rows and the store.")] = DEFAULT_OUT,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    data_root: Annotated[Path | None, typer.Option(help="Where downloaded data lies.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:1. Default: the fastest there is.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, tf32 or bf16.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after this time; the next call goes on.")] = None,
    store: Annotated[Path | None, typer.Option(help=f"Record of runs. Default: {STORE_NAME} in the folder.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train again what the store holds already.")] = False,
    executor: Annotated[str, typer.Option(help="local, or ray for a cluster.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster. Default: one on this machine.")] = None,
) -> None:
    """Compare training without branches (Plain) and with them (Asymmetric).

    With no options: three small backbones learn procedural shapes with three seeds, in under two minutes on two cores.
    Called again, it goes on where it stopped.
    """
    if redundancy is not None and redundancy < 1:
        raise UsageError(f"--redundancy must be 1 or more, got {redundancy}")
    if minutes is not None and not minutes > 0:
        raise UsageError(f"--minutes must be above 0, got {minutes:g}")
    with loading():
        from asymtrain.lab.cli.provenance import versions_in
        from asymtrain.lab.engine import load_for
        from asymtrain.lab.report import check_folder, write_report
        from asymtrain.lab.runs import pairs
        from asymtrain.lab.scales import get_scale, scaled_spec
    chosen = get_scale(scale)
    wanted = parse_seeds(seeds) if seeds is not None else chosen.seeds
    fields = {"alpha": alpha, "redundancy": redundancy, "epochs": epochs, "precision": precision}
    controls = parse_settings(settings)
    bases = [scaled_spec(chosen, name, data, **fields, **controls) for name in parse_archs(arch)]
    specs = [spec for base in bases for spec in pairs(base, wanted)]
    check_folder(out)
    place = store or out / STORE_NAME
    check_folder(place.parent)
    load_for(specs[0], data_root)  # data that are missing or broken show before anything is written
    options = {"executor": executor, "address": address, "device": device, "minutes": minutes}
    runs, interrupted, going_on = train(specs, store=place, fresh=fresh, data_root=data_root, **options)
    summary = write_report(runs, out, typed_command(context), versions_in(place, runs))
    if json:
        show_json(document(summary, specs, out, place))
    else:
        show_summary(summary)
    remarks(len(runs), specs, out, place, interrupted, going_on)
    if interrupted:
        raise typer.Exit(130)


def train(specs: "list[RunSpec]", *, store: Path, fresh: bool = False, **options: Any) -> "tuple[list[Run], bool, str]":
    """Finished runs, whether Ctrl-C ended the training before all were, and how to go on."""
    with loading():
        from asymtrain.lab import executors

    runs: list[Run] = []
    wanted = {spec.id for spec in specs}
    there, interrupted = set() if fresh else _stored(store, wanted), False
    with progress_display() as display:
        if there:
            nothing = ": nothing is left to train" if there == wanted else ""
            display.console.print(f"{len(there)} of {len(wanted)} runs are in {store} already{nothing}.")
        try:
            for finished in executors.execute(specs, store=store, fresh=fresh, progress=display.update, **options):
                runs.append(finished)
                if finished.spec.id not in there:
                    display.finished(finished, len(runs), len(wanted))
        except KeyboardInterrupt:
            interrupted = True
    return runs, interrupted, display.going_on(options.get("minutes"), fresh=fresh)


def _stored(store: Path, ids: set[str]) -> set[str]:
    from asymtrain.lab.store import Store

    if not store.exists():
        return set()
    with Store(store, read_only=True) as opened:
        return opened.finished(ids)


def document(summary: "Summary", specs: "list[RunSpec]", out: Path, store: Path) -> dict[str, Any]:
    """The result as JSON values."""
    from asymtrain.lab.report import FILES

    pairs_by_label = zip(summary.comparisons, summary.pairs, strict=True)
    return {
        "runs": {"wanted": len(specs), "finished": len(summary.rows)},
        "comparisons": [
            {**row, "seeds": [_seed(pair) for pair in group.to_dict("records")]} for row, group in pairs_by_label
        ],
        "files": {**{kind: str(out / name) for kind, name in FILES.items()}, "store": str(store)},
    }


def _seed(pair: dict[Any, Any]) -> dict[str, Any]:
    return {
        "seed": int(pair["seed"]),
        "plain": float(pair["plain"]),
        "asymmetric": float(pair["asymmetric"]),
        "plain_id": pair["plain_id"],
        "asymmetric_id": pair["asymmetric_id"],
    }


def remarks(done: int, specs: "list[RunSpec]", out: Path, store: Path, interrupted: bool, going_on: str) -> None:
    """What failed and why, how to go on, and where the report is."""
    from asymtrain.lab.report import FILES
    from asymtrain.lab.store import Store

    console, wanted = stderr(), {spec.id for spec in specs}
    with Store(store, read_only=True) as opened:
        failures = [failure for failure in opened.failures() if failure.spec.id in wanted]
    for reason, count in Counter(failure.reason for failure in failures).items():
        console.print(f"{count} run{'s' if count > 1 else ''} failed: {reason}")
    if done < len(wanted):
        opening = "Stopped" if interrupted else "Not finished"
        console.print(f"{opening}: {done} of {len(wanted)} runs are in {store}. {going_on}")
    console.print(f"Report: {out / FILES['report']}")
