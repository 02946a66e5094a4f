"""The fused loss as kernels of our own: where they read and write, who gets them, and their numbers against torch's."""

import ast
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from branch_zoo import CLASSES, mlp, rows, targets
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from asymtrain.branches import Branches, Linear, Parallel, _fused, attach
from asymtrain.branches._pooling import Pooled, memory_layout
from asymtrain.objectives import find_objective

LAST = torch.channels_last
FEATURES = {
    "rows": (torch.randn(3, 7), Pooled()),
    "rows of a larger tensor": (torch.randn(3, 4, 7)[:, 1], Pooled()),
    "tokens": (torch.randn(3, 5, 7), Pooled((1,), None, 0, 2)),
    "tokens first": (torch.randn(5, 3, 7), Pooled((0,), None, 1, 2)),
    "maps": (torch.randn(3, 7, 4, 5), Pooled((2, 3), None, 0, 1)),
    "maps, channels last": (torch.randn(3, 7, 4, 5).contiguous(memory_format=LAST), Pooled((2, 3), None, 0, 1)),
    "one position": (torch.randn(3, 7, 1, 1), Pooled((2, 3), None, 0, 1)),
    "class tokens first": (torch.randn(5, 3, 7).select(0, 0), Pooled()),
}


def test_the_arguments_that_kernels_do_not_specialise_are_theirs() -> None:
    """By reading them: Triton looks the names up at the first launch on a GPU, long after a rename."""
    tree = ast.parse((Path(_fused.__file__).parent / "_kernels.py").read_text())
    kernels = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    arguments = {argument.arg for kernel in kernels for argument in kernel.args.args}
    (numbers,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_NUMBERS"
    )
    assert kernels
    assert set(numbers) <= arguments


@pytest.mark.parametrize(("feature", "pooled"), FEATURES.values(), ids=FEATURES)
def test_where_rows_and_gradients_lie(feature: Tensor, pooled: Pooled) -> None:
    layer = memory_layout(feature, pooled)
    assert layer is not None
    sizes = (3, layer.width, layer.positions)
    read = feature.as_strided(sizes, layer.strides, feature.storage_offset()).mean(2)
    torch.testing.assert_close(read, _fused._row(feature, pooled.axes, torch.float32))
    # A gradient by rows, written where the kernel writes it, is the gradient by the feature.
    leaf = feature.clone().requires_grad_()
    _fused._row(leaf, pooled.axes, torch.float32).backward(read)
    buffer = torch.zeros(layer.size)
    buffer.as_strided((3, layer.width), (layer.width, 1)).copy_(read / layer.positions)
    torch.testing.assert_close(buffer.as_strided(*layer.gradient), leaf.grad)


def test_positions_that_lie_apart_have_no_layer() -> None:
    maps = torch.randn(3, 7, 8, 5)
    assert memory_layout(maps[:, :, ::2], Pooled((2, 3), None, 0, 1)) is None
    assert memory_layout(maps[:, :, :0], Pooled((2, 3), None, 0, 1)) is None
    negatives = (
        torch.randn(3, 7, dtype=torch.complex64).conj().imag
    )  # a view whose numbers are read with the other sign
    assert memory_layout(negatives, Pooled()) is None


def test_where_kernels_cannot_be_had_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without Triton, or with a Triton that has no GPU to compile for."""
    model, x = mlp().eval(), rows()
    branches = attach(model, x, CLASSES, at=["1", "3"])
    monkeypatch.setattr(_fused, "has_kernels", lambda device: True)
    model(x)
    loss = branches.loss(targets())
    assert [plan.launches for plan in branches._fuser.plans.values()] == [None]
    torch.testing.assert_close(loss, branches.combine(branches.losses(targets())))


@pytest.mark.parametrize(
    ("options", "by_index", "asked"),
    [
        ({}, True, True),
        ({"objective": "softmax"}, True, True),
        ({"preset": "paper"}, True, True),
        ({"objective": "softmax", "head": Parallel(3, Linear("prior"))}, True, True),
        ({"objective": "dice"}, True, False),
        ({"objective": "softmax"}, False, False),
        ({"preset": "paper"}, False, False),
    ],
)
def test_which_branches_ask_for_kernels(
    options: dict[str, object], by_index: bool, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, calls = mlp().eval(), rows(), []
    branches = attach(model, x, CLASSES, at=["1", "3"], **options)
    monkeypatch.setattr(_fused, "has_kernels", lambda device: True)
    monkeypatch.setattr(_fused, "_launches", lambda *rest: calls.append(rest))
    model(x)
    branches.loss(targets() if by_index else torch.full((3, CLASSES), 1 / CLASSES))
    assert len(calls) == asked


@pytest.mark.parametrize("objective", ["sigmoid", "softmax"])
def test_a_softmax_of_many_classes_is_left_to_torch(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, calls = mlp().eval(), rows(), []
    branches = attach(model, x, CLASSES, at=["1", "3"], objective=objective)
    monkeypatch.setattr(_fused, "has_kernels", lambda device: True)
    monkeypatch.setattr(_fused, "_launches", lambda *rest: calls.append(rest))
    monkeypatch.setattr(_fused, "_MOST_CLASSES", CLASSES - 1)
    model(x)
    branches.loss(targets())
    assert len(calls) == (objective == "sigmoid")


def give(block: nn.Module, dtype: torch.dtype, takes: torch.dtype = torch.float32) -> None:
    """Let a block take one type and give another, as autocast has it."""
    block.register_forward_pre_hook(lambda block, given: (given[0].to(takes),))
    block.register_forward_hook(lambda block, given, output: output.to(dtype))


@pytest.mark.parametrize(
    ("dtypes", "compiled"),
    [
        (["float32", "bfloat16", "bfloat16"], True),
        (["float16", "float32", "float16"], True),
        (["float32", "bfloat16", "float16"], False),
        (["float64", "float32", "float32"], False),
    ],
)
def test_which_types_have_kernels(dtypes: list[str], compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, calls = mlp().eval(), rows(), []
    for block, dtype in zip([model[0], model[2], model[5]], dtypes, strict=True):
        give(block, getattr(torch, dtype))
    branches = attach(model, x, CLASSES, at=["0", "2", "5"])
    monkeypatch.setattr(_fused, "has_kernels", lambda device: True)
    kernels = SimpleNamespace(Launches=lambda *given: calls.append(given))
    monkeypatch.setattr(_fused, "import_module", lambda name: kernels)
    model(x)
    branches.loss(targets())
    assert len(calls) == compiled


class Chain(nn.Module):
    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(a, b) for a, b in zip((7, *widths), widths, strict=False))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Maps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Conv2d(3, 16, 3), nn.Conv2d(16, 40, 3), nn.Flatten(), nn.Linear(40 * 64, 9)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


ROWS, TOKENS, MAPS = (64, 7), (64, 5, 7), (64, 3, 12, 12)
CASES = {
    "rows": (Chain, (512, 256, 128, 70), ROWS, {"layout": "BD"}),
    "weighted": (Chain, (96, 70), ROWS, {"layout": "BD", "weights": {"blocks.1": 0.5}, "reduction": "sum"}),
    "one layer": (Chain, (20,), ROWS, {"layout": "BD"}),
    "odd batch": (Chain, (64, 70, 3), (37, 7), {"layout": "BD"}),
    "means": (Chain, (64, 64, 70), TOKENS, {"layout": "BTD"}),
    "class tokens": (Chain, (64, 64, 70), TOKENS, {"layout": "BTD", "pool": "class_token"}),
    "both": (Chain, (64, 64), TOKENS, {"layout": "BTD", "pool": {"blocks.0": "class_token"}}),
    "maps": (Maps, (), MAPS, {"at": ["blocks.0", "blocks.1", "blocks.3"]}),
    "16 layers": (Chain, (96,) * 16, TOKENS, {"layout": "BTD", "classes": 1000}),  # so many take larger tiles
    "two classes": (Chain, (64, 70), (37, 7), {"layout": "BD", "classes": 2}),
    "300 classes": (Chain, (64, 70), (37, 7), {"layout": "BD", "classes": 300, "parallel": 3}),
}
FORMS = ["sigmoid", "softmax", "sigmoid, bias", "softmax, bias"]


def built(
    case: str, form: str = "sigmoid", dtype: torch.dtype = torch.float32, other: torch.dtype | None = None
) -> tuple[nn.Module, Branches, Tensor, Tensor]:
    """A case whose features have one type, or of every second layer another."""
    torch.manual_seed(0)
    kind, widths, shape, options = CASES[case]
    model, x = (kind(widths) if widths else kind()).cuda().to(dtype), torch.randn(shape, device="cuda", dtype=dtype)
    for number, block in enumerate(model.blocks if other else ()):
        give(block, other if number % 2 else dtype, dtype)
    classes = options.get("classes", 100)
    objective, *bias = form.split(", ")
    options = dict(options)
    head = Linear(torch.linspace(-4, 1, classes) if bias else None)
    chosen = find_objective(objective, class_reduction=options.pop("reduction", "mean"))
    head = Parallel(options.pop("parallel", 1), head)
    branches = attach(
        model, **{"at": "blocks.*", "sample": x, "classes": classes, "objective": chosen, "head": head, **options}
    )
    y = torch.randint(classes, shape[:1], device="cuda")
    y[1] = -100
    return model, branches, x, y


def loss_of(
    model: nn.Module, branches: Branches, x: Tensor, y: Tensor, kernels: bool, autocast: bool = False
) -> Tensor:
    """By kernels or by torch's operations."""
    branches._fuser.plans.clear()
    with pytest.MonkeyPatch.context() as patch:
        if not kernels:
            patch.setattr(_fused, "has_kernels", lambda device: False)
        for _ in range(2):  # the second forward is held from its beginning
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                model(x)
                loss = branches.loss(y)
    assert all((plan.launches is not None) == kernels for plan in branches._fuser.plans.values())
    return loss


def is_launched(loss: Tensor) -> bool:
    """Whether kernels of our own have made it."""
    return loss.grad_fn.name() == "_LaunchedLossBackward"


def numbers(model: nn.Module, branches: Branches, *rest: Tensor, **options: bool) -> list[Tensor]:
    """The loss and all gradients."""
    loss = loss_of(model, branches, *rest, **options)
    return [loss, *torch.autograd.grad(3 * loss, [*branches.parameters(), *model.parameters()], allow_unused=True)]


def assert_alike(one: list[Tensor], other: list[Tensor], tolerance: float) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            scale = theirs.abs().max().item()
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_kernels_give_what_torch_gives(case: str, form: str) -> None:
    made = built(case, form)
    assert_alike(numbers(*made, kernels=True), numbers(*made, kernels=False), 1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["bfloat16", "float16", "autocast", "tf32"])
@pytest.mark.parametrize("form", ["sigmoid", "softmax, bias"])
@pytest.mark.parametrize("case", ["rows", "means", "class tokens"])
def test_kernels_in_other_precisions(case: str, form: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "tf32":
        monkeypatch.setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32")
    made = built(case, form, getattr(torch, kind) if "float16" in kind else torch.float32)
    by_kernels, by_torch = (numbers(*made, kernels=on, autocast=kind == "autocast") for on in (True, False))
    assert_alike(by_kernels, by_torch, 2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.float16, torch.float32)])
@pytest.mark.parametrize("form", ["sigmoid", "softmax, bias"])
@pytest.mark.parametrize("case", ["rows", "means", "class tokens", "both", "maps"])
def test_kernels_on_features_of_two_types(case: str, form: str, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    made = built(case, form, *dtypes)
    assert_alike(numbers(*made, kernels=True), numbers(*made, kernels=False), 2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["sigmoid", "softmax, bias"])
@pytest.mark.parametrize("case", ["rows", "16 layers"])
def test_kernels_give_the_same_twice(case: str, form: str) -> None:
    made = built(case, form)
    once, twice = numbers(*made, kernels=True), numbers(*made, kernels=True)
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True) if a is not None)


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["sigmoid", "softmax, bias"])
def test_second_derivatives_behind_kernels(form: str) -> None:
    model, branches, x, y = built("means", form)
    weight, answers = model.blocks[0].weight, []
    for kernels in (True, False):
        loss = loss_of(model, branches, x, y, kernels=kernels)
        (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
        answers.append(list(torch.autograd.grad(gradient.square().sum(), [weight, *branches.parameters()])))
    assert_alike(*answers, 1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["sigmoid", "softmax, bias"])
def test_targets_on_a_gpu_that_are_no_classes_make_the_loss_nan(form: str) -> None:
    model, branches, x, y = built("one layer", form)
    model(x)
    assert branches.loss(torch.where(y == y[0], 100, y)).isnan()
    model(x)
    assert branches.loss(torch.full_like(y, -100)) == 0
    # Any stride and any integer type
    model(x)
    wide = torch.stack([y, y + 1], 1)
    assert branches.loss(wide[:, 0].int()) == branches.loss(wide[:, 0]) == branches.loss(y)


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["sigmoid", "softmax, bias"])
def test_large_logits_are_exact_and_what_is_no_number_shows(form: str) -> None:
    model, branches, x, y = built("300 classes", form)
    made = model, branches, 1e4 * x, y
    assert_alike(numbers(*made, kernels=True), numbers(*made, kernels=False), 1e-4)
    x[5, 3] = float("nan")
    assert all(value.isnan().any() for value in numbers(*made[:2], x, y, kernels=True) if value is not None)


@pytest.mark.gpu
@pytest.mark.parametrize("first", [40, 200])
def test_classes_that_a_bias_rules_out(first: int) -> None:
    """All those of the first tiles: a maximum over them alone is no number to subtract."""
    model, branches, x, y = built("300 classes", "softmax, bias")
    with torch.no_grad():
        for layer in branches.layers:
            branches.head(layer).bias[:first] = -torch.inf
    made = model, branches, x, y.clamp(min=first)
    by_kernels, by_torch = numbers(*made, kernels=True), numbers(*made, kernels=False)
    assert by_kernels[0].isfinite()
    assert_alike(by_kernels, by_torch, 1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["sigmoid", "softmax, bias"])
def test_streams_do_not_count_for_each_other(form: str) -> None:
    model, branches, x, y = built("16 layers", form)
    expected = loss_of(model, branches, x, y, kernels=True).item()
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    losses = []
    for _ in range(25):
        for stream in streams:
            with torch.cuda.stream(stream):
                model(x)
                losses.append(branches.loss(y))
    torch.cuda.synchronize()
    assert [loss.item() for loss in losses] == pytest.approx([expected] * len(losses), rel=1e-5)
    (plan,) = branches._fuser.plans.values()
    assert len(set(plan.launches.streams.values())) == 5


@pytest.mark.gpu
def test_streams_beyond_those_with_a_counter_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("asymtrain.branches._kernels"), "_STREAMS", 2)
    model, branches, x, y = built("rows")
    expected = loss_of(model, branches, x, y, kernels=True)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    losses = []
    for stream in (*streams, *streams):
        with torch.cuda.stream(stream):
            model(x)
            losses.append(branches.loss(y))
    torch.cuda.synchronize()
    assert [is_launched(loss) for loss in losses] == [True, False, False] * 2
    assert_alike(losses, [expected] * 6, 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("limit", ["_MOST_LAUNCHED", "_MOST_MULTIPLIED"])
def test_what_is_large_is_left_to_torch(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fused, limit, 1)
    model, branches, x, y = built("rows")
    model(x)
    assert not is_launched(branches.loss(y))


class Nothing(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@pytest.mark.gpu
def test_what_follows_operations_sees_them() -> None:
    model, branches, x, y = built("rows")
    for mode in (True, False):
        model(x)
        if mode:
            with Nothing():
                loss = branches.loss(y)
        else:
            loss = branches.loss(y)
        assert is_launched(loss) != mode


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["sigmoid", "softmax, bias"])
@pytest.mark.parametrize("case", ["rows", "means", "class tokens"])
def test_gradients_of_several_losses_at_once(case: str, form: str) -> None:
    """As TorchJD takes them: a batch of gradients has no memory of its own that a kernel could read."""
    model, branches, x, y = built(case, form)
    weights, answers = [model.blocks[0].weight, *branches.parameters()], []
    for kernels in (True, False):
        loss = loss_of(model, branches, x, y, kernels=kernels)
        factors = torch.tensor([1.0, -2.0], device="cuda")
        answers.append(list(torch.autograd.grad(loss, weights, factors, is_grads_batched=True)))
    assert_alike(*answers, 1e-4)


class Turned(nn.Module):
    """Rows (B, D) that lie in memory as (D, B)."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(7, 16), nn.Identity()])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[1](self.blocks[0](x).t().contiguous().t())


@pytest.mark.gpu
def test_what_is_saved_may_be_laid_out_anew() -> None:
    """By hooks on saved tensors, as offloading to the host does."""
    model, x = Turned().cuda(), torch.randn(12, 7, device="cuda")
    branches, y = attach(model, x, CLASSES, at="blocks.1", layout="BD"), torch.arange(12, device="cuda") % CLASSES
    answers = []
    for pack in (lambda tensor: tensor, lambda tensor: tensor.clone(memory_format=torch.contiguous_format)):
        model(x)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = branches.loss(y)
        answers.append(list(torch.autograd.grad(loss, [*model.parameters(), *branches.parameters()])))
    assert_alike(*answers, 1e-5)


@pytest.mark.gpu
def test_a_step_launches_few_kernels() -> None:
    """Twelve layers of one width, as of a vision transformer, of which each had 28 kernels once."""
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(12))).cuda()
    x, y = torch.randn(8, 5, 16, device="cuda"), torch.randint(CLASSES, (8,), device="cuda")
    counts = []
    for attached in (False, True):
        branches = attach(model, x, CLASSES, at="*", layout="BTD") if attached else None
        for _ in range(4):
            for module in (model, branches) if attached else (model,):
                module.zero_grad()  # what adds up in `.grad` would count
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
                loss = model(x).mean()
                (loss if branches is None else loss + 0.3 * branches.loss(y)).backward()
                torch.cuda.synchronize()
        on_device = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        counts.append(sum(not name.startswith(("Memcpy", "Memset")) for name in on_device))
    assert counts[0] > 12  # the profiler sees kernels
    assert counts[1] - counts[0] <= 20, counts
