"""The stack's parts, each against torch or a loop."""

import math

import pytest
import torch
from equivalence import patterns
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from asymtrain.lab.engine import Stack
from asymtrain.lab.engine.optimizer import Moments, adamw_, adamw_elementwise_, average_, clipped, decays
from asymtrain.lab.engine.parameters import ALIGNMENT, FlatParameters, stack_aligned
from asymtrain.lab.engine.schedule import learning_rates
from asymtrain.lab.engine.setup import dropout_mask
from asymtrain.lab.engine.tally import Tally
from asymtrain.lab.runs import RunSpec

# The optimiser.

RATES, DECAYS = [1e-4, 1e-2, 3.0], [0.0, 0.1, 1e-2]


@pytest.mark.parametrize("size", [1.0, 1e-7, 1e-9, 1e6], ids=str)  # 1e-9: epsilon matters
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("form", ["fused", "elementwise"])
def test_the_optimizer_is_torch_s_for_each_run(form, size, masked):
    drawn = torch.Generator().manual_seed(0)
    start = torch.randn(3, 40, dtype=torch.float64, generator=drawn)
    gradients = size * torch.randn(30, 3, 40, dtype=torch.float64, generator=drawn)
    gradients[:, :, 7] = 0.0  # a gap, or a parameter that no loss reaches
    gradients[5:, :, 8] = 0.0
    flat, moments = start.clone(), Moments.zeros(start)
    rate, decay = (torch.tensor(values).double()[:, None] for values in (RATES, DECAYS))
    if masked:
        decay = decay * (torch.arange(40) < 20)
    for gradient in gradients:
        if form == "fused":
            adamw_(flat, gradient, moments, rate, decay)
        else:
            moments.updates.add_(1)
            adamw_elementwise_(flat, gradient, moments.first, moments.second, moments.updates, rate, decay)
    assert moments.updates.item() == len(gradients)
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


def test_gradients_are_clipped_as_torch_does_for_each_run():
    gradient = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    limits = [0.0, 0.5, 100.0, 1e-3]
    for row, limit, found in zip(gradient, limits, clipped(gradient, torch.tensor(limits)[:, None]), strict=True):
        parts = [torch.nn.Parameter(torch.zeros(25)) for _ in range(2)]
        for parameter, part in zip(parts, row.split(25), strict=True):
            parameter.grad = part.clone()
        if limit:
            torch.nn.utils.clip_grad_norm_(parts, limit)
        assert torch.allclose(found, torch.cat([p.grad for p in parts]), rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 7), (3, 2, 5), (3,)])
def test_an_average_forgets_its_start_and_then_decays(shape):
    decays_of_runs = [0.0, 0.5, 0.9]
    values = torch.randn(40, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    average = torch.full(shape, 1e6, dtype=torch.float64)
    for count, value in enumerate(values):
        average_(average, value, torch.tensor(decays_of_runs).double()[:, None], torch.tensor(count).double())
    for r, decay in enumerate(decays_of_runs):
        expected = values[0, r]
        for count, value in enumerate(values):
            kept = min(decay, count / (count + 9))
            expected = kept * expected + (1 - kept) * value[r]
        assert torch.allclose(average[r], expected, rtol=1e-9)
    assert torch.equal(average[0], values[-1, 0]), "a run that averages nothing keeps its weights to the bit"


# The flat matrix.

shapes = st.lists(st.lists(st.integers(1, 7), max_size=4).map(tuple), min_size=1, max_size=6)


def named(sizes, run):
    """Parameters without a zero, another one for each layer and run."""
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


def test_gradients_that_lie_otherwise_in_memory_are_gathered_too():
    layout = FlatParameters.of({"a": torch.zeros(2, 3), "b": torch.zeros(4)})
    gradients = {"a": torch.arange(6.0).view(1, 3, 2).mT, "b": torch.ones(1, 4)}
    for kept in (gradients, {"a": gradients["a"]}):
        views = layout.views(layout.gather(kept, 1))
        assert all(torch.equal(views[name], value) for name, value in kept.items())


def test_views_of_one_run_do_not_tell_how_many_parameters_there_are():
    """A program that is compiled for them serves stacks with other branches."""
    first = {"a": torch.zeros(3, 5), "b": torch.zeros(7)}
    layouts = [FlatParameters.of(first), FlatParameters.of({**first, "branch.0": torch.zeros(9, 9)})]
    strides = [[view.stride() for view in layout.views(torch.zeros(1, layout.size)).values()] for layout in layouts]
    assert strides[0] == strides[1][:2]


@pytest.mark.parametrize(
    "value", [torch.tensor(3), torch.randn(3, 5), torch.ones(7, dtype=torch.bool)], ids=["count", "matrix", "mask"]
)
def test_a_stack_of_buffers_begins_each_run_at_an_aligned_address(value):
    stacked = stack_aligned([value, value, value])
    assert all(torch.equal(row, value) and row.data_ptr() % 16 == 0 for row in stacked)


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
    tally = Tally(2, torch.device("cpu"))
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
                tally.add_alignment(torch.tensor(products, dtype=torch.float64))
        first, second = tally.read(9)
    assert first == pytest.approx(
        ((4 + 8 + 9) / 9, (40 + 120 + 90) / 9, 7 / 9, 0.125, -0.25, 0.5, 0.75 / math.sqrt(2), 0.5, 5.0, 10.0)
    )
    assert second[:3] == pytest.approx(((8 + 16 + 9) / 9, (80 + 160 + 90) / 9, 2 / 9))
    assert second[3:] == (None, None, None, None, None, 2.0, 0.0)


def test_one_run_s_nan_is_its_own():
    tally = Tally(2, torch.device("cpu"))
    tally.add_losses(torch.tensor([float("nan"), 1.0]), torch.zeros(2), torch.zeros(2), torch.tensor(2.0))
    tally.add_alignment(torch.tensor([[[float("inf")], [0.5]], [[float("inf")], [1.0]], [[1.0], [1.0]]]))
    lost, fine = tally.read(2)
    assert math.isnan(lost.main_loss)
    assert lost.cosine is None
    assert (fine.main_loss, fine.cosine) == (1.0, 0.5)


# Settings.


def all_rates(steps=1, **fields):
    spec = RunSpec(learning_rate=0.2, **fields)
    return [rate for epoch in range(spec.epochs) for rate in learning_rates(spec, epoch, steps)]


def test_the_schedule_falls_from_the_rate_to_nearly_zero():
    assert all_rates(epochs=4) == [0.2] * 4
    cosine = [0.2, 0.1 * (1 + math.sqrt(0.5)), 0.1, 0.1 * (1 - math.sqrt(0.5))]
    assert all_rates(epochs=4, schedule="cosine") == pytest.approx(cosine)
    assert all_rates(3, epochs=4, schedule="cosine") == pytest.approx([rate for rate in cosine for _ in range(3)])


@pytest.mark.parametrize(("epochs", "steps"), [(5, 8), (7, 1), (40, 3)])
def test_rates_by_step_are_those_of_torch_s_scheduler(epochs, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.2)
    scheduler, rates = lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * steps), []
    for step in range(epochs * steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step + 1 < epochs * steps:
            scheduler.step()
    found = all_rates(steps, epochs=epochs, schedule="cosine", schedule_by="step")
    assert found == pytest.approx(rates, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_warm_up_rises_in_equal_parts_and_the_schedule_takes_the_rest(schedule):
    rates = all_rates(4, epochs=5, warmup=1.5, schedule=schedule, schedule_by="step")
    assert rates[:6] == pytest.approx([0.2 * (step + 1) / 6 for step in range(6)])
    rest = [0.2] * 14
    if schedule == "cosine":
        rest = [0.1 * (1 + math.cos(math.pi * step / 14)) for step in range(14)]
    assert rates[6:] == pytest.approx(rest)
    by_epoch = all_rates(4, epochs=5, warmup=2, schedule=schedule)
    assert by_epoch[:8] == pytest.approx([0.1] * 4 + [0.2] * 4)


@pytest.mark.parametrize(
    ("name", "shape", "kinds"),
    [
        ("head.weight", (3, 4), {"all", "matrices"}),
        ("blocks.0.0.weight", (8, 3, 3, 3), {"all", "matrices"}),
        ("head.bias", (3,), {"all"}),
        ("norm.weight", (3,), {"all"}),
        ("class_token", (1, 1, 8), {"all"}),
        ("positions", (1, 5, 8), {"all"}),
        ("pos_embed", (1, 65, 8), {"all"}),
        ("blocks.0.mlp_tokens.fc1.weight", (8, 8), {"all", "matrices"}),
        ("branch.0", (2, 3, 4), {"all", "matrices"}),
    ],
)
@pytest.mark.parametrize("decay", ["all", "matrices"])
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
