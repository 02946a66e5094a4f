"""One model of the zoo: attach, a training step, strip, and the properties that must hold throughout."""

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asymtrain import Branches, UsageError, attach
from asymtrain.branches import Parallel
from asymtrain.branches._layers import fits
from zoo_cases import CLASSES, Case

ALPHA = 0.3


@dataclass
class Row:
    """The result for one model. `problem` is empty if there is none."""

    library: str
    family: str
    model: str
    at: str = ""
    layers: int = 0
    layout: str = ""
    needs: str = ""
    positions: str = ""  # what pool="none" keeps: maps, tokens, or nothing
    parameters: int = 0
    main: float = math.nan
    auxiliary: float = math.nan
    seconds: float = math.nan
    problem: str = ""


class ZooError(Exception):
    """A property that does not hold."""


def require(holds: bool, problem: str) -> None:
    """Raise the problem if a property does not hold; an assert could be switched off."""
    if not holds:
        raise ZooError(problem)


def examine(case: Case, device: torch.device) -> Row:
    """Attach, train one step, strip; a row that says what failed, if anything did."""
    row = Row(case.library, case.family, case.model, needs=", ".join(f"{k}={v!r}" for k, v in case.needs.items()))
    start = time.perf_counter()
    try:
        _examine(case, device, row)
    except Exception as problem:  # one model's failure of any kind is a row of the table
        first = str(problem).strip().splitlines()[:1]
        named = "" if isinstance(problem, UsageError | ZooError) else f"{type(problem).__name__}: "
        row.problem = named + (first[0] if first else "without a message")
    row.seconds = time.perf_counter() - start
    return row


def _examine(case: Case, device: torch.device, row: Row) -> None:
    torch.manual_seed(0)
    model = case.build().to(device)
    row.parameters = sum(parameter.numel() for parameter in model.parameters())
    sample = moved(case.sample(), device)
    targets = torch.arange(len(first_tensor(sample)), device=device) % CLASSES
    initial = {key: value.clone() for key, value in model.state_dict().items()}
    before = outputs(model.eval(), sample)
    untouched = copy.deepcopy(model)
    hooks = hooks_of(model)  # after a forward, in which transformers adds its own hooks to some models

    row.at = next((glob for glob in case.at if matches(model, glob)), case.at[0])
    options = {name: value for name, value in case.needs.items() if name != "allow_skipped"}
    branches = attach(model, sample, CLASSES, at=row.at, head=Parallel(2), **options)
    branches.allow_skipped = case.needs.get("allow_skipped", False)
    row.layers = len(branches.layers)
    row.layout = " ".join(dict.fromkeys(reader.layout or "pool" for reader in branches.readers.values()))
    require(row.layout == case.layout, f"the layout was read as {row.layout}, it is {case.layout}")
    check_rows(model, branches, sample)
    row.positions = check_positions(model, branches, row.at, sample, options)
    require(list(model.state_dict()) == list(initial), "attach changed the keys of the state_dict")

    optimizer = torch.optim.SGD([*model.parameters(), *branches.parameters()], lr=1e-3)
    model.train()
    main = F.cross_entropy(logits_of(call(model, sample)), targets)
    losses = branches.losses(targets)
    check_gradients(model, branches, losses)
    auxiliary = branches.loss(targets)
    row.main, row.auxiliary = main.item(), auxiliary.item()
    require(math.isfinite(row.main), "the main loss is not finite")
    require(math.isfinite(row.auxiliary), "the auxiliary loss is not finite")
    optimizer.zero_grad()
    (main + ALPHA * auxiliary).backward()
    optimizer.step()
    branches.strip(optimizer)

    require(hooks_of(model) == hooks, "strip left hooks")
    ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    require(ids == {id(parameter) for parameter in model.parameters()}, "strip left branches in the optimizer")
    trained = model.state_dict()
    require(list(trained) == list(initial), "the state_dict has other keys after strip")
    require(any(not same(trained[key], initial[key]) for key in initial), "the step moved no weight")

    untouched.load_state_dict(trained)  # strict
    require(
        same(outputs(model.eval(), sample), outputs(untouched.eval(), sample)),
        "with trained weights the outputs differ from those of a model that never had branches",
    )
    model.load_state_dict(initial)
    require(same(outputs(model.eval(), sample), before), "with the weights from before the outputs differ from before")


def check_rows(model: nn.Module, branches: Branches, sample: Tensor | dict[str, Tensor]) -> None:
    """A branch's row belongs to one sample: if the batch is reversed, the rows are too.

    Checked only if the model's own outputs do so: in timm's GCViT, a sample's windows meet others'.
    """
    if isinstance(sample, Tensor):
        turned: Tensor | dict[str, Tensor] = sample.flip(0)
    else:
        turned = {key: value.flip(0) for key, value in sample.items()}
    with torch.no_grad():
        answers, straight = logits_of(call(model, sample)), branches.logits()
        turned_answers, back = logits_of(call(model, turned)), branches.logits()
    if close(turned_answers.flip(0), answers):
        for name in branches.layers:
            require(close(back[name].flip(0), straight[name]), f"the rows at {name} do not belong to samples")


def check_positions(
    model: nn.Module, pooled: Branches, at: str, sample: Tensor | dict[str, Tensor], needs: Mapping[str, Any]
) -> str:
    """The same branches at every position: their logits average to the pooled ones, and their loss trains the model."""
    options = {key: value for key, value in needs.items() if key != "pool"}
    one_by_one = {"pool": "none", "objective": "softmax", "shift": 0, "mask": None}
    dense = attach(model, sample, CLASSES, at=at, head=Parallel(2), **{**options, **one_by_one})
    dense.allow_skipped = pooled.allow_skipped
    with torch.no_grad():
        call(model, sample)
        rows = pooled.logits()
        try:
            logits = dense.logits()
        except UsageError as refusal:
            if "in place" not in str(refusal):
                raise
            dense.strip()
            return "changed in place"
    kinds = {dense.readers[name].positions for name in dense.layers}
    if "mask" not in str(sorted(sample) if isinstance(sample, Mapping) else "") and needs.get("pool", "mean") == "mean":
        for name, values in logits.items():
            flat = values.flatten(2).mean(2) if values.ndim > 3 else values.mean(1) if values.ndim == 3 else values
            require(close(flat, rows[name]), f"positions at {name} do not average to its rows")
    call(model, sample)
    for name, values in dense.logits().items():
        shape = values.shape[:-1] if values.ndim <= 3 else (values.shape[0], *values.shape[2:])
        targets = torch.randint(CLASSES, shape, device=values.device)
        check_gradients(model, dense, dense.losses(targets, logits={name: values}))
    dense.strip()
    return " ".join({0: "rows", 1: "tokens"}.get(kind, "maps") for kind in sorted(kinds))


def close(one: Tensor, other: Tensor) -> bool:
    """Equal except for rounding, which is coarse on a GPU in TF32."""
    return bool((one - other).abs().max() <= 2e-3 * other.abs().max())


def check_gradients(model: nn.Module, branches: Branches, losses: Mapping[str, Tensor]) -> None:
    """Each layer's own loss must reach the model: parameters inside the layer, or any if the layer has none."""
    for name, loss in losses.items():
        inside = [p for p in model.get_submodule(name).parameters() if p.requires_grad]
        wanted = inside or [p for p in model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss, wanted, retain_graph=True, allow_unused=True)
        reached = [gradient for gradient in gradients if gradient is not None and gradient.count_nonzero() > 0]
        require(bool(reached), f"the loss at {name} reaches no parameter")
        require(all(bool(g.isfinite().all()) for g in reached), f"the loss at {name} has gradients that are not finite")
    require(len(losses) > 0 and set(losses) <= set(branches.layers), "no layer gave a loss")


def matches(model: nn.Module, glob: str) -> bool:
    """Whether a glob names a module of the model."""
    return any(fits(glob, name) for name, _ in model.named_modules())


def call(model: nn.Module, sample: Tensor | Mapping[str, Tensor]) -> object:
    """The model's output on a batch."""
    return model(**sample) if isinstance(sample, Mapping) else model(sample)


def outputs(model: nn.Module, sample: Tensor | Mapping[str, Tensor]) -> list[Tensor]:
    """All tensors that the model gives, without gradients."""
    with torch.no_grad():
        return tensors_in(call(model, sample))


def logits_of(output: object) -> Tensor:
    """(B, CLASSES) from a model's output: its first tensor; hidden states (B, T, D) are averaged and cut."""
    first = tensors_in(output)[0]
    if first.ndim > 2:
        first = first.flatten(1, -2).mean(1)
    require(first.shape[-1] >= CLASSES, f"the model's output has shape {tuple(first.shape)}")
    return first[:, :CLASSES]


def tensors_in(tree: object) -> list[Tensor]:
    """Floating-point tensors of an output, in its own order."""
    if isinstance(tree, Tensor):
        return [tree] if tree.is_floating_point() else []
    parts: Sequence[object] = ()
    if isinstance(tree, Mapping):
        parts = list(tree.values())
    elif isinstance(tree, tuple | list):
        parts = tree
    return [tensor for part in parts for tensor in tensors_in(part)]


def first_tensor(sample: Tensor | Mapping[str, Tensor]) -> Tensor:
    """The tensor whose first axis is the batch."""
    return next(iter(sample.values())) if isinstance(sample, Mapping) else sample


def moved(sample: Tensor | Mapping[str, Tensor], device: torch.device) -> Tensor | dict[str, Tensor]:
    """A batch on a device."""
    if isinstance(sample, Mapping):
        return {key: value.to(device) for key, value in sample.items()}
    return sample.to(device)


def same(one: Tensor | list[Tensor], other: Tensor | list[Tensor]) -> bool:
    """Bit-equal; NaN equals NaN."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
    return len(one) == len(other) and all(map(same, one, other))


def hooks_of(model: nn.Module) -> list[tuple[str, str, int]]:
    """Every hook in a model: module, kind, count."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [
        (name, kind, len(getattr(module, kind)))
        for name, module in model.named_modules()
        for kind in kinds
        if getattr(module, kind)
    ]
