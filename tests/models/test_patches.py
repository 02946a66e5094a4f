"""Convolution by patches is torch's convolution, in values and gradients; test_kernels_gpu.py has bfloat16."""

import pytest
import torch
import torch.nn.functional as F

from asymtrain.models.patches import convolve_patches, suits_patches


@pytest.mark.parametrize(("channels", "height", "width"), [(3, 32, 32), (1, 6, 10), (2, 1, 1)])
def test_patches_give_torch_s_convolution(channels, height, width):
    torch.manual_seed(0)
    maps = torch.randn(4, channels, height, width, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, channels, 3, 3, dtype=torch.float64, requires_grad=True)
    wanted, found = F.conv2d(maps, weight, padding=1), convolve_patches(maps, weight)
    torch.testing.assert_close(found, wanted)
    grad = torch.randn_like(wanted)
    for one, two in zip(
        torch.autograd.grad(found, [maps, weight], grad), torch.autograd.grad(wanted, [maps, weight], grad), strict=True
    ):
        torch.testing.assert_close(one, two)


def test_the_result_has_its_channels_last():
    found = convolve_patches(torch.randn(2, 3, 8, 8), torch.randn(16, 3, 3, 3))
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_a_cpu_keeps_torch_s_convolution():
    assert not suits_patches(torch.zeros(1, 3, 4, 4, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("channels", "dtype", "suits"),
    [(3, torch.bfloat16, True), (3, torch.float32, False), (4, torch.bfloat16, False)],
)
def test_few_channels_in_bfloat16_on_a_gpu_go_by_patches(channels, dtype, suits):
    class OnGPU:  # what the choice looks at; a tensor on a GPU cannot be had here
        is_cuda, shape = True, (1, channels, 4, 4)

    OnGPU.dtype = dtype
    assert suits_patches(OnGPU()) is suits
