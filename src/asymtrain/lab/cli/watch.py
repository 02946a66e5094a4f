"""`asymtrain watch`: a live page of what a store holds and of what is being trained."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from asymtrain.lab.cli.loading import loading
from asymtrain.lab.cli.options import LATEST, NO_TOKEN, WATCH, latest_store
from asymtrain.lab.terminal import stderr

PORT = 8400


def watch(
    store: Annotated[
        Path | None,
        typer.Argument(metavar="STORE", help=f"Record of runs, also while it is being written. {LATEST}"),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 for any that is free.")] = PORT,
    no_token: Annotated[bool, NO_TOKEN] = False,
) -> None:
    """Show a store on a live page: progress, curves and comparisons as they come, on this machine alone."""
    with loading():
        from asymtrain.lab.live_page import LivePage, Server
        from asymtrain.lab.store import Store
    store = store or latest_store()
    Store(store, read_only=True).close()  # refuses a file that is not a store before the page is served
    with Server(LivePage(store), port, token=not no_token) as server:
        stderr().print(f"Watching {store}: {server.url} (Ctrl-C ends it)")
        server.serve_forever(poll_interval=0.2)


@dataclass(frozen=True)
class WatchOptions:
    """A live page beside a command that trains."""

    watch: Annotated[bool, WATCH] = False
    no_token: Annotated[bool, NO_TOKEN] = False

    @contextmanager
    def opened(self, store: Path) -> Iterator[None]:
        """Serve the page of a store, which need not exist yet, while a block runs."""
        if not self.watch:
            yield
            return
        from asymtrain.lab.live_page import served

        with served(store, token=not self.no_token) as server:
            stderr().print(f"Watch it train: {server.url}")
            yield
            server.page.finish()
