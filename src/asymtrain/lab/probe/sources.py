"""Models and data by what users type: `timm:NAME`, `hf:CONFIG` or `package.module:function`; images as batches.

No model and no weights are ever downloaded.
"""

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from asymtrain import streams
from asymtrain.errors import UsageError, error_line, unknown_name
from asymtrain.lab.data import Dataset
from asymtrain.lab.data.normalise import channel_statistics, normalise
from asymtrain.lab.data.registry import at_home
from asymtrain.lab.probe.inputs import checked_module
from asymtrain.models import BACKBONES

OTHERS = "timm:NAME, hf:CONFIG or package.module:function"
FORMS = f"a backbone (mlp, cnn, vit), {OTHERS}"
SMALL = 64  # pixels; a larger model's own size is reduced to this on a CPU
DEFAULT_SIZE = 32
CHECK_OPTIONS = (
    "check --option (their names and values are the library's); what must be downloaded cannot be built here, but in a "
    "function of your own, package.module:function"
)


@dataclass(frozen=True)
class Named:
    """A model that can be built for any number of classes."""

    name: str
    image_size: int  # its own
    multiple: int  # an image's side must be a multiple of this
    make: Callable[[int, int], Any]  # of the number of classes and the size of images
    cure: str = CHECK_OPTIONS

    def build(self, classes: int, image_size: int) -> nn.Module:
        return checked_module(_explained(lambda: self.make(classes, image_size), self.name, self.cure))

    def size_for(self, wanted: int | None, small: bool) -> int:
        """The image size to probe at: the wanted one, else the model's own, on a small machine at most 64 pixels."""
        if wanted is not None:
            return wanted
        if not small or self.image_size <= SMALL:
            return self.image_size
        return max(2 * self.multiple, SMALL - SMALL % self.multiple)


class ImageBatches:
    """Normalised images (B, 3, H, W) and labels (B,), by number, in a random order of the seed's own."""

    def __init__(
        self, dataset: Dataset, batch: int, *, seed: int = 0, indices: npt.NDArray[np.int64] | None = None
    ) -> None:
        self.images, self.labels = dataset.train.images, dataset.train.labels
        chosen = np.arange(len(self.labels)) if indices is None else indices
        if batch < 2:
            raise UsageError(f"a batch of {batch} is too small to probe with: give 16 or more")
        if len(chosen) < 2 * batch:
            raise UsageError(
                f"{len(chosen)} images are fewer than two batches of {batch}: give more, or a smaller batch"
            )
        order = torch.randperm(len(chosen), generator=streams.generator(seed, "probe images")).numpy()
        self.order, self.batch = chosen[order], batch
        self.mean, self.std = channel_statistics(dataset.train, chosen)

    def __len__(self) -> int:
        return len(self.order) // self.batch  # whole batches only

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        rows = self.order[number * self.batch : (number + 1) * self.batch]
        return normalise(torch.from_numpy(self.images[rows]), self.mean, self.std), torch.from_numpy(self.labels[rows])


def named_model(text: str, options: Mapping[str, Any] | None = None) -> Named:
    """The model that a text names; options go to its builder."""
    kind, colon, rest = text.partition(":")
    if not colon:
        if "/" in text or "." in text:
            raise UsageError(f"{text!r} is no model that can be built here: give {FORMS}")
        raise UsageError(f"{unknown_name('backbone', text, BACKBONES)} (for another model give {OTHERS})")
    if not rest:
        raise UsageError(f"{text!r} names no model: give {FORMS}")
    builders = {"timm": _timm, "hf": _transformers}
    return builders.get(kind, _function)(text, dict(options or {}))


def parse_option(text: str) -> tuple[str, Any]:
    """`depth=4` as a name and a value: a JSON value where it is one, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--option {text}: write NAME=VALUE, such as hidden_size=64")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
    except RecursionError as error:
        raise UsageError(f"--option {name}: the value is nested too deeply; write one that has a few levels") from error


def _timm(text: str, options: dict[str, Any]) -> Named:
    _refuse_pretrained(text, options)
    timm, name = _library("timm"), text.removeprefix("timm:")
    if not timm.is_model(name):
        raise unknown_name("timm model", name, timm.list_models())
    settings = timm.get_pretrained_cfg(name)
    own = int(settings.input_size[-1]) if settings is not None else 224

    def make(classes: int, image_size: int) -> Any:
        given = {"pretrained": False, "num_classes": classes, **options}
        if image_size != own:
            with suppress(TypeError):  # a convolutional network takes images of any size, and no such option
                return timm.create_model(name, img_size=image_size, **given)
        return timm.create_model(name, **given)

    return Named(text, own, 32, make)


def _transformers(text: str, options: dict[str, Any]) -> Named:
    _refuse_pretrained(text, options)
    transformers, name = _library("transformers"), text.removeprefix("hf:")
    if name.endswith(".json"):
        config = _config_file(transformers, at_home(name), options)
    elif "/" in name or not name.isidentifier():
        raise UsageError(
            f"{text} is not a config class (hf:ViTConfig) or a config.json file: nothing is downloaded, so a name "
            "on the hub cannot be used; save its config.json and give the file"
        )
    else:
        kind = getattr(transformers, name, None)
        base = getattr(transformers, "PreTrainedConfig", None) or transformers.PretrainedConfig
        if not (inspect.isclass(kind) and issubclass(kind, base)):
            known = [config for config in dir(transformers) if config.endswith("Config")]
            known = [config for config in known if config.lower() == name.lower()] or known
            raise unknown_name("config class of transformers", name, known)
        config = _explained(lambda: kind(**options), text)
    sizes = [getattr(config, side, None) for side in ("image_size", "patch_size")]
    own, patch = (size[0] if isinstance(size, tuple | list) else size for size in sizes)

    def make(classes: int, image_size: int) -> Any:
        config.num_labels = classes
        if own is not None:
            config.image_size = image_size
        if type(config) not in transformers.AutoModelForImageClassification._model_mapping:
            raise UsageError(
                f"{type(config).__name__} has no image classifier in transformers: probe other models from Python, "
                "asymtrain.probe(model, batches)"
            )
        return transformers.AutoModelForImageClassification.from_config(config)

    return Named(text, int(own or 224), int(patch or 32), make)


def _refuse_pretrained(text: str, options: Mapping[str, Any]) -> None:
    """Refuse what makes a library fetch weights: timm's `pretrained`, transformers' `use_pretrained_backbone`."""
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
    module_name, _, name = text.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)  # a model of the user's own lies in the folder they work in
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a script that ends itself is no module
        missing = isinstance(error, ModuleNotFoundError)
        cure = "check the name, and that you are in its folder" if missing else "mend the file"
        raise UsageError(f"{module_name} cannot be imported ({error_line(error)}): {cure}") from error
    finally:
        if added:
            sys.path.remove(here)
    function = getattr(module, name, None)
    if not callable(function):
        names = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        raise unknown_name(f"function in {module_name}", name, names)

    def make(classes: int, image_size: int) -> Any:
        known = inspect.signature(function).parameters
        given = {"classes": classes, "num_classes": classes, "image_size": image_size}
        return function(**{**{name: value for name, value in given.items() if name in known}, **options})

    cure = "mend the function, or give what it needs with --option NAME=VALUE"
    return Named(text, DEFAULT_SIZE, 1, make, cure)


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
        raise UsageError(f"{name} cannot be built ({error_line(error)}): {cure}") from error
