"""The forms that branches can have, as values: what `tune` races and what the practice study compares."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from asymtrain.lab.runs import RunSpec

_BIAS = {"none": "", "prior": " with prior bias"}
_LAYERS = {"all": "", "later": "later layers", "middle": "middle layer"}
_SCHEDULES = {"constant": "", "linear": "falling linearly", "cosine": "falling", "early": "first half only"}


@dataclass(frozen=True)
class Candidate:
    """One form of branches, by the names of a spec; by default the paper's."""

    objective: str = "sigmoid"
    bias: str = "none"
    alpha: float = 0.1
    layers: str = "all"
    alpha_schedule: str = "constant"

    def __post_init__(self) -> None:
        spec = RunSpec(**self.fields())  # refuses what no run can have
        object.__setattr__(self, "alpha", spec.alpha)  # a float, where numpy's would not go into JSON

    @classmethod
    def of(cls, spec: RunSpec) -> "Candidate":
        """The form of a spec's branches."""
        return cls(**{field.name: getattr(spec, field.name) for field in fields(cls)})

    def fields(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def cost(self) -> int:
        """A rank by the number of branches: a single layer, then half of them, then all."""
        return ("middle", "later", "all").index(self.layers)

    @property
    def label(self) -> str:
        """Short, for tables: "softmax, alpha 0.3, later layers, falling"."""
        words = [
            f"{self.objective}{_BIAS[self.bias]}",
            f"alpha {self.alpha:g}",
            _LAYERS[self.layers],
            _SCHEDULES[self.alpha_schedule],
        ]
        return ", ".join(filter(None, words))
