"""The tables, their version, and how an older file becomes a current one.

`MIGRATIONS[v]` leads from version v to v + 1, and version 0 is an empty file: a new store and an old one go
through the same code. A migration, once released, never changes; add another one to the end. One that changes rows
drops the append-only triggers first and makes them again.

Columns of measured numbers have no declared type, because SQLite would turn -0.0 into 0.0 in a REAL column.
"""

import sqlite3
from pathlib import Path

from asymtrain.lab.store.problems import StoreError

APPLICATION_ID = 0x4153594D  # "ASYM", in the file's header: whose SQLite file this is

_TABLES = (
    # dataset, arch, variant and seed repeat what the JSON says, for people who look with sqlite3.
    """CREATE TABLE specs (
        id TEXT PRIMARY KEY, dataset TEXT NOT NULL, arch TEXT NOT NULL, variant TEXT NOT NULL, seed INTEGER,
        spec TEXT NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE runs (
        id INTEGER PRIMARY KEY, spec_id TEXT NOT NULL REFERENCES specs, attempt INTEGER NOT NULL,
        outcome TEXT NOT NULL, device TEXT NOT NULL, path TEXT NOT NULL, seconds NOT NULL,
        python TEXT NOT NULL, torch TEXT NOT NULL, asymtrain TEXT NOT NULL,
        "commit" TEXT NOT NULL, dirty INTEGER NOT NULL, source TEXT NOT NULL, created TEXT NOT NULL,
        UNIQUE (spec_id, attempt))""",
    """CREATE TABLE epochs (
        run_id INTEGER NOT NULL REFERENCES runs, epoch INTEGER NOT NULL,
        main_loss NOT NULL, auxiliary_loss, train_accuracy NOT NULL, validation_accuracy, test_accuracy,
        cosine, cosine_min, cosine_max, seconds NOT NULL,
        PRIMARY KEY (run_id, epoch)) WITHOUT ROWID""",
    """CREATE TABLE measurements (
        spec_id TEXT NOT NULL REFERENCES specs, name TEXT NOT NULL, attempt INTEGER NOT NULL,
        epoch INTEGER NOT NULL, value TEXT NOT NULL, created TEXT NOT NULL,
        PRIMARY KEY (spec_id, name, attempt, epoch)) WITHOUT ROWID""",
    # A request is met when the spec has more runs than `runs_before`: no clock is compared.
    """CREATE TABLE requests (
        id INTEGER PRIMARY KEY, spec_id TEXT NOT NULL REFERENCES specs, runs_before INTEGER NOT NULL,
        created TEXT NOT NULL)""",
    "CREATE INDEX requests_by_spec ON requests (spec_id)",
    """CREATE TABLE failures (
        request_id INTEGER PRIMARY KEY REFERENCES requests, reason TEXT NOT NULL, created TEXT NOT NULL)""",
    # Who is training what at this moment: the one table whose rows come and go.
    """CREATE TABLE claims (
        spec_id TEXT PRIMARY KEY REFERENCES specs, owner TEXT NOT NULL, until NOT NULL) WITHOUT ROWID""",
)

_VIEWS = (
    """CREATE VIEW latest_runs AS
        SELECT * FROM runs AS run
        WHERE attempt = (SELECT max(attempt) FROM runs WHERE spec_id = run.spec_id)""",
    """CREATE VIEW open_requests AS
        SELECT request.id, request.spec_id, request.created, failure.reason, failure.created AS failed
        FROM requests AS request LEFT JOIN failures AS failure ON failure.request_id = request.id
        WHERE request.id = (SELECT max(id) FROM requests WHERE spec_id = request.spec_id)
          AND request.runs_before >= (SELECT count(*) FROM runs WHERE spec_id = request.spec_id)""",
    """CREATE VIEW results AS
        SELECT spec.dataset, spec.arch, spec.variant, spec.seed, run.outcome, last.epoch AS epochs,
               last.validation_accuracy, last.test_accuracy, last.cosine, round(run.seconds, 1) AS seconds,
               run.device, spec.id AS spec_id
        FROM latest_runs AS run JOIN specs AS spec ON spec.id = run.spec_id
        LEFT JOIN epochs AS last ON last.run_id = run.id
          AND last.epoch = (SELECT max(epoch) FROM epochs WHERE run_id = run.id)
        ORDER BY spec.dataset, spec.arch, spec.variant, spec.seed, spec.id""",
)

_APPEND_ONLY = tuple(
    f"CREATE TRIGGER {table}_no_{change} BEFORE {change} ON {table} BEGIN SELECT raise(ABORT, 'append-only'); END"
    for table in ("specs", "runs", "epochs", "measurements", "requests", "failures")
    for change in ("update", "delete")
)

# Columns of texts are NULL where there is none: `layer_cosines` is JSON, `answers` the bits in base 64.
_GRADIENTS_AND_ANSWERS = (
    *(
        f"ALTER TABLE epochs ADD COLUMN {name}"
        for name in ("cosine_std", "conflict", "main_norm", "auxiliary_norm", "layer_cosines TEXT")
    ),
    "ALTER TABLE runs ADD COLUMN answers TEXT",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = ((*_TABLES, *_VIEWS, *_APPEND_ONLY), _GRADIENTS_AND_ANSWERS)


def read_version(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the file's schema, 0 for an empty file; an error for a newer or a foreign one."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == 0 and version == 0 and objects == 0:
        return 0
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is an SQLite file of another program: give another path for the store")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path} was written by a newer asymtrain (store version {version}, this one reads up to "
            f"{len(MIGRATIONS)}): upgrade asymtrain"
        )
    return int(version)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the file to the current version; the caller holds the write transaction."""
    version = read_version(connection, path)  # again, inside the transaction: another process may have been first
    if version == len(MIGRATIONS):
        return
    for statements in MIGRATIONS[version:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
