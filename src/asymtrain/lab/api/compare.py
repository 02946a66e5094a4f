"""`asymtrain.compare`: Plain and Asymmetric of a model, trained in pairs from Python, as `asymtrain run` trains them.

`from asymtrain import *` reads this file too, also where only torch is installed: other imports are inside functions.
"""

from __future__ import annotations

import html
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asymtrain.errors import UsageError, UsageWarning

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from asymtrain.lab.data import Dataset
    from asymtrain.lab.report.summary import Summary
    from asymtrain.lab.runs import Run


def compare(
    build: str | Callable[..., nn.Module],
    data: str | Dataset | Sequence[Any] | Mapping[str, Any],
    *,
    seeds: int | Iterable[int] = 5,
    recipe: str | None = "ordinary",
    epochs: int | None = None,
    batch: int | None = None,
    learning_rate: float | None = None,
    weight_decay: float | None = None,
    at: str | Sequence[str] | None = None,
    pool: str | None = None,
    layout: str | None = None,
    head: str | None = None,
    objective: str | None = None,
    bias: str | None = None,
    redundancy: int | None = None,
    strength: float | None = None,
    alpha: float | None = None,
    precision: str | None = None,
    build_options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    device: str | None = None,
    data_root: str | Path | None = None,
    store: str | Path | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    progress: bool = True,
    **fields: Any,
) -> Comparison:
    """Train a model with branches and without them, in pairs that share a seed, and compare the test accuracies.

    Both runs of a pair have the same initial weights, batches, augmentation and dropout masks. `asymtrain run` does the
    same: runs with equal names and settings have equal ids and numbers. None leaves the recipe's value, or the default
    of `asymtrain run`.

    >>> import numpy as np, torch, asymtrain
    >>> x = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    >>> y = (x[:, 0] > 0).astype(np.int64)
    >>> def net(classes):
    ...     return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, classes))
    >>> result = asymtrain.compare(net, (x, y), seeds=2, recipe="paper", epochs=2, at="1", progress=False)
    >>> result.comparison["n"], len(result.rows)
    (2, 4)
    >>> result.sentence.startswith("here:net-")
    True

    Args:
        build: a model by name as `--arch` takes it (`vit`, `timm:resnet18`, `hf:ViTConfig`, `package.module:function`),
            or a function that returns a new `nn.Module` at each call. It is given what it has parameters for: `classes`
            or `num_classes`, `input_shape`, `channels`, `image_size`. Its random numbers come from torch's, Python's
            or numpy's global state, which is set from the seed. A function at the top of a file is known by its name.
            Any other (a lambda, a local function, one of a script or a notebook) is known by `here:NAME-FINGERPRINT`:
            it trains in this process alone, on one core or one GPU, and only a call that gives it again goes on.
        data: a name as `--data` takes it (`folder:photos`, `cifar10`, `npz:FILE`, `package.module:function`), a
            `Dataset` of `asymtrain.lab.data`, or arrays or tensors: (x, y), (x, y, x_test, y_test) or a dict of these
            names. Without a test set a fifth of each class is held out. Arrays too keep training in this process.
        seeds: how many (5: 42 to 46), or which.
        recipe: a name in `asymtrain.lab.recipes.RECIPES`; None for the scale's own settings.
        epochs: of each run.
        batch: inputs in a batch; by default the recipe's 128, or fewer if an epoch would have fewer than 40 batches.
        learning_rate: the highest.
        weight_decay: of AdamW.
        at: layers by name, as `attach` takes them; by default the repeated blocks.
        pool: mean, or class_token.
        layout: the axes of a layer's output, such as BTD, if an error asks for them.
        head: linear, mlp, or tower, for layers that give maps.
        objective: the loss of a branch: sigmoid, softmax, distill, mse or huber.
        bias: prior, for branches with a bias that begins at the classes' shares.
        redundancy: branches at each layer.
        strength: how much branches count beside the main loss, as `attach` takes it. Their other settings are
            the recommended ones, which are also trained if you give none.
        alpha: the weight of the auxiliary loss in the paper's unit. Their other settings are then the paper's.
        precision: fp32, tf32 or bf16.
        build_options: further arguments of the builder.
        data_options: such as image_size, layout or seed.
        device: cpu, cuda or cuda:1; by default the fastest available.
        data_root: the folder of downloaded data.
        store: a file that keeps runs and checkpoints: after Ctrl-C the same call goes on, and what is trained is not
            trained again. Without it, runs are kept in `runs.sqlite` of `out`, and without both in memory alone.
        out: a folder that the page is written to.
        fresh: train again what the store holds.
        progress: a bar on a terminal, elsewhere a line for each run, on stderr.
        **fields: any other field of `asymtrain.lab.runs.RunSpec`, such as clip, signal or per_class.
    """
    arguments = dict(locals())
    from asymtrain.lab.api import common

    common.import_lab("compare")
    from asymtrain.lab.runs import pairs
    from asymtrain.lab.terminal import progress_display

    own = common.OWN | {"seed": "seeds"}
    run_fields = common.given_fields("compare", arguments, fields, own)
    numbers = common.parse_seeds(seeds)
    with common.opened(compare, arguments, run_fields, recommended=True) as (base, opening, folder, where):
        specs, record = pairs(base, numbers), where["store"]
        with progress_display(opening, quiet=not progress) as display:
            trained = common.train_runs(specs, display, fresh=fresh, **where)
    progress_words = f"{len(trained.runs)} of {len(specs)} runs were trained"
    if trained.interrupt is not None:
        again = f"they are in {record}; call it again to go on" if record else "give store= to keep what is trained"
        trained.interrupt.add_note(f"asymtrain.compare: {progress_words}; {again}")
        raise trained.interrupt
    arguments = {"seeds": seeds if isinstance(seeds, int) else list(numbers), "recipe": recipe} | run_fields
    options = {"strength": strength, "build_options": build_options, "data_options": data_options}
    command = common.call_text("compare", base, arguments, own, **options)
    result = compared(trained.runs, command, record)
    if len(trained.runs) < len(specs):
        progress_words += f": {trained.note}" if trained.note else ""
        if not result.summary.comparisons:
            raise UsageError(f"no pair of runs can be compared: {progress_words}")
        warnings.warn(progress_words, UsageWarning, stacklevel=2)
    if folder is not None:
        result.page(folder)
    return result


def compared(runs: Iterable[Run], command: str, record: Path | None) -> Comparison:
    """The comparison of finished runs that a command trained or a record holds, of one model or several."""
    from asymtrain.lab.api.common import versions_in
    from asymtrain.lab.report.summary import summarise

    runs = tuple(runs)
    return Comparison(runs, summarise(runs), command, versions_in(record, runs))


@dataclass(frozen=True, eq=False)
class Comparison:
    """What `compare` measured. Printed, it is a sentence; in a notebook, the table of `asymtrain run`."""

    runs: tuple[Run, ...]
    summary: Summary
    command: str
    versions: Mapping[str, str]

    @property
    def rows(self) -> pd.DataFrame:
        """One row for each run: id, settings, results."""
        return self.summary.rows

    @property
    def history(self) -> pd.DataFrame:
        """One row for each epoch of each run."""
        return self.summary.history

    @property
    def pairs(self) -> pd.DataFrame:
        """One row for each seed, with the accuracies of its Plain and its Asymmetric run."""
        return self.summary.pairs[0]

    @property
    def comparison(self) -> dict[str, Any]:
        """The row of `asymtrain.lab.comparisons.compare`: n, points, points_low, points_high, p and others."""
        return self.summary.comparisons[0]

    @property
    def sentence(self) -> str:
        """The comparison in words."""
        return str(self.comparison["sentence"])

    def page(self, folder: str | Path) -> Path:
        """Write report.html, rows.csv and history.csv into a folder, as `asymtrain run` does; the page's path."""
        from asymtrain.lab.report import write_report
        from asymtrain.lab.report.run_report import FILES

        write_report(self.runs, Path(folder), self.command, self.versions)
        return Path(folder) / FILES["report"]

    def __str__(self) -> str:
        return self.sentence

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.runs)} runs: {self.sentence}>"

    def _repr_html_(self) -> str:
        from asymtrain.lab.report.summary import comparison_table

        table = comparison_table(self.summary)
        cells = [[column.heading for column in table.columns], *table.texts()]
        rows = [
            "".join(f"<{kind}>{html.escape(text)}</{kind}>" for text in row)
            for kind, row in zip(["th", *["td"] * len(table.rows)], cells, strict=True)
        ]
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table><p>{html.escape(self.sentence)}</p>"
