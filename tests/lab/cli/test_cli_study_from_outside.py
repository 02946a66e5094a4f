"""A study is one entry in `STUDIES`: here one is added from outside, with its protocol, its analysis and its words."""

import json
import sys
import types
from dataclasses import dataclass
from statistics import fmean

import pytest

from asymtrain.lab import studies
from asymtrain.lab.report.figure import Page
from asymtrain.lab.report.table import Cell, Column, Table
from asymtrain.lab.runs import pairs
from asymtrain.lab.scales import get_scale, scaled_spec
from asymtrain.lab.studies.study import Block, Needs, Study

SHAPES = {"classes": 4, "size": 60, "test_size": 20}


@dataclass(frozen=True)
class Scope:
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Strength:
    """Plain and Asymmetric of the MLP at one alpha."""

    alpha: float

    @property
    def title(self):
        return f"alpha {self.alpha:g}"

    def specs(self, scope):
        spec = scaled_spec(get_scale("quick"), "mlp", "shapes", dataset_options=SHAPES, epochs=1, alpha=self.alpha)
        return tuple(pairs(spec, scope.seeds))

    def needs(self, scope, known):
        return Needs(self.specs(scope))


BLOCKS = {name: Block(name, f"the MLP, {name}", (Strength(alpha),)) for name, alpha in (("weak", 0.1), ("strong", 1.0))}


class Strengths(Study):
    """Compare two strengths of branches."""

    name, blocks = "strengths", BLOCKS

    def scope(self, *, quick=False):
        return Scope((42,) if quick else (42, 43))

    def page(self, scope, known, files=()):
        rows = []
        for block in self.blocks.values():
            (part,) = block.parts
            specs = part.specs(scope)
            sides = [known.of(specs[i : i + 2]) for i in range(0, len(specs), 2)]
            gains = [side[1].test_accuracy - side[0].test_accuracy for side in sides if len(side) == 2]
            rows.append((Cell(part.title), Cell(fmean(gains) if gains else None, missing=not gains), Cell(len(gains))))
        columns = (Column("Strength"), Column("Gain", "number", digits=2, signed=True), Column("n", "count"))
        table = Table("strengths", "Gains", columns, tuple(rows))
        counts = {str(row[0].value): row[2].value for row in rows}
        return Page("Strengths", "Two strengths.", [table], {"pairs": counts}, sentences=["Nothing is proven."])


@pytest.fixture
def added(monkeypatch):
    """The module, and its line in the table."""
    module = types.ModuleType("strengths_study")
    module.STUDY = Strengths()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(studies.STUDIES, "strengths", module.__name__)


def test_a_study_is_listed_run_and_shown(added, cli, refused, tmp_path):
    rows = json.loads(cli("strengths", "list", "--json").out)
    assert [(row["name"], row["runs_there"], row["runs_needed"]) for row in rows] == [("weak", 0, 4), ("strong", 0, 4)]
    assert rows[0]["seconds_left"] > 0
    assert cli("strengths", "--help").out.count("Compare two strengths of branches.") == 1
    assert "did you mean 'weak'" in refused("strengths", "run", "weka")
    assert "there is no store at" in refused("strengths", "show")
    done = cli("strengths", "run", "weak", "--quick", "--device", "cpu", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["pairs"] == {"alpha 0.1": 1, "alpha 1": 0}
    following = cli("strengths", "next", "--quick", "--device", "cpu")
    assert following.err.startswith("Block strong: the MLP, strong.\nMissing: 1 run. ")
    assert following.err.endswith("Block strong is finished. It was the last.\n")
    finished = cli("strengths", "next", "--quick", "--store", "asymtrain-strengths/runs.sqlite").out
    assert "`asymtrain strengths show --quick --store asymtrain-strengths/runs.sqlite`" in " ".join(finished.split())
    assert json.loads(cli("strengths", "list", "--json").out)[1]["runs_there"] == 2  # Plain is of both
    shown = cli("strengths", "show", "--quick", "--out", "page", "--store", "asymtrain-strengths/runs.sqlite")
    assert "Nothing is proven." in shown.out
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"strengths.html", "strengths.json"}
