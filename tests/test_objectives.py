"""Against loops that a reader can check by eye, in float64."""

import math

import pytest
import torch

from asymtrain import UsageError, attach, sigmoid_loss, softmax_loss
from asymtrain.branches import Linear
from asymtrain.objectives import OBJECTIVES, Mse, RowObjective, check_targets, find_objective, prior_bias

B, C = 7, 5


@pytest.fixture
def logits():
    return torch.randn(B, C, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3


def naive_softmax(row, goal):
    total = math.fsum(math.exp(z) for z in row)
    return -math.fsum(t * math.log(math.exp(z) / total) for z, t in zip(row, goal, strict=True))


def naive_sigmoid(row, goal, class_reduction):
    terms = []
    for z, t in zip(row, goal, strict=True):
        p = 1 / (1 + math.exp(-z))
        terms.append(-(t * math.log(p) + (1 - t) * math.log(1 - p)))
    return math.fsum(terms) / (len(terms) if class_reduction == "mean" else 1)


LOSSES = {
    "softmax": (softmax_loss, naive_softmax, {}),
    "sigmoid mean": (sigmoid_loss, lambda row, goal: naive_sigmoid(row, goal, "mean"), {"class_reduction": "mean"}),
    "sigmoid sum": (sigmoid_loss, lambda row, goal: naive_sigmoid(row, goal, "sum"), {"class_reduction": "sum"}),
    "sigmoid default": (sigmoid_loss, lambda row, goal: naive_sigmoid(row, goal, "sum"), {}),
}
every_loss = pytest.mark.parametrize(("loss", "naive", "options"), LOSSES.values(), ids=LOSSES)


def loss_of(objective, logits, targets, **options):
    """With answers of a model, for an objective that learns from them too: any function of the rows."""
    answers = {"model_logits": logits.detach().flip(-1) / 2} if objective.needs_model else {}
    return objective.loss(logits, targets, **answers, **options)


def one_hot(target):
    return [float(c == target) for c in range(C)]


def assert_mean_of_rows(value, naive, logits, goals):
    rows = [naive(row, goal) for row, goal in zip(logits.tolist(), goals, strict=True) if goal is not None]
    expected = math.fsum(rows) / len(rows) if rows else 0.0
    assert value.item() == pytest.approx(expected, rel=1e-12, abs=1e-15)


@every_loss
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_class_indices(loss, naive, options, logits, dtype):
    targets = [4, 0, 1, 1, 3, 2, 0]
    value = loss(logits, torch.tensor(targets, dtype=dtype), **options)
    assert_mean_of_rows(value, naive, logits, map(one_hot, targets))


@every_loss
@pytest.mark.parametrize("ignore_index", [-100, -1, 2, 255])
@pytest.mark.parametrize("kept", [[], [0], [1, 3, 6], list(range(B))])
def test_ignored_targets_count_for_nothing(loss, naive, options, logits, ignore_index, kept):
    logits = logits.requires_grad_()
    targets = [[4, 0, 1, 1, 3, 1, 0][b] if b in kept else ignore_index for b in range(B)]
    value = loss(logits, torch.tensor(targets), ignore_index=ignore_index, **options)
    goals = [one_hot(t) if b in kept else None for b, t in enumerate(targets)]
    assert_mean_of_rows(value, naive, logits, goals)
    (gradient,) = torch.autograd.grad(value, logits)
    assert gradient.isfinite().all()
    assert gradient.any(1).nonzero().flatten().tolist() == kept


@every_loss
def test_soft_targets(loss, naive, options, logits):
    soft = torch.rand(B, C, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    soft = soft / soft.sum(1, keepdim=True)
    assert_mean_of_rows(loss(logits, soft, **options), naive, logits, soft.tolist())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("name", ["sigmoid mean", "sigmoid sum"])
def test_several_labels_or_none_at_once(name, logits, dtype):
    loss, naive, options = LOSSES[name]
    labels = torch.tensor([[0, 1, 1, 0, 0], [0] * 5, [1] * 5, [1, 0, 0, 0, 1], *[[0, 0, 0, 1, 0]] * 3])
    assert_mean_of_rows(loss(logits, labels.to(dtype), **options), naive, logits, labels.tolist())


@every_loss
def test_as_many_classes_as_images_is_not_ambiguous(loss, naive, options, logits):
    square, targets = logits[:C], [4, 0, 1, 1, 3]
    by_index = loss(square, torch.tensor(targets), **options)
    assert_mean_of_rows(by_index, naive, square, map(one_hot, targets))
    assert loss(square, torch.tensor([*map(one_hot, targets)]), **options).item() == pytest.approx(by_index.item())


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("targets", [torch.empty(0, dtype=torch.int64), torch.empty(0, C)], ids=["indices", "values"])
def test_a_batch_of_none_has_no_loss(name, targets):
    logits = torch.empty(0, C, requires_grad=True)
    value = loss_of(find_objective(name), logits, targets)
    assert value == 0
    value.backward()


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_logits_stay_finite(loss, naive, options, dtype):
    logits = torch.tensor([[1e4, -1e4, 0.0]], dtype=dtype, requires_grad=True)
    value = loss(logits, torch.tensor([1]), **options)
    value.backward()
    assert value.isfinite()
    assert value.dtype == dtype
    assert logits.grad.isfinite().all()


BAD_TARGETS = {
    "too large": (torch.tensor([0, 1, 2, 3, 4, 5, 0]), r"0\.\.4.*got 5: check `classes`"),
    "negative": (torch.tensor([0, -1, 2, 3, 4, 0, 0]), r"0\.\.4.*got -1"),
    # As a byte, 156 has the bits of -100.
    "a byte": (torch.tensor([0, 156, 2, 3, 4, 0, 0], dtype=torch.uint8), "got 156"),
    "too few": (torch.zeros(B - 1, dtype=torch.int64), r"shape \(7,\).*\(7, 5\).*got \(6,\)"),
    "a column": (torch.zeros(B, 1, dtype=torch.int64), r"got \(7, 1\)"),
    "another width": (torch.zeros(B, C + 1), r"got \(7, 6\)"),
    "a scalar": (torch.tensor(1), r"got \(\)"),
    "floats": (torch.zeros(B), r"integers, got torch\.float32: call targets\.long\(\)"),
    "bools": (torch.zeros(B, dtype=torch.bool), r"integers, got torch\.bool"),
}


@every_loss
@pytest.mark.parametrize(("targets", "message"), BAD_TARGETS.values(), ids=BAD_TARGETS)
def test_bad_targets(loss, naive, options, logits, targets, message):
    with pytest.raises(UsageError, match=message):
        loss(logits, targets, **options)


@pytest.mark.parametrize("name", ["softmax", "distill"])
def test_rows_of_several_classes_are_refused_where_classes_compete(name):
    logits, one = torch.zeros(2, 3), torch.tensor([[0.2, 0.8, 0.0], [0.0, 0.0, 0.0]])
    find_objective(name).check(logits, one.bfloat16())  # a row may have no label
    with pytest.raises(UsageError, match=r"add up to 1 in each row .* objective='sigmoid'"):
        find_objective(name).check(logits, torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]]))


def test_logits_have_a_batch_axis():
    with pytest.raises(UsageError, match=r"\(batch, classes\)"):
        check_targets(torch.zeros(5), torch.zeros(2, dtype=torch.int64))


@every_loss
def test_compiled_without_a_break(loss, naive, options, logits):
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    targets = torch.tensor([4, 0, -100, 1, 3, 2, 0])
    assert torch.equal(compiled(logits, targets, **options), loss(logits, targets, **options))


@pytest.mark.parametrize("value", [float("nan"), 2.0, -0.1])
@pytest.mark.parametrize("loss", [softmax_loss, sigmoid_loss])
def test_values_that_are_no_shares_are_refused(loss, value):
    targets = torch.full((2, 3), 0.5)
    targets[1, 1] = value
    with pytest.raises(UsageError, match="between 0 and 1"):
        loss(torch.zeros(2, 3), targets)


BY_ROWS = [
    name for name, objective in OBJECTIVES.items() if issubclass(objective, RowObjective) and not objective.needs_model
]


@pytest.mark.parametrize("name", BY_ROWS)
def test_the_two_forms_of_an_objective_agree(name, logits):
    objective, targets = find_objective(name), torch.tensor([4, 0, 2, 1, 3, 2, 0])
    torch.testing.assert_close(objective.rows(logits, targets).mean(), objective.loss(logits, targets))
    assert torch.equal(objective.correct(logits, targets), logits.argmax(1) == targets)


@pytest.mark.parametrize("name", BY_ROWS)
def test_the_initial_bias_is_where_the_loss_is_least_without_features(name):
    shares, objective = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), find_objective(name)
    targets = torch.arange(3).repeat_interleave(torch.tensor([5, 3, 2]))
    logits = objective.bias_at(shares).requires_grad_()
    objective.loss(logits.expand(10, 3), targets).backward()
    assert logits.grad.abs().max() < 1e-12


REGRESSIONS = {
    "mse": lambda error: error**2,
    "huber": lambda error: error**2 / 2 if abs(error) < 1 else abs(error) - 0.5,
}


@pytest.mark.parametrize("name", REGRESSIONS)
@pytest.mark.parametrize("class_reduction", ["mean", "sum"])
def test_a_regression_by_hand(name, class_reduction, logits):
    goals = torch.linspace(-3, 9, B * C, dtype=torch.float64).view(B, C)
    keep = torch.tensor([1, 0, 1, 1, 0, 1, 1])
    value = find_objective(name, class_reduction=class_reduction).loss(logits, goals, mask=keep)
    errors = [
        [REGRESSIONS[name](z - t) for z, t in zip(*rows, strict=True)]
        for rows in zip(logits.tolist(), goals.tolist(), strict=True)
    ]
    rows = [
        math.fsum(row) / (C if class_reduction == "mean" else 1) for row, kept in zip(errors, keep, strict=True) if kept
    ]
    assert value.item() == pytest.approx(math.fsum(rows) / 5, rel=1e-12)
    mean = goals[keep == 1].mean(0)
    explained = 1 - (logits - goals)[keep == 1].square().sum() / (goals[keep == 1] - mean).square().sum()
    assert find_objective(name).accuracy(logits, goals, keep == 1).item() == pytest.approx(explained.item())


@pytest.mark.parametrize("name", ["sigmoid", "dice"])
def test_a_share_of_one_half_counts_as_yes(name):
    halves = torch.full((1, 2), 0.5)
    assert find_objective(name).accuracy(torch.ones(1, 2), halves, None) == 1
    assert find_objective(name).accuracy(-torch.ones(1, 2), halves, None) == 0


def test_an_objective_is_one_entry_for_branches_too(monkeypatch):
    """A squared hinge, which nobody has thought of; `test_engine_objectives.py` trains it in the lab."""

    class Hinge(RowObjective):
        def rows(self, logits, targets):
            sign = 2 * (targets[..., None] == torch.arange(logits.shape[-1])).to(logits.dtype) - 1
            return (1 - sign * logits).relu().square().mean(-1)

        def bias_at(self, shares):
            return 2 * shares - 1

    monkeypatch.setitem(OBJECTIVES, "hinge", Hinge)
    model, x, y = (
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, C)),
        torch.randn(B, 4),
        torch.arange(B) % C,
    )
    branches = attach(model, x, C, at="0", objective="hinge", head=Linear("prior"))
    assert branches.head("0").bias.tolist() == pytest.approx([2 / C - 1] * C)
    model(x)
    (logits,) = branches.logits().values()
    assert branches.losses(y)["0"].item() == pytest.approx(Hinge().rows(logits, y).mean().item())
    assert branches.accuracies(y)["0"] == (logits.argmax(1) == y).float().mean()
    branches.loss(y).backward()
    assert model[0].weight.grad.any()


def test_targets_that_do_not_vary_explain_nothing():
    one, same = torch.tensor([[2.0, 3.0]]), torch.full((4, 2), 2.0)
    for goal in (one, same):
        assert Mse().accuracy(goal + 1, goal, None) == 0
        assert Mse().accuracy(goal, goal, None) == 1


@pytest.mark.parametrize("name", REGRESSIONS)
def test_the_regression_of_classes_is_that_of_one_hot_rows(name, logits):
    targets = torch.tensor([4, 0, 2, 1, 3, 2, 0])
    goals = torch.tensor([one_hot(t) for t in targets.tolist()], dtype=torch.float64)
    objective = find_objective(name)
    assert torch.allclose(objective.loss(logits, targets), objective.loss(logits, goals))
    assert objective.accuracy(logits, targets, None) == (logits.argmax(1) == targets).float().mean()


def test_of_soft_labels_the_largest_is_the_answer_where_classes_compete(logits):
    """Softmax does not know where 0 is: logits that are all moved alike answer alike."""
    targets = torch.tensor([4, 0, 2, 1, 3, 2, 0])
    soft = 0.6 * torch.tensor([one_hot(t) for t in targets.tolist()], dtype=torch.float64) + 0.08
    for moved in (logits, logits + 100):
        assert find_objective("softmax").accuracy(moved, soft, None) == (logits.argmax(1) == targets).float().mean()


def test_dice_by_hand(logits):
    targets, keep = [4, 0, 1, 1, -100, 2, 0], [b for b in range(B) if b != 4]
    shares = logits.softmax(1).tolist()
    losses = []
    for c in range(C):
        overlap = math.fsum(shares[b][c] for b in keep if targets[b] == c)
        sizes = math.fsum(shares[b][c] for b in keep) + sum(targets[b] == c for b in keep)
        losses.append(1 - (2 * overlap + 1) / (sizes + 1))
    value = find_objective("dice").loss(logits, torch.tensor(targets))
    assert value.item() == pytest.approx(math.fsum(losses) / C, rel=1e-12)


def test_dice_of_several_labels_takes_each_by_itself(logits):
    labels = (torch.rand(B, C, generator=torch.Generator().manual_seed(2)) > 0.5).double()
    alone = [find_objective("dice").loss(logits[:, [c]], labels[:, [c]]).item() for c in range(C)]
    assert find_objective("dice").loss(logits, labels).item() == pytest.approx(sum(alone) / C)
    assert find_objective("dice").loss(20 * (2 * labels - 1), labels).item() < 1e-6


@pytest.mark.parametrize("name", OBJECTIVES)
def test_positions_are_rows(name, logits):
    """Logits (B, T, C): the loss is that of all positions as rows, whatever is left out."""
    dense, targets = torch.stack([logits, -logits]), torch.tensor([[4, 0, 2, -100, 3, 2, 0], [1, 1, -100, 1, 3, 2, 0]])
    mask = torch.ones(2, B)
    mask[0, :2] = 0
    objective = find_objective(name)
    flat = loss_of(objective, dense.flatten(0, 1), targets.flatten(), mask=mask.flatten())
    assert torch.equal(loss_of(objective, dense, targets, mask=mask), flat)
    kept = (mask != 0) & (targets != -100)
    assert torch.allclose(flat, loss_of(objective, dense[kept], targets[kept]))


@pytest.mark.parametrize(("temperature", "share"), [(3.0, 0.5), (1.0, 1.0), (4.0, 0.0), (0.5, 0.25)])
def test_distillation_by_hand(temperature, share, logits):
    model = torch.randn(B, C, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    targets, leaf = [4, 0, -100, 1, 3, 2, 0], logits.requires_grad_()
    objective = find_objective("distill", temperature=temperature, share=share)
    value = objective.loss(leaf, torch.tensor(targets), model_logits=model)

    def soft(row):
        powers = [math.exp(z / temperature) for z in row]
        return [power / math.fsum(powers) for power in powers]

    def naive(row, own, goal):
        pairs = zip(soft(own), soft(row), strict=True)
        divergence = math.fsum(p * math.log(p / q) for p, q in pairs)
        return (1 - share) * naive_softmax(row, one_hot(goal)) + share * temperature**2 * divergence

    rows = zip(logits.tolist(), model.tolist(), targets, strict=True)
    terms = [naive(row, own, goal) for row, own, goal in rows if goal != -100]
    assert value.item() == pytest.approx(math.fsum(terms) / len(terms), rel=1e-12)
    value.backward()
    assert model.grad is None  # the model does not learn from the branches' answers
    assert leaf.grad[2].abs().max() == 0


def test_distillation_is_least_where_a_branch_answers_as_the_model_does(logits):
    leaf = (logits + 2).requires_grad_()  # softmax takes no notice of a shift
    find_objective("distill", share=1.0).loss(leaf, torch.zeros(B, dtype=torch.int64), model_logits=logits).backward()
    assert leaf.grad.abs().max() < 1e-15


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0}, "temperature must be a number above 0, got 0"),
        ({"temperature": float("inf")}, "temperature must be a number above 0, got inf"),
        ({"share": 1.5}, "share must be a number from 0 .* got 1.5"),
        ({"share": float("nan")}, "share must be a number from 0 .* got nan"),
    ],
)
def test_settings_of_distillation_that_mean_nothing(settings, message):
    with pytest.raises(UsageError, match=message):
        find_objective("distill", **settings)


def test_distillation_needs_as_many_rows_of_the_model(logits):
    targets = torch.zeros(B, dtype=torch.int64)
    with pytest.raises(UsageError, match="give model_logits="):
        find_objective("distill").loss(logits, targets)
    with pytest.raises(UsageError, match=r"shapes \(6, 5\) and \(7, 5\)"):
        find_objective("distill").loss(logits, targets, model_logits=logits[:-1])


def test_the_prior_bias_counts_labels():
    objective = find_objective("sigmoid")
    shares = prior_bias(objective, 3, torch.tensor([[0, 0], [0, 1]])).sigmoid()
    assert torch.allclose(shares, torch.tensor([3.5, 1.5, 0.5]) / 5.5)
    assert torch.allclose(prior_bias(objective, 4).sigmoid(), torch.full((4,), 0.25))
