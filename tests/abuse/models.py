"""Random models: `attach` refuses in one line and leaves no trace, or everything that it promises holds.

A case is drawn from (seed, number) alone: `attach_one(seed, number)` repeats it, `describe(seed, number)` prints it.
Models are chains of small layers with residual, shared, nested and recurrent parts, under names that nobody would
choose. Some layers give scalars, nested tensors and odd mappings; about a third of the cases have something wrong in
them.
"""

import copy
import io
import math
import random
import warnings
from collections import UserDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from abuse.tally import Tally
from asymtrain.branches import PRESETS, Branches, Dense, Falling, GradientRatio, Linear, Parallel, WithBranches, attach
from asymtrain.errors import UsageError
from asymtrain.objectives import OBJECTIVES, Distill, Mse, Objective, Sigmoid

WIDTH = 4
NAMES = (
    "a", "b", "a.b", "a/b", "a~1b", "a~b", "~", "/keys", "keys", "items", "pop", "live", "idle", "heads", "step",
    "x[0]", "x0", "*", "**", "?", "[", "(model)", "", " ", "line\nbreak", "\x1b[31m", "é", "e\u0301", "日本", "0", "-1",
    "class", "__init__", "block", "block.", ".block", "a.b.c", "a/b.c", "a.b/c", "%s", "{}", "$x$", "<b>",
)  # fmt: skip
ALIKE = ("a.b", "a/b", "a~1b", "keys", "/keys", "x[0]", "x0")


class Fault(Exception):
    """What does not hold."""


def run(seed: int, cases: int, folder: Path) -> Tally:
    """Try `attach` on `cases` random models."""
    tally = Tally("models", seed)
    for number in range(cases):
        outcome, fault = attach_one(seed, number)
        repeat = f"seed {seed} case {number}"
        tally.add(outcome, None if fault is None else f"{repeat}: {fault} [{describe(seed, number)}]")
    return tally


def attach_one(seed: int, number: int) -> tuple[str, str | None]:
    """The outcome of one case, and what was wrong with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = draw_case(seed, number)
        try:
            return try_case(case, number), None
        except Fault as fault:
            return "broken promise", str(fault)
        except Exception as error:
            return "traceback", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def describe(seed: int, number: int) -> str:
    """The case in words."""
    case = draw_case(seed, number)
    return f"{case.what}; at={case.at!r}; sample={case.kind}; {case.options}; model={case.model}"


# ---- what is drawn


@dataclass
class Case:
    """A model, and what `attach` is called with."""

    model: nn.Module
    at: Any
    sample: Any
    kind: str
    options: dict[str, Any]
    what: str = ""


class Chain(nn.Module):
    """Runs parts one after another, some of them twice; of nested outputs it goes on with the first tensor."""

    def __init__(self, order: list[nn.Module], wrap: str) -> None:
        super().__init__()
        self.order = tuple(order)  # not a module: the names are given by whoever builds it
        self.wrap = wrap

    def forward(self, x: Any, *others: Any) -> Any:
        if x is not None and not isinstance(x, Tensor):
            x = first_tensor(x)
        for part in self.order:
            x = first_tensor(part(x))
        return {"tensor": x, "tuple": (x, None), "dict": {"logits": x, "more": [x]}, "list": [[x]]}[self.wrap]


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + first_tensor(self.inner(x))


class Attention(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=batch_first)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.attention(x, x, x)


class Swapped(nn.Module):
    """A layer on other axes than its neighbours."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.movedim(1, -1)).movedim(-1, 1) if x.ndim > 2 else self.inner(x)


class Nest(nn.Module):
    """Nested outputs."""

    def __init__(self, kind: int) -> None:
        super().__init__()
        self.layer, self.kind = nn.Identity(), kind

    def forward(self, x: Tensor) -> Any:
        y = self.layer(x) * 1
        return NESTS[self.kind](y)


class Lenient(dict[str, Any]):
    """A mapping that has every attribute, as configuration libraries make them."""

    def __getattr__(self, name: str) -> Any:
        return None if not name.startswith("__") else super().__getattribute__(name)


class Strict(dict[str, Any]):
    """A mapping that fails where another says that it has no such attribute."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name) if not name.startswith("__") else AttributeError(name)


NESTS: list[Callable[[Tensor], Any]] = [
    lambda y: (y, {"more": y}),
    lambda y: {"ids": torch.zeros(2, dtype=torch.int64), "y": y},
    lambda y: [[], (None, y)],
    lambda y: (y,),
    lambda y: y,
    lambda y: {3: y, (1, 2): None, None: [y]},
    lambda y: Lenient(y=y, logits=torch.zeros(2, dtype=torch.int64)),
    lambda y: Strict(y=y, logits=None),
    lambda y: UserDict(y=y),
    lambda y: MappingProxyType({"y": y}),
    lambda y: defaultdict(list, y=y),
]


class Aside(nn.Module):
    """Gives on what it takes, and calls a layer beside the way that makes something odd of it."""

    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.odd = Making(make)

    def forward(self, x: Tensor) -> Tensor:
        self.odd(x)
        return x * 1


class Making(nn.Module):
    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(x)


def ragged(x: Tensor, layout: torch.layout) -> Tensor:
    """The rows of a batch with lengths of their own."""
    rows = [row.reshape(-1, row.shape[-1]) for row in x.unbind()]
    return torch.nested.as_nested_tensor([torch.cat([row] * (1 + i % 2)) for i, row in enumerate(rows)], layout=layout)


ODD: list[Callable[[Tensor], Any]] = [
    lambda x: x.mean(),  # scalars
    lambda x: {"loss": x.square().mean(), "x": x},
    lambda x: (x.sum().long(), x.amax()),
    lambda x: x.mean().item(),
    lambda x: torch.stack([x.mean(), x.amax()]),
    lambda x: ragged(x, torch.strided),
    lambda x: (ragged(x, torch.jagged), x),
    lambda x: Lenient(x=ragged(x, torch.jagged)),
    lambda x: Strict(y=x.mean()),
]


class Gathered(nn.Module):
    """Runs a layer on nested tensors, and pools what that gives to (B, D)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([row.mean(0) for row in self.inner(x).unbind()])


class Pooled(nn.Module):
    """Makes nested tensors of a batch, and adds what a layer on them and a pooling give."""

    def __init__(self, inner: nn.Module, layout: torch.layout) -> None:
        super().__init__()
        self.gathered, self.layout = Gathered(inner), layout

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gathered(ragged(x, self.layout)).reshape(len(x), *[1] * (x.ndim - 2), -1)


class Reduced(nn.Module):
    """A model whose output is a scalar, as one that returns its own loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return first_tensor(self.model(*args, **kwargs)).float().square().mean()


class Stateful(nn.Module):
    """A buffer that every forward changes, whatever the mode."""

    def __init__(self, buffer: Tensor | None, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()), persistent)
        self.register_buffer("state", buffer, persistent)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return x * 1


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 1).add_(1).clamp_(min=-5).mul_(0.5)


class Idle(nn.Module):
    """Holds parts and calls none, or only in training."""

    def __init__(self, in_training: bool) -> None:
        super().__init__()
        self.part, self.in_training = nn.Identity(), in_training

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x) if self.in_training and self.training else x * 1


def first_tensor(value: Any) -> Any:
    """The first floating-point tensor in nested containers."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return next((tensor for part in parts if (tensor := first_tensor(part)) is not None), None)


def draw_case(seed: int, number: int) -> Case:
    """The case of this number."""
    draw = random.Random(f"{seed}/{number}")
    torch.manual_seed(draw.randrange(2**31))
    kind = draw.choice(list(SAMPLES))
    model = draw_model(draw, kind)
    sample = SAMPLES[kind][0](draw.choice([1, 2, 2, 3, 4, 5]))
    at = None if draw.random() < 0.1 else draw_layers(draw, model)
    case = Case(model, at, sample, kind, draw_options(draw, kind))
    odd = [name for name, part in model.named_modules() if isinstance(part, Nest | Making)]
    if odd and draw.random() < 0.3:
        case.at, case.options["output"] = draw.choice(odd), draw.choice(["y", "x", "loss", "logits", "nowhere", 0, -1])
    precision = draw.choice([None] * 8 + [torch.float64, torch.float16])
    if precision is not None:
        model.to(precision)
        case.sample = as_precision(sample, precision)
        case.what = str(precision)
    if kind != "ragged" and draw.random() < 0.25:
        name = draw.choice(list(WRONG))
        case.what += f" {name}"
        WRONG[name](draw, case)
    if draw.random() < 0.2:
        case.sample = draw.choice([lambda s: (s,), lambda s: {"x": s}])(case.sample)
    for part in model.modules():
        if draw.random() < 0.1:
            part.training = False
        if draw.random() < 0.05:
            part.requires_grad_(False)
    return case


def draw_model(draw: random.Random, kind: str) -> nn.Module:
    order = [draw_layer(draw, kind, 2) for _ in range(draw.randint(1, 5))]
    if kind == "tokens":
        order.insert(0, nn.Embedding(9, WIDTH))
    if kind == "ragged":
        order.insert(0, Gathered(draw.choice([nn.Linear(WIDTH, WIDTH), Norm(WIDTH), nn.Identity()])))
    model = Chain(order, draw.choice(["tensor"] * 5 + ["tuple", "dict", "list"]))
    give_names(draw, model, order)
    if draw.random() < 0.2:
        model = nn.Sequential(model)
    return Reduced(model) if draw.random() < 0.05 else model


def give_names(draw: random.Random, model: nn.Module, parts: list[nn.Module]) -> None:
    holder, names = model, NAMES if draw.random() < 0.8 else ALIKE
    for part in parts:
        name = draw.choice(names) if draw.random() < 0.5 else f"part{len(model._modules)}"
        if draw.random() < 0.1:  # a container that is never called
            kind = draw.choice([nn.ModuleList, nn.ModuleDict])
            held = nn.ModuleList([part]) if kind is nn.ModuleList else nn.ModuleDict({"a": part})
            part = held
        elif draw.random() < 0.1:  # two names for one module
            setattr(model, f"alias{len(model._modules)}", part)
        while name in holder._modules or hasattr(holder, name):
            name += draw.choice("xy.")
        setattr(holder, name, part)  # unlike add_module, takes any name
        if draw.random() < 0.1 and not isinstance(part, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            setattr(part, draw.choice(["b", "extra"]), nn.Linear(2, 2))


def draw_layer(draw: random.Random, kind: str, depth: int) -> nn.Module:
    axis_first = kind in ("images", "waves", "volumes")
    rows, sequences = kind in ("rows", "ragged"), kind in ("sequences", "tokens", "transposed")
    choices: list[Callable[[], nn.Module]] = [
        lambda: nn.ReLU(inplace=draw.random() < 0.3),
        nn.Tanh,
        nn.GELU,
        nn.Identity,
        lambda: nn.Dropout(0.3),
        lambda: Nest(draw.randrange(len(NESTS))),
        lambda: Aside(draw.choice(ODD)),
        InPlace,
        lambda: Stateful(draw.choice(BUFFERS)(), draw.random() < 0.7),
        lambda: Idle(draw.random() < 0.5),
    ]
    if depth:
        inner = lambda: draw_layer(draw, kind, depth - 1)  # noqa: E731
        choices += [
            lambda: Residual(inner()),
            lambda: nn.Sequential(*[nn.Identity(), *[nn.Identity() for _ in range(draw.randint(0, 2))]]),
            lambda: (lambda part: nn.Sequential(Nested(part), Nested(part)))(inner()),  # a shared module
        ]
    if not axis_first:
        choices += 3 * [lambda: nn.Linear(WIDTH, WIDTH, bias=draw.random() < 0.5)]
        choices += [lambda: nn.LayerNorm(WIDTH), lambda: nn.RMSNorm(WIDTH)]
        layouts = [torch.strided, torch.jagged]
        choices += [lambda: Pooled(draw.choice([nn.Linear(WIDTH, WIDTH), Norm(WIDTH)]), draw.choice(layouts))]
    if rows:
        choices += [lambda: nn.BatchNorm1d(WIDTH)]
    if sequences:
        batch_first = kind != "transposed"
        choices += [
            lambda: nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=batch_first),
            lambda: Attention(batch_first),
            lambda: draw.choice([nn.LSTM, nn.GRU, nn.RNN])(WIDTH, WIDTH, batch_first=batch_first),
            lambda: Swapped(nn.Conv1d(3, 3, 1)) if kind == "sequences" else nn.Identity(),
        ]
    if axis_first:
        dimensions = {"waves": 1, "images": 2, "volumes": 3}[kind]
        convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
        norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dimensions - 1]
        choices += 3 * [lambda: convolution(WIDTH, WIDTH, 3, padding=1, groups=draw.choice([1, 2]))]
        choices += [lambda: norm(WIDTH), lambda: Groups(2, WIDTH), lambda: Swapped(nn.Linear(WIDTH, WIDTH))]
    return draw.choice(choices)()


class Groups(nn.GroupNorm):
    """On contiguous inputs: torch 2.13 crashes in the backward of others in channels-last order without a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.contiguous())


class Norm(nn.LayerNorm):
    """A derived norm, which may have its features on another axis."""


class Nested(nn.Module):
    """Calls a module and gives on its first tensor."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return first_tensor(self.part(x))


BUFFERS: list[Callable[[], Tensor | None]] = [
    lambda: None,
    lambda: torch.full((3,), math.nan),
    lambda: torch.arange(3),
    lambda: torch.zeros(0),
    lambda: torch.zeros(1).expand(5),
    lambda: torch.ones(2, dtype=torch.bool),
    lambda: torch.zeros(2, dtype=torch.complex64),
    lambda: torch.eye(2).to_sparse(),
]

# A batch of each kind, and the layout of its features.
SAMPLES: dict[str, tuple[Callable[[int], Any], str]] = {
    "rows": (lambda batch: torch.randn(batch, WIDTH), "BD"),
    "images": (lambda batch: torch.randn(batch, WIDTH, 5, 3), "BCHW"),
    "waves": (lambda batch: torch.randn(batch, WIDTH, 6), "BCT"),
    "volumes": (lambda batch: torch.randn(batch, WIDTH, 2, 3, 2), "BCTHW"),
    "sequences": (lambda batch: torch.randn(batch, 3, WIDTH), "BTD"),
    "transposed": (lambda batch: torch.randn(3, batch, WIDTH), "TBD"),
    "tokens": (lambda batch: torch.randint(0, 9, (batch, 3)), "BTD"),
    "ragged": (lambda batch: ragged(torch.randn(batch, 2, WIDTH), (torch.strided, torch.jagged)[batch % 2]), "BD"),
}


def as_precision(value: Any, precision: torch.dtype) -> Any:
    return value.to(precision) if isinstance(value, Tensor) and value.is_floating_point() else value


def draw_layers(draw: random.Random, model: nn.Module) -> Any:
    named = [
        (name, part) for name, part in model.named_modules() if not isinstance(part, nn.ModuleList | nn.ModuleDict)
    ]
    # Parts of attention are not called as modules, and idle parts not at all.
    called = [pair for pair in named if "out_proj" not in pair[0] and "extra" not in pair[0]]
    picked = draw.sample(called, min(len(called), draw.choice([1, 1, 1, 2, 2, 3])))
    form = draw.random()
    if form < 0.6:
        return [name for name, _ in picked]
    if form < 0.75:
        return [part for _, part in picked]
    if form < 0.85:
        return picked[0][0]
    return draw.choice(["*", "**", "part*", "*.*", "[ab]*", picked[0][1], "", ["*", *(name for name, _ in picked)]])


def draw_options(draw: random.Random, kind: str) -> dict[str, Any]:
    options: dict[str, Any] = {
        "classes": draw.choice([1, 2, 3, WIDTH, WIDTH, 7]),  # as many as the model gives: answers to learn from
        "redundancy": draw.choice([1, 1, 2, 3]),
        "activation": draw.choice(["last", "all"]),
        "reduction": draw.choice(["sum", "mean"]),
        "class_reduction": draw.choice(["mean", "sum"]),
        "seed": draw.choice([0, 1, -5, 2**70]),
        "allow_skipped": draw.random() < 0.3,
    }
    pool = draw.random()
    if pool < 0.3:
        options["pool"] = draw.choice(
            [
                lambda f: f.flatten(1),
                lambda f: f.reshape(f.shape[0], -1).float() * 2,
                lambda f: f.reshape(-1, f.shape[-1]),
                {"**": "mean"},
                *("class_token", "last_token", "none", Dense("targets"), Dense("logits")),
            ]
        )
    elif pool < 0.8:
        options["layout"] = draw.choice([SAMPLES[kind][1], {"**": SAMPLES[kind][1]}])
    elif pool < 0.85:
        options["layout"] = draw.choice([layout for _, layout in SAMPLES.values()])
    if draw.random() < 0.1:
        options["bias"] = torch.randn(options["classes"])
    if draw.random() < 0.3:
        options["head"] = draw.choice(["mlp", "conv", "tower", "tied", Linear("prior"), {"**": "tower"}, nn.Linear])
        if options["head"] in ("conv", "tower"):
            options["pool"] = "none"
    if draw.random() < 0.5:
        named = [*OBJECTIVES, Distill(temperature=1, share=draw.choice([0, 1]))]
        options["objective"] = draw.choice([*named, lambda logits, targets: logits.square().mean()])
    if draw.random() < 0.4:
        rules = [0, 2.5, torch.tensor(0.5), Falling(0.5), lambda progress: progress, GradientRatio(0.1, every=1)]
        options["strength"] = draw.choice(rules)
    if draw.random() < 0.2:
        options["preset"] = draw.choice(list(PRESETS))
    if draw.random() < 0.05:
        options["output"] = draw.choice([0, -1, "logits", "y", "x", first_tensor, lambda output: output])
    return options


Change = Callable[[random.Random, Case], None]


def set_option(name: str, values: list[Any]) -> Change:
    return lambda draw, case: case.options.update({name: draw.choice(values)})


def set_sample(make: Callable[[Any], Any]) -> Change:
    return lambda draw, case: setattr(case, "sample", make(case.sample))


def set_layers(values: list[Any]) -> Change:
    return lambda draw, case: setattr(case, "at", draw.choice(values))


def with_model(make: Callable[[nn.Module], Any]) -> Change:
    return lambda draw, case: setattr(case, "model", make(case.model))


def hold_itself(_: Any) -> list[Any]:
    held: list[Any] = []
    held.append(held)
    return held


def fail(*_: Any) -> Any:
    raise RuntimeError("two\nlines")


def add_buffer(make: Callable[[], Tensor]) -> Callable[[nn.Module], nn.Module]:
    def change(model: nn.Module) -> nn.Module:
        next(reversed(list(model.modules()))).register_buffer("odd", make())
        return model

    return change


def meta() -> Tensor:
    return torch.zeros(2, device="meta")


def jagged(_: Any) -> Tensor:
    return torch.nested.nested_tensor([torch.randn(2, WIDTH), torch.randn(3, WIDTH)], layout=torch.jagged)


WRONG: dict[str, Change] = {
    "classes": set_option(
        "classes", [0, -1, 1.5, "3", None, True, 10**30, 2**62, torch.tensor(2), torch.tensor([1, 2])]
    ),
    "redundancy": set_option("redundancy", [0, -1, 1.5, "3", None, True, 10**30, 2**62, torch.tensor(2), meta()]),
    "activation": set_option("activation", ["lsat", None, 3, ["last"], "last\n"]),
    "reduction": set_option("reduction", ["max", None, {}]),
    "class reduction": set_option("class_reduction", ["none", ("mean",)]),
    "pool": set_option(
        "pool",
        [
            *("max", None, 3, {}, {"nowhere": "mean"}, {3: "mean"}, {"**": None}, ["mean"], fail, lambda f: None),
            *(lambda f: f.sum(), lambda f: f.new_zeros(2, 0), lambda f: f.new_zeros(0, 3), lambda f: f.argmax()),
            *(lambda f: f.flatten(1).to(torch.complex64), lambda f: f.flatten(1).long(), lambda f: f.flatten(1).bool()),
            *(lambda f: f.flatten(1).to("meta"), lambda f: f.flatten(1).to_sparse(), lambda f: f.detach().flatten(1)),
        ],
    ),
    "layout": set_option("layout", ["", "B", "BB", "XY", 3, {"nowhere": "BD"}, {"**": 3}, ["BD"], "BD\n", b"BD"]),
    "output": set_option("output", [7, "nowhere", 1.5, [], {"**": 9}, fail, lambda output: 3, {"nowhere": 0}]),
    "bias": set_option(
        "bias", [torch.zeros(99), 0.5, [0.0], meta(), torch.zeros(3, 3), torch.nested.nested_tensor([torch.zeros(1)])]
    ),
    "bias kind": lambda draw, case: case.options.update(
        bias=torch.zeros(case.options["classes"]).to(draw.choice([torch.int64, torch.complex64, "meta", torch.bool]))
    ),
    "weights": set_option("weights", [-1, math.nan, "1", None, {"nowhere": 1.0}, torch.tensor(1.0), True]),
    "strength": set_option(
        "strength",
        [
            *(-1, math.nan, math.inf, "1", [0.5], {"**": 1}, True, torch.zeros(2), Falling, GradientRatio, meta()),
            *(lambda progress: -1, lambda progress: None, lambda progress: math.nan, lambda progress: "1"),
        ],
    ),
    "head": set_option("head", ["lienar", 3, ["mlp"], {"nowhere": "mlp"}, nn.Linear(99, 2), lambda width, outputs: 3]),
    "preset": set_option("preset", ["", None, 3, "papre"]),
    "objective": set_option("objective", ["median", 3, lambda logits, targets: logits, lambda logits, targets: 3.0]),
    "seed": set_option("seed", ["text", None, 1.5]),
    "at": set_layers([[], None, 3, "nowhere", ["nowhere"], [[]], {}, {"a"}, b"a", nn.Linear(2, 2), "a..b", "[", "."]),
    "NaN": set_sample(lambda s: s * math.nan if isinstance(s, Tensor) and s.is_floating_point() else s),
    "infinite": set_sample(lambda s: s * math.inf if isinstance(s, Tensor) and s.is_floating_point() else s),
    "empty": set_sample(lambda s: s[:0]),
    "meta sample": set_sample(lambda s: s.to("meta")),
    "nested sample": set_sample(lambda s: torch.nested.nested_tensor([torch.randn(2, WIDTH), torch.randn(3, WIDTH)])),
    "jagged sample": set_sample(jagged),
    "sparse sample": set_sample(lambda s: s.to_sparse()),
    "complex sample": set_sample(lambda s: s.to(torch.complex64)),
    "boolean sample": set_sample(lambda s: s.bool()),
    "quantized sample": set_sample(lambda s: torch.quantize_per_tensor(torch.randn(2, WIDTH), 0.1, 0, torch.qint8)),
    "8-bit sample": set_sample(lambda s: torch.randn(2, WIDTH).to(torch.float8_e4m3fn)),
    "sample with a gradient": set_sample(lambda s: s.float().requires_grad_() * 1),
    "another shape": set_sample(lambda s: s[..., None, None].expand(*s.shape, 2, 2)),
    "a number": set_sample(lambda s: 3),
    "none": set_sample(lambda s: None),
    "text": set_sample(lambda s: "text"),
    "list": set_sample(lambda s: [s, s]),
    "two arguments": set_sample(lambda s: (s, s)),
    "unknown keyword": set_sample(lambda s: {"no_such": s}),
    "number as keyword": set_sample(lambda s: {3: s}),
    "holds itself": set_sample(hold_itself),
    "meta buffer": with_model(add_buffer(meta)),
    "meta model": with_model(lambda model: model.to("meta")),
    "nested buffer": with_model(add_buffer(lambda: torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)]))),
    "half of it on meta": with_model(lambda model: (next(reversed(list(model.modules()))).to("meta"), model)[1]),
    "lazy": with_model(lambda model: nn.Sequential(model, nn.LazyLinear(3))),
    "data parallel": with_model(nn.DataParallel),
    "function": with_model(lambda model: model.forward),
    "raises": with_model(lambda model: nn.Sequential(model, Raising())),
}


class Raising(nn.Module):
    def forward(self, x: Any) -> Any:
        raise RuntimeError("two\nlines")


# ---- what must hold


@dataclass
class Trace:
    """All of a model that attach and strip must leave as it was."""

    keys: list[str] = field(default_factory=list)
    bits: list[Any] = field(default_factory=list)
    modes: list[bool] = field(default_factory=list)
    hooks: int = 0
    random_state: Tensor | None = None


def trace(model: Any) -> Trace:
    if not isinstance(model, nn.Module):
        return Trace()
    tensors = [*model.parameters(), *model.buffers()]
    bits = [] if any(map(nn.parameter.is_lazy, tensors)) else [copied(tensor) for tensor in tensors]
    modes = [part.training for part in model.modules()]
    return Trace(list(model.state_dict()), bits, modes, count_hooks(model), torch.get_rng_state())


def copied(tensor: Tensor) -> Any:
    return None if tensor.is_meta else tensor.detach().clone()


def check_same(before: Trace, after: Trace, when: str, *, bits: bool = True) -> None:
    """Raise a `Fault` that names what changed."""
    same = {
        "state_dict keys": before.keys == after.keys,
        "training flags": before.modes == after.modes,
        "parameters or buffers": not bits or all(map(equal, before.bits, after.bits)),
        "hooks": before.hooks == after.hooks,
        "random state": not bits or before.random_state is None or torch.equal(before.random_state, after.random_state),
    }
    for name, held in same.items():
        if not held:
            raise Fault(f"{name} changed by {when}")


def equal(first: Any, second: Any) -> bool:
    """Bit-equal, NaN included."""
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return first is second
    if first.is_nested:
        first, second = first.values(), second.values()
    if first.layout is not torch.strided:
        first, second = first.to_dense(), second.to_dense()
    return first.dtype == second.dtype and first.shape == second.shape and bytes_of(first) == bytes_of(second)


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def count_hooks(model: nn.Module) -> int:
    kinds = [name for name in vars(nn.Module()) if name.endswith("_hooks")]
    return sum(len(getattr(part, kind)) for part in model.modules() for kind in kinds)


def call(model: nn.Module, sample: Any) -> Any:
    if type(sample) is tuple:
        return model(*sample)
    return model(**sample) if isinstance(sample, dict) else model(sample)


def outputs(model: nn.Module, sample: Any) -> Any:
    """The first tensor of the output, from one random state; None where the model itself fails."""
    torch.manual_seed(7)
    try:
        return first_tensor(call(model, sample))
    except Exception:
        return None


def attach_case(case: Case) -> Branches:
    """Attach with the drawn options, in the values that `attach` takes: each may be refused where it is made."""
    options = dict(case.options)
    head = options.pop("head", "linear")
    head = Linear(options.pop("bias")) if "bias" in options else head
    parallel = Parallel(options.pop("redundancy"), head, options.pop("activation"), options.pop("reduction"))
    objective = options.pop("objective", None) or Sigmoid(options["class_reduction"])
    del options["class_reduction"]
    allowed = options.pop("allow_skipped")
    branches = attach(case.model, case.sample, at=case.at, head=parallel, objective=objective, **options)
    branches.allow_skipped = allowed
    return branches


def try_case(case: Case, number: int) -> str:
    draw = random.Random(number)
    model, before = case.model, trace(case.model)
    try:
        pristine = copy.deepcopy(model) if isinstance(model, nn.Module) else None
    except Exception:  # torch cannot copy nested buffers
        pristine = None
    try:
        branches = attach_case(case)
    except UsageError as error:
        check_line(error)
        check_same(before, trace(model), "a refused attach")
        return "refused"
    attached = trace(model)
    attached.hooks = before.hooks
    check_same(before, attached, "attach")
    if len(branches.heads) != len(branches.layers):
        raise Fault(f"{len(branches.layers)} layers share {len(branches.heads)} heads")

    result = "trained"
    try:
        trains = True if pristine is None else check_outputs(draw, case, pristine)
        learn(draw, case, branches, trains)
    except UsageError as error:
        check_line(error)
        result = "refused in training"
    check_round_trip(draw, branches)
    if pristine is not None and draw.random() < 0.2:
        check_copy(case.model, branches)
    check_strip(case, model, branches, before, pristine)
    return result


def check_outputs(draw: random.Random, case: Case, pristine: nn.Module) -> bool:
    """Call both models; whether the model itself can be trained."""
    model = case.model
    if draw.random() < 0.5:
        pristine.train()
        model.train()
    plain = outputs(pristine, case.sample)
    if plain is None:  # fails in training mode by itself
        pristine.eval()
        model.eval()
        plain = outputs(pristine, case.sample)
    output = outputs(model, case.sample)
    # In eval mode torch's encoder may take another, faster path in a model without hooks.
    fused = any(isinstance(part, nn.TransformerEncoderLayer) and not part.training for part in model.modules())
    if not fused and not equal(output, plain):
        raise Fault("the outputs of an attached model differ")
    return plain is not None and plain.requires_grad and backward_works(pristine, plain)


def backward_works(model: nn.Module, output: Tensor) -> bool:
    """Whether the model's own gradients can be taken: in-place layers may have spoilt them."""
    try:
        output.float().sum().backward(retain_graph=True)
        return True
    except RuntimeError:
        return False
    finally:
        model.zero_grad()


def learn(draw: random.Random, case: Case, branches: Branches, trains: bool) -> None:
    """One backward, which must reach every live branch that has seen a feature."""
    output = outputs(case.model, case.sample)
    main = None if output is None else output.float().square().mean()
    logits = branches.logits()
    if not logits:
        if branches.loss(torch.zeros(1, dtype=torch.int64), main=main).item() != 0:
            raise Fault("layers that were skipped have a loss")
        return
    layer, shown = next(iter(logits.items()))
    head = branches.head(layer)
    maps = head.positions > 1 and not head.pools
    shown = (shown[0] if branches.activation == "all" else shown).movedim(1, -1) if maps else shown
    shape, classes = shown.shape[shown.ndim - 1 - (0 if head.pools else head.positions) - 1 : -1], shown.shape[-1]
    kind = "soft" if classes == 1 else draw.choice(["int64", "uint8", "soft", "wrong"])
    targets = torch.rand(*shape, classes) if kind == "soft" else torch.randint(0, classes, shape)
    targets = targets.movedim(-1, 1) if kind == "soft" and maps else targets
    targets = targets.to(torch.uint8) if kind == "uint8" else targets + 100 if kind == "wrong" else targets
    loss = branches.loss(targets, main=main)
    features = branches._attached().rows(True)
    finite = all(bool(feature.isfinite().all()) for feature in features.values())
    if finite and not bool(loss.isfinite()):
        raise Fault(f"the loss is {loss.item()}")
    accuracies = branches.accuracies(targets) if kind != "wrong" else {}
    objective = branches.settings.objective
    least = 0 if isinstance(objective, Objective) and not isinstance(objective, Mse) else -math.inf  # R squared
    if finite and not all(least <= float(value) <= 1 for value in accuracies.values()):
        raise Fault(f"accuracies are {accuracies}")
    if not isinstance(objective, Objective) or branches.strength == 0:
        return
    if not trains:
        features = {layer: feature for layer, feature in features.items() if not feature.requires_grad}
        loss = sum(loss for layer, loss in branches.losses(targets).items() if layer in features)
    if isinstance(loss, Tensor):
        # Layers of one width share a product: without `inputs` a backward would go into those that are spoilt as well.
        inputs = [weight for layer in features for weight in branches.head(layer).parameters()]
        loss.backward(inputs=None if trains or not inputs else inputs)
    for layer, feature in features.items():
        given = [weight.grad for weight in branches.head(layer).parameters()]
        reached = any(gradient is not None and (not finite or bool(gradient.any())) for gradient in given)
        if given and bool(feature.any()) and not reached:
            raise Fault(f"no gradient reaches the branches of {layer!r}")


def check_round_trip(draw: random.Random, branches: Branches) -> None:
    state = {name: value.clone() for name, value in branches.state_dict().items()}
    if draw.random() < 0.3:
        file = io.BytesIO()
        torch.save(state, file)
        state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    twin = copy.deepcopy(branches)
    with torch.no_grad():
        for value in (*twin.parameters(), *twin.buffers()):
            value.zero_()
    twin.load_state_dict(state, strict=True)
    loaded = twin.state_dict()
    if list(loaded) != list(state) or not all(equal(loaded[name], state[name]) for name in state):
        raise Fault("branches do not come back from their state_dict")


def check_copy(model: nn.Module, branches: Branches) -> None:
    both = copy.deepcopy(WithBranches(model, branches))
    if not both.branches.connected_to(both.model) or not branches.connected_to(model):
        raise Fault("the copy of WithBranches is not on its own model")


def check_strip(case: Case, model: nn.Module, branches: Branches, before: Trace, pristine: nn.Module | None) -> None:
    branches.strip()
    after = trace(model)
    after.modes = before.modes
    check_same(before, after, "strip", bits=False)
    if pristine is not None:
        copy_state(pristine, model)
        if not equal(outputs(model, case.sample), outputs(pristine, case.sample)):
            raise Fault("the outputs of a stripped model differ from those of one that never had branches")
    try:
        branches.strip()
    except UsageError as error:
        check_line(error)
    else:
        raise Fault("a second strip was not refused")


@torch.no_grad()
def copy_state(target: nn.Module, source: nn.Module) -> None:
    for mine, theirs in zip(target.modules(), source.modules(), strict=True):
        mine.training = theirs.training
        kept = theirs._parameters | theirs._buffers
        for name, into in (mine._parameters | mine._buffers).items():
            if into is not None and not equal(into, kept[name]):
                into.copy_(kept[name])


def check_line(error: UsageError) -> None:
    if not str(error) or not str(error).isprintable():
        raise Fault(f"a refusal that is not one line: {error!r}")
