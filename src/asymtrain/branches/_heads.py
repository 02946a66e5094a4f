"""The branches of one layer: their initial weights, which of them is live, and their logits.

    LinearHead    N linear maps, as in the paper
    ModuleHead    N modules of any kind, built by name or by a function
    TiedHead      modules of the model itself, or of another layer's head; no weights of its own

A head reads rows (B, D), tokens (B, T, D) or maps (B, D, H, W) and gives the same with C classes instead of D; a head
that pools, such as the tower, gives (B, C).
Axis letters: B batch, N branches at a layer, C classes, D width of a layer, K layers.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from asymtrain.branches._losses import Activation, Reduction
from asymtrain.branches._pooling import Reader
from asymtrain.errors import UsageError, error_line, unknown_name
from asymtrain.objectives import whole_number
from asymtrain.streams import generator, key

HeadName = Literal["linear", "mlp", "conv", "tower", "tied"]
HeadBuilder = Callable[[int, int], nn.Module]


@dataclass(frozen=True)
class Prior:
    """Asks for a bias that gives the class shares in labels; without labels, equal shares. Made by `prior`."""

    labels: Tensor | None = None


def prior(labels: Tensor | None = None) -> Prior:
    """A bias that starts at the class shares in `labels`, the labels of the training set.

    Labels are class indices, or floats with one value for each class (N, C). A head without bias first has to learn
    that most classes are absent.

    >>> import torch
    >>> from asymtrain import attach, models
    >>> from asymtrain.branches import Linear, prior
    >>> model, labels = models.build("mlp", classes=10), torch.arange(1000) % 10
    >>> branches = attach(model, sample=torch.rand(2, 3, 32, 32), classes=10, head=Linear(bias=prior(labels)))
    """
    return Prior(labels)


@dataclass(frozen=True)
class Linear:
    """A linear head with orthogonal initial weights; without a bias, as in the paper, unless `bias` is given.

    `bias` is one initial value for each class (C,), `prior(labels)`, or `"prior"` for equal class shares.
    """

    bias: Tensor | Prior | Literal["prior"] | None = None


HeadKind = HeadName | Linear | HeadBuilder | nn.Module


@dataclass(frozen=True)
class Parallel:
    """`redundancy` heads side by side at each layer, as in the paper: `head=Parallel(20)`.

    `activation` says which of them are trained: the `last`, or `all`; then a layer's loss is the `reduction` of their
    losses. The last head starts the same for every redundancy.
    """

    redundancy: int
    head: HeadKind | Mapping[str, HeadKind] = "linear"
    activation: Activation = "last"
    reduction: Reduction = "sum"

    def __post_init__(self) -> None:
        object.__setattr__(self, "redundancy", whole_number("redundancy", self.redundancy))
        for option, choices in (("activation", Activation), ("reduction", Reduction)):
            if getattr(self, option) not in get_args(choices):
                raise unknown_name(option, str(getattr(self, option)), get_args(choices))


def draw_branches(seed: int, widths: Sequence[int], classes: int, redundancy: int) -> list[Tensor]:
    """Initial weights: for each width D a float32 CPU tensor (N, C, D) with orthogonal branches.

    The random stream of a branch depends on its layer and its distance from the last branch, so the last one is the
    same for every redundancy. The global random state is not used, and the draw is always on the CPU.
    """
    weights = []
    for layer, width in enumerate(widths):
        # Explicit, since users may change torch's default device and dtype.
        weights_NCD = torch.empty(redundancy, classes, width, device="cpu", dtype=torch.float32)
        for index, weight_CD in enumerate(weights_NCD):
            # Never change the stream's name: stored runs started from what it draws.
            stream = generator(seed, f"branch {redundancy - 1 - index} from last at place {layer}")
            nn.init.orthogonal_(weight_CD, generator=stream)
        weights.append(weights_NCD)
    return weights


class Head(nn.Module):
    """Base class of the heads: the number of branches, and which are live."""

    def __init__(self, width: int, redundancy: int, activation: Activation, positions: int) -> None:
        super().__init__()
        self.width = width
        self.redundancy = redundancy
        self.activation: Activation = activation
        self.positions = positions
        self.pools = False  # whether it gives one row of logits per sample whatever the feature

    @abstractmethod
    def num_weights(self) -> int:
        """The number of weights of all branches, live and idle, without biases."""

    def device(self) -> torch.device | None:
        """The device of the weights; None for a head without weights."""
        return next((value.device for value in self.parameters()), None)

    def check_feature(self, layer: str, feature: Tensor, width: int) -> None:
        """Raise a `UsageError` if a layer's feature is not like the one in the dry run."""
        device = self.device()
        if device is not None and feature.device != device:
            raise UsageError(
                f"layer {layer!r} is on {feature.device}, its branches on {device}: move the branches "
                "with the model, branches.to(device)"
            )
        if width != self.width:
            raise UsageError(
                f"layer {layer!r} now gives {width} features, and gave {self.width} on the sample: attach "
                "with a sample of the shape used in training"
            )

    @abstractmethod
    def as_module(self) -> nn.Module:
        """The last branch as a module of torch, with the head's input and output."""


class LinearHead(Head):
    """N linear maps from D features to C classes, without bias unless one is given.

    Live weights are parameters, the rest are buffers: an optimizer, DDP's reducer and autograd meet live weights only.

    | activation | `live` | `idle` |
    |---|---|---|
    | last | (C, D), the last branch | (N-1, C, D) |
    | all | (N, C, D) | none |

    `bias` is (C,) or (N, C), like the live weights; idle branches have none.
    """

    live: nn.Parameter
    idle: Tensor | None
    bias: nn.Parameter | None

    def __init__(self, weights_NCD: Tensor, activation: Activation, bias_C: Tensor | None, positions: int) -> None:
        super().__init__(weights_NCD.shape[-1], len(weights_NCD), activation, positions)
        last = activation == "last"
        self.live = nn.Parameter(weights_NCD[-1].clone() if last else weights_NCD.clone())
        self.register_buffer("idle", weights_NCD[:-1].clone() if last and self.redundancy > 1 else None)
        shape = self.live.shape[:-1]
        self.bias = None if bias_C is None else nn.Parameter(bias_C.to(self.live.dtype).expand(shape).clone())

    @property
    def weights(self) -> Tensor:
        """All branches (N, C, D), live and idle."""
        live = self.live.detach()
        if self.activation != "last":
            return live
        return live[None] if self.idle is None else torch.cat([self.idle, live[None]])

    def num_weights(self) -> int:
        return self.redundancy * self.live.shape[-2:].numel()

    def device(self) -> torch.device:
        return self.live.device

    def extra_repr(self) -> str:
        """Features, classes and number of branches."""
        return f"{self.width} features to {self.live.shape[-2]} classes, {self.redundancy} branches"

    def as_module(self) -> nn.Module:
        weight, bias = self.live.detach(), None if self.bias is None else self.bias.detach()
        if weight.ndim == 3:
            weight, bias = weight[-1], None if bias is None else bias[-1]
        outputs, has_bias = len(weight), bias is not None
        maps = _CONVOLUTIONS[self.positions](self.width, outputs, 1, bias=has_bias) if self.positions > 1 else None
        layer = maps or nn.Linear(self.width, outputs, bias=has_bias)
        state = {"weight": weight.reshape(layer.weight.shape)} | ({} if bias is None else {"bias": bias})
        layer.to(weight.device, weight.dtype).load_state_dict(state)
        return layer

    def forward(self, feature: Tensor) -> Tensor:
        """Logits of the live branch; with a leading axis N if all are live."""
        weight, bias = self.live, self.bias
        # One product for all live branches.
        flat, added = weight.flatten(0, -2), None if bias is None else bias.flatten()
        with without_autocast(weight):
            feature = feature.to(weight.dtype)
            if self.positions > 1:
                product = _PRODUCTS[self.positions](feature, flat.reshape(*flat.shape, *[1] * self.positions), added)
                return product.unflatten(1, weight.shape[:2]).movedim(1, 0) if weight.ndim == 3 else product
            product = F.linear(feature, flat, added)
        return product.unflatten(-1, weight.shape[:2]).movedim(-2, 0) if weight.ndim == 3 else product


def batched_logits(heads: Sequence[LinearHead], rows: Sequence[Tensor]) -> Tensor:
    """Logits (K, B, C) or (K, N, B, C) of several layers by one product; they share width, dtype and batch size."""
    weight = torch.stack([head.live for head in heads])  # (K, C, D) or (K, N, C, D)
    biases: list[Tensor] = [head.bias for head in heads if head.bias is not None]
    with without_autocast(weight):
        features = torch.stack(list(rows)).to(weight.dtype)
        flat = weight.flatten(1, -2).mT
        if biases:
            product = torch.baddbmm(torch.stack(biases).flatten(1).unsqueeze(1), features, flat)
        else:
            product = torch.bmm(features, flat)
    if weight.ndim == 4:
        product = product.unflatten(-1, weight.shape[1:3]).transpose(1, 2)
    return product


def without_autocast(weight: Tensor) -> AbstractContextManager[object]:
    """A context in the weights' own precision, so that the loss is the same inside and outside autocast."""
    device = weight.device.type
    # torch 2.11 cannot trace is_autocast_available; all devices of compiled code have autocast.
    if torch.compiler.is_compiling() or torch.amp.is_autocast_available(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


class ModuleHead(Head):
    """N modules. With activation `last` the last is live and the states of the others are buffers."""

    def __init__(self, modules: Sequence[nn.Module], width: int, activation: Activation, positions: int) -> None:
        super().__init__(width, len(modules), activation, positions)
        last = activation == "last"
        self.live = nn.ModuleList(modules[-1:] if last else modules)
        if last and len(modules) > 1:
            states = [module.state_dict() for module in modules[:-1]]
            for name in states[0]:
                stacked = torch.stack([state[name] for state in states])
                self.register_buffer(f"idle_{name.replace('.', '_')}", stacked)

    def num_weights(self) -> int:
        each = sum(value.numel() for name, value in self.live[-1].named_parameters() if not name.endswith("bias"))
        return self.redundancy * each

    def as_module(self) -> nn.Module:
        return self.live[-1]

    def forward(self, feature: Tensor) -> Tensor:
        """Logits as in `LinearHead`."""
        first = next(self.parameters(), None)
        # Under autocast the module's layers choose their precision, as they would in the model.
        if first is not None and not torch.is_autocast_enabled(first.device.type):
            feature = feature.to(first.dtype)
        if self.activation == "last":
            return self.live[0](feature)
        return torch.stack([module(feature) for module in self.live])


class TiedHead(Head):
    """Modules that belong to the model, called one after the other. The head adds no state of its own."""

    def __init__(self, parts: Sequence[nn.Module], width: int, positions: int) -> None:
        super().__init__(width, 1, "last", positions)
        self.parts = tuple(parts)  # in a tuple they are no submodules

    def num_weights(self) -> int:
        return 0

    def as_module(self) -> nn.Module:
        return nn.Sequential(*self.parts)

    def forward(self, feature: Tensor) -> Tensor:
        """Logits, in the precision of the model."""
        for part in self.parts:
            feature = part(feature)
        return feature


def check_weight_count(widths: Sequence[int], outputs: int, redundancy: int) -> None:
    """Refuse linear branches with more weights than fit into any memory."""
    if outputs * redundancy * sum(widths) > _MOST_WEIGHTS:
        raise UsageError(
            f"redundancy={redundancy} with {outputs} classes on {sum(widths)} features makes more than {_MOST_WEIGHTS} "
            "weights: give a smaller redundancy, or fewer classes or layers"
        )


def make_heads(
    kinds: Mapping[str, HeadKind],
    features: Mapping[str, Tensor],
    readers: Mapping[str, Reader],
    outputs: int,
    parallel: Parallel,
    biases: Mapping[str, Tensor | None],
    seed: int,
    own: Collection[int],
    tied: Callable[[], Sequence[nn.Module]],
) -> dict[str, Head]:
    """The head of each layer, on the layer's device; raises a `UsageError` if a head does not fit its layer."""
    widths = [width_of(features[name], readers[name].positions) for name in kinds]
    redundancy, activation = parallel.redundancy, parallel.activation
    linear = [width for width, kind in zip(widths, kinds.values(), strict=True) if isinstance(kind, Linear)]
    check_weight_count(linear, outputs, redundancy)
    weights = draw_branches(seed, widths, outputs, redundancy) if linear else []
    heads: dict[str, Head] = {}
    for index, ((name, kind), width) in enumerate(zip(kinds.items(), widths, strict=True)):
        feature, positions = features[name], readers[name].positions
        # bf16 and fp16 features get float32 branches: a sigmoid loss in half precision loses the small logits.
        wide = torch.promote_types(feature.dtype, torch.float32)
        if isinstance(kind, Linear):
            heads[name] = LinearHead(weights[index], activation, biases[name], positions).to(feature.device, wide)
            continue
        if kind == "tied" or isinstance(kind, nn.Module):
            if redundancy > 1 or activation != "last":
                raise UsageError("a head that is shared has one branch: give it without Parallel")
            if kind == "tied" and positions > 1:
                raise UsageError(
                    f"layer {name!r} keeps maps, and the model's output layer, which is linear, reads rows or tokens: "
                    "attach with pool='mean', or give layers for maps as head="
                )
            parts = list(tied()) if kind == "tied" else [kind]
            _refuse_lazy(name, parts)
            # A user's module belongs to the first layer that has it; the other layers are tied to it.
            elsewhere = any(isinstance(head, ModuleHead) and head.live[0] is kind for head in heads.values())
            if elsewhere or _belongs(parts, own):
                heads[name] = TiedHead(parts, width, positions)
            else:
                heads[name] = ModuleHead([parts[0].to(feature.device)], width, activation, positions)
        else:
            modules = module_heads(kind, seed, index, width, outputs, redundancy, name, positions)
            _refuse_lazy(name, modules)
            heads[name] = ModuleHead(modules, width, activation, positions).to(feature.device, wide)
        _check_fit(name, heads[name], feature, outputs)
    return heads


def module_heads(
    kind: HeadName | HeadBuilder, seed: int, index: int, width: int, outputs: int, redundancy: int,
    layer: str = "", positions: int = 0,
) -> list[nn.Module]:  # fmt: skip
    """The branches of layer number `index`, built by name or by a function, with their initial weights."""
    build = kind if callable(kind) else partial(NAMED_HEADS[kind], positions)
    keys = [key(seed, f"head {redundancy - 1 - branch} from last at place {index}") for branch in range(redundancy)]
    return [_built(build, layer, width, outputs, branch_key) for branch_key in keys]


def _refuse_lazy(layer: str, modules: Iterable[nn.Module]) -> None:
    if any(is_lazy(weight) for module in modules for weight in module.parameters()):
        raise UsageError(
            f"the head of layer {layer!r} has lazy layers without weights: build it for the width that it is given"
        )


def _belongs(parts: Sequence[nn.Module], own: Collection[int]) -> bool:
    """Whether a shared head is made of the model's own layers."""
    answers = {id(parameter) in own for part in parts for parameter in part.parameters()}
    if len(answers) > 1:
        raise UsageError("the shared head has weights of the model and others: use the model's layers alone, or none")
    return answers == {True}


def width_of(feature: Tensor, positions: int) -> int:
    """The number of features D in rows, tokens or maps."""
    return feature.shape[1 if positions > 1 else -1]


def _built(build: HeadBuilder, layer: str, width: int, outputs: int, seed: int) -> nn.Module:
    """A module whose initial weights depend on the seed alone; the global random state is restored."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed & (2**63 - 1))
        try:
            module = build(width, outputs)
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(
                f"the head of layer {layer!r} cannot be built ({error_line(error)}): `head` takes a function of "
                "(width, outputs) that returns a module"
            ) from error
    if not isinstance(module, nn.Module):
        raise UsageError(f"`head` returned a {type(module).__name__} for layer {layer!r}: return an nn.Module")
    return module


def _check_fit(layer: str, head: Head, feature: Tensor, outputs: int) -> None:
    built = head.as_module()
    modes = [(module, module.training) for module in built.modules()]
    try:
        with torch.no_grad():
            logits = built.eval()(feature.to(next(built.parameters(), feature).dtype))
    except UsageError as error:
        raise UsageError(f"layer {layer!r}: {error}") from None
    except Exception as error:
        raise UsageError(
            f"the head of layer {layer!r} cannot be called on features of shape {tuple(feature.shape)} "
            f"({error_line(error)}): give a head for this width and pool, or a dict from layer to head"
        ) from error
    finally:
        for module, mode in modes:
            module.training = mode
    fits = isinstance(logits, Tensor) and logits.ndim in (feature.ndim, 2) and len(logits) == len(feature)
    head.pools = fits and logits.ndim == 2 < feature.ndim
    if not fits or width_of(logits, 0 if head.pools else head.positions) != outputs:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        expected_shape = list(feature.shape)
        expected_shape[1 if head.positions > 1 else -1] = outputs
        raise UsageError(
            f"the head of layer {layer!r} gives {shape} for features of shape {tuple(feature.shape)}, where "
            f"{tuple(expected_shape)} is needed: check `classes`, and that the head keeps all positions or none"
        )


def _mlp(positions: int, width: int, outputs: int) -> nn.Module:
    layer = _CONVOLUTIONS[positions] if positions > 1 else None
    inner, last = (layer(width, made, 1) if layer else nn.Linear(width, made) for made in (width, outputs))
    return nn.Sequential(inner, nn.GELU(), last)


def _conv(positions: int, width: int, outputs: int) -> nn.Module:
    if not positions:
        raise UsageError("head='conv' needs positions to look at: attach with pool='none', or use head='mlp'")
    # As in the auxiliary heads of segmentation models: a quarter of the channels, then a 1x1 convolution.
    inner, convolution = max(width // 4, 8), _CONVOLUTIONS[positions]
    layers = [convolution(width, inner, 3, padding=1, bias=False), _NORMS[positions](inner), nn.ReLU()]
    layers.append(convolution(inner, outputs, 1))
    return nn.Sequential(*layers) if positions > 1 else nn.Sequential(_Turned(), *layers, _Turned())


def _tower(positions: int, width: int, outputs: int) -> nn.Module:
    if positions < 2:
        raise UsageError("head='tower' reads maps (B, D, H, W): at layers without them use head='mlp'")
    layers: list[nn.Module] = []
    # Two strided convolutions whose widths do not depend on the layer, so that a tower on an early layer stays cheap.
    for channels, channels_out in pairwise((width, *_TOWER)):
        convolution = _CONVOLUTIONS[positions](channels, channels_out, 3, stride=2, padding=1, bias=False)
        layers += [convolution, nn.GroupNorm(8, channels_out), nn.GELU()]
    return _Tower(*layers, nn.Linear(_TOWER[-1], outputs))


class _Tower(nn.Sequential):
    """Convolutions, the mean over the remaining positions, and a linear layer."""

    def forward(self, maps: Tensor) -> Tensor:
        if min(maps.shape[2:]) < _SMALLEST:
            raise UsageError(
                f"head='tower' needs maps of {_SMALLEST} positions or more along each axis, and got "
                f"{' x '.join(map(str, maps.shape[2:]))}: leave the layer out, or use head='mlp' there"
            )
        *steps, product = self
        for step in steps:
            maps = step(maps)
        logits: Tensor = product(maps.flatten(2).mean(-1))
        return logits


class _Turned(nn.Module):
    """Transposes (B, T, D) to (B, D, T) and back."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.mT


_MOST_WEIGHTS = 1 << 36  # more than any machine's memory holds
_TOWER = (64, 128)  # widths
_SMALLEST = 2  # in a map of one position a convolution has no neighbours to read
NAMED_HEADS: dict[str, Callable[[int, int, int], nn.Module]] = {"mlp": _mlp, "conv": _conv, "tower": _tower}
"""Heads by name: builders of (number of axes of positions, width, outputs)."""
MAP_HEADS = frozenset({"tower"})
"""Named heads that read positions and pool them: their layers are read with pool='none'."""
_CONVOLUTIONS: dict[int, type[nn.Conv1d | nn.Conv2d | nn.Conv3d]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_NORMS: dict[int, type[nn.Module]] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_PRODUCTS: dict[int, Callable[..., Tensor]] = {2: F.conv2d, 3: F.conv3d}
