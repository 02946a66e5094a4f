"""What the update is made of where it is not the gradient of the total loss: other signals, gradient surgery.

A signal takes the place of the auxiliary gradient: noise as large as it is in each layer, or itself behind a gate.

An aggregator weighs the main gradient g and the auxiliary gradient h, alpha included, over the parameters that both
reach; parameters of one loss alone keep its gradient. Between two gradients each of these methods is a closed form of
g.g, g.h and h.h, so a stack needs no solver and stays one program on a GPU. TorchJD has them for any number of
objectives; tests hold the two together.

- `sum`: g + h, the gradient of the total loss.
- `pcgrad`: where the two conflict, each loses its part along the other (Yu et al. 2020).
- `upgrad`: the mean of the projections on the cone where no loss grows (Quinton and Rey 2024); for two objectives it is
  half of `pcgrad`, and AdamW hardly tells the two apart.
- `mgda`: the shortest vector between g and h (Désidéri 2012).
- `imtl_g`: equal projections on both directions (Liu et al. 2021); alpha changes the length only.
- `aligned_mtl`: the mean of the two after their matrix is made orthogonal at its least singular value (Senushkin et
  al. 2023).

Where one of the two is zero there is nothing to weigh: their sum is taken.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from asymtrain import streams
from asymtrain.lab.engine.parameters import ALIGNMENT, dialogue_sums, layer_sums
from asymtrain.lab.runs import RunSpec

Weights = tuple[Tensor, Tensor]  # of main and auxiliary gradient, (R,) each


def needs_both_gradients(spec: RunSpec) -> bool:
    """Does the update need the auxiliary gradient by itself, at every step?"""
    # Where it is detached, none of it reaches the backbone: there is nothing to combine.
    return spec.signal != "detached" and (spec.signal != "gradient" or spec.aggregator != "sum")


def noise_like(auxiliary: Tensor, keys: Tensor, step: Tensor | int, members: Tensor, inside: Tensor) -> Tensor:
    """Gaussian noise (R, P) whose norm in each layer is that of the auxiliary gradient, keyed by run and step."""
    position = torch.arange(auxiliary.shape[1], device=auxiliary.device)
    drawn = streams.normal(keys[:, None], step, position) * inside
    wanted, present = layer_sums(auxiliary.square(), members), layer_sums(drawn.square(), members)
    scale = ((wanted / present).sqrt() @ members.T).float()  # (R, P / ALIGNMENT)
    return (drawn.view(*scale.shape, ALIGNMENT) * scale[:, :, None]).view_as(drawn)


@cache  # compiled forms are kept by function
def update_gradient(signal: str, aggregator: str) -> Callable[..., Tensor]:
    """The gradient of the update, as a function of what `Stack` has.

    (total (R, P), auxiliary (R, P), alpha (R, 1), keys (R,), step, members (rows, L), inside (1, P)) -> (R, P).
    """
    combine = None if aggregator == "sum" else aggregated(aggregator)

    def update(
        total: Tensor, auxiliary: Tensor, alpha: Tensor, keys: Tensor, step: Tensor, members: Tensor, inside: Tensor
    ) -> Tensor:
        # The part by itself: taken as what another part leaves of the total, a closed gate would be rounding noise.
        before = part = alpha * auxiliary
        match signal:
            case "gated":
                product, main, other = dialogue_sums(total, auxiliary, alpha, members).sum(2)
                # The positive cosine, 0 where it is undefined: (R, 1).
                weight = (product / (main * other).sqrt()).nan_to_num(0.0).clamp(0, 1).float()[:, None]
                if combine is None:
                    return total + alpha * (weight - 1) * auxiliary
                part = weight * before
            case "noise":
                change = alpha * (noise_like(auxiliary, keys, step, members, inside) - auxiliary)
                if combine is None:
                    return total + change
                part = before + change
            case "gradient":
                if combine is None:
                    return total
            case _:
                raise AssertionError(f"the signal {signal!r} needs no update of its own, or has no case here")
        return combine(total - before + part, part, members)

    return update


def aggregated(name: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The aggregator as a function of the summed gradient, its auxiliary part and `Layers.members`.

    (R, P), (R, P), (rows, L) -> (R, P).
    """
    weigh = WEIGHTS[name]

    def combined(total: Tensor, part: Tensor, members: Tensor) -> Tensor:
        product, main, other = dialogue_sums(total, part, torch.ones_like(total[:, :1]), members).sum(2)
        defined = (main > 0) & (other > 0)
        # Ones in the place of zeros: what a formula gives there is not used, and must not be NaN.
        of_main, of_part = weigh(main.where(defined, 1.0), product, other.where(defined, 1.0))
        more_main = (of_main - 1).where(defined, 0.0).float()[:, None, None]
        more_part = (of_part - 1).where(defined, 0.0).float()[:, None]
        shared = members.sum(1).to(total.dtype)[:, None]  # (rows, 1): 1 where both losses reach
        rest = (total - part).view(len(total), -1, ALIGNMENT)
        return total + (more_main * shared * rest).view_as(total) + more_part * part

    return combined


def _pcgrad(main: Tensor, product: Tensor, other: Tensor) -> Weights:
    conflict = product.clamp(max=0)
    return 1 - conflict / main, 1 - conflict / other


def _upgrad(main: Tensor, product: Tensor, other: Tensor) -> Weights:
    first, second = _pcgrad(main, product, other)
    return first / 2, second / 2


def _mgda(main: Tensor, product: Tensor, other: Tensor) -> Weights:
    # Equal gradients have a zero denominator and any weight is right.
    share = ((other - product) / (main + other - 2 * product)).nan_to_num(0.5).clamp(0, 1)
    return share, 1 - share


def _imtl_g(main: Tensor, product: Tensor, other: Tensor) -> Weights:
    first, second = main.sqrt(), other.sqrt()
    return second / (first + second), first / (first + second)


def _aligned_mtl(main: Tensor, product: Tensor, other: Tensor) -> Weights:
    # The mean row of sqrt(least eigenvalue) * G^(-1/2), with G^(1/2) = (G + s) / t of a 2 x 2 matrix.
    s = (main * other - product.square()).clamp(min=0).sqrt()
    t = (main + other + 2 * s).sqrt()
    largest = (main + other) / 2 + ((main - other).square() / 4 + product.square()).sqrt()
    scale = 2 * t * largest.sqrt()
    return (other + s - product) / scale, (main + s - product) / scale


WEIGHTS: dict[str, Callable[[Tensor, Tensor, Tensor], Weights]] = {
    "sum": lambda main, product, other: (torch.ones_like(main), torch.ones_like(other)),
    "pcgrad": _pcgrad,
    "upgrad": _upgrad,
    "mgda": _mgda,
    "imtl_g": _imtl_g,
    "aligned_mtl": _aligned_mtl,
}
"""From g.g, g.h and h.h, (R,) each and neither square zero, to the weights of g and h."""
