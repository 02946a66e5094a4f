"""How strong the branches are: one unit, schedules, and a strength that follows gradients."""

import io
import math
import pickle
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from branch_zoo import CLASSES, attached, mlp, rows, targets
from torch import Tensor, nn

from asymtrain.branches import Branches, Falling, GradientRatio, attach
from asymtrain.branches._strength import _Sum
from asymtrain.errors import UsageError, UsageWarning
from asymtrain.objectives import Huber

AT = ["1", "3"]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def mean_loss(branches: Branches) -> Tensor:
    losses = branches.losses(targets())
    return sum(losses.values()) / len(losses)


@pytest.mark.parametrize("objective", ["sigmoid", "softmax", "mse", "dice", Huber(outputs=CLASSES), F.cross_entropy])
@pytest.mark.parametrize("strength", [0, 0.5, 3])
def test_the_loss_is_the_strength_times_the_mean_over_layers(objective: object, strength: float) -> None:
    model, x = mlp().eval(), rows()
    classes = None if isinstance(objective, Huber) else CLASSES
    branches = attach(model, x, classes, at=AT, objective=objective, strength=strength)
    y = torch.randn(3, CLASSES) if classes is None else targets()
    model(x)
    loss = branches.loss(y)
    losses = branches.losses(y)
    torch.testing.assert_close(loss, strength * sum(losses.values()) / 2)
    torch.testing.assert_close(branches.loss(y, logits=branches.logits()), loss)
    torch.testing.assert_close(branches.combine(losses), loss)
    assert branches.strength == strength


def test_weights_of_layers_are_shares() -> None:
    model, x, branches = attached(mlp().eval(), strength=2, weights={"1": np.float32(3), "3": 1})
    model(x)
    losses = branches.losses(targets())
    torch.testing.assert_close(branches.loss(targets()), 2 * (0.75 * losses["1"] + 0.25 * losses["3"]))
    with pytest.raises(UsageError, match="the weights of all layers are 0"):
        attach(model, x, CLASSES, at=AT, weights=0)


def test_the_papers_unit_is_the_sum_over_layers_of_means_over_classes() -> None:
    model, x, branches = attached(mlp().eval(), preset="paper", weights={"1": 3.0})
    model(x)
    expected = [F.binary_cross_entropy_with_logits(z, F.one_hot(targets(), CLASSES).float()) for z in
                branches.logits().values()]  # fmt: skip
    torch.testing.assert_close(branches.loss(targets()), 3 * expected[0] + expected[1])


class Blocks(nn.Module):
    """Blocks between a stem and a head; those of the first kind see their neighbours."""

    def __init__(self, *kernels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 4, stride=4)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(6, 6, kernel, padding=kernel // 2), nn.GELU()) for kernel in kernels
        )
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_the_default_is_weak_on_convolutions_and_says_so() -> None:
    branches = attach(Blocks(1, 3, 1), IMAGES, CLASSES)
    assert branches.strength == 0.05
    assert "strength: 0.05, of preset 'recommended': layer 'blocks.1' holds a convolution" in repr(branches)
    # Patches and products at each position are no convolutions of what is inside.
    assert attach(Blocks(1, 1, 1), IMAGES, CLASSES).strength == 0.5
    assert attach(Blocks(3, 3, 3), IMAGES, CLASSES, strength=0.5).strength == 0.5
    assert attach(Blocks(3, 3, 3), IMAGES, CLASSES, preset="deep_supervision").strength == 1


def test_what_was_chosen_is_printed() -> None:
    branches = attach(mlp(), rows(), CLASSES, at=AT)
    assert repr(branches).splitlines() == [
        "Branches on 2 layers",
        "  layers: 1, 3",
        "  objective: Sigmoid()",
        "  head: Linear(bias='prior')",
        "  strength: 0.5, of preset 'recommended'",
    ]
    branches.strip()
    assert repr(branches).splitlines()[0] == "Branches on 2 layers until they were stripped"
    with_ratio = attach(mlp(), rows(), CLASSES, at=AT, strength=GradientRatio(0.1), objective="softmax", head="mlp")
    assert repr(with_ratio).splitlines()[2:] == [
        "  objective: Softmax()",
        "  head: mlp",
        "  strength: GradientRatio(ratio=0.1)",
    ]
    assert attach(mlp(), rows(), at=AT, objective=Huber(outputs=2)).choices["head"] == "Linear()"


@pytest.mark.parametrize(
    ("strength", "message"),
    [
        (-0.5, "strength .* must be a finite number of 0 or more, got -0.5"),
        (math.nan, "must be a finite number of 0 or more, got nan"),
        (math.inf, "must be a finite number of 0 or more, got inf"),
        ("high", "must be a finite number of 0 or more, got 'high'"),
        (True, "must be a finite number of 0 or more, got True"),
        (Falling, r"strength is a class: give an instance of it, such as Falling\(0.5\)"),
        (lambda progress: math.nan, "the strength at progress 0 must be a finite number of 0 or more, got nan"),
        (lambda progress: None, "the strength at progress 0 must be a finite number of 0 or more, got None"),
    ],
)
def test_strengths_that_mean_nothing(strength: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        attach(mlp(), rows(), CLASSES, at=AT, strength=strength)


def test_settings_that_mean_nothing() -> None:
    for make, message in (
        (lambda: Falling(-1), "the strength of Falling must be a finite number"),
        (lambda: Falling(1, over=0), "over is the share of training after which the strength is 0, got 0"),
        (lambda: Falling(1, over=1.5), "over is the share of training"),
        (lambda: GradientRatio(math.nan), "the ratio of GradientRatio must be a finite number"),
        (lambda: GradientRatio(1, every=0), "every must be a whole number of 1 or more, got 0"),
    ):
        with pytest.raises(UsageError, match=message):
            make()


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Falling(0.5), [0.5, 0.25 * (1 + math.sqrt(0.5)), 0.25 * (1 - math.sqrt(0.5)), 0]),
        (Falling(0.5, over=0.5), [0.5, 0.25, 0, 0]),
        (lambda progress: torch.tensor(2 * progress + 0.1), [0.1, 0.6, 1.6, 2.1]),
    ],
    ids=["falls", "falls early", "rises"],
)
def test_a_strength_by_the_progress_of_training(rule: Callable[[float], float], expected: list[float]) -> None:
    model, x, branches = attached(mlp().eval(), strength=rule)
    for progress, strength in zip((0, 0.25, 0.75, 1), expected, strict=True):
        branches.step(progress)
        assert branches.strength == pytest.approx(strength, abs=1e-6)
        model(x)
        loss = branches.loss(targets())
        torch.testing.assert_close(loss, strength * mean_loss(branches))
        branches.step(0)  # between the loss and its backward
        loss.backward()
    again = attach(mlp(), x, CLASSES, at=AT, strength=rule)
    branches.step(0.75)
    again.load_state_dict(branches.state_dict())
    assert again.strength == branches.strength
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        branches.strip()


@pytest.mark.parametrize("progress", [-0.1, 3, math.nan, None, True])
def test_a_progress_that_is_none(progress: object) -> None:
    with pytest.raises(UsageError, match="progress is the share of training that is over, from 0 to 1"):
        attach(mlp(), rows(), CLASSES, at=AT).step(progress)


def test_a_schedule_that_nobody_moved_is_warned_of() -> None:
    model, x, branches = attached(strength=Falling(0.5))
    model(x)
    branches.loss(targets())
    with pytest.warns(UsageWarning, match=r"branches.step\(progress\) was never called"):
        branches.strip()
    unused = attach(model, x, CLASSES, at=AT, strength=Falling(0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unused.strip()


def test_a_compiled_step_is_compiled_once() -> None:
    model, x, branches = attached(mlp().eval(), strength=Falling(0.5))

    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss_of(x: Tensor) -> Tensor:
        return F.cross_entropy(model(x), targets()) + branches.loss(targets())

    for progress in (0, 0.3, 0.6, 0.9):
        branches.step(progress)
        with torch.compiler.set_stance("fail_on_recompile" if progress else "default"):
            loss = loss_of(x)
        torch.testing.assert_close(loss, F.cross_entropy(model(x), targets()) + branches.strength * mean_loss(branches))


def test_a_step_inside_of_what_is_compiled_is_refused() -> None:
    branches = attach(mlp(), rows(), CLASSES, at=AT, strength=Falling(0.5))
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"call it outside of torch\.compile"):
        torch.compile(branches.step, backend="eager", fullgraph=True)(0.5)


# A strength that follows gradients


def norms(model: nn.Module, main: Tensor, auxiliary: Tensor) -> tuple[float, float]:
    """Of both gradients, over what both reach."""
    weights = list(model.parameters())
    pairs = zip(*(torch.autograd.grad(loss, weights, allow_unused=True, retain_graph=True) for loss in
                  (main, auxiliary)), strict=True)  # fmt: skip
    both = [pair for pair in pairs if pair[0] is not None and pair[1] is not None]
    assert 0 < len(both) < len(weights)  # the model's own head is reached by the main loss alone
    return tuple(
        math.sqrt(math.fsum(value.double().square().sum().item() for value in side)) for side in zip(*both, strict=True)
    )


def trained(
    accumulated: int, steps: int, every: int = 2, *, state: tuple[dict, dict, dict] | None = None, start: int = 0
) -> tuple[list[float], nn.Module, Branches, torch.optim.Optimizer]:
    """Strengths after each step of a training of batches of 12 in so many parts."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    data = torch.randn(steps + start, 12, 7)
    labels = torch.arange(12) % CLASSES
    branches = attach(model, data[0], CLASSES, at=AT, strength=GradientRatio(0.25, every=every))
    optimizer = torch.optim.SGD([*model.parameters(), *branches.parameters()], lr=0.1)
    for part, values in zip((model, branches, optimizer), state or (), strict=False):
        part.load_state_dict(values)
    strengths = []
    for x in data[start:]:
        optimizer.zero_grad()
        for i in range(accumulated):
            part = slice(i * 12 // accumulated, (i + 1) * 12 // accumulated)
            main = F.cross_entropy(model(x[part]), labels[part])
            ((main + branches.loss(labels[part], main=main)) / accumulated).backward()
        optimizer.step()
        strengths.append(branches.strength)
    return strengths, model, branches, optimizer


def test_a_ratio_by_hand() -> None:
    model, x, branches = attached(mlp().eval(), strength=GradientRatio(0.25, every=3))
    optimizer = torch.optim.SGD([*model.parameters(), *branches.parameters()], lr=0.5)
    expected = 0.0  # the first step only measures
    for step in range(7):
        optimizer.zero_grad()
        main = F.cross_entropy(model(x), targets())
        loss = branches.loss(targets(), main=main)
        torch.testing.assert_close(loss, expected * mean_loss(branches), rtol=1e-5, atol=1e-7)
        of_main, of_branches = norms(model, main, mean_loss(branches))
        (main + loss).backward()
        optimizer.step()
        if step % 3 == 0:
            expected = 0.25 * of_main / of_branches
        assert branches.strength == pytest.approx(expected, rel=1e-5)
    with torch.no_grad():
        model(x)
        branches.loss(targets())  # an evaluation has no main loss


@pytest.mark.parametrize("accumulated", [2, 4])
def test_a_ratio_is_that_of_the_step_however_it_is_accumulated(accumulated: int) -> None:
    assert trained(accumulated, 5)[0] == pytest.approx(trained(1, 5)[0], rel=1e-4)


def test_a_ratio_resumes() -> None:
    whole, *_ = trained(2, 7, every=3)
    first, *parts = trained(2, 4, every=3)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    torch.manual_seed(0)
    rest, *_ = trained(2, 3, every=3, state=state, start=4)
    assert first + rest == pytest.approx(whole, rel=1e-5)
    assert len(set(whole)) == 3


def test_a_copy_by_pickle_has_the_strength() -> None:
    _, _, branches, _ = trained(1, 3)
    assert pickle.loads(pickle.dumps(branches)).strength == branches.strength > 0


def test_a_batch_whose_layers_were_skipped_counts_for_the_main_loss_alone() -> None:
    model, x, branches = attached(mlp().eval(), strength=GradientRatio(0.25, every=1))
    optimizer = torch.optim.SGD([*model.parameters(), *branches.parameters()], lr=0.0)
    main = F.cross_entropy(model(x), targets())
    of_main, of_branches = norms(model, 2 * main, mean_loss(branches))
    branches.loss(targets(), main=main)
    branches.combine({}, main=F.cross_entropy(model(x), targets()))
    optimizer.step()
    assert branches.strength == pytest.approx(0.25 * of_main / of_branches, rel=1e-5)


def test_many_gradients_in_half_precision_are_summed_in_more() -> None:
    total = _Sum([torch.zeros(1, dtype=torch.bfloat16)])
    for _ in range(300):
        total.add([torch.ones(1, dtype=torch.bfloat16)])
    assert total.norms(torch.device("cpu")).item() == 300


def test_two_optimizers_of_the_model_make_one_step() -> None:
    model, x, branches = attached(mlp().eval(), strength=GradientRatio(0.25, every=2))
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[:3], model[3:], branches)]
    seen = []
    for _ in range(4):
        main = F.cross_entropy(model(x), targets())
        (main + branches.loss(targets(), main=main)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        seen.append(branches.strength)
    assert seen[0] == seen[1] != seen[2] == seen[3]
    branches.strip(optimizers)


def test_a_gradient_that_says_nothing_leaves_the_strength() -> None:
    model, x, branches = attached(mlp().eval(), strength=GradientRatio(0.25, every=1))
    optimizer = torch.optim.SGD([*model.parameters(), *branches.parameters()], lr=0.0)
    for scale in (1.0, math.nan):
        main = F.cross_entropy(model(x), targets()) * scale
        branches.loss(targets(), main=main)
        before = branches.strength
        optimizer.step()
    assert branches.strength == before > 0


def test_where_a_ratio_cannot_be_measured() -> None:
    model, x, branches = attached(mlp().eval(), strength=GradientRatio(0.25))
    model(x)
    for main in (None, torch.tensor(1.0), torch.ones(3, requires_grad=True)):
        with pytest.raises(
            UsageError, match=r"follows the main loss, with its graph: call branches.loss\(y, main=main\)"
        ):
            branches.loss(targets(), main=main)

    @torch.compile(backend="eager", fullgraph=True)
    def step(x: Tensor) -> Tensor:
        main = F.cross_entropy(model(x), targets())
        return main + branches.loss(targets(), main=main)

    with pytest.raises(torch._dynamo.exc.Unsupported, match="a compiled or captured step cannot: compile the model"):
        step(x)
    with pytest.warns(UsageWarning, match=r"no step of an optimizer of torch.optim was seen, so it stayed 0"):
        branches.strip()

    branches = attach(model, x, CLASSES, at=AT, strength=GradientRatio(0.25))
    model[:5].requires_grad_(False)
    main = F.cross_entropy(model(x.requires_grad_()), targets())
    with pytest.raises(UsageError, match="no trained parameter of the model gets one from both losses"):
        branches.loss(targets(), main=main)


def test_a_compiled_model_has_a_ratio() -> None:
    model, x, branches = attached(mlp().eval(), strength=GradientRatio(0.25, every=1))
    optimizer = torch.optim.SGD([*model.parameters(), *branches.parameters()], lr=0.0)
    compiled = torch.compile(model, backend="aot_eager")
    main = F.cross_entropy(compiled(x), targets())
    with torch._functorch.config.patch(donated_buffer=False):
        (main + branches.loss(targets(), main=main)).backward()
    optimizer.step()
    main = F.cross_entropy(model(x), targets())
    of_main, of_branches = norms(model, main, mean_loss(branches))
    assert branches.strength == pytest.approx(0.25 * of_main / of_branches, rel=1e-5)


class Tower(nn.Module):
    """Twelve residual blocks of an MLP."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Linear(32, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(12)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def pull(objective: str = "sigmoid", classes: int = 10, layers: int = 4, width: int = 64, steps: int = 0) -> float:
    """|gradient of the branches| / |gradient of the main loss| at strength 1, after so many steps at 0.5."""
    torch.manual_seed(0)
    model = Tower(width, classes)
    drawn = torch.Generator().manual_seed(1)
    prototypes = torch.randn(classes, 32, generator=drawn)
    y = torch.randint(0, classes, (max(steps, 1) * 128,), generator=drawn)
    x = prototypes[y] + torch.randn(len(y), 32, generator=drawn)
    at = [12 * (k + 1) // layers - 1 for k in range(layers)]
    branches = attach(model, x[:4], classes, at=at, objective=objective, strength=1, layout="BD")
    optimizer = torch.optim.AdamW([*model.parameters(), *branches.parameters()], lr=1e-3)
    for part in torch.arange(steps * 128).split(128):
        optimizer.zero_grad()
        (F.cross_entropy(model(x[part]), y[part]) + 0.5 * branches.loss(y[part])).backward()
        optimizer.step()
    x, y = x[:128], y[:128]
    of_main, of_branches = norms(model, F.cross_entropy(model(x), y), branches.loss(y))
    return of_branches / of_main


@pytest.mark.parametrize("steps", [0, 16])
def test_one_strength_pulls_alike(steps: int) -> None:
    """Within a factor of 2 for both objectives, for widths, and from 4 to 12 layers."""
    base = pull(steps=steps)
    for other in ({"width": 128}, {"layers": 12}):
        assert 0.5 < pull(steps=steps, **other) / base < 2, other
    assert 0.9 < pull("softmax", steps=steps) / base < 1.1


def test_more_classes_than_features_weaken_new_branches() -> None:
    """Their rows are orthogonal, and of a smaller norm where there are more of them than features."""
    assert 0.5 < pull(classes=40) / pull(classes=10) < 2
    assert pull(classes=1000) / pull(classes=10) == pytest.approx(math.sqrt(64 / 1000), rel=0.5)
