"""The examples run, print the table of `asymtrain run`, and learn from the data that they say they do."""

import importlib
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
import torch

from asymtrain.lab.report.summary import COMPARISON

EXAMPLES = Path(__file__).parent.parent / "examples"
NEEDS = {"text_classification": "torch", "graph_classification": "torch_geometric"}


@pytest.fixture
def example(request, monkeypatch):
    pytest.importorskip(NEEDS[request.param], reason=f"{NEEDS[request.param]} is not installed")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", [request.param, "--quick"])
    yield importlib.import_module(request.param)
    for name in (request.param, "paired"):
        sys.modules.pop(name, None)


every_example = pytest.mark.parametrize("example", NEEDS, indirect=True)


def test_every_example_is_run_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*NEEDS, "paired"}


@pytest.mark.slow
@every_example
def test_it_prints_the_table_of_the_main_job(example, capsys):
    example.main("The model", example.train, alpha=0.3, epochs=100, description=None)
    printed = capsys.readouterr().out
    for column in COMPARISON:
        assert column.name in printed
    assert "The model: " in printed
    assert "2 seeds" in printed


@pytest.mark.parametrize("example", ["text_classification"], indirect=True)
@pytest.mark.parametrize("wrong", [("--seeds", "0"), ("--alpha", "0"), ("--epochs", "-1")])
def test_bad_options_are_refused(example, wrong, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["example", *wrong])
    with pytest.raises(SystemExit):
        example.main("The model", example.train, alpha=0.3, epochs=1, description=None)
    assert "must be 1 or more" in capsys.readouterr().err


@every_example
def test_alpha_is_all_that_differs(example):
    """A run is one of its seed and alpha, and the cosine is there where there are branches."""
    plain, again, branched = (example.train(7, alpha, 1) for alpha in (0.0, 0.0, 0.5))
    assert plain == again
    assert plain[1] is None
    assert -1 <= branched[1] <= 1


@pytest.mark.parametrize("example", ["text_classification"], indirect=True)
def test_texts_are_nested_as_deep_as_they_say(example):
    for depth in range(1, example.DEPTHS + 1):
        for seed in range(50):
            text = example.sentence(depth, Random(seed))
            assert len(text) == example.LENGTH
            deepest, kinds = 0, []
            for token in text:
                if token in example.OPENING:
                    kinds.append(example.OPENING.index(token))
                elif token in example.CLOSING:
                    assert kinds.pop() == example.CLOSING.index(token)
                deepest = max(deepest, len(kinds))
            assert (deepest, kinds) == (depth, [])


@pytest.mark.parametrize("example", ["graph_classification"], indirect=True)
def test_graphs_are_what_they_say(example):
    made = example.graphs(20, seed=3)
    assert [int(graph.y) for graph in made] == [i % example.RULES for i in range(20)]
    for graph in made:
        assert graph.is_undirected()
        assert 20 <= graph.num_nodes <= 40
        assert torch.equal(4 * graph.x[:, 0], graph.edge_index[0].bincount(minlength=graph.num_nodes).float())


IMPORTS = """
import importlib, sys, warnings
warnings.filterwarnings("error", message=".* is now ", category=DeprecationWarning)
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_every_benchmark_imports_without_old_names():
    folder = Path(__file__).parent.parent / "benchmarks"
    names = sorted(path.stem for path in folder.glob("*.py"))
    subprocess.run([sys.executable, "-c", IMPORTS, *names], cwd=folder, check=True)
