"""Kills, damage and random input, until something is lost, silently different or ends in a traceback.

python tests/abuse [PART ...] [--seed N] [--cases N]

Two parts run at a time, each in a process of its own. The seed is printed; with it, every case is drawn again. Exits
with 1 where there is a fault.
"""

import argparse
import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
CASES = {"kills": 120, "damage": 1200, "calls": 3000, "models": 2000}
AT_ONCE = 2
LIMIT = 1800.0  # seconds after which a part counts as hanging


def main() -> int:
    known = [part for part in CASES if (HERE / f"{part}.py").is_file()]
    parser = argparse.ArgumentParser(prog="tests/abuse", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(known)}; all where none is given")
    parser.add_argument(
        "--seed", type=int, default=os.environ.get("ABUSE_SEED"), help="draw the cases of that seed again"
    )
    parser.add_argument("--cases", type=int, help="for each part, instead of its usual number")
    parser.add_argument("--tally", type=Path, help=argparse.SUPPRESS)  # run the part here and write its tally
    given = parser.parse_args()
    if unknown := set(given.parts) - set(known):
        parser.error(f"unknown part {', '.join(sorted(unknown))}: one of {', '.join(known)}")
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    if given.tally is not None:
        (part,) = given.parts
        run_here(part, seed, given.cases or CASES[part], given.tally)
        return 0
    print(f"seed {seed}: ABUSE_SEED={seed} repeats this run", flush=True)
    rows = run_all(given.parts or known, seed, given.cases)
    show(rows)
    return int(any(tally["faults"] for tally, _ in rows))


def run_here(part: str, seed: int, cases: int, file: Path) -> None:
    for folder in (TESTS, TESTS / "lab/store", TESTS / "lab/executors", TESTS / "lab/data", TESTS / "lab/engine"):
        sys.path.append(str(folder))  # helpers of the usual tests
    with tempfile.TemporaryDirectory(prefix=f"abuse-{part}-") as folder:
        tally = importlib.import_module(f"abuse.{part}").run(seed, cases, Path(folder))
    file.write_text(json.dumps(asdict(tally)))


def run_all(parts: list[str], seed: int, cases: int | None) -> list[tuple[dict, float]]:
    """The tally of each part as a dictionary, and its seconds."""
    waiting, running, rows = list(parts), {}, {}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(search_path())}
    with tempfile.TemporaryDirectory(prefix="abuse-") as name:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                part = waiting.pop(0)
                file = Path(name) / f"{part}.json"
                command = [sys.executable, str(HERE), part, "--seed", str(seed), "--tally", str(file)]
                command += ["--cases", str(cases)] if cases else []
                process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
                running[part] = (process, file, time.monotonic())
            time.sleep(0.1)
            for part, (process, file, began) in list(running.items()):
                seconds = time.monotonic() - began
                if process.poll() is None and seconds < LIMIT:
                    continue
                process.kill()
                process.wait()
                rows[part] = (read_tally(part, seed, process.returncode, file), seconds)
                del running[part]
    return [rows[part] for part in parts]


def read_tally(part: str, seed: int, code: int, file: Path) -> dict:
    if code == 0:
        return json.loads(file.read_text())
    fault = f"the part itself ended with {code}: python tests/abuse {part} --seed {seed}"
    return {"part": part, "seed": seed, "counts": {}, "faults": [fault]}


def search_path() -> list[str]:
    return [str(TESTS.parent / "src"), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]


def show(rows: list[tuple[dict, float]]) -> None:
    print(f"\n{'part':8} {'seed':>10} {'cases':>6} {'faults':>6} {'seconds':>7}  outcomes")
    for tally, seconds in rows:
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(tally["counts"].items()))
        cases, faults = sum(tally["counts"].values()), len(tally["faults"])
        print(f"{tally['part']:8} {tally['seed']:>10} {cases:>6} {faults:>6} {seconds:>7.0f}  {outcomes}")
    for tally, _ in rows:
        for fault in tally["faults"]:
            print(f"{tally['part']}: {fault}")


if __name__ == "__main__":
    sys.exit(main())
