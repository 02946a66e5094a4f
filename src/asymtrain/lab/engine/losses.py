"""Losses of a stack of runs, as one pure function of its parameters and a batch, and their gradients.

The stack's gradient is the gradient of the sum over runs: runs share nothing, so each run's part is its own. It is
computed by one of two strategies, which give the same numbers up to rounding; `plan.py` knows which is faster:

- `batched`: one program over all runs; every product has a run axis.
- `side_by_side`: each run by itself, one after the other; on a GPU on several streams, and several runs of a module in
  a call where that is faster (`programs.py`).

Axis letters: R runs, B batch, C classes, D width, H W height and width of maps, N branches, K points, P parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from asymtrain.branches import MAP_HEADS
from asymtrain.lab.checkpoints import Strategy
from asymtrain.lab.engine.modules import ModuleNetwork, Training
from asymtrain.lab.engine.parameters import FlatParameters
from asymtrain.lab.engine.setup import Network, branch_modules
from asymtrain.lab.runs import RunSpec
from asymtrain.models import Outputs, Parameters
from asymtrain.objectives import Objective, RowObjective, find_objective

MAIN = find_objective("softmax")  # the loss of the network itself
_STREAMS = 10  # at most


class Batch(NamedTuple):
    """One step's inputs. The last batch of an epoch is filled up with images of weight 0."""

    images: Tensor  # (R, B, 3, H, W), normalised
    targets: Tensor  # (R, B)
    weight: Tensor  # (B,), 1 or 0
    keep: Tensor | None  # (R, B, W), the scaled dropout mask
    branch_targets: Tensor | None = None  # (R, B), where the branches learn other labels
    smoothing: Tensor | None = None  # (R,), label smoothing of the main loss
    training: Training | None = None  # of a module that is no backbone
    share: Tensor | None = None  # (R, 1), of mixed images: the share of their own targets; the rest is the others'
    other_targets: Tensor | None = None  # (R, B)
    other_branch_targets: Tensor | None = None  # (R, B)
    layers: Tensor | None = None  # (R, K), what each point counts in a run, 0 without branches; None where all are 1
    kind: Tensor | None = None  # (R,), of `StackLoss.kinds` that of each run; None where there is one

    def of_runs(self, part: slice) -> "Batch":
        """The batch of some of the runs, which stay a stack."""
        shared = ("weight", "training")
        own = {name: value[part] for name, value in self._asdict().items() if value is not None and name not in shared}
        return self._replace(**own, training=self.training and self.training.of_runs(part))

    def mixed(self, of: Callable[[Tensor], Tensor], targets: Tensor, others: Tensor | None) -> Tensor:
        """What `of` makes of targets (R, B), a value (R, B, ...) for each; of mixed images, of both by their shares."""
        values = of(targets)
        if self.share is None or others is None:
            return values
        share = self.share.view(-1, *[1] * (values.ndim - 1))
        return share * values + (1 - share) * of(others)


class Losses(NamedTuple):
    """What one forward pass gives."""

    total: Tensor  # the sum over runs that is differentiated
    main: Tensor  # (R,)
    auxiliary: Tensor  # (R,), with the graph that leads to the backbone whatever the signal
    correct: Tensor  # (R,), training images classified right


class Kind(NamedTuple):
    """The auxiliary settings of a run."""

    objective: Objective  # of a branch
    bias: bool  # branches have one; where they have none, another run of the stack may
    frozen: bool  # branches keep their initial weights
    detached: bool  # branches learn, and no gradient of theirs reaches the backbone

    @classmethod
    def of(cls, spec: RunSpec) -> "Kind":
        return cls(
            find_objective(spec.objective, class_reduction=spec.class_reduction),
            bias=spec.bias != "none",
            frozen=spec.branch_weights == "frozen",
            detached=spec.signal == "detached",
        )


@dataclass(frozen=True)
class StackLoss:
    """The loss of a stack: a backbone's stacked form and the auxiliary settings of its runs.

    Runs of several kinds share one program: what they differ in is chosen by `Batch.kind`, which is an input.
    """

    network: Network
    branches: bool  # False where every run is Plain
    kinds: tuple[Kind, ...]
    head: str = "linear"  # of all its branches
    modules: tuple[nn.Module, ...] = ()  # a branch of each point for its form alone, where `_PRODUCTS` has no other

    @property
    def settings(self) -> tuple[object, ...]:
        """What a compiled form of this loss depends on, beside the backbone."""
        return (self.network.classes, self.branches, self.head, *self.kinds)

    def __call__(self, parameters: Parameters, batch: Batch, alpha: Tensor) -> Losses:
        """Losses of R runs; `alpha` is (R,), 0 for Plain."""
        if isinstance(self.network, ModuleNetwork):
            outputs = self.network.stacked(parameters, batch.images, training=batch.training)
        else:
            outputs = self.network.stacked(parameters, batch.images, batch.keep)
        return self.of_outputs(outputs, parameters, batch, alpha)

    def of_outputs(self, outputs: Outputs, parameters: Parameters, batch: Batch, alpha: Tensor) -> Losses:
        """Losses of the network's outputs; of the parameters only those of the branches are read."""
        logits, features = outputs[0].float(), outputs[1]
        share = batch.weight / batch.weight.sum()
        main = (_main_losses(logits, batch) * share).sum(1)
        auxiliary = applied = torch.zeros_like(main)
        if self.branches:
            reached = list(enumerate(features))
            cut = self._runs_with("detached", batch)
            detached = [] if cut is False else [(k, _detached(point, cut)) for k, point in reached]
            points = self.points(parameters, reached + detached, batch, logits).split(len(reached), 2)
            auxiliary, applied = (_auxiliary(part, batch, share) for part in (points[0], points[-1]))
        right = batch.mixed(lambda goals: MAIN.correct(logits, goals).float(), batch.targets, batch.other_targets)
        correct = (right * batch.weight).sum(1)
        return Losses((main + alpha * applied).sum(), main, auxiliary, correct)

    def logits(self, parameters: Parameters, images: Tensor, buffers: Mapping[str, Tensor]) -> Tensor:
        """Logits (R, B, C) in evaluation."""
        if isinstance(self.network, ModuleNetwork):
            return self.network.stacked(parameters, images, buffers=buffers)[0]
        return self.network.stacked(parameters, images)[0]

    def points(
        self, parameters: Parameters, features: Sequence[tuple[int, Tensor]], batch: Batch, own: Tensor
    ) -> Tensor:
        """Losses (R, B, K) of K points, each with its number and features (R, B, D); `own`: the network's logits.

        Logits are joined before the loss is taken: the compiler makes one kernel of all that reads the same targets,
        and one that holds the loss of each point by itself, forwards and backwards, takes minutes to compile.
        """
        products, biases = zip(*(self._products(parameters, k, values, batch) for k, values in features), strict=True)
        logits = torch.stack(products, 2).float()
        if biases[0] is not None:
            logits = logits + torch.stack(biases, 1)[:, None].float()
        targets, others = batch.branch_targets, batch.other_branch_targets
        if targets is None:
            targets, others = batch.targets, batch.other_targets
        losses: Tensor | None = None
        for objective in dict.fromkeys(kind.objective for kind in self.kinds):
            by_it = batch.mixed(partial(_rows, objective, logits, own), targets, others).sum(3)
            if losses is None:
                losses = by_it
            else:
                runs = self._runs_of([kind.objective == objective for kind in self.kinds], batch)
                losses = torch.where(_beside(runs, by_it), by_it, losses)
        assert losses is not None
        return losses

    def _products(self, parameters: Parameters, k: int, features: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Logits (R, B, N, C) of point k without their biases (R, N, C), and these, if any.

        Features are (R, B, D), or maps (R, B, D, H, W); weights (R, N, C, D).
        """
        name = f"branch.{k}"
        own = {key.removeprefix(name): value for key, value in parameters.items() if _belongs(key, name)}
        biased, frozen = self._runs_with("bias", batch), self._runs_with("frozen", batch)
        if biased is False:
            own.pop(".bias", None)
        elif isinstance(biased, Tensor) and ".bias" in own:
            own[".bias"] = own[".bias"] * _beside(biased, own[".bias"])
        if frozen is not False:
            own = {key: _detached(value, frozen) for key, value in own.items()}
        if self.head in _PRODUCTS:
            return _PRODUCTS[self.head](own, features)
        if self.head in MAP_HEADS:
            # As autocast would have it; what is not of a module is in its type already.
            half = self.network.autocast if isinstance(self.network, ModuleNetwork) else None
            return map_products(self.modules[k], own, features, half), None
        return module_products(self.modules[k], own, features), None

    def _runs_with(self, setting: str, batch: Batch) -> bool | Tensor:
        """Do all runs have this setting, or none; or which do, (R,)."""
        values = [bool(getattr(kind, setting)) for kind in self.kinds]
        return values[0] if len(set(values)) == 1 else self._runs_of(values, batch)

    @staticmethod
    def _runs_of(chosen: Sequence[bool], batch: Batch) -> Tensor:
        """Which runs are of one of the chosen kinds, (R,): compared, since a table would have to go to the device."""
        assert batch.kind is not None
        return torch.stack([batch.kind == kind for kind, is_chosen in enumerate(chosen) if is_chosen]).any(0)


def _rows(objective: Objective, logits: Tensor, own: Tensor, targets: Tensor) -> Tensor:
    """Losses (R, B, K, N) of logits (R, B, K, N, C) for targets (R, B), and the network's own logits (R, B, C)."""
    if objective.needs_model:
        # Each row by itself: the loss over one row is that row's.
        own = own[:, :, None, None, None]
        return objective.losses(logits.unsqueeze(-2), targets[:, :, None, None, None], None, own)
    assert isinstance(objective, RowObjective)  # see `runs.choices`
    return objective.rows(logits, targets[:, :, None, None])


def _auxiliary(points: Tensor, batch: Batch, share: Tensor) -> Tensor:
    """The auxiliary loss (R,) of losses (R, B, K); images count by their share (B,)."""
    if batch.layers is not None:
        points = points * batch.layers[:, None]
    return (points.sum(2) * share).sum(1)


def _detached(values: Tensor, runs: Literal[True] | Tensor) -> Tensor:
    """Values (R, ...) without a gradient, those of all runs or of the chosen (R,)."""
    return values.detach() if runs is True else torch.where(_beside(runs, values), values.detach(), values)


def _beside(runs: Tensor, values: Tensor) -> Tensor:
    """A value for each run, (R,), in a shape that goes with values (R, ...)."""
    return runs.view(-1, *[1] * (values.ndim - 1))


def linear_products(weights: Mapping[str, Tensor], features: Tensor) -> tuple[Tensor, Tensor | None]:
    """Logits (R, B, N, C) of linear branches without their biases, and these: weights (R, N, C, D)."""
    weight = weights[""]
    runs, count, classes, _ = weight.shape
    products = torch.bmm(features.to(weight.dtype), weight.flatten(1, 2).mT)
    return products.view(runs, -1, count, classes), weights.get(".bias")


def mlp_products(weights: Mapping[str, Tensor], features: Tensor) -> tuple[Tensor, Tensor]:
    """The same of branches with a hidden layer; see `head="mlp"` of `attach`."""
    inner, _ = linear_products({"": weights[".0.weight"]}, features)
    hidden = F.gelu(inner.float() + weights[".0.bias"][:, None].float()).to(weights[".2.weight"].dtype)
    return torch.einsum("rbnh,rnch->rbnc", hidden, weights[".2.weight"]), weights[".2.bias"]


def module_products(head: nn.Module, weights: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """Logits (R, B, N, C) of branches of any other form: the module, called with weights (R, N, ...)."""

    def of_branch(weights: dict[str, Tensor], features: Tensor) -> Tensor:
        logits: Tensor = functional_call(head, weights, (features,))
        return logits

    own = {name.removeprefix("."): value for name, value in weights.items()}
    features = features.to(next((value.dtype for value in own.values()), features.dtype))
    of_run = vmap(of_branch, in_dims=(0, None), out_dims=1, randomness="different")
    logits: Tensor = vmap(of_run, randomness="different")(own, features)
    return logits


def map_products(
    head: nn.Module, weights: Mapping[str, Tensor], maps: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """Logits (R, B, N, C) of branches that read maps (R, B, D, H, W): the module, called for each.

    One after the other: together, their convolutions would be groups of one, which is several times slower.
    """
    names, values = [name.removeprefix(".") for name in weights], list(weights.values())
    dtype = dtype or values[0].dtype
    count = values[0].shape[1]
    branches = zip(*(value.to(dtype).flatten(0, 1).unbind() for value in values), strict=True)
    logits = [
        functional_call(head, dict(zip(names, branch, strict=True)), (maps[index // count].to(dtype),))
        for index, branch in enumerate(branches)
    ]
    return torch.stack(logits).unflatten(0, (-1, count)).transpose(1, 2)


# The heads whose products of all runs are written out, which is faster.
_PRODUCTS: dict[str, Callable[[Mapping[str, Tensor], Tensor], tuple[Tensor, Tensor | None]]] = {
    "linear": linear_products,
    "mlp": mlp_products,
}


def _belongs(name: str, branch: str) -> bool:
    return name == branch or name.startswith(f"{branch}.")


def stack_loss(specs: Sequence[RunSpec], network: Network) -> StackLoss:
    """The loss of a stack; Plain runs take part with alpha 0."""
    lead = next((spec for spec in specs if spec.redundancy), specs[0])
    kinds = tuple(sorted(set(kinds_of(specs)), key=_by_name))
    modules: tuple[nn.Module, ...] = ()
    if lead.redundancy and lead.head not in _PRODUCTS:
        modules = tuple(branch_modules(lead.head, network, k)[0] for k in range(len(network.widths)))
    return StackLoss(network, bool(lead.redundancy), kinds, lead.head, modules)


def kinds_of(specs: Sequence[RunSpec]) -> list[Kind]:
    """The auxiliary settings of each run; Plain ones have those of another."""
    lead = next((spec for spec in specs if spec.redundancy), specs[0])
    return [Kind.of(spec if spec.redundancy else lead) for spec in specs]


def _by_name(kind: Kind) -> tuple[object, ...]:
    """An order in which stacks of the same kinds have the same program."""
    return tuple(kind._replace(objective=repr(kind.objective)))  # type: ignore[arg-type]


def _main_losses(logits: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy (R, B) of logits (R, B, C); a run's smoothing spreads that share of the target over all classes."""

    def of(targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)

    losses = batch.mixed(of, batch.targets, batch.other_targets)
    if batch.smoothing is None:
        return losses
    smoothing = batch.smoothing[:, None]
    return (1 - smoothing) * losses - smoothing * logits.log_softmax(2).mean(2)


def confidence(logits: Tensor) -> Tensor:
    """The probability (...) that logits (..., C) give to their answer, the largest."""
    logits = logits.float()
    return (logits.amax(-1) - logits.logsumexp(-1)).exp()


class Gradients(NamedTuple):
    """Flat gradients (R, P) of the total loss, and of the auxiliary loss where it was asked for."""

    total: Tensor
    auxiliary: Tensor | None
    main_loss: Tensor  # (R,)
    auxiliary_loss: Tensor  # (R,)
    correct: Tensor  # (R,)


LossFunction = Callable[[Parameters, Batch, Tensor], Losses]
Gather = Callable[..., Tensor]  # `FlatParameters.gather`: named gradients -> one matrix (R, P)


def gradients(
    losses: LossFunction | Sequence[LossFunction],
    layout: FlatParameters,
    weights: Tensor,
    batch: Batch,
    alpha: Tensor,
    *,
    strategy: Strategy,
    gather: Gather,
    shared: Sequence[str] | None = None,
) -> Gradients:
    """Gradients at `weights` (R, P). `shared` names the parameters whose auxiliary gradient is wanted too.

    Where runs train side by side, `losses` may be several functions, which get as many runs each, or one less.
    """

    def of_rows(losses: LossFunction, weights: Tensor, batch: Batch, alpha: Tensor, *into: Tensor) -> Gradients:
        views = layout.views(weights)
        if into and len(weights) > 1:
            # Strides with P in them would be compiled for this P, which depends on the branches.
            views |= layout.of_model.views(weights[:, : layout.of_model.size].contiguous())
        leaves = {name: view.detach().requires_grad_() for name, view in views.items()}
        result = losses(leaves, batch, alpha)
        auxiliary = None
        if shared is not None:
            chosen = {name: leaves[name] for name in shared}
            auxiliary = flat(result.auxiliary.sum(), chosen, len(weights), *into[1:], keep_graph=True)
        total = flat(result.total, leaves, len(weights), *into[:1])
        return Gradients(total, auxiliary, result.main.detach(), result.auxiliary.detach(), result.correct.detach())

    def flat(loss: Tensor, leaves: dict[str, Tensor], runs: int, *into: Tensor, keep_graph: bool = False) -> Tensor:
        values = torch.autograd.grad(loss, list(leaves.values()), retain_graph=keep_graph, allow_unused=True)
        return gather({name: g for name, g in zip(leaves, values, strict=True) if g is not None}, runs, *into)

    if strategy == "batched":
        assert not isinstance(losses, Sequence)
        return of_rows(losses, weights, batch, alpha)
    each = losses if isinstance(losses, Sequence) else [losses] * len(weights)
    # Each call writes into its rows: joining whole gradients afterwards would be another pass over them.
    matrices = [torch.empty(len(weights), layout.size, device=weights.device) for _ in range(1 + (shared is not None))]
    calls = [
        partial(of_rows, own, weights[at], batch.of_runs(at), alpha[at], *(matrix[at] for matrix in matrices))
        for own, at in zip(each, parts_of(len(weights), len(each)), strict=True)
    ]
    results = _on_streams(calls) if weights.is_cuda else [call() for call in calls]
    losses_and_counts = (torch.cat(column) for column in list(zip(*results, strict=True))[2:])
    return Gradients(matrices[0], matrices[1] if shared is not None else None, *losses_and_counts)


def parts_of(runs: int, calls: int) -> list[slice]:
    """Which runs go into each call: sizes differ by at most one."""
    ends = [runs * call // calls for call in range(calls + 1)]
    return [slice(*ends) for ends in pairwise(ends)]


def _on_streams(calls: Sequence[Callable[[], Gradients]]) -> list[Gradients]:
    """Calls in turn on streams: the small layers of one run fill the gaps of another.

    Each stream has as many calls as the others, or one less: of ten on eight streams, two would be left alone.
    """
    current = torch.cuda.current_stream()
    rounds = -(-len(calls) // _STREAMS)
    streams = [torch.cuda.Stream() for _ in range(-(-len(calls) // rounds))]
    done = []
    for stream in streams:
        stream.wait_stream(current)
    try:
        for number, call in enumerate(calls):
            with torch.cuda.stream(streams[number % len(streams)]):
                done.append(call())
    finally:
        # Also after an out-of-memory error: a capture that ends before its streams join leaves the allocator unusable.
        for stream in streams:
            current.wait_stream(stream)
    return done
