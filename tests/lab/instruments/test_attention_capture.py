"""Maps seen by hooks: what the model attends with, and nothing about the model is changed."""

import copy

import pytest
import torch
from attention_zoo import TOWERS, Fused, Tower, hugging_face_vit, logits, own_vit, pictures
from torch import nn

from asymtrain.errors import UsageError
from asymtrain.lab.instruments.attention.maps import (
    attention_layers,
    attention_maps,
    recorded_attention,
    split_heads,
)


@pytest.fixture(params=TOWERS, ids=str)
def tower(request):
    if request.param == "hugging face":
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    return TOWERS[request.param]()


@pytest.mark.parametrize("training", [False, True])
def test_the_output_is_bit_equal_and_the_rows_sum_to_one(tower, training):
    tower.train(training)
    images = pictures()
    torch.manual_seed(1)
    expected = logits(tower(images))
    torch.manual_seed(1)
    output, maps = attention_maps(tower, images)
    assert torch.equal(logits(output), expected)
    assert [m.shape for m in maps.values()] == [(3, 4, 17, 17)] * 2
    for one in maps.values():
        assert not one.requires_grad
        torch.testing.assert_close(one.sum(-1), torch.ones(3, 4, 17))
    assert not any(module._forward_hooks for module in tower.modules())


def train(model, looks, steps=3, autocast=False):
    torch.manual_seed(7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.train()
    for step in range(steps):
        images, labels = pictures(seed=step), torch.arange(3)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            if looks:
                output, _ = attention_maps(model, images)
            else:
                output = model(images)
            loss = nn.functional.cross_entropy(logits(output).float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return list(model.parameters())


@pytest.mark.usefixtures("bfloat16_on_any_cpu")
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
def test_training_steps_are_bit_identical(tower, autocast):
    """With dropout, and under autocast, whose cache of casts must not lose its gradients."""
    twin = copy.deepcopy(tower)
    looked, alone = train(tower, True, autocast=autocast), train(twin, False, autocast=autocast)
    assert all(torch.equal(a, b) for a, b in zip(looked, alone, strict=True))


class Hungry(nn.Linear):
    """A query layer with dropout, as adapters have."""

    def forward(self, input):
        return super().forward(nn.functional.dropout(input, 0.5, self.training))


def test_training_is_bit_identical_where_the_query_layer_draws_random_numbers():
    torch.manual_seed(0)
    tower = Tower(lambda width: Fused(width, 4, one_layer=False))
    for block in tower.blocks:
        block["attn"].q_proj = Hungry(16, 16)
    twin = copy.deepcopy(tower)
    assert all(torch.equal(a, b) for a, b in zip(train(tower, True), train(twin, False), strict=True))


def test_our_vit_gives_its_own_maps():
    vit = own_vit()
    _, expected = vit.attention_maps(pictures())
    _, maps = attention_maps(vit, pictures())
    assert list(maps) == ["blocks.0.attention", "blocks.1.attention"]
    for got, want in zip(maps.values(), expected, strict=True):
        assert torch.equal(got, want)


def test_hugging_face_gives_its_own_maps():
    pytest.importorskip("transformers")
    model = hugging_face_vit("eager").eval()
    output, maps = attention_maps(model, pictures(), output_attentions=True)
    assert len(maps) == len(output.attentions) == 2
    for got, want in zip(maps.values(), output.attentions, strict=True):
        torch.testing.assert_close(got, want)


class OldNames(nn.Module):
    """Hugging Face's names until its version 4: the projection of the output lies outside."""

    def __init__(self, width):
        super().__init__()
        self.num_attention_heads, self.scaling = 4, 0.7  # of a model that scales in its own way
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, hidden_states, head_mask=None):
        q, k, v = (split_heads(f(hidden_states), 4) for f in (self.query, self.key, self.value))
        self.last = (q @ k.mT * self.scaling).softmax(-1)
        return (self.last @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("make", [lambda w: Fused(w, 4, fused_attn=False, qk_norm=True), OldNames])
def test_the_maps_are_the_weights_that_the_module_mixed_with(make):
    torch.manual_seed(0)
    tower = Tower(make).eval()
    _, maps = attention_maps(tower, pictures())
    for name, got in maps.items():
        torch.testing.assert_close(got, tower.get_submodule(name).last)


@pytest.mark.parametrize("qk_norm", [False, True])
def test_timm(qk_norm):
    vision_transformer = pytest.importorskip("timm.models.vision_transformer", reason="timm is not installed")
    torch.manual_seed(0)
    model = vision_transformer.VisionTransformer(
        img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=4, num_classes=5, qk_norm=qk_norm
    ).eval()
    expected = model(pictures())
    seen = []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _, args, __: seen.append(args[0]))
    output, maps = attention_maps(model, pictures())
    torch.testing.assert_close(output, expected)
    assert list(maps) == ["blocks.0.attn", "blocks.1.attn"]
    for got, want in zip(maps.values(), seen, strict=True):
        torch.testing.assert_close(got, want)


class UserAttention(nn.Module):
    """Attention that nobody knows: other names, keys normalised, a scale of its own."""

    def __init__(self, width):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.n_heads, self.factor = 4, 3.0

    def forward(self, x):
        q, k, v = (split_heads(f(x), self.n_heads) for f in (self.to_q, self.to_k, self.to_v))
        self.last = (q @ k.mT * self.factor).softmax(-1)
        return (self.last @ v).transpose(1, 2).flatten(2)


def test_an_own_module_by_a_function():
    torch.manual_seed(0)
    tower = Tower(UserAttention)

    def read(module, x):
        return split_heads(module.to_q(x), 4), split_heads(module.to_k(x), 4), module.factor

    _, maps = attention_maps(tower, pictures(), layers=["blocks.1.attn"], read=read)
    torch.testing.assert_close(maps["blocks.1.attn"], tower.blocks[1]["attn"].last)
    assert list(maps) == ["blocks.1.attn"]


def test_a_layer_that_runs_twice_is_seen_twice():
    block = Fused(16, 4).eval()
    model = nn.Sequential(block, block)
    tokens = torch.randn(2, 5, 16)
    _, maps = attention_maps(model, tokens)
    assert list(maps) == ["0", "0#2"]
    assert not torch.equal(maps["0"], maps["0#2"])
    with recorded_attention(block) as seen:
        block(tokens)
        block(block(tokens))
    assert len(seen[""]) == 3


def test_others_hooks_on_the_query_layer_see_one_pass():
    block = Fused(16, 4).eval()
    calls = []
    block.qkv.register_forward_hook(lambda *_: calls.append(1))
    attention_maps(nn.Sequential(block), torch.randn(2, 5, 16))
    assert len(calls) == 1


def test_a_compiled_model_is_seen_through():
    tower = Tower(lambda width: Fused(width, 4)).eval()
    _, maps = attention_maps(torch.compile(tower, backend="eager"), pictures())
    assert list(maps) == list(attention_layers(tower))


class Biased(Fused):
    """A position bias in the scores: queries and keys alone do not give the map."""

    def forward(self, x, attn_mask=None):
        return super().forward(x, torch.linspace(-3, 3, x.shape[1]).expand(x.shape[1], -1))


BAD = {
    "no attention": (lambda: nn.Sequential(nn.Linear(2, 2)), {}, "has no attention"),
    "unknown layer": (own_vit, {"layers": ["blocks.7.attention"]}, "did you mean 'blocks"),
    "not an attention layer": (own_vit, {"layers": ["blocks.0.mlp"]}, "is no attention layer"),
    "read without layers": (own_vit, {"read": lambda *_: None}, "needs layers="),
    "heads are not split": (
        lambda: Tower(UserAttention),
        {"layers": ["blocks.0.attn"], "read": lambda module, x: (module.to_q(x), module.to_k(x))},
        "width of a head",
    ),
    "a position bias": (lambda: Tower(lambda width: Biased(width, 4)).eval(), {}, "does not follow from its queries"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_says_what_to_do(name):
    make, options, text = BAD[name]
    model = make()
    with pytest.raises(UsageError, match=text):
        attention_maps(model, pictures(), **options)
    assert not any(module._forward_hooks for module in model.modules())


def test_the_check_can_be_left_out():
    _, maps = attention_maps(Tower(lambda width: Biased(width, 4)).eval(), pictures(), check=False)
    assert len(maps) == 2
