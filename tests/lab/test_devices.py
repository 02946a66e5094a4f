"""Device names, and torch's global settings: set for a block, and restored, also after an error."""

import dataclasses
import warnings

import pytest
import torch

from asymtrain import UsageError
from asymtrain.lab.data import load
from asymtrain.lab.devices import compiler_settings, default_device, float32_products, one_thread
from asymtrain.lab.engine import plan, train_reference, train_stack
from asymtrain.lab.runs import RunSpec


def settings():
    import torch._dynamo.config
    import torch._functorch.config

    return (
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.get_num_threads(),
        torch._dynamo.config.recompile_limit,
        torch._functorch.config.donated_buffer,
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.mkldnn.enabled,
    )


BLOCKS = {
    "full products": (lambda: float32_products(tf32=False), {0: False, 1: False}),
    "TF32": (lambda: float32_products(tf32=True), {0: True, 1: True}),
    "one thread": (lambda: one_thread(torch.device("cpu")), {2: 1}),
    "compiler": (compiler_settings, {3: 256, 4: False}),
}


@pytest.mark.parametrize(("block", "wanted"), BLOCKS.values(), ids=BLOCKS)
def test_a_setting_holds_in_its_block_and_is_restored(block, wanted):
    before, inside = settings(), []

    def fail():
        with block():
            inside.extend(settings())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert {number: inside[number] for number in wanted} == wanted
    assert settings() == before


def test_what_the_compiler_warns_of_is_not_shown(recwarn):
    with compiler_settings():
        for module in ("torch._inductor.compile_fx", "torch.cuda", "torch.cuda.memory", "torch.optim.lr_scheduler"):
            warnings.warn_explicit("a warning", UserWarning, f"{module}.py", 1, module)
    assert [warning.filename for warning in recwarn] == ["torch.optim.lr_scheduler.py"]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_training_leaves_the_settings_as_they_were(precision):
    dataset = load("shapes", classes=2, size=16, test_size=4, image_size=8)
    spec = RunSpec(arch_options={"widths": (4,)}, batch=8, epochs=1, precision=precision)
    before = settings()
    train_stack(plan([spec], torch.device("cpu"))[0], dataset, torch.device("cpu"))
    train_reference(spec, dataset)
    assert settings() == before


def test_device_names():
    assert default_device("cpu") == default_device(torch.device("cpu")) == torch.device("cpu")
    assert default_device(None).type in ("cpu", "cuda")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:a", "cuda:-1", "cpu:7", "CPU", "meta", "mps:3", "x" * 300, "\x1b"])
def test_a_device_that_is_none_is_refused(name):
    with pytest.raises(UsageError, match="unknown device"):
        default_device(name)


def test_a_gpu_beyond_those_there_are_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert default_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(UsageError, match="cuda:0 to cuda:1"):
        default_device("cuda:99")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="--device cpu"):
        default_device(torch.device("cuda:0"))


def test_a_run_in_bf16_does_not_change_later_ones_in_fp32():
    """Also on a CPU without bfloat16, where torch would give oneDNN up for the whole process."""
    dataset = load("shapes", classes=2, size=256, test_size=8, image_size=16)
    spec = RunSpec(arch_options={"widths": (128, 128)}, batch=64, epochs=1)
    before = train_reference(spec, dataset)
    train_reference(dataclasses.replace(spec, precision="bf16"), dataset)
    after = train_reference(spec, dataset)
    assert [epoch.main_loss for epoch in after.history] == [epoch.main_loss for epoch in before.history]
