"""Configurations of branches, as values: those that `tune` races, studies compare, and the library recommends."""

from dataclasses import dataclass, fields, replace
from typing import Any

from asymtrain.lab.runs import RunSpec

_BIAS = {"none": "", "prior": " with prior bias"}
_HEADS = {"linear": "", "mlp": "MLP head"}
_LAYERS = {"all": "", "later": "later layers", "middle": "middle layer"}
_SCHEDULES = {"constant": "", "linear": "falling linearly", "cosine": "falling", "early": "first half only"}


@dataclass(frozen=True)
class Candidate:
    """One configuration of branches, with the field names of a spec; by default the paper's."""

    objective: str = "sigmoid"
    bias: str = "none"
    alpha: float = 0.1
    layers: str = "all"
    alpha_schedule: str = "constant"
    head: str = "linear"
    class_reduction: str = "mean"
    layer_reduction: str = "sum"
    balance: str = "none"

    def __post_init__(self) -> None:
        spec = RunSpec(**self.fields())  # validates the values
        object.__setattr__(self, "alpha", spec.alpha)  # a Python float: numpy's cannot be written as JSON

    @classmethod
    def of(cls, spec: RunSpec) -> "Candidate":
        """The configuration of a spec's branches."""
        return cls(**{field.name: getattr(spec, field.name) for field in fields(cls)})

    def fields(self) -> dict[str, Any]:
        return dict(vars(self))

    @property
    def cost(self) -> int:
        """A rank by the number of branches: one layer, half of the layers, all layers."""
        return ("middle", "later", "all").index(self.layers)

    @property
    def label(self) -> str:
        """Short, for tables: "softmax, alpha 0.3, later layers, falling"."""
        words = [
            f"{self.objective}{_BIAS[self.bias]}",
            *self._weight(),
            _HEADS.get(self.head, self.head),
            _LAYERS[self.layers],
            _SCHEDULES[self.alpha_schedule],
        ]
        return ", ".join(filter(None, words))

    def _weight(self) -> list[str]:
        """Alpha in words, by its meaning in this configuration: "strength 0.5", "alpha 10", "gradient ratio 0.1"."""
        if self.balance == "norms":
            return [f"gradient ratio {self.alpha:g}"]
        summed, averaged = self.class_reduction == "sum", self.layer_reduction == "mean"
        if summed and averaged:
            return [f"strength {self.alpha:g}"]
        return [f"alpha {self.alpha:g}", "classes summed" if summed else "layers averaged" if averaged else ""]


# Chosen from the rows of the practice study: prior bias at alpha 10 is a strength of 0.4 to 0.6, which helped models on
# tokens, and alpha 1 did no harm on convolutions. Not yet confirmed on models that were not used for the choice.
RECOMMENDED = Candidate(bias="prior", alpha=0.5, class_reduction="sum", layer_reduction="mean")
RECOMMENDED_ON_CONVOLUTIONS = replace(RECOMMENDED, alpha=0.05)
