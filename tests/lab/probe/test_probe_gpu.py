"""The probe on a CUDA device."""

import pytest
import torch
from probe_models import build, learnable

from asymtrain.lab.probe import probe

pytestmark = pytest.mark.gpu


def test_a_gpu_measures_what_a_cpu_does_and_keeps_its_random_state():
    model = build(dropout=0.0)
    options = {"steps": 20, "seeds": 2, "alphas": (1.0,), "every": 4}
    on_cpu = probe(model, learnable(), **options)
    moved = build(dropout=0.0).cuda()
    torch.cuda.manual_seed(3)
    before = torch.cuda.get_rng_state()
    on_gpu = probe(moved, learnable(), **options)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert on_gpu.shadow.together.cosines[0] == pytest.approx(on_cpu.shadow.together.cosines[0], abs=1e-3)
    assert len(on_gpu.trials[0].seeds) == 2


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_mixed_precision(kind):
    found = probe(build().cuda(), learnable(), steps=10, alphas=(), every=2, autocast=kind)
    assert found.shadow.together.alignment is not None
