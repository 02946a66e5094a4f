"""`asymtrain measure trajectory`: how training went, Plain beside Asymmetric."""

from typing import Annotated

import typer

from asymtrain.errors import UsageError
from asymtrain.lab.cli import measure_options as options
from asymtrain.lab.cli.loading import loading

QUICK_SEEDS = (42, 43)  # pairs of three backbones: under a minute on two cores, which three seeds would exceed


def trajectory(
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
    tolerance: Annotated[
        float, typer.Option(help="Share of the best validation accuracy within which a run has converged.")
    ] = 0.01,
    gap_at: Annotated[
        str | None, typer.Option(help="Epochs of the generalisation gap, with commas. Default: early, half, last.")
    ] = None,
    device: options.Device = None,
    data_root: options.DataRoot = None,
    store: options.StorePath = None,
    out: options.Out = options.MEASURE_OUT,
    json: options.Json = False,
) -> None:
    """Measure convergence, generalisation gap and where the learning curves part.

    Of stored runs (--run), or of pairs that are trained for it. Called again, it goes on where it stopped.
    """
    if not 0 <= tolerance < 1:
        raise UsageError(f"--tolerance is a share between 0 and 1, got {tolerance:g}")
    gap_epochs = None if gap_at is None else parse_epochs(gap_at)
    with loading():
        from asymtrain.lab.instruments.trajectory.page import write_trajectory
        from asymtrain.lab.instruments.trajectory.trajectory import compare_trajectories
    chosen = options.choose_runs(
        run=run, data=data, arch=arch, scale=scale, seeds=seeds, epochs=epochs, redundancy=redundancy, alpha=alpha,
        precision=precision, store=store, out=out, default_seeds=QUICK_SEEDS if (scale or "quick") == "quick" else None,
    )  # fmt: skip
    specs = list(chosen.specs) if chosen.stored else chosen.with_plain()
    for spec in specs:
        if gap_epochs and max(gap_epochs) > spec.epochs:
            raise UsageError(f"--gap-at {gap_at}: run {spec.id} has {spec.epochs} epochs")
    runs = options.runs_of(chosen, specs, device=device, data_root=data_root)
    found = compare_trajectories(runs, tolerance=tolerance, gap_epochs=gap_epochs)
    facts = options.common_facts(context, [one.spec for one in runs])
    tables, document, files = write_trajectory(found, out, facts, tolerance=tolerance)
    options.show_result(tables, document, files, json=json)


def parse_epochs(text: str) -> tuple[int, ...]:
    """Epochs from a list with commas."""
    return options.comma_numbers(text, "--gap-at {}: write epochs from 1 with commas, as in 10,50,100", least=1)
