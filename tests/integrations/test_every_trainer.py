"""What every trainer must keep, in each library's own code: one function a trainer, one test a promise."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from adapters import (
    BATCH,
    CLASSES,
    Net,
    assert_no_hooks,
    assert_same_bits,
    branches_on,
    by_hand,
    examples,
    mixed,
    run_ranks,
    seeded,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from asymtrain.branches import Falling, WithLoss

# The libraries warn about themselves and each other.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.filterwarnings("error::asymtrain.errors.UsageWarning")]


@dataclass(frozen=True)
class Job:
    """A training: with which branches (None: without), on what, how."""

    folder: Path
    options: dict | None
    epochs: int = 2
    soft: bool = False
    compiled: bool = False
    rank: int = 0
    ranks: int = 1

    def loader(self, mix=True):
        """The batches in their order; of several ranks each has its share of every batch."""
        rows = TensorDataset(*examples())
        share = DistributedSampler(rows, self.ranks, self.rank, shuffle=False)
        return DataLoader(rows, BATCH // self.ranks, sampler=share, collate_fn=self.collated if mix else None)

    def collated(self, rows):
        x, y = (torch.stack(column) for column in zip(*rows, strict=True))
        return x, mixed(y) if self.soft else y

    def loop(self, model, branches, optimizer, loss_of, backward=torch.Tensor.backward):
        """What a loop of one's own does with a loss."""
        batches = self.epochs * list(self.loader())
        for step, (x, y) in enumerate(batches, 1):
            backward(loss_of(x, y))
            optimizer.step()
            optimizer.zero_grad()
            if branches is not None:
                branches.step(step / len(batches))
        if branches is not None:
            branches.strip(optimizer)
        return model, branches

    def attached(self, model, **more):
        return None if self.options is None else branches_on(model, **self.options, **more)

    def wrapped(self, net):
        """As users wrap what they train."""
        if self.ranks > 1:
            torch.distributed.init_process_group("gloo")
            net = DistributedDataParallel(net)
        return torch.compile(net, backend="eager") if self.compiled else net


def optimizer_of(*modules):
    return torch.optim.AdamW([value for part in modules if part is not None for value in part.parameters()], lr=0.01)


def criterion(job):
    model = seeded(Net)
    branches = job.attached(model)
    net = job.wrapped(model)
    loss_fn = F.cross_entropy if branches is None else branches.criterion(F.cross_entropy)

    def loss_of(x, y):
        output = net(x)
        return 0.75 * loss_fn(output, y) + 0.25 * loss_fn(output, y)  # as mixup has two targets

    return job.loop(model, branches, optimizer_of(model, branches), loss_of)


class Own(Net):
    def forward(self, x, y):
        logits = super().forward(x)
        return logits, F.cross_entropy(logits, y)


def own_loss(job):
    model, (x, y) = seeded(Own), next(iter(job.loader()))
    branches = job.attached(model, sample=(x, y))
    net = job.wrapped(model if branches is None else WithLoss(model, branches))
    return job.loop(model, branches, optimizer_of(model, branches), lambda x, y: net(x, y)[1])


def accelerate(job):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, dynamo_backend="eager" if job.compiled else "no")
    model = seeded(Net)
    branches = job.attached(model)
    loss_fn = F.cross_entropy if branches is None else branches.criterion(F.cross_entropy)
    net, optimizer = accelerator.prepare(model, optimizer_of(model, branches))
    assert isinstance(net, DistributedDataParallel) == (job.ranks > 1)
    return job.loop(model, branches, optimizer, lambda x, y: loss_fn(net(x), y), accelerator.backward)


def timm(job):
    from timm.task import ClassificationTask

    from asymtrain.integrations.timm import BranchTask

    model = seeded(Net)
    task = ClassificationTask(model, F.cross_entropy, verbose=False)
    if job.options is not None:
        task = BranchTask(task, sample=examples()[0][:2], at="blocks.*", classes=CLASSES, **job.options)
    if job.ranks > 1:
        torch.distributed.init_process_group("gloo")
        task.prepare_distributed()
    if job.compiled:
        task.compile(backend="eager")
    optimizer = optimizer_of(task.get_trainable_module())
    _, branches = job.loop(model, getattr(task, "branches", None), optimizer, lambda x, y: task(x, y)["loss"])
    return model, branches


def transformers(job):
    from test_transformers_trainer import Averaged, Trainer, add_branches, arguments

    model, loader = seeded(Averaged), job.loader()

    class InOrder(Trainer):
        def get_train_dataloader(self):
            return [{"x": x, "labels": y} for x, y in loader]

    args = arguments(job.folder, max_steps=-1, num_train_epochs=job.epochs, logging_steps=1000,
                     torch_compile_backend="eager" if job.compiled else None)  # fmt: skip
    trainer = InOrder(model, args, train_dataset=loader.dataset, optimizers=(optimizer_of(model), None))
    added = None if job.options is None else add_branches(trainer, at="blocks.*", classes=CLASSES, **job.options)
    trainer.train()
    return model, added and added.branches


def lightning(job):
    from test_lightning_callback import Module, callback, trainer

    class Mixing(Module):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            return [batch[0], mixed(batch[1])] if job.soft else batch

    module = Mixing()
    added = [] if job.options is None else [callback(**job.options)]
    more = {"devices": job.ranks, "strategy": "ddp", "use_distributed_sampler": False} if job.ranks > 1 else {}
    fitted = torch.compile(module, backend="eager") if job.compiled else module
    trainer(*added, epochs=job.epochs, logged_every=1000, **more).fit(fitted, job.loader(mix=False))
    return module.net, added[0].branches if added else None


def composer(job):
    from test_composer_algorithm import BranchesAlgorithm, Wrapped, fit

    model, on = Wrapped(), {"model": "net", "sample": examples()[0][:2], "at": "blocks.*", "classes": CLASSES}
    added = [] if job.options is None else [BranchesAlgorithm(every=0, **on, **job.options)]
    more = {"compile_config": {"backend": "eager"}} if job.compiled else {}
    fit(model, *added, epochs=f"{job.epochs}ep", loader=job.loader(), **more)
    return model.net, added[0].branches if added else None


def tokens(job):
    """Padded sentences, whose loss is a sum over the count of all that is accumulated."""
    from test_transformers_trainer import CAUSAL, Trainer, add_branches, arguments, causal_model, sentences

    args = arguments(job.folder, max_steps=2 * job.epochs, gradient_accumulation_steps=2, logging_steps=1000)
    trainer = Trainer(seeded(causal_model), args, train_dataset=sentences(64, "tokens"))
    added = None if job.options is None else add_branches(trainer, **CAUSAL, **job.options)
    trainer.train()
    return trainer.model, added and added.branches


TRAINERS = {train.__name__: train for train in (
    criterion, own_loss, accelerate, timm, transformers, lightning, composer
)}  # fmt: skip
of_each = pytest.mark.parametrize("train", TRAINERS.values(), ids=TRAINERS)


@pytest.fixture(autouse=True)
def _libraries(request, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    name = request.node.callspec.params["train"].__name__
    library = {"criterion": "torch", "own_loss": "torch", "tokens": "transformers"}.get(name, name)
    pytest.importorskip(library, reason=f"{library} does not import here", exc_type=ImportError)


@of_each
def test_strength_0_is_the_trainer_alone(train, tmp_path):
    plain, _ = train(Job(tmp_path, None))
    model, branches = train(Job(tmp_path, {"strength": 0}))
    assert_same_bits(model, plain)
    assert branches.stripped
    assert_no_hooks(model)


def assert_as_by_hand(train, job):
    model, branches = train(job)
    alone = seeded(Net)
    expected = by_hand(alone, soft=job.soft, **job.options)
    for found, wanted in ((model, alone), (branches, expected)):
        assert found.state_dict().keys() == wanted.state_dict().keys()
        for name, value in wanted.state_dict().items():
            torch.testing.assert_close(found.state_dict()[name], value, msg=name)
    assert branches.stripped
    assert_no_hooks(model)


@of_each
@pytest.mark.parametrize(
    ("soft", "compiled"),
    [(False, False), (True, False), (True, True)],
    ids=["hard-eager", "soft-eager", "soft-compiled"],
)
def test_it_trains_what_a_loop_by_hand_trains(train, soft, compiled, tmp_path):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    assert_as_by_hand(train, Job(tmp_path, {"strength": Falling(2.0)}, soft=soft, compiled=compiled))
    assert (torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0) == compiled


class Reads(TorchDispatchMode):
    """Counts the values that the host asks for, which on a GPU it has to wait for."""

    aten = torch.ops.aten
    WAIT = (aten._local_scalar_dense, aten.equal, aten.nonzero, aten.masked_select, aten.is_nonzero, aten._unique2)

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket in self.WAIT
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("train", [*TRAINERS.values(), tokens])
def test_no_step_that_is_not_logged_waits_for_the_device(train, tmp_path, monkeypatch):
    """What the library reads is the same without branches; what is read at both ends does not grow with the steps."""
    # On a GPU AdamW's counts of steps are in the host's memory, and labels are not checked.
    adam, numpy = sys.modules["torch.optim.adam"], torch.Tensor.numpy
    monkeypatch.setattr(adam, "_get_value", lambda count: numpy(count).item())
    monkeypatch.setattr("asymtrain.objectives.check_targets", lambda *_, **__: None)
    monkeypatch.setattr("asymtrain.branches._fused._all_classes", lambda *_: True)
    extra = []
    for epochs in (1, 3):
        counts = []
        for options in ({"strength": Falling(2.0)}, None):
            with Reads() as reads, monkeypatch.context() as patch:
                for name in ("cpu", "numpy", "tolist"):  # of which a tensor on the CPU tells the mode nothing
                    patch.setattr(torch.Tensor, name, counted(reads, getattr(torch.Tensor, name)))
                train(Job(tmp_path, options, epochs=epochs))
            counts.append(reads.count)
        extra.append(counts[0] - counts[1])
    assert extra[0] == extra[1] > 0  # attach reads


def counted(reads, method):
    def call(*args, **kwargs):
        reads.count += 1
        return method(*args, **kwargs)

    return call


RANKS = """
import os
from pathlib import Path

import torch
from test_every_trainer import TRAINERS, Job

torch.set_num_threads(1)
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
model, branches = TRAINERS["{name}"](Job(Path(), {{"strength": 2.0}}, rank=rank, ranks=ranks))
torch.save([model.state_dict(), branches.state_dict()], f"{{rank}}.pt")
"""


@pytest.mark.slow
@pytest.mark.parametrize("train", [train for train in TRAINERS.values() if train is not transformers])
def test_two_ranks_train_what_one_trains(train, tmp_path):
    """Of transformers: `test_transformers_trainer.py`."""
    run_ranks(RANKS.format(name=train.__name__), tmp_path)
    alone = seeded(Net)
    branches = by_hand(alone, strength=2.0)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for one, other, whole in zip(first, second, (alone, branches), strict=True):
        for name, value in whole.state_dict().items():
            assert torch.equal(one[name], other[name]), name
            # Of two ranks the sums are in another order; without the average the difference is a hundredth.
            assert torch.allclose(one[name], value, atol=1e-3), name
