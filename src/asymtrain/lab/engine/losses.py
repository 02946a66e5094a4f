"""Losses of a stack of runs, as one pure function of its parameters and a batch, and their gradients.

The stack's gradient is the gradient of the sum over runs: runs share nothing, so each run gets only its own. It is
computed by one of two strategies, which give the same numbers up to rounding; `plan.py` knows which is faster:

- `batched`: one program over all runs; every matrix product has a run axis.
- `side_by_side`: each run by itself, one after the other; on a GPU on several streams, and with several runs of a
  module in one call if that is faster (`programs.py`).

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

MAIN = find_objective("softmax")  # the network's own loss
_STREAMS = 10  # at most


class Batch(NamedTuple):
    """One step's inputs. The last batch of an epoch is filled up with images of weight 0."""

    images: Tensor  # (R, B, 3, H, W), normalised
    targets: Tensor  # (R, B)
    weight: Tensor  # (B,), 1 or 0
    keep: Tensor | None  # (R, B, W), the scaled dropout mask
    branch_targets: Tensor | None = None  # (R, B), if the branches learn other labels
    smoothing: Tensor | None = None  # (R,), label smoothing of the main loss
    training: Training | None = None  # for a module that is no backbone
    share: Tensor | None = None  # (R, 1), for mixed images: the weight of `targets`; `other_targets` get the rest
    other_targets: Tensor | None = None  # (R, B)
    other_branch_targets: Tensor | None = None  # (R, B)
    layers: Tensor | None = None  # (R, K), the weight of each point in a run, 0 without branches; None if all are 1
    kind: Tensor | None = None  # (R,), each run's index in `StackLoss.kinds`; None if there is only one

    def of_runs(self, part: slice) -> "Batch":
        """The batch of some of the runs, with the run axis."""
        shared = ("weight", "training")
        own = {name: value[part] for name, value in self._asdict().items() if value is not None and name not in shared}
        return self._replace(**own, training=self.training and self.training.of_runs(part))

    def mixed(self, of: Callable[[Tensor], Tensor], targets: Tensor, others: Tensor | None) -> Tensor:
        """Values `of(targets)` (R, B, ...) of targets (R, B); for mixed images the weighted mean over both targets."""
        values = of(targets)
        if self.share is None or others is None:
            return values
        share = self.share.view(-1, *[1] * (values.ndim - 1))
        return share * values + (1 - share) * of(others)


class Losses(NamedTuple):
    """The results of one forward pass."""

    total: Tensor  # the sum over runs that is differentiated
    main: Tensor  # (R,)
    auxiliary: Tensor  # (R,), with a graph into the backbone, whatever the signal
    correct: Tensor  # (R,), the number of training images classified right


class Kind(NamedTuple):
    """The auxiliary settings of a run."""

    objective: Objective  # of a branch
    bias: bool  # branches have one; if not, those of another run in the stack still may
    frozen: bool  # branches keep their initial weights
    detached: bool  # branches learn, but their gradient does not reach the backbone

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

    Runs of several kinds share one program: `Batch.kind`, an input, selects what differs between them.
    """

    network: Network
    branches: bool  # False if every run is Plain
    kinds: tuple[Kind, ...]
    head: str = "linear"  # of all its branches
    modules: tuple[nn.Module, ...] = ()  # one branch per point, for its form alone; empty if `_PRODUCTS` has the head

    @property
    def settings(self) -> tuple[object, ...]:
        """What a compiled form of this loss depends on, besides the backbone."""
        return (self.network.classes, self.branches, self.head, *self.kinds)

    def __call__(self, parameters: Parameters, batch: Batch, alpha: Tensor) -> Losses:
        """Losses of R runs; `alpha` is (R,), 0 for Plain."""
        if isinstance(self.network, ModuleNetwork):
            outputs = self.network.stacked(parameters, batch.images, training=batch.training)
        else:
            outputs = self.network.stacked(parameters, batch.images, batch.keep)
        return self.of_outputs(outputs, parameters, batch, alpha)

    def of_outputs(self, outputs: Outputs, parameters: Parameters, batch: Batch, alpha: Tensor) -> Losses:
        """Losses from the network's outputs; reads only the branches' parameters."""
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

        Logits are joined before the loss: the compiler fuses everything that reads the same targets into one kernel,
        and a kernel with a separate loss for each point, forwards and backwards, takes minutes to compile.
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
        """Logits (R, B, N, C) of point k without biases, and the biases (R, N, C), if any.

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
            # The type that autocast would use; backbones are already in their type.
            half = self.network.autocast if isinstance(self.network, ModuleNetwork) else None
            return map_products(self.modules[k], own, features, half), None
        return module_products(self.modules[k], own, features), None

    def _runs_with(self, setting: str, batch: Batch) -> bool | Tensor:
        """True if all runs have this setting, False if none; else which runs do, (R,)."""
        values = [bool(getattr(kind, setting)) for kind in self.kinds]
        return values[0] if len(set(values)) == 1 else self._runs_of(values, batch)

    @staticmethod
    def _runs_of(chosen: Sequence[bool], batch: Batch) -> Tensor:
        """Which runs are of a chosen kind, (R,): by comparison, since a table would have to be copied to the device."""
        assert batch.kind is not None
        return torch.stack([batch.kind == kind for kind, is_chosen in enumerate(chosen) if is_chosen]).any(0)


def _rows(objective: Objective, logits: Tensor, own: Tensor, targets: Tensor) -> Tensor:
    """Losses (R, B, K, N) of logits (R, B, K, N, C) for targets (R, B), and the network's own logits (R, B, C)."""
    if objective.needs_model:
        # `losses` averages over rows: with one row per call it gives each row's loss.
        own = own[:, :, None, None, None]
        return objective.losses(logits.unsqueeze(-2), targets[:, :, None, None, None], None, own)
    assert isinstance(objective, RowObjective)  # see `runs.choices`
    return objective.rows(logits, targets[:, :, None, None])


def _auxiliary(points: Tensor, batch: Batch, share: Tensor) -> Tensor:
    """The auxiliary loss (R,) from losses (R, B, K); each image counts by its share (B,)."""
    if batch.layers is not None:
        points = points * batch.layers[:, None]
    return (points.sum(2) * share).sum(1)


def _detached(values: Tensor, runs: Literal[True] | Tensor) -> Tensor:
    """Values (R, ...), detached for all runs or for the chosen runs (R,)."""
    return values.detach() if runs is True else torch.where(_beside(runs, values), values.detach(), values)


def _beside(runs: Tensor, values: Tensor) -> Tensor:
    """One value per run, (R,), reshaped to broadcast with values (R, ...)."""
    return runs.view(-1, *[1] * (values.ndim - 1))


def linear_products(weights: Mapping[str, Tensor], features: Tensor) -> tuple[Tensor, Tensor | None]:
    """Logits (R, B, N, C) of linear branches without biases, and the biases; weights are (R, N, C, D)."""
    weight = weights[""]
    runs, count, classes, _ = weight.shape
    products = torch.bmm(features.to(weight.dtype), weight.flatten(1, 2).mT)
    return products.view(runs, -1, count, classes), weights.get(".bias")


def mlp_products(weights: Mapping[str, Tensor], features: Tensor) -> tuple[Tensor, Tensor]:
    """The same for branches with a hidden layer; see `head="mlp"` of `attach`."""
    inner, _ = linear_products({"": weights[".0.weight"]}, features)
    hidden = F.gelu(inner.float() + weights[".0.bias"][:, None].float()).to(weights[".2.weight"].dtype)
    return torch.einsum("rbnh,rnch->rbnc", hidden, weights[".2.weight"]), weights[".2.bias"]


def module_products(head: nn.Module, weights: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """Logits (R, B, N, C) of branches of any other form: calls the module with weights (R, N, ...)."""

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
    """Logits (R, B, N, C) of branches that read maps (R, B, D, H, W): calls the module for each branch in turn.

    Batched, their convolutions would become one grouped convolution, which is several times slower.
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


# Heads with a hand-written product over all runs, which is faster.
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
    """The auxiliary settings of each run; a Plain run gets those of the first run with branches."""
    lead = next((spec for spec in specs if spec.redundancy), specs[0])
    return [Kind.of(spec if spec.redundancy else lead) for spec in specs]


def _by_name(kind: Kind) -> tuple[object, ...]:
    """A sort key, so that stacks of the same kinds have the same program."""
    return tuple(kind._replace(objective=repr(kind.objective)))  # type: ignore[arg-type]


def _main_losses(logits: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy (R, B) of logits (R, B, C); label smoothing spreads that share of the target over all classes."""

    def of(targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)

    losses = batch.mixed(of, batch.targets, batch.other_targets)
    if batch.smoothing is None:
        return losses
    smoothing = batch.smoothing[:, None]
    return (1 - smoothing) * losses - smoothing * logits.log_softmax(2).mean(2)


def confidence(logits: Tensor) -> Tensor:
    """The largest class probability (...) by logits (..., C)."""
    logits = logits.float()
    return (logits.amax(-1) - logits.logsumexp(-1)).exp()


class Gradients(NamedTuple):
    """Flat gradients (R, P) of the total loss, and of the auxiliary loss if requested."""

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
    """Gradients at `weights` (R, P). `shared` names the parameters whose auxiliary gradient is needed too.

    Side by side, `losses` may be several functions; the runs are distributed evenly over them.
    """

    def of_rows(losses: LossFunction, weights: Tensor, batch: Batch, alpha: Tensor, *into: Tensor) -> Gradients:
        views = layout.views(weights)
        if into and len(weights) > 1:
            # Code compiled for strides that contain P would depend on the branches.
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
    # Each call writes into its own rows: joining gradients afterwards would be another pass over memory.
    matrices = [torch.empty(len(weights), layout.size, device=weights.device) for _ in range(1 + (shared is not None))]
    calls = [
        partial(of_rows, own, weights[at], batch.of_runs(at), alpha[at], *(matrix[at] for matrix in matrices))
        for own, at in zip(each, parts_of(len(weights), len(each)), strict=True)
    ]
    results = _on_streams(calls) if weights.is_cuda else [call() for call in calls]
    losses_and_counts = (torch.cat(column) for column in list(zip(*results, strict=True))[2:])
    return Gradients(matrices[0], matrices[1] if shared is not None else None, *losses_and_counts)


def parts_of(runs: int, calls: int) -> list[slice]:
    """The runs of each call: sizes differ by at most one."""
    ends = [runs * call // calls for call in range(calls + 1)]
    return [slice(*ends) for ends in pairwise(ends)]


def _on_streams(calls: Sequence[Callable[[], Gradients]]) -> list[Gradients]:
    """Distribute calls over streams: the small layers of one run fill the gaps of another.

    The numbers of calls per stream differ by at most one, and no more streams are used than the rounds need.
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
        # Also after an out-of-memory error: if streams do not join before a capture ends, the allocator is unusable.
        for stream in streams:
            current.wait_stream(stream)
    return done
