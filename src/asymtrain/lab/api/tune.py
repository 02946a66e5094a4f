"""`asymtrain.tune`: do branches help a model? From Python, as `asymtrain tune` answers it.

`from asymtrain import *` reads this file too, also where only torch is installed: other imports are inside functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asymtrain.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from asymtrain.lab.candidates import Candidate
    from asymtrain.lab.data import Dataset
    from asymtrain.lab.runs import Run, RunSpec
    from asymtrain.lab.terminal import Display
    from asymtrain.lab.trackers import Tracker
    from asymtrain.lab.tune import Question, Tuned


def tune(
    build: str | Callable[..., nn.Module],
    data: str | Dataset | Sequence[Any] | Mapping[str, Any],
    *,
    minutes: float | None = 30.0,
    epochs: int | None = None,
    candidates: Iterable[Candidate | Mapping[str, Any]] | None = None,
    recipe: str | None = "ordinary",
    batch: int | None = None,
    learning_rate: float | None = None,
    weight_decay: float | None = None,
    at: str | Sequence[str] | None = None,
    pool: str | None = None,
    layout: str | None = None,
    precision: str | None = None,
    build_options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    device: str | None = None,
    data_root: str | Path | None = None,
    store: str | Path | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    **fields: Any,
) -> Tuned:
    """Say whether branches help a model, within the given minutes.

    Runs with the recommended branches and without (the baseline) share seeds. They are compared on the test images
    after every pair, by an interval that allows a look after each. In the remaining time, alternatives race against the
    recommended branches on held-out training images, and the winner is confirmed on fresh seeds.

    >>> import numpy as np, torch, asymtrain
    >>> x = np.random.default_rng(0).normal(size=(400, 8)).astype(np.float32)
    >>> y = (x[:, 0] > 0).astype(np.int64)
    >>> def net(classes):
    ...     return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, classes))
    >>> tried = [{"objective": "softmax", "alpha": 0.3}]
    >>> result = asymtrain.tune(
    ...     net, (x, y), minutes=1, epochs=2, candidates=tried, recipe="paper", at="1", progress=False
    ... )
    >>> result.verdict in asymtrain.lab.statistics.VERDICTS, result.candidate.label
    (True, 'softmax, alpha 0.3')

    Arguments that are not listed are those of `asymtrain.compare`.

    Args:
        minutes: for the whole call. Two epochs are timed, and the pairs are as long as lets four of them fit; a very
            small number gives one short pair. None: no limit, and the same runs on every machine.
        epochs: of your training; 30 by default. If the time allows fewer, the answer says so.
        candidates: branches to try, as `asymtrain.lab.candidates.Candidate` or by its fields, such as objective, bias,
            alpha, layers (all, later, middle) and alpha_schedule: the first in place of the recommended ones, the
            others in place of the list of alternatives.
        recipe: how you train: a name in `asymtrain.lab.recipes.RECIPES`; None for the scale's own settings.
        learning_rate: the highest. If you give none and the baseline does not learn, a third and a tenth of the
            recipe's are tried.
        precision: fp32, tf32 or bf16; bf16 by default on a GPU that has it.
        store: a file that keeps runs and checkpoints; by default `runs.sqlite` in `out`, if you give `out`.
        out: a folder for report.html and tune.json. After Ctrl-C the same call continues there with the same plan.
        **fields: any other field of `asymtrain.lab.runs.RunSpec`, such as clip, head or per_class.
    """
    arguments = dict(locals())
    begun = time.monotonic()
    from asymtrain.lab.api import common

    common.import_lab("tune")
    from asymtrain.lab.candidates import Candidate
    from asymtrain.lab.terminal import progress_display
    from asymtrain.lab.tune import EPOCHS

    own = common.OWN | {"seed": "minutes"} | dict.fromkeys(Candidate().fields(), "candidates")
    for name in ("validation", "test"):
        if name in fields:
            raise UsageError(f"{name} cannot be set here: pairs are tested, and the race validates")
    arguments |= {"epochs": EPOCHS if epochs is None else epochs}
    run_fields = common.given_fields("tune", arguments, fields, own)
    missing: dict[str, Any] = {"epochs": EPOCHS} if epochs is None else {}
    with common.opened(tune, arguments, run_fields, all_images=True, **missing) as (base, opening, folder, where):
        record = where["store"]
        question, lines = make_question(base, candidates, minutes, run_fields, where["data_root"], device)
        with progress_display([*opening, *lines], quiet=not progress) as display:
            result = run_question(question, display, out=folder, begun=begun, **where)
    listed = None if candidates is None else [candidate.fields() for candidate in question.candidates]
    command = common.call_text(
        "tune", base, {"minutes": minutes, "recipe": recipe} | run_fields, own, build_options=build_options,
        data_options=data_options, candidates=listed,
    )  # fmt: skip
    result = replace(result, command=command, versions=common.versions_in(record, result.runs))
    if folder is not None:
        result.page(folder)
    if result.interrupted:
        stop = KeyboardInterrupt()
        record_words = f"finished runs are in {record}" if record else "no run is kept"
        again = "call it again to go on" if folder else "give out= to go on with the same plan"
        stop.add_note(f"asymtrain.tune: {record_words}; {again}. {result.sentence}")
        raise stop
    return result


def make_question(
    base: RunSpec,
    candidates: Iterable[Candidate | Mapping[str, Any]] | None,
    minutes: float | None,
    named_fields: Collection[str],
    data_root: Path | None,
    device: str | None,
) -> tuple[Question, list[str]]:
    """The question about a training, and lines that name the choices made for it."""
    from asymtrain.lab.devices import fast_precision
    from asymtrain.lab.engine import load_for
    from asymtrain.lab.engine.setup import recommended_branches
    from asymtrain.lab.tune import Question, as_candidates, without_equals

    lines = []
    if "precision" not in named_fields and (fast := fast_precision(device)) is not None and fast != base.precision:
        base = replace(base, precision=fast)
        lines.append(f"Precision {fast}, which this GPU has: give fp32 for float32.")
    default, _ = recommended_branches(base, load_for(base, data_root))
    question = Question(base, as_candidates(candidates, default), minutes, "learning_rate" in named_fields)
    return without_equals(question, data_root), lines


def run_question(question: Question, display: Display, *, tracker: Tracker | None = None, **options: Any) -> Tuned:
    """Train what a question needs and show it: stages and a bar on a terminal, elsewhere a line for each run.

    `options` are those of `lab.tune.run_tune`.
    """
    from asymtrain.lab.trackers import tracking
    from asymtrain.lab.tune import run_tune

    with tracking(tracker, display.update, display.console.print) as update:
        return run_tune(question, progress=update, on_stage=display.stage, on_run=display.telling(_line), **options)


def _line(run: Run) -> str:
    from asymtrain.lab.candidates import Candidate

    label = "baseline" if run.spec.redundancy == 0 else Candidate.of(run.spec).label
    last = run.history[-1] if run.history and run.outcome == "finished" else None
    accuracy = "diverged"
    if last is not None and last.test_accuracy is not None:
        accuracy = f"test accuracy {last.test_accuracy:.3f}"
    elif last is not None:
        accuracy = f"validation accuracy {last.validation_accuracy:.3f}"
    return f"{label}, seed {run.spec.seed}: {accuracy}"
