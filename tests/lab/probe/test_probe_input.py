"""What strangers get wrong, each with one line that says what to do."""

import ast
import collections
import subprocess
import sys
import threading

import pytest
import torch
from probe_models import CLASSES, build, learnable
from torch import nn

from asymtrain import UsageError
from asymtrain.lab.probe import probe

SHORT = {"steps": 6, "alphas": (), "every": 2}


class WithHeads(nn.Module):
    """As torchvision's GoogLeNet: several outputs in training, one in eval mode."""

    Outputs = collections.namedtuple("Outputs", "logits aux_logits2 aux_logits1")

    def __init__(self):
        super().__init__()
        self.inner = build()

    def forward(self, x):
        logits = self.inner(x)
        return self.Outputs(logits, logits * 2, logits * 3) if self.training else logits


class Locked(nn.Linear):
    def __init__(self):
        super().__init__(6, CLASSES)
        self.lock = threading.Lock()


def refuse(text, model=None, batches=None, **options):
    with pytest.raises(UsageError, match=text) as problem:
        probe(build() if model is None else model, learnable() if batches is None else batches, **{**SHORT, **options})
    assert "\n" not in str(problem.value)


def one_class():
    return [(x, torch.zeros_like(y)) for x, y in learnable()]


def test_models():
    refuse("without them .aux_logits=False.*logits=0", WithHeads())
    refuse("cannot be copied .*give a function", Locked(), at="")
    refuse("meta device", nn.Linear(6, CLASSES, device="meta"), at="")
    refuse("no parameter of the model is trained", build().requires_grad_(False))
    refuse("has no parameters", nn.Flatten())
    refuse("takes an nn.Module or a function", 3)
    refuse("the function must return an nn.Module, and returned int", lambda: 3)
    refuse("attach first, then torch.compile", torch.compile(build()))
    refuse(r"logits have shape \(16, 2, 2\)", nn.Sequential(nn.Linear(6, 4), nn.Unflatten(1, (2, 2))), at="0")


def test_a_model_on_several_devices(monkeypatch):
    model = build()
    parts = iter([torch.device("cpu"), torch.device("cuda", 0)])

    class Parameter:
        requires_grad, dtype = True, torch.float32

        def __init__(self):
            self.device = next(parts)

    monkeypatch.setattr("copy.deepcopy", lambda given: given)
    monkeypatch.setattr(model, "parameters", lambda recurse=True: [Parameter(), Parameter()] if recurse else [])
    monkeypatch.setattr("asymtrain.lab.probe.inputs.refuse_wrapped", lambda given: None)
    refuse("lies on cpu and cuda:0: move it to one device", model)


def test_the_main_output_of_several_can_be_named():
    found = probe(WithHeads(), learnable(), at="inner.blocks.*", logits=0, **SHORT)
    same = probe(WithHeads(), learnable(), at="inner.blocks.*", logits="aux_logits1", **SHORT)
    assert found.shadow.loss != same.shadow.loss


def test_places():
    refuse("no module matches 'layers", at="layers.*")
    model = build()
    model.idle = nn.Linear(3, 3)
    refuse("'idle' did not run", model, at="idle")
    refuse("no repeated blocks", nn.Linear(6, CLASSES))
    frozen = build()
    frozen.stem.requires_grad_(False)
    refuse("no place is behind a trained parameter", frozen, at="stem")


def test_batches():
    x, y = learnable(1)[0]
    refuse("one sample each", batches=[(x[:1], y[:1])] * 20)
    refuse("one class only", batches=one_class())
    refuse("no batch", batches=[])
    refuse("one batch is too few", batches=[(x, y)])
    refuse("must be a list, a DataLoader", batches=3)
    refuse("tensor of class indices", batches=[(x, y.float())] * 5)
    refuse("as a DataLoader makes them", batches=[(x[0], 1)] * 5)
    refuse("mapping without 'labels'", batches=[{"x": x}] * 5)
    refuse(r"\(inputs, targets\) or a mapping", batches=[x] * 5)
    refuse("numbered 0 to 3: number them so, or build the model for more classes", batches=[(x, y + 4)] * 5)
    refuse("a target is -1, but the model has 4 logits", batches=[(x, y)] * 5 + [(x, y - 1)])
    refuse("cannot be called on a batch", batches=[(x[:, :3], y)] * 5)


def test_settings():
    refuse("alphas must be above 0", alphas=(0.0,))
    refuse("steps must be a whole number", steps=0)
    refuse("seeds must be a whole number", seeds=1.5)
    refuse("minutes must be above 0", minutes=0)


def test_overflow_is_refused_and_a_single_bad_step_is_skipped():
    x, y = learnable(1)[0]
    refuse("not finite in .* lower the learning rate", batches=[(x * float("inf"), y)] * 10)
    batches = learnable(40)
    batches[0] = (batches[0][0] * float("nan"), batches[0][1])
    batches[0], batches[1] = batches[1], batches[0]
    found = probe(build(), batches, steps=30, alphas=(), every=2)
    assert found.shadow.skipped == 1


@pytest.mark.usefixtures("bfloat16_on_any_cpu")
def test_autocast_and_half_precision_weights():
    found = probe(build(), learnable(), autocast=torch.bfloat16, **SHORT)
    assert found.shadow.together.alignment is not None
    half = [(x.half(), y) for x, y in learnable()]
    model = build().half()
    assert probe(model, half, **SHORT).shadow.together.alignment is not None
    assert model.stem.weight.dtype == torch.float16


def test_mappings_and_tuples_of_inputs():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build()

        def forward(self, x, scale=1.0):
            return {"logits": self.inner(x * scale)}

    tensors = learnable()
    named = [{"x": x, "scale": torch.ones(()), "labels": y} for x, y in tensors]
    paired = [((x, torch.ones(())), y) for x, y in tensors]
    results = [
        probe(Named(), given, at="inner.blocks.*", **SHORT).shadow.together for given in (tensors, named, paired)
    ]
    assert results[0] == results[1] == results[2]


@pytest.mark.slow
def test_the_probe_loads_torch_alone():
    program = (
        "import torch, sys; before = set(sys.modules); import asymtrain.lab.probe; print(set(sys.modules) - before)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    loaded = {name.split(".")[0] for name in ast.literal_eval(found)}
    assert loaded - sys.stdlib_module_names == {"asymtrain"}
    rooms = {name.split(".")[2] for name in ast.literal_eval(found) if name.startswith("asymtrain.lab.")}
    assert rooms == {"probe"}  # of the lab nothing else, and of this room what needs torch alone
