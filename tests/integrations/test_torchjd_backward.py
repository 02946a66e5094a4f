"""A backward pass with an aggregator of TorchJD: what shared and other parameters get."""

import pytest
import torch
import torch.nn.functional as F
from adapters import BATCH, CLASSES, Net, examples, seeded

from asymtrain import UsageError, alignment, attach

torchjd = pytest.importorskip("torchjd", reason="TorchJD is not installed")

from torchjd.aggregation import PCGrad, UPGrad  # noqa: E402

from asymtrain.integrations.torchjd import build_aggregator, combine_backward  # noqa: E402

ALPHA = 0.7


def losses(model, branches):
    x, y = examples(1)
    # Other labels for the branches, so that the two objectives conflict.
    return F.cross_entropy(model(x), y), branches.loss(y.flip(0))


@pytest.fixture
def attached():
    model = seeded(Net)
    return model, attach(model, at="blocks.*", sample=examples(1)[0][:2], classes=CLASSES)


def gradients_of(model, branches):
    return {name: value.grad.clone() for part in (model, branches) for name, value in part.named_parameters()}


def rows_of(model, branches):
    """The two gradients of all parameters, each by its own backward."""
    rows = []
    for index, weight in enumerate((1.0, ALPHA)):
        model.zero_grad()
        branches.zero_grad()
        (weight * losses(model, branches)[index]).backward()
        named = [(name, value.grad) for part in (model, branches) for name, value in part.named_parameters()]
        rows.append({name: None if grad is None else grad.clone() for name, grad in named})
    model.zero_grad()
    branches.zero_grad()
    return rows


def test_sum_is_the_ordinary_backward(attached):
    model, branches = attached
    main, auxiliary = losses(model, branches)
    expected = alignment(main, auxiliary, model)
    (main + ALPHA * auxiliary).backward()
    wanted = gradients_of(model, branches)
    model.zero_grad()
    branches.zero_grad()
    found = combine_backward(*losses(model, branches), ALPHA, model, branches, aggregator="sum")
    assert found.cosine == pytest.approx(expected.cosine, abs=1e-6)
    assert found.auxiliary_norm == pytest.approx(expected.auxiliary_norm, rel=1e-5)
    for name, value in gradients_of(model, branches).items():
        assert torch.allclose(value, wanted[name], atol=1e-7), name


@pytest.mark.parametrize(
    "aggregator", ["pcgrad", "upgrad", "mgda", "imtl_g", "aligned_mtl", PCGrad(), UPGrad()], ids=str
)
def test_shared_parameters_get_the_aggregate_and_others_their_own(aggregator, attached):
    model, branches = attached
    mains, parts = rows_of(model, branches)
    shared = [name for name in mains if mains[name] is not None and parts[name] is not None]
    assert shared == [name for name, _ in model.named_parameters() if name.startswith("blocks")]
    combine = build_aggregator(aggregator) if isinstance(aggregator, str) else aggregator
    rows = torch.stack([torch.cat([row[name].flatten() for name in shared]) for row in (mains, parts)])
    wanted = combine(rows)
    combine_backward(*losses(model, branches), ALPHA, model, branches, aggregator=aggregator)
    got = gradients_of(model, branches)
    assert torch.allclose(torch.cat([got[name].flatten() for name in shared]), wanted, atol=1e-6)
    for name in got.keys() - set(shared):
        alone = parts[name] if mains[name] is None else mains[name]
        assert torch.allclose(got[name], alone, atol=1e-7), name


def test_gradients_accumulate(attached):
    model, branches = attached
    combine_backward(*losses(model, branches), ALPHA, model, branches)
    once = gradients_of(model, branches)
    combine_backward(*losses(model, branches), ALPHA, model, branches)
    for name, value in gradients_of(model, branches).items():
        assert torch.allclose(value, 2 * once[name], atol=1e-7), name


def test_without_an_auxiliary_part_the_main_gradient_stays(attached):
    model, branches = attached
    mains, _ = rows_of(model, branches)
    combine_backward(*losses(model, branches), 0.0, model, branches, aggregator="mgda")
    for name, value in model.named_parameters():
        assert torch.equal(value.grad, mains[name]), name


def test_what_is_refused(attached):
    model, branches = attached
    with pytest.raises(UsageError, match="unknown aggregator 'pcgrda': did you mean 'pcgrad'"):
        combine_backward(*losses(model, branches), 1.0, model, branches, aggregator="pcgrda")
    with pytest.raises(UsageError, match=r"takes a matrix \(2, P\) to \(P,\)"):
        combine_backward(*losses(model, branches), 1.0, model, branches, aggregator=lambda rows: rows)
    wrapped = torch.nn.parallel.DistributedDataParallel.__new__(torch.nn.parallel.DistributedDataParallel)
    with pytest.raises(UsageError, match="give the model inside it"):
        combine_backward(*losses(model, branches), 1.0, wrapped, branches)
    x, y = examples(1)
    assert len(x) == BATCH
    with pytest.raises(UsageError, match="no parameter is reached by both losses"):
        combine_backward(F.cross_entropy(model(x), y), branches.loss(y).detach().requires_grad_(), 1.0, model)
