"""The stack's parts, each against torch or a loop."""

import math

import pytest
import torch
from equivalence import patterns
from hypothesis import given, settings
from hypothesis import strategies as st

from asymtrain.lab.engine import Stack
from asymtrain.lab.engine.optimizer import Moments, adamw_
from asymtrain.lab.engine.parameters import ALIGNMENT, FlatParameters
from asymtrain.lab.engine.setup import decays, dropout_mask, learning_rate
from asymtrain.lab.engine.tally import Tally
from asymtrain.lab.runs import RunSpec

# AdamW.

RATES, DECAYS = [1e-4, 1e-2, 3.0], [0.0, 0.1, 1e-2]


@pytest.mark.parametrize("size", [1.0, 1e-7, 1e-9, 1e6], ids=str)  # 1e-9: epsilon matters
@pytest.mark.parametrize("masked", [False, True])
def test_the_optimizer_is_torch_s_adamw_for_each_run(size, masked):
    drawn = torch.Generator().manual_seed(0)
    start = torch.randn(3, 40, dtype=torch.float64, generator=drawn)
    gradients = size * torch.randn(30, 3, 40, dtype=torch.float64, generator=drawn)
    gradients[:, :, 7] = 0.0  # a gap, or a parameter that no loss reaches
    gradients[5:, :, 8] = 0.0
    flat, moments = start.clone(), Moments.zeros(start)
    rate, decay = torch.tensor(RATES).double()[:, None], torch.tensor(DECAYS).double()[:, None]
    if masked:
        decay = decay * (torch.arange(40) < 20)
    for gradient in gradients:
        adamw_(flat, gradient, moments, rate, decay)
    for r in range(3):
        parts = [torch.nn.Parameter(part.clone()) for part in start[r].split(20)]
        groups = [{"params": [p], "weight_decay": DECAYS[r] * (i == 0 or not masked)} for i, p in enumerate(parts)]
        optimizer = torch.optim.AdamW(groups, lr=RATES[r])
        for gradient in gradients:
            for parameter, part in zip(parts, gradient[r].split(20), strict=True):
                parameter.grad = part.clone()
            optimizer.step()
        expected = torch.cat([p.detach() for p in parts])
        # The bias corrections are rounded to float32: a relative error of 6e-8 in each of 30 steps.
        assert (flat[r] - expected).abs().max() <= 1e-6 * RATES[r] * len(gradients)


def test_a_gap_stays_zero():
    flat = torch.zeros(2, 64)
    moments = Moments.zeros(flat)
    for _ in range(3):
        adamw_(flat, torch.zeros(2, 64), moments, torch.ones(2, 1), torch.ones(2, 1))
    assert not flat.any()
    assert moments.updates.item() == 3


# The flat matrix.

shapes = st.lists(st.lists(st.integers(1, 7), max_size=4).map(tuple), min_size=1, max_size=6)


def named(sizes, run):
    """Parameters without a zero, another one for each place and run."""
    return {
        f"p{i}": torch.arange(math.prod(shape)).float().view(shape) + 1000 * i + 0.25 * run + 1
        for i, shape in enumerate(sizes)
    }


@settings(deadline=None)
@given(sizes=shapes, runs=st.integers(1, 3), missing=st.integers(0, 6))
def test_packing_viewing_and_gathering_are_inverse(sizes, runs, missing):
    parameters = [named(sizes, run) for run in range(runs)]
    layout = FlatParameters.of(parameters[0])
    flat = layout.pack(parameters)
    views = layout.views(flat)
    assert list(views) == list(parameters[0])
    for name, view in views.items():
        assert view.data_ptr() % (ALIGNMENT * 4) == flat.data_ptr() % (ALIGNMENT * 4)
        for run in range(runs):
            assert torch.equal(view[run], parameters[run][name])
    assert torch.equal(layout.gather(views, runs), flat)
    assert (flat != 0).sum() == runs * sum(map(math.prod, sizes))  # nothing overlaps, gaps are zero

    views["p0"].zero_()
    assert not flat[:, : math.prod(sizes[0])].any()

    kept = {name: view for name, view in layout.views(flat).items() if name != f"p{missing}"}
    if kept:
        partly = layout.views(layout.gather(kept, runs))
        for name, view in partly.items():
            assert torch.equal(view, kept[name]) if name in kept else not view.any()


def test_gradients_in_bfloat16_are_gathered_as_float32():
    layout = FlatParameters.of({"a": torch.zeros(3)})
    assert layout.gather({"a": torch.ones(2, 3, dtype=torch.bfloat16)}, 2).dtype == torch.float32


def test_the_gaps_of_a_trained_stack_stay_zero():
    spec = RunSpec(arch_options={"widths": (5, 3)}, batch=16, epochs=1, learning_rate=0.1, weight_decay=0.5)
    stack = Stack([spec, spec.plain()], patterns(size=50))
    stack.advance()
    everything = torch.zeros(2, stack.parameters.size)
    for view in stack.parameters.views(everything).values():
        view.fill_(1)
    assert (everything == 0).any()
    assert not stack.weights[everything == 0].any()


# Sums over an epoch.


def test_a_tally_is_the_mean_over_images_and_over_defined_cosines():
    """Two layers. The first run's gradients have lengths 5 and 10; the second run's auxiliary one is zero."""
    tally = Tally(2, 2, torch.device("cpu"))
    steps = [
        (4, [1.0, 2.0], [10.0, 20.0], [3, 0], 0.5),
        (4, [2.0, 4.0], [30.0, 40.0], [4, 1], -0.25),
        (1, [9.0, 9.0], [90.0, 90.0], [0, 1], None),
    ]
    for _ in range(2):  # a second epoch does not remember the first
        tally.clear()
        for images, main, auxiliary, correct, cosine in steps:
            tally.add_losses(
                *(torch.tensor(v).float() for v in (main, auxiliary, correct)), torch.tensor(float(images))
            )
            if cosine is not None:
                # All of the auxiliary gradient is in the first layer; 16 of main's 25 are.
                products = [[[50 * cosine, 0.0], [0.0, 0.0]], [[16.0, 9.0], [4.0, 0.0]], [[100.0, 0.0], [0.0, 0.0]]]
                tally.add_dialogue(torch.tensor(products, dtype=torch.float64))
        first, second = tally.read(9)
    assert first[:-1] == pytest.approx(
        ((4 + 8 + 9) / 9, (40 + 120 + 90) / 9, 7 / 9, 0.125, -0.25, 0.5, 0.75 / math.sqrt(2), 0.5, 5.0, 10.0)
    )
    assert first.layer_cosines == (pytest.approx(0.125 * 5 / 4), None)
    assert second[:3] == pytest.approx(((8 + 16 + 9) / 9, (80 + 160 + 90) / 9, 2 / 9))
    assert second[3:] == (None, None, None, None, None, 2.0, 0.0, (None, None))


def test_one_run_s_nan_is_its_own():
    tally = Tally(2, 1, torch.device("cpu"))
    tally.add_losses(torch.tensor([float("nan"), 1.0]), torch.zeros(2), torch.zeros(2), torch.tensor(2.0))
    tally.add_dialogue(torch.tensor([[[float("inf")], [0.5]], [[float("inf")], [1.0]], [[1.0], [1.0]]]))
    lost, fine = tally.read(2)
    assert math.isnan(lost.main_loss)
    assert lost.cosine is None
    assert (fine.main_loss, fine.cosine) == (1.0, 0.5)


# Settings.


def test_the_schedule_falls_from_the_rate_to_nearly_zero():
    constant, cosine = RunSpec(learning_rate=0.2, epochs=4), RunSpec(learning_rate=0.2, epochs=4, schedule="cosine")
    assert [learning_rate(constant, e) for e in range(4)] == [0.2] * 4
    assert [learning_rate(cosine, e) for e in range(4)] == pytest.approx(
        [0.2, 0.1 * (1 + math.sqrt(0.5)), 0.1, 0.1 * (1 - math.sqrt(0.5))]
    )


@pytest.mark.parametrize(
    ("name", "shape", "kinds"),
    [
        ("head.weight", (3, 4), {"all", "matrices", "backbone_matrices"}),
        ("blocks.0.0.weight", (8, 3, 3, 3), {"all", "matrices", "backbone_matrices"}),
        ("head.bias", (3,), {"all"}),
        ("norm.weight", (3,), {"all"}),
        ("class_token", (1, 1, 8), {"all"}),
        ("positions", (1, 5, 8), {"all"}),
        ("branch.0", (2, 3, 4), {"all", "matrices"}),
    ],
)
@pytest.mark.parametrize("decay", ["all", "matrices", "backbone_matrices"])
def test_what_weight_decay_acts_on(name, shape, kinds, decay):
    assert decays(RunSpec(decay=decay), name, torch.zeros(shape)) == (decay in kinds)


@pytest.mark.parametrize("rate", [0.0, 0.25, 0.5, 0.9])
def test_dropout_masks_have_their_rate_and_mean_one(rate):
    keys = torch.tensor([11, 22])
    mask = dropout_mask(keys, 3, 50, 400, rate)
    assert mask.shape == (2, 50, 400)
    assert set(mask.unique().tolist()) <= {0.0, torch.tensor(1 / (1 - rate)).item()}
    assert abs((mask == 0).float().mean().item() - rate) < 4 * math.sqrt(rate * (1 - rate) / mask.numel()) + 1e-9
    assert torch.equal(mask[:, :7], dropout_mask(keys, torch.tensor(3), 7, 400, rate))
    if rate:
        assert not torch.equal(mask, dropout_mask(keys, 4, 50, 400, rate))
        assert not torch.equal(mask[0], mask[1])
