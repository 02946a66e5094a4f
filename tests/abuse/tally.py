"""What a part of the abuse found: outcomes counted, faults in words.

A part is a module of this folder with `run(seed, cases, folder) -> Tally`: it tries `cases` cases drawn from the seed,
in a folder of its own, and raises nothing for what it finds.
"""

import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

TEMPORARY = tempfile.gettempdir()  # now: a part may change it
SHOWN_EVERY = 10.0  # seconds between two lines of progress


@dataclass
class Tally:
    """Outcome -> how many cases; and one line for each fault, with what repeats it."""

    part: str
    seed: int
    counts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = self._shown = time.monotonic()

    @property
    def cases(self) -> int:
        return sum(self.counts.values())

    def add(self, outcome: str, fault: str | None = None) -> None:
        """Count a case; `fault` says what was wrong and what repeats it."""
        self.counts[outcome] = self.counts.get(outcome, 0) + 1
        if fault is not None:
            self.faults.append(" ".join(fault.split()))
            print(f"{self.part}: {self.faults[-1]}", flush=True)
        if time.monotonic() - self._shown > SHOWN_EVERY:
            self._shown = time.monotonic()
            seconds = self._shown - self._began
            print(f"{self.part}: {self.cases} cases, {len(self.faults)} faults, {seconds:.0f} s", flush=True)


def keep(folder: Path) -> Path:
    """A copy of a folder that outlives the part, for whoever looks into a fault."""
    return Path(shutil.copytree(folder, tempfile.mkdtemp(prefix="abuse-kept-", dir=TEMPORARY), dirs_exist_ok=True))
