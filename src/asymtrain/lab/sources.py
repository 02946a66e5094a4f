"""Models by what users type: `timm:NAME`, `hf:CONFIG` or `package.module:function`; built, checked, fingerprinted.

`check_name` reads a name without torch, so that specs and stores are read on machines without it. `build_model` builds
what it names. No model and no weights are ever downloaded.
"""

import hashlib
import importlib
import importlib.util
import inspect
import json
import math
import multiprocessing
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from asymtrain.errors import UsageError, UsageWarning, error_line, near_names, unknown_name
from asymtrain.lab.functions import (
    import_function,
    importable_here,
    is_function,
    is_here,
    name_here,
    own_line,
    own_place,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

Options = Mapping[str, Any] | Iterable[tuple[str, Any]]
Kind = Literal["images", "vectors", "tokens"]

OTHERS = "timm:NAME, hf:CONFIG or package.module:function"
FORMS = f"a backbone (mlp, cnn, vit), {OTHERS}"
UNNAMED = "here:unnamed-0"  # a function whose name is not known before it was called
CHECK_OPTIONS = (
    "check --arch-option (its names and values are the library's); what must be downloaded cannot be "
    "built here, but in a function of your own, package.module:function"
)
FIT = (
    "give images of another size (--data-option image_size=N), or options of the model that fit (--arch-option: "
    "timm has img_size, patch_size and in_chans, transformers patch_size, which must divide the size of an image)"
)
LARGER = (48, 64, 96, 128, 160, 192, 224, 256, 299, 384)  # pixels that are tried where images do not fit


@dataclass(frozen=True)
class Inputs:
    """What a model is built for: the shape of one input, (C, H, W), (D,) or (T,), and what it holds."""

    shape: tuple[int, ...]
    kind: Kind

    def sample(self, size: int | None = None, *, filled: bool = False) -> "Tensor":
        """Two of them, all zeros, or `filled` with numbers of a wave; images of another size where one is given."""
        import torch

        shape = (2, *(self.shape if size is None else (self.shape[0], size, size)))
        if self.kind == "tokens":
            return torch.zeros(shape, dtype=torch.int64)  # which other numbers stand for words is not known here
        return torch.arange(math.prod(shape)).double().sin().float().view(shape) if filled else torch.zeros(shape)

    def __str__(self) -> str:
        if self.kind == "images":
            channels, height, width = self.shape
            return f"images of {height} x {width}{'' if channels == 3 else f' with {channels} channels'}"
        return f"{self.kind} of {self.shape[0]}"


@dataclass(frozen=True)
class Named:
    """A model that can be built for any number of classes."""

    name: str
    make: Callable[[int, Inputs], Any]  # of the number of classes and what it is built for
    cure: str = CHECK_OPTIONS

    def build_for(self, classes: int, inputs: Inputs) -> "nn.Module":
        from torch import nn

        model = _explained(lambda: self.make(classes, inputs), self.name, self.cure)
        if not isinstance(model, nn.Module):
            raise UsageError(f"{self.name}: the function must return an nn.Module, and returned {type(model).__name__}")
        return model


@contextmanager
def kept_function(function: Callable[..., Any], options: Options, *, classes: int, inputs: Inputs) -> Iterator[str]:
    """The name that a spec has for a function which builds a model.

    One that any process can import is `package.module:function`. Another, such as a lambda or one of a notebook, is
    `here:NAME-FINGERPRINT`, with the fingerprint of its model: this process alone can build it, as long as the block
    lasts, and a function that builds another model has another name.
    """
    module, label = getattr(function, "__module__", ""), getattr(function, "__qualname__", type(function).__name__)
    if _imported(f"{module}:{label}") is function:
        yield f"{module}:{label}"
        return
    label = label.rpartition("<locals>.")[2].strip("<>")
    named = _of_function(label, function, dict(options))
    model = _build_seeded(named, classes, inputs, 0)
    _check_outputs(named, model, classes, inputs)
    name = name_here(label, _rounded(fingerprint(model, inputs)))
    _HERE[name] = label, function
    try:
        yield name
    finally:
        _HERE.pop(name, None)


_HERE: dict[str, tuple[str, Callable[..., Any]]] = {}  # functions that a caller in this process holds


def _imported(text: str) -> Any:
    """The function of this name in a file; None where there is none, or where a worker could not import it."""
    if not is_function(text):
        return None
    with importable_here(), suppress(UsageError):
        return import_function(text)
    return None


def _rounded(text: str) -> str:
    """A fingerprint as hexadecimal digits that rounding on another machine seldom changes."""
    digest, *numbers = text.split(":")
    norms, projections = [float(number) for number in numbers[::2]], [float(number) for number in numbers[1::2]]
    shares = [f"{norm:.4g} {part / (norm or 1.0):.4f}" for norm, part in zip(norms, projections, strict=True)]
    return hashlib.sha256(" ".join([digest, *shares]).encode()).hexdigest()[:16]


def describe_model(arch: str) -> str:
    """What the docstring of the function that builds a model says, as one line; empty where there is none."""
    function = _HERE[arch][1] if arch in _HERE else _imported(arch)
    told = inspect.isfunction(function) or inspect.isclass(function)
    return " ".join((function.__doc__ or "").split()) if told else ""


def is_named(arch: str) -> bool:
    """Is this a model by name, and none of the backbones?"""
    return ":" in arch


def check_name(name: str, options: Options = ()) -> None:
    """Refuse what cannot name a model; whether there is one of the name shows when it is built. Needs no torch."""
    kind, colon, rest = name.partition(":")
    if not colon:
        from asymtrain.models import backbone_names

        if not near_names(name, backbone_names()) and (meant := _meant(name)):
            raise UsageError(f"{name!r} is no backbone ({', '.join(sorted(backbone_names()))}): {meant}")
        if "/" in name or "." in name:
            raise UsageError(f"{name!r} is no model that can be built here: give {FORMS}")
        raise UsageError(f"{unknown_name('backbone', name, backbone_names())} (for another model give {OTHERS})")
    if not rest or not kind:
        raise UsageError(f"{name!r} names no model: give {FORMS}")
    if kind == "hf" and not rest.endswith(".json") and not rest.isidentifier():
        raise UsageError(
            f"{name} is not a config class (hf:ViTConfig) or a config.json file: nothing is downloaded, so a name "
            "on the hub cannot be used; save its config.json and give the file"
        )
    if is_here(name):
        return
    if kind.endswith(".py") and "/" in kind:
        folder, module = _module_of(Path(kind))
        where = "its folder" if Path(kind).stem == module else f"the folder that holds {module.partition('.')[0]}"
        go = "" if folder.resolve() == Path.cwd() else f"go to {where} and "
        raise UsageError(f"{name!r} is a path, and modules go by name: {go}write {module}:{rest}")
    if kind not in _LIBRARIES and not all(part.isidentifier() for part in (*kind.split("."), rest)):
        raise UsageError(f"{name!r} names no function: write package.module:function, or {OTHERS.partition(' or ')[0]}")
    _refuse_pretrained(name, dict(options))


def _module_of(file: Path) -> tuple[Path, str]:
    """The folder that a file is imported from, and its name there: in a package it has that of the package too."""
    names, folder = [file.stem], file.parent
    if file.stem == "__init__":
        names, folder = [folder.resolve().name], folder / ".."
    while (folder / "__init__.py").is_file():
        names, folder = [folder.resolve().name, *names], folder / ".."
    return folder, ".".join(names)


def _meant(name: str) -> str:
    """What a name without a colon may have been meant for: a module that is here, or a model of timm."""
    parts = name.split(".")
    if all(part.isidentifier() for part in parts):
        with importable_here(), suppress(ImportError, ValueError):
            found = importlib.util.find_spec(parts[0])  # imports nothing
            if found is not None:
                places = [Path(place, *parts[1:]) for place in found.submodule_search_locations or ()]
                whole = len(parts) == 1 or any(place.with_suffix(".py").is_file() or place.is_dir() for place in places)
                if whole:
                    return f"for a function of this module that builds a model write {name}:FUNCTION"
                return f"for a function of a module write {'.'.join(parts[:-1])}:{parts[-1]}"
    with suppress(Exception):  # timm may be absent, or broken
        if importlib.import_module("timm").is_model(name):
            return f"did you mean timm:{name}?"
    return ""


def named_model(text: str, options: Options = ()) -> Named:
    """The model that a text names; options go to its builder."""
    check_name(text, options)
    make = _here if is_here(text) else _LIBRARIES.get(text.partition(":")[0], _function)
    return make(text, dict(options))


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

    `input_shape` is (C, H, W) of images, (D,) of vectors or (T,) of tokens; `kind` says which where it has one axis
    and they are not vectors. `weights` is a safetensors file that the initial values are taken from. Random states
    are left as they were. The first model of a kind in a process is built twice and called once: it must be
    deterministic, and give `classes` logits.
    """
    inputs = Inputs(tuple(input_shape), kind or ("images" if len(input_shape) == 3 else "vectors"))
    options = dict(options)
    named = named_model(name, options)
    key = (name, repr(sorted(options.items())), classes, inputs, weights)
    model = _build_seeded(named, classes, inputs, seed)
    if key not in _CHECKED:
        _check_outputs(named, model, classes, inputs)
        again = _build_seeded(named, classes, inputs, seed)
        if again is model:
            raise UsageError(f"{name} gave the same model when it was called again: build a new one at each call")
        if not _is_equal(model, again):
            raise UsageError(
                f"{name} is not deterministic: two models that were built with the same seed differ; draw its initial "
                "values from torch's, Python's or numpy's global random state, which are set from the run's seed"
            )
    if weights:
        kept = _load_weights(model, weights, classes, named.name)
        # Workers and later runs do the same: it is said once, by the process that speaks with the user.
        if kept and key not in _CHECKED and multiprocessing.parent_process() is None:
            warnings.warn(kept, UsageWarning, stacklevel=2)
    _CHECKED.add(key)
    return model


_CHECKED: set[tuple[object, ...]] = set()  # models whose kind was built in this process


def fingerprint(model: "nn.Module", inputs: Inputs | None = None) -> str:
    """What a model is: a hash of the names, shapes and types of its parameters and buffers, and sums of their values.

    With `inputs` sums of its logits for two of them too, which change with what it computes from the same parameters,
    and of the settings of its parts, such as the rate of a dropout, which evaluation does not show.
    Whole numbers are hashed. Values that another processor or version of torch drew may differ in their last digits:
    `difference` compares sums.
    """
    import torch

    from asymtrain.branches import logits_in

    digest, values = hashlib.sha256(), []
    for name, tensor in _named_tensors(model):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        if tensor.is_floating_point() or tensor.is_complex():
            values.append(tensor)
        else:
            digest.update(_bytes_of(tensor))
    parts = [_sums(values)]
    if inputs is not None:
        with _undisturbed(model):
            torch.default_generator.manual_seed(0)  # for what draws outside of training too
            logits = logits_in(model(inputs.sample(filled=True)))
        parts.append(_sums([] if logits is None else [logits]))
        parts.append(_sums([torch.tensor(list(_settings(model)), dtype=torch.float64)]))
    return ":".join([digest.hexdigest()[:16], *(f"{number:.9g}" for part in parts for number in part)])


def difference(first: str, second: str) -> str | None:
    """What differs between the models of two fingerprints, in words; None where they are the same."""
    one, *sums = first.split(":")
    other, *other_sums = second.split(":")
    if one != other:
        return "names, shapes or types of its parameters and buffers"
    try:
        numbers, others = list(map(float, sums)), list(map(float, other_sums))
    except ValueError:  # one that was imported may hold anything
        return "its fingerprint"
    for place, (what, tolerance) in enumerate(TOLERANCES.items()):
        part, other_part = numbers[2 * place : 2 * place + 2], others[2 * place : 2 * place + 2]
        if part and other_part:
            allowed = tolerance * max(part[0], other_part[0])
            if any(abs(a - b) > allowed for a, b in zip(part, other_part, strict=True)):
                return what
    return None


# Of the norm of all values: what is drawn differently moves a sum by about the norm, rounding by a millionth of it.
TOLERANCES = {
    "its initial values": 1e-5,
    "what it computes from its parameters": 1e-3,
    "settings of its parts, such as the rate of a dropout": 1e-5,
}
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2  # its multiples are spread evenly over [0, 1)


def _settings(model: "nn.Module") -> Iterator[float]:
    """Numbers that its modules were built with: attributes that are floats."""
    for module in model.modules():
        own = vars(module)
        yield from (own[name] for name in sorted(own) if isinstance(own[name], float) and math.isfinite(own[name]))


def _sums(tensors: "Iterable[Tensor]") -> tuple[float, float]:
    """The norm of all values, and their sum with a factor for each place, so that values must not change places."""
    import torch

    squares, projection, count = 0.0, 0.0, 0
    for tensor in tensors:
        values = tensor.detach().cpu()
        values = torch.view_as_real(values) if values.is_complex() else values
        values = values.to(torch.float64).reshape(-1).nan_to_num(posinf=0.0, neginf=0.0)  # masks hold -inf
        places = torch.arange(count, count + len(values), dtype=torch.float64)
        squares += float(values @ values)
        projection += float(values @ (places * GOLDEN_RATIO % 1 - 0.5))
        count += len(values)
    return math.sqrt(squares), projection


def _named_tensors(model: "nn.Module") -> "list[tuple[str, Tensor]]":
    """Parameters and buffers, by name; those that a state dict leaves out too."""
    both = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return sorted(both, key=lambda item: item[0])


def _bytes_of(tensor: "Tensor") -> bytes:
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _is_equal(first: "nn.Module", second: "nn.Module") -> bool:
    """Bit by bit."""
    pairs = zip(_named_tensors(first), _named_tensors(second), strict=False)
    same_names = [name for name, _ in _named_tensors(first)] == [name for name, _ in _named_tensors(second)]
    return same_names and all(a.shape == b.shape and _bytes_of(a) == _bytes_of(b) for (_, a), (_, b) in pairs)


def _build_seeded(named: Named, classes: int, inputs: Inputs, seed: int) -> "nn.Module":
    import numpy as np
    import torch
    from torch.nn.parameter import is_lazy

    from asymtrain.streams import random_state_kept

    with random_state_kept():
        # Not torch.manual_seed, which would also seed GPUs that are not used yet.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        model = named.build_for(classes, inputs)
        if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
            _explained(lambda: model(inputs.sample()), named.name, named.cure)  # the first call makes their values
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise UsageError(f"{named.name} has no values (its parameters are on the meta device): build them on the CPU")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(f"{named.name} has no parameter that is trained: unfreeze some (requires_grad)")
    return model.cpu().float().train()


def _check_outputs(named: Named, model: "nn.Module", classes: int, inputs: Inputs) -> None:
    """One forward of two rows: does the model take what it is given, and answer for every class?"""
    from asymtrain.branches import logits_in

    with _undisturbed(model):
        try:
            output = model(inputs.sample())
        except Exception as error:
            raise _unfit(named, model, inputs, error) from error
    patch = _patch_of(model)
    if inputs.kind == "images" and any(side % patch for side in inputs.shape[1:]):
        raise UsageError(f"{named.name} would cut off a part of {inputs}, since its patches have {patch} pixels: {FIT}")
    logits = logits_in(output)
    if logits is None:
        raise UsageError(
            f"{named.name} gives a {type(output).__name__} without logits: give a tensor of them, a tuple that begins "
            "with it, or a dict that has it as `logits`"
        )
    if tuple(logits.shape) != (2, classes):
        raise UsageError(
            f"{named.name} gives logits of shape {tuple(logits.shape)} for two inputs, and the data has {classes} "
            f"classes: it must give (2, {classes}); a function is given their number as `classes`"
        )


@contextmanager
def _undisturbed(model: "nn.Module") -> Iterator[None]:
    from asymtrain.branches import preserve_attributes, preserve_state

    with preserve_state(model), preserve_attributes(model):
        yield


def _patch_of(model: "nn.Module") -> int:
    """Pixels along a side of a patch, in the words of timm or transformers; 1 where the model has none."""
    for owner in (getattr(model, "patch_embed", None), getattr(model, "config", None)):
        size = getattr(owner, "patch_size", None)
        size = size[0] if isinstance(size, tuple | list) and size else size
        if isinstance(size, int) and size > 0:
            return size
    return 1


def _unfit(named: Named, model: "nn.Module", inputs: Inputs, error: Exception) -> UsageError:
    why = own_line(error)
    try:
        inspect.signature(model.forward).bind(None)
    except TypeError:  # no other inputs help
        alone = "write a module around it that is called with one tensor"
        return UsageError(f"{named.name} is called with {inputs} and nothing else, and needs more ({why}): {alone}")
    if inputs.kind != "images":
        return UsageError(f"{named.name} does not take {inputs} ({why}): {named.cure}")
    channels, *sides = inputs.shape
    if channels != 1:
        with suppress(Exception), _undisturbed(model):
            model(replace(inputs, shape=(1, *sides)).sample())
            told = f"{named.name} takes images of one channel, and these have {channels} (gray ones of a folder too)"
            return UsageError(f"{told}: build it for them; a function is given their number as `channels`")
    for size in (size for size in LARGER if size > max(sides)):
        with suppress(Exception), _undisturbed(model):
            model(inputs.sample(size))
            larger = f"give images of {size} x {size} or larger, or another model"
            return UsageError(f"{inputs} are too small for {named.name} ({why}): {larger}")
    mend = "mend forward, or " if own_place(error) else ""
    return UsageError(f"{named.name} does not take {inputs} ({why}): {mend}{FIT}")


def _load_weights(model: "nn.Module", file: str, classes: int, name: str) -> str:
    """Take the values from a file; a note about a classifier of another number of classes, which keeps its own."""
    import torch

    given, own = _read_weights(file), model.state_dict(keep_vars=True)
    shared = {own[key].data_ptr() for key in own if key in given}  # tied weights are in a file once
    missing = [key for key in own if key not in given and own[key].data_ptr() not in shared]
    unexpected = [key for key in given if key not in own]
    for keys, what in ((missing, "lacks"), (unexpected, "holds, which the model does not have,")):
        if keys:
            raise UsageError(f"{file} does not fit {name}: it {what} {_listed(keys)}; give the model's own state dict")
    differing = [key for key in own if key in given and given[key].shape != own[key].shape]
    counts = {given[key].shape[:1] for key in differing}
    kept = len(counts) == 1 and all(
        own[key].shape[:1] == (classes,) and given[key].shape[1:] == own[key].shape[1:] for key in differing
    )
    if differing and not kept:
        key = differing[0]
        shapes = f"{tuple(given[key].shape)} in the file, {tuple(own[key].shape)} in the model"
        others = f", as have {len(differing) - 1} more" if len(differing) > 1 else ""
        raise UsageError(f"{file} does not fit {name}: {key} has another shape ({shapes}){others}")
    with torch.no_grad():
        for key in given.keys() - set(differing):
            own[key].copy_(given[key])
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


def _timm(text: str, options: dict[str, Any]) -> Named:
    timm, name = _library("timm"), text.removeprefix("timm:")
    if not timm.is_model(name):
        raise unknown_name("timm model", name, timm.list_models())
    settings = timm.get_pretrained_cfg(name)
    own = int(settings.input_size[-1]) if settings is not None else 224

    def make(classes: int, inputs: Inputs) -> Any:
        channels, height, width = _image_shape(text, inputs)
        given = {"pretrained": False, "num_classes": classes, **options}
        if channels != 3:
            given = {"in_chans": channels, **given}
        if (height, width) != (own, own) and "img_size" not in given:
            with suppress(TypeError):  # a convolutional network takes images of any size, and no such option
                return timm.create_model(name, img_size=height if height == width else (height, width), **given)
        return timm.create_model(name, **given)

    return Named(text, make)


def _transformers(text: str, options: dict[str, Any]) -> Named:
    transformers, name = _library("transformers"), text.removeprefix("hf:")
    options = {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}
    if name.endswith(".json"):
        from asymtrain.lab.data.registry import at_home

        config = _config_file(transformers, at_home(name), options)
    else:
        kind = getattr(transformers, name, None)
        base = getattr(transformers, "PreTrainedConfig", None) or transformers.PretrainedConfig
        if not (inspect.isclass(kind) and issubclass(kind, base)):
            known = [config for config in dir(transformers) if config.endswith("Config")]
            raise unknown_name("config class of transformers", name, known)
        config = _explained(lambda: kind(**options), text)

    def make(classes: int, inputs: Inputs) -> Any:
        config.num_labels = classes
        sort, classifier = "sequence", transformers.AutoModelForSequenceClassification
        if inputs.kind == "tokens" and getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = 0  # what sequences are filled up with; a causal model reads the last token before it
        if inputs.kind != "tokens":
            channels, height, width = _image_shape(text, inputs)
            sort, classifier = "image", transformers.AutoModelForImageClassification
            if getattr(config, "image_size", None) is not None:
                config.image_size = height if height == width else (height, width)
            if channels != 3:
                config.num_channels = channels
        if type(config) not in classifier._model_mapping:
            raise UsageError(
                f"{type(config).__name__} has no {sort} classifier in transformers: write a function that builds one, "
                "package.module:function"
            )
        return classifier.from_config(config)

    return Named(text, make)


def _image_shape(name: str, inputs: Inputs) -> tuple[int, int, int]:
    if inputs.kind != "images":
        raise UsageError(f"{name} takes images, and the data holds {inputs.kind}: give package.module:function")
    channels, height, width = inputs.shape
    return channels, height, width


def _refuse_pretrained(text: str, options: Mapping[str, Any]) -> None:
    """Refuse what makes a library fetch weights: timm's `pretrained`, transformers' `use_pretrained_backbone`."""
    if text.partition(":")[0] not in _LIBRARIES:
        return  # what a function does with its options is its own concern
    for name, value in options.items():
        if isinstance(value, Mapping):
            _refuse_pretrained(text, value)
        # Any text counts as true in both libraries, "no" included.
        elif "pretrained" in name and value:
            raise UsageError(
                f"{text}: {name} would download weights, and nothing is downloaded here: leave it out, or load them in "
                "a function of your own and give package.module:function"
            )


def _config_file(transformers: Any, file: Path, options: dict[str, Any]) -> Any:
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read as a config ({error}): give a config.json of transformers") from None
    if not isinstance(values, dict) or "model_type" not in values:
        raise UsageError(f"{file} has no model_type: give a config.json of transformers")
    _refuse_pretrained(f"hf:{file}", values)
    kind = values.pop("model_type")
    # Labels of its own would win over the number of classes in the data.
    values = {name: value for name, value in values.items() if name not in ("id2label", "label2id", "num_labels")}
    return _explained(lambda: transformers.AutoConfig.for_model(kind, **{**values, **options}), f"hf:{file}")


def _function(text: str, options: dict[str, Any]) -> Named:
    from torch import nn

    with importable_here():
        function = import_function(text)
    if isinstance(function, nn.Module):  # which can be called too
        given = f"a {type(function).__name__}"
        raise UsageError(f"{text} must make a new model at each call: write a function that returns one, not {given}")
    return _of_function(text, function, options)


def _here(text: str, options: dict[str, Any]) -> Named:
    if text not in _HERE:
        raise UsageError(
            f"{text} was a function of another process, or of a call that has ended: give it to asymtrain.compare "
            "again, or put it into a file and write package.module:function"
        )
    return _of_function(*_HERE[text], options)


def _of_function(name: str, function: Callable[..., Any], options: dict[str, Any]) -> Named:
    def make(classes: int, inputs: Inputs) -> Any:
        known = inspect.signature(function).parameters
        given: dict[str, Any] = {"classes": classes, "num_classes": classes, "input_shape": inputs.shape}
        if inputs.kind == "images":
            channels, height, width = inputs.shape
            given |= {"channels": channels, "image_size": height if height == width else (height, width)}
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        for option in options if known and not takes_any else ():
            if option not in known:
                raise unknown_name(f"option of {name}", option, known)
        with importable_here():  # it may import more when it is called
            return function(**{**{key: value for key, value in given.items() if key in known}, **options})

    cure = "mend the function, or give what it needs with --arch-option NAME=VALUE"
    return Named(name, make, cure)


_LIBRARIES: dict[str, Callable[[str, dict[str, Any]], Named]] = {"timm": _timm, "hf": _transformers}


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # a broken installation of torchvision raises a RuntimeError
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            raise UsageError(f"{name} is not installed: pip install {name}") from error
        cure = f"mend its installation; `python -c 'import {name}'` shows the whole of it"
        if "torchvision" in str(error):
            cure = (
                "it needs a torchvision that fits your torch; where there is none, in an environment of its own, "
                "pip install --no-deps torchvision==0.16.2 is enough for models"
            )
        raise UsageError(f"{name} is installed but does not import ({error_line(error)}): {cure}") from error


def _explained(make: Callable[[], Any], name: str, cure: str = CHECK_OPTIONS) -> Any:
    try:
        return make()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name:
            cure = f"install {error.name}, or {cure}"
        raise UsageError(f"{name} cannot be built ({own_line(error)}): {cure}") from error
