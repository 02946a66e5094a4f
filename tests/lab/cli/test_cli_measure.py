"""`asymtrain measure` as a user calls it: alignment, trajectory, and what all instruments share."""

import json
import re
from pathlib import Path

import pytest

from asymtrain.lab.cli.measure import CommandBench, MeasureOutput, stored_specs
from asymtrain.lab.cli.options import DeviceOptions
from asymtrain.lab.runs import RunSpec
from asymtrain.lab.store import Store
from invented_runs import invent

SMALL = ("--arch", "mlp", "--epochs", 2, "--device", "cpu")
STORED = ("--store", "asymtrain-measure/runs.sqlite")


def test_alignment_of_fresh_runs_and_then_of_the_stored_ones(cli, tmp_path):
    first = cli("measure", "alignment", *SMALL, "--seeds", 2, "--variant", "trained,detached", "--json")
    assert first.code == 0, first.err
    found = json.loads(first.out)
    assert [group["variant"] for group in found["groups"]] == ["trained", "detached"]
    trained, detached = found["groups"]
    assert [run["seed"] for run in trained["runs"]] == [42, 43]
    for group in found["groups"]:
        assert -1 <= group["mean"]["low"] <= group["mean"]["mean"] <= group["mean"]["high"]
        assert 0 <= group["conflict"]["mean"] <= 1
        assert group["main_norm"]["mean"] > 0
    assert trained["mean"]["mean"] != detached["mean"]["mean"]
    assert all(Path(path).is_file() for path in found["files"].values())

    with Store(tmp_path / STORED[1], read_only=True) as opened:
        runs = {run.spec.id: run for run in opened.runs()}
    assert len(runs) == 4
    for run in trained["runs"]:  # the document against the record
        cosines = [epoch.cosine for epoch in runs[run["id"]].history]
        assert run["final"] == cosines[-1]
        assert run["mean"] == pytest.approx(sum(cosines) / 2)

    one = trained["runs"][0]["id"]
    again = cli("measure", "alignment", "--run", one[:10], *STORED, "--out", "stored", "--json")
    assert again.code == 0, again.err
    (group,) = json.loads(again.out)["groups"]
    assert group["runs"] == trained["runs"][:1]
    assert group["mean"]["low"] is None  # one seed

    shown = cli("measure", "alignment", "--run", "all", *STORED, "--out", "stored")
    assert shown.code == 0
    assert "Gradient cosine" in shown.out
    assert "detached" in shown.out
    assert "stored/alignment.html" in shown.err
    assert "trained ones learn with the network" in " ".join(shown.out.split())
    page = (tmp_path / "stored" / "alignment.html").read_text()
    assert page.count("<figure") == 1  # both kinds of branches in one figure
    assert page.index("<figure") < page.index("Gradient norms") < page.index("Within each run")


def test_called_again_nothing_is_trained_and_the_page_has_the_same_bytes(cli, tmp_path):
    arguments = ("measure", "trajectory", *SMALL, "--seeds", 1)
    assert cli(*arguments).code == 0
    page = tmp_path / "asymtrain-measure" / "trajectory.html"
    before = page.read_bytes()
    with Store(tmp_path / STORED[1], read_only=True) as opened:
        seen = [(record.run.spec.id, record.attempt, record.created) for record in opened.records()]
    assert len(seen) == 2
    assert cli(*arguments).code == 0
    assert page.read_bytes() == before
    with Store(tmp_path / STORED[1], read_only=True) as opened:
        assert [(record.run.spec.id, record.attempt, record.created) for record in opened.records()] == seen


def chosen(out, archs=(), default_seeds=(), with_plain=False, fields=None, **shared):
    bench = CommandBench(shared, DeviceOptions(), MeasureOutput(out=out))
    return bench.choose(archs, default_seeds, with_plain=with_plain, **fields or {}), bench


def test_the_precision_is_one_of_the_runs_and_the_default_is_no_part_of_their_ids(tmp_path):
    none, fp32, bf16 = (
        chosen(tmp_path / "new", arch=["vit"], seeds="1", precision=name)[0][0] for name in (None, "fp32", "bf16")
    )
    assert none.id == fp32.id != bf16.id
    assert bf16.precision == bf16.plain().precision == "bf16"


@pytest.fixture
def stored(tmp_path):
    """A store with one pending spec and no run."""
    with Store(tmp_path / "empty.sqlite") as opened:
        opened.request([RunSpec()])
    return tmp_path / "empty.sqlite"


@pytest.mark.parametrize("instrument", ["alignment", "trajectory"])
def test_stores_without_the_run_are_refused(refused, stored, instrument):
    assert "holds no finished run yet" in refused("measure", instrument, "--run", "all", "--store", stored)
    assert "nowhere.sqlite" in refused("measure", instrument, "--run", "all", "--store", "nowhere.sqlite")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("alignment", "--run", "a", "--arch", "mlp"), "leave out --arch"),
        (("alignment", "--run", "a", "--every", 3), "keeps what it recorded"),
        (("alignment", "--variant", "frosen"), "did you mean 'frozen'"),
        (("trajectory", "--run", "a", "--precision", "bf16"), "leave out --precision"),
        (("nonsense",), "nonsense"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(refused, arguments, message):
    assert message in refused("measure", *arguments)


@pytest.fixture
def crowded(tmp_path):
    """A store of 17 runs: two ids of them begin with the same of 16 digits."""
    with Store(tmp_path / "crowded.sqlite") as opened:
        for seed in range(17):
            opened.add(invent(RunSpec(epochs=1, redundancy=0, seed=seed)))
    return tmp_path / "crowded.sqlite"


def test_ids_that_are_not_there_or_not_whole_are_refused(refused, crowded):
    ids = [RunSpec(epochs=1, redundancy=0, seed=seed).id for seed in range(17)]
    shared = next(first for first in "0123456789abcdef" if sum(one.startswith(first) for one in ids) > 1)
    options = ("--store", crowded)
    assert "unknown run" in refused("measure", "trajectory", "--run", "zzzz", *options)
    assert "write more of it" in refused("measure", "trajectory", "--run", shared, *options)
    assert "needs the id" in refused("measure", "trajectory", "--run", ",", *options)
    assert "needs Asymmetric runs" in refused("measure", "alignment", "--run", ids[0], *options)
    listed = refused("measure", "trajectory", "--run", "zzzz", *options)
    assert listed.endswith(f"{', '.join(sorted(ids)[:10])} and 7 more\n")
    assert f"did you mean '{ids[2]}'" in refused("measure", "trajectory", "--run", f"{ids[2][:14]}zz", *options)


@pytest.mark.slow
def test_a_log_shows_the_epochs_of_states_that_are_trained_for_a_landscape(cli, photos):
    """All of them on the way to the one state that is wanted, in ten lines; none of states that are kept."""
    options = ("--grid", 3, "--sample", 5, "--redundancy", "0,1", "--directions", "live", "--draws", 2)
    options += ("--data", photos, "--arch", "mlp", "--device", "cpu", "--epochs", 10)
    first, *epochs, one, two, page = cli("measure", "landscape", *options, "--at", 10).err.splitlines()
    assert first == f"1/1 mlp on {photos}: states at epoch 10"
    counts = [re.fullmatch(rf"1/1 mlp on {photos}: training epoch (\d+) of (\d+)", line) for line in epochs]
    assert all(counts)
    (total,) = {int(count[2]) for count in counts}  # how many stacks: of the machine
    assert [int(count[1]) for count in counts] == list(range(total // 10, total + 1, total // 10))
    assert [one, two] == [f"1/1 mlp on {photos}: draw 1 of 2", f"1/1 mlp on {photos}: draw 2 of 2"]
    assert cli("measure", "landscape", *options, "--at", 10).err.splitlines() == [first, one, two, page]


def test_stored_runs_are_found_by_their_beginnings_each_once(crowded):
    ids = [RunSpec(epochs=1, redundancy=0, seed=seed).id for seed in range(17)]
    found = stored_specs(crowded, [f"{ids[3][:12]}, {ids[5]}", ids[3].upper()])
    assert [spec.seed for spec in found] == [3, 5]
    assert len(stored_specs(crowded, ["all"])) == 17


def test_chosen_specs_bring_their_plain_partner_once(tmp_path):
    new = tmp_path / "new"
    specs, bench = chosen(new, arch=["mlp"], seeds="2", fields={"cosine_every": 4})
    assert [(spec.arch, spec.seed, spec.cosine_every) for spec in specs] == [("mlp", 42, 4), ("mlp", 43, 4)]
    assert bench.store == new / "runs.sqlite"
    pairs, _ = chosen(new, arch=["mlp"], seeds="2", with_plain=True)
    assert [(spec.variant, spec.seed) for spec in pairs] == [
        ("plain", 42), ("asymmetric", 42), ("plain", 43), ("asymmetric", 43),
    ]  # fmt: skip
    assert not new.exists()
    only, _ = chosen(tmp_path, ["vit"], [7])
    assert [(spec.arch, spec.seed) for spec in only] == [("vit", 7)]
