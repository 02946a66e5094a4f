"""WithBranches, alone, in DDP and sharded: two processes, branch weights equal on both."""

import copy
import faulthandler
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from branch_zoo import CLASSES, Case, attached, build, mlp, rows, targets
from torch import multiprocessing as mp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from asymtrain.branches import Branches, Falling, GradientRatio, Parallel, WithBranches, attach
from asymtrain.errors import UsageError
from asymtrain.objectives import Mse

AT = ["1", "3"]
KINDS = ("ddp", "sharded", "blocks")
PATIENCE = 120  # seconds for two ranks that need ten


def test_it_gives_what_model_and_branches_give(case: Case) -> None:
    model, sample = build(case)
    branches = attach(model.eval(), sample, CLASSES, at=case.at, head=Parallel(2), **case.options)
    net = WithBranches(model, branches)
    arguments, keywords = (), {}
    if isinstance(sample, dict):
        keywords = sample
    else:
        arguments = sample if isinstance(sample, tuple) else (sample,)
    output, logits = net(*arguments, **keywords)
    expected = model(*arguments, **keywords)
    if not isinstance(expected, torch.Tensor):
        output, expected = output.logits, expected.logits
    assert torch.equal(output, expected)
    apart = branches.logits()
    assert list(logits) == list(case.layers)
    assert all(torch.equal(logits[name], apart[name]) for name in apart)


def test_its_logits_must_be_passed_on() -> None:
    model, x, branches = attached()
    _, logits = WithBranches(model, branches)(x)
    with pytest.raises(UsageError, match=r"WithBranches returned this forward's logits.*logits=logits"):
        branches.loss(targets())
    assert branches.loss(targets(), logits=logits).requires_grad
    model(x)
    branches.loss(targets())  # a call of the model itself is answered as always


@pytest.mark.parametrize("copied", [False, True], ids=["itself", "copy"])
def test_a_second_set_goes_around_the_first(copied: bool) -> None:
    model, x = mlp().eval(), rows()
    one = attach(model, x, CLASSES, at=AT)
    two = attach(model, x, at=AT, objective=Mse(outputs=2))
    net = WithBranches(WithBranches(model, one), two)
    expected = (model(x), one.logits()), two.logits()
    output = (copy.deepcopy(net) if copied else net)(x)
    torch.testing.assert_close(output, expected, rtol=0, atol=0)
    assert {id(value) for value in net.parameters()} == {
        id(value) for part in (model, one, two) for value in part.parameters()
    }
    with pytest.raises(UsageError, match="these branches are not on this model"):
        WithBranches(WithBranches(model, one), attach(mlp(), x, CLASSES, at=AT))
    one.strip()
    (_, gone), logits = net(x)
    assert gone == {}
    assert list(logits) == AT


class Tokens(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block = torch.nn.Embedding(9, 6), torch.nn.Linear(6, 6)

    def forward(self, tokens: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.block(self.embed(tokens))


def test_the_mask_of_the_forward_counts_for_its_logits() -> None:
    tokens, mask = torch.arange(8).reshape(2, 4), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]])
    model = Tokens()
    branches = attach(model, (tokens, mask), 9, at="block", pool="none", layout="BTD", shift=1)
    model(tokens, mask)
    expected = branches.loss(tokens)
    assert not torch.equal(expected, branches.loss(tokens, mask=torch.ones_like(mask)))
    _, logits = WithBranches(model, branches)(tokens, mask)
    assert torch.equal(branches.loss(tokens, logits=logits), expected)
    branches.strip()
    flat = attach(model, (tokens, mask), 9, at="block", pool=lambda hidden: hidden.flatten(0, 1))
    model(tokens, mask)
    assert torch.equal(flat.loss(tokens.flatten()), flat.loss(tokens.flatten(), mask=torch.ones(8)))


def test_after_strip_the_model_is_called_itself() -> None:
    model, x, branches = attached()
    net = WithBranches(model, branches)
    branches.strip()
    with pytest.raises(UsageError, match=r"the branches are stripped: call \(and wrap\) the model itself"):
        net(x)


def test_idle_branches_and_a_strength_are_not_broadcast() -> None:
    model, x = mlp(), rows()
    model._ddp_params_and_buffers_to_ignore = ["0.bias"]
    net = WithBranches(model, attach(model, x, CLASSES, at=AT, head=Parallel(3), strength=Falling(0.5)))
    equal = {name for name, _ in net.named_buffers()}  # on all ranks
    assert set(net._ddp_params_and_buffers_to_ignore) == {"model.0.bias"} | equal
    assert len(equal) == 3
    assert "branches.schedule.strength" in equal


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("bfloat16_on_any_cpu", "one_rank")
@pytest.mark.parametrize("apart", [False, True], ids=["with the model", "apart"])
def test_a_sharded_pair_in_mixed_precision(apart: bool) -> None:
    """One rank; what two ranks train is compared with DDP below."""
    mesh, half = init_device_mesh("cpu", (1,)), MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    model, x = mlp(), rows()
    keys = list(model.state_dict())
    branches = attach(model, x, CLASSES, at=AT, head=Parallel(3))
    net = WithBranches(model, branches)
    if apart:
        fully_shard(branches, mesh=mesh)
    fully_shard(net, mesh=mesh, mp_policy=half)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    before = [value.full_tensor().clone() for value in net.parameters()]
    output, logits = net(x)
    (F.cross_entropy(output.float(), targets()) + branches.loss(targets(), logits=logits)).backward()
    optimizer.step()
    assert output.dtype == torch.bfloat16
    assert {value.dtype for value in logits.values()} == {torch.float32 if apart else torch.bfloat16}
    after = [value.full_tensor() for value in net.parameters()]
    assert not any(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    with pytest.raises(UsageError, match=r"sharded by FSDP already: .* fully_shard\(WithBranches"):
        attach(net, x, CLASSES, at="model.0")
    with torch.no_grad():
        net(x)  # an evaluation, after which the modules have whole weights, and the optimizer sharded ones
    branches.strip(optimizer)
    output, logits = net(x)
    assert logits == {}
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    assert list(whole) == keys
    assert set(optimizer.state) == set(optimizer.param_groups[0]["params"]) == set(model.parameters())


@pytest.mark.usefixtures("one_rank")
def test_two_sharded_sets() -> None:
    model = mlp()
    one, two = (attach(model, rows(), CLASSES, at=["2", "3"]) for name in ("one", "two"))
    net = fully_shard(WithBranches(WithBranches(model, one), two), mesh=init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    (_, first), second = net(rows())
    (one.loss(targets(), logits=first) + two.loss(targets(), logits=second)).backward()  # FSDP2 warns of views
    optimizer.step()
    for branches in (one, two):
        branches.strip(optimizer)
        (_, first), second = net(rows())
    assert first == second == {}
    assert len(optimizer.param_groups[0]["params"]) == len(list(model.parameters()))


def _train(rank: int, folder: str, activation: str) -> None:
    """Five steps on this rank's own batches; the ranks start from different models."""
    torch.manual_seed(rank)
    model = mlp()
    branches = attach(model, rows(), CLASSES, at=AT, head=Parallel(3, activation=activation))
    net = DistributedDataParallel(WithBranches(model, branches))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(5):
        output, logits = net(rows())
        loss = F.cross_entropy(output, targets()) + 0.5 * branches.loss(targets(), logits=logits)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    refused = [_refusal(lambda: _drift(model, branches)), _refusal(lambda: attach(net, rows(), CLASSES, at="1"))]
    state = {"model": model.state_dict(), "branches": branches.state_dict(), "refused": refused}
    branches.strip(optimizer)
    torch.save(state, Path(folder) / f"{activation}-{rank}.pt")


def _shard(rank: int, folder: str, kind: str) -> None:
    """Four steps with branches and two without, in DDP or sharded."""
    torch.manual_seed(0)
    model, mesh = mlp(), init_device_mesh("cpu", (2,))
    start = copy.deepcopy(model.state_dict())
    branches = attach(model, rows(), CLASSES, at=AT, head=Parallel(3, activation="all"))
    net: torch.nn.Module = WithBranches(model, branches)
    if kind == "blocks":
        for block in list(model)[::2]:
            fully_shard(block, mesh=mesh)
    net = DistributedDataParallel(net) if kind == "ddp" else fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    drawn = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(6):
        if step == 4:
            branches.strip(optimizer)
            if kind == "ddp":
                net = DistributedDataParallel(model)
        x, y = torch.randn(4, rows().shape[1], generator=drawn), torch.randint(0, CLASSES, (4,), generator=drawn)
        output, logits = net(x) if step < 4 or kind != "ddp" else (net(x), {})
        loss = F.cross_entropy(output, y) + (0.5 * branches.loss(y, logits=logits) if step < 4 else 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = {
        "start": start,
        "losses": losses,
        "model": get_model_state_dict(model, options=whole),
        "branches": get_model_state_dict(branches, options=whole),
        "sharded": all(isinstance(value, DTensor) for value in model.parameters()),
        "optimized": [len(optimizer.state), sum(len(group["params"]) for group in optimizer.param_groups)],
        "logits": list(logits),
        "hooks": sum(len(part._forward_hooks) for name, part in model.named_modules() if name in AT),
        "refused": _refusal(lambda: attach(net, rows(), CLASSES, at="1")),
    }
    torch.save(state, Path(folder) / f"{kind}-{rank}.pt")


def _follow(rank: int | None) -> list[float]:
    """Strengths by the ratio of gradients, in five steps on this rank's half of each batch, or on all of it."""
    torch.manual_seed(0)
    model = mlp().eval()
    data, labels = torch.randn(5, 12, rows().shape[1]), torch.arange(12) % CLASSES
    branches = attach(model, data[0], CLASSES, at=AT, strength=GradientRatio(0.25, every=2))
    net: torch.nn.Module = WithBranches(model, branches)
    net = net if rank is None else DistributedDataParallel(net)
    optimizer, strengths = torch.optim.SGD(net.parameters(), lr=0.1), []
    part = slice(None) if rank is None else slice(6 * rank, 6 * rank + 6)
    for x in data:
        optimizer.zero_grad()
        for half in (slice(None, None, 2), slice(1, None, 2)):  # accumulated
            output, logits = net(x[part][half])
            main = F.cross_entropy(output, labels[part][half])
            (main + branches.loss(labels[part][half], logits=logits, main=main)).div(2).backward()
        optimizer.step()
        strengths.append(branches.strength)
    return strengths


def _drift(model: torch.nn.Module, branches: Branches) -> None:
    DistributedDataParallel(model)(rows())
    branches.loss(targets())


def _refusal(action: object) -> str:
    try:
        action()
    except UsageError as error:
        return str(error)
    return "not refused"


def _rank(rank: int, folder: str) -> None:
    faulthandler.dump_traceback_later(PATIENCE - 10, exit=True)  # where it hangs, if it does
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    try:
        for activation in ("last", "all"):
            _train(rank, folder, activation)
        for kind in KINDS:
            _shard(rank, folder, kind)
        torch.save(_follow(rank), Path(folder) / f"strengths-{rank}.pt")
        dist.barrier()  # no rank leaves while the other still waits for an answer
    finally:
        dist.destroy_process_group()


def _spawned(folder: Path) -> Path:
    """Where the two ranks left their states. Some machines lose a packet between them: one hang is forgiven."""
    for trial in (folder / "first", folder / "second"):
        trial.mkdir()
        ranks = mp.spawn(_rank, args=(str(trial),), nprocs=2, join=False)
        deadline = time.monotonic() + PATIENCE
        try:
            while time.monotonic() < deadline:
                if ranks.join(timeout=5):
                    return trial
        except mp.ProcessExitedException as error:
            if time.monotonic() < deadline - 20:
                raise
            print("the ranks hung, see the stacks above:", error)
        finally:
            for process in ranks.processes:
                process.kill()
    pytest.fail(f"twice the ranks did not end within {PATIENCE} s")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What two ranks left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        if sys.platform == "linux":  # the address that the machine's own name stands for may not be reachable
            patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
        yield _spawned(tmp_path_factory.mktemp("ranks"))


@pytest.mark.slow
def test_sharding_trains_what_ddp_trains(trained: Path) -> None:
    """Whole or block by block; strip after sharding, and a full state dict of the bare model at the end."""
    first, *others = (torch.load(trained / f"{kind}-0.pt") for kind in KINDS)
    bare = mlp()
    for state in others:
        assert state["sharded"]
        assert not first["sharded"]
        assert state["model"].keys() == bare.state_dict().keys()
        bare.load_state_dict(state["model"], strict=True)
        for part in ("model", "branches"):
            for name, value in first[part].items():
                assert torch.allclose(state[part][name], value, atol=1e-6), name
        assert not torch.allclose(state["start"]["0.weight"], state["model"]["0.weight"], atol=1e-3)
        assert state["optimized"] == [len(bare.state_dict())] * 2
        assert state["logits"] == []  # the sharded module is called after strip too, and has none
        assert state["refused"].startswith("the model is sharded by FSDP already: attach to the bare model, wrap it")
    for rank in (0, 1):
        losses = [torch.load(trained / f"{kind}-{rank}.pt")["losses"] for kind in KINDS]
        assert losses[1] == pytest.approx(losses[0], rel=1e-5)
        assert losses[2] == pytest.approx(losses[0], rel=1e-5)
    assert [state["hooks"] for state in (first, *others)] == [0, 0, 0]


@pytest.mark.slow
def test_a_ratio_of_gradients_is_that_of_all_ranks(trained: Path) -> None:
    first, second = (torch.load(trained / f"strengths-{rank}.pt") for rank in (0, 1))
    assert first == second
    assert first == pytest.approx(_follow(None), rel=1e-4)
    assert len(set(first)) == 3


@pytest.mark.slow
def test_ranks_stay_equal_in_ddp(trained: Path) -> None:
    for activation in ("last", "all"):
        first, second = (torch.load(trained / f"{activation}-{rank}.pt") for rank in (0, 1))
        for part in ("model", "branches"):
            assert all(torch.equal(first[part][name], second[part][name]) for name in first[part])
        fresh = attach(mlp(), rows(), CLASSES, at=AT, head=Parallel(3, activation=activation)).state_dict()
        moved = [name for name in fresh if not torch.equal(fresh[name], first["branches"][name])]
        assert moved == [name for name in fresh if not name.endswith("idle")]
        drift, wrapped = first["refused"]
        assert "the branches would drift apart between ranks" in drift
        assert "attach to the bare model, before DDP" in wrapped
