"""Which specs share a stack, how large stacks are, and which path trains them.

Two specs share a stack where they differ only in what a stack keeps for each run: seed, learning rate, weight
decay, alpha and its schedule, label noise and smoothing, split seed, and whether the run is Plain. The plan depends
on the specs and on the kind of device; nothing is timed, so the same specs give the same stacks and the same numbers.
"""

import dataclasses
import hashlib
from dataclasses import dataclass

import torch

from asymtrain.errors import UsageError
from asymtrain.lab.engine.gradients import Strategy
from asymtrain.lab.engine.memory import runs_that_fit
from asymtrain.lab.runs import AUXILIARY, RunSpec
from asymtrain.models import BACKBONES

# What a stack holds as a vector over runs.
_PER_RUN = (
    "seed", "learning_rate", "weight_decay", "alpha", "alpha_schedule", "label_noise", "label_smoothing", "split_seed",
)  # fmt: skip
# What only the auxiliary side reads: a Plain run fits into a stack whatever these are. The interval of measured
# steps is not among them, since Plain's gradient norm is measured at its own.
_AUXILIARY = tuple(name for name in AUXILIARY if name != "cosine_every")

# Runs in one stack, where more no longer pays: benchmarks/stack.py prints the curve.
_MOST_ON_GPU = {"batched": 128, "side_by_side": 20}
_MOST_ON_CPU = {"batched": 6, "side_by_side": 1}
_MOST_TOKENS = 20  # runs of a backbone that works on token sequences: each is a large batch already


@dataclass(frozen=True)
class StackPlan:
    """Specs that train together, and by which path."""

    specs: tuple[RunSpec, ...]
    path: Strategy

    @property
    def id(self) -> str:
        """Names the stack by its members: the same members, the same id."""
        text = ",".join(sorted(spec.id for spec in self.specs))
        return hashlib.sha256(f"{self.path}:{text}".encode()).hexdigest()[:16]

    def halves(self) -> tuple["StackPlan", "StackPlan"]:
        """Two stacks of half the size, for a device that could not hold this one."""
        if len(self.specs) < 2:
            raise UsageError(
                f"one run of {self.specs[0].arch} does not fit into this device's memory: "
                "take a smaller batch, a smaller backbone or a larger device"
            )
        middle = len(self.specs) // 2
        return (
            dataclasses.replace(self, specs=self.specs[:middle]),
            dataclasses.replace(self, specs=self.specs[middle:]),
        )


def plan(
    specs: list[RunSpec], device: torch.device, *, workers: int = 1, most_runs: int | None = None
) -> list[StackPlan]:
    """Stacks for all specs, in the order of their first member.

    `workers` is how many stacks can train at the same time; `most_runs` lowers the size of a stack.
    """
    groups: dict[tuple[object, ...], list[RunSpec]] = {}
    for spec in dict.fromkeys(specs):
        groups.setdefault(_key(spec), []).append(spec)
    stacks, order = [], {spec: i for i, spec in enumerate(specs)}
    for joined in _join_plain(groups):
        members = sorted(joined, key=order.__getitem__)  # pairs stay together: an early end leaves whole ones
        path = path_for(members[0].arch, device)
        size = min(_most(members[0].arch, path, device), most_runs or len(members))
        if device.type == "cuda":
            widest = max(members, key=lambda spec: spec.redundancy)  # a Plain member has no branches to count
            size = min(size, runs_that_fit(widest, device))
        count = max(-(-len(members) // size), min(workers, len(members)))
        stacks += [StackPlan(tuple(part), path) for part in _even_parts(members, count)]
    return stacks


def path_for(arch: str, device: torch.device) -> Strategy:
    """The faster path of a backbone on a kind of device, as benchmarks/stack.py measures it.

    Matrix products batch over runs; convolutions do not (each run's is large enough by itself). On a CPU only the
    MLP is small enough for its products to be bound by calls rather than by arithmetic.
    """
    batches_well = BACKBONES[arch].batches_well if device.type == "cuda" else BACKBONES[arch].bound_by_calls
    return "batched" if batches_well else "side_by_side"


def _most(arch: str, path: Strategy, device: torch.device) -> int:
    if device.type != "cuda":
        return _MOST_ON_CPU[path]
    return _MOST_ON_GPU[path] if BACKBONES[arch].bound_by_calls else min(_MOST_TOKENS, _MOST_ON_GPU[path])


def _key(spec: RunSpec) -> tuple[object, ...]:
    fields = {name: getattr(spec, name) for name in spec.__dataclass_fields__ if name not in _PER_RUN}
    # Only live branches are in a stack: with one live branch, N and the draw only choose its initial weights.
    fields.pop("draw")
    if spec.activation == "last":
        fields["redundancy"] = min(1, spec.redundancy)
    # Equal few-shot sizes give equal training-set sizes; a seed of its own only moves the members.
    return tuple(fields.items())


def _join_plain(groups: dict[tuple[object, ...], list[RunSpec]]) -> list[list[RunSpec]]:
    """Let Plain runs train in the stack of an Asymmetric group that shares everything else."""
    plain = {key: members for key, members in groups.items() if members[0].redundancy == 0}
    joined = []
    for key, members in groups.items():
        if members[0].redundancy == 0:
            continue
        partner = next((other for other in plain if _backbone_side(other) == _backbone_side(key)), None)
        joined.append([*members, *(plain.pop(partner) if partner else [])])
    return joined + list(plain.values())


def _backbone_side(key: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(item for item in key if isinstance(item, tuple) and item[0] not in _AUXILIARY)


def _even_parts(members: list[RunSpec], count: int) -> list[list[RunSpec]]:
    """Parts whose sizes differ by at most one: fewer shapes to compile, and no straggler."""
    size, larger = divmod(len(members), count)
    parts, at = [], 0
    for i in range(count):
        end = at + size + (i < larger)
        parts.append(members[at:end])
        at = end
    return parts
