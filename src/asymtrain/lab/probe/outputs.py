"""The logits in what a model returns, and its main loss."""

from collections.abc import Callable, Mapping

from torch import Tensor

from asymtrain.branches._nested import Selector, select
from asymtrain.errors import UsageError
from asymtrain.objectives import check_targets, softmax_loss

Loss = Callable[[Tensor, Tensor], Tensor]


def read_logits(output: object, selector: Selector | None) -> Tensor:
    """Logits (B, C): the output itself, its `logits`, or the part that the user picks."""
    if selector is not None:
        found = select(output, selector)
        if found is None:
            raise UsageError(f"the model's output (a {type(output).__name__}) has no tensor at logits={selector!r}")
    elif isinstance(output, Tensor):
        found = output
    elif isinstance(output, tuple) and len(output) > 1 and not isinstance(output, Mapping):
        fields = getattr(output, "_fields", None)
        listed = f" ({', '.join(fields)})" if fields else ""
        raise UsageError(
            f"the model returns {len(output)} outputs{listed}, as models with auxiliary heads of their own do: build "
            "it without them (aux_logits=False), or say which one holds the logits (logits=0); attach works as ever"
        )
    else:
        found = select(output, "logits") if not isinstance(output, tuple | list) else select(output, 0)
        if found is None:
            raise UsageError(
                f"the model returns a {type(output).__name__} without `logits`: say which part holds them, "
                "logits=lambda output: ..."
            )
    if found.ndim != 2:
        raise UsageError(
            f"the model's logits have shape {tuple(found.shape)}, not (batch, classes): the probe is for classifiers; "
            "pick another part of the output with logits="
        )
    return found


def main_loss(logits: Tensor, targets: Tensor, loss_fn: Loss | None) -> Tensor:
    """The user's loss, or softmax cross-entropy."""
    if loss_fn is not None:
        return loss_fn(logits, targets)
    check_targets(logits, targets)
    return softmax_loss(logits, targets)
