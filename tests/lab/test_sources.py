"""Models by name: built without downloads, or refused in one line."""

import json
import math
import random
import subprocess
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from asymtrain import UsageError
from asymtrain.errors import UsageWarning
from asymtrain.lab.engine import train
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.sources import Inputs, build_model, builders, check_name, describe_model, difference, fingerprint
from asymtrain.lab.sources.builders import Library, Named, named_model

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def images(size):
    return Inputs((3, size, size), "images")


def refuse(text, *arguments, build=False):
    def make():
        found = named_model(*arguments)
        return found.build_for(4, images(32)) if build else found

    with pytest.raises(UsageError, match=text) as problem:
        make()
    assert "\n" not in str(problem.value)


def test_what_a_docstring_says_of_a_model(own_module):
    text = (
        'from torch import nn\ndef told():\n    """Two\n    lines."""\ndef silent(): pass\nclass Own(nn.Module): pass\n'
    )
    own_module("told_nets", text)
    names = ("told_nets:told", "told_nets:silent", "told_nets:Own", "told_nets:nowhere", "mlp", "timm:resnet18")
    assert [describe_model(name) for name in names] == ["Two lines.", "", "", "", "", ""]


def test_a_config_file(tmp_path):
    pytest.importorskip("transformers")
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "vit", **SMALL, "image_size": 32, "id2label": {"0": "a", "1": "b"}}))
    model = named_model(f"hf:{file}", {"hidden_size": 8}).build_for(5, images(32))
    assert model(torch.randn(2, 3, 32, 32)).logits.shape == (2, 5)
    assert model.config.hidden_size == 8
    named_model(f"hf:{file}", {"image_size": 16}).build_for(5, images(16))
    with pytest.raises(UsageError, match="image_size is that of the data, 32 x 32: leave it out"):
        named_model(f"hf:{file}", {"image_size": 64}).build_for(5, images(32))
    refuse("cannot be read as a config", f"hf:{tmp_path / 'none.json'}")
    file.write_text("{}")
    refuse("has no model_type", f"hf:{file}")


def test_what_cannot_be_built_of_transformers():
    pytest.importorskip("transformers")
    refuse("nothing is downloaded", "hf:google/vit-base-patch16-224")
    for mistyped in ("VitConfig", "VitConfg"):
        refuse("did you mean 'ViTConfig'", f"hf:{mistyped}")
    refuse("has no image classifier", "hf:BertConfig", build=True)
    wrong = {**SMALL, "hidden_act": "none such"}
    refuse(r"KeyError.*none such.*--arch-option", "hf:ViTConfig", wrong, build=True)


OWN = {
    "my_own": (
        "from torch import nn\n"
        "def net(num_classes, width=8):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, width), nn.Linear(width, num_classes))\n"
        "def fixed():\n    return nn.Linear(2, 2)\n"
        "def broken():\n    raise OSError('weights.pt is not here')\n"
        "def lacking():\n    import no_such_library\n"
        "def number():\n    return 3\n"
        "built = nn.Linear(2, 2)\n"
    ),
    "my_slip": "1 / 0\n",
    "my_needs": "import no_such_library.nets\n",
}


@pytest.fixture
def own(own_module):
    for name, text in OWN.items():
        own_module(name, text)


def test_a_function_of_the_users_own(own):
    before = list(sys.path)
    model = named_model("my_own:net", {"width": 5}).build_for(6, images(32))
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 6)
    assert model[1].out_features == 5
    assert isinstance(named_model("my_own:fixed").build_for(6, images(32)), nn.Linear)
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("my_own:nett", {}, "'net'"),
        ("my_own:net", {"wdth": 5}, "'wdth': did you mean 'width'"),
        ("my_own:lacking", {}, "install no_such_library"),
        ("my_own:broken", {}, r"OSError.*at my_own.py:7"),
        ("my_own:number", {}, r"nn\.Module.*int"),
        ("my_own:built", {}, "new model at each call"),
        ("no_such_package.nets:net", {}, "check the name"),
        ("my_slip:net", {}, r"ZeroDivisionError.*at my_slip.py:1"),
        ("my_needs:net", {}, "install no_such_library"),
    ],
)
def test_a_function_that_builds_nothing(own, name, options, words):
    refuse(words, name, options, build=True)


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
    assert named.build_for(9, images(64)).out_features == 9
    assert asked.pop() == ("vit_tiny", False, 9, {"img_size": 64})
    assert named_model("timm:conv", {"drop_rate": 0.1}).build_for(3, images(64)).out_features == 3
    assert asked.pop() == ("conv", False, 3, {"drop_rate": 0.1})
    refuse("did you mean 'vit_tiny'", "timm:vit_tin")
    refuse(r"TypeError.*'no_such'", "timm:conv", {"no_such": 1}, build=True)


def test_nothing_is_downloaded(monkeypatch, tmp_path):
    def library(name):
        raise AssertionError(f"{name} was asked for")

    monkeypatch.setattr("asymtrain.lab.sources.builders._library", library)
    for value in (True, 1, "yes"):
        refuse("pretrained would download", "timm:resnet18", {"pretrained": value})
    refuse("use_pretrained_backbone would download", "hf:ViTConfig", {"use_pretrained_backbone": True})
    monkeypatch.undo()
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "vit", "backbone_config": {"use_pretrained_backbone": True}}))
    refuse("use_pretrained_backbone would download", f"hf:{file}")
    named = named_model("hf:ViTConfig", {**SMALL, "use_pretrained_backbone": False})
    assert isinstance(named.build_for(5, images(32)), nn.Module)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ModuleNotFoundError("No module named 'timm'", name="timm"), "pip install timm"),
        (ModuleNotFoundError("No module named 'torchvision'", name="torchvision"), "fits your torch"),
        (RuntimeError("operator torchvision::nms does not exist\nand more"), "fits your torch"),
        (ImportError("libfoo.so is broken"), "mend its installation"),
    ],
)
def test_a_library_that_does_not_import(error, text, monkeypatch):
    def fail(name):
        raise error

    monkeypatch.setattr("asymtrain.lab.sources.builders.importlib.import_module", fail)
    refuse(text, "timm:conv")


NETS = """
import random
import numpy, torch
from torch import nn


class Net(nn.Module):
    def __init__(self, classes, pixels, width=8):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(pixels, width), nn.BatchNorm1d(width), nn.Dropout(0.5))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.body(x))


def net(classes, channels, image_size, width=8):
    model = Net(classes, channels * image_size**2, width)
    with torch.no_grad():  # drawn from the three random states that a builder may use
        model.head.bias[0], model.head.bias[1] = random.random(), numpy.random.rand()
    return model


def vectors(classes, input_shape):
    return nn.Linear(*input_shape, classes)


def tokens(classes, words=20):
    return nn.Sequential(nn.Embedding(words, 4), nn.Flatten(), nn.LazyLinear(classes))


class Counts(nn.Module):  # a mean over the words that are no padding
    def __init__(self, classes):
        super().__init__()
        self.words, self.out = nn.Embedding(20, 4), nn.Linear(4, classes)

    def forward(self, x):
        if not (x != 0).any():
            raise ValueError("nothing but padding")
        known = (x != 0).unsqueeze(-1)
        return self.out((self.words(x) * known).sum(1) / known.sum(1))


def helped(classes):
    from my_parts import head  # imported when it is called
    return nn.Sequential(nn.Flatten(), head(classes))


def outputs(classes, kind):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(12, classes)

        def forward(self, x):
            logits = self.linear(x.flatten(1))
            hidden = x.flatten(1)
            made = {"tuple": (logits, hidden), "dict": {"hidden": hidden, "logits": logits}, "late": (None, logits)}
            return made[kind]

    return Wrapped()


def drifting(classes):
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, classes))
    model.register_buffer("stamp", torch.tensor([next(COUNT)]))
    return model


COUNT = iter(range(100))


def frozen(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(12, classes)).requires_grad_(False)


def meta(classes):
    with torch.device("meta"):
        return nn.Sequential(nn.Flatten(), nn.Linear(12, classes))


def few(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(12, classes - 1))


def text(classes):
    return nn.Sequential(nn.Linear(2, 2), Says())


class Says(nn.Module):
    def forward(self, x):
        return "logits"


def tied(classes):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Flatten(), nn.Linear(4, classes))
    model[1].weight = model[0].weight
    return model


def deep(classes):
    steps = [nn.Conv2d(3, 3, 3, stride=2) for _ in range(4)]
    return nn.Sequential(*steps, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, classes))


def pair(classes, input_shape):
    return nn.Bilinear(2, 2, classes)


class Slip(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(12, classes)

    def forward(self, x):
        return self.head(x.flatten(1) @ torch.zeros(3, 3))


def gray(classes):
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, classes))
"""


@pytest.fixture
def nets(own_module):
    """A module `my_nets` in the folder that the user works in."""
    own_module("my_nets", NETS)
    own_module("my_parts", "from torch import nn\nhead = lambda classes: nn.Linear(12, classes)\n")


def build(name, shape=(3, 2, 2), seed=1, classes=4, **options):
    fields = {key: options.pop(key) for key in ("weights", "kind") if key in options}
    return build_model(f"my_nets:{name}", options, classes=classes, input_shape=shape, seed=seed, **fields)


def tensors(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_a_model_depends_on_its_seed_alone_and_leaves_random_states_as_they_were(nets):
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    first = build("net", width=5)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]
    torch.rand(3), random.random(), np.random.rand()
    again, other = build("net", width=5), build("net", width=5, seed=2)
    assert first.training
    assert first.head.in_features == 5
    for name, value in tensors(first).items():
        assert torch.equal(value, tensors(again)[name])
    assert not torch.equal(first.head.weight, other.head.weight)
    assert not torch.equal(first.head.bias[:2], other.head.bias[:2])
    assert first.body[2].running_mean.abs().sum() == 0  # the dry run left no trace


def test_vectors_tokens_lazy_layers_helpers_and_outputs(nets):
    assert build("vectors", (7,)).in_features == 7
    assert build("tokens", (6,), kind="tokens")[2].in_features == 24
    assert build("Counts", (6,), kind="tokens").out.out_features == 4
    assert build("helped")[1].out_features == 4
    for kind in ("tuple", "dict"):
        model = build_model("my_nets:outputs", {"kind": kind}, classes=4, input_shape=(3, 2, 2), seed=0)
        assert isinstance(model(torch.zeros(2, 3, 2, 2)), tuple | dict)
    with pytest.raises(UsageError, match="tuple without logits"):
        build_model("my_nets:outputs", {"kind": "late"}, classes=4, input_shape=(3, 2, 2), seed=0)


@pytest.mark.parametrize(
    ("name", "shape", "text"),
    [
        ("drifting", (3, 2, 2), "not deterministic"),
        ("frozen", (3, 2, 2), "no parameter that is trained"),
        ("meta", (3, 2, 2), "meta device"),
        ("few", (3, 2, 2), r"\(2, 3\) .* 4 classes"),
        ("text", (3, 2, 2), "str without logits"),
        ("net", (7,), r"TypeError: .*missing .*--arch-option"),
        ("tokens", (6,), r"RuntimeError"),
        ("deep", (3, 16, 16), r"does not take images of 16 x 16 .*image_size=N"),
        ("few", (3, 5, 5), "does not take images of 5 x 5 .*image_size=N"),
        (
            "Slip",
            (3, 2, 2),
            r"multiplied.*, at my_nets.py:\d+\): mend forward",
        ),
        ("pair", (3, 2, 2), "does not take images of 2 x 2 .*missing 1 required"),
        ("gray", (3, 8, 8), "does not take images of 8 x 8.*channels"),
    ],
)
def test_a_builder_that_is_refused(nets, name, shape, text):
    with pytest.raises(UsageError, match=text) as problem:
        build(name, shape)
    assert "\n" not in str(problem.value)


def test_weights_from_a_file(nets, tmp_path, recwarn):
    from safetensors.torch import save_file

    file = str(tmp_path / "net.safetensors")
    trained = build("net", seed=9)
    trained.body[2].running_mean += 1
    save_file(tensors(trained), file)
    loaded = build("net", weights=file)
    for name, value in tensors(trained).items():
        assert torch.equal(value, tensors(loaded)[name])
    assert not recwarn.list
    fresh = build("net", classes=6)
    with pytest.warns(UsageWarning, match=r"head\.weight, head\.bias .* 4 classes.* 6"):
        other = build("net", classes=6, weights=file)
    again = build("net", classes=6, weights=file)  # says nothing more: warnings are errors in these tests
    assert torch.equal(other.head.weight, fresh.head.weight)
    assert torch.equal(again.head.weight, fresh.head.weight)
    assert torch.equal(other.body[1].weight, trained.body[1].weight)


def test_weights_that_do_not_fit(nets, tmp_path):
    from safetensors.torch import save_file

    file = tmp_path / "net.safetensors"
    values = tensors(build("net"))

    def refuse_weights(text):
        with pytest.raises(UsageError, match=text) as problem:
            build("net", weights=str(file))
        assert "\n" not in str(problem.value)

    refuse_weights("no weights at")
    file.write_bytes(b"no such thing")
    refuse_weights("cannot be read as weights")
    save_file({name: value for name, value in values.items() if name != "head.bias"}, file)
    refuse_weights(r"lacks head\.bias")
    save_file({**values, "tail": torch.zeros(1)}, file)
    refuse_weights("does not have, tail")
    save_file(tensors(build("net", width=9)), file)
    refuse_weights(r"body\.1\.weight.*\(9, 12\).*\(8, 12\)")


def test_tied_weights_are_in_a_file_once(nets, tmp_path):
    from safetensors.torch import save_file

    values = tensors(build("tied", (4,), seed=1))
    assert torch.equal(values["0.weight"], values["1.weight"])
    del values["1.weight"]
    save_file(values, tmp_path / "tied.safetensors")
    loaded = build("tied", (4,), seed=2, weights=str(tmp_path / "tied.safetensors"))
    assert fingerprint(loaded) == fingerprint(build("tied", (4,), seed=1))


def test_a_fingerprint_tells_what_changed_and_forgives_rounding(nets):
    model = build("net")
    first = fingerprint(model)
    assert not difference(first, fingerprint(build("net")))
    assert difference(first, fingerprint(build("net", seed=2)))
    assert difference(first, fingerprint(build("net", width=9)))
    with torch.no_grad():
        model.head.weight *= 1 + 1e-7
        assert not difference(first, fingerprint(model))
        model.head.weight[[0, 1]] = model.head.weight[[1, 0]]
        assert difference(first, fingerprint(model))
    model = build("net")
    model.body[2].num_batches_tracked += 1
    assert difference(first, fingerprint(model))
    kinds = [nn.Sequential(nn.Linear(3, 5), layer) for layer in (nn.ReLU(), nn.GELU())]
    kinds[1].load_state_dict(kinds[0].state_dict())
    inputs = Inputs((3,), "vectors")
    assert fingerprint(kinds[0]) == fingerprint(kinds[1])
    prints = [fingerprint(kind, inputs) for kind in kinds]
    assert difference(*prints) == "what it computes from its parameters"
    drops = nn.Sequential(kinds[0], nn.Dropout(0.5))
    assert fingerprint(drops, inputs) == fingerprint(drops, inputs)
    rates = [fingerprint(nn.Sequential(nn.Flatten(), nn.Dropout(rate)), inputs) for rate in (0.1, 0.2)]
    assert difference(*rates) == "settings of its parts, such as the rate of a dropout"
    assert not difference(rates[0].rpartition(":")[0].rpartition(":")[0], rates[1])  # of an earlier version
    assert difference("abc:1:2", "abc:1:x")
    assert not difference("abc", "abc")
    assert difference("abc", "abd")


def test_names_are_checked_without_torch():
    program = (
        "import sys; from asymtrain.lab.runs import RunSpec; from asymtrain.models import display_name; "
        "spec = RunSpec(arch='timm:resnet18', arch_options={'drop_rate': 0.1}); "
        "specs = [spec, RunSpec(arch='hf:ViTConfig'), RunSpec(arch='a.b:f'), RunSpec(arch='hf:here/config.json')]; "
        "assert RunSpec.from_dict(spec.to_dict()) == spec; assert display_name(spec.arch) == 'timm:resnet18'; "
        "print('torch' in sys.modules or 'timm' in sys.modules or 'numpy' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"
    )
    for name, text in [
        ("a-b:f", "names no function"),
        ("a.b:f()", "names no function"),
        ("a..b:f", "names no function"),
        ("nets/mine.py:f", "modules go by name"),
        (":f", "names no model"),
        ("timm:", "names no model"),
        ("hf:", "names no model"),
        ("hf:google/vit", "nothing is downloaded"),
    ]:
        with pytest.raises(UsageError, match=text):
            RunSpec(arch=name)
    with pytest.raises(UsageError, match="pretrained would download"):
        RunSpec(arch="timm:resnet18", arch_options={"pretrained": True})
    for name, advice in [
        ("resnet", r"cnn, mlp, vit .*timm:NAME, hf:CONFIG or package"),
        ("google/vit", "timm:NAME"),
        ("vitt", "did you mean 'vit'"),
    ]:
        with pytest.raises(UsageError, match=advice):
            check_name(name)


def test_a_library_is_added_by_one_entry(monkeypatch):
    """And a run trains what it builds."""

    def find(name, options):
        def make(classes, inputs):
            return nn.Sequential(
                nn.Flatten(), nn.Linear(math.prod(inputs.shape), int(name)), nn.Linear(int(name), classes)
            )

        return Named(f"wide:{name}", make)

    monkeypatch.setitem(builders.LIBRARIES, "wide:", Library("WIDTH", find))
    with pytest.raises(UsageError, match="wide:WIDTH"):
        check_name("nothing")
    options = {"classes": 2, "size": 32, "test_size": 8, "image_size": 8}
    (run,) = train([RunSpec(dataset_options=options, arch="wide:12", at=("1",), epochs=1)], device="cpu")
    assert run.outcome == "finished"


def test_a_function_that_no_worker_can_import(nets, monkeypatch):
    monkeypatch.setitem(sys.modules, "only_here", types.ModuleType("only_here"))
    for name in ("only_here:net", "__main__:net"):
        with pytest.raises(UsageError, match="worker process"):
            build_model(name, classes=4, input_shape=(3, 2, 2), seed=0)


TIMM = [
    ("resnet18", {}, (3, 32, 32)),
    ("resnet18", {}, (1, 32, 32)),
    ("convnext_atto", {}, (3, 32, 32)),
    ("vit_tiny_patch16_224", {"patch_size": 4, "drop_path_rate": 0.1}, (3, 32, 32)),
    ("mixer_s16_224", {}, (3, 32, 48)),
]


@pytest.mark.parametrize(("name", "options", "shape"), TIMM)
def test_models_of_timm_take_small_images(name, options, shape):
    pytest.importorskip("timm", reason="timm is optional and imports beside few builds of torch")
    model = build_model(f"timm:{name}", options, classes=5, input_shape=shape, seed=3)
    assert model(torch.randn(2, *shape)).shape == (2, 5)


def test_models_of_timm_that_small_images_do_not_fit():
    pytest.importorskip("timm", reason="timm is optional and imports beside few builds of torch")
    small = {"classes": 5, "input_shape": (3, 30, 30), "seed": 0}
    with pytest.raises(UsageError, match=r"cut off .* 16 .*patch_size"):
        build_model("timm:vit_tiny_patch16_224", {}, **small)
    with pytest.raises(UsageError, match="inception_v3 does not take images of 30 x 30"):
        build_model("timm:inception_v3", {}, **small)
    with pytest.raises(UsageError, match="'resnet18'"):
        build_model("timm:resnet81", {}, **small)


def test_models_of_transformers_for_images_and_for_tokens():
    pytest.importorskip("transformers")
    images = build_model("hf:ViTConfig", {**SMALL, "patch_size": 8}, classes=5, input_shape=(1, 32, 16), seed=0)
    assert images(torch.zeros(2, 1, 32, 16)).logits.shape == (2, 5)
    form = {"classes": 5, "seed": 0}
    causal = {"n_embd": 16, "n_layer": 2, "n_head": 2}  # reads the last token that is no padding
    words = build_model("hf:GPT2Config", causal, input_shape=(6,), kind="tokens", **form).eval()
    short = torch.tensor([[3, 4, 5, 0, 0, 0]])
    torch.testing.assert_close(words(short).logits, words(short[:, :3]).logits)
    for name, shape, text in [
        ("hf:ViTConfig", (3, 30, 30), "cut off"),
        ("hf:BertConfig", (3, 32, 32), "no image classifier"),
        ("hf:BertConfig", (9,), "holds vectors"),
    ]:
        with pytest.raises(UsageError, match=text):
            build_model(name, SMALL, input_shape=shape, **form)
