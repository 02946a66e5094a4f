"""An instrument from the outside: one class and one line in the list give a command, a page and rows in the store.

`BestEpoch` below is all that there is of it. Nothing else in the package knows it.
"""

import dataclasses
import json
from typing import Annotated

import pytest
import typer

from asymtrain.__main__ import main
from asymtrain.errors import UsageError
from asymtrain.lab import instruments
from asymtrain.lab.cli.measure import load_instruments
from asymtrain.lab.instruments.instrument import Instrument
from asymtrain.lab.report.figure import Page
from asymtrain.lab.runs import Epoch, Run, RunSpec
from asymtrain.lab.store import Store


@dataclasses.dataclass(frozen=True)
class BestOptions:
    """Where to look from."""

    since: Annotated[int, typer.Option(help="First epoch to look at.")] = 1

    def __post_init__(self):
        if self.since < 1:
            raise UsageError(f"--since must be 1 or more, got {self.since}")


class BestEpoch(Instrument[BestOptions, dict[RunSpec, int]]):
    """Find the epoch of the best validation accuracy.

    Of stored runs (--run).
    """

    name = "best"
    options = BestOptions
    run_options = ("run", "arch", "epochs")

    def measure(self, options, bench):
        specs = bench.choose()
        known = bench.stored_values(f"best since {options.since}", specs)
        found = {spec: values[spec.epochs] for spec, values in known.items()}
        for run in bench.runs([spec for spec in specs if spec not in found]):
            later = run.history[options.since - 1 :]
            found[run.spec] = max(later, key=lambda epoch: epoch.validation_accuracy).epoch
            bench.keep(run.spec, f"best since {options.since}", {run.spec.epochs: found[run.spec]})
        return found

    def page(self, options, result):
        from asymtrain.lab.report.figure import Figure, Line, Lines
        from asymtrain.lab.report.table import Cell, Column, Table

        rows = tuple((Cell(str(spec.seed)), Cell(epoch, (spec.id,))) for spec, epoch in result.items())
        line = Line("best", "plain", tuple(float(spec.seed) for spec in result), tuple(map(float, result.values())))
        return Page(
            title="Best epochs",
            lead="Where validation accuracy was best.",
            tables=[Table("best", "Best epochs", (Column("Seed"), Column("Epoch", "count")), rows)],
            figures=[Figure("seeds", "By seed", [Lines("", "seed", "epoch", (line,))])],
            document={"best": {str(spec.seed): epoch for spec, epoch in result.items()}},
            specs=list(result),
            facts={"Since": str(options.since)},
        )


INSTRUMENT = BestEpoch()


@pytest.fixture
def call(monkeypatch, tmp_path, capsys):
    """The command line, with one line more in the list, in a folder with a store of two runs."""
    monkeypatch.setattr(instruments, "INSTRUMENTS", [*instruments.INSTRUMENTS, __name__])
    monkeypatch.chdir(tmp_path)
    with Store(tmp_path / "runs.sqlite") as store:
        for seed, best in ((1, 2), (2, 3)):
            accuracies = [0.9 if number == best else 0.1 * number for number in (1, 2, 3)]
            history = (
                Epoch(i, 1.0, None, 0.5, value, 0.5, None, None, None, 1.0) for i, value in enumerate(accuracies, 1)
            )
            store.add(Run(RunSpec(epochs=3, redundancy=0, seed=seed), tuple(history)))

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main(["measure", *map(str, arguments)])
        return stopped.value.code or 0, *capsys.readouterr()

    return run


def test_it_has_a_command_with_its_own_options_and_the_shared_ones_that_it_names(call):
    assert list(load_instruments())[-1] == "best"
    code, shown, _ = call()
    assert code == 0
    assert "Find the epoch of the best validation accuracy." in " ".join(shown.split())
    code, shown, _ = call("best", "--help")
    assert code == 0
    assert all(option in shown for option in ("--since", "--run", "--arch", "--epochs", "--out", "--store", "--json"))
    assert "--alpha" not in shown
    code, _, said = call("best", "--since", 0)
    assert (code, said) == (2, "asymtrain: --since must be 1 or more, got 0\n")


def test_it_has_a_page_and_a_document(call, tmp_path):
    code, out, said = call("best", "--run", "all", "--store", "runs.sqlite", "--json")
    assert code == 0, said
    document = json.loads(out)
    assert document["best"] == {"1": 2, "2": 3}
    files = {kind: tmp_path / path for kind, path in document["files"].items()}
    assert {kind: path.name for kind, path in files.items()} == {
        "page": "best.html", "json": "best.json", "seeds": "best-seeds.svg",
    }  # fmt: skip
    page = files["page"].read_text()
    for text in ("Where validation accuracy was best.", "By seed", "Since", "seeds 1, 2", "<svg"):
        assert text in page
    code, out, _ = call("best", "--run", "all", "--store", "runs.sqlite")
    assert code == 0
    assert "Best epochs" in out
    assert files["page"].read_text().replace(" --json", "") == page.replace(" --json", "")


def test_its_values_are_in_the_store_and_read_from_there(call, tmp_path, monkeypatch):
    assert call("best", "--run", "all", "--store", "runs.sqlite", "--since", 3)[0] == 0
    with Store(tmp_path / "runs.sqlite", read_only=True) as store:
        kept = {value.spec_id: (value.epoch, value.value) for value in store.measurements("best since 3")}
    assert kept == {RunSpec(epochs=3, redundancy=0, seed=seed).id: (3, 3) for seed in (1, 2)}
    monkeypatch.setattr("asymtrain.lab.cli.measure.CommandBench.runs", lambda bench, specs: [] if not specs else 1 / 0)
    assert call("best", "--run", "all", "--store", "runs.sqlite", "--since", 3)[0] == 0
