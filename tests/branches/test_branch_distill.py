"""Branches that also learn from the model's own answers."""

import copy

import pytest
import torch
import torch.nn.functional as F
from branch_zoo import CLASSES, Cnn, attached, images, mlp, rows, targets, vit
from test_branch_dense import VOCABULARY, Language
from torch import Tensor, nn

from asymtrain.branches import Branches, Parallel, WithBranches, attach
from asymtrain.errors import UsageError

AT = ["1", "3"]
T = 3.0


def expected(logits: Tensor, model_logits: Tensor, y: Tensor) -> Tensor:
    """In torch's words."""
    soft = F.softmax(model_logits.detach().float() / T, -1)
    divergence = F.kl_div(F.log_softmax(logits / T, -1), soft, reduction="batchmean")
    return 0.5 * F.cross_entropy(logits, y) + 0.5 * T**2 * divergence


def assert_distilled(branches: Branches, output: Tensor, **options: object) -> None:
    losses = branches.losses(targets(), **options)
    found = options.get("logits") or branches.logits()
    for name, loss in losses.items():
        each = found[name] if found[name].ndim == 3 else found[name][None]
        torch.testing.assert_close(loss, sum(expected(one, output, targets()) for one in each))
    torch.testing.assert_close(
        branches.loss(targets(), **options), branches.strength * sum(losses.values()) / len(losses)
    )


@pytest.mark.parametrize("activation", ["last", "all"])
def test_the_models_own_logits_are_the_second_target(activation: str) -> None:
    model, x, branches = attached(mlp().eval(), objective="distill", head=Parallel(2, activation=activation))
    for batch in (x, rows()):
        assert_distilled(branches, model(batch))
    output = model(x)
    branches.loss(targets()).backward()
    assert model[-1].weight.grad is None  # the answers are constants
    assert model[0].weight.grad.any()
    output.data.zero_()  # what is done to the output afterwards is no answer of the model
    assert_distilled(branches, copy.deepcopy(model)(x))


def test_with_branches_hands_the_answers_over() -> None:
    """Of two calls each loss has its own answers, whichever came last."""
    model = mlp().eval()
    branches = attach(model, rows(), CLASSES, at=AT, objective="distill")
    net = WithBranches(model, branches)
    pairs = [net(rows()) for _ in range(2)]
    for output, logits in pairs:
        assert_distilled(branches, output, logits=logits)
    assert branches.accuracies(targets(), logits=pairs[0][1]).keys() == set(AT)


def test_the_model_itself_is_a_layer_beside_its_answers() -> None:
    model = mlp().eval()
    branches = attach(model, rows(), CLASSES, at=[*AT, ""], objective="distill")
    output, logits = WithBranches(model, branches)(rows())
    found = branches.losses(targets(), logits=logits)
    head = branches.head("(model)")
    torch.testing.assert_close(found["(model)"], expected(head(output), output, targets()))


@pytest.mark.parametrize("whole", [False, True])
def test_compiled(whole: bool) -> None:
    model, x, branches = attached(mlp().eval(), objective="distill")
    model(x)
    wanted = F.cross_entropy(model(x), targets()) + branches.loss(targets())
    gradients = torch.autograd.grad(wanted, [*model.parameters(), *branches.parameters()])
    net = torch.compile(WithBranches(model, branches), backend="aot_eager", fullgraph=True)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def in_one(x: Tensor) -> Tensor:
        return F.cross_entropy(model(x), targets()) + branches.loss(targets())

    for turn in range(3):
        with torch.compiler.set_stance("fail_on_recompile" if turn else "default"):
            if whole:
                loss = in_one(x)
            else:
                output, logits = net(x)
                loss = F.cross_entropy(output, targets()) + branches.loss(targets(), logits=logits)
        torch.testing.assert_close(loss, wanted)
        torch.testing.assert_close(torch.autograd.grad(loss, [*model.parameters(), *branches.parameters()]), gradients)
    torch._dynamo.reset()


def test_under_autocast(bfloat16_on_any_cpu: None) -> None:
    model, x, branches = attached(mlp().eval(), objective="distill")
    with torch.autocast("cpu", torch.bfloat16):
        output = model(x)
        assert output.dtype == torch.bfloat16
        assert branches.loss(targets()).dtype == torch.float32
        assert_distilled(branches, output)


def test_answers_in_a_container_and_of_maps() -> None:
    model, x = vit().eval(), images()  # its output is a dataclass with `logits`
    classes = model(x).logits.shape[1]
    branches = attach(model, x, classes, objective="distill")
    assert_distilled(branches, model(x).logits)
    model = Cnn().eval()
    branches = attach(model, x, CLASSES, at="convs.0", objective="distill", head="tower")
    assert_distilled(branches, model(x))


class Features(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 6)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"features": self.layer(x)}


def test_models_without_answers_are_refused() -> None:
    told = r"none of shape \(B, C\) for these classes in its output .*: return them there, or choose objective="
    for model, x, classes, at in (
        (Features(), rows(), CLASSES, "layer"),
        (mlp(), rows(), CLASSES + 1, "1"),
        (Language(), torch.randint(VOCABULARY, (3, 5)), VOCABULARY, "blocks.0"),
    ):
        with pytest.raises(UsageError, match=told):
            attach(
                model, x, classes, at=at, objective="distill", layout={"blocks.0": "BTD"} if at == "blocks.0" else None
            )
    with pytest.raises(UsageError, match=r"needs one row a sample.* layer 'convs.0' keeps its positions"):
        attach(Cnn(), images(), CLASSES, at="convs.0", objective="distill", pool="none")


def test_answers_that_are_gone_are_missed() -> None:
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.whole = nn.Linear(7, 6), nn.Linear(6, CLASSES), True

        def forward(self, x: Tensor) -> object:
            x = self.body(x)
            return self.head(x) if self.whole else {"features": x}

    model, x = Changing(), rows()
    branches = attach(model, x, CLASSES, at="body", objective="distill")
    model.whole = False
    model(x)
    with pytest.raises(UsageError, match="found none of shape"):
        branches.loss(targets())
