"""Initial weights are pure functions of a seed."""

import pytest
import torch

from asymtrain.branches import draw_branches, module_heads


@pytest.mark.parametrize("classes", [3, 10])
def test_each_branch_is_orthogonal_float32_of_its_layer(classes: int) -> None:
    drawn = draw_branches(0, [8, 5], classes, 4)
    assert [(tuple(one.shape), one.dtype) for one in drawn] == [
        ((4, classes, 8), torch.float32),
        ((4, classes, 5), torch.float32),
    ]
    for weights in drawn:
        for weight in weights:
            gram = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
            assert torch.allclose(gram, torch.eye(len(gram)), atol=1e-5)


def test_the_draw_is_that_of_the_stored_runs() -> None:
    """What a seed draws never changes: results could not be trained again."""
    (weights,) = draw_branches(3, [4], 2, 2)
    assert weights[:, 0, 0].tolist() == pytest.approx([0.3621, 0.0015], abs=1e-4)
    (head,) = module_heads("mlp", 3, 1, 4, 2, 1)
    assert [value.flatten()[0].item() for value in head.parameters()] == pytest.approx(
        [0.0515, 0.2240, -0.4204, 0.1660], abs=1e-4
    )


def test_the_draw_is_a_function_of_its_arguments() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = draw_branches(7, [6, 6], 3, 5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            again = draw_branches(7, [6, 6], 3, 5)
    finally:
        torch.set_default_dtype(torch.float32)
    other = draw_branches(8, [6, 6], 3, 5)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert len(torch.cat(first).flatten(1).unique(dim=0)) == 10  # ten branches, no two alike


def test_branches_are_keyed_from_the_last() -> None:
    few, many = draw_branches(0, [6, 4], 3, 2), draw_branches(0, [6, 4], 3, 9)
    for short, long in zip(few, many, strict=True):
        assert torch.equal(long[-2:], short)
    # Nor do they depend on the layers after them.
    assert torch.equal(draw_branches(0, [6], 3, 2)[0], few[0])
