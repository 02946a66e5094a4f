"""The winner's branches as code for a training loop of one's own, and a check that they leave nothing behind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asymtrain.lab.candidates import Candidate
from asymtrain.lab.recipes import FIELDS
from asymtrain.lab.runs import DEFAULTS, RunSpec

if TYPE_CHECKING:
    from asymtrain.lab.data import Dataset

# What `alpha_at` of the engine computes, for the epochs from 0 on.
_SCHEDULES = {
    "constant": "{alpha:g}",
    "linear": "{alpha:g} * (1 - epoch / epochs)",
    "cosine": "{alpha:g} * 0.5 * (1 + math.cos(math.pi * epoch / epochs))",
    "early": "{alpha:g} * (epoch < epochs / 2)",
}
# Names of `attach`, by those of a spec.
_ARGUMENTS = {
    "redundancy": "redundancy", "activation": "activation", "head": "head", "class_reduction": "class_reduction",
}  # fmt: skip
_VARIABLES = ("sample", "labels")  # arguments that are no literals
_CHECKED = 64  # images, at most, that the removal is checked with
# What the code has of a recipe; the other parts are the user's, as are controls.
_WRITTEN = ("learning_rate", "weight_decay")
_LEFT_OUT = ("branch_labels", "branch_weights", "signal", *(f for f in FIELDS if f not in _WRITTEN))


def attach_arguments(
    spec: RunSpec, layers: Sequence[str], classes: int, *, pool: str = "mean", layout: str = ""
) -> dict[str, Any]:
    """What `attach` is called with for a spec's branches; `sample` and `labels` are names of variables."""
    candidate = Candidate.of(spec)
    arguments = {"at": list(layers), "sample": "x", "classes": classes, "objective": candidate.objective}
    if candidate.bias == "prior":
        arguments |= {"bias": "prior", "labels": "labels"}
    if pool != "mean":
        arguments["pool"] = pool
    if layout:
        arguments["layout"] = layout
    return arguments | {to: getattr(spec, of) for of, to in _ARGUMENTS.items() if getattr(spec, of) != DEFAULTS[of]}


def attach_code(spec: RunSpec, arguments: Mapping[str, Any]) -> str:
    """Code that attaches a spec's branches and trains with them; `arguments` are those of `attach_arguments`.

    It takes `model`, `loader` and, for the bias of the classes' shares, `labels`: those of the training set.
    """
    candidate = Candidate.of(spec)
    written = [f"{name}={value if name in _VARIABLES else _literal(value)}" for name, value in arguments.items()]
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
        "",
        "x, _ = next(iter(loader))  # `model` and `loader` are yours"
        + (", and `labels`, those of the training set" if "labels" in arguments else ""),
        "branches = attach(",
        "    model,",
        *(f"    {argument}," for argument in written),
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


def check_removal(spec: RunSpec, dataset: "Dataset", arguments: Mapping[str, Any]) -> Removal:
    """Do a step of what `attach_code` writes, on a new model, and strip."""
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    from asymtrain.branches import attach
    from asymtrain.lab.data.normalise import normalise
    from asymtrain.lab.engine.modules import read_logits
    from asymtrain.lab.engine.setup import build_module, run_data

    data = run_data(spec, dataset)
    first = data.train[:_CHECKED]
    images, tested = (
        normalise(torch.from_numpy(rows), data.mean, data.std)
        for rows in (dataset.train.inputs[first], dataset.test.inputs[:_CHECKED])
    )
    labels = torch.as_tensor(data.labels, dtype=torch.int64)
    values = {"sample": images, "labels": labels[torch.as_tensor(data.train)]}

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
        branches = attach(model, **{name: values.get(name, value) for name, value in arguments.items()})
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
