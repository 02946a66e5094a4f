"""Models by name: built without downloads, or refused in one line."""

import json
import sys
import types

import pytest
import torch
from torch import nn

from asymtrain import UsageError
from asymtrain.lab.sources import named_model, parse_option

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def refuse(text, *arguments, build=False):
    def make():
        found = named_model(*arguments)
        return found.build(4, 32) if build else found

    with pytest.raises(UsageError, match=text) as problem:
        make()
    assert "\n" not in str(problem.value)


def test_a_config_class_of_transformers():
    pytest.importorskip("transformers")
    named = named_model("hf:ViTConfig", SMALL)
    assert (named.image_size, named.multiple) == (224, 16)
    assert named.size_for(None, small=False) == 224
    assert named.size_for(None, small=True) == 64
    assert named.size_for(48, small=True) == 48
    model = named.build(7, 64)
    assert model(torch.randn(2, 3, 64, 64)).logits.shape == (2, 7)


def test_a_config_file(tmp_path):
    pytest.importorskip("transformers")
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "vit", **SMALL, "image_size": 32, "id2label": {"0": "a", "1": "b"}}))
    model = named_model(f"hf:{file}", {"hidden_size": 8}).build(5, 32)
    assert model(torch.randn(2, 3, 32, 32)).logits.shape == (2, 5)
    assert model.config.hidden_size == 8
    refuse("cannot be read as a config", f"hf:{tmp_path / 'none.json'}")
    file.write_text("{}")
    refuse("has no model_type", f"hf:{file}")


def test_what_cannot_be_built_of_transformers():
    pytest.importorskip("transformers")
    refuse("nothing is downloaded", "hf:google/vit-base-patch16-224")
    refuse("did you mean 'ViTConfig'", "hf:VitConfig")
    refuse("has no image classifier", "hf:BertConfig", build=True)
    wrong = {**SMALL, "hidden_act": "none such"}
    refuse(r"ViTConfig cannot be built \(KeyError.*none such.*check --option", "hf:ViTConfig", wrong, build=True)


def test_a_function_of_the_users_own(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\n"
        "def net(num_classes, width=8):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, width), nn.Linear(width, num_classes))\n"
        "def fixed():\n    return nn.Linear(2, 2)\n"
        "def broken():\n    raise OSError('weights.pt is not here')\n"
        "def number():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_nets", raising=False)
    before = list(sys.path)
    model = named_model("my_nets:net", {"width": 5}).build(6, 32)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 6)
    assert model[1].out_features == 5
    assert isinstance(named_model("my_nets:fixed").build(6, 32), nn.Linear)
    refuse("did you mean 'net'", "my_nets:nett")
    refuse(
        r"broken cannot be built \(OSError: weights.pt is not here\): mend the function", "my_nets:broken", build=True
    )
    refuse("gave a int, not an nn.Module", "my_nets:number", build=True)
    refuse("no_such_package.nets cannot be imported .*check the name", "no_such_package.nets:net")
    (tmp_path / "my_slip.py").write_text("1 / 0\n")
    refuse(r"my_slip cannot be imported \(ZeroDivisionError: .*mend the file", "my_slip:net")
    assert sys.path == before


def test_timm(monkeypatch):
    """Against a stand-in with timm's interface: the library itself imports on few machines."""
    asked = []

    def create_model(name, pretrained, num_classes, **options):
        if "no_such" in options:
            raise TypeError("unexpected keyword argument 'no_such'")
        asked.append((name, pretrained, num_classes, options))
        if name == "conv" and "img_size" in options:
            raise TypeError("unexpected keyword argument 'img_size'")
        return nn.Linear(2, num_classes)

    stand_in = types.SimpleNamespace(
        is_model=lambda name: name in ("conv", "vit_tiny"),
        list_models=lambda: ["conv", "vit_tiny"],
        get_pretrained_cfg=lambda name: types.SimpleNamespace(input_size=(3, 224, 224)),
        create_model=create_model,
    )
    monkeypatch.setitem(sys.modules, "timm", stand_in)
    named = named_model("timm:vit_tiny")
    assert (named.image_size, named.size_for(None, small=True)) == (224, 64)
    assert named.build(9, 64).out_features == 9
    assert asked.pop() == ("vit_tiny", False, 9, {"img_size": 64})
    assert named_model("timm:conv", {"drop_rate": 0.1}).build(3, 64).out_features == 3
    assert asked.pop() == ("conv", False, 3, {"drop_rate": 0.1})
    refuse("did you mean 'vit_tiny'", "timm:vit_tin")
    refuse(r"timm:conv cannot be built \(TypeError.*'no_such'", "timm:conv", {"no_such": 1}, build=True)


def test_nothing_is_downloaded(monkeypatch, tmp_path):
    def library(name):
        raise AssertionError(f"{name} was asked for")

    monkeypatch.setattr("asymtrain.lab.sources._library", library)
    for value in (True, 1, "yes"):
        refuse("timm:resnet18: pretrained would download weights, and nothing", "timm:resnet18", {"pretrained": value})
    refuse("use_pretrained_backbone would download", "hf:ViTConfig", {"use_pretrained_backbone": True})
    monkeypatch.undo()
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "vit", "backbone_config": {"use_pretrained_backbone": True}}))
    refuse("use_pretrained_backbone would download", f"hf:{file}")
    assert isinstance(named_model("hf:ViTConfig", {**SMALL, "use_pretrained_backbone": False}).build(5, 32), nn.Module)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ModuleNotFoundError("No module named 'timm'", name="timm"), "timm is not installed: pip install timm"),
        (ModuleNotFoundError("No module named 'torchvision'", name="torchvision"), "does not import .*fits your torch"),
        (
            RuntimeError("operator torchvision::nms does not exist\nand more"),
            "nms does not exist.: it needs a torchvis",
        ),
        (ImportError("libfoo.so is broken"), "timm is installed but does not import .*mend its installation"),
    ],
)
def test_a_library_that_does_not_import(error, text, monkeypatch):
    def fail(name):
        raise error

    monkeypatch.setattr("asymtrain.lab.sources.importlib.import_module", fail)
    refuse(text, "timm:conv")


def test_the_real_timm_where_it_imports():
    timm = pytest.importorskip("timm", reason="timm is optional and imports beside few builds of torch")
    model = named_model("timm:resnet18").build(5, 64)
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 5)
    assert timm.is_model("resnet18")


def test_texts():
    refuse(r"^unknown backbone 'resnet': there is: cnn, mlp, vit \(for another model give timm:NAME", "resnet")
    refuse("no model that can be built", "google/vit")
    refuse("names no model", "hf:")
    assert parse_option("depth=4") == ("depth", 4)
    assert parse_option("points=[0, 2]") == ("points", [0, 2])
    assert parse_option("kind=mean") == ("kind", "mean")
    with pytest.raises(UsageError, match="NAME=VALUE"):
        parse_option("depth")
