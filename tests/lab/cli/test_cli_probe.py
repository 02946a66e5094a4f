import json

import pytest

from asymtrain import UsageError
from asymtrain.lab.cli.probe import parse_option
from asymtrain.lab.probe import RULE, PlaceFinding
from asymtrain.lab.probe.page import alignment_against_gain, smoothed
from asymtrain.lab.report.drawing import draw

NET = """
from torch import nn

def net(classes):
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 16), nn.ReLU()),
        nn.Sequential(nn.Linear(16, 16), nn.ReLU()),
        nn.Sequential(nn.Linear(16, 16), nn.ReLU()),
        nn.Linear(16, classes),
    )
"""


def test_a_model_of_ones_own_on_a_folder_of_images(cli, tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name, colour in (("red", (200, 30, 30)), ("green", (30, 200, 30)), ("blue", (30, 30, 200))):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(30):
            image.new("RGB", (40, 36), tuple(c + i % 20 for c in colour)).save(tmp_path / "photos" / name / f"{i}.png")
    (tmp_path / "probe_net.py").write_text(NET)
    result = cli(
        "probe", "probe_net:net", "--data", "folder:photos", "--batch", "8", "--steps", "40", "--seeds", "2",
        "--alphas", "1",
    )  # fmt: skip
    assert result.code == 0, result.err
    for text in ("Alignment at each place", "Short paired runs", "all places", "probability of a gain"):
        assert text in result.out
    shown = " ".join(result.out.split())
    assert "The held-out set is too small to tell: one of its 8 samples is 12.5 points" in shown
    assert f"The probability's constants: {RULE.basis}." in shown
    assert "Page: asymtrain-probe/probe.html" in result.err
    page = (tmp_path / "asymtrain-probe" / "probe.html").read_text()
    assert page.count("<svg") == 3
    assert "asymtrain probe probe_net:net --data folder:photos" in page
    assert "<h1>Probe of probe_net:net on folder:photos</h1>" in page
    assert page.index(">cannot tell</") < page.index('id="figures"') < page.index("Alignment at each place</h2>")


@pytest.mark.slow
def test_a_backbone_as_json(cli, tmp_path):
    options = ("--option", "widths=[16,16,16]", "--steps", "40", "--seeds", "2", "--every", "4", "--alphas", "0.1,1")
    result = cli("probe", "mlp", *options, "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert [place["place"] for place in found["shadow"]["places"]] == ["blocks.0", "blocks.1"]
    assert [trial["alpha"] for trial in found["trials"]] == [0.1, 1.0]
    assert found["sign"] in (-1, 0, 1)
    assert json.loads((tmp_path / "asymtrain-probe" / "probe.json").read_text())["advice"] == found["advice"]
    again = cli("probe", "mlp", *options, "--no-pairs", "--json")
    alone = json.loads(again.out)
    assert alone["trials"] == []
    assert alone["shadow"]["together"] == found["shadow"]["together"]


def test_an_interrupt_says_what_is_kept(cli, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("asymtrain.lab.cli.probe.probe_backbone", interrupted)
    result = cli("probe", "mlp")
    assert result.code == 130
    assert "Interrupted: nothing was written to asymtrain-probe" in " ".join(result.err.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("mlp", "--data", "shape"), "did you mean 'shapes'"),
        (("mlp", "--data", "folder:nowhere"), "nowhere is not a folder"),
        (("mlp", "--at", "blocks.*"), "--option points="),
        (("mlp", "--minutes", "0"), "--minutes must be above 0"),
        (("mpl",), "unknown backbone 'mpl': did you mean 'mlp'? (for another model"),
        (("google/vit-base",), "no model that can be built"),
        (("no_such:net",), "cannot be imported"),
        (("mlp", "--steps", "0"), "must be 1 or more"),
        (("mlp", "--alphas", "0"), "above 0"),
        (("mlp", "--alphas", "few"), "write numbers"),
        (("mlp", "--option", "depth"), "NAME=VALUE"),
        (("mlp", "--option", "depth=3"), "unknown option of mlp"),
        (("mlp", "--scale", "quik"), "did you mean 'quick'"),
        (("mlp", "--learning-rate", "-1"), "--learning-rate must be above 0"),
        (("os.path:join", "--batch", "1"), "too small to probe"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(refused, arguments, text):
    assert text in refused("probe", *arguments)


def test_lines_over_time_are_means_of_five_and_leave_out_what_is_undefined():
    cosines = (0.1, None, 0.2, 0.3, 0.4, 0.5, 1.0)
    place = PlaceFinding("a", tuple(range(7)), cosines, *(None,) * 9, 0.0, None)
    steps, values = smoothed(place)
    assert steps == pytest.approx([(0 + 2 + 3 + 4 + 5) / 5, 6])
    assert values == pytest.approx([0.3, 1.0])


def test_the_scatter_has_the_same_bytes_again():
    cases = [("mlp", 0.1, 2.0, 1.0, 3.0), ("vit", -0.2, -1.0, -2.0, 0.5)]
    first, second = (draw(alignment_against_gain(cases, "s", "t")) for _ in range(2))
    assert first == second
    assert "mlp" in first


def test_options_of_a_model_are_values():
    assert parse_option("depth=4") == ("depth", 4)
    assert parse_option("points=[0, 2]") == ("points", [0, 2])
    assert parse_option("kind=mean") == ("kind", "mean")
    with pytest.raises(UsageError, match="NAME=VALUE"):
        parse_option("depth")
