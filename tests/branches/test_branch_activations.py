"""Each activation against the loop a reader of the paper would write."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from branch_zoo import BATCH, CLASSES, mlp, rows, targets
from torch import Tensor, nn

from asymtrain.branches import Branches, Parallel, attach, draw_branches

N, SEED, STEPS = 3, 4, 6


def bce(logits: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, F.one_hot(y, CLASSES).float())


def naive_last(branches: list[nn.Linear], h: Tensor, y: Tensor) -> Tensor:
    return bce(branches[-1](h), y)


def naive_sum(branches: list[nn.Linear], h: Tensor, y: Tensor) -> Tensor:
    return sum(bce(branch(h), y) for branch in branches)


def naive_mean(branches: list[nn.Linear], h: Tensor, y: Tensor) -> Tensor:
    return naive_sum(branches, h, y) / len(branches)


NAIVE: dict[tuple[str, str], Callable[..., Tensor]] = {
    ("last", "sum"): naive_last,
    ("all", "sum"): naive_sum,
    ("all", "mean"): naive_mean,
}


@pytest.mark.parametrize(("activation", "combine"), NAIVE)
def test_training_matches_the_naive_loop(activation: str, combine: str) -> None:
    batches = [rows() for _ in range(STEPS)]
    torch.manual_seed(0)
    model = mlp().eval()  # no dropout: the two loops draw nothing
    torch.manual_seed(0)
    plain = mlp().eval()

    branches = attach(
        model,
        batches[0],
        CLASSES,
        at=["1", "3"],
        head=Parallel(N, activation=activation, reduction=combine),
        preset="paper",
        seed=SEED,
    )
    optimizer = torch.optim.SGD([*model.parameters(), *branches.parameters()], lr=0.1)
    heads = []
    for weights in draw_branches(SEED, [8, 6], CLASSES, N):
        heads.append([nn.Linear(weights.shape[-1], CLASSES, bias=False) for _ in weights])
        for head, weight in zip(heads[-1], weights, strict=True):
            head.weight.data = weight.clone()
    naive = torch.optim.SGD(
        [*plain.parameters(), *(p for layer in heads for one in layer for p in one.parameters())], 0.1
    )

    for x in batches:
        loss = F.cross_entropy(model(x), targets()) + 0.3 * branches.loss(targets())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        h1 = plain[1](plain[0](x))
        h2 = plain[3](plain[2](h1))
        terms = [NAIVE[activation, combine](heads[k], h, targets()) for k, h in enumerate((h1, h2))]
        expected = F.cross_entropy(plain[5](plain[4](h2)), targets()) + 0.3 * sum(terms)
        naive.zero_grad()
        expected.backward()
        naive.step()
        assert torch.allclose(loss, expected, atol=1e-5)

    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)
    for name, layer in zip(branches.layers, heads, strict=True):
        assert torch.allclose(branches.head(name).weights, torch.stack([one.weight for one in layer]), atol=1e-5)


def attached(activation: str, redundancy: int = N) -> tuple[nn.Module, Branches]:
    model = mlp()
    return model, attach(model, rows(), CLASSES, at=["1", "3"], head=Parallel(redundancy, activation=activation))


def test_idle_branches_take_part_in_nothing_but_the_state() -> None:
    model, branches = attached("last", redundancy=50)
    before = {name: buffer.clone() for name, buffer in branches.named_buffers()}
    optimizer = torch.optim.AdamW([*model.parameters(), *branches.parameters()], weight_decay=1.0)
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        model(rows())
        branches.loss(targets()).backward()
    shapes = [shape for event in profile.function_events for shape in event.input_shapes or [] if shape]
    assert [CLASSES, 8] in shapes  # the live branch is seen,
    assert not any(49 in shape or 50 in shape for shape in shapes)  # the others are not
    optimizer.step()
    assert all(not buffer.requires_grad and buffer.grad is None for buffer in branches.buffers())
    assert all(torch.equal(buffer, before[name]) for name, buffer in branches.named_buffers())
    assert len(before) == 2
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert not held & {id(buffer) for buffer in branches.buffers()}
    assert len(branches.state_dict()) == 4


def test_one_branch_makes_both_activations_equal() -> None:
    torch.manual_seed(0)
    model, branches = attached("all", redundancy=1)
    torch.manual_seed(0)
    other, last = attached("last", redundancy=1)
    x = rows()
    model.eval()(x)
    other.eval()(x)
    assert torch.allclose(branches.loss(targets()), last.loss(targets()), rtol=1e-6)
    assert branches.logits()["1"].shape[-2:] == (BATCH, CLASSES)


def test_branches_apply_to_features_given_by_hand() -> None:
    """What the engine does with a backbone's own `features(x)`."""
    _, branches = attached("last")
    h = torch.randn(4, 8)
    assert torch.equal(branches({"1": h})["1"], h @ branches.head("1").live.T)
