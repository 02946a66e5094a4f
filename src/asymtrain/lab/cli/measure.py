"""`asymtrain measure`: the instruments, on stored runs or on fresh ones. One file for each."""

import typer

from asymtrain.lab.cli.measure_alignment import alignment
from asymtrain.lab.cli.measure_attention import attention
from asymtrain.lab.cli.measure_features import features
from asymtrain.lab.cli.measure_landscape import landscape
from asymtrain.lab.cli.measure_trajectory import trajectory

measure = typer.Typer(name="measure")


@measure.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    """Look at training: gradient alignment, trajectories, loss landscape, attention, features."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


measure.command("alignment")(alignment)
measure.command("trajectory")(trajectory)
measure.command("landscape")(landscape)
measure.command("attention")(attention)
measure.command("features")(features)
