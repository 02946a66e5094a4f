"""`asymtrain probe`: the short form of `asymtrain tune`."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer import Option

from asymtrain.errors import UsageError
from asymtrain.lab.cli.groups import flattened
from asymtrain.lab.cli.options import SETTINGS, TrackOptions, above_zero
from asymtrain.lab.cli.tune import Effort, ModelOptions, TuneOutput, find
from asymtrain.lab.cli.watch import WatchOptions


def _gone(now: str) -> Any:
    """An option that the short form does not have, which says what to give instead."""

    def refuse(parameter: typer.CallbackParam, value: Any) -> Any:
        if value:
            raise UsageError(f"probe is the short form of tune, without {parameter.opts[0]}: {now}")
        return value

    return Option(hidden=True, callback=refuse)


@dataclass(frozen=True)
class ShortEffort(Effort):
    """The effort of the short form. What only the race has is refused."""

    minutes: Annotated[
        float | None, Option(help="A limit, after which the same command goes on. Default: 30.", callback=above_zero)
    ] = None
    short: Annotated[bool, Option("--short", hidden=True)] = False  # as `tune` has it
    whole: Annotated[bool, _gone("asymtrain tune --whole trains all epochs")] = False
    seeds: Annotated[int | None, _gone("asymtrain tune confirms on fresh seeds")] = None


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
