"""`asymtrain.tune`: the branches for a model, or none, found from Python as `asymtrain tune` finds them; `probe` too.

`from asymtrain import *` reads this file too, where there may be torch alone: the rest is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asymtrain.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from asymtrain.lab.candidates import Candidate
    from asymtrain.lab.data import Dataset
    from asymtrain.lab.tune import Tuned


def probe(
    build: str | Callable[..., nn.Module],
    data: str | Dataset | Sequence[Any] | Mapping[str, Any],
    at: str | Sequence[str] | None = None,
    **arguments: Any,
) -> Tuned:
    """Try each form of branches in one short pair: `tune(build, data, short=True)`.

    Args:
        build: as `tune` takes it.
        data: as `tune` takes it.
        at: places as `attach` takes them, by name; the repeated blocks where none are given.
        **arguments: further arguments of `tune`.
    """
    return tune(build, data, at=at, **(arguments | {"short": True}))


def tune(
    build: str | Callable[..., nn.Module],
    data: str | Dataset | Sequence[Any] | Mapping[str, Any],
    *,
    minutes: float | None = 30.0,
    epochs: int | None = None,
    seeds: int | None = None,
    short: bool = False,
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
    """Find the branches that make a model better than training it without them (Plain), or say that none do.

    Candidates race against Plain on seeds that they share, and are compared on held-out training images. The better
    half of each rung trains longer. The winner is confirmed on fresh seeds and on test images that the race never saw.
    The verdict is attach, none or undecided, and says why.

    >>> import numpy as np, torch, asymtrain
    >>> x = np.random.default_rng(0).normal(size=(400, 8)).astype(np.float32)
    >>> y = (x[:, 0] > 0).astype(np.int64)
    >>> def net(classes):
    ...     return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, classes))
    >>> tried = [{"objective": "softmax", "alpha": 0.3}, {"alpha": 1.0}]
    >>> result = asymtrain.tune(
    ...     net, (x, y), minutes=1, epochs=2, candidates=tried, recipe="paper", at="1", progress=False
    ... )
    >>> result.verdict in ("attach", "none", "undecided"), result.comparison["n"]
    (True, 5)

    Args:
        build: a model by name, or a function that returns a new `nn.Module` at each call, as `asymtrain.compare`
            takes it.
        data: a name, a `Dataset`, or arrays or tensors, as `asymtrain.compare` takes it.
        minutes: for all of it. After two timed epochs, the race and the confirmation are planned to fit. None for no
            limit: the race and the confirmation of all epochs, by the same plan on every machine.
        epochs: of the training that the question is about; 30 by default. Where the time holds fewer, the answer says
            so, and is undecided while the difference still moves.
        seeds: fresh seeds of the confirmation, 5 or more.
        short: one pair for each candidate, of a third of the epochs, and no confirmation; nothing is timed, and minutes
            are only a limit. The answer is always undecided, and leans to attach the best, or nothing.
        candidates: branches to try, as `asymtrain.lab.candidates.Candidate` or by its fields: objective, branch_bias,
            alpha, places (all, later, middle) and alpha_schedule. A list of nine by default.
        recipe: how you train: paper, ordinary, strong; None for the scale's own settings.
        batch: inputs in a batch; by default the recipe's 128, or fewer where an epoch would have fewer than 40 batches.
        learning_rate: the highest.
        weight_decay: of AdamW.
        at: places as `attach` takes them, by name; the repeated blocks where none are given.
        pool: mean, or class_token.
        layout: the axes of a place's output, such as BTD, where they cannot be told.
        precision: fp32, tf32 or bf16.
        build_options: further arguments of the builder.
        data_options: such as image_size, layout or seed.
        device: cpu, cuda or cuda:1; the fastest available where it is not given.
        data_root: where downloaded data is kept.
        store: a file that keeps runs and checkpoints; `runs.sqlite` of `out` where only that is given.
        out: a folder for report.html and tune.json. After Ctrl-C the same call goes on there, with the plan it had.
        progress: a bar on a terminal, elsewhere a line for each run, on stderr.
        **fields: any other field of `asymtrain.lab.runs.RunSpec`, such as clip, head or per_class.
    """
    from asymtrain.lab import calls

    calls.import_lab("tune")
    from asymtrain.lab.candidates import Candidate
    from asymtrain.lab.cli.report import versions_in
    from asymtrain.lab.cli.tune import watcher_of
    from asymtrain.lab.report import current_versions
    from asymtrain.lab.tune import EPOCHS, RULE, Question, as_candidates, run_tune, without_equals

    own = calls.OWN | {"seed": "seeds"} | dict.fromkeys(Candidate().fields(), "candidates")
    for name in ("validation", "test"):
        if name in fields:
            raise UsageError(f"{name} is not yours to set here: the race validates, and the confirmation tests")
    chosen = {
        "epochs": EPOCHS if epochs is None else epochs, "batch": batch, "learning_rate": learning_rate,
        "weight_decay": weight_decay, "at": at, "pool": pool, "layout": layout, "precision": precision,
    }  # fmt: skip
    if not isinstance(short, bool):
        raise UsageError(f"short is True or False, got {short!r}")
    if short and seeds is not None:
        raise UsageError("short=True trains one short pair for each candidate: leave out short, or seeds")
    given = calls.given_fields("tune", chosen, fields, own)
    tried = as_candidates(candidates)
    with calls.naming_arguments(tune), ExitStack() as held:
        folder, record, root = calls.checked_paths(out, store, data_root, device)
        missing = {"epochs": EPOCHS} if epochs is None else {}
        base, opening = calls.base_spec(
            build, data, recipe, given, build_options, data_options, root, held, tuned=True, **missing
        )
        question = Question(base, tried, minutes, RULE.seeds if seeds is None else seeds, short)
        question = without_equals(question, folder, root)
        with calls.shown_progress(progress, opening) as display:
            watcher = None if display is None else watcher_of(display)
            try:
                result = run_tune(question, store=record, out=folder, data_root=root, watcher=watcher, device=device)
            except KeyboardInterrupt as stop:
                kept = f"finished runs are in {record}" if record else "no run is kept"
                again = "call it again to go on" if folder else "give out= to go on with the same plan"
                stop.add_note(f"asymtrain.tune: {kept}; {again}")
                raise
    versions = current_versions() if record is None else versions_in(record, result.runs)
    listed = None if candidates is None else [candidate.fields() for candidate in tried]
    command = calls.call_text(
        "tune", base, {"minutes": minutes, "recipe": recipe} | given, own, seeds=seeds, short=short,
        build_options=build_options, data_options=data_options, candidates=listed,
    )  # fmt: skip
    result = replace(result, command=command, versions=versions)
    if folder is not None:
        result.page(folder)
    return result
