"""`probe`: will auxiliary branches help this model, where, and how strongly?"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from asymtrain.branches._blocks import find_blocks
from asymtrain.branches._dry_run import call, undisturbed
from asymtrain.branches._nested import Selector, read_logits
from asymtrain.branches._places import Where, find_places
from asymtrain.errors import UsageError, error_line
from asymtrain.lab.probe.budget import Clock, Plan, ShadowLimit, notes_on_time, plan_trials
from asymtrain.lab.probe.inputs import Batches, Source, fresh_model, gather
from asymtrain.lab.probe.result import Probe, Shadow, Trial
from asymtrain.lab.probe.rule import RULE, Rule, advise, kept_places
from asymtrain.lab.probe.training import Loss, Settings, paired_trials, shadow_training
from asymtrain.streams import random_state_kept

FIRST_SEED = 2000  # a probe's seeds are none of a study's
IGNORED = -100  # the target that torch's losses leave out


def probe(
    model: Source,
    batches: Any,
    at: Where | None = None,
    *,
    classes: int | None = None,
    alphas: Sequence[float] = (0.1, 1.0),
    seeds: int = 3,
    steps: int = 300,
    minutes: float | None = None,
    every: int = 5,
    learning_rate: float = 1e-3,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
    loss_fn: Loss | None = None,
    logits: Selector | None = None,
    autocast: torch.dtype | None = None,
    branch_options: Mapping[str, Any] | None = None,
    rule: Rule = RULE,
    progress: Callable[[str], None] = lambda _: None,
) -> Probe:
    """Advice on branches for a classifier, from a short training of a copy of it; the model itself is not touched.

    First a shadow training of `steps` steps measures, at each place, how the branch's gradient lies to the main one.
    Then short runs without branches and with them, at each alpha, from the same weights and with the same batches, show
    what branches do. Every fifth batch is held out to compare them on.

    Args:
        model: a module, or a function without arguments that builds one: then each seed has its own initial weights.
        batches: a list, a DataLoader or another iterable of (inputs, targets), or of mappings with `labels`.
        at: places as `attach` takes them; the model's repeated blocks where there are none given.
        classes: the number of logits of a branch; that of the model where it is not given.
        alphas: weights of the auxiliary objective to try in paired runs; () for none.
        seeds: pairs of runs at each alpha.
        steps: of the shadow training and of each paired run.
        minutes: a limit; steps, alphas and seeds are cut to fit, and the result says so. Where no paired runs fit, the
            shadow training has all of it.
        every: steps between measurements of the alignment.
        learning_rate: of AdamW.
        optimizer: another one: a function from parameters to an optimizer.
        loss_fn: the main loss, from logits and targets to a scalar; softmax cross-entropy where it is not given.
        logits: which part of the model's output holds the logits: an index, a key, or a function.
        autocast: torch.bfloat16 or torch.float16, to probe in mixed precision.
        branch_options: further arguments of `attach`, such as layout or pool.
        rule: the thresholds of the advice.
        progress: called with a line of text now and then.
    """
    for name, value in (("seeds", seeds), ("steps", steps), ("every", every)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(f"{name} must be a whole number of 1 or more, got {value!r}")
    if minutes is not None and not minutes > 0:
        raise UsageError(f"minutes must be above 0, got {minutes:g}")
    if any(not alpha > 0 for alpha in alphas):
        raise UsageError(f"alphas must be above 0, got {', '.join(map(str, alphas))}: 0 is Plain, and is always run")
    clock = Clock(minutes)
    with random_state_kept():
        shadow_model = fresh_model(model, FIRST_SEED)
        split = gather(batches, most=2 * steps + 16)
        width = _classes(shadow_model, split, logits)
        settings = Settings(
            width if classes is None else classes, loss_fn, logits, optimizer, learning_rate, autocast, every,
            dict(branch_options or {}),
        )  # fmt: skip
        # Modules of the user's own model are found by their names in the copy.
        named = None if at is None else list(find_places(model if isinstance(model, nn.Module) else shadow_model, at))

        def train_shadow(limit: ShadowLimit) -> Shadow:
            return shadow_of_model(shadow_model, split, named, settings, steps=steps, limit=limit, progress=progress)

        def train_pairs(plan: Plan, shadow: Shadow) -> list[Trial]:
            places = kept_places(shadow)
            return paired_trials(model, split, settings, places, plan, lambda: clock.left() > 0, progress)

        compared = len(split.held_out_numbers)
        return conduct(clock, train_shadow, train_pairs, alphas, seeds, steps, rule, compared)


def conduct(
    clock: Clock,
    train_shadow: Callable[[ShadowLimit], Shadow],
    train_pairs: Callable[[Plan, Shadow], list[Trial]],
    alphas: Sequence[float],
    seeds: int,
    steps: int,
    rule: Rule,
    held_out: int = 0,
) -> Probe:
    """The order of every probe: shadow training, the paired runs that fit in the time, advice.

    A paired run is compared on `held_out` batches.
    """

    def plan_runs(step_seconds: float) -> Plan:
        # Compared halfway and at the end; a forward takes about a third of a step.
        compared = 2 / 3 * held_out * step_seconds
        return plan_trials(steps, range(FIRST_SEED, FIRST_SEED + seeds), alphas, step_seconds, clock.left(), compared)

    shadow = train_shadow(ShadowLimit(clock, rule.least_steps // 2, plan_runs))
    plan = plan_runs(shadow.step_seconds)
    trials = train_pairs(plan, shadow) if plan.alphas else []
    notes = notes_on_time(plan, len(trials[0].seeds) if trials else 0, shadow.steps, steps)
    return Probe(shadow, tuple(trials), advise(shadow, trials, rule), notes, clock.passed())


def shadow_of_model(
    model: nn.Module,
    batches: Batches,
    places: list[str] | None,
    settings: Settings,
    *,
    steps: int,
    limit: ShadowLimit,
    progress: Callable[[str], None] = lambda _: None,
) -> Shadow:
    """The shadow training of a model that may be trained: at the places, or at its repeated blocks."""
    sample = batches.sample(next(model.parameters()).device)
    names = find_blocks(model, sample) if places is None else places
    progress(f"shadow training at {', '.join(names)}")
    torch.manual_seed(FIRST_SEED)
    branches = settings.attach(model, names, sample, FIRST_SEED)
    order = batches.order(FIRST_SEED, steps)
    return shadow_training(model, branches, batches, settings, order=order, go_on=limit)


def _classes(model: nn.Module, batches: Batches, selector: Selector | None) -> int:
    """The width of the model's logits in training mode, where models with auxiliary heads show them."""
    sample = batches.sample(next(model.parameters()).device)
    with undisturbed(model):
        model.train()
        try:
            output = call(model, sample)
        except Exception as error:
            raise UsageError(
                f"the model cannot be called on a batch ({error_line(error)}): give (inputs, targets), "
                "where inputs is a tensor, a tuple of positional arguments or a dict of keyword arguments"
            ) from error
        width = read_logits(output, selector).shape[-1]
    # On a GPU a wrong target would end in an assertion of the device's.
    wrong = [target for target in batches.classes_seen() if target != IGNORED and not 0 <= target < width]
    if wrong:
        raise UsageError(
            f"a target is {wrong[0]}, but the model has {width} logits, so classes must be numbered 0 to {width - 1}: "
            "number them so, or build the model for more classes (num_labels= of transformers, num_classes= of timm)"
        )
    return width
