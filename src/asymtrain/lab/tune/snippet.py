"""The winner's branches as code for a training loop of one's own, and a check that they leave nothing behind."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asymtrain.lab.recipes import FIELDS
from asymtrain.lab.runs import DEFAULTS, RunSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

    from asymtrain.branches import Branches
    from asymtrain.lab.data import Dataset

# What `alpha_at` of the engine computes, as a value of `attach` that `branches.step` evaluates.
_SCHEDULES = {
    "constant": "{:.4g}",
    "linear": "lambda progress: {:.4g} * (1 - progress)",
    "cosine": "Falling({:.4g})",
    "early": "lambda progress: {:.4g} * (progress < 0.5)",
}
_CHECKED = 64  # most images that the check of the removal uses
# The parts of a recipe that the code contains; the user keeps the other parts and the controls.
_WRITTEN = ("learning_rate", "weight_decay", "batch")
_LEFT_OUT = ("branch_labels", "branch_weights", "signal", "balance", *(f for f in FIELDS if f not in _WRITTEN))


@dataclass(frozen=True)
class AttachCall:
    """The call of `attach` that puts a spec's branches on a user's model, as source text and as a call."""

    spec: RunSpec
    layers: Sequence[str]
    classes: int
    pool: str = "mean"
    layout: str = ""

    @property
    def strength(self) -> float:
        """The spec's alpha in the library's unit: losses summed over classes, and averaged over layers."""
        from asymtrain.objectives import find_objective

        spec = self.spec
        by_class = getattr(find_objective(spec.objective), "class_reduction", spec.class_reduction)
        factor = {("mean", "sum"): 1 / self.classes, ("sum", "mean"): self.classes}
        layers = len(self.layers) if spec.layer_reduction == "sum" else 1
        return spec.alpha * layers * factor.get((spec.class_reduction, by_class), 1)

    def source(self) -> dict[str, str]:
        """The arguments as source text; `x` and `labels` are variables of the user."""
        spec = self.spec
        head = "Linear(prior(labels))" if spec.bias == "prior" else _literal(spec.head)
        if spec.redundancy > 1:
            head = f"Parallel({spec.redundancy}, {head}, {_literal(spec.activation)})"
        arguments = {
            "sample": "x",
            "classes": str(self.classes),
            "at": _literal(list(self.layers)),
            "objective": _literal(spec.objective),
            "head": head,
            "strength": _SCHEDULES[spec.alpha_schedule].format(self.strength),
        }
        arguments |= {"pool": _literal(self.pool)} if self.pool != "mean" else {}
        return arguments | ({"layout": _literal(self.layout)} if self.layout else {})

    def call(self, model: "nn.Module", sample: "Tensor", labels: "Tensor") -> "Branches":
        """Attach as the source text does, at the strength of the first step."""
        from asymtrain.branches import Linear, Parallel, attach, prior

        spec = self.spec
        head = Linear(prior(labels)) if spec.bias == "prior" else spec.head
        return attach(
            model,
            sample,
            self.classes,
            at=list(self.layers),
            objective=spec.objective,
            head=Parallel(spec.redundancy, head, spec.activation),
            strength=self.strength,
            pool=self.pool,  # type: ignore[arg-type]  # a spec has no other names
            layout=self.layout or None,
        )


def attach_code(attached: AttachCall) -> str:
    """Code that attaches a spec's branches and trains with them.

    It takes `model`, `loader` and, for the bias of the classes' shares, `labels`: those of the training set.
    """
    spec = attached.spec
    arguments = attached.source()
    text = " ".join(arguments.values())
    names = ", ".join(name for name in ("Falling", "Linear", "Parallel", "prior") if f"{name}(" in text)
    missing = {name: value for name in _LEFT_OUT if (value := getattr(spec, name)) != DEFAULTS[name]}
    rest = ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in missing.items()
    )
    settings = f"lr={spec.learning_rate:.3g}, weight_decay={spec.weight_decay:g}"
    lines = [
        f"# Measured with batch {spec.batch}, learning rate {spec.learning_rate:.3g}, {spec.epochs} epochs and "
        f"{spec.precision}" + ("; with" if missing else "."),
        *([f"# {rest}:", "# these parts of the training are left out here."] if missing else []),
        "import torch",
        "import torch.nn.functional as F",
        "from asymtrain import attach",
        *([f"from asymtrain.branches import {names}"] if names else []),
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
        *(["    branches.step(epoch / epochs)"] if spec.alpha_schedule != "constant" else []),
        "    for x, y in loader:",
        "        loss = F.cross_entropy(model(x), y) + branches.loss(y)",
        "        optimizer.zero_grad()",
        "        loss.backward()",
        "        optimizer.step()",
        "branches.strip(optimizer)  # the model is what it was, only trained",
    ]
    return "\n".join(lines) + "\n"


def _literal(value: object) -> str:
    """A value as Python source: texts in double quotes."""
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return '"{}"'.format(value.replace("\\", "\\\\").replace('"', '\\"')) if isinstance(value, str) else repr(value)


@dataclass(frozen=True)
class Removal:
    """Parameters and hooks of a model before branches, with them and after they are stripped."""

    parameters: tuple[int, ...]  # that the optimizer has: before, with branches, and after
    hooks: tuple[int, ...]  # on the model
    images: int  # whose logits were compared
    difference: float  # the largest, to the logits of a model with the same weights that never had branches


def check_removal(attached: AttachCall, dataset: "Dataset") -> Removal:
    """Train one step of what `attach_code` writes, on a new model, then strip the branches."""
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

    with torch.random.fork_rng(devices=[]):  # dropout draws random numbers
        model, untouched = build_module(spec, dataset).train(), build_module(spec, dataset)
        optimizer = torch.optim.AdamW(model.parameters(), lr=spec.learning_rate)
        states = [state(model, optimizer)]
        branches = attached.call(model, images, labels[torch.as_tensor(data.train)])
        optimizer = torch.optim.AdamW([*model.parameters(), *branches.parameters()], lr=spec.learning_rate)
        states.append(state(model, optimizer))
        y = labels[torch.as_tensor(first)]
        (F.cross_entropy(read_logits(model(images)), y) + branches.loss(y)).backward()
        optimizer.step()
        branches.strip(optimizer)
        states.append(state(model, optimizer))
        untouched.load_state_dict(model.state_dict())
        largest = (logits(model) - logits(untouched)).abs().max().item()
    parameters, counts = zip(*states, strict=True)
    return Removal(parameters, counts, len(tested), largest)
