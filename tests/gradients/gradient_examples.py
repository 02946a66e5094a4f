"""A small backbone with branches, and a batch."""

import torch

from asymtrain import attach, models
from small_backbones import LEARNING


def small(arch="mlp"):
    model = models.build(arch, classes=4, seed=0, image_size=8, **LEARNING[arch])
    x, y = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 4
    branches = attach(model, x, 4, at=list(model.points), layout=model.layout, pool=model.pool)
    return model, branches, x, y
