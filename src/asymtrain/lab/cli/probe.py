"""`asymtrain probe`: the short form of `asymtrain tune`."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated

import typer

from asymtrain.lab.cli.groups import flattened
from asymtrain.lab.cli.options import SETTINGS, TrackOptions, above_zero
from asymtrain.lab.cli.tune import Effort, ModelOptions, TuneOutput, find
from asymtrain.lab.cli.watch import WatchOptions


@dataclass(frozen=True)
class ShortEffort(Effort):
    """The effort of the short form, without what only the race has."""

    without = ("short", "whole", "seeds")

    minutes: Annotated[
        float | None,
        typer.Option(help="A limit, after which the same command goes on. Default: 30.", callback=above_zero),
    ] = None


@flattened
def probe(
    context: typer.Context,
    chosen: ModelOptions,
    effort: ShortEffort,
    output: TuneOutput,
    tracks: TrackOptions,
    watch: WatchOptions,
    settings: Annotated[list[str] | None, SETTINGS] = None,
) -> None:
    """Try each form of branches in one short pair: the same as tune --short, which confirms nothing."""
    find(context, chosen, dataclasses.replace(effort, short=True), output, settings, tracks, watch)
