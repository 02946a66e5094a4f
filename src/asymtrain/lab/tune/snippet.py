"""The winner's branches as code for a training loop of one's own, and a check that they leave nothing behind."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asymtrain.lab.candidates import Candidate
from asymtrain.lab.recipes import FIELDS
from asymtrain.lab.runs import DEFAULTS, RunSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

    from asymtrain.branches import Branches
    from asymtrain.lab.data import Dataset

# What `alpha_at` of the engine computes, for the epochs from 0 on.
_SCHEDULES = {
    "constant": "{alpha:g}",
    "linear": "{alpha:g} * (1 - epoch / epochs)",
    "cosine": "{alpha:g} * 0.5 * (1 + math.cos(math.pi * epoch / epochs))",
    "early": "{alpha:g} * (epoch < epochs / 2)",
}
_CHECKED = 64  # images, at most, that the removal is checked with
# What the code has of a recipe; the other parts are the user's, as are controls.
_WRITTEN = ("learning_rate", "weight_decay")
_LEFT_OUT = ("branch_labels", "branch_weights", "signal", *(f for f in FIELDS if f not in _WRITTEN))


@dataclass(frozen=True)
class AttachCall:
    """The call of `attach` that puts a spec's branches on a user's model, as source text and as a call."""

    spec: RunSpec
    layers: Sequence[str]
    classes: int
    pool: str = "mean"
    layout: str = ""

    def source(self) -> dict[str, str]:
        """The arguments as source text; `x` and `labels` are variables of the user's."""
        spec = self.spec
        head = "Linear(prior(labels))" if spec.bias == "prior" else _literal(spec.head)
        if spec.redundancy > 1:
            head = f"Parallel({spec.redundancy}, {head}, {_literal(spec.activation)})"
        objective = _literal(spec.objective)
        if spec.objective != "softmax":
            objective = f"{spec.objective.title()}(class_reduction={_literal(spec.class_reduction)})"
        arguments = {
            "sample": "x",
            "classes": str(self.classes),
            "at": _literal(list(self.layers)),
            "preset": _literal("paper"),
            "objective": objective,
            "head": head,
        }
        arguments |= {"pool": _literal(self.pool)} if self.pool != "mean" else {}
        return arguments | ({"layout": _literal(self.layout)} if self.layout else {})

    def call(self, model: "nn.Module", sample: "Tensor", labels: "Tensor") -> "Branches":
        """Attach as the source text does."""
        from asymtrain.branches import Linear, Parallel, attach, prior
        from asymtrain.objectives import find_objective

        spec = self.spec
        head = Linear(prior(labels)) if spec.bias == "prior" else spec.head
        return attach(
            model,
            sample,
            self.classes,
            at=list(self.layers),
            preset="paper",
            objective=find_objective(spec.objective, class_reduction=spec.class_reduction),
            head=Parallel(spec.redundancy, head, spec.activation),
            pool=self.pool,  # type: ignore[arg-type]  # a spec has no other names
            layout=self.layout or None,
        )


def attach_code(attached: AttachCall) -> str:
    """Code that attaches a spec's branches and trains with them.

    It takes `model`, `loader` and, for the bias of the classes' shares, `labels`: those of the training set.
    """
    spec = attached.spec
    candidate = Candidate.of(spec)
    arguments = attached.source()
    text = " ".join(arguments.values())
    names = ", ".join(name for name in ("Linear", "Parallel", "prior") if f"{name}(" in text)
    needed = [f"from asymtrain.branches import {names}"] if names else []
    objective, has_settings, _ = arguments["objective"].partition("(")
    needed += [f"from asymtrain.objectives import {objective}"] if has_settings else []
    alpha = _SCHEDULES[candidate.alpha_schedule].format(alpha=candidate.alpha)
    missing = {name: value for name in _LEFT_OUT if (value := getattr(spec, name)) != DEFAULTS[name]}
    rest = ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in missing.items()
    )
    settings = f"lr={spec.learning_rate:g}, weight_decay={spec.weight_decay:g}"
    lines = [
        *([f"# Measured with {rest}:", "# these parts of the training are left out here."] if missing else []),
        *(["import math", ""] if "math." in alpha else []),
        "import torch",
        "import torch.nn.functional as F",
        "from asymtrain import attach",
        *needed,
        "",
        "x, _ = next(iter(loader))  # `model` and `loader` are yours"
        + (", and `labels`, those of the training set" if "prior(" in text else ""),
        "branches = attach(",
        "    model,",
        *(f"    {name}={value}," for name, value in arguments.items()),
        ")",
        "optimizer = torch.optim.AdamW(",
        f"    [*model.parameters(), *branches.parameters()], {settings}",
        ")",
        f"epochs = {spec.epochs}",
        "for epoch in range(epochs):",
        f"    alpha = {alpha}",
        "    for x, y in loader:",
        "        loss = F.cross_entropy(model(x), y) + alpha * branches.loss(y)",
        "        optimizer.zero_grad()",
        "        loss.backward()",
        "        optimizer.step()",
        "branches.strip(optimizer)  # the model is what it was, only trained",
    ]
    return "\n".join(lines) + "\n"


def _literal(value: object) -> str:
    """As one writes it in Python: texts in double quotes."""
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return '"{}"'.format(value.replace("\\", "\\\\").replace('"', '\\"')) if isinstance(value, str) else repr(value)


@dataclass(frozen=True)
class Removal:
    """What a model is like before branches, with them and after they are stripped."""

    parameters: tuple[int, ...]  # that the optimizer has: before, with branches, and after
    hooks: tuple[int, ...]  # on the model
    images: int  # whose logits were compared
    difference: float  # the largest, to those of a model with the same weights that never had branches


def check_removal(attached: AttachCall, dataset: "Dataset") -> Removal:
    """Do a step of what `attach_code` writes, on a new model, and strip."""
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    from asymtrain.lab.data.normalise import normalise
    from asymtrain.lab.engine.modules import read_logits
    from asymtrain.lab.engine.setup import build_module, run_data

    spec = attached.spec
    data = run_data(spec, dataset)
    first = data.train[:_CHECKED]
    images, tested = (
        normalise(torch.from_numpy(rows), data.mean, data.std)
        for rows in (dataset.train.inputs[first], dataset.test.inputs[:_CHECKED])
    )
    labels = torch.as_tensor(data.labels, dtype=torch.int64)

    def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, int]:
        """Parameters in the optimizer, and hooks on the model."""
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
        return sum(weight.numel() for weight in weights), hooks

    def logits(model: nn.Module) -> Tensor:
        with torch.no_grad():
            return read_logits(model.eval()(tested))

    with torch.random.fork_rng(devices=[]):  # dropout draws
        model, untouched = build_module(spec, dataset).train(), build_module(spec, dataset)
        optimizer = torch.optim.AdamW(model.parameters(), lr=spec.learning_rate)
        states = [state(model, optimizer)]
        branches = attached.call(model, images, labels[torch.as_tensor(data.train)])
        optimizer = torch.optim.AdamW([*model.parameters(), *branches.parameters()], lr=spec.learning_rate)
        states.append(state(model, optimizer))
        y = labels[torch.as_tensor(first)]
        (F.cross_entropy(read_logits(model(images)), y) + spec.alpha * branches.loss(y)).backward()
        optimizer.step()
        branches.strip(optimizer)
        states.append(state(model, optimizer))
        untouched.load_state_dict(model.state_dict())
        largest = (logits(model) - logits(untouched)).abs().max().item()
    parameters, counts = zip(*states, strict=True)
    return Removal(parameters, counts, len(tested), largest)
