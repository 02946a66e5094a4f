"""Models by name: the table of prefixes, and the builder of each.

`check_name` needs no torch, so that specs and stores can be read on machines without it.
"""

import importlib
import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from asymtrain.errors import UsageError, error_line, unknown_name
from asymtrain.lab.files import at_home
from asymtrain.lab.functions import import_function, importable_here, is_function, is_here, own_line

if TYPE_CHECKING:
    from torch import Tensor, nn

Options = Mapping[str, Any] | Iterable[tuple[str, Any]]
Kind = Literal["images", "vectors", "tokens"]

CHECK_OPTIONS = (
    "check --arch-option (its names and values are the library's); what must be downloaded cannot be "
    "built here, but in a function of your own, package.module:function"
)
HERE: dict[str, tuple[str, Callable[..., Any]]] = {}  # functions that a caller in this process holds, by name


@dataclass(frozen=True)
class Inputs:
    """The inputs that a model is built for: the shape of one, (C, H, W), (D,) or (T,), and its kind."""

    shape: tuple[int, ...]
    kind: Kind

    def sample(self, *, filled: bool = False) -> "Tensor":
        """Two inputs: tokens of 1, which are no padding; else zeros, or `filled` with values of a sine."""
        import torch

        shape = (2, *self.shape)
        if self.kind == "tokens":
            return torch.ones(shape, dtype=torch.int64)  # other valid word indices are not known here
        return torch.arange(math.prod(shape)).double().sin().float().view(shape) if filled else torch.zeros(shape)

    def image_shape(self, name: str) -> tuple[int, int, int]:
        if self.kind != "images":
            raise UsageError(f"{name} takes images, and the data holds {self.kind}: give package.module:function")
        channels, height, width = self.shape
        return channels, height, width

    def __str__(self) -> str:
        if self.kind == "images":
            channels, height, width = self.shape
            return f"images of {height} x {width}{'' if channels == 3 else f' with {channels} channels'}"
        return f"{self.kind} of {self.shape[0]}"


@dataclass(frozen=True)
class Named:
    """A model that can be built for any number of classes."""

    name: str
    make: Callable[[int, Inputs], Any]  # takes the number of classes and the inputs
    cure: str = CHECK_OPTIONS

    def build_for(self, classes: int, inputs: Inputs) -> "nn.Module":
        from torch import nn

        model = explained(lambda: self.make(classes, inputs), self.name, self.cure)
        if not isinstance(model, nn.Module):
            raise UsageError(f"{self.name}: the function must return an nn.Module, and returned {type(model).__name__}")
        return model


def _find_timm(name: str, options: dict[str, Any]) -> Named:
    timm, text = _library("timm"), f"timm:{name}"
    if not timm.is_model(name):
        raise unknown_name("timm model", name, timm.list_models())
    settings = timm.get_pretrained_cfg(name)
    own = int(settings.input_size[-1]) if settings is not None else 224

    def make(classes: int, inputs: Inputs) -> Any:
        channels, height, width = inputs.image_shape(text)
        arguments = {"pretrained": False, "num_classes": classes, **options}
        if channels != 3:
            arguments = {"in_chans": channels, **arguments}
        if (height, width) != (own, own) and "img_size" not in arguments:
            with suppress(TypeError):  # convolutional networks take images of any size, and lack this option
                return timm.create_model(name, img_size=height if height == width else (height, width), **arguments)
        return timm.create_model(name, **arguments)

    return Named(text, make)


def _check_config_name(name: str) -> None:
    if not name.endswith(".json") and not name.isidentifier():
        raise UsageError(
            f"hf:{name} is not a config class (hf:ViTConfig) or a config.json file: nothing is downloaded, so a name "
            "on the hub cannot be used; save its config.json and give the file"
        )


def _find_transformers(name: str, options: dict[str, Any]) -> Named:
    transformers, text = _library("transformers"), f"hf:{name}"
    options = {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}
    if name.endswith(".json"):
        config = _config_file(transformers, at_home(name), options)
    else:
        kind = getattr(transformers, name, None)
        base = getattr(transformers, "PreTrainedConfig", None) or transformers.PretrainedConfig
        if not (inspect.isclass(kind) and issubclass(kind, base)):
            names = [config for config in dir(transformers) if config.endswith("Config")]
            raise unknown_name("config class of transformers", name, names)
        config = explained(lambda: kind(**options), text)

    def make(classes: int, inputs: Inputs) -> Any:
        config.num_labels = classes
        sort, classifier = "sequence", transformers.AutoModelForSequenceClassification
        if inputs.kind == "tokens" and getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = 0  # the padding token; a causal model reads the last token before it
        if inputs.kind != "tokens":
            channels, height, width = inputs.image_shape(text)
            sort, classifier = "image", transformers.AutoModelForImageClassification
            if getattr(config, "image_size", None) is not None:
                config.image_size = height if height == width else (height, width)
            if options.get("image_size") not in (None, height, [height, width]):
                raise UsageError(
                    f"{text}: image_size is that of the data, {height} x {width}: leave it out of the model's options, "
                    "or give it as an option of the data"
                )
            if channels != 3:
                config.num_channels = channels
        if type(config) not in classifier._model_mapping:
            raise UsageError(
                f"{type(config).__name__} has no {sort} classifier in transformers: write a function that builds one, "
                "package.module:function"
            )
        return classifier.from_config(config)

    return Named(text, make)


def _config_file(transformers: Any, file: Path, options: dict[str, Any]) -> Any:
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read as a config ({error}): give a config.json of transformers") from None
    if not isinstance(values, dict) or "model_type" not in values:
        raise UsageError(f"{file} has no model_type: give a config.json of transformers")
    _refuse_pretrained(f"hf:{file}", values)
    kind = values.pop("model_type")
    # Labels in the config would override the data's number of classes.
    values = {name: value for name, value in values.items() if name not in ("id2label", "label2id", "num_labels")}
    return explained(lambda: transformers.AutoConfig.for_model(kind, **{**values, **options}), f"hf:{file}")


def _refuse_pretrained(text: str, options: Mapping[str, Any]) -> None:
    """Refuse options that make a library download weights: timm's `pretrained`, `use_pretrained_backbone`."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            _refuse_pretrained(text, value)
        # Any text counts as true in both libraries, even "no".
        elif "pretrained" in name and value:
            raise UsageError(
                f"{text}: {name} would download weights, and nothing is downloaded here: leave it out, or load them in "
                "a function of your own and give package.module:function"
            )


def _find_function(text: str, options: dict[str, Any]) -> Named:
    from torch import nn

    with importable_here():
        function = import_function(text)
    if isinstance(function, nn.Module):  # a module is callable too
        description = f"a {type(function).__name__}"
        raise UsageError(
            f"{text} must make a new model at each call: write a function that returns one, not {description}"
        )
    return of_function(text, function, options)


def _find_here(text: str, options: dict[str, Any]) -> Named:
    if text not in HERE:
        raise UsageError(
            f"{text} was a function of another process, or of a call that has ended: give it to asymtrain.compare "
            "again, or put it into a file and write package.module:function"
        )
    return of_function(*HERE[text], options)


def of_function(name: str, function: Callable[..., Any], options: dict[str, Any]) -> Named:
    def make(classes: int, inputs: Inputs) -> Any:
        names = inspect.signature(function).parameters
        arguments: dict[str, Any] = {"classes": classes, "num_classes": classes, "input_shape": inputs.shape}
        if inputs.kind == "images":
            channels, height, width = inputs.shape
            arguments |= {"channels": channels, "image_size": height if height == width else (height, width)}
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())
        for option in options if names and not takes_any else ():
            if option not in names:
                raise unknown_name(f"option of {name}", option, names)
        with importable_here():  # the call may import more modules
            return function(**{**{key: value for key, value in arguments.items() if key in names}, **options})

    cure = "mend the function, or give what it needs with --arch-option NAME=VALUE"
    return Named(name, make, cure)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # a broken installation of torchvision raises a RuntimeError
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            raise UsageError(f"{name} is not installed: pip install {name}") from error
        raise UsageError(
            f"{name} is installed but does not import ({error_line(error)}): mend its installation (docs/zoo.md: timm "
            "needs a torchvision that fits your torch)"
        ) from error


def explained(make: Callable[[], Any], name: str, cure: str = CHECK_OPTIONS) -> Any:
    """The result of a call; its errors become a `UsageError` that says that `name` cannot be built, and what to do."""
    try:
        return make()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name:
            cure = f"install {error.name}, or {cure}"
        raise UsageError(f"{name} cannot be built ({own_line(error)}): {cure}") from error


@dataclass(frozen=True)
class Library:
    """One entry of `LIBRARIES`: a library that builds models by name."""

    argument: str  # what follows the colon
    find: Callable[[str, dict[str, Any]], Named]  # takes what follows the colon, and options
    check: Callable[[str], None] = lambda rest: None  # refuses invalid names, without torch


LIBRARIES: dict[str, Library] = {
    "timm:": Library("NAME", _find_timm),
    "hf:": Library("CONFIG", _find_transformers, _check_config_name),
}
"""Libraries by a name's prefix. Any other text with a colon is a user's function."""


def is_named(arch: str) -> bool:
    """Whether this is a model by name, not a backbone."""
    return ":" in arch


def other_names() -> str:
    """The forms of names for models other than the backbones."""
    return f"{', '.join(f'{name}{library.argument}' for name, library in LIBRARIES.items())} or package.module:function"


def check_name(name: str, options: Options = ()) -> None:
    """Refuse what cannot be a model's name, without torch; building shows whether the model exists."""
    kind, colon, rest = name.partition(":")
    if not colon:
        from asymtrain.models import backbone_names

        raise UsageError(f"{unknown_name('backbone', name, backbone_names())} (for another model give {other_names()})")
    if not rest or not kind:
        raise UsageError(f"{name!r} names no model: give a backbone, {other_names()}")
    library = LIBRARIES.get(f"{kind}:")
    if library is not None:
        library.check(rest)
        _refuse_pretrained(name, dict(options))
    elif not is_here(name) and not is_function(name):
        path = " (modules go by name, without slashes and .py)" if kind.endswith(".py") else ""
        raise UsageError(f"{name!r} names no function: write package.module:function{path}, or {other_names()}")


def named_model(text: str, options: Options = ()) -> Named:
    """The model with this name; options go to its builder."""
    check_name(text, options)
    kind, _, rest = text.partition(":")
    if (library := LIBRARIES.get(f"{kind}:")) is not None:
        return library.find(rest, dict(options))
    return _find_here(text, dict(options)) if is_here(text) else _find_function(text, dict(options))


def describe_model(arch: str) -> str:
    """The docstring of the function that builds a model, as one line; empty if it has none."""
    function = HERE[arch][1] if arch in HERE else imported(arch)
    described = inspect.isfunction(function) or inspect.isclass(function)
    return " ".join((function.__doc__ or "").split()) if described else ""


def imported(text: str) -> Any:
    """The function with this name in a file; None if there is none, or if a worker could not import it."""
    if not is_function(text, LIBRARIES):
        return None
    with importable_here(), suppress(UsageError):
        return import_function(text)
    return None
