"""Readers and writers with a planted fault, run as a script: what the abuse says of each goes to FOLDER/tallies.json.

python planted_faults.py FOLDER
"""

import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / part) for part in ("", "lab/store", "lab/executors", "lab/data")]

from abuse import damage, kills  # noqa: E402
from asymtrain.errors import UsageError  # noqa: E402

FILE = "rows.txt"
SUM = "sum.txt"


def make(folder: Path, number: int) -> None:
    lines = [str(1000 * number + row) for row in range(200)]
    (folder / FILE).write_text("\n".join(lines))
    (folder / SUM).write_text(str(sum(map(int, lines))))


def whole(folder: Path) -> damage.Answer:
    """The reader as it should be: it compares with what was written beside the rows."""
    content = (folder / FILE).read_bytes()
    try:
        lines = [int(line) for line in content.decode().split("\n")]
        if sum(lines) != int((folder / SUM).read_text()) or len(lines) != 200 or sorted(lines) != lines:
            raise ValueError
    except ValueError:
        raise UsageError(f"{folder / FILE} is damaged: restore a copy") from None
    return {str(line): line for line in lines}


def drops_rows(folder: Path) -> damage.Answer:
    lines = (folder / FILE).read_bytes().split(b"\n")
    return {str(int(line)): int(line) for line in lines if line.isdigit()}


def raises(folder: Path) -> damage.Answer:
    lines = (folder / FILE).read_bytes().split(b"\n")
    return {str(int(line)): int(line) for line in lines}


def hangs(folder: Path) -> damage.Answer:
    try:
        return whole(folder)
    except UsageError:
        while True:
            pass


def grows(folder: Path) -> damage.Answer:
    try:
        return whole(folder)
    except UsageError:
        bytearray(2 * damage.MEMORY)
        raise


def never_gives_back(place: Path, _: int) -> None:
    """Takes a row, writes it later, and never looks again at what was taken: a kill in between loses it."""
    for row in range(20):
        taken = place / f"taken-{row}"
        if not taken.exists():
            taken.touch()
            time.sleep(0.005)
            with (place / FILE).open("a") as file:
                file.write(f"{row}\n")


def read_rows(place: Path) -> kills.Rows:
    file = place / FILE
    return dict.fromkeys(file.read_text().split(), True) if file.exists() else {}


def leaves_files(place: Path, _: int) -> None:
    """A file of its own for each process, which a killed process leaves."""
    scratch = place / f"scratch-{time.monotonic_ns()}"
    scratch.touch()
    time.sleep(0.2)
    scratch.rename(place / FILE)
    (place / FILE).write_text("1 2 3")


folder = Path(sys.argv[1])
tallies = {}
damage.SECONDS, damage.MEMORY = 1, 1 << 26
for reader, cases in {whole: 12, drops_rows: 4, raises: 4, hangs: 1, grows: 2}.items():
    subject = damage.Subject("rows", 1, make, lambda place: [place / FILE], reader)
    tallies[reader.__name__] = asdict(damage.run(5, cases, folder / reader.__name__, [subject]))
scenes = [kills.Scene(writer.__name__, 1, writer, read_rows) for writer in (never_gives_back, leaves_files)]
imports = [replace(scene, share=1) for scene in kills.SCENES if scene.name == "import"]
tallies["kills"] = asdict(kills.run(5, 9, folder / "kills", scenes + imports))
(folder / "tallies.json").write_text(json.dumps(tallies))
