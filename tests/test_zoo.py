"""The zoo benchmark: some of its models here, and every one of its checks on a model that breaks it."""

import csv
import importlib
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import zoo  # noqa: E402
import zoo_cases  # noqa: E402
import zoo_examine  # noqa: E402

CPU = torch.device("cpu")


def case_of(cases, family):
    return next(case for case in cases if case.family == family)


@pytest.mark.parametrize(
    "family",
    ["albert", "t5", "wav2vec2", *(pytest.param(f, marks=pytest.mark.slow) for f in ("bert", "gpt2", "swin", "vit"))],
)
@pytest.mark.filterwarnings("ignore")  # the library's own
def test_models_of_transformers_pass(family):
    pytest.importorskip("transformers", reason="transformers does not import here: pip install -e '.[dev]'")
    row = zoo_examine.examine(case_of(zoo_cases.TRANSFORMERS, family), CPU)
    assert row.problem == ""
    assert row.layers > 0
    assert row.layout == "BTD"


@pytest.mark.parametrize("family", ["resnet", "vision_transformer", "swin"])
@pytest.mark.filterwarnings("ignore")
def test_models_of_timm_pass(family):
    try:
        importlib.import_module("timm")
    except Exception as problem:
        pytest.skip(f"timm does not import here: {problem}")
    assert zoo_examine.examine(case_of(zoo_cases.TIMM, family), CPU).problem == ""


class Net(nn.Module):
    """A token mixer (B, T, D) whose faults are switched on one by one."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault, self.calls = fault, 0
        self.embed, self.block, self.head = nn.Linear(8, 12), nn.Sequential(nn.Linear(12, 12)), nn.Linear(12, 10)

    def forward(self, x):
        self.calls += 1
        x = self.embed(x)
        if self.fault == "detached" and self.training:
            x = self.block.requires_grad_(False)(x.detach()) + 0 * self.block[0].weight.sum()
            self.block.requires_grad_(True)
        else:
            x = self.block(x)
        if self.fault == "hook" and self.training:
            self.block.register_forward_hook(lambda *_: None)
        if self.fault == "key" and self.training:
            self.register_buffer("seen", torch.ones(()))
        if self.fault == "nan" and self.training:
            x = x * float("nan")
        x = self.head(x.mean(1))
        return x + self.calls if self.fault == "counts" else x


def small(fault="", *, layout="BTD", length=7, needs=None, build=None):
    made = build or (lambda: Net(fault))
    sample = lambda: torch.randn(zoo_cases.BATCH, length, 8)  # noqa: E731
    return zoo_cases.Case("own", fault or "none", "Net", ("block",), layout, made, sample, needs or {"layout": "BTD"})


def test_a_sound_model_passes():
    row = zoo_examine.examine(small(), CPU)
    assert row.problem == ""
    assert (row.layers, row.layout, row.needs) == (1, "BTD", "layout='BTD'")
    assert row.parameters == sum(p.numel() for p in Net().parameters())


def unbuildable():
    raise OSError("weights must be downloaded\nand more")


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        (small("detached"), "the loss at block reaches no parameter"),
        (small("hook"), "strip left hooks"),
        (small("key"), "the state_dict has other keys after strip"),
        (small("nan"), "main loss is not finite"),
        (small("counts"), "outputs differ from those of a model that never had branches"),
        (small(layout="BCT"), "the layout was read as BTD, it is BCT"),
        # As many tokens as samples, so that only the samples themselves tell that the axes were mistaken.
        (small(layout="TBD", length=zoo_cases.BATCH, needs={"layout": "TBD"}), "do not belong to samples"),
        (small(needs={"layout": "BT"}), "layout 'BT' is not one letter an axis"),
        (small(build=unbuildable), "OSError: weights must be downloaded"),
    ],
    ids=lambda value: value.family if isinstance(value, zoo_cases.Case) else None,
)
def test_what_does_not_hold_is_named(case, problem):
    found = zoo_examine.examine(case, CPU).problem
    assert problem in found
    assert "\n" not in found


def test_same_is_to_the_bit():
    one = torch.tensor([1.0, float("nan")])
    assert zoo_examine.same(one, one.clone())
    assert not zoo_examine.same(one, torch.tensor([1.0 + 2**-23, float("nan")]))
    assert not zoo_examine.same([one], [one, one])


def test_the_exit_code_and_the_files(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(zoo, "importable", lambda library: False)
    assert zoo.main(["--device", "cpu"]) == 1, "nothing was examined"
    monkeypatch.setattr(zoo, "chosen_cases", lambda libraries, families: [small(), small("hook")])
    arguments = ["--device", "cpu", "--out", str(tmp_path / "zoo.csv"), "--markdown", str(tmp_path / "zoo.md")]
    assert zoo.main(arguments) == 1
    assert "FAILED: strip left hooks" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "zoo.csv").read_text().splitlines()))
    assert [row["problem"] for row in rows] == ["", "strip left hooks"]
    monkeypatch.setattr(zoo, "examine", lambda case, device: pytest.fail("it was examined already"))
    assert zoo.main([*arguments, "--resume"]) == 1
    assert list(csv.DictReader((tmp_path / "zoo.csv").read_text().splitlines())) == rows
    monkeypatch.undo()
    monkeypatch.setattr(zoo, "importable", lambda library: False)
    text = (tmp_path / "zoo.md").read_text()
    assert text.startswith("1 of 2 passed with ")
    assert "| failed: strip left hooks |" in text
    monkeypatch.setattr(zoo, "chosen_cases", lambda libraries, families: [small()])
    assert zoo.main(["--device", "cpu"]) == 0


def test_an_unknown_family_is_refused():
    assert [case.family for case in zoo.chosen_cases(["transformers"], ["albert"])] == ["albert"]
    with pytest.raises(SystemExit, match="no model of the family berd"):
        zoo.chosen_cases(["transformers"], ["berd"])


def test_the_kept_table_is_of_these_models_and_the_page_sums_it_up():
    text = (ROOT / "results" / "benchmarks" / "zoo.md").read_text()
    listed = re.findall(r"^\| (timm|torchvision|transformers) \| (\S+) \| `(\S+)` \|", text, re.MULTILINE)
    cases = zoo.chosen_cases(["timm", "torchvision", "transformers"], [])
    assert listed == [(case.library, case.family, case.model) for case in cases]
    assert len(set(listed)) == len(listed)
    page = (ROOT / "docs" / "zoo.md").read_text()
    assert text.splitlines()[0] in page
    summed_up = re.findall(r"^- \*\*(\w+)\*\* \((\d+)[^)]*\): ([^.]*)\.$", page, re.MULTILINE)
    assert len(summed_up) == 3
    for library, count, families in summed_up:
        of_library = [family for name, family, _ in listed if name == library]
        assert (int(count), set(re.split(r",\s+", families))) == (len(of_library), set(of_library))
    assert len(zoo_cases.TIMM) >= 20
    assert len(zoo_cases.TRANSFORMERS) >= 10
