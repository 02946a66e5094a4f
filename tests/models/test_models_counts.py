"""The paper's parameter counts, to the last one (the sizes were derived from them)."""

import pytest
import torch

from asymtrain import attach, models
from asymtrain.branches import Parallel

EXACT = {
    ("mlp", 10): {0: 279_818, 1: 285_578, 20: 395_018, 300: 2_007_818},
    ("mlp", 100): {0: 285_668, 1: 343_268, 20: 1_437_668, 300: 17_565_668},
    ("cnn", 10): {0: 2_402_090, 1: 2_410_410, 20: 2_568_490, 300: 4_898_090},
    ("cnn", 100): {0: 2_425_220, 1: 2_508_420, 20: 4_089_220, 300: 27_385_220},
    ("vit", 10): {0: 1_205_898, 1: 1_213_578, 20: 1_359_498, 300: 3_509_898},
    ("vit", 100): {0: 1_217_508, 1: 1_294_308, 20: 2_753_508, 300: 24_257_508},
}
# As the paper prints them, in millions.
PRINTED = {
    ("mlp", 10): {0: "0.28", 1: "0.29", 20: "0.40", 300: "2.01"},
    ("cnn", 100): {1: "2.51", 20: "4.09", 300: "27.4"},
    ("vit", 100): {1: "1.29", 20: "2.75", 300: "24.3"},
}


@pytest.mark.parametrize(("arch", "classes"), EXACT)
@pytest.mark.parametrize("redundancy", [0, 1, 20, 300])
def test_the_paper_s_parameter_counts(arch, classes, redundancy, monkeypatch):
    # The counts do not depend on the values, and 1800 orthogonal draws take a while.
    monkeypatch.setattr(torch.nn.init, "orthogonal_", lambda weight, generator: weight)
    model = models.build(arch, classes=classes, seed=0)
    count = sum(parameter.numel() for parameter in model.parameters())
    if redundancy:
        sample = torch.zeros(2, 3, 32, 32)
        branches = attach(
            model,
            sample,
            classes,
            at=list(model.points),
            head=Parallel(redundancy),
            layout=model.layout,
            pool=model.pool,
        )
        count += branches.num_weights()
        assert sum(weight.numel() for weight in branches.parameters()) == branches.num_weights() // redundancy
    assert count == EXACT[arch, classes][redundancy]
    printed = PRINTED.get((arch, classes), {}).get(redundancy)
    assert printed in (None, f"{count / 1e6:.2f}", f"{count / 1e6:.1f}")


LAYERS = {
    "mlp": ([f"blocks.{i}" for i in range(4)], [64, 128, 256, 128]),
    "cnn": ([f"blocks.{i}" for i in range(5)], [64, 256, 256, 128, 128]),
    "vit": ([f"blocks.{i}" for i in range(6)], [128] * 6),
}


@pytest.mark.parametrize("arch", LAYERS)
def test_branches_are_where_the_paper_puts_them(arch):
    model = models.build(arch, classes=10)
    assert (list(model.points), list(model.widths)) == LAYERS[arch]


def test_the_cnn_has_the_paper_s_layers():
    model = models.build("cnn", classes=10)
    kinds = [type(module) for module in model.modules()]
    for kind, count in ((torch.nn.Conv2d, 6), (torch.nn.MaxPool2d, 2), (models.KeyedDropout, 1), (torch.nn.Linear, 3)):
        assert kinds.count(kind) == count
    # A branch comes after the max-pool where one follows.
    assert model.get_submodule("blocks.0")(torch.zeros(1, 3, 32, 32)).shape == (1, 64, 32, 32)
    assert model.get_submodule("blocks.1")(torch.zeros(1, 64, 32, 32)).shape == (1, 256, 16, 16)


def test_the_mlp_has_six_linear_layers():
    kinds = [type(module) for module in models.build("mlp", classes=10).modules()]
    assert kinds.count(torch.nn.Linear) == 6
    assert kinds.count(torch.nn.ReLU) == 5
