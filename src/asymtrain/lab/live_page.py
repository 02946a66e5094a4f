"""A page that shows a store's runs and those being trained, and updates itself.

The page is the report with the unfinished runs above it. It repeatedly asks this program for changes (by ETag) and
replaces the parts that changed. The program reads the store and the logs of started stacks, writes nothing, and answers
only on this machine, to requests with the token in its link.
"""

import hashlib
import math
import secrets
import socketserver
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asymtrain.errors import UsageError
from asymtrain.lab.status import RUNNING, counts_table, pending_states, run_lines
from asymtrain.lab.texts import counted

# The rest is imported where it is used: this file is read for --help too.
if TYPE_CHECKING:
    from asymtrain.lab.report.figure import Figure
    from asymtrain.lab.report.table import Table
    from asymtrain.lab.runs import Epoch, Run, RunSpec
    from asymtrain.lab.store import Record, StoreSummary

HOST = "127.0.0.1"
PAUSE = 2.0  # seconds between two requests of a page
SHARE = 0.1  # making pages may take this share of the time; the training needs the rest
ROWS = 40  # unfinished runs that are listed
CONNECTIONS = 16  # open connections, each with a thread; further ones are closed at once
LAST_WORD = 5.0  # seconds for an open page to fetch the final state
VERSION = "@version@"  # in watch.js


@contextmanager
def served(store: Path, *, token: bool = True) -> "Iterator[Server]":
    """Serve the page of a store on any free port, from a separate thread."""
    with Server(LivePage(store), 0, token=token) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True)
class StoreState:
    """A snapshot of a store and its logs. Equal states give equal pages."""

    summary: "StoreSummary | None"
    pending: "tuple[tuple[RunSpec, str], ...]"
    logs: tuple[tuple[str, int], ...]  # name and size


def read_state(store: Path, *, whole: bool = False) -> "tuple[StoreState, list[Record]]":
    """A snapshot of a store, and with `whole` also its runs at the same moment."""
    from asymtrain.lab.checkpoints import EPOCHS, checkpoints_of
    from asymtrain.lab.store import Store, store_exists

    if not store_exists(store):
        return StoreState(None, (), ()), []
    logs = []
    for log in sorted(checkpoints_of(store).glob(f"*/{EPOCHS}")):
        try:
            logs.append((log.parent.name, log.stat().st_size))
        except FileNotFoundError:
            continue  # its stack has just been stored
    with Store(store, read_only=True) as record, record.snapshot():
        state = StoreState(record.summary(), tuple(pending_states(record)), tuple(logs))
        return state, record.records() if whole else []


def render_store(store: Path) -> tuple[StoreState, str]:
    """The page of a store as HTML, and the state that it shows."""
    from asymtrain.lab.checkpoints import checkpoints_of
    from asymtrain.lab.engine.checkpoint import begun_runs
    from asymtrain.lab.report.page import plots_of
    from asymtrain.lab.report.run_report import render
    from asymtrain.lab.report.summary import summarise
    from asymtrain.lab.store.provenance import joined_versions

    begun = begun_runs(checkpoints_of(store))  # before the store: a stack's log is deleted once its runs are stored
    state, records = read_state(store, whole=True)
    runs = [record.run for record in records]
    histories = {spec: history for _, members in begun for spec, history in members.items()}
    running = {spec for spec, reason in state.pending if reason == RUNNING}
    stacks = count_training([members for _, members in begun if running & members.keys()])
    curves = unfinished_curves({spec: histories.get(spec, []) for spec, _ in state.pending})
    pending = [spec for spec, _ in state.pending]
    counts = replace(counts_table(state.summary), title="Runs") if state.summary else None
    waiting = unfinished_table(state.pending, histories)
    failures = () if state.summary is None else state.summary.failures
    page = render(
        summarise(runs),
        None,
        joined_versions([record.provenance.versions for record in records]),
        template="watch.html.j2",
        files="",
        more_figures=curves,
        growing=plots_of(curves),
        store=str(store),
        progress=progress_sentence(runs, pending, len(running), seconds_left(runs, pending, histories, stacks)),
        epochs_done=sum(run.spec.epochs for run in runs) + sum(len(histories.get(spec, ())) for spec in pending),
        epochs_total=sum(spec.epochs for spec in (*(run.spec for run in runs), *pending)),
        failures=list(run_lines("failed", [(lost.spec, " ".join(lost.reason.split())) for lost in failures])),
        unfinished=[table for table in (counts, waiting) if table and table.rows],
        pause=round(1000 * PAUSE),
    )
    return state, page


def progress_sentence(runs: "Sequence[Run]", pending: "Sequence[RunSpec]", running: int, seconds: float | None) -> str:
    from asymtrain.lab.report.table import duration

    if not runs and not pending:
        return "Nothing is stored yet: runs appear here when their training begins."
    now = f", {running:,} {'is' if running == 1 else 'are'} being trained now" if running else ""
    time_left = f"; about {duration(seconds)} left" if seconds is not None else ""
    return f"{len(runs):,} of {counted(len(runs) + len(pending), 'run')} are trained{now}{time_left}."


def count_training(claimed: "Sequence[dict[RunSpec, list[Epoch]]]") -> int:
    """The number of claimed stacks that are being trained: those with an epoch, but at least one.

    Others may be compiling, or waiting for a GPU.
    """
    return max(sum(any(members.values()) for members in claimed), min(1, len(claimed)))


def seconds_left(
    runs: "Sequence[Run]", pending: "Sequence[RunSpec]", histories: "dict[RunSpec, list[Epoch]]", stacks: int
) -> float | None:
    """The time that pending runs need if as many stacks train as now; None if none trains, or if it is unknown.

    An epoch is assumed to take as long as earlier ones of its backbone; its time is the run's share of its stack.
    """
    seconds_by_arch: dict[str, list[float]] = {}
    for spec, history in (*((run.spec, run.history) for run in runs), *histories.items()):
        seconds_by_arch.setdefault(spec.arch, []).extend(epoch.seconds for epoch in history)
    if not stacks or any(not seconds_by_arch.get(spec.arch) for spec in pending):
        return None
    means = {arch: math.fsum(seconds) / len(seconds) for arch, seconds in seconds_by_arch.items() if seconds}
    return math.fsum((spec.epochs - len(histories.get(spec, ()))) * means[spec.arch] for spec in pending) / stacks


def unfinished_table(pending: "Sequence[tuple[RunSpec, str]]", histories: "dict[RunSpec, list[Epoch]]") -> "Table":
    """The runs without a result, those with most epochs first."""
    from asymtrain.lab.report.table import Column, Table, make_rows
    from asymtrain.models import display_name

    columns = (
        *map(Column, ("Backbone", "Variant")),
        *(Column(name, "count") for name in ("Seed", "Epoch", "of")),
        Column("Training accuracy", "number"),
        Column("Validation accuracy", "number"),
        Column("Gradient cosine", "number", digits=2, signed=True),
        Column("State"),
    )
    rows = []
    for spec, reason in sorted(pending, key=lambda waiting: -len(histories.get(waiting[0], ()))):
        history = histories.get(spec, [])
        last = history[-1] if history else None
        values = (last.train_accuracy, last.validation_accuracy, last.cosine) if last else (None, None, None)
        rows.append((display_name(spec.arch), spec.variant, spec.seed, len(history), spec.epochs, *values, reason))
    more = f"{len(rows) - ROWS:,} more are not listed." if len(rows) > ROWS else ""
    return Table("unfinished", "Unfinished runs", columns, make_rows(rows[:ROWS]), more)


def unfinished_curves(histories: "dict[RunSpec, list[Epoch]]") -> "list[Figure]":
    """The accuracy so far of unfinished runs, a figure for each dataset and backbone.

    If the runs of a variant differ only in their seeds, it is the report's figure; else each run has its own line.
    """
    from asymtrain.lab.report import history_frame
    from asymtrain.lab.report.figure import VALUE, Figure, Line, Lines
    from asymtrain.lab.report.run_report import learning_curves
    from asymtrain.lab.runs import Run
    from asymtrain.models import display_name

    groups: dict[tuple[str, str], list[Run]] = {}
    for spec, history in histories.items():
        if history:
            groups.setdefault((spec.dataset, spec.arch), []).append(Run(spec, tuple(history)))
    figures = []
    for i, ((dataset, arch), runs) in enumerate(sorted(groups.items())):
        settings = {replace(run.spec, seed=0) for run in runs}
        label = f"{display_name(arch)} on {dataset}"
        if len(settings) == len({spec.variant for spec in settings}):
            figures.append(learning_curves(history_frame(runs), f"-unfinished-{i}", label))
            continue
        validated = runs[0].history[0].validation_accuracy is not None
        measure = "validation_accuracy" if validated else "train_accuracy"
        lines = tuple(
            Line(
                run.spec.variant.capitalize(),
                run.spec.variant,
                tuple(float(epoch.epoch) for epoch in run.history),
                tuple(getattr(epoch, measure) for epoch in run.history),
                thin=True,
            )
            for run in runs
        )
        panel = Lines("", "epoch", measure.replace("_", " "), lines, written=VALUE)
        figures.append(Figure(f"curve-unfinished-{i}", f"Learning curves, {label}", [panel]))
    return figures


class LivePage:
    """The page of a store and its ETag, remade when the store has changed, but not too often."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.lock = threading.Lock()
        self.state: StoreState | None = None
        self.body, self.tag = b"", ""
        self.costs = deque([0.0] * 3, maxlen=3)  # CPU seconds that the last pages took
        self.due = self.asked_at = -math.inf
        self.last, self.delivered = False, threading.Event()

    def current(self) -> tuple[bytes, str]:
        with self.lock:
            start = time.thread_time()
            if (self.last or time.monotonic() >= self.due) and read_state(self.store)[0] != self.state:
                self.state, text = render_store(self.store)
                version = hashlib.sha256(text.encode()).hexdigest()[:16]
                self.body, self.tag = text.replace(VERSION, version, 1).encode(), f'"{version}"'
                # The minimum, since the first pages are slow (they import libraries) and must not delay the next.
                self.costs.append(time.thread_time() - start)
                self.due = time.monotonic() + min(self.costs) / SHARE
            self.asked_at = time.monotonic()
            return self.body, self.tag

    def finish(self) -> None:
        """Let an open page fetch the final state before the server stops."""
        with self.lock:  # waits for a page that is being made
            is_open = time.monotonic() - self.asked_at < 2 * PAUSE
        if is_open:
            self.last = True
            with suppress(UsageError):  # for example the store was moved away
                self.current()  # now, so that the page need not wait for it
            self.delivered.wait(LAST_WORD)


class Server(socketserver.ThreadingTCPServer):
    """Serves one page on this machine, to a few connections at a time."""

    allow_reuse_address = True  # also a port that was in use a moment ago
    daemon_threads = True

    def __init__(self, page: LivePage, port: int, *, token: bool) -> None:
        self.page = page
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be used ({error.strerror}): choose another with --port, or 0 for any that is free"
            ) from error
        self.port = int(self.server_address[1])
        self.address = f"http://{HOST}:{self.port}/"
        self.query = f"token={secrets.token_hex(16)}" if token else ""
        self.url = f"{self.address}{'?' if token else ''}{self.query}"
        self.free = threading.Semaphore(CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that closed its connection."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD of the page."""

    server: Server
    timeout = 30  # seconds per request
    server_version, sys_version = "asymtrain", ""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if not path.startswith("/"):  # an absolute URI, which contains a host
            return self.answer(400, b"ask for a path, not for a whole address\n")
        # DNS rebinding: another site may point its name to this machine, and could then read the answer.
        names = {f"{name}:{self.server.port}" for name in (HOST, "localhost")}
        if len(hosts := self.headers.get_all("Host", [])) != 1 or hosts[0].lower() not in names:
            return self.answer(403, f"this page is at {self.server.address} only\n".encode())
        if path != "/":
            return self.answer(404, b"there is one page: /\n")
        if self.server.query and not secrets.compare_digest(query.encode(), self.server.query.encode()):
            return self.answer(403, b"open the link that the terminal shows: it has the token of this page\n")
        last = self.server.page.last
        try:
            body, tag = self.server.page.current()
        except UsageError as error:  # for example the store was moved away
            return self.answer(503, f"{error}\n".encode())
        if self.headers.get("If-None-Match") == tag:
            self.answer(304, b"", tag)
        else:
            self.answer(200, body, tag, "text/html")
        if last:
            self.server.page.delivered.set()

    do_HEAD = do_GET

    def answer(self, status: int, body: bytes, tag: str = "", kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.send_header("Referrer-Policy", "no-referrer")  # the address contains the token
        self.send_header("X-Content-Type-Options", "nosniff")
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: a page sends a request every few seconds."""
