"""Attention on a GPU: what the CPU measures, and training as it would have been."""

import dataclasses

import numpy as np
import pytest
import torch

from asymtrain.lab.engine import load_for
from asymtrain.lab.engine.states import initial_state
from asymtrain.lab.instruments.attention.maps import attention_maps
from asymtrain.lab.instruments.attention.measure import measure_states
from asymtrain.lab.instruments.attention.metrics import METRICS
from asymtrain.lab.runs import RunSpec
from asymtrain.models import build

pytestmark = pytest.mark.gpu

SPEC = RunSpec(arch="vit", dataset_options={"classes": 20, "size": 400, "test_size": 200})


def states_of_seeds(seeds):
    dataset = load_for(SPEC)
    states = [initial_state(dataclasses.replace(SPEC, seed=seed), dataset) for seed in seeds]
    # Larger queries and keys, so that the maps are far from uniform.
    sharp = [{n: v * 4 if "attention.qkv" in n else v for n, v in state.parameters.items()} for state in states]
    return [dataclasses.replace(s, parameters=p) for s, p in zip(states, sharp, strict=True)], dataset


def test_the_gpu_measures_what_the_cpu_measures():
    states, dataset = states_of_seeds([1, 2])
    for here, there in zip(*(measure_states(states, dataset, device=d) for d in ("cpu", "cuda")), strict=True):
        assert here.images == there.images
        for metric in METRICS:
            # A patch at the threshold may fall on either side: one of 64 patches.
            tolerance = 2 / 64 if metric == "coverage_above" else 1e-3
            np.testing.assert_allclose(there.values[metric], here.values[metric], atol=tolerance, rtol=1e-3)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["float32", "autocast"])
def test_a_training_step_is_bit_identical_on_the_gpu(dtype):
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)).cuda()
    weights = []
    for looks in (True, False):
        vit = build("vit", classes=10, seed=0, depth=2).cuda()
        optimizer = torch.optim.AdamW(vit.parameters(), lr=1e-2)
        for _ in range(2):
            with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
                logits = attention_maps(vit, images)[0] if looks else vit(images)
            optimizer.zero_grad()
            logits.float().square().sum().backward()
            optimizer.step()
        weights.append([p.detach().clone() for p in vit.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
