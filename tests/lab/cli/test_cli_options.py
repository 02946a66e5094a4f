"""What users type as values, and the groups that options come in."""

import inspect
import re
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from asymtrain.errors import UsageError
from asymtrain.lab.cli import options
from asymtrain.lab.cli.app import load_command
from asymtrain.lab.cli.groups import flattened
from asymtrain.lab.cli.options import (
    DeviceOptions,
    RunOptions,
    parse_archs,
    parse_options,
    parse_seeds,
    parse_settings,
    parse_values,
)
from asymtrain.lab.recipes import FIELDS, RECIPES
from asymtrain.lab.runs import DEFAULTS
from asymtrain.lab.scales import SCALES, get_scale, scaled_spec
from asymtrain.models import BACKBONES
from run_values import ALL_FIELDS, NEEDS


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
    "text",
    ["0", "", ",", "a", "3-1", "-3", "1.5", "4 5", "1--2", "4..2", "4...6", "..3", "4..", "²", "1..99999999999",
     "99999999999", "1..9000,9000..20000", "9" * 30, "9" * 5000 + ","],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_bad_seeds(text):
    with pytest.raises(UsageError, match="--seeds"):
        parse_seeds(text)


@pytest.mark.parametrize("text", ["nan", "0.1,inf", "1e400", "x"])
def test_values_are_finite_numbers(text):
    with pytest.raises(UsageError, match=r"--alphas .*: write numbers with commas"):
        parse_values("--alphas", text)


def test_models_by_name():
    assert parse_archs(None) == tuple(BACKBONES)
    assert parse_archs(["vit,mlp", "vit"]) == ("vit", "mlp")
    with pytest.raises(UsageError, match="did you mean 'vit'"):
        parse_archs(["vitt"])
    assert parse_archs(["timm:resnet18,mlp", "a.b:net"]) == ("timm:resnet18", "mlp", "a.b:net")
    with pytest.raises(UsageError, match="names no model"):
        parse_archs(["timm:"])
    with pytest.raises(UsageError, match="unknown backbone 'timm:resnet18'"):
        parse_archs(["timm:resnet18"], by_name=False)
    (spec,) = RunOptions(arch=["timm:resnet18"], arch_option=["drop_rate=0.1"]).base_specs()
    assert (spec.arch_options, spec.learning_rate, spec.weight_decay, spec.alpha, spec.epochs, spec.batch) == (
        (("drop_rate", 0.1),), 1e-3, 1e-2, 0.1, 5, 32,
    )  # fmt: skip
    (spec,) = RunOptions(arch=["vit"], arch_option=["depth=2"]).base_specs()
    assert dict(spec.arch_options) == {"depth": 2, "width": 48, "heads": 4, "patch": 8}  # joins those of the scale
    with pytest.raises(UsageError, match="--arch-option depth: write NAME=VALUE"):
        RunOptions(arch=["vit"], arch_option=["depth"]).base_specs()
    with pytest.raises(UsageError, match="unknown option of mlp 'depth'"):
        RunOptions(arch=["mlp"], arch_option=["depth=2"]).base_specs()


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


@dataclass(frozen=True)
class Pet:
    name: Annotated[str, typer.Argument()]
    legs: Annotated[int, typer.Option("--legs")] = 4


@dataclass(frozen=True)
class Bird(Pet):
    without = ("wings",)

    legs: Annotated[int, typer.Option("--legs")] = 2
    wings: Annotated[int, typer.Option("--wings")] = 2


def test_options_stand_under_the_heading_of_their_group():
    shown = {option.name: option for option in load_command("tune").params}
    assert {shown[name].rich_help_panel for name in ("data", "epochs", "settings")} == {options.TRAINED}
    assert {shown[name].rich_help_panel for name in ("out", "json", "store")} == {options.RESULTS}
    assert shown["minutes"].rich_help_panel == shown["device"].rich_help_panel != options.WHERE  # tune's own
    assert options.DATA.rich_help_panel is None  # shared ones stay as they are


@pytest.mark.parametrize("command", ["", "tune", "paper run", "measure features", "store import"])
def test_help_shows_flags_without_a_type_and_arguments_without_braces(cli, command):
    shown = cli(*command.split(), "--help").out
    assert "--help" in shown
    assert not re.search(r"<bool>|[{}]", shown)


@pytest.mark.parametrize("command", ["run", "search", "tune"])
def test_what_may_be_repeated_is_named_in_the_help(command):
    """Else the help would show <list[str]>."""
    repeated = [option for option in load_command(command).params if getattr(option, "multiple", False)]
    assert repeated
    assert all(option.metavar for option in repeated)


@pytest.mark.parametrize(
    ("option", "cure"),
    [
        ("--lr", "Did you mean --learning-rate?"),
        ("--epoch", "Did you mean --epochs"),
        ("--qq", "see `asymtrain tune --help`"),
    ],
)
def test_an_unknown_option_is_met_with_a_near_one(refused, option, cure):
    told = refused("tune", "mlp", option, "1")
    assert told.startswith(f"asymtrain: No such option: {option}")
    assert cure in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("tune --arch mlp", "No such option: --arch; the model is given without it: asymtrain tune MODEL"),
        ("store check --store x.sqlite", "--store; the store is given without it: asymtrain store check STORE"),
        ("run --epochs 1.5", "--epochs needs a whole number: see `asymtrain run --help`"),
        ("tune --minutes x", "--minutes needs a number: see"),
        ("run --model mlp", "No such option: --model. Did you mean --arch?"),
        ("run mlp", "Did you mean --arch mlp?"),
        ("measure alignment my.nets:build", "Did you mean --arch my.nets:build?"),
        ("status runs.sqlite", "Did you mean --store runs.sqlite?"),
        ("run 3", "(3): see `asymtrain run --help`"),
        ("run mlp cnn", "(mlp cnn): see `asymtrain run --help`"),
        ("data list mlp", "see `asymtrain data list --help`"),
        ("compare --arch mlp", "No such command 'compare'. Did you mean 'run'?"),
    ],
)
def test_what_is_given_in_the_way_of_another_command(refused, arguments, told):
    assert told in refused(*arguments.split())


def test_the_folder_of_a_store_is_met_with_the_store(refused, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "runs.sqlite").touch()
    assert "Did you mean --store kept/runs.sqlite?" in refused("status", "kept")
    assert "unexpected extra argument" in refused("status", "n" * 300)


@pytest.mark.parametrize("command", ["practice list", "paper list", "paper blocks"])
def test_a_device_is_refused_before_anything_is_said_of_the_store(refused, command):
    assert "unknown device" in refused(*command.split(), "--store", "typo.sqlite", "--device", "cpu:7")


def test_what_the_library_says_of_arguments_is_said_of_options():
    from asymtrain.__main__ import _as_options

    assert _as_options("which is ambiguous: pass layout='BTD' (batch, tokens, width), or") == (
        "which is ambiguous: pass --layout BTD (batch, tokens, width), or"
    )
    assert _as_options("name layers with at=, for example at='layers.*'") == (
        "name layers with --at, for example --at 'layers.*'"
    )
    for other in ("give --data-option layout=nchw or layout=nhwc", "format='a'", "write --layout BTD"):
        assert _as_options(other) == other


def test_a_group_is_passed_whole_and_a_derived_one_has_its_own_default():
    seen = []

    @flattened
    def keep(pet: Bird, where: DeviceOptions, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
        seen.append((pet, where, loud))

    assert list(inspect.signature(keep).parameters) == ["name", "legs", "device", "data_root", "loud"]
    app = typer.Typer()
    app.command()(keep)
    assert CliRunner().invoke(app, ["Pip", "--device", "cpu", "--loud"]).exit_code == 0
    assert CliRunner().invoke(app, ["Rex", "--legs", "3"]).exit_code == 0
    assert seen == [(Bird("Pip", 2), DeviceOptions("cpu"), True), (Bird("Rex", 3), DeviceOptions(), False)]
    assert CliRunner().invoke(app, []).exit_code == 2  # the name is required


def test_two_groups_with_the_same_option_are_refused():
    with pytest.raises(AssertionError, match="have an option name"):

        @flattened
        def keep(pet: Pet, bird: Bird) -> None: ...


def test_fields_that_a_derived_group_adds_are_fields_of_the_specs():
    @dataclass(frozen=True)
    class Smoothed(RunOptions):
        without = ("scale",)
        label_smoothing: Annotated[float | None, typer.Option()] = None

    (spec,) = Smoothed(arch=["vit"], label_smoothing=0.1).base_specs(batch=7)
    assert (spec.arch, spec.dataset, spec.label_smoothing, spec.batch) == ("vit", "shapes", 0.1, 7)
    chosen = RunOptions(seeds="7,", scale="paper", alpha=2.0)
    assert [spec.alpha for spec in chosen.base_specs(["mlp"])] == [2.0]
    assert (chosen.parse_seeds(), chosen.given_names()) == ((7,), ["scale", "seeds", "alpha"])
    assert RunOptions().parse_seeds() == (42, 43, 44, 45, 46)
    assert RunOptions().parse_seeds([1]) == (1,)


def test_what_is_typed_wins_over_the_recipe_and_that_over_the_scale():
    (scaled,) = RunOptions(arch=["cnn"]).base_specs()
    (spec,) = RunOptions(arch=["cnn"], recipe="strong").base_specs()
    assert (spec.epochs, spec.alpha) == (scaled.epochs, scaled.alpha)
    assert {name: getattr(spec, name) for name in RECIPES["strong"]} == {**RECIPES["strong"], "warmup": 0.5}
    chosen = RunOptions(arch=["cnn"], recipe="strong", epochs=40, learning_rate=0.1, weight_decay=0.0, batch=8)
    (spec,) = chosen.base_specs(**parse_settings(["mixup=0", "schedule=constant", "clip=2.5"]))
    assert (spec.epochs, spec.warmup, spec.learning_rate, spec.weight_decay, spec.batch) == (40, 4.0, 0.1, 0.0, 8)
    assert (spec.mixup, spec.schedule, spec.clip, spec.cutmix) == (0.0, "constant", 2.5, 1.0)
    assert RunOptions(arch=["cnn"], recipe="paper").base_specs() == [scaled]


@pytest.mark.parametrize("name", [*FIELDS, "last_batch"])
def test_every_part_of_a_recipe_can_be_given(name):
    value = ALL_FIELDS[name]
    if name in ("learning_rate", "weight_decay", "batch"):
        assert name in vars(RunOptions())
        return
    (spec,) = RunOptions(arch=["mlp"]).base_specs(**NEEDS.get(name, {}), **parse_settings([f"{name}={value}"]))
    assert getattr(spec, name) == value != DEFAULTS[name]


def test_options_of_the_data_join_those_of_the_scale():
    assert parse_options("--data-option", ["image_size=64", "kind=mean", "flag=true", "sides=[1,2]", "text=a=b"]) == {
        "image_size": 64, "kind": "mean", "flag": True, "sides": [1, 2], "text": "a=b",
    }  # fmt: skip
    (spec,) = RunOptions(arch=["mlp"], data_option=["image_size=16", "size=99"]).base_specs()
    assert dict(spec.dataset_options) == {"classes": 9, "size": 99, "test_size": 1000, "image_size": 16}
    (spec,) = RunOptions(arch=["mlp"], data="cifar10", data_option=["image_size=16"]).base_specs()
    assert dict(spec.dataset_options) == {"image_size": 16}
    for wrong in ("size", "=3", "size=null", 'size={"a": 1}'):
        with pytest.raises(UsageError, match=r"--data-option .*: write"):
            parse_options("--data-option", [wrong])
    with pytest.raises(UsageError, match="size is already set to 3"):
        parse_options("--data-option", ["size=3", "size=4"])
