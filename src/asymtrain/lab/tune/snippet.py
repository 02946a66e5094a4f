"""The winner's branches as code for a training loop of one's own."""

from collections.abc import Sequence

from asymtrain.lab.candidates import Candidate
from asymtrain.lab.recipes import FIELDS
from asymtrain.lab.runs import DEFAULTS, RunSpec

# What `alpha_at` of the engine computes, for the epochs from 0 on.
_SCHEDULES = {
    "constant": "{alpha:g}",
    "linear": "{alpha:g} * (1 - epoch / epochs)",
    "cosine": "{alpha:g} * 0.5 * (1 + math.cos(math.pi * epoch / epochs))",
    "early": "{alpha:g} * (epoch < epochs / 2)",
}
_OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD"}
# Names of `attach`, by those of a spec.
_ARGUMENTS = {
    "redundancy": "redundancy", "activation": "activation", "head": "head", "combine": "branch_reduction",
    "over_classes": "class_reduction",
}  # fmt: skip
# What the code has of a recipe; the other parts are the user's, as are controls.
_WRITTEN = ("optimizer", "momentum", "learning_rate", "weight_decay")
_LEFT_OUT = ("branch_labels", "branch_weights", "signal", "aggregator", *(f for f in FIELDS if f not in _WRITTEN))


def attach_code(spec: RunSpec, places: Sequence[str], classes: int, *, pool: str = "mean", layout: str = "") -> str:
    """Code that attaches a spec's branches at these places and trains with them.

    It takes `model`, `loader` and, for the bias of the classes' shares, `labels`: those of the training set.
    """
    candidate = Candidate.of(spec)
    arguments = {"at": list(places), "sample": "x", "classes": classes, "objective": candidate.objective}
    if candidate.branch_bias == "prior":
        arguments |= {"bias": "prior", "labels": "labels"}
    if pool != "mean":
        arguments["pool"] = pool
    if layout:
        arguments["layout"] = layout
    arguments |= {to: getattr(spec, of) for of, to in _ARGUMENTS.items() if getattr(spec, of) != DEFAULTS[of]}
    names = ("sample", "labels")  # of variables
    written = [f"{name}={value if name in names else _literal(value)}" for name, value in arguments.items()]
    alpha = _SCHEDULES[candidate.alpha_schedule].format(alpha=candidate.alpha)
    missing = {name: value for name in _LEFT_OUT if (value := getattr(spec, name)) != DEFAULTS[name]}
    rest = ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in missing.items()
    )
    settings = f"lr={spec.learning_rate:g}, weight_decay={spec.weight_decay:g}"
    if spec.optimizer == "sgd" and spec.momentum:
        settings += f", momentum={spec.momentum:g}, nesterov=True"
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
        f"optimizer = torch.optim.{_OPTIMIZERS[spec.optimizer]}(",
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
