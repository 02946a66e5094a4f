"""What holds for every instrument in the list: it changes nothing, and its page has the same bytes again."""

import re

import pytest
import torch

from asymtrain.__main__ import main
from asymtrain.lab import instruments
from asymtrain.lab.cli.measure import load_instruments

# What makes an instrument quick here; one that is not named is called with its defaults.
SMALLER = {
    "landscape": ("--grid", 3, "--draws", 1, "--sample", 5),
    "attention": ("--sample", 5),
    "features": ("--images", 20, "--steps", "0,1"),
}


pytestmark = pytest.mark.usefixtures("small_scale", "workplace")


def settings():
    """What a measurement must leave as it was, so that the next step of a training beside it is the same."""
    cuda, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    state = torch.random.get_rng_state().tolist()
    return state, torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads(), cuda, cudnn


LONG = ("trajectory", "landscape")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in load_instruments()]
)
def test_an_instrument_changes_nothing_and_its_page_is_the_same_again(name, tmp_path):
    arguments = ["measure", name, "--arch", "vit", "--seeds", 1, "--device", "cpu", *SMALLER.get(name, ())]
    if "epochs" in load_instruments()[name].run_options:
        arguments += ["--epochs", 1]
    torch.manual_seed(0)
    before, pages = settings(), []
    for _ in range(2):
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        assert not stopped.value.code
        pages.append((tmp_path / "asymtrain-measure" / f"{name}.html").read_bytes())
    assert settings() == before
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("landscape", "measure_module_landscape"),
        ("attention", "measure_model"),
        ("features", "feature_statistics"),
    ],
)
def test_of_another_model_the_function_that_takes_it_is_named_before_anything_is_trained(name, function, capsys):
    later = ["--at", "1"] if "states" in load_instruments()[name].run_options else []
    with pytest.raises(SystemExit) as stopped:
        main(["measure", name, "--arch", "timm:resnet18", "--seeds", "1", "--device", "cpu", *later])
    assert stopped.value.code
    told = capsys.readouterr().err
    assert f"timm:resnet18 is none of them: from Python, asymtrain.lab.instruments.{function} " in re.sub(
        r"\s+", " ", told
    )
    assert callable(getattr(instruments, function))
    assert "training" not in told
