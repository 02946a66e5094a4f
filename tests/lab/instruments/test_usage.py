"""`usage`: the numbers against slow ones, on the three backbones, and the command."""

import json

import numpy as np
import pytest
import torch
from landscape_examples import SMALL, spec_of

from asymtrain.__main__ import main
from asymtrain.errors import UsageError
from asymtrain.lab.data import registry
from asymtrain.lab.engine import train
from asymtrain.lab.engine.setup import build_backbone, run_data
from asymtrain.lab.engine.states import initial_state
from asymtrain.lab.instruments.usage.measure import head_usage, measure_usage
from asymtrain.lab.store import Store

OPTIONS = {"classes": 3, "size": 60, "test_size": 40}


@pytest.fixture(scope="module")
def dataset():
    return registry.load("shapes", **OPTIONS)


def slow_usage(features, logits):
    """By the definitions: a readout by least squares class by class, its directions made orthogonal one by one."""
    x, z = (np.asarray(values, np.float64) for values in (features, logits))
    x, z = x - x.mean(0), z - z.mean(0)
    readout = [np.linalg.lstsq(x, z[:, c], rcond=1e-10)[0] for c in range(z.shape[1])]
    explained = sum(float(((x @ readout[c]) ** 2).sum()) for c in range(z.shape[1])) / float((z**2).sum())
    basis: list[np.ndarray] = []
    for direction in readout:
        rest = direction.copy()
        for _ in range(2):  # twice is enough for rounding
            for other in basis:
                rest = rest - (rest @ other) * other
        if np.linalg.norm(rest) > 1e-7 * max(map(np.linalg.norm, readout)):
            basis.append(rest / np.linalg.norm(rest))
    used = sum(float(((x @ direction) ** 2).sum()) for direction in basis) / float((x**2).sum())
    return explained, used, len(basis)


def check(usage, features, logits):
    explained, used, directions = slow_usage(features, logits)
    assert usage.readable == pytest.approx(explained, rel=1e-4)
    assert usage.used == pytest.approx(used, rel=1e-4)
    assert (usage.directions, usage.units) == (directions, features.shape[1])


@pytest.mark.parametrize("arch", SMALL)
def test_points_of_a_backbone_against_the_slow_way(arch, dataset):
    spec = spec_of(arch, dataset_options=OPTIONS)
    state = initial_state(spec, dataset)
    before = {name: value.clone() for name, value in state.parameters.items()}
    points = measure_usage(state, dataset, images=40)
    assert all(torch.equal(state.parameters[name], value) for name, value in before.items())
    model, data = build_backbone(spec, dataset), run_data(spec, dataset)
    model.load_state_dict(state.backbone)
    images = (torch.from_numpy(dataset.test.images[:40]).float() / 255 - data.mean.view(3, 1, 1)) / data.std.view(
        3, 1, 1
    )
    with torch.no_grad():
        logits, features = model.features(images)
    assert len(points) == len(features)
    for usage, values in zip(points, features, strict=True):
        check(usage, values, logits)


@pytest.mark.parametrize("arch", SMALL)
def test_what_the_head_itself_reads_is_readable_along_the_rows_of_its_weight(arch, dataset):
    torch.manual_seed(0)
    model, inputs = build_backbone(spec_of(arch, dataset_options=OPTIONS), dataset).eval(), []
    model.head.register_forward_hook(lambda module, args, output: inputs.append(args[0].detach()))
    model(torch.randn(60, 3, 32, 32))
    x = torch.randn(60, inputs[0].shape[1], dtype=torch.float64)  # every unit alive: the rows are then the readout
    weight = model.head.weight.detach().double()
    usage = head_usage(x, x @ weight.T + 1)
    assert usage.readable == pytest.approx(1)
    assert usage.directions == 3
    centred = x - x.mean(0)
    inside = centred @ torch.linalg.pinv(weight) @ weight
    assert usage.used == pytest.approx((inside.square().sum() / centred.square().sum()).item())
    assert head_usage(inputs[0], model.head(inputs[0])).readable == pytest.approx(1, abs=1e-6)


def test_known_cases():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 4, generator=generator) * torch.tensor([3.0, 1.0, 1.0, 1.0])
    one = head_usage(x, x[:, :1])  # one of four directions, with nine of twelve parts of the variance
    assert (one.readable, one.directions) == (pytest.approx(1), 1)
    assert one.used == pytest.approx((x[:, 0].var() / x.var(0).sum()).item(), rel=0.05)
    noise = head_usage(x, torch.randn(500, 2, generator=generator))
    assert noise.readable < 0.05
    both = head_usage(torch.cat([x, x], 1), x[:, :1])  # twice the same units: no readout is unique, the least is taken
    check(both, torch.cat([x, x], 1), x[:, :1])
    constant = head_usage(torch.ones(10, 3), x[:10])
    assert (constant.used, constant.readable, constant.directions) == (None, 0.0, 0)
    assert head_usage(x, torch.ones(500, 2)).readable is None


def test_what_says_nothing_is_refused():
    with pytest.raises(UsageError, match="more images than units"):
        head_usage(torch.randn(8, 8), torch.randn(8, 2))
    with pytest.raises(UsageError, match="of the same images"):
        head_usage(torch.randn(8, 2), torch.randn(9, 2))
    with pytest.raises(UsageError, match="diverged"):
        head_usage(torch.full((8, 2), float("nan")), torch.randn(8, 2))


def call(capsys, *arguments):
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(["measure", "usage", *map(str, arguments)])
    return stopped.value.code or 0, *capsys.readouterr()


@pytest.mark.slow
def test_the_command_of_stored_runs_keeps_its_values_and_reads_them(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    specs = [spec_of(arch, dataset_options=OPTIONS, epochs=1, batch=20) for arch in SMALL]
    specs = [one for spec in specs for one in (spec.plain(), spec)]
    with Store(tmp_path / "runs.sqlite") as store:
        for run in train(specs, device="cpu"):
            store.add(run)
    options = ("--run", "all", "--store", "runs.sqlite", "--images", 40, "--at", "0,1", "--device", "cpu")
    code, out, err = call(capsys, *options, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert {(run["id"], run["epoch"]) for run in document["runs"]} == {(s.id, e) for s in specs for e in (0, 1)}
    with Store(tmp_path / "runs.sqlite", read_only=True) as store:
        kept = {(value.spec_id, value.epoch): value.value for value in store.measurements("usage of 40 images")}
    assert kept == {(run["id"], run["epoch"]): run["points"] for run in document["runs"]}
    monkeypatch.setattr("asymtrain.lab.cli.measure.CommandBench.states", lambda *arguments: 1 / 0)
    code, out, _ = call(capsys, *options)  # from the store
    assert code == 0
    assert "What the answer reads of each point" in out
    page = (tmp_path / "asymtrain-measure" / "usage.html").read_text()
    assert page.count("<figure") == 6


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--at", "x"), "write epochs with commas"),
        (("--at", 99), "has 5 epochs"),
        (("--images", 10**6), "--images must lie"),
    ],
)
def test_bad_options(capsys, tmp_path, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, "--arch", "mlp", *options)
    assert code == 2
    assert said in err
    assert not list(tmp_path.iterdir())
