"""`asymtrain measure alignment`: do the two objectives pull the same way?"""

from typing import Annotated

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.cli import measure_options as options
from asymtrain.lab.cli.loading import loading


def alignment(
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
    variant: Annotated[
        str | None, typer.Option(help="Branches: trained (the default), frozen, detached; several with commas.")
    ] = None,
    every: Annotated[int | None, typer.Option(help="Steps between measurements. Default: 16.")] = None,
    layers: Annotated[bool, typer.Option("--layers", help="Measure layer by layer as well.")] = False,
    device: options.Device = None,
    data_root: options.DataRoot = None,
    store: options.StorePath = None,
    out: options.Out = options.MEASURE_OUT,
    json: options.Json = False,
) -> None:
    """Measure the cosine between main and auxiliary gradients through training.

    Of stored runs (--run), or of runs that are trained for it. Called again, it goes on where it stopped.
    """
    if run and (variant is not None or every is not None or layers):
        raise UsageError("a stored run keeps what it recorded: leave out --variant, --every and --layers, or --run")
    if every is not None and every < 1:
        raise UsageError(f"--every must be 1 or more, got {every}")
    with loading():
        from asymtrain.lab.instruments.alignment.conflict import variant_specs
        from asymtrain.lab.instruments.alignment.page import write_alignment
    chosen = options.choose_runs(
        run=run, data=data, arch=arch, scale=scale, seeds=seeds, epochs=epochs, redundancy=redundancy, alpha=alpha,
        precision=precision, store=store, out=out, cosine_every=every, cosine_by="layer" if layers else None,
    )  # fmt: skip
    specs = list(chosen.specs)
    if not chosen.stored:
        names = [name.strip() for name in ("trained" if variant is None else variant).split(",") if name.strip()]
        if not names:
            raise UsageError(f"--variant {variant!r}: name trained, frozen or detached, several with commas")
        specs = [one for spec in specs for one in variant_specs(spec, names)]
    elif not any(spec.redundancy for spec in specs):
        raise UsageError("none of these runs has branches: alignment needs Asymmetric runs")
    runs = options.runs_of(chosen, specs, device=device, data_root=data_root)
    measured = [one.spec for one in runs if one.spec.redundancy]
    every_step = sorted({spec.cosine_every for spec in measured})
    facts = options.common_facts(
        context, measured, Measured=f"every {' and '.join(map(str, every_step))} steps and at the start of each epoch"
    )
    tables, document, files = write_alignment(runs, out, facts)
    options.show_result(tables, document, files, json=json)
