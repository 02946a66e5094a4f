"""`attach`: put temporary branches on a model, or raise an error that says why not and what to do instead."""

import functools
import math
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from asymtrain.branches._axes import BatchEvidence, LayerEvidence, infer_layout
from asymtrain.branches._blocks import find_blocks
from asymtrain.branches._capture import is_sharded
from asymtrain.branches._core import NO_MODEL_LOGITS, Branches
from asymtrain.branches._dry_run import DryRun, blind_layer, dry_run, masked_layers
from asymtrain.branches._forwards import call_model
from asymtrain.branches._heads import (
    MAP_HEADS,
    NAMED_HEADS,
    Head,
    HeadKind,
    Linear,
    Parallel,
    Prior,
    check_weight_count,
    make_heads,
)
from asymtrain.branches._layers import Where, by_layer, find_paths, module_at
from asymtrain.branches._losses import LossFn, Settings
from asymtrain.branches._masks import USUAL_MASK, Mask, MaskRule, is_usual, mask_of, masked_sample
from asymtrain.branches._nested import Selector, logits_in, named_parts
from asymtrain.branches._pooling import Dense, Pool, Reader
from asymtrain.branches._strength import (
    Falling,
    Following,
    GradientRatio,
    Scheduled,
    StrengthRule,
    checked,
    checked_rule,
    convolutional,
)
from asymtrain.branches._tied import output_layers
from asymtrain.errors import UsageError, UsageWarning, error_line, unknown_name
from asymtrain.objectives import Objective, Sigmoid, find_objective, prior_bias, whole_number

RECOMMENDED = "recommended"
CONVOLUTIONAL_STRENGTH = 0.05  # of the recommended preset, where a layer holds a convolution
PRESETS: dict[str, dict[str, Any]] = {
    # One sigmoid per class, with the bias at the class shares: else a branch first learns that most classes are absent
    RECOMMENDED: {"head": Linear(bias="prior"), "objective": "sigmoid", "strength": 0.5},
    # The paper's branch: twenty linear maps at each layer, of which the last is live. Its loss has another scale:
    # averaged over classes and summed over layers
    "paper": {"head": Parallel(20), "objective": Sigmoid(class_reduction="mean"), "strength": 1.0},
    # One target per pixel or token, at every resolution: U-Nets and other dense predictors
    "deep_supervision": {"pool": Dense(resize="targets"), "objective": "softmax", "strength": 1.0},
    # Inner layers learn to use the model's own output layer, so that inference may stop there
    "early_exit": {"pool": "none", "head": "tied", "objective": "softmax", "strength": 1.0},
    # What a linear classifier can read from a layer. The model gets no gradient, and its forward needs none
    "probe": {"head": "linear", "objective": "softmax", "strength": 1.0},
}


def attach(
    model: nn.Module,
    sample: object,
    classes: int | None = None,
    *,
    at: Where | None = None,
    objective: str | Objective | LossFn | None = None,
    head: HeadKind | Parallel | Mapping[str, HeadKind] | None = None,
    strength: StrengthRule | None = None,
    preset: str = RECOMMENDED,
    pool: Pool | Mapping[str, Pool] | None = None,
    layout: str | Mapping[str, str] | None = None,
    output: Selector | Mapping[str, Selector] | None = None,
    mask: Mask | None = "attention_mask",
    shift: int | None = None,
    weights: float | Mapping[str, float] = 1.0,
    seed: int = 0,
) -> Branches:
    """Put branches on layers of a model; the model stays as it is.

    Give `branches.parameters()` to the optimizer too, add `branches.loss(targets)` to the loss of each batch, and call
    `branches.strip(optimizer)` at the end. Attach before torch.compile, and before DDP or FSDP2 (see `WithBranches`).

    Args:
        model: any module. Its parameters, buffers and state_dict do not change.
        sample: what the model is called with: a tensor, a tuple of arguments, a dict of keyword arguments. A dry run
            on it finds the widths.
        classes: the number of classes. Leave it out if the objective has a number of `outputs`.
        at: module names, globs (`*` within one dotted segment, `**` across), modules of the model, or whole numbers
            that count the model's repeated blocks, -1 for the last; or a dict from one of these to the layer's name.
            By default the repeated blocks, at most six; with tied heads not the last, whose logits are the model's.
        objective: the loss of a branch: `sigmoid` (the default), `softmax`, `distill`, `mse`, `huber`, `dice`; one
            of `asymtrain.objectives` with settings, such as `Softmax(ignore_index=255)` or `Mse(outputs=2)`; or a
            function from logits and targets to a scalar.
        head: what a branch is: `Linear(bias="prior")` (the default), `linear` (the paper's, without a bias), `mlp`,
            `conv`, `tower` (for maps), `tied` (the model's own final norm and output layer); `Parallel(20)`, the
            paper's twenty; a function of (width, outputs) that returns a module; or a module that all layers share.
        strength: how much the branches count beside the main loss, all together. A number (1: as much as the main
            loss); or a function of the progress of training, from 0 to 1, such as `Falling(0.5)`, which
            `branches.step(progress)` evaluates; or `GradientRatio(0.1)`. The recommended preset has 0.5, and 0.05 if a
            layer holds a convolution.
        preset: `recommended`, `paper`, `deep_supervision`, `early_exit` or `probe`, for the options that are not given.
        pool: `mean` over positions (the default), the `class_token` (position 0), the `last_token` that the mask
            counts, `none` to keep the positions, `Dense(resize=...)` if their number differs from the targets', or
            a function from the feature to (B, D), which gets the mask if it has an argument `mask`.
        layout: a letter for each axis of the feature (B batch, C or D features, others positions), if the dry run
            cannot infer it: "BD", "BCHW", "BTD", "TBD", "BHWC".
        output: which part of a layer's output is the feature: an index, a key, or a function. By default its first
            floating-point tensor.
        mask: the keyword argument of the model that says which positions count (1) and which are padding (0), or a
            function of the model's arguments that returns this; for means over positions and for the loss. The default
            is used only at layers that have its positions, as the dry run shows. A model that is called without it has
            no padding.
        shift: how many positions later a token's target is: 1 if a language model learns the next token from its own
            input, 0 if the targets are shifted already. By default 1 for Hugging Face's causal language models, else 0.
        weights: the weight of each layer in the mean of the losses; in the paper's preset, in their sum.
        seed: seed of the initial weights. torch's global random state is not used.

    `head`, `pool`, `layout`, `output` and `weights` also take a dict from layer names (or globs) to values.

    >>> import torch
    >>> from asymtrain import attach, models
    >>> model, x, y = models.build("vit", classes=10), torch.rand(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
    >>> branches = attach(model, sample=x, classes=10)
    >>> len(branches.layers)
    6
    >>> optimizer = torch.optim.AdamW([*model.parameters(), *branches.parameters()])
    >>> loss = torch.nn.functional.cross_entropy(model(x), y) + branches.loss(y)
    >>> loss.backward()
    >>> optimizer.step()
    >>> branches.strip(optimizer)
    """
    if preset not in PRESETS:
        raise unknown_name("preset", str(preset), PRESETS)
    options = {"head": "linear", "pool": "mean"} | PRESETS[preset]
    arguments = {"objective": objective, "head": head, "pool": pool, "strength": strength}
    options |= {name: value for name, value in arguments.items() if value is not None}
    learned = _learned_objective(options["objective"])
    rule = checked_rule(options["strength"])
    number = _number_of_outputs(classes, learned)
    check_weight_count([1], number, 1)  # before anything that large is allocated
    # Quantities, and a user's own objective, have no class shares that a bias could start from.
    if head is None and preset == RECOMMENDED and (classes is None or not isinstance(learned, Objective)):
        options["head"] = "linear"
    for name in ("head", "pool"):
        if options[name] in (Linear, Parallel, Dense):
            raise UsageError(f"{name} is a class: give an instance of it, such as {options[name].__name__}(...)")
    parallel = options["head"] if isinstance(options["head"], Parallel) else Parallel(1, options["head"])
    if shift is not None and (isinstance(shift, bool) or not isinstance(shift, int) or shift < 0):
        raise UsageError(f"shift must be a whole number of 0 or more, got {shift!r}")
    refuse_wrapped(model)
    paths = find_paths(model, find_blocks(model, sample) if at is None else at)
    layers = {layer: module_at(model, path) for layer, path in paths.items()}
    for name, module in layers.items():
        if isinstance(module, torch.jit.ScriptModule):
            raise UsageError(f"layer {name!r} is a TorchScript module, which takes no hooks: choose one that is not")
    mask_rule = mask_of(model, mask, layers.values())
    kinds = _kinds(parallel, layers)
    tied = functools.cache(lambda: output_layers(model, sample, layers))
    if at is None and "tied" in kinds.values():
        _leave_out_last(tied().reads, kinds, paths, layers)
    pools = _pools(options["pool"], kinds, is_argument=pool is not None)
    layouts, selectors = by_layer(layout, layers, "layout", None), by_layer(output, layers, "output", None)
    probe = preset == "probe"
    readers_before = {
        layer: Reader(layouts[layer], "none" if isinstance(pool, Dense) else pool, selectors[layer], detach=probe)
        for layer, pool in pools.items()
    }
    biases = {layer: _initial_bias(kind, learned, number) for layer, kind in kinds.items()}
    layer_weights = _layer_weights(by_layer(weights, layers, "weights", 1.0), summed=preset == "paper")
    why = f", of preset {preset!r}" if strength is None else ""
    convolution = convolutional(layers) if strength is None and preset == RECOMMENDED else None
    if convolution is not None:
        rule = CONVOLUTIONAL_STRENGTH
        why += f": layer {convolution!r} holds a convolution, and stronger branches cost such models accuracy"

    run = DryRun(model, layers, selectors)
    settled = [layer for layer, reader in readers_before.items() if reader.layout is not None or callable(reader.pool)]
    evidence, batch, answer = dry_run(run, sample, settled, detach=probe)
    takes_mask = any(reader.takes_mask for reader in readers_before.values())
    sample_mask = call_model(mask_rule, sample) if takes_mask and mask_rule is not None else None
    readers, features = {}, {}
    for layer, reader in readers_before.items():
        readers[layer], features[layer] = _read_layer(
            layer, layers[layer], reader, evidence.get(layer), batch, sample_mask
        )
    if (blind := blind_layer(run, evidence, sample, readers)) is not None:
        raise UsageError(
            f"the first token of layer {blind!r}, which pool='class_token' reads, has seen no other token, since the "
            "model is causal: use pool='last_token', or pool='mean'"
        )
    readers, mask_rule = _with_mask(run, readers, mask_rule, evidence, sample)
    _warn_of_repeated_calls(evidence)

    tokens = any(reader.positions == 1 for reader in readers.values())
    if shift and not tokens:
        raise UsageError("shift moves the targets of tokens: attach with pool='none' at layers that give (B, T, D)")
    heads = make_heads(
        kinds, features, readers, number, parallel, biases, seed,
        own={id(parameter) for parameter in model.parameters()},
        tied=lambda: tied().modules,
    )  # fmt: skip
    constant = rule if isinstance(rule, float) else 1.0
    _refuse_padded(heads, readers, mask_rule)
    if getattr(learned, "needs_model", False):
        _check_model_logits(answer, number, heads)
    settings = Settings(
        learned, parallel.activation, parallel.reduction,
        resize={layer: pool.resize for layer, pool in pools.items() if isinstance(pool, Dense) and pool.resize},
        shift=int(tokens and _is_causal(model)) if shift is None else shift,
        strength=constant, weights={name: weight * constant for name, weight in layer_weights.items()},
    )  # fmt: skip
    watch_shift = tokens and shift in (None, 1)
    device, schedule = next(iter(features.values())).device, None
    if not isinstance(rule, float):
        schedule = Following(rule, device) if isinstance(rule, GradientRatio) else Scheduled(rule, device)
    words = " and ".join(sorted({kind if isinstance(kind, str) else _in_words(kind) for kind in kinds.values()}))
    words = f"{parallel.redundancy} x {words}" if parallel.redundancy > 1 else words
    choices = {"objective": _in_words(learned), "head": words, "strength": _in_words(rule) + why}
    branches = Branches(
        heads, readers, settings, schedule, paths=paths, mask=mask_rule, watch_shift=watch_shift, choices=choices
    )
    branches.connect(model)
    return branches


def _number_of_outputs(classes: object, objective: Objective | LossFn) -> int:
    """The number of logits that a branch gives."""
    outputs = getattr(objective, "outputs", None)
    if (classes is None) == (outputs is None):
        raise UsageError(
            "give either classes=, the number of classes, or, for quantities, an objective with a number of outputs: "
            "objective=Mse(outputs=2)"
        )
    number = whole_number("classes", classes) if outputs is None else int(outputs)
    if number == 1 and isinstance(objective, Objective) and objective.competes:
        raise UsageError(
            f"the loss of {type(objective).__name__} of one output is always 0, since there is nothing to choose from: "
            "give classes=2 or more, or for one output 'sigmoid', Mse(outputs=1), Huber(outputs=1) or 'dice'"
        )
    return number


def _learned_objective(objective: object) -> Objective | LossFn:
    """The objective by name or with settings, or the user's own function."""
    if isinstance(objective, type):  # calling it with logits and targets would set its options
        raise UsageError(f"objective is a class: give an instance of it, such as {objective.__name__}()")
    if isinstance(objective, str):
        return find_objective(objective)
    if isinstance(objective, Objective) or callable(objective):
        return objective
    raise UsageError(f"objective must be a name or a function from logits and targets to a scalar, got {objective!r}")


def _kinds(parallel: Parallel, layers: Collection[str]) -> dict[str, HeadKind]:
    """The kind of head at each layer."""
    kinds: dict[str, HeadKind] = by_layer(parallel.head, layers, "head", "linear")
    head_names = ("linear", *NAMED_HEADS, "tied")
    for kind in kinds.values():
        if isinstance(kind, Parallel):
            raise UsageError("Parallel is for all layers: head=Parallel(20, {'blocks.*': 'mlp'})")
        if not (callable(kind) or isinstance(kind, Linear)) and kind not in head_names:
            raise unknown_name("head", str(kind), head_names)
    return {layer: Linear() if kind == "linear" else kind for layer, kind in kinds.items()}


def _leave_out_last(last: str, kinds: dict[str, HeadKind], *by_name: dict[str, Any]) -> None:
    """Leave out the layer that the model's output layer reads: its tied head would learn the main loss again."""
    if kinds.get(last) == "tied":
        for values in (kinds, *by_name):
            del values[last]
    if not kinds:
        raise UsageError(
            f"the only layer found, {last!r}, is the one that the model's output layer reads, and a tied head there "
            "answers what the model does: name earlier layers with at="
        )


def _pools(pool: Pool | Mapping[str, Pool], kinds: Mapping[str, HeadKind], *, is_argument: bool) -> dict[str, Pool]:
    """How the features of each layer are pooled; "none" if its head pools them."""
    pools: dict[str, Pool] = by_layer(pool, kinds, "pool", "mean")
    for layer, kind in kinds.items():
        if isinstance(kind, str) and kind in MAP_HEADS:
            if is_argument and not isinstance(pool, Mapping) and pool != "none":
                raise UsageError(f"head={kind!r} pools maps itself: leave pool= out, or give pool='none'")
            pools[layer] = "none"
    return pools


def _check_model_logits(output: object, classes: int, heads: Mapping[str, Head]) -> None:
    """Refuse an objective that needs the model's logits if the model gives none, or gives other rows than branches."""
    logits = logits_in(output)
    if logits is None or logits.ndim != 2 or logits.shape[1] != classes:
        raise UsageError(NO_MODEL_LOGITS)
    for layer, head in heads.items():
        if head.positions and not head.pools:
            raise UsageError(
                f"objective='distill' needs one row a sample, as the model's own logits have, and layer {layer!r} "
                "keeps its positions: attach with pool='mean', or choose objective='softmax'"
            )


def _initial_bias(kind: HeadKind, objective: Objective | LossFn, classes: int) -> Tensor | None:
    """The initial bias (C,) of each branch of a layer, or None."""
    bias = kind.bias if isinstance(kind, Linear) else None
    if bias is None:
        return None
    if isinstance(bias, str) and bias != "prior":
        raise unknown_name("bias", bias, ["prior"])
    if isinstance(bias, str | Prior):
        if not isinstance(objective, Objective):
            raise UsageError("a prior needs an objective by name: give the bias itself, a tensor of logits")
        if getattr(objective, "outputs", None) is not None:
            raise UsageError("a prior is of classes: give the bias itself, such as the mean of each quantity")
        labels = bias.labels if isinstance(bias, Prior) else None
        if labels is not None:
            labels = _fitting_labels(labels, classes, objective.ignore_index)
        return prior_bias(objective, classes, labels)
    fits = isinstance(bias, Tensor) and not bias.is_nested and bias.shape == (classes,)
    if not fits or bias.is_complex() or bias.is_meta:
        raise UsageError(f"bias must be a tensor with one value for each of {classes} classes: of shape ({classes},)")
    return bias


def _fitting_labels(labels: object, classes: int, ignore_index: int) -> Tensor:
    """Class indices of the training set, or rows (N, C) of one value for each class."""
    wrong = UsageError(
        f"labels must be a tensor of the training set's class indices in 0..{classes - 1}, or of one value for each "
        f"class as floats (labels.float()), of shape (N, {classes})"
    )
    if not isinstance(labels, Tensor) or not labels.numel() or labels.is_complex():
        raise wrong
    if labels.is_floating_point() or labels.dtype == torch.bool:
        rows = labels.unsqueeze(-1) if classes == 1 and labels.ndim == 1 else labels
        fits = rows.shape[1:] == (classes,) and bool(((rows >= 0) & (rows <= 1)).all())
    else:
        rows = labels[labels.long() != ignore_index]  # comparisons of bytes wrap: 156 would pass for -100
        fits = len(rows) > 0 and bool(rows.min() >= 0 and rows.max() < classes)
        # Whole numbers that look like one value for each class may be meant as such.
        fits &= classes > 1 and not (labels.shape[1:] == (classes,) and bool(labels.max() <= 1))
    if not fits:
        raise wrong
    return rows


def _layer_weights(weights: Mapping[str, float], *, summed: bool) -> dict[str, float]:
    """The weights of the layers: they sum to 1, unless losses are summed as in the paper."""
    shares = {layer: checked(weight, f"the weight of layer {layer!r}") for layer, weight in weights.items()}
    total = 1.0 if summed else math.fsum(shares.values())
    if not total:
        raise UsageError("the weights of all layers are 0: give one layer a weight, or strength=0")
    return {layer: share / total for layer, share in shares.items()}


def _in_words(value: object) -> str:
    """A value as it is written in code, with non-default settings only; a function or module by its name."""
    if isinstance(value, float):
        return f"{value:g}"
    if not isinstance(value, Objective | Linear | Falling | GradientRatio):
        return getattr(value, "__name__", type(value).__name__)
    settings = {field.name: getattr(value, field.name) for field in fields(value)}
    usual = {field.name: field.default for field in fields(value)}
    own = {name: each for name, each in settings.items() if each is not usual[name] and not isinstance(each, Tensor)}
    texts = [f"{name}={_in_words(each) if isinstance(each, Prior) else repr(each)}" for name, each in own.items()]
    return f"{type(value).__name__}({', '.join(texts)})"


def _is_causal(model: nn.Module) -> bool:
    """Whether this is a causal language model of Hugging Face, which shifts its labels itself."""
    names = {kind.__name__ for kind in type(model).__mro__}
    return hasattr(model, "config") and any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names)


def _read_layer(
    name: str,
    layer: nn.Module,
    reader_before: Reader,
    evidence: LayerEvidence | None,
    batch: BatchEvidence,
    sample_mask: object,
) -> tuple[Reader, Tensor]:
    """The reader with the layer's layout, and what it reads from the layer's output in the dry run.

    `sample_mask` is for the user's own pool; whether the other pools need one is not known yet.
    """
    if evidence is None:
        raise _did_not_run(name, layer)
    reader_before.check()
    if evidence.feature is None:
        raise _no_feature(name, evidence.output, reader_before.output)
    if evidence.passed_by is not None:
        raise _no_gradient(name, *evidence.passed_by)
    layout = reader_before.layout
    if layout is not None and reader_before.pool == "none" and len(layout) > 5:
        raise UsageError(f"layer {name!r} has {len(layout) - 2} position axes, and at most 3 can be kept: pool them")
    if layout is None and not evidence.feature.is_nested and not callable(reader_before.pool):
        layout = infer_layout(name, tuple(evidence.feature.shape), evidence, batch)
    if layout is not None and reader_before.pool in ("class_token", "last_token") and len(layout) != 3:
        raise UsageError(
            f"layer {name!r} has layout {layout!r}, which has no single token axis for pool={reader_before.pool!r}: "
            "use pool='mean' there (pool also takes a dict from layer to rule)"
        )
    reader = replace(reader_before, layout=layout)
    with torch.no_grad():
        try:
            mask = sample_mask if isinstance(sample_mask, Tensor) and reader.takes_mask else None
            rows = replace(reader, output=None).read(evidence.feature, mask)
        except Exception as error:
            raise UsageError(
                f"layer {name!r} cannot be pooled ({error_line(error)}): mend its `pool` function, or its layout="
            ) from error
    if isinstance(rows, str):
        raise UsageError(f"layer {name!r} {rows}")
    if rows.is_meta or rows.numel() == 0:
        kind = "on the meta device" if rows.is_meta else f"of shape {tuple(rows.shape)}"
        raise UsageError(f"layer {name!r} gives a tensor {kind}, without values: choose another module")
    return reader, rows


def _did_not_run(name: str, layer: nn.Module) -> UsageError:
    if isinstance(layer, nn.ModuleList | nn.ModuleDict):
        kind = type(layer).__name__
        return UsageError(f"layer {name!r} is an nn.{kind}, which is never called itself: write at={f'{name}.*'!r}")
    return UsageError(
        f"layer {name!r} did not run when the model was called on `sample` in eval mode: choose a module that every "
        "forward calls"
    )


def _no_feature(name: str, output: object, selector: Selector | None) -> UsageError:
    where = f" at output={selector!r}" if isinstance(selector, int | str) else ""
    parts = ", ".join(map(str, named_parts(output)))
    remedy = "choose another module, or pick a part of its output with output="
    return UsageError(
        f"layer {name!r} gives no floating-point tensor{where} (its output is a {type(output).__name__}"
        + (f" with the parts {parts}" if parts else "")
        + f"): {'leave output= out there' if where and not parts else remedy}"
    )


def _no_gradient(name: str, first: int | str | None, others: Sequence[int | str]) -> UsageError:
    """The error for a layer whose first tensor has no gradient, while others have."""
    choices = " or ".join(f"output={other!r}" for other in others) or "output=, a function that picks one of them"
    hint = "" if first is None else f", or output={first!r} if the first is meant"
    return UsageError(
        f"layer {name!r} gives several floating-point tensors, and the first has no gradient to train the model by, as "
        f"others have: pass {choices}{hint}"
    )


def _with_mask(
    run: DryRun,
    readers: dict[str, Reader],
    rule: MaskRule | None,
    evidence: Mapping[str, LayerEvidence],
    sample: object,
) -> tuple[dict[str, Reader], MaskRule | None]:
    """The readers, each with `masked` set if the usual mask fits its positions; no mask rule if it fits none."""
    if rule is None or not is_usual(rule):
        return readers, rule
    shapes = {
        name: feature.shape
        for name, reader in readers.items()
        if reader.counts_positions and (feature := evidence[name].feature) is not None
    }
    masked = masked_layers(run, shapes, masked_sample(rule, sample), USUAL_MASK)
    readers = readers | {name: replace(readers[name], masked=answer) for name, answer in masked.items()}
    needless = set(masked.values()) == {False} and not any(reader.takes_mask for reader in readers.values())
    return readers, None if needless else rule


def _refuse_padded(heads: Mapping[str, Head], readers: Mapping[str, Reader], rule: MaskRule | None) -> None:
    """Refuse heads that pool positions without the mask that says which of them are padding."""
    for name, reader in readers.items():
        if rule is not None and heads[name].pools and reader.masked:
            raise UsageError(
                f"the head of layer {name!r} pools positions itself and would count padding: attach with mask=None if "
                "nothing is padded, or with a head that keeps the positions"
            )


def _warn_of_repeated_calls(evidence_by_layer: Mapping[str, LayerEvidence]) -> None:
    repeated = {layer: evidence.calls for layer, evidence in evidence_by_layer.items() if evidence.calls > 1}
    if repeated:
        counts = ", ".join(f"{layer!r} {calls} times" for layer, calls in list(repeated.items())[:3])
        more = f" and {len(repeated) - 3} more" if len(repeated) > 3 else ""
        warnings.warn(
            f"one forward calls the layer {counts}{more}, and branches read the last call alone: where every call "
            "is meant, call it once, on the inputs joined along the batch, or attach to modules that are called once",
            UsageWarning,
            stacklevel=3,
        )


def refuse_wrapped(model: object) -> None:
    """Refuse what is not the bare model: compiled, data-parallel, sharded, or not yet built."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"attach takes an nn.Module, got a {type(model).__name__}")
    if torch.is_inference_mode_enabled():
        raise UsageError(
            "attach was called inside torch.inference_mode, where no weight can be trained: call it outside"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError(
            "the model is a TorchScript module, which takes no hooks: attach to the model it was made from"
        )
    # Looked up, not imported: torch._dynamo takes seconds to load, and unless it is loaded nothing is compiled.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is not None and isinstance(model, dynamo.OptimizedModule):
        raise UsageError("the model is compiled already, and would ignore new hooks: attach first, then torch.compile")
    if isinstance(model, DistributedDataParallel):
        raise UsageError(
            "attach to the bare model, before DDP: branches = attach(model, ...), then "
            "DistributedDataParallel(WithBranches(model, branches))"
        )
    if isinstance(model, nn.DataParallel):
        raise UsageError(
            "branches do not work in nn.DataParallel: use DistributedDataParallel(WithBranches(model, branches))"
        )
    for module in model.modules():
        if is_sharded(module):
            raise UsageError(
                "the model is sharded by FSDP already: attach to the bare model, wrap it, then shard both, "
                "fully_shard(WithBranches(model, branches))"
            )
        if any(is_lazy(parameter) for parameter in module.parameters(recurse=False)):
            raise UsageError("the model has lazy layers without weights: call it once on a batch, then attach")
        if any(value.is_meta for value in (*module.parameters(recurse=False), *module.buffers(recurse=False))):
            raise UsageError("the model has values on the meta device: load them or initialise them, then attach")
