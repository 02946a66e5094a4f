"""The Triton kernels against torch in float64. Needs a CUDA device: `make test-gpu`."""

import pytest
import torch
import torch.nn.functional as F

from asymtrain.models import _kernels as kernels

pytestmark = pytest.mark.gpu
BF16 = 1e-2  # relative, of the whole tensor: what rounding operands to bfloat16 costs


@pytest.fixture
def operators():
    kernels.load_kernels(torch.device("cuda"))
    assert kernels._OPERATORS is not None
    return kernels._OPERATORS


def draw(*shape):
    return torch.randn(*shape, device="cuda").bfloat16().requires_grad_()


def apart(found, wanted):
    assert found.isfinite().all()
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()


@pytest.mark.parametrize(("patches", "heads", "width"), [(64, 4, 32), (16, 2, 16), (64, 2, 64), (32, 3, 32)])
@pytest.mark.parametrize("runs", [1, 3])
def test_attention_is_that_of_torch(operators, patches, heads, width, runs):
    torch.manual_seed(0)
    batch, count, size = 5, patches + 1, heads * width
    qkv, bias = draw(runs, batch * count, 3 * size), draw(runs, 3 * size)
    grad = draw(runs, batch * count, size).detach()

    def plain(qkv, bias):
        parts = (qkv + bias[:, None]).view(runs * batch, count, 3, heads, width).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(runs, batch * count, size)

    wanted = plain(qkv.double(), bias.double())
    wanted_grads = torch.autograd.grad(wanted, [qkv, bias], grad.double())
    found = operators.attend(qkv, bias, batch, heads)
    found_grads = torch.autograd.grad(found, [qkv, bias], grad)
    assert apart(found, wanted) < BF16
    for f, w in zip(found_grads, wanted_grads, strict=True):
        assert apart(f, w) < BF16


@pytest.mark.parametrize(("channels", "size"), [(256, 32), (128, 16), (24, 6)])
@pytest.mark.parametrize("channels_last", [True, False])
def test_pooling_is_that_of_torch(operators, channels, size, channels_last):
    torch.manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    maps = torch.randn(4, channels, size, size, device="cuda").bfloat16().to(memory_format=layout).requires_grad_()
    bias = draw(channels)
    wanted = torch.relu(F.max_pool2d(maps.double() + bias.double()[:, None, None], 2))
    grad = torch.randn_like(wanted)
    wanted_grads = torch.autograd.grad(wanted, [maps, bias], grad)
    found = operators.pool_relu(maps, bias)
    found_grads = torch.autograd.grad(found, [maps, bias], grad.bfloat16())
    assert apart(found, wanted) < BF16
    for f, w in zip(found_grads, wanted_grads, strict=True):
        assert apart(f, w) < BF16


def test_pooling_shows_nan(operators):
    maps = torch.zeros(1, 8, 2, 2, device="cuda", dtype=torch.bfloat16)
    maps[0, 3, 1, 0] = maps[0, 4, 0, 0] = float("nan")
    pooled = operators.pool_relu(maps, torch.zeros(8, device="cuda", dtype=torch.bfloat16))
    assert pooled[0, [3, 4]].isnan().all()
    assert not pooled[0, [0, 1, 2, 5, 6, 7]].isnan().any()


@pytest.mark.parametrize(("runs", "rows", "width"), [(3, 325, 512), (1, 128, 64), (2, 7, 1024)])
def test_gelu_is_that_of_torch(operators, runs, rows, width):
    torch.manual_seed(0)
    raw, bias = draw(runs, rows, width), draw(runs, width)
    grad = draw(runs, rows, width).detach()
    wanted = F.gelu(raw.double() + bias.double()[:, None])
    wanted_grads = torch.autograd.grad(wanted, [raw, bias], grad.double())
    found = operators.bias_gelu(raw, bias)
    found_grads = torch.autograd.grad(found, [raw, bias], grad)
    assert apart(found, wanted) < BF16
    for f, w in zip(found_grads, wanted_grads, strict=True):
        assert apart(f, w) < BF16


def test_gelu_at_the_ends_of_its_range(operators):
    values = torch.tensor([float("nan"), float("inf"), -200.0, -8.0, 0.0, 200.0], device="cuda").bfloat16()
    raw = values.repeat(11)[:64].view(1, 1, 64)
    found = operators.bias_gelu(raw, torch.zeros(1, 64, device="cuda", dtype=torch.bfloat16))
    assert found[0, 0, 0].isnan()
    assert torch.allclose(found[0, 0, 1:6].float(), F.gelu(values[1:].float()), atol=1e-6)
