"""Branches in MosaicML's Composer: one algorithm.

FIT_START     attach; the branches' parameters join the optimizer, which has the state of the checkpoint by now
AFTER_LOSS    the auxiliary loss is added to `state.loss`, before Composer scales it for microbatches
BATCH_END     the strength follows the training
FIT_END       strip
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from asymtrain.errors import UsageError
from asymtrain.integrations._common import Adapter, part_of

try:
    from composer.core import Algorithm, Event
except ImportError as error:
    raise UsageError(
        f"Composer does not import ({error}): pip install mosaicml, and see its own requirements"
    ) from error


class BranchesAlgorithm(Adapter, Algorithm):  # type: ignore[misc]  # Composer is optional, and untyped where it is missing
    """Trains a ComposerModel with branches, which are removed when `fit` ends.

    Checkpoints hold the model and the optimizer of training without branches; the branches are in the algorithm's
    state, from which a training resumes.

    Args:
        model: the part of the ComposerModel to attach to, by name: `module` of a `ComposerClassifier`, `model` of a
            `HuggingFaceModel`. Default: the ComposerModel itself, whose argument is the whole batch.
        sample: what that part is called with; needed if `model` names one. Default: a batch of the training data.
        targets: a function from the batch to the targets of the branches. Default: its labels.
        cosine: whether the gradient cosine is logged too, which costs two backwards at each batch that is logged.
        every: log every so many batches, since Composer has no such setting.
        options: the other arguments of `attach`: `classes`, `strength`, `at` and the rest.
    """

    def __init__(
        self,
        *,
        model: str = "",
        sample: object = None,
        targets: Callable[[Any], Tensor] | None = None,
        cosine: bool = True,
        every: int = 50,
        **options: Any,
    ) -> None:
        self.take(options, targets, cosine)
        self.model, self.sample, self.every = model, sample, every
        if model and sample is None:
            raise UsageError(f"give sample=, what {model!r} is called with: its argument need not be the batch")

    def match(self, event: Event, state: Any) -> bool:
        """Whether there is something to do."""
        return event in (Event.FIT_START, Event.AFTER_LOSS, Event.BATCH_END, Event.FIT_END)

    def apply(self, event: Event, state: Any, logger: Any) -> None:
        """Attach, add the loss, update the strength or strip, depending on the event."""
        if event == Event.FIT_START:
            self.begin(state)
        elif event == Event.AFTER_LOSS:
            self.add_to_loss(state, logger)
        elif event == Event.BATCH_END:
            self.step(_progress(state))
        else:
            self.strip()

    def begin(self, state: Any) -> None:
        """Attach to the model inside DDP and the compiler, before its first call."""
        sample = self.sample
        if sample is None:
            with torch.random.fork_rng():
                sample = (next(iter(state.train_dataloader)),)  # the one argument of a ComposerModel
        self.attach(part_of(state.model, self.model), state.device.batch_to_device(sample))
        self.join(state.optimizers[0], _progress(state))

    def add_to_loss(self, state: Any, logger: Any) -> None:
        """Add the auxiliary loss to the loss, or to the main one of several."""
        if self.training is None or not torch.is_grad_enabled():
            return
        loss = state.loss
        several = isinstance(loss, tuple | list)
        main = loss["total"] if isinstance(loss, dict) else sum(loss) if several else loss
        logs = self.every and (int(state.timestamp.batch) + 1) % self.every == 0
        total, logged = self.add(main, self.targets(state.batch), part_of(state.model) if logs else None)
        if isinstance(loss, dict):
            state.loss = {**loss, "total": total}
        else:
            state.loss = (loss[0] + (total - main), *loss[1:]) if several else total
        logger.log_metrics({f"loss/train/{name}": float(value) for name, value in logged.items()})

    def state_dict(self) -> dict[str, Any]:
        """The state that Composer expects of any algorithm, and the branches'."""
        return {**Algorithm.state_dict(self), **super().state_dict()}


def _progress(state: Any) -> float:
    if state.max_duration.unit == "ep" and state.dataloader_len is not None:  # Composer counts whole epochs
        epochs = state.timestamp.epoch.value + state.timestamp.batch_in_epoch.value / state.dataloader_len.value
        return float(epochs / state.max_duration.value)
    return float(state.get_elapsed_duration() or 0.0)
