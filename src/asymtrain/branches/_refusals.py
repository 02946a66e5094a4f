"""What `attach` turns down, each with one line that says what to do instead."""

import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from asymtrain.branches._capture import carries_branches
from asymtrain.errors import UsageError


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
