"""Initial weights and the choice of the live branch are pure functions of a seed."""

import inspect

import pytest
import torch
from branch_zoo import CLASSES, mlp, rows
from torch import nn

from asymtrain.branches import attach, draw_branches
from asymtrain.branches._heads import choice_key, choose_branch
from asymtrain.streams import generator

DRAWS = ["independent", "sequence"]


def test_the_signature_others_rely_on() -> None:
    names = ["seed", "widths", "classes", "redundancy", "initialization"]
    assert list(inspect.signature(draw_branches).parameters) == names


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("classes", [3, 10])
def test_each_branch_is_orthogonal_float32_of_its_place(draw: str, classes: int) -> None:
    drawn = draw_branches(0, [8, 5], classes, 4, draw)
    assert [(tuple(one.shape), one.dtype) for one in drawn] == [
        ((4, classes, 8), torch.float32),
        ((4, classes, 5), torch.float32),
    ]
    for weights in drawn:
        for weight in weights:
            gram = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
            assert torch.allclose(gram, torch.eye(len(gram)), atol=1e-5)


@pytest.mark.parametrize("draw", DRAWS)
def test_the_draw_is_a_function_of_its_arguments(draw: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = draw_branches(7, [6, 6], 3, 5, draw)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = draw_branches(7, [6, 6], 3, 5, draw)
    other = draw_branches(8, [6, 6], 3, 5, draw)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    flat = torch.cat(first).flatten(1)
    assert len(flat.unique(dim=0)) == 10  # ten branches, no two alike


@pytest.mark.parametrize("draw", DRAWS)
def test_the_draw_does_not_follow_torchs_defaults(draw: str) -> None:
    expected = draw_branches(7, [6], 3, 2, draw)
    with torch.device("meta"):
        assert torch.equal(draw_branches(7, [6], 3, 2, draw)[0], expected[0])
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(draw_branches(7, [6], 3, 2, draw)[0], expected[0])
    finally:
        torch.set_default_dtype(torch.float32)


def test_independent_branches_are_keyed_from_the_last() -> None:
    few, many = draw_branches(0, [6, 4], 3, 2, "independent"), draw_branches(0, [6, 4], 3, 9, "independent")
    for short, long in zip(few, many, strict=True):
        assert torch.equal(long[-2:], short)
    # Nor do they depend on the places after them.
    assert torch.equal(draw_branches(0, [6], 3, 2, "independent")[0], few[0])


def test_sequence_is_one_plain_loop() -> None:
    stream = generator(3, "branches in sequence")
    naive = [[nn.init.orthogonal_(torch.empty(4, width), generator=stream) for _ in range(3)] for width in (5, 6)]
    drawn = draw_branches(3, [5, 6], 4, 3, "sequence")
    assert all(torch.equal(torch.stack(a), b) for a, b in zip(naive, drawn, strict=True))


@pytest.mark.parametrize("draw", DRAWS)
def test_attach_uses_this_draw(draw: str) -> None:
    model, x = mlp(), rows()
    branches = attach(model, ["1", "3"], x, CLASSES, 4, initialization=draw, seed=5)
    drawn = draw_branches(5, [8, 6], CLASSES, 4, draw)
    assert all(torch.equal(branches.head(name).weights, one) for name, one in zip(branches.places, drawn, strict=True))
    assert torch.equal(branches.head("1").live, drawn[0][-1])


@pytest.mark.parametrize("draw", DRAWS)
def test_each_branch_is_drawn_once(draw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hundred branches cost three hundred small decompositions, whatever the draw."""
    shapes: list[tuple[int, ...]] = []
    monkeypatch.setattr(nn.init, "orthogonal_", lambda weight, generator: shapes.append(tuple(weight.shape)))
    draw_branches(0, [12, 8], 10, 300, draw)
    assert shapes == [(10, 12)] * 300 + [(10, 8)] * 300


def test_cycle_takes_turns_and_random_does_not() -> None:
    steps = range(600)
    cycle = [int(choose_branch("cycle", choice_key(0, 0), torch.tensor(step), 3)) for step in steps]
    assert cycle == [step % 3 for step in steps]
    drawn = {place: [] for place in (0, 1)}
    for place, chosen in drawn.items():
        for step in steps:
            chosen.append(int(choose_branch("random", choice_key(0, place), torch.tensor(step), 3)))
        counts = torch.bincount(torch.tensor(chosen), minlength=3)
        # 200 each; five standard deviations are 58.
        assert len(counts) == 3
        assert (counts - 200).abs().max() < 58
    assert drawn[0] != drawn[1]
    assert drawn[0] == [int(choose_branch("random", choice_key(0, 0), torch.tensor(step), 3)) for step in steps]
