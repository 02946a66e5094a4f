"""Which forward the answers are about."""

import copy
import weakref

import pytest
import torch
import torch.nn.functional as F
from branch_zoo import CLASSES, attached, mlp, rows, targets
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from asymtrain.branches import attach
from asymtrain.branches._pooling import Pool
from asymtrain.errors import UsageError


class Steps(nn.Module):
    """Two blocks; the second can be skipped, the blocks can be checkpointed."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(7, 7), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(7, CLASSES)
        self.skip: set[int] = set()
        self.reentrant: bool | None = None

    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.blocks):
            if index in self.skip:
                continue
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


def test_a_submodules_call_is_not_a_forward() -> None:
    outer = nn.Sequential(mlp())
    branches = attach(outer, rows(), CLASSES, at="0.1")
    for _ in range(2):  # before any call, and after one
        for ask in (branches.logits, lambda: branches.loss(targets()), lambda: branches.accuracies(targets())):
            with pytest.raises(UsageError, match=r"no forward has reached .* of a submodule, of .forward\(\) or of a"):
                ask()
        outer[0](rows())


def test_the_latest_forward_counts_whatever_its_mode() -> None:
    model = mlp()
    branches = attach(model, rows(), CLASSES, at="1", head="linear")
    first, second = rows(), rows()
    model(first)
    with torch.no_grad():
        model.eval()(second)
        expected = model[1](model[0](second)) @ branches.head("1").live.T
        assert torch.equal(branches.logits()["1"], expected)
        branches.loss(targets())  # without gradients on both sides: an evaluation
    branches.accuracies(targets())
    with pytest.raises(UsageError, match=r"latest forward ran without gradients .* attach with preset='probe'"):
        branches.loss(targets())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pool": torch.square},
        {"pool": "none"},
        {"output": lambda rows: rows * 1},
        {"mask": lambda x: x.new_ones(len(x), 1)},
        {"head": "mlp"},
    ],
    ids=lambda options: next(iter(options), "held"),
)
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("steps", [0, 9])
def test_a_backward_through_a_forward_without_its_loss_is_refused(
    options: dict[str, object], checkpointed: bool, steps: int
) -> None:
    model, x = Steps(), rows()
    branches = attach(model, x, CLASSES, at="blocks.*", **options)
    model.reentrant = False if checkpointed else None
    for _ in range(steps):
        (F.cross_entropy(model(x), targets()) + branches.loss(targets())).backward()
    first = F.cross_entropy(model(x), targets())
    branches.accuracies(targets())  # no loss
    second = F.cross_entropy(model(x), targets()) + branches.loss(targets())
    model.zero_grad()
    with pytest.raises(UsageError, match=r"two calls of the model, .* right after each call .* branches.forget\(\)"):
        (first + second).backward()
    loss = F.cross_entropy(model(x), targets()) + branches.loss(targets())
    (loss + F.cross_entropy(model(x), targets()) + branches.loss(targets())).backward()


def test_a_forward_that_is_forgotten_needs_no_loss() -> None:
    model, x, branches = attached()
    for _ in range(2):
        first = F.cross_entropy(model(x), targets())
        branches.forget()
        with pytest.raises(UsageError, match=r"no forward has reached the branches.*branches.forget\(\)"):
            branches.loss(targets())
        (first + F.cross_entropy(model(x), targets()) + branches.loss(targets())).backward()
    branches.strip()
    with pytest.raises(UsageError, match="these branches are stripped"):
        branches.forget()


def test_a_recurrent_model_learns_from_its_last_step_where_the_others_are_forgotten() -> None:
    model, x = nn.Sequential(nn.Linear(7, 7), nn.Tanh()), rows()
    branches = attach(model, x, CLASSES, at="1")
    state = model(x)
    with pytest.raises(UsageError, match="two calls of the model"):
        (model(state).sum() + branches.loss(targets())).backward()
    state = x
    for _ in range(3):
        branches.forget()
        state = model(state)
    (state.sum() + branches.loss(targets())).backward()


def test_forwards_whose_features_nobody_wants_are_let_be() -> None:
    model, x, branches = attached(at="1")
    looked_at = model(x)
    for turn in range(4):
        loss = F.cross_entropy(model(x), targets())  # the graph of the turn before lives on in `loss`
        if turn % 2:
            loss = loss + branches.loss(targets())
        loss.backward()
    (F.cross_entropy(model(x), targets()) + F.cross_entropy(model(x), targets())).backward()  # no auxiliary loss
    first = F.cross_entropy(model(x), targets()) + branches.loss(targets())
    with torch.no_grad():
        model(x)
    second = F.cross_entropy(model(x), targets()) + branches.loss(targets())
    (first + second).backward()
    assert looked_at.requires_grad


class Counted:
    """A pool that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, feature: Tensor) -> Tensor:
        self.calls += 1
        return feature.flatten(1)


def test_nothing_is_pooled_in_an_evaluation_unless_asked_for() -> None:
    pool, model, x = Counted(), mlp().eval(), rows()
    branches = attach(model, x, CLASSES, at="2", head="linear", pool=pool)
    hook = branches._capture.layers["2"]
    with torch.no_grad():
        model(x)  # tells whether the model changes the output in place
        pool.calls = 0
        for _ in range(3):
            model(x)
        assert pool.calls == 0
        assert hook.caught.output is not None
        expected = model[2](model[1](model[0](x))) @ branches.head("2").live.T
        for _ in range(2):
            assert torch.equal(branches.logits()["2"], expected)
    assert pool.calls == 1
    assert hook.caught.output is None
    with torch.no_grad():
        model(x)
    branches.strip()
    assert hook.caught is None  # no feature outlives the branches


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "options",
    [{}, {"output": lambda output: output * 1}, {"pool": lambda output: output}],
    ids=["as it is", "output", "pool"],
)
def test_branches_see_what_was_there_before_an_operation_in_place(
    mode: type[torch.no_grad], options: dict[str, object]
) -> None:
    # nn.ReLU(inplace=True) comes after the first.
    model, x, branches = attached(mlp().eval(), at=["0", "2"], head="linear", **options)
    with mode():
        for _ in range(3):
            expected = {name: model[: int(name) + 1](x) @ branches.head(name).live.T for name in branches.layers}
            model(x)
            assert torch.allclose(branches.loss(targets()), branches.loss(targets(), logits=expected))
            model(x)
            assert all(torch.allclose(values, expected[name]) for name, values in branches.logits().items())


class Writing(nn.Module):
    """Writes what it makes into the dictionary that it was given."""

    def __init__(self, taken: int, made: int) -> None:
        super().__init__()
        self.layer = nn.Linear(taken, made)

    def forward(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        given["x"] = self.layer(given["x"]).tanh()
        return given


class WritingSteps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList([Writing(7, 6), Writing(6, 6), Writing(6, 8)])

    def forward(self, x: Tensor) -> Tensor:
        given = {"x": x}
        for each in self.steps:
            given = each(given)
        return given["x"]


@pytest.mark.parametrize("pool", ["mean", lambda rows: rows * 2])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_a_container_that_later_modules_write_into(mode: type[torch.no_grad], pool: Pool) -> None:
    model, x = WritingSteps(), rows()
    branches = attach(model, x, CLASSES, at="steps.*", head="linear", output="x", pool=pool)
    with mode():
        for _ in range(3):
            given, expected = {"x": x}, {}
            for each, name in zip(model.steps, branches.layers, strict=True):
                given = each(given)
                expected[name] = given["x"] @ branches.head(name).live.T * (1 if pool == "mean" else 2)
            model(x)
            assert torch.allclose(branches.loss(targets()), branches.loss(targets(), logits=expected))
            model(x)
            assert all(torch.allclose(values, expected[name]) for name, values in branches.logits().items())


def test_a_feature_held_and_then_changed_is_refused() -> None:
    model, x, branches = attached(mlp().eval(), at="2")
    with torch.no_grad():
        model(x)
        model(x)
        branches._capture.layers["2"].caught.output.add_(1)
        with pytest.raises(UsageError, match=r"'2' gives a feature that the model changes in place .* inplace=False"):
            branches.logits()


@pytest.mark.parametrize("layer", ["0", "1"])
def test_changes_in_place_of_tokens_which_are_not_copied_are_refused(layer: str) -> None:
    model, tokens = mlp(), torch.randn(3, 5, 7)
    branches = attach(model, tokens, CLASSES, at=layer, pool="none", layout="BTD")
    model(tokens)
    if layer == "0":  # nn.ReLU(inplace=True) comes after it
        with pytest.raises(UsageError, match=r"'0' gives a feature that the model changes in place .* inplace=False"):
            branches.logits()
    else:
        assert branches.logits()["1"].shape == (3, 5, CLASSES)


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, 11)

    def forward(self, position: Tensor, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.head(self.block(self.embed(input_ids) + position))


def test_the_tokens_are_the_models_first_integers_that_are_no_mask() -> None:
    model, tokens, mask = Language(), torch.arange(10).reshape(2, 5), torch.tensor([[1, 1, 1, 0, 0]] * 2)
    sample = {"attention_mask": mask, "position": torch.zeros(5, 6), "input_ids": tokens}
    rule = {"mask": lambda position, input_ids, attention_mask: attention_mask}
    branches = attach(model, sample, 11, at="block", pool="none", layout="BTD", **rule)
    for args, kwargs in (((), sample), ((sample["position"], tokens, mask), {})):
        model(*args, **kwargs)
        assert torch.equal(branches._capture.forward.mask, mask)
        with pytest.raises(UsageError, match="the targets are the model's own inputs"):
            branches.loss(tokens)


def test_a_mask_after_any_number_of_arguments_is_given_by_name_alone() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.head = nn.Linear(6, 6), nn.Linear(6, CLASSES)

        def forward(self, *parts: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            return self.head(self.block(torch.stack(parts).sum(0).cumsum(1)).mean(1))

    model, x = Sum(), torch.randn(3, 5, 6)
    branches = attach(model, (x, x), CLASSES, at="block")
    model(x, x)
    branches.loss(targets()).backward()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("end", ["forget", "strip", "forward"])
def test_features_stay_until_they_are_dropped(training: bool, end: str) -> None:
    model, x, branches = attached(at="1")
    made: list[weakref.ref[Tensor]] = []
    model[1].register_forward_hook(lambda *call: made.append(weakref.ref(call[-1])))
    with torch.set_grad_enabled(training):
        for _ in range(2):  # the first tells that the model does not change it in place
            model(x)
    if training:
        branches.loss(targets()).backward()
        assert branches.accuracies(targets())
    assert made[1]() is not None
    model(x) if end == "forward" else getattr(branches, end)()
    assert made[1]() is None


def test_skipped_layers_are_an_error_unless_allowed() -> None:
    model, x = Steps(), rows()
    branches = attach(model, x, CLASSES, at="blocks.*")
    model(x)
    model.skip = {1}
    model(x)
    # The first forward's feature of the second block must not be taken for this forward's.
    with pytest.raises(
        UsageError, match=r"1 of 2 layers did not run .*\('blocks.1' first\): set branches.allow_skipped = True"
    ):
        branches.loss(targets())
    model.skip = {0, 1}
    model(x)
    with pytest.raises(UsageError, match=r"2 of 2 layers did not run .*allow_skipped = True if .* torch.compile"):
        branches.loss(targets())


def test_skipped_layers_are_left_out_where_allowed() -> None:
    model, x = Steps(), rows()
    branches = attach(model, x, CLASSES, at="blocks.*")
    branches.allow_skipped = True
    model.skip = {0}
    model(x)
    assert list(branches.losses(targets())) == list(branches.accuracies(targets())) == ["blocks.1"]
    branches.loss(targets()).backward()
    assert branches.head("blocks.0").live.grad is None
    assert branches.head("blocks.1").live.grad is not None
    model.skip = {0, 1}
    loss = F.cross_entropy(model(x), targets()) + 0.5 * branches.loss(targets())
    assert torch.equal(loss, F.cross_entropy(model(x), targets()))
    assert branches.logits() == {}
    loss.backward()


@pytest.mark.parametrize("replaced", [[0], [0, 1]])
def test_a_place_that_was_replaced_is_told(replaced: list[int]) -> None:
    model, x = Steps(), rows()
    branches = attach(model, x, CLASSES, at="blocks.*")
    for index in replaced:
        model.blocks[index] = nn.Linear(7, 7)
    model(x)
    with pytest.raises(UsageError, match=r"'blocks.0' first.* replaced after attach, strip"):
        branches.loss(targets())
    branches.strip()
    again = attach(model, x, CLASSES, at="blocks.*")
    model(x)
    again.loss(targets()).backward()


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("early_stop", [False, True])
@pytest.mark.parametrize("pool", ["mean", torch.square], ids=["mean", "square"])
def test_recomputation_in_backward_is_ignored(whole: bool, early_stop: bool, pool: object) -> None:
    """By block, and with the attached model itself in a checkpoint; also where the pool saves tensors of its own."""
    model, x = Steps(), rows()
    plain = copy.deepcopy(model)
    branches, reference = (attach(one, x, CLASSES, at="blocks.*", pool=pool) for one in (model, plain))
    calls: list[int] = []
    model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    model.reentrant = None if whole else False
    for _ in range(2):
        with set_checkpoint_early_stop(early_stop):
            output = checkpoint(model, x, use_reentrant=False) if whole else model(x)
        caught = branches._capture.rows(allow_skipped=False)
        (F.cross_entropy(output, targets()) + branches.loss(targets())).backward()
        after = branches._capture.rows(allow_skipped=False)
        assert all(caught[name] is after[name] for name in caught)
        (F.cross_entropy(plain(x), targets()) + reference.loss(targets())).backward()
    assert len(calls) == 4  # each forward, and its recomputation
    for one, other in zip(
        [*model.parameters(), *branches.parameters()], [*plain.parameters(), *reference.parameters()], strict=True
    ):
        assert torch.allclose(one.grad, other.grad, atol=1e-6)


def test_reentrant_checkpointing_is_refused() -> None:
    model, x = Steps(), rows().requires_grad_()
    branches = attach(model, x, CLASSES, at="blocks.*")
    model.reentrant = True
    model(x)
    with pytest.raises(UsageError, match=r"'blocks.0' ran without gradients .* use_reentrant=False.* preset='probe'"):
        branches.loss(targets())
    model.reentrant = None
    checkpoint(model, x, use_reentrant=True)
    with pytest.raises(UsageError, match=r"latest forward ran without gradients .*use_reentrant=True"):
        branches.loss(targets())


def test_a_forward_that_fails_does_not_spoil_the_next() -> None:
    model, x = Steps(), rows()
    branches = attach(model, x, CLASSES, at="blocks.*")
    with pytest.raises(RuntimeError):
        model(torch.randn(3, 9))
    model(x)
    branches.loss(targets())


def test_another_width_than_the_samples_is_refused() -> None:
    class Loose(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.same = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.same(x)

    model = Loose()
    branches = attach(model, rows(), CLASSES, at="same")
    model(torch.randn(3, 9))
    with pytest.raises(UsageError, match="'same' now gives 9 features, and gave 7 on the sample"):
        branches.loss(targets())
    model(torch.randn(3, 7, 2))  # the forward itself is not disturbed
    with pytest.raises(
        UsageError, match=r"'same' gives shape \(3, 7, 2\), which does not have the axes of layout 'BD'"
    ):
        branches.loss(targets())
