"""`attach`: put temporary branches on a model, or say in one line why not and what to do instead."""

import operator
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from asymtrain._moved import renamed_arguments
from asymtrain.branches._axes import BatchEvidence, Sight, infer_layout
from asymtrain.branches._capture import carries_branches
from asymtrain.branches._core import Branches
from asymtrain.branches._dry_run import dry_run
from asymtrain.branches._heads import Activation, BranchReduction, Head, Initialization, LossFn, Settings, draw_branches
from asymtrain.branches._nested import Selector
from asymtrain.branches._places import Where, by_place, find_places
from asymtrain.branches._pooling import Pool, Reader
from asymtrain.errors import UsageError, error_line, unknown_name
from asymtrain.objectives import ClassReduction

_MOST_WEIGHTS = 1 << 36  # more than any machine's memory holds


@renamed_arguments(over_classes="class_reduction", combine="branch_reduction", draw="initialization")
def attach(
    model: nn.Module,
    at: Where,
    sample: object,
    classes: int,
    redundancy: int = 1,
    activation: Activation = "last",
    *,
    branch_reduction: BranchReduction = "sum",
    initialization: Initialization = "independent",
    pool: Pool | Mapping[str, Pool] = "mean",
    layout: str | Mapping[str, str] | None = None,
    output: Selector | Mapping[str, Selector] | None = None,
    class_reduction: ClassReduction = "mean",
    loss_fn: LossFn | None = None,
    bias: Tensor | None = None,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    allow_skipped: bool = False,
) -> Branches:
    """Put `redundancy` linear branches to `classes` logits on each place of a model; the model stays as it is.

    Attach before torch.compile and before DDP.

    Args:
        model: any module. Its parameters, buffers and state_dict do not change.
        at: module names, globs (`*` within one dotted segment, `**` across) or modules of the model.
        sample: what the model is called with: a tensor, a tuple of arguments, a dict of keyword arguments. One dry
            run on it finds the widths.
        classes: the number of logits of a branch.
        redundancy: the number of branches at each place.
        activation: which branch gives a loss: the `last`, `all`, one at `random` or in `cycle`, a new one in each
            forward with gradients.
        branch_reduction: with activation `all`, whether a place's loss is the sum or the mean over its branches.
        initialization: of the weights, `independent` of the redundancy, or in `sequence` from one generator.
        pool: `mean` over positions, the `class_token` (position 0), or a function from the feature to (B, D).
        layout: a letter for each axis of the feature (B batch, C or D features, others positions), where it cannot
            be told: "BD", "BCHW", "BTD", "TBD", "BHWC".
        output: which part of a place's output is the feature: an index, a key, or a function. Otherwise the first
            floating-point tensor in it.
        class_reduction: mean or sum over classes in the sigmoid loss.
        loss_fn: another objective, from logits (B, C) and the targets to a scalar.
        bias: what each branch's bias begins with, one value for each class (C,), for example the logits of the class
            shares; None for branches without bias.
        seed: of the initial weights and of the random choice. torch's global random state is not used.
        dtype: of the weights; otherwise float32, or float64 in a model of float64.
        allow_skipped: whether a place may be skipped in a forward. Its loss is then left out.

    `pool`, `layout` and `output` also take a dict from place names (or globs) to values.
    """
    classes, redundancy = _count("classes", classes), _count("redundancy", redundancy)
    for option, value, known in (
        ("activation", activation, Activation),
        ("branch_reduction", branch_reduction, BranchReduction),
        ("initialization", initialization, Initialization),
        ("class_reduction", class_reduction, ClassReduction),
    ):
        if value not in get_args(known):
            raise unknown_name(option, str(value), get_args(known))
    fits = isinstance(bias, Tensor) and not bias.is_nested and bias.shape == (classes,)
    if bias is not None and (not fits or bias.is_complex() or bias.is_meta):
        raise UsageError(f"bias must be a tensor with one value for each of {classes} classes: of shape ({classes},)")
    if dtype is not None and (not isinstance(dtype, torch.dtype) or not dtype.is_floating_point):
        raise UsageError(f"dtype must be a floating-point type such as torch.float32, got {dtype!r}")
    if loss_fn is not None and not callable(loss_fn):
        raise UsageError(f"loss_fn must be a function from logits and targets to a scalar, got {loss_fn!r}")
    refuse_wrapped(model)
    places = find_places(model, at)
    refuse_places(model, places)
    pools: dict[str, Pool] = by_place(pool, places, "pool", "mean")
    layouts = by_place(layout, places, "layout", None)
    selectors = by_place(output, places, "output", None)

    told = [name for name in places if layouts[name] is not None or callable(pools[name])]
    sights, batch = dry_run(model, places, sample, selectors, told)
    readers, rows = {}, {}
    for name, place in places.items():
        wanted = Reader(layouts[name], pools[name], selectors[name])
        readers[name], rows[name] = _read_place(name, place, wanted, sights.get(name), batch)

    heads = {}
    widths = [row.shape[1] for row in rows.values()]
    if classes * redundancy * sum(widths) > _MOST_WEIGHTS:
        raise UsageError(
            f"redundancy={redundancy} with {classes} classes on {sum(widths)} features makes more than {_MOST_WEIGHTS} "
            "weights: give a smaller redundancy, or fewer classes or places"
        )
    drawn = draw_branches(seed, widths, classes, redundancy, initialization)
    for index, ((name, row), weights) in enumerate(zip(rows.items(), drawn, strict=True)):
        # bf16 and fp16 features get float32 branches: a sigmoid loss in half precision loses the small logits.
        kind = torch.promote_types(row.dtype, torch.float32) if dtype is None else dtype
        heads[name] = Head(weights, activation, bias, seed, index).to(row.device, kind)
    branches = Branches(heads, readers, Settings(branch_reduction, class_reduction, loss_fn, allow_skipped))
    if branches.step is not None:
        branches.step = branches.step.to(next(iter(rows.values())).device)
    branches.connect(model)
    return branches


def _count(what: str, value: object) -> int:
    """The value as an int: numpy's and torch's integers are what `labels.max() + 1` gives."""
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if number < 1:
        raise UsageError(f"{what} must be a whole number of 1 or more, got {value!r}")
    return number


def _read_place(
    name: str, place: nn.Module, wanted: Reader, sight: Sight | None, batch: BatchEvidence
) -> tuple[Reader, Tensor]:
    """The reader with the place's layout, and the rows (B, D) that it reads from the output in the dry run."""
    if sight is None and isinstance(place, nn.ModuleList | nn.ModuleDict):
        kind = type(place).__name__
        raise UsageError(f"place {name!r} is an nn.{kind}, which is never called itself: write at={f'{name}.*'!r}")
    if sight is None:
        raise UsageError(
            f"place {name!r} did not run when the model was called on `sample` in eval mode: choose a module that "
            "every forward calls"
        )
    wanted.check()
    if sight.feature is None:
        kind = type(sight.output).__name__
        raise UsageError(
            f"place {name!r} gives no floating-point tensor (its output is a {kind}): choose another module, or pick a "
            "part of it with output="
        )
    layout = wanted.layout
    if layout is None and not sight.feature.is_nested and not callable(wanted.pool):
        layout = infer_layout(name, tuple(sight.feature.shape), sight, batch)
    if layout is not None and wanted.pool == "class_token" and len(layout) != 3:
        raise UsageError(
            f"place {name!r} has layout {layout!r}, which has no single token axis for pool='class_token': "
            "use pool='mean' there (pool also takes a dict from place to rule)"
        )
    reader = replace(wanted, layout=layout)
    with torch.no_grad():
        try:
            rows = reader.read(sight.output)
        except Exception as error:
            raise UsageError(
                f"place {name!r} cannot be pooled ({error_line(error)}): mend its `pool` function, or its layout="
            ) from error
    if isinstance(rows, str):
        raise UsageError(f"place {name!r} {rows}")
    if rows.is_meta or rows.numel() == 0:
        kind = "on the meta device, without values" if rows.is_meta else f"of shape {tuple(rows.shape)}, without values"
        raise UsageError(f"place {name!r} gives a tensor {kind}: choose another module")
    return reader, rows


def refuse_wrapped(model: object) -> None:
    """Refuse what is not the bare model: compiled, data-parallel, sharded, or not yet built."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"attach takes an nn.Module, got a {type(model).__name__}")
    if torch.is_inference_mode_enabled():
        raise UsageError(
            "attach was called inside torch.inference_mode, where no weight can be trained: call it outside"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError(
            "the model is a TorchScript module, which takes no hooks: attach to the model it was made from"
        )
    if _compiled(model):
        raise UsageError("the model is compiled already, and would ignore new hooks: attach first, then torch.compile")
    if isinstance(model, DistributedDataParallel):
        raise UsageError(
            "attach to the bare model, before DDP: branches = attach(model, ...), then "
            "DistributedDataParallel(WithBranches(model, branches))"
        )
    if isinstance(model, nn.DataParallel):
        raise UsageError(
            "branches do not work in nn.DataParallel: use DistributedDataParallel(WithBranches(model, branches))"
        )
    for module in model.modules():
        # By name: importing FSDP here would cost every user its import time.
        if {"FullyShardedDataParallel", "FSDPModule"} & {kind.__name__ for kind in type(module).__mro__}:
            raise UsageError(
                "branches do not work in a model sharded by FSDP: train with DistributedDataParallel(WithBranches(...))"
            )
        if any(is_lazy(parameter) for parameter in module.parameters(recurse=False)):
            raise UsageError("the model has lazy layers without weights: call it once on a batch, then attach")
        if any(parameter.is_meta for parameter in module.parameters(recurse=False)):
            raise UsageError("the model has weights on the meta device: load them or initialise them, then attach")
        if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            raise UsageError("the model has buffers on the meta device: load them or initialise them, then attach")


def refuse_places(model: nn.Module, places: dict[str, nn.Module]) -> None:
    """Refuse places whose hooks would not run or that carry branches already."""
    for name, place in places.items():
        if carries_branches(place):
            raise UsageError(f"place {name!r} carries branches already: call strip() on those first")
        if isinstance(place, torch.jit.ScriptModule):
            raise UsageError(f"place {name!r} is a TorchScript module, which takes no hooks: choose one that is not")
    for name, module in model.named_modules():
        if _compiled(module):
            inside = [place for place, target in places.items() if any(target is part for part in module.modules())]
            if inside:
                raise UsageError(
                    f"place {inside[0]!r} lies in {name!r}, which is compiled already and would ignore new hooks: "
                    "attach first, then torch.compile"
                )


def _compiled(module: nn.Module) -> bool:
    if getattr(module, "_compiled_call_impl", None) is not None:
        return True
    # Looked up, not imported: torch._dynamo takes seconds to load, and nothing is compiled before it is.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)
