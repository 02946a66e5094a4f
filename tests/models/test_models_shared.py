"""What holds for every backbone in `models.BACKBONES`, at several sizes.

A new backbone gets all of this by its line in `BACKBONES`; more shapes of it can go into `SHAPES`.
"""

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from asymtrain import UsageError, attach, models
from asymtrain.branches import Parallel
from asymtrain.models import Backbone, KeyedDropout
from asymtrain.models._building import options_of
from small_backbones import SHAPES, SMALL

CLASSES, BATCH = 5, 4


@dataclasses.dataclass(frozen=True)
class Case:
    arch: str
    options: dict[str, Any]

    @property
    def image_shape(self):
        return self.options.get("channels", 3), *[self.options.get("image_size", 32)] * 2

    def build(self, seed=0) -> Backbone:
        return models.build(self.arch, classes=CLASSES, seed=seed, **self.options).double()

    def images(self, seed=0):
        source = torch.Generator().manual_seed(seed)
        return torch.randn(BATCH, *self.image_shape, dtype=torch.float64, generator=source)


CASES = [Case(arch, options) for arch in models.BACKBONES for options in SHAPES.get(arch, [SMALL[arch]])]


@pytest.fixture(params=CASES, ids=lambda case: f"{case.arch}-{'-'.join(map(str, case.options.values()))}")
def case(request) -> Case:
    return request.param


def parameters_of(runs):
    """Stacked parameters (R, ...) of R models, as leaves."""
    named = [dict(model.named_parameters()) for model in runs]
    return {name: torch.stack([one[name].detach() for one in named]).requires_grad_() for name in named[0]}


def masks_for(case, model, runs):
    if not model.dropout_width:
        return None
    drawn = torch.rand(runs, BATCH, model.dropout_width, generator=torch.Generator().manual_seed(9))
    return (drawn >= model.dropout_rate).double() / (1 - model.dropout_rate)


def forward(model, images, keep):
    """The module's own logits and features, the mask given to its dropout layer."""
    for module in model.modules():
        if isinstance(module, KeyedDropout):
            module.keep = keep
    model.train(keep is not None)
    seen = {}
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda m, i, o, name=name: seen.update({name: o}))
        for name in model.points
    ]
    logits = model(images)
    for hook in hooks:
        hook.remove()
    return logits, [pool(model, seen[name]) for name in model.points]


def pool(model, feature):
    if feature.ndim == 2:
        return feature
    if feature.ndim == 4:
        return feature.mean((2, 3))
    return feature[:, 0] if model.pool == "class_token" else feature.mean(1)


def close(first, second):
    torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("runs", [1, 3])
def test_stacked_is_the_module_run_by_run(case, runs, dropout):
    alone = [case.build(seed) for seed in range(runs)]
    images = torch.stack([case.images(seed) for seed in range(runs)])
    keep = masks_for(case, alone[0], runs) if dropout else None
    stacked = parameters_of(alone)
    logits, features = alone[0].stacked(stacked, images, keep)
    assert logits.shape == (runs, BATCH, CLASSES)
    assert [f.shape for f in features] == [(runs, BATCH, width) for width in alone[0].widths]

    weigh = [torch.arange(f.shape[-1], dtype=torch.float64).cos() for f in features]
    loss = logits.square().sum() + sum((f * w).sum() for f, w in zip(features, weigh, strict=True))
    gradients = dict(zip(stacked, torch.autograd.grad(loss, list(stacked.values())), strict=True))
    for r, model in enumerate(alone):
        one_logits, one_features = forward(model, images[r], None if keep is None else keep[r])
        close(logits[r], one_logits)
        for together, one in zip(features, one_features, strict=True):
            close(together[r], one)
        (one_logits.square().sum() + sum((f * w).sum() for f, w in zip(one_features, weigh, strict=True))).backward()
        for name, parameter in model.named_parameters():
            close(gradients[name][r], parameter.grad)


@pytest.mark.parametrize("case", [case for case in CASES if case.build().dropout_rate], ids=lambda case: case.arch)
def test_dropout_masks_matter_in_training_only(case):
    model = case.build()
    keep = masks_for(case, model, 1)
    with_mask, without = (model.stacked(parameters_of([model]), case.images()[None], k)[0] for k in (keep, None))
    assert not torch.allclose(with_mask, without)
    masked = forward(model, case.images(), keep[0])[0]
    model.eval()
    close(model(case.images()), without[0])
    assert not torch.allclose(masked, without[0])


def test_runs_share_nothing(case):
    alone = [case.build(seed) for seed in range(3)]
    images = torch.stack([case.images(seed) for seed in range(3)])
    clean = _flat(alone[0].stacked(parameters_of(alone), images))
    with torch.no_grad():
        for parameter in alone[1].parameters():
            parameter.fill_(float("nan"))
    for fine, spoilt in zip(clean, _flat(alone[0].stacked(parameters_of(alone), images)), strict=True):
        assert torch.equal(fine[[0, 2]], spoilt[[0, 2]])
        assert spoilt[1].isnan().any()


def _flat(outputs):
    return [outputs[0], *outputs[1]]


def test_stacked_reads_no_parameter_of_the_module(case):
    model = case.build()
    given, images = parameters_of([model, case.build(1)]), torch.stack([case.images(), case.images(1)])
    before = _flat(model.stacked(given, images))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    for first, second in zip(before, _flat(model.stacked(given, images)), strict=True):
        assert torch.equal(first, second)


def test_attach_sees_the_features(case):
    model, images = case.build(), case.images()
    branches = attach(
        model, images, CLASSES, at=list(model.points), head=Parallel(3), layout=model.layout, pool=model.pool
    )
    model.eval()
    logits = model(images)
    pure, features = model.features(images)
    close(logits, pure)
    assert branches.layers == model.points
    assert tuple(branches.head(layer).width for layer in branches.layers) == model.widths
    for (layer, seen), feature in zip(branches.logits().items(), features, strict=True):
        assert branches.head(layer).live.dtype == torch.float64
        close(seen, F.linear(feature, branches.head(layer).live))


def test_attach_finds_the_layout_by_itself(case):
    model = case.build()
    branches = attach(model, case.images(), CLASSES, at=list(model.points), pool=model.pool)
    assert tuple(branches.head(layer).width for layer in branches.layers) == model.widths


def test_a_seed_fixes_the_weights_and_leaves_the_global_state(case):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, again, other = case.build(3), case.build(3), case.build(4)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    moved = case.build(3)
    for name, weight in first.named_parameters():
        assert torch.equal(weight, again.get_parameter(name))
        assert torch.equal(weight, moved.get_parameter(name))
    assert any(not torch.equal(weight, other.get_parameter(name)) for name, weight in first.named_parameters())


def test_without_a_seed_the_global_state_decides(case):
    def build():
        return models.build(case.arch, classes=CLASSES, **case.options).head.weight

    torch.manual_seed(1)
    first, second = build(), build()
    torch.manual_seed(1)
    assert torch.equal(build(), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("arch", models.BACKBONES)
def test_truncated_normal_initialisation(arch):
    model = models.build(arch, classes=CLASSES, seed=0, initialisation="trunc_normal")
    for module in model.modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Conv2d):
            assert not module.bias.any()
            assert module.weight.abs().max() < 0.2
            assert module.weight.numel() < 1000 or 0.018 < module.weight.std() < 0.022


def test_every_version_of_torch_draws_the_weights_of_the_stored_rows():
    """Those of torch 2.11, with which the rows in results/ were made."""
    vit = models.build("vit", classes=100, seed=42)
    torch.testing.assert_close(vit.class_token[0, 0, :3], torch.tensor([-0.01848624, 0.02155573, 0.02643234]))
    torch.testing.assert_close(vit.positions[0, -1, -2:], torch.tensor([-0.02645125, 0.03389946]))
    torch.testing.assert_close(vit.head.weight[0, :2], torch.tensor([-0.03055727, 0.06259881]))


COMMON_ERRORS = [
    ({"classes": 1}, "classes must be a whole number of 2 or more, got 1"),
    ({"classes": "10"}, "classes must be a whole number of 2 or more, got '10'"),
    ({"classes": 2.5}, "classes must be a whole number"),
    ({"wdth": 3}, "unknown option of"),
    ({"points": ()}, r"points must be block numbers in 0\.\.\d"),
    ({"points": (99,)}, r"points must be block numbers in 0\.\.\d"),
    ({"points": (-1,)}, "points must be a list of whole numbers of 0 or more"),
    ({"points": (0, 0)}, "each once"),
    ({"image_size": 0}, "image_size must be a whole number of 1 or more, got 0"),
    ({"image_size": 8.0}, "image_size must be a whole number of 1 or more, got 8.0"),
    ({"points": 1}, "points must be a list of whole numbers of 0 or more, got 1"),
    ({"points": ("0",)}, "points must be a list of whole numbers"),
    ({"channels": -3}, "channels must be a whole number of 1 or more, got -3"),
    ({"initialisation": "zeros"}, "initialisation must be 'framework' or 'trunc_normal', got 'zeros'"),
]
OWN_ERRORS = [
    ("mlp", {"widths": ()}, "at least one width"),
    ("mlp", {"widths": (8, 0)}, r"widths must be a list of whole numbers of 1 or more, got \(8, 0\)"),
    ("cnn", {"widths": ()}, "block"),
    ("cnn", {"image_size": 10}, "image_size 10 cannot be halved 2 times: give a multiple of 4"),
    ("cnn", {"image_size": 2}, "image_size 2 cannot be halved 2 times"),
    ("cnn", {"dropout": 1}, r"dropout must lie in \[0, 1\), got 1"),
    ("cnn", {"dropout": -0.5}, "dropout"),
    ("cnn", {"dropout": float("nan")}, r"dropout must lie in \[0, 1\)"),
    ("cnn", {"pool_after": (1, 6)}, r"pool_after must be block numbers in 0\.\.5, each once, got \(1, 6\)"),
    ("cnn", {"pool_after": (1, 1)}, "each once"),
    ("vit", {"image_size": 30}, "image_size 30 is not a multiple of patch 4: change one of them"),
    ("vit", {"width": 30}, "width 30 is not a multiple of heads 4"),
    ("vit", {"heads": 0}, "heads must be a whole number of 1 or more"),
    ("vit", {"patch": 0}, "patch must be a whole number of 1 or more"),
    ("vit", {"depth": 0}, "depth must be a whole number of 1 or more"),
    ("vit", {"branch_input": "last"}, "branch_input must be 'class_token' or 'mean', got 'last'"),
]


@pytest.mark.parametrize(
    ("arch", "options", "message"),
    [(arch, *error) for arch in models.BACKBONES for error in COMMON_ERRORS] + OWN_ERRORS,
    ids=str,
)
def test_bad_options(arch, options, message):
    with pytest.raises(UsageError, match=message):
        models.build(arch, **{"classes": CLASSES, **options})


def test_an_unknown_backbone_is_told_the_near_names():
    with pytest.raises(UsageError, match="unknown backbone 'vitt': did you mean 'vit'"):
        models.build("vitt", classes=3)


def test_what_is_known_without_torch_is_what_the_classes_have():
    known = {name: (backbone.__name__, options_of(backbone)) for name, backbone in models.BACKBONES.items()}
    assert known == models.KNOWN
