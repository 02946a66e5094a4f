"""Runs in the tracker of your choice, as they train: TensorBoard, MLflow, Weights & Biases, Trackio.

    with tracking(open_tracker("mlflow", folder), show, warn) as update:
        for run in execute(specs, progress=update): ...      # reports carry the epochs and the runs that are new

A `Tracker` is a thin adapter of one library. Training does not know trackers and never waits for them: a separate
thread calls `begin(spec)`, `log(epoch)` for each epoch and `end(outcome)`. If a call fails, it warns once and ends.
"""

import io
import logging
import os
import queue
import shlex
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from asymtrain.errors import UsageError, error_line, how_to_install, unknown_name
from asymtrain.lab.engine import Progress
from asymtrain.lab.runs import DEFAULTS, Epoch, RunSpec
from asymtrain.lab.store.tensorboard import curve_values, group_name, open_log, run_name, write_epoch
from asymtrain.lab.texts import without_folders

PROJECT = "asymtrain"  # of MLflow, Weights & Biases and Trackio, unless the library's own variables name another
STOPPED = "stopped"  # the outcome of a run that was interrupted or failed; training it again starts a new log
# Switches off what Weights & Biases sends about this machine: name, hardware, packages, script, folders, repository.
UNSENT = {
    "host": "",
    "program": "",
    "disable_code": True,
    "disable_git": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
PATIENCE = 60.0  # seconds that a tracker gets at the end to finish writing


class Tracker(ABC):
    """One library. The other methods take what `begin` returns for a run; several runs are open at the same time.

    A tracker is made with the folder of the results; it uses its library only from the first run on.
    """

    modules: ClassVar[tuple[str, ...]]  # modules that must be installed
    where: str  # the command or address that shows the runs

    @abstractmethod
    def __init__(self, folder: Path) -> None: ...

    @abstractmethod
    def begin(self, spec: RunSpec) -> Any:
        """Open the log of a run with its settings as parameters."""

    def log(self, run: Any, epoch: Epoch) -> None:
        """Add an epoch."""
        run.log(curve_values(epoch), step=epoch.epoch)

    @abstractmethod
    def end(self, run: Any, outcome: str) -> None:
        """Close the log of a run: `finished`, `diverged` or `stopped`."""


class TensorBoard(Tracker):
    """Event files in the folder `tensorboard`."""

    modules: ClassVar[tuple[str, ...]] = ("tensorboard",)

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tensorboard"
        self.where = f"tensorboard --logdir {shlex.quote(str(self.folder))}"

    def begin(self, spec: RunSpec) -> Any:
        return open_log(spec, self.folder)

    def log(self, run: Any, epoch: Epoch) -> None:
        write_epoch(run, epoch)
        run.flush()  # else it waits for two minutes

    def end(self, run: Any, outcome: str) -> None:
        run.add_text("outcome", outcome)
        run.close()


class MLflow(Tracker):
    """Runs of the experiment `asymtrain` on the server of $MLFLOW_TRACKING_URI, else in the file `mlflow.db`."""

    modules: ClassVar[tuple[str, ...]] = ("mlflow", "sqlalchemy", "alembic")
    statuses: ClassVar[dict[str, str]] = {"finished": "FINISHED", "diverged": "FAILED", STOPPED: "KILLED"}

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow.db').absolute()}"
        self.where = f"mlflow ui --backend-store-uri {shlex.quote(self.uri)}"
        self.client: Any = None
        self.experiment = ""

    def begin(self, spec: RunSpec) -> str:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        if self.client is None:
            logging.getLogger("mlflow").setLevel(logging.WARNING)  # it logs every table that it creates
            self.folder.mkdir(parents=True, exist_ok=True)
            self.client = MlflowClient(self.uri)
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
            experiment = self.client.get_experiment_by_name(name)
            self.experiment = experiment.experiment_id if experiment else self.client.create_experiment(name)
        tags = {"spec": spec.id, "variant": spec.variant}
        run: str = self.client.create_run(self.experiment, run_name=run_name(spec), tags=tags).info.run_id
        self.client.log_batch(run, params=[Param(name, str(value)) for name, value in parameters(spec).items()])
        return run

    def log(self, run: str, epoch: Epoch) -> None:
        from mlflow.entities import Metric

        now = round(1000 * time.time())
        metrics = [Metric(curve, value, now, epoch.epoch) for curve, value in curve_values(epoch).items()]
        self.client.log_batch(run, metrics=metrics)

    def end(self, run: str, outcome: str) -> None:
        self.client.set_tag(run, "outcome", outcome)
        self.client.set_terminated(run, self.statuses[outcome])


class WeightsAndBiases(Tracker):
    """Runs of the project `asymtrain`, online for users who are logged in, else offline in the folder `wandb`."""

    modules: ClassVar[tuple[str, ...]] = ("wandb",)

    def __init__(self, folder: Path) -> None:
        self.folder = Path(os.environ.get("WANDB_DIR") or folder)
        self.where = f"wandb sync {self.folder / 'wandb'}/offline-run-*, or wandb.ai where you are logged in"

    def begin(self, spec: RunSpec) -> Any:
        import wandb

        self.folder.mkdir(parents=True, exist_ok=True)  # else wandb writes to the system's temporary folder
        settings = wandb.Settings(silent=True, console="off", **UNSENT)
        mode = os.environ.get("WANDB_MODE")
        if not mode:  # else wandb asks for a key on the terminal
            mode = "online" if wandb.login(prompt=False, verify=False) else "offline"
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            **described(spec),
            job_type=spec.variant,
            dir=str(self.folder),
            mode=mode,
            reinit="create_new",  # several runs at once
            settings=settings,
        )

    def end(self, run: Any, outcome: str) -> None:
        run.summary["outcome"] = outcome
        run.finish(exit_code=0 if outcome == "finished" else 1)


class Trackio(Tracker):
    """Runs of the project `asymtrain` in Trackio's usual location: $TRACKIO_DIR, a Space, or its cache."""

    modules: ClassVar[tuple[str, ...]] = ("trackio",)

    def __init__(self, folder: Path) -> None:
        self.where = f"trackio show --project {PROJECT}"

    def begin(self, spec: RunSpec) -> Any:
        import contextvars

        import trackio

        # Trackio ends the current run when another begins; in an empty context there is none.
        return contextvars.Context().run(
            trackio.init, PROJECT, **described(spec), embed=False, auto_log_gpu=False, auto_log_cpu=False
        )

    def end(self, run: Any, outcome: str) -> None:
        run.log({"outcome": outcome})
        run.finish()


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
    "trackio": Trackio,
}


def open_tracker(name: str, folder: Path) -> Tracker:
    """The tracker with this name; raises a `UsageError` if it is unknown or not installed."""
    if name not in TRACKERS:
        raise unknown_name("tracker", name, TRACKERS)
    if missing := [module for module in TRACKERS[name].modules if find_spec(module) is None]:
        raise UsageError(f"--track {name} needs {' and '.join(missing)}: {how_to_install(name)}")
    return TRACKERS[name](folder)


def described(spec: RunSpec) -> dict[str, Any]:
    """The name, group and settings of a run."""
    config = {"spec": spec.id, "variant": spec.variant, **parameters(spec)}
    return {"name": run_name(spec), "group": group_name(spec), "config": config}


def parameters(spec: RunSpec) -> dict[str, Any]:
    """All settings of a run, including defaults; options by their own names, paths without folders."""
    values = {name: getattr(spec, name) for name in DEFAULTS if not name.endswith("_options")}
    options = {f"arch.{name}": value for name, value in spec.arch_options}
    values |= options | {f"dataset.{name}": value for name, value in spec.dataset_options}
    return {name: without_folders(value) for name, value in values.items()}


class Tracking:
    """Passes the reports of training to a tracker, in a separate thread."""

    def __init__(self, tracker: Tracker, warn: Callable[[str], None]) -> None:
        self.tracker, self.warn = tracker, warn
        self.name = next(name for name, kind in TRACKERS.items() if isinstance(tracker, kind))
        self.reports: queue.SimpleQueue[Progress | None] = queue.SimpleQueue()
        self.open: dict[str, tuple[Any, int]] = {}  # by spec id: the run, and the last epoch that was logged
        self.began = self.failed = False
        self.thread = threading.Thread(target=self._work, name=f"track-{self.name}", daemon=True)

    def update(self, progress: Progress) -> None:
        """Take a report, from any thread; returns at once."""
        if (progress.recorded or progress.finished) and not self.failed:
            self.reports.put(progress)

    def close(self) -> None:
        """Wait until everything is logged; runs that have not ended are closed as stopped."""
        self.reports.put(None)
        self.thread.join(PATIENCE)
        if self.thread.is_alive():
            self._give_up(f"it has not answered for {PATIENCE:.0f} s")

    def _work(self) -> None:
        try:
            while progress := self.reports.get():
                for spec, epoch in progress.recorded:
                    self._log(spec, epoch)
                for run in progress.finished:
                    for epoch in run.history:  # epochs that were not reported during training
                        self._log(run.spec, epoch)
                    tracker_run, _ = self._tracked_run(run.spec)  # it may have diverged in its first epoch
                    self.tracker.end(tracker_run, run.outcome)
                    del self.open[run.spec.id]
            for tracker_run, _ in self.open.values():
                self.tracker.end(tracker_run, STOPPED)
        except Exception as error:  # libraries raise many types, and a tracker must not stop the training
            self._give_up(error_line(error))

    def _tracked_run(self, spec: RunSpec) -> tuple[Any, int]:
        if spec.id not in self.open:
            self.began = True
            self.open[spec.id] = (self.tracker.begin(spec), 0)
        return self.open[spec.id]

    def _log(self, spec: RunSpec, epoch: Epoch) -> None:
        tracker_run, last = self._tracked_run(spec)
        if epoch.epoch > last:  # a stack that was lost or halved trains its epochs again
            self.tracker.log(tracker_run, epoch)
            self.open[spec.id] = (tracker_run, epoch.epoch)

    def _give_up(self, reason: str) -> None:
        if not self.failed:
            self.failed = True
            self.warn(f"{self.name} failed ({reason}): training goes on without it")


@contextmanager
def tracking(
    tracker: Tracker | None, show: Callable[[Progress], None], say: Callable[[str], None]
) -> Iterator[Callable[[Progress], None]]:
    """Yield a function that tracks the reports it gets, and also passes them to `show`.

    `say` gets a line about where the runs are, or about a failure. Trackers print to stdout, where results go, so
    anything printed in the block is dropped.
    """
    if tracker is None:
        yield show
        return
    tracked = Tracking(tracker, say)

    def update(progress: Progress) -> None:
        show(progress)
        tracked.update(progress)

    tracked.thread.start()
    with redirect_stdout(io.StringIO()):
        try:
            yield update
        finally:
            tracked.close()
    if tracked.began and not tracked.failed:
        say(f"Tracked: {tracker.where}")
