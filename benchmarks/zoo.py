"""Do `attach`, a training step and `strip` work on the models people have?

    python benchmarks/zoo.py                         # every model of timm, torchvision and transformers
    python benchmarks/zoo.py --library transformers --family bert vit --out zoo.csv
    python benchmarks/zoo.py --out zoo.csv --resume  # continues a stopped run
    python benchmarks/zoo.py --device cuda --out zoo.csv --markdown zoo.md

Models have random weights, and nothing is downloaded. For each: branches at the layers of a glob, one training step of
both objectives, strip. It passes if both losses are finite, every layer's loss alone reaches parameters of that layer,
the model's keys never change, no hook and no optimizer entry is left, and the outputs in eval mode are bit-equal to
those of a model that never had branches: with the weights from before, and with the trained ones.
"""

import argparse
import csv
import importlib
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import torch

from zoo_cases import TIMM, TORCHVISION, TRANSFORMERS, Case
from zoo_examine import Row, examine


def show(row: Row) -> str:
    """A line of the table."""
    layout = f"{row.layout} ({row.needs})" if row.needs else row.layout
    verdict = f"FAILED: {row.problem}" if row.problem else "passed"
    return (
        f"{row.library:12} {row.family:18} {row.model:35} {row.at:36} {row.layers:3} {layout:26} "
        f"{row.parameters / 1e6:6.2f}M {row.main:5.2f} {row.auxiliary:5.2f} {row.seconds:5.1f} s  {verdict}"
    )


def markdown(rows: Sequence[Row], made_with: str) -> str:
    """The table as `results/benchmarks/zoo.md` has it."""
    passed = sum(not row.problem for row in rows)
    lines = [
        f"{passed} of {len(rows)} passed with {made_with}.",
        "",
        "| library | family | model | layers | layout | needs | positions | result |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        layers = f"`{row.at}` ({row.layers})"
        needs = f"`{row.needs}`" if row.needs else ""
        result = f"failed: {row.problem}" if row.problem else "passed"
        cells = [row.library, row.family, f"`{row.model}`", layers, row.layout, needs, row.positions, result]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """All columns, one line for each model."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def read_csv(path: Path) -> dict[tuple[str, str, str], Row]:
    """The rows that `write_csv` wrote, by library, family and model."""
    kinds = {"layers": int, "parameters": int, "main": float, "auxiliary": float, "seconds": float}
    with path.open(newline="") as file:
        read = [{name: kinds.get(name, str)(cell) for name, cell in line.items()} for line in csv.DictReader(file)]
    rows = [Row(**cells) for cells in read]
    return {(row.library, row.family, row.model): row for row in rows}


def versions(libraries: Sequence[str], device: torch.device) -> str:
    """The versions and the device behind the table."""
    named = [f"{library} {importlib.import_module(library).__version__}" for library in libraries]
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return ", ".join([*named, f"torch {torch.__version__.partition('+')[0]}", kind])


def importable(library: str) -> bool:
    """Whether a library can be imported here; prints why not."""
    try:
        importlib.import_module(library)
    except Exception as problem:  # a broken torchvision under timm raises a RuntimeError
        print(f"{library} is left out, it does not import here: {str(problem).splitlines()[0]}", file=sys.stderr)
        return False
    return True


def chosen_cases(libraries: Sequence[str], families: Sequence[str]) -> list[Case]:
    """The cases of these libraries and families (all if none is named)."""
    cases = [case for case in (*TIMM, *TORCHVISION, *TRANSFORMERS) if case.library in libraries]
    unknown = sorted(set(families) - {case.family for case in cases})
    if unknown:
        raise SystemExit(
            f"no model of the family {unknown[0]}: there are {', '.join(dict.fromkeys(case.family for case in cases))}"
        )
    return [case for case in cases if not families or case.family in families]


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    all_libraries = ["timm", "torchvision", "transformers"]
    options.add_argument("--library", nargs="+", choices=all_libraries, default=all_libraries)
    options.add_argument("--family", nargs="+", default=[], help="only these; for transformers, model types")
    options.add_argument("--out", type=Path, help="a CSV file for all columns")
    options.add_argument("--resume", action="store_true", help="keep the rows that --out has already")
    options.add_argument("--markdown", type=Path, help="a file for the table, as results/benchmarks/zoo.md")
    chosen = options.parse_args(arguments)
    device = torch.device(chosen.device)
    # Two forwards with the same weights must be bit-equal, so both must use the same algorithm.
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False

    libraries = [library for library in chosen.library if importable(library)]
    if "transformers" in libraries:
        # Tiny vocabularies lack the special tokens that configurations name.
        importlib.import_module("transformers").logging.set_verbosity_error()
    made_with = versions(libraries, device)
    print(made_with)
    rows: list[Row] = []
    earlier = read_csv(chosen.out) if chosen.resume and chosen.out and chosen.out.exists() else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries' own warnings
        for case in chosen_cases(libraries, chosen.family):
            rows.append(earlier.get((case.library, case.family, case.model)) or examine(case, device))
            print(show(rows[-1]), flush=True)
            if chosen.out:
                write_csv(rows, chosen.out)
    failed = sum(bool(row.problem) for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} passed, {sum(row.seconds for row in rows):.0f} s")
    if chosen.markdown:
        chosen.markdown.write_text(markdown(rows, made_with))
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
