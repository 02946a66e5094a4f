import pytest

from asymtrain.errors import UsageError
from asymtrain.lab.cli.options import parse_archs, parse_seeds
from asymtrain.lab.scales import SCALES, get_scale, scaled_spec
from asymtrain.models import BACKBONES


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("3", (42, 43, 44)),
        ("1", (42,)),
        ("42,43", (42, 43)),
        ("7,", (7,)),
        ("42-45", (42, 43, 44, 45)),
        ("42..45", (42, 43, 44, 45)),
        ("7..7", (7,)),
        ("1..2, 9", (1, 2, 9)),
        ("42,43,44", (42, 43, 44)),
        ("1-2, 9", (1, 2, 9)),
        ("5,5,5-6", (5, 6)),
    ],
)
def test_seeds(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    "text", ["0", "", ",", "a", "3-1", "-3", "1.5", "4 5", "1--2", "4..2", "4...6", "..3", "4..", "²"]
)
def test_bad_seeds(text):
    with pytest.raises(UsageError, match="--seeds"):
        parse_seeds(text)


def test_archs():
    assert parse_archs(None) == tuple(BACKBONES)
    assert parse_archs(["vit,mlp", "vit"]) == ("vit", "mlp")
    with pytest.raises(UsageError, match="did you mean 'vit'"):
        parse_archs(["vitt"])


def test_paper_scale_is_table_13_at_twenty_branches():
    paper = get_scale("paper")
    specs = {arch: scaled_spec(paper, arch) for arch in paper.archs}
    found = {arch: (spec.learning_rate, spec.weight_decay, spec.alpha) for arch, spec in specs.items()}
    assert found == {"mlp": (1e-4, 1e-3, 0.1), "cnn": (3e-4, 1e-3, 0.1), "vit": (1e-3, 1e-2, 1.0)}
    for spec in specs.values():
        assert (spec.dataset, spec.epochs, spec.redundancy, spec.arch_options) == ("cifar100", 200, 20, ())
    assert paper.seeds == tuple(range(42, 52))


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("dataset", ["shapes", "cifar10", "cifar100", "folder:x", None])
def test_every_scale_fits_every_dataset_and_an_option_wins(name, dataset):
    scale = get_scale(name)
    for arch in scale.archs:
        spec = scaled_spec(scale, arch, dataset, alpha=7, epochs=3, redundancy=None)
        assert (spec.alpha, spec.epochs) == (7, 3)
        assert spec.redundancy == scale.fields["redundancy"]
        assert spec.dataset == (dataset or scale.dataset)


def test_unknown_scale():
    with pytest.raises(UsageError, match="did you mean 'quick'"):
        get_scale("quik")
