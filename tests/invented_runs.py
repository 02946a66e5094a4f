"""Epochs with invented numbers, for tables and pages: they do not care how a run was made."""

from asymtrain.lab.runs import Epoch


def invented_epoch(number: int, accuracy: float, test: float | None, cosine: float | None) -> Epoch:
    """An epoch of an Asymmetric run, or of Plain where there is no cosine."""
    return Epoch(
        epoch=number,
        main_loss=2 / number,
        auxiliary_loss=None if cosine is None else 1 / number,
        train_accuracy=accuracy,
        validation_accuracy=accuracy - 0.01,
        test_accuracy=test,
        cosine=cosine,
        cosine_min=None if cosine is None else cosine - 0.2,
        cosine_max=None if cosine is None else cosine + 0.2,
        seconds=1.5,
    )
