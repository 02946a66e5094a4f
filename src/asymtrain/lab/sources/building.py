"""Models with the initial values of a seed or of a file, called once to check them."""

import multiprocessing
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from asymtrain.errors import UsageError, UsageWarning, error_line
from asymtrain.lab.functions import name_here, own_line, source_line
from asymtrain.lab.sources.builders import (
    HERE,
    Inputs,
    Kind,
    Named,
    Options,
    explained,
    imported,
    named_model,
    of_function,
)
from asymtrain.lab.sources.fingerprints import bytes_of, fingerprint, named_tensors, rounded, undisturbed_call

if TYPE_CHECKING:
    from torch import Tensor, nn

UNNAMED = "here:unnamed-0"  # a function whose name is unknown until it is called
FIT = (
    "give images of another size (--data-option image_size=N), or options of the model that fit (--arch-option: "
    "timm has img_size, patch_size and in_chans, transformers patch_size, which must divide the size of an image; a "
    "function is given image_size and channels)"
)


def build_model(
    name: str,
    options: Options = (),
    *,
    classes: int,
    input_shape: tuple[int, ...],
    seed: int,
    weights: str = "",
    kind: Kind | None = None,
) -> "nn.Module":
    """A model by name with the initial values of its seed, on the CPU, in float32 and in training mode.

    `input_shape` is (C, H, W) for images, (D,) for vectors or (T,) for tokens; one axis means vectors unless `kind`
    says otherwise. `weights` is a safetensors file with initial values. Random states do not change. The first model
    of a kind in a process is built twice and called once: it must be deterministic, and give `classes` logits.
    """
    inputs = Inputs(tuple(input_shape), kind or ("images" if len(input_shape) == 3 else "vectors"))
    options = dict(options)
    source = named_model(name, options)
    key = (name, repr(sorted(options.items())), classes, inputs, weights)
    model = _build_seeded(source, classes, inputs, seed)
    if key not in _CHECKED:
        _check_outputs(source, model, classes, inputs)
        again = _build_seeded(source, classes, inputs, seed)
        if again is model:
            raise UsageError(f"{name} gave the same model when it was called again: build a new one at each call")
        if not _is_equal(model, again):
            raise UsageError(
                f"{name} is not deterministic: two models that were built with the same seed differ; draw its initial "
                "values from torch's, Python's or numpy's global random state, which are set from the run's seed"
            )
    if weights:
        loaded_head = _load_weights(model, weights, classes, source.name)
        # Only the first run in the user's process warns; workers and later runs do the same.
        if loaded_head and key not in _CHECKED and multiprocessing.parent_process() is None:
            warnings.warn(loaded_head, UsageWarning, stacklevel=2)
    _CHECKED.add(key)
    return model


_CHECKED: set[tuple[object, ...]] = set()  # the kinds of models that this process has built and checked


@contextmanager
def kept_function(function: Callable[..., Any], options: Options, *, classes: int, inputs: Inputs) -> Iterator[str]:
    """The name of a function that builds a model, for specs.

    A function that any process can import is `package.module:function`. Others, such as a lambda or a notebook's
    function, are `here:NAME-FINGERPRINT`, with the fingerprint of the model: only this process can build it, within
    the block, and a function that builds another model has another name.
    """
    module, label = getattr(function, "__module__", ""), getattr(function, "__qualname__", type(function).__name__)
    if imported(f"{module}:{label}") is function:
        yield f"{module}:{label}"
        return
    label = label.rpartition("<locals>.")[2].strip("<>")
    source = of_function(label, function, dict(options))
    model = _build_seeded(source, classes, inputs, 0)
    _check_outputs(source, model, classes, inputs)
    name = name_here(label, rounded(fingerprint(model, inputs)))
    HERE[name] = label, function
    try:
        yield name
    finally:
        HERE.pop(name, None)


def _is_equal(first: "nn.Module", second: "nn.Module") -> bool:
    """Whether two models are equal bit by bit."""
    pairs = zip(named_tensors(first), named_tensors(second), strict=False)
    same_names = [name for name, _ in named_tensors(first)] == [name for name, _ in named_tensors(second)]
    return same_names and all(a.shape == b.shape and bytes_of(a) == bytes_of(b) for (_, a), (_, b) in pairs)


def _build_seeded(source: Named, classes: int, inputs: Inputs, seed: int) -> "nn.Module":
    import numpy as np
    import torch
    from torch.nn.parameter import is_lazy

    from asymtrain.streams import random_state_kept

    with random_state_kept():
        # Not torch.manual_seed, which would also seed GPUs that are not in use.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        model = source.build_for(classes, inputs)
        if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
            explained(lambda: model(inputs.sample()), source.name, source.cure)  # the first call creates their values
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise UsageError(f"{source.name} has no values (its parameters are on the meta device): build them on the CPU")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(f"{source.name} has no parameter that is trained: unfreeze some (requires_grad)")
    return model.cpu().float().train()


def _check_outputs(source: Named, model: "nn.Module", classes: int, inputs: Inputs) -> None:
    """Check by a forward of two rows that the model takes such inputs, and gives a logit for every class."""
    from asymtrain.branches import logits_in

    with undisturbed_call(model):
        try:
            output = model(inputs.sample())
        except Exception as error:
            cure = FIT if inputs.kind == "images" else source.cure
            mend = "mend forward, or " if source_line(error) else ""
            raise UsageError(f"{source.name} does not take {inputs} ({own_line(error)}): {mend}{cure}") from error
    patch = _patch_of(model)
    if inputs.kind == "images" and any(side % patch for side in inputs.shape[1:]):
        raise UsageError(
            f"{source.name} would cut off a part of {inputs}, since its patches have {patch} pixels: {FIT}"
        )
    logits = logits_in(output)
    if logits is None:
        raise UsageError(
            f"{source.name} gives a {type(output).__name__} without logits: give a tensor of them, a tuple that begins "
            "with it, or a dict that has it as `logits`"
        )
    if tuple(logits.shape) != (2, classes):
        raise UsageError(
            f"{source.name} gives logits of shape {tuple(logits.shape)} for two inputs, and the data has {classes} "
            f"classes: it must give (2, {classes}); a function is given their number as `classes`"
        )


def _patch_of(model: "nn.Module") -> int:
    """The side of a patch in pixels, from attributes of timm or transformers; 1 if the model has no patches."""
    for owner in (getattr(model, "patch_embed", None), getattr(model, "config", None)):
        size = getattr(owner, "patch_size", None)
        size = size[0] if isinstance(size, tuple | list) and size else size
        if isinstance(size, int) and size > 0:
            return size
    return 1


def _load_weights(model: "nn.Module", file: str, classes: int, name: str) -> str:
    """Load values from a file; returns a note if the classifier has another number of classes and keeps its values."""
    import torch

    weights_in_file, own = _read_weights(file), model.state_dict(keep_vars=True)
    shared = {own[key].data_ptr() for key in own if key in weights_in_file}  # a file has tied weights only once
    missing = [key for key in own if key not in weights_in_file and own[key].data_ptr() not in shared]
    unexpected = [key for key in weights_in_file if key not in own]
    for keys, what in ((missing, "lacks"), (unexpected, "holds, which the model does not have,")):
        if keys:
            raise UsageError(f"{file} does not fit {name}: it {what} {_listed(keys)}; give the model's own state dict")
    differing = [key for key in own if key in weights_in_file and weights_in_file[key].shape != own[key].shape]
    counts = {weights_in_file[key].shape[:1] for key in differing}
    loads_head = len(counts) == 1 and all(
        own[key].shape[:1] == (classes,) and weights_in_file[key].shape[1:] == own[key].shape[1:] for key in differing
    )
    if differing and not loads_head:
        key = differing[0]
        shapes = f"{tuple(weights_in_file[key].shape)} in the file, {tuple(own[key].shape)} in the model"
        others = f", as have {len(differing) - 1} more" if len(differing) > 1 else ""
        raise UsageError(f"{file} does not fit {name}: {key} has another shape ({shapes}){others}")
    with torch.no_grad():
        for key in weights_in_file.keys() - set(differing):
            own[key].copy_(weights_in_file[key])
    if not differing:
        return ""
    return (
        f"{name}: {_listed(differing)} of {file} is for {counts.pop()[0]} classes, and the data has {classes}: it "
        "starts from its initial values"
    )


def _read_weights(file: str) -> "dict[str, Tensor]":
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except FileNotFoundError:
        raise UsageError(f"there are no weights at {file}: give a safetensors file") from None
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{file} cannot be read as weights ({error_line(error)}): give a safetensors file") from error


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
