"""Names, globs and modules."""

import copy

import numpy as np
import pytest
import torch
from branch_zoo import CLASSES, Cnn, Tied, images, mlp, rows, targets
from torch import Tensor, nn

from asymtrain.branches import WithBranches, attach
from asymtrain.branches._layers import ROOT, find_paths, fits, module_at
from asymtrain.errors import UsageError, UsageWarning


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(7, 7), nn.ReLU()) for _ in range(11))
        self.norm = nn.LayerNorm(7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


FITTING = {
    "blocks.*": (["blocks.10"], ["blocks.1.attn", "blocks"]),
    "blocks.*.attn": (["blocks.1.attn"], ["blocks.attn"]),
    "*.attn": (["head.attn"], ["blocks.1.attn"]),
    "**.attn": (["blocks.1.attn", "attn"], ["blocks.1"]),
    "blocks.**": (["blocks.1.attn"], ["norm"]),
    "blocks.[02]": (["blocks.2"], ["blocks.1"]),
    "block?.1": (["blocks.1"], ["blocks.2"]),
    "Blocks.*": ([], ["blocks.1"]),
}


@pytest.mark.parametrize("pattern", FITTING)
def test_globs_go_segment_by_segment(pattern: str) -> None:
    fitting, others = FITTING[pattern]
    assert all(fits(pattern, name) for name in fitting)
    assert not any(fits(pattern, name) for name in others)


def test_a_glob_keeps_the_models_order_and_a_list_its_own() -> None:
    model = Deep()
    assert list(find_paths(model, "blocks.*")) == [f"blocks.{i}" for i in range(11)]
    assert list(find_paths(model, ["norm", "blocks.2", "blocks.[01]"])) == ["norm", "blocks.2", "blocks.0", "blocks.1"]


def test_overlapping_names_are_one_layer() -> None:
    model = Deep()
    assert list(find_paths(model, ["blocks.1", "blocks.[12]", model.blocks[2]])) == ["blocks.1", "blocks.2"]


def test_a_module_with_two_names_answers_to_both() -> None:
    model = Tied()
    model.alias = model.block
    assert module_at(model, find_paths(model, "alias")["alias"]) is model.block
    assert list(find_paths(model, ["block", "alias"])) == ["block"]


def test_the_model_itself_can_be_a_layer() -> None:
    model, x = mlp(), rows()
    branches = attach(model, x, CLASSES, at=model, head="linear")
    output = model(x)
    assert branches.layers == (ROOT,)
    expected = output @ branches.head(ROOT).live.T
    assert torch.equal(branches.logits()[ROOT], expected)
    state = branches.state_dict()
    branches.strip()
    attach(model, x, CLASSES, at="", head="linear").load_state_dict(state, strict=True)


class Stages(nn.Module):
    """Blocks in two lists, with lists of their own inside, beside a list of something else."""

    def __init__(self) -> None:
        super().__init__()
        inner = [nn.Sequential(nn.Linear(7, 7), nn.Linear(7, 7)) for _ in range(5)]
        self.blocks = [nn.Sequential(nn.ModuleDict({"mlp": mlp})["mlp"], nn.ReLU()) for mlp in inner]
        self.stage1, self.stage2 = nn.Sequential(*self.blocks[:2]), nn.Sequential(*self.blocks[2:])
        self.heads = nn.ModuleList([nn.Linear(7, CLASSES) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage2(self.stage1(x))
        return sum(head(x) for head in self.heads)


def test_numbers_count_the_repeated_blocks() -> None:
    model = Stages()
    assert list(find_paths(model, [0, -1, 2])) == ["stage1.0", "stage2.2", "stage2.0"]
    assert module_at(model, find_paths(model, 1)["stage1.1"]) is model.blocks[1]
    assert list(find_paths(model, np.arange(2).tolist())) == list(find_paths(model, [*np.arange(2)]))
    branches = attach(model, rows(), CLASSES, at=[1, -1])
    model(rows())
    assert list(branches.losses(targets())) == ["stage1.1", "stage2.2"]
    with pytest.raises(UsageError, match="there are none"):
        attach(nn.Linear(7, CLASSES), rows(), CLASSES, at=0)


class Towers(nn.Module):
    def __init__(self, image: int, text: int) -> None:
        super().__init__()
        self.image, self.text = (nn.Sequential(*(nn.Linear(7, 7) for _ in range(depth))) for depth in (image, text))
        self.heads = nn.ModuleList([nn.LayerNorm(7) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        return self.image(x) + self.text(x)


@pytest.mark.parametrize("depths", [(2, 2), (3, 5)])
def test_numbers_do_not_choose_between_towers(depths: tuple[int, int]) -> None:
    model = Towers(*depths)
    for at in ([0, 1], 1, {1: "late"}):
        with pytest.raises(UsageError, match=r"2 series .* '(image|text).[01]' or 'text.[01]'"):
            attach(model, rows(), CLASSES, at=at)
    with pytest.raises(UsageError, match=r"none of number 9: .*'image.0' to .* and .*'text.0' to"):
        attach(model, rows(), CLASSES, at=9)
    model.text = nn.Sequential(*(nn.Sequential(nn.Linear(7, 7)) for _ in range(depths[0])))
    assert list(find_paths(model, 1)) == ["text.1"]  # as many, and made of layers


@pytest.mark.parametrize("keys", [["stage1.*", "stage1.1", "**"], ["stage1.1", "stage1.*", "**"]], ids=str)
def test_of_keys_that_fit_a_layer_its_name_counts_and_else_the_first(keys: list[str]) -> None:
    values = {"stage1.*": 2.0, "stage1.1": 3.0, "**": 4.0}
    given = {key: values[key] for key in keys}
    weights = attach(Stages(), rows(), CLASSES, at=[0, 1, 2], weights=given, preset="paper").settings.weights
    assert weights == {"stage1.0": 2.0, "stage1.1": 3.0, "stage2.0": 4.0}


def test_layers_by_names_of_ones_own() -> None:
    model, x = Stages(), rows()
    branches = attach(model, x, CLASSES, at={"stage1.1": "early", -1: "late"}, head="linear", weights={"late": 3.0})
    model(x)
    losses = branches.losses(targets())
    assert list(losses) == list(branches.layers) == ["early", "late"]
    assert torch.allclose(branches.loss(targets()), 0.5 * (losses["early"] + 3 * losses["late"]) / 4)
    assert set(branches.state_dict()) == {"heads.early.live", "heads.late.live"}
    assert torch.allclose(branches.logits()["early"], model.stage1(x) @ branches.head("early").live.T)
    twin = copy.deepcopy(WithBranches(model, branches))
    assert list(twin(x)[1]) == ["early", "late"]


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("convs.7", r"unknown module 'convs.7': did you mean 'convs.\d'"),
        ("cnvs.0", "did you mean 'convs.0'"),
        ("blocks.*", r"no module matches 'blocks.\*'.*there are convs, drop, head, norm"),
        ("conv.*", r"did you mean .*'convs.\*'"),
        ("Convs.[01]", r"did you mean .*'convs.\*'"),
        ("encoder.convs.*", r"did you mean .*'convs.\*'"),
        ([], "`at` is empty"),
        (3.0, "`at` takes .* got a float"),
        ([True], "`at` takes .* got a bool"),
        (3, "none of number 3: there are 2, 'convs.0' to 'convs.1'"),
        ({"convs.*": "all"}, "two layers of `at` would be called 'all'"),
        ({"convs.0": 3}, "got 3 for 'convs.0'"),
        (nn.Linear(2, 2), "a Linear that is not part of the model"),
        ("convs", r"an nn.ModuleList, .*at='convs.\*'"),
    ],
)
def test_wrong_layers_are_explained(at: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        attach(Cnn(), images(), CLASSES, at=at)


def test_a_layer_that_does_not_run_is_refused() -> None:
    model = Cnn()
    model.unused = nn.Linear(2, 2)
    with pytest.raises(UsageError, match="layer 'unused' did not run when the model was called on `sample`"):
        attach(model, images(), CLASSES, at=["convs.0", "unused"])
    assert not model.convs[0]._forward_hooks


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(7, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x) - self.trunk(x + 1))


def test_a_layer_that_is_called_twice_is_warned_of_once() -> None:
    model, x = Siamese(), rows()
    told = (
        r"one forward calls the layer 'trunk' 2 times, and branches read the last call alone: .*joined along the batch"
    )
    with pytest.warns(UsageWarning, match=told) as caught:
        branches = attach(model, x, CLASSES, at=["trunk", "head"], head="linear")
    assert [warning.filename for warning in caught] == [__file__]
    model(x)
    assert torch.equal(branches.logits()["trunk"], model.trunk(x + 1) @ branches.head("trunk").live.T)


def test_an_unknown_layer_is_explained() -> None:
    branches = attach(Cnn(), images(), CLASSES, at="convs.*")
    with pytest.raises(UsageError, match=r"unknown layer 'convs.9': did you mean"):
        branches.head("convs.9")


class Named(nn.Module):
    """Linear layers under any names, called in turn. `setattr` takes names that `add_module` refuses."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            setattr(self, name, nn.Linear(7, 7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.children():
            x = layer(x)
        return x


def slashed() -> nn.Module:
    """A child `a` with a child `b`, and a child `a/b`."""
    model = nn.Sequential()
    model.add_module("a", nn.Sequential())
    model.a.add_module("b", nn.Linear(7, 7))
    model.add_module("a/b", nn.Linear(7, 7))
    return model


ALIKE = ["a/b", "a~b", "a~1b", "a~0b", "~", "keys", "/keys", "a.keys", "a/keys", "x.y.z", "x.y/z", "x/y.z", "é", " "]


def test_no_two_layers_share_a_head() -> None:
    model = Named(*ALIKE)
    branches = attach(model, rows(), CLASSES, at=ALIKE)
    assert len(branches.heads) == len(ALIKE)
    model(rows())
    assert list(branches.losses(torch.arange(3))) == ALIKE
    assert len({id(branches.head(name)) for name in ALIKE}) == len(ALIKE)
    model = slashed()
    branches = attach(model, rows(), CLASSES, at=["a.b", "a/b"])
    assert branches.head("a.b") is not branches.head("a/b")


def test_a_child_may_have_a_dot_in_its_own_name() -> None:
    model, x = Named("a.b", "c"), rows()
    branches = attach(model, x, CLASSES, at="a.b", head="linear")
    model(x)
    assert torch.equal(branches.logits()["a.b"], getattr(model, "a.b")(x) @ branches.head("a.b").live.T)
    branches.strip()
    assert not getattr(model, "a.b")._forward_hooks


def test_a_name_with_the_marks_of_a_glob_is_a_name_first() -> None:
    model = Named("x0", "x[0]", "*")
    assert list(find_paths(model, "x[0]")) == ["x[0]"]
    assert list(find_paths(model, "*")) == ["*"]
    branches = attach(model, rows(), CLASSES, at=["x0", "x[0]"], layout={"x[0]": "BD", "x0": "DB"})
    assert [branches.readers[name].layout for name in branches.layers] == ["DB", "BD"]


@pytest.mark.parametrize(
    ("names", "at", "message"),
    [
        (["(model)"], "(model)", r"two modules of the model have the name '\(model\)': rename one of them"),
        (["a", "a.b"], "a.b", "two modules of the model have the name 'a.b': rename one of them"),
        (["a", ""], "", "two modules of the model have the name"),
        ([".a"], ".a", "layer '.a' lies in a module whose name is empty"),
        (["line\nbreak"], "none*", "there are 'line"),
        (["line\nbreak"], "none", "unknown module 'none': "),
    ],
)
def test_names_that_do_not_tell_are_refused(names: list[str], at: str, message: str) -> None:
    model = Named(*names)
    if names[0] == "a":
        model.a.add_module("b", nn.Linear(2, 2))
    with pytest.raises(UsageError, match=message) as caught:
        attach(model, rows(), CLASSES, at=at)
    assert str(caught.value).isprintable()
