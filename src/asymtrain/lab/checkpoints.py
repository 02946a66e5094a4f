"""Where stacks that are being trained lie on disk, and which runs are in them; read without torch.

The folder beside a store has a folder for each stack. What is in it is written by `engine/checkpoint.py`.
"""

import json
from pathlib import Path

from asymtrain.errors import UsageError
from asymtrain.lab.runs import RunSpec

PLAN, STATE, CLOSED = "plan.json", "state.safetensors", ".closed"


def checkpoints_of(store: Path) -> Path:
    return store.with_name(f"{store.name}.checkpoints")


def checkpointed(store: Path) -> set[str]:
    """Ids of the runs whose stack was interrupted and left a checkpoint; the next training of them goes on from it."""
    stacks = begun_stacks(checkpoints_of(store))
    return {spec.id for folder, specs, _ in stacks if (folder / STATE).is_file() for spec in specs}


def begun_stacks(folder: Path) -> list[tuple[Path, tuple[RunSpec, ...], str]]:
    """Stacks that were begun in this folder and not closed, oldest name first: folder, members and strategy of each."""
    stacks = []
    for file in sorted(folder.glob(f"*/{PLAN}")):
        if file.parent.suffix == CLOSED:
            continue
        try:
            values = json.loads(file.read_text())
            stacks.append((file.parent, tuple(map(RunSpec.from_dict, values["specs"])), values["path"]))
        except FileNotFoundError:
            continue  # another process has just closed it
        except (ValueError, KeyError, TypeError) as problem:
            raise UsageError(f"{file} is not a plan of this version ({problem}): move {file.parent} away") from problem
    return stacks
