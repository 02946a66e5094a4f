"""A page of what a store holds and of what is being trained, which keeps itself up to date.

The page is the report's, with the unfinished runs above it. It asks this program again and again whether it has changed
(an ETag says so) and replaces the parts that have. The program reads the store and the logs of begun stacks, writes
nothing, and answers on this machine alone, to those who have the token in its link.
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
PAUSE = 2.0  # seconds between two questions of a page
SHARE = 0.1  # of the time, at most, goes into making pages: the training needs the rest
ROWS = 40  # unfinished runs that are listed
CONNECTIONS = 16  # open ones, each with a thread: more are closed at once
LAST_WORD = 5.0  # seconds that an open page gets to ask for the end of the training
VERSION = "@version@"  # in watch.js


@contextmanager
def served(store: Path, *, token: bool = True) -> "Iterator[Server]":
    """The page of a store, on any port that is free, from a thread of its own."""
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
    """The state of a store and its logs at one moment. Equal states give equal pages."""

    summary: "StoreSummary | None"
    pending: "tuple[tuple[RunSpec, str], ...]"
    logs: tuple[tuple[str, int], ...]  # name and size


def read_state(store: Path, *, whole: bool = False) -> "tuple[StoreState, list[Record]]":
    """The state of a store at one moment, and its runs at the same moment where the `whole` is wanted."""
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

    begun = begun_runs(checkpoints_of(store))  # before the store: the log of a stack goes when its runs are stored
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
    """How many of the stacks that a process holds are being trained: those with an epoch, at least one.

    Others may be compiling, or wait for their turn on a GPU.
    """
    return max(sum(any(members.values()) for members in claimed), min(1, len(claimed)))


def seconds_left(
    runs: "Sequence[Run]", pending: "Sequence[RunSpec]", histories: "dict[RunSpec, list[Epoch]]", stacks: int
) -> float | None:
    """Time that the pending runs need if as many stacks train as now; None if none trains, or it is unknown.

    An epoch of a run takes as long as those of its backbone have taken so far; it is the run's share of its stack.
    """
    seconds_by_arch: dict[str, list[float]] = {}
    for spec, history in (*((run.spec, run.history) for run in runs), *histories.items()):
        seconds_by_arch.setdefault(spec.arch, []).extend(epoch.seconds for epoch in history)
    if not stacks or any(not seconds_by_arch.get(spec.arch) for spec in pending):
        return None
    means = {arch: math.fsum(seconds) / len(seconds) for arch, seconds in seconds_by_arch.items() if seconds}
    return math.fsum((spec.epochs - len(histories.get(spec, ()))) * means[spec.arch] for spec in pending) / stacks


def unfinished_table(pending: "Sequence[tuple[RunSpec, str]]", histories: "dict[RunSpec, list[Epoch]]") -> "Table":
    """The runs that have no result yet, those that have come farthest first."""
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
    """Accuracy so far of the unfinished runs of each dataset and backbone.

    As in the report where all runs of a variant differ by their seed alone; else each run is a line of its own.
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
    """The page of a store and its ETag, made again when the store has changed, and not too often."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.lock = threading.Lock()
        self.state: StoreState | None = None
        self.body, self.tag = b"", ""
        self.costs = deque([0.0] * 3, maxlen=3)  # seconds of a core that the last pages took
        self.due = self.asked_at = -math.inf
        self.last, self.delivered = False, threading.Event()

    def current(self) -> tuple[bytes, str]:
        with self.lock:
            start = time.thread_time()
            if (self.last or time.monotonic() >= self.due) and read_state(self.store)[0] != self.state:
                self.state, text = render_store(self.store)
                version = hashlib.sha256(text.encode()).hexdigest()[:16]
                self.body, self.tag = text.replace(VERSION, version, 1).encode(), f'"{version}"'
                # The least of them: the first pages take long, since they load libraries, and must not delay the next.
                self.costs.append(time.thread_time() - start)
                self.due = time.monotonic() + min(self.costs) / SHARE
            self.asked_at = time.monotonic()
            return self.body, self.tag

    def finish(self) -> None:
        """Let a page that is open see the end before the server goes."""
        with self.lock:  # one that is being made is open
            is_open = time.monotonic() - self.asked_at < 2 * PAUSE
        if is_open:
            self.last = True
            with suppress(UsageError):  # such as a store that was moved away
                self.current()  # now, so that the page need not wait for it
            self.delivered.wait(LAST_WORD)


class Server(socketserver.ThreadingTCPServer):
    """Serves one page on this machine, to few connections at the same time."""

    allow_reuse_address = True  # a port that was used a moment ago
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
    timeout = 30  # seconds for a request
    server_version, sys_version = "asymtrain", ""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if not path.startswith("/"):  # an absolute URI, which names a host of its own
            return self.answer(400, b"ask for a path, not for a whole address\n")
        # Another site may have its own name point to this machine, and would then be allowed to read the answer.
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
        except UsageError as error:  # such as a store that was moved away
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
        self.send_header("Referrer-Policy", "no-referrer")  # the address has the token
        self.send_header("X-Content-Type-Options", "nosniff")
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: a page asks every few seconds."""
