"""Strip: what leaves, what stays, when it is refused."""

import copy
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from branch_zoo import CASES, CLASSES, Case, attached, build, hooks_in, mlp, rows, targets
from torch import Tensor, nn
from torch.ao import quantization
from torch.optim.optimizer import _global_optimizer_post_hooks as hooks

from asymtrain.branches import Branches, Parallel, WithBranches, attach
from asymtrain.branches._capture import LayerHook
from asymtrain.errors import UsageError, UsageWarning

AT = ["1", "3"]


def step(model: nn.Module, branches: Branches | None, optimizer: torch.optim.Optimizer) -> None:
    loss = F.cross_entropy(model(rows()), targets())
    if branches is not None:
        loss = loss + branches.loss(targets())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


OPTIMIZERS = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=1e-3),
    "adamw_foreach": lambda groups: torch.optim.AdamW(groups, lr=1e-3, foreach=True),
    "adamw_fused": lambda groups: torch.optim.AdamW(groups, lr=1e-3, fused=True),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=1e-3, momentum=0.9),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=1e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizer_forgets_the_branches(name: str) -> None:
    """After strip the optimizer is, bit for bit, one that holds the model alone."""
    model, _, branches = attached(mlp().eval())
    optimizer = OPTIMIZERS[name]([*model.parameters(), *branches.parameters()])
    for _ in range(3):
        step(model, branches, optimizer)
    assert len(optimizer.state) == len([*model.parameters()]) + 4  # a weight and a bias of each layer
    branches.strip(optimizer)
    assert set(optimizer.state) == set(model.parameters())
    assert [id(p) for group in optimizer.param_groups for p in group["params"]] == [id(p) for p in model.parameters()]

    alone = copy.deepcopy(model)
    other = OPTIMIZERS[name](alone.parameters())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # load_state_dict itself shares tensors
    torch.manual_seed(1)
    step(model, None, optimizer)
    torch.manual_seed(1)
    step(alone, None, other)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), alone.parameters(), strict=True))


def test_groups_names_and_schedulers_stay_in_step() -> None:
    model, _, branches = attached()
    named = [(f"aux.{name}", parameter) for name, parameter in branches.named_parameters()]
    optimizer = torch.optim.AdamW([{"params": [*model.named_parameters()]}, {"params": named, "lr": 0.1}])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    step(model, branches, optimizer)
    scheduler.step()
    branches.strip(optimizer)
    assert [group["param_names"] for group in optimizer.param_groups] == [[n for n, _ in model.named_parameters()], []]
    step(model, None, optimizer)
    scheduler.step()


def test_lbfgs_forgets_the_branches_too() -> None:
    """It keeps a list, a count and flat vectors of its own; after strip it is one that begins with the model alone."""
    model, x, branches = attached(mlp().eval())
    optimizer = torch.optim.LBFGS([*branches.parameters(), *model.parameters()], lr=0.1, max_iter=3)

    def closure_of(one: nn.Module, own: Branches | None, optimizer: torch.optim.Optimizer) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(one(x), targets()) + (0 if own is None else own.loss(targets()))
            loss.backward()
            return loss

        return closure

    for _ in range(2):
        optimizer.step(closure_of(model, branches, optimizer))
    branches.strip(optimizer)
    assert not {id(p) for p in optimizer._params} & {id(p) for p in branches.parameters()}
    alone = copy.deepcopy(model)
    other = torch.optim.LBFGS(alone.parameters(), lr=0.1, max_iter=3)
    for _ in range(2):
        optimizer.step(closure_of(model, None, optimizer))
        other.step(closure_of(alone, None, other))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), alone.parameters(), strict=True))


def test_weights_that_no_optimizer_has_are_noticed() -> None:
    model, x = mlp(), rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    branches = attach(model, x, CLASSES, at=AT)
    step(model, branches, optimizer)
    with pytest.warns(UserWarning, match=r"the optimizer given to strip never had the branches' weights: give it \["):
        branches.strip(optimizer)
    assert branches.stripped
    branches = attach(model, x, CLASSES, at=AT)
    step(model, branches, optimizer)
    with pytest.warns(UserWarning, match=r"have gradients and no optimizer changes them: give it \["):
        branches.strip()


def test_weights_that_no_optimizer_has_are_noticed_soon_and_once() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    branches = attach(model, rows(), CLASSES, at=AT)
    for _ in range(99):
        step(model, branches, optimizer)
    with pytest.warns(UserWarning, match="^after 100 steps the branches' weights have gradients and no optimizer"):
        step(model, branches, optimizer)
    step(model, branches, optimizer)  # tests turn a warning into an error
    branches.disconnect()
    branches = attach(model, rows(), CLASSES, at=AT)
    own = torch.optim.SGD(branches.parameters(), lr=1e-3)
    for _ in range(100):
        step(model, branches, optimizer)
        own.step()
    branches.strip((optimizer, own))
    branches = attach(model, rows(), CLASSES, at=AT).requires_grad_(False)
    for _ in range(100):
        step(model, branches, optimizer)
    branches.strip()


def test_weights_that_are_trained_or_meant_to_rest_are_not_noticed() -> None:
    model, x = mlp(), rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    branches = attach(model, x, CLASSES, at=AT).requires_grad_(False)
    step(model, branches, optimizer)
    branches.strip(optimizer)
    branches = attach(model, x, CLASSES, at=AT)
    own = torch.optim.SGD(branches.parameters(), lr=0.1)
    step(model, branches, optimizer)
    own.step()
    branches.strip()
    branches = attach(model, x, CLASSES, at=AT)
    model(x)
    branches.loss(targets()).backward()  # looked at, without a step of any optimizer
    branches.strip()


def both(model: nn.Module, branches: Branches) -> torch.optim.Optimizer:
    return torch.optim.SGD([*model.parameters(), *branches.parameters()], lr=0.1)


@pytest.mark.parametrize("end", [Branches.strip, lambda branches: branches.__exit__(None)], ids=["strip", "block"])
def test_weights_that_stay_in_an_optimizer_are_noticed(end: Callable[[Branches], None]) -> None:
    model, x, branches = attached()
    optimizer = both(model, branches)
    step(model, branches, optimizer)
    with pytest.warns(UsageWarning, match=r"an optimizer has the weights .*strip\(optimizer\)") as seen:
        end(branches)
    assert len(seen) == 1
    assert not hooks_in(model)
    branches = attach(model, x, CLASSES, at=AT)
    given, other = torch.optim.SGD(branches.parameters(), lr=0.1), both(model, branches)
    step(model, branches, other)
    given.step()
    with pytest.warns(UsageWarning, match="an optimizer has the weights"):
        branches.strip(given)


def test_a_loss_that_was_never_asked_for_is_noticed() -> None:
    model, x, branches = attached()
    optimizer = both(model, branches)
    step(model, None, optimizer)
    branches.accuracies(targets())
    with pytest.warns(UsageWarning, match=r"branches\.loss never called.* add branches\.loss") as seen:
        branches.strip(optimizer)
    assert len(seen) == 1
    branches = attach(model, x, CLASSES, at=AT)
    wrapped = WithBranches(model, branches)
    optimizer = both(model, branches)
    F.cross_entropy(wrapped(x)[0], targets()).backward()
    optimizer.step()
    with pytest.warns(UsageWarning, match=r"branches\.loss never called"):
        branches.strip(optimizer)


@pytest.mark.parametrize(
    "use", ["loss", "losses", "logits", "returned", "own loss", "weight 0", "no step", "no weights"]
)
def test_branches_that_are_used_or_not_trained_are_not_noticed(use: str) -> None:
    """A loss of one's own, a weight of 0, a model that is only looked at or whose weights are loaded."""
    model, x, branches = attached()
    optimizer = both(model, branches)
    output, logits = WithBranches(model, branches)(x) if use in ("returned", "own loss") else (model(x), {})
    main = F.cross_entropy(output, targets())
    auxiliary = {
        "loss": lambda: branches.loss(targets()),
        "losses": lambda: sum(branches.losses(targets()).values()),
        "logits": lambda: sum(each.square().mean() for each in branches.logits().values()),
        "returned": lambda: branches.loss(targets(), logits=logits),
        "own loss": lambda: sum(each.square().mean() for each in logits.values()),
        "weight 0": lambda: 0 * branches.loss(targets()).detach(),
    }.get(use, lambda: 0.0)()
    (main + auxiliary).backward()
    if use == "no step":
        model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
    elif use == "no weights":
        torch.optim.SGD(mlp().parameters(), lr=0.1).step()
    else:
        optimizer.step()
    branches.strip(optimizer)


def test_optimizers_are_watched_until_strip_and_not_kept_alive() -> None:
    gc.collect()
    before, model, x = len(hooks), mlp(), rows()
    branches = attach(model, x, CLASSES, at=AT)
    optimizer = both(model, branches)
    step(model, branches, optimizer)
    assert len(hooks) == before + 1
    watch = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert watch() is None
    branches.strip()
    assert len(hooks) == before
    attach(model, x, CLASSES, at=AT)  # not kept
    gc.collect()
    assert len(hooks) == before
    assert not hooks_in(model)


@pytest.mark.parametrize("name", ["weights", "alpha", "activation", "mask", "strength"])
def test_attributes_that_would_be_ignored_are_refused(name: str) -> None:
    branches = attach(mlp(), rows(), CLASSES, at=AT)
    with pytest.raises(UsageError, match=rf"'{name}' cannot be set .*attach\(\.\.\., {name}="):
        setattr(branches, name, {"1": 0.0})
    branches.train().eval().requires_grad_(False).to(torch.float64)
    branches._mark_of_a_tool = 1
    copy.deepcopy(branches)._mark_of_a_tool = 2


def test_several_optimizers_at_once() -> None:
    model, _, branches = attached()
    first = torch.optim.SGD([*model.parameters(), *branches.parameters()], lr=0.1)
    second = torch.optim.SGD(branches.parameters(), lr=0.1)
    branches.strip([first, second])
    assert len(first.param_groups[0]["params"]) == len([*model.parameters()])
    assert second.param_groups[0]["params"] == []


def test_what_is_no_optimizer_is_refused_and_nothing_is_half_done() -> None:
    model, _, branches = attached()
    with pytest.raises(UsageError, match="strip takes the optimizer, or a list of optimizers"):
        branches.strip(model)
    assert hooks_in(model)
    branches.strip()


@pytest.mark.parametrize("moment", ["before a forward", "after a forward", "after a loss", "after backward"])
def test_at_any_moment(moment: str) -> None:
    model, x, branches = attached()
    optimizer = torch.optim.AdamW([*model.parameters(), *branches.parameters()])
    loss = None
    if moment != "before a forward":
        output = model(x)
        if moment != "after a forward":
            loss = F.cross_entropy(output, targets()) + branches.loss(targets())
            if moment == "after backward":
                loss.backward()
    branches.strip(optimizer)
    if moment == "after a loss":
        loss.backward()  # a loss in hand can still be used
        optimizer.step()
    step(model, None, optimizer)
    assert not hooks_in(model)


def test_a_second_strip_is_refused_and_leaving_the_block_is_not() -> None:
    model, x = mlp(), rows()
    with attach(model, x, CLASSES, at=AT) as branches:
        model(x)
        branches.strip()
        with pytest.raises(UsageError, match="stripped already: attach again"):
            branches.strip()
    assert branches.stripped
    with pytest.raises(UsageError, match="stripped already"):
        branches.strip()


def test_the_block_strips_also_after_an_error() -> None:
    model, _, branches = attached()
    optimizer = both(model, branches)
    step(model, branches, optimizer)
    with pytest.raises(KeyError), branches:
        raise KeyError
    assert not hooks_in(model)


def test_stripped_branches_keep_their_weights_and_nothing_else() -> None:
    model, x, branches = attached(head=Parallel(2))
    model(x)
    state = branches.state_dict()
    branches.strip()
    assert branches.state_dict().keys() == state.keys()
    for ask in (branches.logits, lambda: branches.loss(targets()), lambda: branches.accuracies(targets())):
        with pytest.raises(UsageError, match="these branches are stripped: attach again"):
            ask()
    again = attach(model, x, CLASSES, at=AT, head=Parallel(2), seed=1)
    again.load_state_dict(state, strict=True)
    assert torch.equal(again.head("1").weights, branches.head("1").weights)


def test_others_hooks_stay() -> None:
    model, x = mlp(), rows()
    calls: list[str] = []
    model.register_forward_hook(lambda *_: calls.append("root"))
    model[1].register_forward_hook(lambda *_: calls.append("layer"))
    branches = attach(model, x, CLASSES, at=AT)
    branches.strip()
    calls.clear()
    model(x)
    assert calls == ["layer", "root"]


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Please use quant_min:UserWarning")
def test_hooks_that_a_tool_carries_to_another_module_leave_too() -> None:
    """prepare_qat replaces layers, and registers the hooks of each on the layer in its place."""
    model, x, branches = attached(mlp().train(), at=["0", "1"])
    layer = model[0]
    model.qconfig = quantization.get_default_qat_qconfig("qnnpack")
    quantization.prepare_qat(model, inplace=True)
    assert model[0] is not layer
    optimizer = both(model, branches)
    before = branches.head("0").live.clone()
    step(model, branches, optimizer)
    assert not torch.equal(branches.head("0").live, before)
    other = attach(model, x, CLASSES, at="1")
    branches.strip(optimizer)
    assert [hook.forward for hook in hooks_in(model) if isinstance(hook, LayerHook)] == [other._capture.forward]
    other.strip()
    assert not [hook for hook in hooks_in(model) if type(hook).__module__.startswith("asymtrain")]


def test_branches_do_not_keep_the_model_alive() -> None:
    model, _, branches = attached()
    assert not any(isinstance(part, nn.Sequential) for part in branches.modules())
    watch = weakref.ref(model)
    del model
    gc.collect()
    assert watch() is None
    branches.strip()


def nodes(model: nn.Module, sample: object) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """The exported graph, node by node, with the names of what goes in and out."""
    keywords = sample if isinstance(sample, dict) else None
    arguments = () if keywords else sample if isinstance(sample, tuple) else (sample,)
    program = torch.onnx.export(model.eval(), arguments, kwargs=keywords, dynamo=True, verbose=False)
    return [(node.op_type, tuple(node.input), tuple(node.output)) for node in program.model_proto.graph.node]


PROVEN = [case for case in CASES if case.name in ("cnn", "tied", "torch_transformer", "hf_vit", "hf_bert")]


LONG = ("cnn", "torch_transformer", "hf_vit", "hf_bert")  # to export: seconds each


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] if case.name in LONG else [], id=case.name) for case in PROVEN],
)
def test_the_onnx_graph_is_that_of_a_model_that_never_had_branches(case: Case) -> None:
    never, sample = build(case)
    expected = nodes(never, sample)
    model, _ = build(case)
    branches = attach(model, sample, CLASSES, at=case.at, head=Parallel(3, activation="all"), **case.options)
    model(**sample) if isinstance(sample, dict) else model(*sample) if isinstance(sample, tuple) else model(sample)
    branches.loss(targets()).backward()
    branches.strip()
    assert nodes(model, sample) == expected
    assert len(expected) > 3
