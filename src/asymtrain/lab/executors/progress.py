"""From what each stack reports to what a user sees: runs, epochs, images per second, time left."""

import time
from collections.abc import Callable

from asymtrain.lab.engine import Progress, StackPlan, StackProgress


class ProgressSum:
    """Adds up the reports of all stacks and passes them on."""

    def __init__(self, plans: list[StackPlan], show: Callable[[Progress], None] | None) -> None:
        self.show = show
        self.runs_total = sum(len(p.specs) for p in plans)
        self.epochs_total = sum(s.epochs for p in plans for s in p.specs)
        self.runs_done = 0
        self.latest: dict[str, StackProgress] = {}
        self.first_epochs: dict[str, int] = {}
        self.start = time.monotonic()

    def __call__(self, message: StackProgress | str) -> None:
        """A stack's progress, or a note."""
        if isinstance(message, StackProgress):
            here = message.epoch * message.runs
            # A stack that was lost may go on from an older checkpoint than it began with, or anew.
            self.first_epochs[message.stack] = min(here, self.first_epochs.get(message.stack, here))
            self.latest[message.stack] = message
        if self.show is not None:
            self.show(self.current(message if isinstance(message, str) else ""))

    def finished(self, runs: int) -> None:
        """A stack is done."""
        self.runs_done += runs
        self("")

    @property
    def epochs_here(self) -> int:
        """Epochs, summed over runs, that this execution has trained: those of a checkpoint were there before."""
        return self._epochs() - sum(self.first_epochs.values())

    def current(self, note: str = "") -> Progress:
        """The sum as it stands."""
        seconds = max(1e-9, time.monotonic() - self.start)
        images = sum(p.images for p in self.latest.values())
        done, here = self._epochs(), self.epochs_here
        left = (self.epochs_total - done) * seconds / here if here else None
        return Progress(self.runs_total, self.runs_done, self.epochs_total, done, images / seconds, left, note)

    def _epochs(self) -> int:
        return sum(p.epoch * p.runs for p in self.latest.values())
