"""Attention of any model: modules of users, what stands before the patches, images and masks that are refused."""

import numpy as np
import pytest
import torch
from attention_zoo import TOWERS, Fused, Tower, hugging_face_vit, own_vit, pictures
from torch import nn

from asymtrain.errors import UsageError
from asymtrain.lab.instruments.attention.maps import split_heads
from asymtrain.lab.instruments.attention.measure import measure_model
from asymtrain.lab.instruments.attention.metrics import METRICS
from asymtrain.lab.instruments.attention.result import AttentionSettings


def test_models_of_other_libraries():
    pytest.importorskip("transformers")
    masks = torch.zeros(3, 16, 16)
    masks[:, :8] = 1
    result = measure_model(hugging_face_vit(), pictures(), masks=masks)
    assert list(result.values) == list(METRICS)
    assert (len(result.layers), result.patches) == (2, 16)

    def read(module, x):
        return split_heads(module.q_proj(x), 4), split_heads(module.k_proj(x), 4)

    tower = Tower(lambda width: Fused(width, 4, one_layer=False))
    named = measure_model(tower, pictures(), AttentionSettings(layers=("blocks.1.attn",)), read=read)
    known = measure_model(tower, pictures())
    np.testing.assert_allclose(named.of("gini"), known.of("gini", "blocks.1.attn"), rtol=1e-5)


class Counted(Tower):
    """Patches of 4 x 4 pixels behind any number of other tokens."""

    def __init__(self, before):
        super().__init__(lambda width: Fused(width, 4))
        self.before = nn.Parameter(torch.randn(1, before, 16))

    def forward(self, images):
        tokens = torch.cat([self.before.expand(len(images), -1, -1), self.embed(images).flatten(2).mT], 1)
        for block in self.blocks:
            tokens = tokens + block["attn"](block["norm"](tokens))
        return self.head(tokens.mean(1))


def test_tokens_that_are_no_grid_have_no_regions():
    model = Counted(18)  # 34 tokens: 26 to 34 of them are no square
    result = measure_model(model, pictures(), prefix=3)
    assert list(result.values) == ["peak_strength", "entropy", "gini", "coverage_above"]
    with pytest.raises(UsageError, match="31 patches are no grid over masks of 16 x 16 pixels: leave out masks"):
        measure_model(model, pictures(), prefix=3, masks=torch.ones(3, 16, 16))


@pytest.mark.parametrize(
    ("before", "prefix", "text"),
    [
        (0, 1, r"15 patches.* prefix 0 \(leaves 16\)"),
        (2, 1, r"17 patches.* prefix 2 \(leaves 16\)"),
        (5, 1, r"prefix 5 \(leaves 16\)"),  # registers
        (1, 3, r"prefix 1 \(leaves 16\)"),
    ],
)
def test_a_prefix_that_leaves_no_grid_is_refused_where_another_leaves_one(before, prefix, text):
    model = Counted(before)
    with pytest.raises(UsageError, match=text):
        measure_model(model, pictures(), prefix=prefix)
    settings = AttentionSettings(query="class_token" if before else "mean")
    result = measure_model(model, pictures(), settings, prefix=before)
    assert result.patches == 16
    assert list(result.values)[-1] == "coverage_of_saliency"


@pytest.mark.parametrize(("height", "width", "patches"), [(8, 32, 16), (32, 16, 32), (30, 33, 56), (16, 36, 36)])
def test_a_grid_over_images_that_are_not_square_is_measured(height, width, patches):
    assert measure_model(Counted(1), torch.rand(2, 3, height, width)).patches == patches
    with pytest.raises(UsageError, match="no patch is left"):
        measure_model(Counted(1), torch.rand(2, 3, height, width), prefix=patches + 1)


def test_models_that_are_known_have_the_usual_prefix():
    for name, make in TOWERS.items():
        if name == "hugging face":
            pytest.importorskip("transformers")
        assert measure_model(make(), pictures()).patches == 16, name


@pytest.mark.parametrize(
    ("images", "options", "text"),
    [
        (torch.rand(0, 3, 16, 16), {}, "images must be"),
        (torch.rand(3, 16, 16), {}, "images must be"),
        (pictures(), {"pixels": torch.rand(2, 3, 16, 16)}, "pixels must be"),
        (pictures(), {"masks": torch.ones(2, 16, 16)}, "masks must be one for each image"),
        (pictures(), {"masks": torch.ones(3, 8, 8)}, "masks must be one for each image"),
        (pictures(), {"masks": torch.full((3, 16, 16), 255, dtype=torch.uint8)}, "within 0 and 1"),
        (pictures(), {"masks": torch.full((3, 16, 16), torch.nan)}, "within 0 and 1"),
        (pictures(), {"prefix": -1}, "0 or more: got -1"),
    ],
)
def test_images_and_masks_are_checked_before_anything_runs(images, options, text):
    def forward(images):
        raise AssertionError("nothing runs")

    with pytest.raises(UsageError, match=text):
        measure_model(own_vit(), images, forward=forward, **options)
    with pytest.raises(UsageError, match="Linear has no attention"):  # that comes first, whatever the images are
        measure_model(nn.Linear(3, 3), images, **options)


def test_layers_that_do_not_run_are_said():
    settings = AttentionSettings(layers=("blocks.1.attn",))
    tower = Tower(lambda width: Fused(width, 4))
    with pytest.raises(UsageError, match="no attention layer that is asked for ran"):
        measure_model(
            tower,
            pictures(),
            settings,
            forward=lambda x: tower.blocks[0]["attn"](x.flatten(2).mT[..., :1].expand(-1, -1, 16)),
        )


def test_masks_of_any_kind_are_the_same_objects():
    masks = torch.zeros(3, 16, 16)
    masks[:, :8] = 1
    vit = own_vit()
    found = [measure_model(vit, pictures(), masks=masks.to(kind)).of("coverage_of_mask")
             for kind in (torch.float32, torch.bool, torch.uint8)]  # fmt: skip
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
