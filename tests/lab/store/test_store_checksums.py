"""What damage to the file does: it is named, the rest is read, and nothing is silently different."""

import random
import sqlite3
import warnings

import pytest
from store_examples import example_run, example_spec

from asymtrain.lab.store import Damage, DamagedError, Store, StoreError, StoreWarning
from asymtrain.lab.store.checksums import digest
from asymtrain.lab.store.database import VERSION
from asymtrain.lab.store.exchange import export_store, import_store

PAGE = 4096
SPECS = [example_spec(seed, epochs=6) for seed in range(12)]
FAILED, ASKED = example_spec(98), example_spec(99)


def fill(path, salt=""):
    with Store(path) as store:
        for spec in SPECS:
            store.add(example_run(spec, salt=salt))
        store.add(example_run(SPECS[3], salt=salt + "again"), again=True)
        store.add_measurement(SPECS[0].id, "surface", {0: 0.25, 6: [1.5] * 300})
        store.request([ASKED])
        store.fail([FAILED], "out of memory")
    return path


@pytest.fixture
def path(tmp_path):
    return fill(tmp_path / "s.sqlite")


def change(path, *statements):
    """As a damaged disk would, past the triggers that keep rows as they are."""
    connection = sqlite3.connect(path, isolation_level=None)
    triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        assert connection.execute(statement).rowcount
    for _, statement in triggers:
        connection.execute(statement)
    connection.close()


def read(path):
    """Everything that a store answers, by what it speaks of."""
    with Store(path, read_only=True) as store:
        total = store.summary().total
        return {
            **{(record.run.spec.id, record.attempt): repr(record) for record in store.records(every_attempt=True)},
            **{("latest", run.spec.id): repr(run) for run in store.runs()},
            **{(value.spec_id, value.name, value.epoch): repr(value) for value in store.measurements()},
            **{("pending", spec.id): repr(spec) for spec in store.pending()},
            **{("failed", failure.spec.id): repr(failure) for failure in store.failures()},
            **{("recorded", spec_id): "" for spec_id in store.finished(spec.id for spec in SPECS)},
            "counts": repr((total.finished, total.pending, total.failed, total.epochs)),
        }


RUN = f"(SELECT id FROM runs WHERE spec_id = '{SPECS[1].id}')"
OF_SPEC = f"WHERE spec_id = '{SPECS[1].id}'"
CHANGES = {
    "a number": (f"UPDATE epochs SET test_accuracy = 0.99 WHERE epoch = 6 AND run_id = {RUN}", "history"),
    "a missing epoch": (f"DELETE FROM epochs WHERE epoch = 6 AND run_id = {RUN}", "run"),
    "a number that is a text": (f"UPDATE epochs SET main_loss = 'x' WHERE epoch = 2 AND run_id = {RUN}", "history"),
    "a device": (f"UPDATE runs SET device = 'NVIDIA H200' {OF_SPEC}", "run"),
    "the answers": (f"UPDATE runs SET answers = 'AAAA' {OF_SPEC}", "run"),
    "a text that is no UTF-8": (f"UPDATE runs SET device = CAST(x'ff' AS TEXT) {OF_SPEC}", "run"),
    "a spec": (f"UPDATE specs SET spec = '{{\"seed\":7}}' WHERE id = '{SPECS[1].id}'", "run"),
    "a dataset": (f"UPDATE specs SET dataset = 'cifar10' WHERE id = '{SPECS[1].id}'", "run"),
    "a missing spec": (f"DELETE FROM specs WHERE id = '{SPECS[1].id}'", "run"),
    "a missing run": (f"DELETE FROM runs {OF_SPEC}", "run"),
    "a missing checksum": (f"DELETE FROM checksums {OF_SPEC} AND content = 'history'", "history"),
    "a value": ("UPDATE measurements SET value = '0.5' WHERE epoch = 0", "measurement"),
    "a missing value": ("DELETE FROM measurements WHERE epoch = 0", "measurement"),
    "a request": (f"UPDATE requests SET runs_before = 5 {OF_SPEC.replace(SPECS[1].id, ASKED.id)}", "request"),
    "a missing request": (f"DELETE FROM requests {OF_SPEC.replace(SPECS[1].id, ASKED.id)}", "request"),
    "a missing failure": ("DELETE FROM failures", "failure"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_damage_is_named_and_the_rest_is_read(path, name):
    statement, content = CHANGES[name]
    before = read(path)
    change(path, statement)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", StoreWarning)
        after = read(path)
    lines = [str(warning.message) for warning in warned]
    assert any(f"{content} " in line and "asymtrain store check" in line for line in lines), lines
    assert before.keys() - after.keys()
    assert {key: value for key, value in after.items() if value != before[key]}.keys() <= {"counts"}
    with Store(path, read_only=True) as store:
        named = store.check().damaged
    assert content in {damage.content for damage in named}
    assert all("\n" not in str(damage) for damage in named)


def test_an_id_that_is_no_utf_8_can_be_asked_for_and_printed(path):
    change(path, f"UPDATE checksums SET spec_id = CAST(x'b7' AS TEXT) {OF_SPEC} AND content = 'history'")
    with Store(path, read_only=True) as store:
        damaged = store.check().damaged
        assert r"history of spec \xb7" in "".join(str(damage).encode().decode() for damage in damaged)
        assert store.finished([r"\xb7"]) == set()


def test_a_claim_that_cannot_be_read_is_named(path):
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("INSERT INTO claims VALUES (?, CAST(7 AS BLOB), 'x')", (ASKED.id,))
    connection.close()
    with Store(path) as store:
        with pytest.warns(StoreWarning, match="a claim cannot be read"):
            assert store.claimed_ids([ASKED.id]) == set()
        assert store.summary().total.pending == 1
        with pytest.raises(DamagedError, match="a claim cannot be read"):
            store.claim([ASKED])


def test_rows_that_were_lost_with_their_checksums_are_noticed(path):
    change(
        path,
        f"DELETE FROM epochs WHERE run_id = {RUN}",
        f"DELETE FROM runs {OF_SPEC}",
        f"DELETE FROM checksums {OF_SPEC}",
    )
    with pytest.warns(StoreWarning, match="checksums are left of"):
        assert len(read(path)) > 10
    with pytest.raises(DamagedError, match="is not written"):
        Store(path)


def test_a_damaged_attempt_does_not_bring_back_the_one_before_it(path):
    change(path, f"UPDATE runs SET device = 'x' WHERE attempt = 2 AND spec_id = '{SPECS[3].id}'")
    with Store(path, read_only=True) as store, pytest.warns(StoreWarning, match="attempt 2"):
        assert store.runs([SPECS[3].id]) == []


def test_damage_elsewhere_is_not_spoken_of(path):
    change(path, CHANGES["a number"][0])
    with Store(path, read_only=True) as store:
        assert store.runs([SPECS[2].id]) == [example_run(SPECS[2])]  # warnings are errors here


def test_epochs_that_are_not_asked_for_are_not_read_and_their_damage_is_named_by_who_reads_them(path):
    change(path, CHANGES["a number"][0])
    with Store(path, read_only=True) as store:
        # Warnings are errors here: the damaged epochs were not looked at.
        unread = [record.run for record in store.records(epochs_of=lambda spec: spec == SPECS[2])]
        with pytest.warns(StoreWarning, match="history"):
            whole = {run.spec: run for run in store.runs()}
    assert len(unread) == len(SPECS) == len(whole) + 1
    for run in unread:
        known = whole.get(run.spec, example_run(run.spec))
        assert (len(run.history), run.seconds, run.device) == (len(known.history), known.seconds, known.device)
        if run.spec == SPECS[2]:
            assert run == known
        else:
            with pytest.raises(AssertionError, match="were not read"):
                assert run.test_accuracy is None


def test_a_lost_epoch_is_named_where_epochs_are_not_read(path):
    change(path, f"DELETE FROM epochs WHERE run_id = {RUN} AND epoch = 6")
    with Store(path, read_only=True) as store, pytest.warns(StoreWarning, match="run of spec"):
        assert len(store.records(epochs_of=lambda spec: False)) == len(SPECS) - 1


def test_pages_of_another_store_do_not_pass(path, tmp_path):
    """Two stores of the same specs, whose pages lie in the same order."""
    ours, theirs = path.read_bytes(), fill(tmp_path / "other.sqlite", salt="other").read_bytes()
    before, pages = read(path), min(len(ours), len(theirs)) // PAGE
    for page in range(1, pages):
        path.write_bytes(ours[: page * PAGE] + theirs[page * PAGE :])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StoreWarning)
            try:
                after = read(path)
            except DamagedError:
                continue
        assert {key: value for key, value in after.items() if before.get(key) != value}.keys() <= {"counts"}, page


def test_no_damage_is_silent(path):
    """Flipped bits, zeroed, swapped and missing pages: equal, named with the rest equal, or refused."""
    whole, before, draw = path.read_bytes(), read(path), random.Random(0)
    outcomes = {"equal": 0, "named": 0, "refused": 0}
    for number in range(80):
        content = bytearray(whole)
        one, other = (PAGE * page for page in draw.sample(range(len(content) // PAGE), 2))
        if number % 4 == 0:
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        elif number % 4 == 1:
            content[one : one + PAGE] = bytes(PAGE)
        elif number % 4 == 2:
            content[one : one + PAGE] = content[other : other + PAGE]
        else:
            del content[draw.randrange(len(content)) :]
        path.write_bytes(content)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", StoreWarning)
            try:
                after = read(path)
            except StoreError:
                outcomes["refused"] += 1
                continue
        if warned:
            assert {key: value for key, value in after.items() if before.get(key) != value}.keys() <= {"counts"}, number
        else:
            assert after == before, number
        outcomes["named" if warned else "equal"] += 1
    assert all(outcomes.values()), outcomes


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("version", [0, VERSION])
def test_a_version_that_was_changed_is_damage(path, version, read_only):
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with pytest.raises(DamagedError, match="damaged"):
        Store(path, read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
def test_tables_that_were_changed_are_damage(path, read_only):
    connection = sqlite3.connect(path)
    connection.execute("DROP VIEW latest_runs")
    connection.execute("CREATE VIEW latest_runs AS SELECT * FROM runs WHERE attempt = 1")
    connection.close()
    with pytest.raises(DamagedError, match="its tables are not as they were made"):
        Store(path, read_only=read_only)


def test_what_a_user_adds_with_sqlite3_is_no_damage(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE VIEW mine AS SELECT device FROM runs")
    connection.close()
    with Store(path, read_only=True) as store:
        check = store.check()
    assert check.damaged == ()
    assert check.intact == {"run": 13, "history": 13, "measurement": 1, "request": 2, "failure": 1}


def test_what_is_whole_can_be_carried_to_a_new_store(path, tmp_path):
    with Store(path) as store:
        whole = export_store(store, tmp_path / "whole")
    change(
        path, CHANGES["a number"][0], f"UPDATE runs SET device = 'x' WHERE attempt = 2 AND spec_id = '{SPECS[3].id}'"
    )
    with Store(path) as store, pytest.raises(StoreError, match=r"is damaged .*import into a new store"):
        import_store(store, whole)
    with Store(path) as store, pytest.warns(StoreWarning, match="attempt 2"):
        folder = export_store(store, tmp_path / "export")
    with Store(tmp_path / "new.sqlite") as new:
        assert import_store(new, folder).added == 10
        assert new.claim(SPECS) == [SPECS[1], SPECS[3]]
        assert {run.spec for run in new.runs()} == {*SPECS} - {SPECS[1], SPECS[3]}


def test_a_damaged_run_is_not_trained_again_in_its_store(path):
    change(path, f"DELETE FROM runs {OF_SPEC}")
    with Store(path) as store:
        assert store.claim(SPECS) == []
        assert not store.add(example_run(SPECS[1]))


def test_the_checksum_of_the_same_rows_stays_the_same():
    """It is in files that are kept."""
    rows = [(1, 0.5, None, "a"), (2, -0.0, 1.5, None)]
    assert digest(rows, "salt") == "6dec67a0b08611e2"
    assert digest(rows[:1], "salt") == "9cc49410f8e4c01a"
    assert digest([(1, 0.5, None, "a"), (2, 0.0, 1.5, None)], "salt") != "6dec67a0b08611e2"


def test_damage_says_what_it_is_in_one_line():
    assert str(Damage("run", "is missing", "abc", "", 2)) == "run of spec abc, attempt 2: is missing"
    assert str(Damage("request", "is missing", "abc", "", 7)) == "request of spec abc: is missing"
    assert (
        str(Damage("measurement", "is missing", "abc", "rank", 1))
        == "measurement 'rank' of spec abc, attempt 1: is missing"
    )
