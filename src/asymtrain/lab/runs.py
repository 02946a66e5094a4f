"""A training run as a value: `RunSpec` describes it, `Run` records it.

A spec's id is a hash of the fields that differ from their defaults. So the id is the same in any process and
Python version, and fields that are added later do not change the ids of earlier specs. For the same
reason a default, once released, never changes (a test pins them).
"""

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, Literal, NamedTuple, get_args, get_origin

from asymtrain.errors import UsageError, near_names, unknown_name
from asymtrain.lab.sources import check_name, is_named
from asymtrain.models import check_options

Value = int | float | str | bool | tuple[int, ...]
Options = tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class RunSpec:
    """One training run. Comments explain the fields; the first value in a `Literal` is the default.

    Redundancy 0 is Plain: its auxiliary settings are reset, so that Plain is one spec in every comparison.
    """

    # The data.
    dataset: str = "shapes"
    dataset_options: Options = ()
    per_class: int | None = None  # a stratified few-shot subset of this many images a class
    label_noise: float = 0.0  # the share of training labels that are flipped
    validation: Literal["split", "none"] = "split"  # 80/20 split, or train on every training image
    # The model.
    arch: str = "mlp"  # a backbone, or timm:NAME, hf:CONFIG, package.module:function
    arch_options: Options = ()
    initial_weights: str = ""  # a safetensors file; by default the initial weights are random
    # The auxiliary objective.
    at: tuple[str, ...] = ()  # layers as in `attach`; () for a backbone's own, or the repeated blocks
    layers: Literal["all", "later", "middle"] = "all"  # which of these: later is the second half, middle a single one
    pool: Literal["mean", "class_token"] = "mean"  # how a layer's output becomes features; a backbone has its own rule
    layout: str = ""  # the axes of a layer's output (BTD, BCHW), if `attach` cannot infer them
    head: Literal["linear", "mlp", "tower"] = "linear"  # tower: convolutions on maps, with its own pooling
    redundancy: int = 1  # branches at each point; 0 is Plain
    activation: Literal["last", "all"] = "last"
    alpha: float = 1.0
    class_reduction: Literal["mean", "sum"] = "mean"  # over the per-class sigmoid losses
    layer_reduction: Literal["sum", "mean"] = "sum"  # mean, with classes summed: alpha is the library's strength
    alpha_schedule: Literal["constant", "linear", "cosine", "early"] = "constant"  # early: the first half only
    balance: Literal["none", "norms"] = "none"  # norms: alpha is the ratio of auxiliary to main gradient norm
    # Controls: the parts of the auxiliary signal.
    objective: str = "sigmoid"  # the loss of a branch, a name in asymtrain.objectives.OBJECTIVES
    branch_labels: Literal["true", "random"] = "true"  # random: a fixed random label for each image, keyed by the seed
    bias: Literal["none", "prior"] = "none"  # prior: trained, starting at the class shares
    branch_weights: Literal["trained", "frozen"] = "trained"
    signal: Literal["gradient", "detached", "noise", "gated"] = "gradient"  # what reaches the backbone
    # Training, by AdamW.
    label_smoothing: float = 0.0  # of the main loss
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    decay: Literal["all", "matrices"] = "all"  # which weights decay
    batch: int = 128
    last_batch: Literal["keep", "drop"] = "keep"  # of an epoch, if it is smaller
    epochs: int = 10
    schedule: Literal["constant", "cosine"] = "constant"
    schedule_by: Literal["epoch", "step"] = "epoch"  # how often the rate changes
    warmup: float = 0.0  # epochs in which the rate rises from near 0
    clip: float = 0.0  # largest norm of a run's gradient, branches included; 0 is none
    averaging: float = 0.0  # decay of a moving average of the weights, which is then evaluated; 0 is none
    passes: int = 1  # how often an epoch shows each image, each time in a new order
    # trivial: flips, shifts, one more transform; policy: flips, shifts, AutoAugment for CIFAR; policy_first: that first
    augmentation: Literal["none", "flip_shift", "trivial", "policy", "policy_first"] = "none"
    erasing: float = 0.0  # probability that a rectangle of an image is erased
    erased_area: float = 1 / 3  # the largest share of an image that is erased
    mixup: float = 0.0  # parameter of the Beta distribution of a batch's shares; 0 is none
    cutmix: float = 0.0  # the same; if both are above 0, each batch uses one of them
    mixing: float = 1.0  # the share of batches that are mixed
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    seed: int = 42
    # Recording.
    test: Literal["last", "every", "never"] = "last"  # a search says never
    cosine_every: int = 16  # steps between gradient cosines, also measured at each epoch's start; 0 for none

    def __post_init__(self) -> None:
        # Only fields that differ from their defaults are checked: a study has thousands of specs with few such fields.
        values = vars(self)
        changed = [name for name, default in DEFAULTS.items() if values[name] is not default]
        values |= {name: _normalised(name, values[name]) for name in changed}
        if self.redundancy == 0:
            values |= _PLAIN_VALUES
        _check(self, changed)

    @cached_property
    def id(self) -> str:
        """Sixteen hexadecimal digits that identify this spec everywhere."""
        return hashlib.sha256(_as_json(self.to_dict()).encode()).hexdigest()[:16]

    @property
    def variant(self) -> Literal["plain", "asymmetric"]:
        """The side of a comparison that this run is on."""
        return "plain" if self.redundancy == 0 else "asymmetric"

    def plain(self) -> "RunSpec":
        """The same run without branches."""
        return dataclasses.replace(self, redundancy=0)

    def to_dict(self) -> dict[str, Any]:
        """The fields that differ from their defaults, as JSON values under their stored names."""
        values = vars(self)
        return {
            STORED_NAMES.get(name, name): _jsonable(values[name])
            for name, default in DEFAULTS.items()
            if values[name] != default
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunSpec":
        """Inverse of `to_dict`; an unknown field is an error, which says that another version may have written it."""
        values = from_stored(values)
        for name in values:
            if name not in DEFAULTS:
                raise unknown_name("field of a run (was it written by another version?)", name, DEFAULTS)
        return cls(**values)


class Epoch(NamedTuple):  # a study has half a million of them: a frozen dataclass takes ten times as long to make
    """The record of one epoch. Losses and training accuracy are means over its steps.

    Cosines and norms are of the gradients of the main and the auxiliary loss over the backbone parameters that both
    reach, at the measured steps; a cosine is None where it is undefined.
    """

    epoch: int  # from 1
    main_loss: float
    auxiliary_loss: float | None
    # On the training batches, with dropout and augmentation; for a mixed image each label counts by its share.
    train_accuracy: float
    validation_accuracy: float | None
    test_accuracy: float | None
    cosine: float | None  # mean over the measured steps
    cosine_min: float | None
    cosine_max: float | None
    seconds: float  # a run's share of its stack's time
    cosine_std: float | None = None  # over the measured steps (n - 1)
    conflict: float | None = None  # share of the measured steps whose cosine is negative
    main_norm: float | None = None  # mean norm of the main gradient
    auxiliary_norm: float | None = None  # mean norm of the auxiliary gradient, before alpha

    @property
    def is_finite(self) -> bool:
        """Whether all recorded numbers are finite."""
        return all(math.isfinite(value) for value in self if isinstance(value, float))


_seconds = attrgetter("seconds")


class UnreadHistory(Sequence[Epoch]):
    """The history of a stored run whose epochs were not read: their number, and their total seconds."""

    def __init__(self, epochs: int, seconds: float) -> None:
        self.epochs, self.seconds = epochs, seconds

    def __len__(self) -> int:
        return self.epochs

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("the epochs of this run were not read from the store")


@dataclass(frozen=True)
class Run:
    """A spec and its result. A diverged run keeps the epochs before the first value that was not finite."""

    spec: RunSpec
    history: Sequence[Epoch]
    outcome: Literal["finished", "diverged"] = "finished"
    device: str = "cpu"
    path: str = "reference"  # the engine path that trained it
    answers: bytes | None = None  # one bit for each test image: whether it is classified right after the last epoch
    # Fingerprints, since the model and data that a spec names can change. These and the following fields are None if
    # they were not recorded.
    model_fingerprint: str | None = None  # of the model with the initial values of seed 0
    data_fingerprint: str | None = None
    calibration_error: float | None = None  # expected, on the test images after the last epoch
    classes: int | None = None  # of the data
    largest_class: float | None = None  # the share of the largest class in the test examples

    @property
    def seconds(self) -> float:
        """Training time with evaluation, without compiling for a GPU before the first step."""
        history = self.history
        return history.seconds if isinstance(history, UnreadHistory) else math.fsum(map(_seconds, history))

    @property
    def test_accuracy(self) -> float | None:
        """Test accuracy after the last epoch, if the spec asked for it."""
        return self.history[-1].test_accuracy if self.history else None

    @cached_property
    def best_validation(self) -> Epoch | None:
        """The epoch with the highest validation accuracy; on ties the earliest."""
        epochs = [epoch for epoch in self.history if epoch.validation_accuracy is not None]
        return max(epochs, key=lambda epoch: epoch.validation_accuracy or 0.0, default=None)

    @property
    def mean_cosine(self) -> float | None:
        """Gradient cosine averaged over epochs."""
        cosines = [epoch.cosine for epoch in self.history if epoch.cosine is not None]
        return math.fsum(cosines) / len(cosines) if cosines else None


_TYPES: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(RunSpec)}
DEFAULTS: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(RunSpec)}
STORED_NAMES = {"layers": "places", "class_reduction": "over_classes", "bias": "branch_bias"}
"""Fields that are stored under an older name. Ids are hashes that include these names, so they never change."""


_as_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def from_stored(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by field name, from values by stored name."""
    names = {key: name for name, key in STORED_NAMES.items()}
    return {names.get(name, name): value for name, value in values.items()}


_LITERALS = {name: get_args(kind) for name, kind in _TYPES.items() if get_origin(kind) is Literal}
AUXILIARY = (
    "at", "layers", "pool", "layout", "head", "redundancy", "activation", "alpha", "class_reduction",
    "layer_reduction", "alpha_schedule", "balance",
    "objective", "branch_labels", "bias", "branch_weights", "signal", "cosine_every",
)  # fmt: skip
"""Settings that Plain lacks: one Plain run is the partner of every Asymmetric run with the same other settings."""
PLAIN: dict[str, Any] = {"redundancy": 0, "alpha": 0.0}  # Plain's values that differ from the defaults
_PLAIN_VALUES = {name: PLAIN.get(name, DEFAULTS[name]) for name in AUXILIARY}
# A copy of the names in the registry, since that loads torch.
_OBJECTIVES = ("sigmoid", "softmax", "mse", "huber", "distill")
_LEAST = {
    "redundancy": 0, "alpha": 0, "weight_decay": 0, "batch": 1, "epochs": 1, "seed": 0, "cosine_every": 0,
    "label_noise": 0, "per_class": 1, "label_smoothing": 0, "warmup": 0, "clip": 0,
    "averaging": 0, "erasing": 0, "mixup": 0, "cutmix": 0, "passes": 1, "mixing": 0,
}  # fmt: skip
_BELOW_ONE = ("label_smoothing", "averaging")


def choices(field: str) -> tuple[str, ...]:
    """The named values that a field of a run may have; empty for numbers and free texts."""
    if field == "objective":
        from asymtrain.objectives import OBJECTIVES, RowObjective

        return tuple(name for name, objective in OBJECTIVES.items() if issubclass(objective, RowObjective))
    return _LITERALS.get(field, ())


def grid(base: RunSpec, **axes: Iterable[Any]) -> list[RunSpec]:
    """Every combination of the given values, without repeats: `grid(spec, seed=range(3), alpha=[0.1, 1])`."""
    for name, values in axes.items():
        if name not in DEFAULTS:
            raise unknown_name("field of a run", name, DEFAULTS)
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise UsageError(f"{name} must be a list of values, got {values!r}: write {name}=[{values!r}]")
    combinations = itertools.product(*map(list, axes.values()))
    specs = [dataclasses.replace(base, **dict(zip(axes, values, strict=True))) for values in combinations]
    return list(dict.fromkeys(specs))


def pairs(base: RunSpec, seeds: Iterable[int]) -> list[RunSpec]:
    """Plain and Asymmetric of each seed, side by side."""
    if base.redundancy == 0:
        raise UsageError("pairs need redundancy 1 or more: 0 is Plain, and Plain is added to each seed")
    return [spec for run in grid(base, seed=seeds) for spec in (run.plain(), run)]


def _normalised(name: str, value: Any) -> Any:
    """One form for equal settings, so that they have one id: 1 and 1.0, lists and tuples, options in any order."""
    kind = _TYPES[name]
    if name.endswith("_options"):
        return _normalise_options(name, value)
    if kind is float:
        return _number(name, value)
    if kind is int or (kind == int | None and value is not None):
        number = _number(name, value)
        if not number.is_integer():
            raise UsageError(f"{name} must be a whole number, got {value!r}")
        return int(value)  # not int(number): a float holds 53 bits
    if kind is str and not isinstance(value, str):
        raise UsageError(f"{name} must be a text, got {value!r}")
    if kind == tuple[str, ...]:
        names = (value,) if isinstance(value, str) else value
        if not isinstance(names, list | tuple) or not all(isinstance(item, str) and item for item in names):
            raise UsageError(f"{name} must be a list of names, got {value!r}")
        return tuple(names)
    return value


def _number(name: str, value: object) -> float:
    """The value as a float; numpy's scalars are allowed, True and "1" are not."""
    try:
        if isinstance(value, bool | str):
            raise TypeError
        number = float(value) + 0.0  # type: ignore[arg-type]  # -0.0 becomes 0.0
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{name} must be a number, got {value!r}") from None
    if not math.isfinite(number):
        raise UsageError(f"{name} must be a finite number, got {value}")
    return number


def _normalise_options(name: str, options: Any) -> Options:
    try:
        items = [(key, value) for key, value in (options.items() if isinstance(options, Mapping) else options)]
    except (TypeError, ValueError):
        raise UsageError(f"{name} must map names to values, got {options!r}") from None
    if len({key for key, _ in items}) < len(items) or not all(isinstance(key, str) for key, _ in items):
        raise UsageError(f"{name} must map names to values, each name once, got {options!r}")
    return tuple(sorted((key, _plain_value(f"{key} in {name}", value)) for key, value in items))


def _plain_value(name: str, value: Any) -> Value:
    if isinstance(value, bool | str):
        return value
    if isinstance(value, list | tuple | range):
        return tuple(_plain_value(name, item) for item in value)  # type: ignore[misc]
    number = _number(name, value)
    return int(value) if number.is_integer() else number


def _check(spec: RunSpec, changed: Iterable[str]) -> None:
    for name in changed:
        value = getattr(spec, name)
        if value == DEFAULTS[name] or (name == "objective" and value in _OBJECTIVES):
            continue
        if (allowed := choices(name)) and value not in allowed:
            near = [repr(option) for option in near_names(str(value), allowed)]
            hint = f": did you mean {' or '.join(near)}?" if near else ""
            raise UsageError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}{hint}")
        if name in _LEAST and value < _LEAST[name]:
            raise UsageError(f"{name} must be {_LEAST[name]} or more, got {value}")
    if spec.learning_rate <= 0:
        raise UsageError(f"learning_rate must be above 0, got {spec.learning_rate}")
    if spec.label_noise > 1:
        raise UsageError(f"label_noise is a share between 0 and 1, got {spec.label_noise}")
    for name in _BELOW_ONE:
        if getattr(spec, name) >= 1:
            raise UsageError(f"{name} is a share below 1, got {getattr(spec, name)}")
    for name in ("erasing", "mixing"):
        if getattr(spec, name) > 1:
            raise UsageError(f"{name} is a probability between 0 and 1, got {getattr(spec, name)}")
    if not 0.02 <= spec.erased_area <= 1:
        raise UsageError(
            f"erased_area is a share between 0.02 (the least that is erased) and 1, got {spec.erased_area}"
        )
    if spec.warmup and spec.warmup >= spec.epochs:
        raise UsageError(f"warmup must be shorter than the {spec.epochs} epochs of the run, got {spec.warmup:g}")
    if spec.bias == "prior" and spec.head != "linear":
        raise UsageError(f"bias is for head='linear', and the head is {spec.head!r}")
    if spec.head == "tower" and spec.pool != DEFAULTS["pool"]:
        raise UsageError(f"head='tower' reads maps without pooling: leave out pool={spec.pool!r}")
    if spec.balance == "norms" and spec.signal != "gradient":
        raise UsageError(f"balance='norms' is for signal='gradient', and the signal is {spec.signal!r}")
    if is_named(spec.arch):
        check_name(spec.arch, spec.arch_options)
        return
    check_options(spec.arch, dict(spec.arch_options))
    if spec.at or spec.layout or spec.pool != DEFAULTS["pool"]:
        raise UsageError(f"{spec.arch} has layers and pooling of its own: its options are points and branch_input")
    if spec.initial_weights:
        raise UsageError(f"initial_weights is for models by name, and {spec.arch} is a backbone: leave it out")


def _jsonable(value: Any) -> Any:
    return [_jsonable(item) for item in value] if isinstance(value, tuple) else value
