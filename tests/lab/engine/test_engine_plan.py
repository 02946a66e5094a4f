"""Which specs share a stack."""

import dataclasses
import itertools
import sys

import numpy as np
import pytest
import torch

from asymtrain import UsageError
from asymtrain.lab.engine import StackPlan, load_for, plan
from asymtrain.lab.engine.plan import bytes_of_run
from asymtrain.lab.runs import DEFAULTS, RunSpec, grid, pairs
from asymtrain.models import BACKBONES, build
from run_values import ALL_FIELDS, NEEDS

CPU, GPU = torch.device("cpu"), torch.device("cuda")

OTHER = ALL_FIELDS | {"dataset_options": {"size": 100}, "arch_options": {"widths": (8, 8)}}
SHARED = {
    "label_noise", "label_smoothing", "alpha", "alpha_schedule", "learning_rate", "weight_decay",
    "seed", "redundancy", "schedule", "schedule_by", "warmup", "clip", "averaging", "objective", "layers",
    "class_reduction", "layer_reduction", "branch_labels", "bias", "branch_weights",
}  # fmt: skip


@pytest.mark.parametrize("field", DEFAULTS)
def test_specs_share_a_stack_where_a_stack_can_tell_them_apart(field):
    needed = NEEDS.get(field, {})
    specs = [RunSpec(**needed), RunSpec(**needed, **{field: OTHER[field]})]
    assert specs[0] != specs[1]
    assert len(plan(specs, CPU)) == (1 if field in SHARED else 2)


@pytest.mark.parametrize("field", ["erasing", "mixup", "cutmix"])
def test_runs_that_all_erase_or_mix_share_a_stack_however_much(field):
    assert len(plan(grid(RunSpec(), **{field: [0.1, 0.2]}), CPU)) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"objective": "softmax", "class_reduction": "sum", "branch_labels": "random"},
        {"bias": "prior", "branch_weights": "frozen"},
        {"signal": "detached"},
        {"signal": "gated"},
    ],
    ids=str,
)
def test_runs_of_a_stack_may_differ_in_the_loss_of_their_branches(other, monkeypatch):
    monkeypatch.setattr(sys.modules["asymtrain.lab.engine.plan"], "runs_that_fit", lambda *_: 15)
    apart = other == {"signal": "gated"}
    specs = {arch: [RunSpec(arch=arch).plain(), RunSpec(arch=arch), RunSpec(arch=arch, **other)] for arch in BACKBONES}
    assert {len(plan(specs[arch], GPU)) for arch in BACKBONES} == {2 if apart else 1}


def test_with_several_live_branches_their_number_parts_the_stacks():
    assert len(plan(grid(RunSpec(activation="all"), redundancy=[2, 3]), CPU)) == 2


@pytest.mark.parametrize("activation", ["last", "all"])
def test_plain_trains_beside_its_partner(activation):
    specs = pairs(RunSpec(activation=activation, redundancy=4, class_reduction="sum", signal="gated"), [1, 2, 3])
    (stack,) = plan(specs, CPU)
    assert stack.specs == tuple(specs)  # pairs stay together


def test_plain_is_measured_at_its_own_interval():
    """Its gradient norm would otherwise depend on whom it trains beside. Its stack comes where the run does."""
    asymmetric = RunSpec(redundancy=4, cosine_every=2)
    for specs in ([asymmetric.plain(), asymmetric], [asymmetric, asymmetric.plain()]):
        assert [stack.specs for stack in plan(specs, CPU)] == [(spec,) for spec in specs]


def test_plain_of_a_model_by_name_trains_beside_runs_whose_cosine_is_not_measured(monkeypatch):
    monkeypatch.setattr(sys.modules["asymtrain.lab.engine.plan"], "runs_that_fit", lambda *_: 15)
    specs = pairs(RunSpec(arch="package.module:function", cosine_every=0), [1, 2])
    assert [stack.specs for stack in plan(specs, GPU)] == [tuple(specs)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_plain_joins_one_group_whatever_comes_first(order):
    base = RunSpec()
    specs = [base, dataclasses.replace(base, activation="all"), base.plain()]
    stacks = plan([specs[i] for i in order], CPU)
    assert sorted(len(stack.specs) for stack in stacks) == [1, 2]


def test_plain_stays_alone_where_nothing_fits_it():
    base = RunSpec()
    other = dataclasses.replace(base, batch=64)
    assert [len(stack.specs) for stack in plan([other, base.plain()], CPU)] == [1, 1]
    assert [len(stack.specs) for stack in plan([base.plain()], CPU)] == [1]


@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("arch", BACKBONES)
def test_every_spec_is_planned_once_in_even_parts(arch, device, workers, monkeypatch):
    # By its name in sys.modules: the package's attribute `plan` is the function.
    monkeypatch.setattr(sys.modules["asymtrain.lab.engine.plan"], "runs_that_fit", lambda *_: 15)
    specs = [*pairs(RunSpec(arch=arch), range(13)), RunSpec(arch=arch, seed=0)]
    stacks = plan(specs, device, workers=workers)
    planned = [spec for stack in stacks for spec in stack.specs]
    assert len(planned) == 26
    assert set(planned) == set(specs)
    sizes = [len(stack.specs) for stack in stacks]
    assert max(sizes) - min(sizes) <= 1
    assert len(stacks) >= workers
    assert max(sizes) <= 15
    batches = BACKBONES[arch].batches_well if device == GPU else BACKBONES[arch].bound_by_calls
    assert {stack.strategy for stack in stacks} == {"batched" if batches else "side_by_side"}
    assert stacks == plan(specs, device, workers=workers)


def test_a_plan_is_named_by_its_members_and_path():
    a, b = RunSpec(seed=1), RunSpec(seed=2)
    one = StackPlan((a, b), "batched")
    assert one.id == StackPlan((a, b), "batched").id
    assert len({one.id, StackPlan((a,), "batched").id, StackPlan((a, b), "side_by_side").id}) == 3
    assert one.id == "5902312fa2bc6752"  # checkpoints are found by it


@pytest.mark.parametrize("arch", BACKBONES)
def test_the_memory_of_a_run_is_its_weights_and_what_a_batch_leaves(arch):
    fields = {"arch": arch, "redundancy": 3, "dataset_options": {"classes": 7}}
    small, large = (bytes_of_run(RunSpec(batch=batch, **fields)) for batch in (64, 128))
    backbone = build(arch, classes=7, seed=0, image_size=32)
    weights = sum(value.numel() for value in backbone.parameters()) + 7 * sum(backbone.widths)
    assert 2 * small - large == pytest.approx(6 * 4 * weights, abs=2)  # what is left at batch 0
    half = bytes_of_run(RunSpec(batch=128, precision="bf16", **fields))
    assert half == pytest.approx(small, abs=2)


def test_the_memory_of_a_run_follows_the_images_that_its_backbone_takes():
    grey = RunSpec(arch_options={"image_size": 16, "channels": 1, "widths": (8,)})
    assert bytes_of_run(grey) < bytes_of_run(RunSpec(arch_options={"widths": (8,)}))


def test_halves():
    specs = tuple(grid(RunSpec(), seed=range(5)))
    first, second = StackPlan(specs, "batched").halves()
    assert first.specs + second.specs == specs
    assert (len(first.specs), first.strategy, second.strategy) == (2, "batched", "batched")
    with pytest.raises(UsageError, match="one run of mlp does not fit into this device's memory"):
        StackPlan(specs[:1], "batched").halves()


def test_memory_is_reckoned_with_the_size_that_the_images_have(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.zeros((20, 1, 28, 28), np.uint8), y=np.arange(20) % 2)
    spec = RunSpec(dataset=f"npz:{tmp_path / 'data.npz'}", arch="vit", arch_options={"patch": 7})  # not of 32 pixels
    load_for(spec)
    assert bytes_of_run(spec) > 0


def test_files_that_changed_are_read_again(tmp_path, monkeypatch):
    """In one process, such as a notebook."""

    def written(folder, rows):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        np.savez("data.npz", x=np.zeros((rows, 1, 8, 8), np.uint8), y=np.arange(rows) % 2)
        dataset = load_for(spec)
        assert load_for(spec) is dataset
        return len(dataset.train) + len(dataset.test)

    spec = RunSpec(dataset="npz:data.npz")
    assert [written("here", 20), written("here", 40), written("there", 60)] == [20, 40, 60]
