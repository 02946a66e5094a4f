"""The record of what was run: one SQLite file, append-only, safe to kill at any moment.

    with Store("runs.sqlite") as store:
        for spec in store.claim(specs):      # those neither recorded nor being trained by another process
            store.add(train(spec))           # the run and all its epochs, or nothing
        table = store.runs(arch="mlp")       # always in the same order

Rows that were damaged after they were stored are named in a `StoreWarning` and left out; `Store.check` finds them all.
`export_store` and `import_store` of `exchange` carry a store to other machines and into git as CSV or Parquet;
`write_tensorboard` of `tensorboard` shows histories as curves. Both are imported where they are used.
"""

from asymtrain.lab.store.checksums import Check, Damage
from asymtrain.lab.store.database import DamagedError, NoStoreError, StoreError, StoreWarning, store_exists
from asymtrain.lab.store.provenance import Provenance
from asymtrain.lab.store.records import Measurement, Record
from asymtrain.lab.store.requests import Counts, Failure, StoreSummary
from asymtrain.lab.store.store import Store, failure_reasons, stored_runs

__all__ = [
    "Check", "Counts", "Damage", "DamagedError", "Failure", "Measurement", "NoStoreError", "Provenance", "Record",
    "Store", "StoreError", "StoreSummary", "StoreWarning", "failure_reasons", "store_exists", "stored_runs",
]  # fmt: skip
