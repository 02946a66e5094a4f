"""accelerate needs no adapter: branches in a loop of its users, which is the loop by hand."""

import pytest
import torch
import torch.nn.functional as F
from adapters import BATCH, Net, assert_bare, assert_same_bits, branches_on, by_hand, examples, seeded
from torch.utils.data import DataLoader, TensorDataset

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")

from accelerate.state import AcceleratorState, GradientState  # noqa: E402


@pytest.fixture(autouse=True)
def _own_state():
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def test_a_loop_of_accelerate_trains_what_a_loop_by_hand_trains():
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, alone = seeded(Net), seeded(Net)
    branches = branches_on(model)
    criterion = branches.criterion(F.cross_entropy)
    optimizer = torch.optim.AdamW([*model.parameters(), *branches.parameters()], lr=0.01)
    loader = DataLoader(TensorDataset(*examples()), batch_size=BATCH)
    net, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(2):
        for x, y in loader:
            with accelerator.accumulate(net):
                accelerator.backward(criterion(net(x), y))
                optimizer.step()
                optimizer.zero_grad()
    branches.strip(optimizer)
    by_hand(alone, accumulate=2)
    assert_same_bits(model, alone)
    assert set(optimizer.state) == set(model.parameters())
    assert_bare(model)


def test_a_resumed_training_is_the_uninterrupted_one(tmp_path):
    def train(resume):
        accelerator = accelerate.Accelerator(cpu=True)
        model = seeded(Net, seed=5 if resume else 0)
        branches = branches_on(model)
        optimizer = torch.optim.AdamW([*model.parameters(), *branches.parameters()], lr=0.01)
        net, optimizer = accelerator.prepare(model, optimizer)
        accelerator.register_for_checkpointing(branches)
        criterion = branches.criterion(F.cross_entropy)
        if resume:
            accelerator.load_state(tmp_path)
        batches = list(zip(*(part.split(BATCH) for part in examples()), strict=True))
        for i, (x, y) in enumerate(batches):
            if i == 3 and not resume:
                accelerator.save_state(tmp_path)
            if i >= 3 or not resume:
                accelerator.backward(criterion(net(x), y))
                optimizer.step()
                optimizer.zero_grad()
        branches.strip(optimizer)
        return model

    assert_same_bits(train(resume=False), train(resume=True))
