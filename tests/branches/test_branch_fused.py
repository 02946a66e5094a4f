"""The loss in one node of autograd against the general way: values, gradients, second derivatives, and who gets it."""

from collections import Counter
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from branch_zoo import CASES, CLASSES, Case, attached, build, call, mlp, rows, targets
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

from asymtrain.branches import Branches, Linear, Parallel, _core, _fused, attach
from asymtrain.errors import UsageError
from asymtrain.objectives import Sigmoid, find_objective

SOFT = torch.softmax(torch.arange(15.0).view(3, CLASSES) % 4, 1)
TARGETS = {"indices": targets(), "ignored": torch.tensor([1, -100, 3]), "values": SOFT}
OPTIONS = {
    "sigmoid": {},
    "class sum": {"objective": Sigmoid("sum")},
    "softmax": {"objective": "softmax"},
    "bias": {"head": Linear(torch.linspace(-1, 1, CLASSES))},
    "mse": {"objective": "mse"},
}


def both_ways(branches: Branches, loss_of: object, inputs: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The loss and its gradients: by one node, and by the sum of the layers' losses."""
    answers = []
    for general in (False, True):
        patch = mock.patch.object(_core.Branches, "_fused_loss", (lambda *_: None) if general else Branches._fused_loss)
        with patch:
            loss = loss_of()
        answers.append([loss.detach(), *torch.autograd.grad(loss, inputs, allow_unused=True)])
    return answers[0], answers[1]


def assert_general_numbers(branches: Branches, loss_of: object, inputs: list[Tensor]) -> None:
    """In two forwards, of which the second is held from its beginning."""
    for _ in range(2):
        for mine, general in zip(*both_ways(branches, loss_of, inputs), strict=True):
            assert (mine is None) == (general is None)
            if mine is not None:
                torch.testing.assert_close(mine, general, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_node_gives_the_general_numbers(case: Case, kind: str, options: dict[str, object]) -> None:
    model, sample = build(case)
    model.double()
    sample = torch.utils._pytree.tree_map(lambda v: v.double() if v.is_floating_point() else v, sample)
    weights = {case.layers[0]: 0.5}
    branches = attach(
        model, sample, CLASSES, at=case.at, weights=weights, **{"head": Parallel(2), **case.options, **options}
    )
    inputs = [*branches.parameters(), *(p for p in model.parameters() if p.requires_grad)]

    def loss() -> Tensor:
        call(model.eval(), sample)
        return branches.loss(TARGETS[kind])

    assert_general_numbers(branches, loss, inputs)


def test_bfloat16_features(bfloat16_on_any_cpu: None) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1)).bfloat16(), torch.randn(3, 3, 8, 8)
    branches = attach(model, x.bfloat16(), CLASSES, at="*", layout="BCHW")

    def loss() -> Tensor:
        model(x.bfloat16())
        return branches.loss(targets())

    mine, general = both_ways(branches, loss, [*branches.parameters(), *model.parameters()])
    for one, other in zip(mine, general, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one.float(), other.float(), rtol=2e-2, atol=1e-3)


def test_second_derivatives() -> None:
    model, x = mlp().double().eval(), rows().double()
    branches = attach(model, x, CLASSES, at=["1", "3"], head=Linear(torch.zeros(CLASSES)))
    weight = model[0].weight

    def curvature() -> Tensor:
        model(x)
        (gradient,) = torch.autograd.grad(branches.loss(targets()), weight, create_graph=True)
        return gradient.square().sum()

    mine, general = both_ways(branches, curvature, [weight, branches.head("1").live, branches.head("3").bias])
    assert all(torch.allclose(one, other) for one, other in zip(mine, general, strict=True))


def test_a_graph_that_is_kept_can_be_used_again() -> None:
    model, x, branches = attached(mlp().eval())
    model(x)
    loss = branches.loss(targets())
    first = torch.autograd.grad(loss, model[0].weight, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(loss, model[0].weight)[0])
    # What is asked after the loss is still there.
    assert torch.allclose(branches.combine(branches.losses(targets())), loss)
    with torch.no_grad():
        assert branches.accuracies(targets())


def test_targets_that_are_learnt_have_a_gradient() -> None:
    model, x, branches = attached(mlp().eval(), head="linear", preset="paper")
    teacher = torch.zeros(len(x), CLASSES, requires_grad=True)
    model(x)
    branches.loss(teacher.sigmoid()).backward()
    # The cross-entropy falls by the logit where its target rises; a sigmoid rises by a quarter at 0.
    expected = -0.25 * sum(branches.logits().values()) / teacher.numel()
    torch.testing.assert_close(teacher.grad, expected)


def test_huge_logits_stay_finite() -> None:
    model, x, branches = attached(mlp().eval(), 1e6 * rows())
    model(x)
    loss = branches.loss(targets())
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in branches.parameters())


def counted(loss: Tensor) -> int:
    """Nodes between a loss and the model's features."""
    names, todo = [], [loss.grad_fn]
    while todo:
        node = todo.pop()
        names.append(type(node).__name__)
        if not names[-1].startswith("_FusedLoss"):
            todo += [parent for parent, _ in node.next_functions if parent is not None]
    return sum(name.startswith("_FusedLoss") for name in names)


@pytest.mark.parametrize(
    ("options", "one_node"),
    [
        ({}, True),
        ({"head": Parallel(5)}, True),
        ({"objective": "dice"}, True),
        ({"head": Parallel(1, activation="all")}, False),
        ({"head": "mlp"}, False),
        ({"objective": F.cross_entropy}, False),
    ],
)
def test_which_branches_take_one_node(options: dict[str, object], one_node: bool) -> None:
    model, x, branches = attached(**options)
    model(x)
    assert counted(branches.loss(targets())) == one_node
    branches.double()  # not the model
    model(x)
    assert not counted(branches.loss(targets()))


class Doubling(nn.Module):
    """Changes what its layer gives in place, in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop, self.head = nn.Linear(7, 8), nn.Dropout(0.5, inplace=True), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.layer(x)))


def test_a_layer_that_works_in_place_in_training_alone() -> None:
    model, x = Doubling(), rows()
    branches = attach(model, x, CLASSES, at="layer", head="linear")
    for training in (False, True, True):
        model.train(training)
        model(x)
        expected = model.layer(x) @ branches.head("layer").live.T
        assert torch.allclose(branches.loss(targets()), branches.loss(targets(), logits={"layer": expected}))


def test_a_change_in_place_that_comes_late_is_told() -> None:
    model, x = nn.Sequential(nn.Linear(7, 8), nn.Identity(), nn.Linear(8, CLASSES)), rows()
    branches = attach(model, x, CLASSES, at="0")
    model(x)
    branches.loss(targets()).backward()
    model[1] = nn.ReLU(inplace=True)
    model(x)
    with pytest.raises(UsageError, match="'0' gives a feature that the model changes in place afterwards"):
        branches.loss(targets())


class Operations(TorchDispatchMode):
    """Counts operations of torch by name, and copies from one device to another."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.moved = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.counts[function.name()] += 1
        if "copy" in function.name():
            self.moved += len({tensor.device for tensor in (*args, result) if isinstance(tensor, Tensor)}) > 1
        return result


class Chain(nn.Module):
    """A layer for each width, on rows or on tokens."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(a, b) for a, b in zip((7, *widths), widths, strict=False))
        self.head = nn.Linear(widths[-1], CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x if x.ndim == 2 else x.mean(1))


def on_meta(widths: tuple[int, ...], x: Tensor, **options: object) -> tuple[nn.Module, Branches, Tensor]:
    """A model without values: like one on a GPU, of which nothing may be read, but at once."""
    model = Chain(widths)
    branches = attach(model, x, CLASSES, at="blocks.*", layout="BD" if x.ndim == 2 else "BTD", **options)
    return model.to("meta"), branches.to("meta"), x.to("meta")


@pytest.mark.parametrize(
    ("widths", "x", "options", "of_loss", "of_backward"),
    [
        # Of four widths 4 products; of one width twelve means, and one product.
        ((16, 12, 8, 6), rows(), {"head": "linear", "strength": 4}, 24, 21),
        ((16, 12, 8, 6), rows(), {"head": "linear"}, 24, 21),
        ((16, 12, 8, 6), rows(), {}, 24, 27),
        ((8,) * 12, torch.randn(3, 5, 7), {"head": "linear"}, 35, 33),
        ((8,) * 12, torch.randn(3, 5, 7), {}, 38, 47),
    ],
    ids=["4 widths, whose shares are 1", "4 widths", "4 widths with biases", "12 means", "12 means with biases"],
)
def test_a_step_makes_few_calls(
    widths: tuple[int, ...], x: Tensor, options: dict[str, object], of_loss: int, of_backward: int
) -> None:
    """A strength costs none."""
    model, branches, x = on_meta(widths, x, **options)
    y = torch.zeros(3, dtype=torch.int64, device="meta")
    for _ in range(2):
        main = model(x).sum()
        with Operations() as loss:
            auxiliary = branches.loss(y)
        with Operations() as plain:
            main.backward()
        main = model(x).sum()
        auxiliary = branches.loss(y)
        with Operations() as both:
            (main + auxiliary).backward()
    assert loss.counts.total() <= of_loss, loss.counts
    assert (both.counts - plain.counts).total() <= of_backward, both.counts - plain.counts


@pytest.mark.parametrize(
    "options",
    [{}, {"weights": {"blocks.1": 0.5}}, {"head": Linear(torch.zeros(CLASSES))}, {"objective": "softmax"},
     {"head": Parallel(3, activation="all"), "weights": {"blocks.1": 0.5}}],
    ids=["sigmoid", "weights", "bias", "softmax", "all"],
)  # fmt: skip
def test_a_step_reads_nothing_from_its_device_and_copies_nothing_to_it(options: dict[str, object]) -> None:
    """What a captured CUDA graph needs; there is nothing to read on `meta`."""
    model, branches, x = on_meta((8, 8, 8, 6), rows(), **options)
    y = torch.zeros(3, dtype=torch.int64, device="meta")
    for _ in range(2):
        with Operations() as seen:
            (model(x).sum() + branches.loss(y)).backward()
    assert not seen.moved
    assert not seen.counts["aten::_local_scalar_dense"]


@pytest.mark.parametrize("pool", ["mean", "class_token"])
@pytest.mark.parametrize(
    ("widths", "groups"), [((8, 6), [(0,), (1,)]), ((7, 7, 7, 6), [(0, 1, 2), (3,)])], ids=["two", "four"]
)
def test_features_of_one_shape_share_a_product(widths: tuple[int, ...], groups: object, pool: str) -> None:
    model, x = Chain(widths).double(), torch.randn(3, 5, 7).double()
    branches = attach(model, x, CLASSES, at="blocks.*", pool=pool, layout="BTD", weights={"blocks.0": 0.5})

    def loss() -> Tensor:
        model(x)
        return branches.loss(targets())

    inputs = [*branches.parameters(), *model.blocks.parameters()]
    assert_general_numbers(branches, loss, inputs)
    model(x)
    assert counted(branches.loss(targets())) == 1
    assert {tuple(group.layers for group in plan.groups) for plan in branches._fuser.plans.values()} == {tuple(groups)}


@pytest.mark.parametrize("most", [0, 1, 64])
def test_batches_of_other_sizes_and_types(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept from step to step belongs to the shapes and types that it was made for."""
    monkeypatch.setattr(_fused, "_MOST_PLANS", most)
    model, x, branches = attached(mlp().eval())
    ignoring = attach(model, x, CLASSES, at=["1", "3"], objective=Sigmoid(ignore_index=int(targets()[0])))

    def check(batch: Tensor, labels: Tensor, branches: Branches = branches) -> None:
        model(batch)
        with torch.no_grad():
            expected = branches.combine(branches.losses(labels))
        assert torch.allclose(branches.loss(labels), expected)

    for size in (3, 2, 3, 1):
        check(x[:size], targets()[:size])
        check(x[:size], targets()[:size], ignoring)
        check(x[:size], targets()[:size].int())
    ignoring.strip()
    model.double(), branches.double()
    check(x.double(), targets())
    model(x.double())
    with pytest.raises(UsageError, match="targets must lie in 0"):
        branches.loss(targets() + CLASSES)
    with pytest.raises(UsageError, match="targets must have shape"):
        branches.loss(targets()[:2])


@pytest.mark.parametrize("objective", ["sigmoid", "softmax", "dice"])
def test_the_first_and_the_last_class_and_none_beyond(objective: str) -> None:
    model, x = mlp().eval(), rows()
    ignored = (-100, 0, CLASSES - 1)
    sets = {
        index: attach(model, x, CLASSES, at=["1", "3"], objective=find_objective(objective, ignore_index=index))
        for index in ignored
    }
    branches = sets[-100]

    def loss(*labels: int, ignore_index: int = -100) -> Tensor:
        model(x)
        y = torch.tensor(labels)
        with torch.no_grad():
            expected = sets[ignore_index].combine(sets[ignore_index].losses(y))
        fused = sets[ignore_index].loss(y)
        torch.testing.assert_close(fused.detach(), expected)
        return fused

    assert loss(0, 1, CLASSES - 1).isfinite()
    for index in (0, CLASSES - 1):
        assert loss(1, index, 2, ignore_index=index) != loss(1, index, 2)
    for wrong in (-1, CLASSES):
        model(x)
        with pytest.raises(UsageError, match="targets must lie in 0"):
            branches.loss(torch.tensor([0, wrong, 1]))


class Doubled(nn.Module):
    def forward(self, bias: Tensor) -> Tensor:
        return 2 * bias


def test_weights_that_are_computed_from_others() -> None:
    model, x, branches = attached(mlp().eval(), head=Linear(torch.linspace(-1, 1, CLASSES)))
    model(x)
    before = branches.loss(targets())
    for layer in ("1", "3"):
        parametrize.register_parametrization(branches.head(layer), "bias", Doubled())
    model(x)
    after = branches.loss(targets())
    assert torch.allclose(after, branches.combine(branches.losses(targets())))
    assert not torch.allclose(after, before)


@pytest.mark.gpu
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("objective", ["sigmoid", "softmax"])
def test_one_node_on_a_gpu(objective: str, autocast: bool) -> None:
    layers = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Conv2d(16, 8, 3)]
    model, x = nn.Sequential(*layers).cuda(), torch.randn(32, 3, 12, 12, device="cuda")
    branches = attach(model, x, CLASSES, at=["1", "2", "3"], objective=objective, layout="BCHW")
    y = torch.randint(CLASSES, (32,), device="cuda")
    y[:4] = -100

    def loss() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            model(x)
            return branches.loss(y)

    for _ in range(2):
        mine, general = both_ways(branches, loss, [*branches.parameters(), *model.parameters()])
        for one, other in zip(mine, general, strict=True):
            torch.testing.assert_close(one, other, rtol=3e-2 if autocast else 1e-4, atol=1e-3 if autocast else 1e-6)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True")
@pytest.mark.parametrize(
    "options",
    [{}, {"weights": {"blocks.1": 0.5}}, {"head": Parallel(3, activation="all")}, {"head": "mlp"},
     {"objective": "softmax"}],
)  # fmt: skip
@pytest.mark.parametrize("tokens", [False, True])
def test_a_captured_step_trains_as_the_eager_one(tokens: bool, options: dict[str, object]) -> None:
    """Forward, loss, backward and optimizer as one CUDA graph, replayed on batches that are copied in."""
    shape = (16, 5, 7) if tokens else (16, 7)
    batches = [(torch.randn(shape), torch.randint(CLASSES, (16,))) for _ in range(8)]
    weights = []
    for capture in (False, True):
        torch.manual_seed(0)
        model = Chain((8, 8, 8, 6)).cuda()
        x, y = (tensor.cuda() for tensor in batches[0])
        branches = attach(model, x, CLASSES, at="blocks.*", layout="BTD" if tokens else "BD", **options)
        parameters = [*model.parameters(), *branches.parameters()]
        optimizer = torch.optim.AdamW(parameters, lr=1e-2, capturable=True)
        total = torch.zeros((), device="cuda")

        def step() -> None:
            loss = F.cross_entropy(model(x), y) + 0.3 * branches.loss(y)  # noqa: B023
            optimizer.zero_grad()  # noqa: B023
            loss.backward()
            optimizer.step()  # noqa: B023
            total.copy_(loss.detach())  # noqa: B023

        side, graph, losses = torch.cuda.Stream(), torch.cuda.CUDAGraph(), []
        for index, batch in enumerate(batches):
            x.copy_(batch[0])
            y.copy_(batch[1])
            if capture and index >= 3:
                if index == 3:
                    with torch.cuda.graph(graph):
                        step()
                graph.replay()
            else:
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    step()
                torch.cuda.current_stream().wait_stream(side)
            losses.append(total.item())
        weights.append(([parameter.detach().clone() for parameter in parameters], losses))
        # What is asked after a replay is about the batch that was copied in for it.
        accuracies = branches.accuracies(y)
        weights[-1][1].extend(value.item() for value in accuracies.values())
        branches.strip(optimizer)
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)
