"""`asymtrain paper list | blocks | run | next | show`."""

import dataclasses
import itertools
import json
import re
from pathlib import Path

import pytest

from asymtrain.lab import executors
from asymtrain.lab.cli import paper
from asymtrain.lab.cli.options import STORE_NAME
from asymtrain.lab.cli.paper import StudyOptions, study_sentence
from asymtrain.lab.store import Store, checksums
from asymtrain.lab.studies.paper import blocks
from asymtrain.lab.studies.paper.blocks import BLOCKS
from asymtrain.lab.studies.paper.claims import claims
from asymtrain.lab.studies.paper.recipe import part_of
from asymtrain.lab.studies.paper.recipes import RECIPES
from asymtrain.lab.studies.paper.study import SIZES, Scope
from asymtrain.lab.studies.snapshot import Snapshot
from asymtrain.lab.studies.study import Block
from asymtrain.models import MLP
from invented_runs import invent
from small_backbones import THIN_FIELDS

TINY = dataclasses.replace(
    SIZES["quick"],
    epochs=2,
    archs=THIN_FIELDS,
    stands_for={
        name: {"dataset": "shapes", "dataset_options": {"classes": 4, "size": 100, "test_size": 40}}
        for name in ("cifar10", "cifar100")
    },
    few_shot={
        name: {shots: min(few, 20) for shots, few in cells.items()} for name, cells in SIZES["quick"].few_shot.items()
    },
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """The scale `quick` with tiny networks."""
    monkeypatch.setitem(SIZES, "quick", TINY)


def store_one_run(path, study=None):
    """A store with one run of Table 3, a ViT's, of the scale `quick` unless a study is given."""
    with Store(path) as store:
        store.add(invent(RECIPES["table3"].needs(study or Scope(sizes=TINY), Snapshot()).specs[-1]))


def test_the_list_names_every_recipe_with_its_claims_and_counts(cli):
    shown = cli("paper", "list", "--json")
    assert shown.code == 0, shown.err
    rows = {row["name"]: row for row in json.loads(shown.out)}
    assert rows["table2"]["covers"] == ["table2", "table15", "figure2"]
    assert rows["table1"]["claims"][0] == "c01"
    assert (rows["table3"]["runs_there"], rows["table3"]["runs_needed"]) == (0, 12)
    assert rows["table5"]["measurements_needed"] == 12
    text = cli("paper", "list").out
    assert re.search(r"^table3 .* 0/12 +0/0 +\d+ s *$", text, re.MULTILINE)
    assert text.splitlines()[-1].startswith("Missing: ")


@pytest.mark.parametrize("command", ["list", "blocks"])
def test_a_store_that_is_named_and_not_there_is_told(cli, command):
    assert cli("paper", command, "--store", "typo.sqlite").err == (
        "There is no store at typo.sqlite: nothing counts as done.\n"
    )
    assert cli("paper", command).err == ""


@pytest.fixture
def read_epochs(monkeypatch):
    """The ids of the specs whose epochs are read from a store."""
    read, history = set(), checksums.CONTENTS["history"]

    def select(self, connection, condition, values=()):
        groups = select_history(self, connection, condition, values)
        read.update(key.spec_id for key in groups)
        return groups

    select_history = type(history).select
    monkeypatch.setattr(type(history), "select", select)
    return read


def test_a_command_reads_the_epochs_that_it_needs(cli, read_epochs):
    needed = {name: {spec.id for spec in specs_of(RECIPES[name], Scope(sizes=TINY))} for name in ("table3", "table13")}
    with Store("some.sqlite") as store:
        for spec in (*specs_of(RECIPES["table3"], Scope(sizes=TINY)), *specs_of(RECIPES["table13"], Scope(sizes=TINY))):
            store.add(invent(spec))
    for command in (["list"], ["blocks", "--scale", "quick"]):
        listed = cli("paper", *command, "--store", "some.sqlite", "--json")
        assert listed.code == 0, listed.err
        assert read_epochs == needed["table13"]  # trials of searches: what is needed next depends on them
        read_epochs.clear()
    assert sum(row["runs_there"] for row in json.loads(listed.out)) > 0
    assert cli("paper", "show", "table3", "--store", "some.sqlite").code == 0
    assert needed["table3"] <= read_epochs
    read_epochs.clear()
    assert cli("paper", "show", "table13", "--store", "some.sqlite").code == 0
    assert read_epochs == needed["table13"]


def specs_of(recipe, study):
    return recipe.needs(study, Snapshot()).specs


def test_rates_of_another_precision_are_told(cli):
    shown = {
        precision: cli("paper", "list", "--scale", "paper", "--device", "cuda", "--precision", precision).out
        for precision in ("fp32", "bf16")
    }
    assert (
        shown["fp32"]
        .rstrip()
        .endswith("by a rule of thumb (images a second of each backbone in bf16, which is faster).")
    )
    assert shown["bf16"].rstrip().endswith("by a rule of thumb (images a second of each backbone).")


def test_the_list_of_one_backbone_counts_its_part(cli):
    every, part = (
        {row["name"]: row for row in json.loads(cli("paper", "list", "--json", *arch).out)}
        for arch in ((), ("--arch", "vit"))
    )
    assert (every["table3"]["runs_needed"], part["table3"]["runs_needed"]) == (12, 4)
    assert (every["table5"]["measurements_needed"], part["table5"]["measurements_needed"]) == (12, 4)
    assert part["table8"]["runs_needed"] == 0 < every["table8"]["runs_needed"]  # the MLP's alone
    assert 0 < part["table10"]["runs_needed"] < every["table10"]["runs_needed"]  # what waits for a search too


def test_run_says_what_is_missing_then_shows_ours_beside_the_papers(cli, tmp_path):
    result = cli("paper", "run", "table3", "figure3", "--out", "study")
    assert result.code == 0, result.err
    size, first = result.err.splitlines()[:2]
    assert size == "Scale quick: 2 seeds (42, 43), 2 epochs, fp32, small networks on shapes."
    assert re.match(r"Missing: 12 runs, 0 measurements\. About .* on 1 core, by a rule of thumb", first)
    assert re.search(r"Paper +Paper", result.out)
    assert "0.4568" in result.out
    assert "c14 " in result.out
    # Wrapped to the width of the terminal.
    assert "Not yet run in full (preliminary: 2 of 10 seeds, 2 of 100 epochs, small networks on shapes)" in " ".join(
        result.out.split()
    )
    page = (tmp_path / "study" / "paper.html").read_text(encoding="utf-8")
    assert "0.4568" in page
    assert "<svg" in page
    # Nothing is trained twice, and the page is the same but for the command.
    again = cli("paper", "run", "table3", "figure3", "--out", "study")
    assert again.err.splitlines()[1] == "Nothing is missing."
    assert (tmp_path / "study" / "paper.html").read_text(encoding="utf-8") == page
    with Store(tmp_path / "study" / "runs.sqlite", read_only=True) as store:
        assert len(store.records(every_attempt=True)) == 12


def test_show_reads_a_store_and_says_what_else_lies_there(cli, tmp_path):
    assert cli("paper", "run", "table3", "--epochs", "1", "--out", "study").code == 0
    store = ("--store", "study/runs.sqlite")
    whole = json.loads(cli("paper", "show", "table3", "--epochs", "1", *store, "--json").out)
    (result,) = whole["results"]
    assert (result["runs_there"], result["runs_needed"]) == (12, 12)
    assert whole["study"]["epochs"] == 1
    assert [claim["id"] for claim in whole["claims"]] == ["c13", "c14", "c15"]
    assert all(claim["verdict"] == "Not yet run" for claim in whole["claims"])
    assert cli("paper", "run", "table3", "--out", "study").code == 0
    other = cli("paper", "show", "table3", *store, "--json")
    assert "also holds 12 runs of another scale, reading, length or precision (shapes; 1 epochs; fp32)" in other.err
    assert not (tmp_path / "asymtrain-paper").exists()


@pytest.mark.parametrize("command", [("show", "table3"), ("verdicts",)])
def test_a_store_without_a_row_of_it_is_refused_and_the_options_that_have_some_are_named(cli, refused, command):
    assert cli("paper", "run", "table3", "--arch", "mlp", "--seeds", "42,", "--epochs", "1", "--out", "study").code == 0
    store = ("--store", "study/runs.sqlite")
    assert "(shapes; 1 epochs; fp32)" in refused("paper", *command, *store)
    store_one_run("study/runs.sqlite", Scope(sizes=SIZES["paper"], precision="bf16"))
    assert "--scale paper --precision bf16" in refused("paper", *command, *store)
    assert cli("paper", *command, *store, "--scale", "paper", "--precision", "bf16").code == 0


@pytest.mark.parametrize("clone", [True, False])
def test_without_a_store_the_command_that_imports_the_rows_of_a_clone_is_named(refused, tmp_path, monkeypatch, clone):
    if not clone:  # an installed wheel
        monkeypatch.setattr(paper, "__file__", str(tmp_path / "lib" / "asymtrain" / "lab" / "cli" / "paper.py"))
    said = refused("paper", "show", "table1")
    found = re.search(r"`asymtrain (store import asymtrain-paper/runs.sqlite (\S+))`", said)
    assert bool(found) == clone
    if found:
        folder = Path(found[2])
        assert {"cifar100-200-epochs", "200-epochs-vit"} <= {path.name for path in folder.parent.glob(folder.name)}


def test_a_plan_counts_the_start_and_says_that_blocks_are_meant_for_a_gpu(cli):
    rows = json.loads(cli("paper", "list", "--device", "cuda", "--json").out)
    assert all(row["seconds_left"] > 15 for row in rows)
    for name, of_cpu in (("cpu", True), ("cuda", False)):
        shown = " ".join(cli("paper", "blocks", "--device", name).out.split())
        assert ("meant for a GPU" in shown) == of_cpu
    assert "meant for a GPU" not in cli("paper", "blocks", *QUICK, "--device", "cpu").out


@pytest.mark.slow
def test_verdicts_are_printed_and_written_and_their_history_too(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    store_one_run("one.sqlite")
    shown = cli("paper", "verdicts", "--store", "one.sqlite", "--out", "verdicts")
    assert shown.code == 0, shown.err
    assert len(re.findall(r"^c\d\d .* Not yet run *$", shown.out, re.MULTILINE)) == 36
    tables = {f"paper-verdicts{part}.{ending}" for part in ("", "-history") for ending in ("md", "tex", "csv")}
    assert {path.name for path in (tmp_path / "verdicts").iterdir()} == tables  # no figure without a verdict
    history = cli("paper", "verdicts", "--store", "one.sqlite", "--history")
    assert "Before 2026-11-16" in history.out
    assert "other rows than that day" in history.out  # these are other rows than those of that day
    written = json.loads(cli("paper", "verdicts", "--store", "one.sqlite", "--json").out)
    assert [one["id"] for one in written["claims"]] == [one.id for one in claims()]
    assert written["table"]["name"] == "verdicts"
    part = cli("paper", "verdicts", "--store", "one.sqlite", "--arch", "vit", "--json")
    assert {"c01", "c06"} & {one["id"] for one in json.loads(part.out)["claims"]} == {"c01"}


def test_show_finds_the_store_of_its_folder_then_that_of_run_and_says_where_it_looked(cli, refused, tmp_path):
    looked = refused("paper", "show", "table3", "--out", "page")
    assert f"there is no store at page/{STORE_NAME} nor at asymtrain-paper/{STORE_NAME}: name yours with" in looked
    store_one_run(tmp_path / "asymtrain-paper" / STORE_NAME)
    shown = cli("paper", "show", "table3", "--out", "page")
    assert (shown.code, f"from asymtrain-paper/{STORE_NAME}" in shown.err) == (0, True), shown.err
    store_one_run(tmp_path / "page" / STORE_NAME)
    assert f"from page/{STORE_NAME}" in cli("paper", "show", "table3", "--out", "page").err


@pytest.mark.slow
def test_show_of_many_recipes_is_an_overview_and_full_has_their_tables(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    store_one_run(tmp_path / "asymtrain-paper" / STORE_NAME)
    brief = cli("paper", "show", "all").out
    lines = brief.splitlines()
    assert len(lines) < 50
    for name in RECIPES:
        assert re.search(rf"^{name} .* [01]/\d+ ", brief, re.MULTILINE)
    assert lines[-1].startswith("Every table, note and verdict: ")
    assert lines[-1].endswith("--out FOLDER writes them as a page.")
    written = cli("paper", "show", "all", "--store", f"asymtrain-paper/{STORE_NAME}", "--out", "page")
    assert written.out.endswith("; the page has them.\n")
    assert written.err.splitlines()[-1].startswith("Report: page/paper.html")
    by_verdict = brief[brief.index("Not yet run (36): ") :]
    assert set(re.findall(r"\bc\d\d\b", by_verdict)) == {claim.id for claim in claims()}
    full = cli("paper", "show", "all", "--full").out
    assert len(full.splitlines()) > 5 * len(lines)
    assert cli("paper", "show", "table3").out.splitlines()[0] in full.splitlines()


@pytest.mark.slow
def test_run_of_many_recipes_ends_with_an_overview_and_tracks_what_it_trains(cli, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("COLUMNS", "120")
    command = ("paper", "run", "table3", "table5", "figure3", "table10", "--arch", "mlp")
    # The time is over after the first stacks.
    command += ("--epochs", "1", "--minutes", "0.01", "--out", "study")
    result = cli(*command, "--track", "tensorboard")
    lines = result.out.splitlines()
    assert result.code == 0, result.err
    assert len(lines) < 20
    assert lines[-1].endswith("`asymtrain paper show NAME --store study/runs.sqlite` prints those of one recipe.")
    assert len(cli(*command, "--full").out.splitlines()) > 2 * len(lines)


def test_a_count_of_seeds_is_told_from_a_seed():
    study = StudyOptions(seeds="42", data="shapes").build()
    assert study_sentence(study).startswith("Scale quick: 42 seeds (42 to 83), ")
    for text, seeds in (("42,", (42,)), ("42..44", (42, 43, 44)), ("42,45", (42, 45))):
        assert StudyOptions(seeds=text, data="shapes").build().seeds == seeds


def test_several_readings_side_by_side(cli):
    shown = cli("paper", "run", "table3", "--epochs", "1", "--reading", "sum", "--json")
    assert shown.code == 0, shown.err
    (result,) = json.loads(shown.out)["results"]
    readings = [row[1]["text"] for row in result["tables"][0]["rows"]]
    assert readings == ["primary reading"] * 3 + ["losses summed over classes"] * 3


def test_a_time_limit_that_is_over_before_a_measurement_says_so(cli, monkeypatch):
    limited = ("paper", "run", "identity", "--minutes", "0.0000001")
    left = "0 runs and {} measurements are left. {}"
    assert left.format(3, "Starting took all of this time: give the same command with more") in cli(*limited).err
    monkeypatch.setattr("asymtrain.lab.studies.frame._until", lambda _, taken: itertools.islice(taken, 1))
    assert left.format(2, "Give the same command again to go on.") in cli(*limited).err


QUICK = ("--scale", "quick", "--epochs", "1", "--out", "study")


def listed_blocks(cli):
    shown = cli("paper", "blocks", *QUICK, "--device", "cpu", "--json")
    assert shown.code == 0, shown.err
    return {row["name"]: row for row in json.loads(shown.out)}


def test_a_block_is_done_and_goes_on_and_is_listed_with_what_is_stored(cli):
    before = listed_blocks(cli)
    assert list(before) == list(BLOCKS)
    assert (before["frozen"]["runs_there"], before["frozen"]["runs_needed"]) == (0, 12)
    assert before["frozen"]["seconds_left"] > 0
    assert before["precision"]["seconds_left"] is None  # at which rate TF32 trains, no row says
    command = ("paper", "next", "--block", "frozen", *QUICK)
    cut = cli(*command, "--minutes", "0.0000001")
    assert "Not finished: 12 runs and 0 measurements are left." in cut.err
    assert "is finished" not in cut.err
    done = cli(*command)
    assert done.code == 0, done.err
    assert done.err.startswith("Block frozen: CNN and ViT: Table 2 with frozen and detached branches.\n")
    assert ", 1 epoch, fp32, small networks on shapes.\n" in done.err  # bf16 is the study's, which a CPU has no use for
    assert done.err.endswith("Block frozen is finished. The next is fitting.\n")
    after = listed_blocks(cli)
    assert after["frozen"]["runs_there"] == 12
    assert after["frozen"]["seconds_left"] == 0
    assert 0 < after["mechanism"]["runs_there"] < after["mechanism"]["runs_needed"]  # the paper's branches are in both
    assert re.search(r"^frozen .* 12/12 +0/0 +0 s *$", cli("paper", "blocks", *QUICK, "--device", "cpu").out, re.M)


def test_next_does_the_first_block_that_is_not_finished(cli, monkeypatch):
    small = {arch: Block(arch, "Table 3", (part_of(RECIPES["table3"], [arch]),)) for arch in ("mlp", "vit")}
    monkeypatch.setattr(blocks, "BLOCKS", small)
    for name in small:
        done = cli("paper", "next", *QUICK)
        assert (done.code, done.err.split(":")[0]) == (0, f"Block {name}"), done.err
        assert done.err.endswith(
            f"Block {name} is finished. {'The next is vit.' if name == 'mlp' else 'It was the last.'}\n"
        )
    told = " ".join(cli("paper", "next", *QUICK).out.split())
    assert "Every block is finished: `asymtrain paper show all --scale quick --precision fp32 " in told


def test_next_says_that_a_named_store_is_not_there_and_prints_no_table_of_dashes(cli):
    command = ("paper", "next", "--block", "fitting", *QUICK, "--store", "stroe.sqlite")
    cut = cli(*command, "--minutes", "0.0000001")
    assert cut.err.startswith("There is no store at stroe.sqlite: nothing counts as done.\n")
    assert "Table 12 over all of training: no rows yet\n" in cut.out
    assert "—" not in cut.out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("next", "--block", "frosen"), "did you mean 'frozen'"),
        (("next", "--minutes", "0"), "--minutes must be above 0"),
        (("next", "--data-root", "nowhere"), "cifar"),
        (("run", "table18"), "table17"),
        (("show", "figure1"), "choose among all, table1"),
        (("run", "table1", "--scale", "huge"), "unknown scale 'huge'"),
        (("run", "table1", "--reading", "som"), "did you mean 'sum'"),
        (("run", "table1", "--epochs", "0"), "--epochs must be 1 or more"),
        (("run", "table1", "--arch", "rnn"), "unknown backbone 'rnn'"),
        (("run", "table8", "--arch", "cnn,vit"), "nothing of cnn, vit in table8"),
        (("run", "table1", "--seeds", "1000,"), "one of the search's"),
        (("run", "table1", "--minutes", "0"), "--minutes must be above 0"),
        (("run", "table1", "--precision", "fp8"), "precision must be one of"),
        (("run", "table1", "--data", "imagenet"), "--data must be shapes or cifar"),
        (("run", "table1", "--scale", "paper", "--data", "shapes"), "leave out --data shapes"),
        (("run", "table1", "--hyperparameters", "guessed"), "unknown hyperparameters 'guessed'"),
        (("run", "table1", "--address", "x"), "--executor ray"),
        (("show", "table1"), "there is no store at"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(refused, arguments, text):
    assert text in refused("paper", *arguments)


@pytest.mark.parametrize("scale", [("--scale", "paper"), ("--data", "cifar")])
def test_missing_cifar_is_said_before_any_training(refused, monkeypatch, scale):
    from asymtrain.lab.data.archives import Unavailable

    def offline(*args, **kwargs):
        raise Unavailable("the network is off in tests")

    def never(*args, **kwargs):
        raise AssertionError("training began")

    monkeypatch.setattr("asymtrain.lab.data.archives.download", offline)
    monkeypatch.setattr(executors, "execute", never)
    assert "--data-root" in refused("paper", "run", "table1", *scale)


def test_runs_of_a_changed_backbone_are_not_mixed(cli, monkeypatch, tmp_path):
    assert cli("paper", "run", "table3", "--arch", "mlp", "--out", "study").code == 0
    build = MLP.forward
    monkeypatch.setattr(MLP, "forward", lambda self, x: 2 * build(self, x))
    before = (tmp_path / "study" / "runs.sqlite").read_bytes()
    result = cli("paper", "run", "table3", "--arch", "mlp", "--out", "study", "--seeds", "4")
    assert result.code == 2
    assert "the model mlp changed since 4 runs in study/runs.sqlite were trained: what it computes" in result.err
    assert (tmp_path / "study" / "runs.sqlite").read_bytes() == before
