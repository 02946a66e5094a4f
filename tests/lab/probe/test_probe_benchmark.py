"""benchmarks/probe.py: its families, one of them trained, kept and written, and processes that share the work."""

import argparse
import csv
import dataclasses
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import probe as benchmark  # noqa: E402
import probe_examples  # noqa: E402
import probe_families  # noqa: E402
import probe_results  # noqa: E402
from asymtrain.lab.probe import Shadow, Trial  # noqa: E402
from probe_calibration import shadow_from_dict  # noqa: E402

NEVER, ALWAYS = 0.0, float("inf")


def settings(folder, **more):
    common = {"length": 1.0, "data_root": None, "device": "cpu", "precision": "fp32", "size": "tiny", "minutes": None}
    return argparse.Namespace(**{**common, "store": folder / "s.sqlite", "out": folder, **more})


def test_the_parts_are_disjoint_and_have_enough_cases():
    for families in (probe_families.FULL, probe_families.TINY):
        parts = {part: [one for one in families if one.part == part] for part in ("tune", "score")}
        assert len({one.name for one in families}) == len(families)
        assert len(parts["score"]) * len(probe_families.ALPHAS) >= 12
        specs = [str(sorted(one.fields.items(), key=str)) + one.example for one in families]
        assert len(set(specs)) == len(families)
    everywhere = [f for f in probe_families.FULL if f.part == "score" and f.fields.get("dataset") == "shapes"]
    more = [f for f in probe_families.FULL if f.part == "score" and f.fields.get("dataset") == "cifar100"]
    assert (len(everywhere) + len(more)) * len(probe_families.ALPHAS) >= 12  # without CIFAR-10 and the examples too


def test_a_full_training_has_about_five_times_the_steps_of_a_probe():
    size = probe_families.SIZES["full"]
    for one in probe_families.FULL:
        if one.example:
            continue
        spec = probe_families.base_spec(one, 1.0, "bf16")
        classes = {"cifar100": 100, "cifar10": 10}.get(spec.dataset)
        images = spec.per_class * classes if classes else dict(spec.dataset_options)["size"]
        assert spec.epochs * -(-images // spec.batch) == pytest.approx(5 * size.steps, rel=0.1), one.name


def test_a_family_is_measured_kept_and_written(tmp_path, monkeypatch, capsys):
    one = probe_families.TINY[0]
    little = {**one.fields, "dataset_options": {"classes": 4, "size": 400, "test_size": 100}, "epochs": 2}
    one = dataclasses.replace(one, fields=little)
    size = probe_families.Size((one,), 2, 2, 20, 1.0, (2, 4))
    chosen = settings(tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
    assert benchmark.measure(one, size, chosen, NEVER) is None  # no time: nothing is begun
    assert list(tmp_path.iterdir()) == []
    rows = benchmark.measure(one, size, chosen, ALWAYS)
    assert [found.alpha for found, _ in rows] == list(probe_families.ALPHAS)
    assert {more["held_out"] for _, more in rows} == {80}  # a fifth of the training images
    assert benchmark.measure(one, size, chosen, NEVER) == rows  # from the store and the file
    page = tmp_path / "page.md"
    page.write_text(f"Before.\n{probe_results.BEGIN}\nold\n{probe_results.END}\nAfter.\n")
    everything = [
        (part, dataclasses.replace(case, family=part), more) for part in ("tune", "else") for case, more in rows
    ]
    everything = [("tune", case, more) for _, case, more in everything]
    probe_results.write(everything, tmp_path, show_fit=True, page=page)
    with (tmp_path / "cases.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [float(row["gain"]) for row in written] == pytest.approx([found.gain for _, found, _ in everything])
    assert (tmp_path / "scatter.svg").read_text().startswith("<svg")
    assert (tmp_path / probe_results.PICTURE).read_text() == (tmp_path / "scatter.svg").read_text()
    text = page.read_text()
    assert (tmp_path / "table.md").read_text() in text
    assert "old" not in text
    assert (text.startswith("Before."), text.endswith("After.\n")) == (True, True)
    kept = json.loads((tmp_path / "fit.json").read_text())
    assert f"intercept={kept['intercept']}, level={kept['level']}" in capsys.readouterr().out
    assert kept["families"] == ["tune", "else"]
    shadow = next(tmp_path.glob("shadow-*.json")).read_text()
    assert dataclasses.asdict(shadow_from_dict(json.loads(shadow)))["together"]["place"] == "all places"
    with pytest.raises(SystemExit, match="no place for the scores"):
        probe_results.with_scores("nothing here", "table")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text_classification", "graph_classification"])
def test_a_model_of_the_examples_is_a_family(name, tmp_path, monkeypatch):
    if name == "graph_classification":
        pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
    build = probe_examples.EXAMPLES_BY_NAME[name]
    monkeypatch.setitem(probe_examples.EXAMPLES_BY_NAME, name, lambda: build(train=500, test=100))
    monkeypatch.setattr(probe_examples, "ALPHAS", (0.5, 2.0))
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)  # other tests have their own
    monkeypatch.setattr(sys, "path", list(sys.path))
    family = probe_families.Family("example", "score", example=name)
    size = probe_families.Size((family,), 2, 1, 0, 1.0, (2, 4))
    assert probe_examples.measure_example(family, size, range(3000, 3002), tmp_path, NEVER) is None
    shadow, short, full = probe_examples.measure_example(family, size, range(3000, 3002), tmp_path, ALWAYS)
    assert (type(shadow), shadow.steps) == (Shadow, 2)
    for trials, seeds, steps in ((short, (2000,), 2), (full, (3000, 3001), 4)):
        assert all(isinstance(one, Trial) for one in trials)
        assert [(one.alpha, one.seeds, one.steps) for one in trials] == [(a, seeds, steps) for a in (0.5, 2.0)]
    assert (short[0].held_out, full[0].held_out) == (100, 100)  # every fifth of ten batches; the test data
    assert full[0].plain == full[1].plain
    again = probe_examples.measure_example(family, size, range(3000, 3002), tmp_path, NEVER)
    assert again == (shadow, short, full)  # from its file
    assert probe_examples.measure_example(family, size, range(3000, 3003), tmp_path, NEVER) is None  # a seed is missing
    for module in (name, "paired"):
        sys.modules.pop(module, None)


def test_processes_are_given_what_they_need_and_ended_at_the_limit(tmp_path, monkeypatch):
    """Two at once, the longest family first; stand-ins for the processes, and for the clock."""
    now, begun, ended = [0.0], [], []

    class Process:
        def __init__(self, command, env):
            begun.append((json.loads(command[-1]), now[0]))
            self.until, self.returncode = now[0] + (1e9 if len(begun) == 4 else 3.0), 0

        def poll(self):
            return 0 if now[0] >= self.until else None

        def terminate(self):
            ended.append(now[0])

        def wait(self):
            pass

    monkeypatch.setattr(benchmark.subprocess, "Popen", Process)
    monkeypatch.setattr(benchmark.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(benchmark.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    size = probe_families.SIZES["full"]
    benchmark.run_processes(size.families, size, settings(tmp_path, jobs=2), deadline=5.0)
    assert [when for _, when in begun] == pytest.approx([0.0, 0.0, 3.0, 3.0], abs=0.3)  # none after the limit
    assert [given["minutes"] for given, _ in begun] == pytest.approx([5 / 60, 5 / 60, 2 / 60, 2 / 60], abs=0.01)
    longest = sorted((sum(probe_families.estimated_seconds(one, size)) for one in size.families), reverse=True)
    by_name = {one.name: sum(probe_families.estimated_seconds(one, size)) for one in size.families}
    assert [by_name[given["only"]] for given, _ in begun] == longest[:4]
    assert ended == pytest.approx([5.0 + benchmark.GRACE], abs=0.5)  # the one that did not end


def test_a_process_trains_its_family(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(benchmark, "shown", lambda *given: seen.append(given))
    command = benchmark.command_for(probe_families.TINY[1], settings(tmp_path), ALWAYS)
    benchmark.train_one(command[-1])
    ((family, size, chosen, deadline),) = seen
    assert (family, size, deadline) == (probe_families.TINY[1], probe_families.SIZES["tiny"], ALWAYS)
    assert (chosen.store, chosen.out, chosen.data_root) == (tmp_path / "s.sqlite", tmp_path, None)
    assert str(BENCHMARKS) in command[-2]


def test_an_unknown_family_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="no family 'mpl'"):
        benchmark.main(["--size", "tiny", "--only", "mpl", "--out", str(tmp_path)])


def test_what_cannot_be_read_leaves_the_kept_score_alone(tmp_path, monkeypatch):
    """Without CIFAR a part of the cases is there: its score must not take the place of the whole one."""
    given = probe_families.Family("gone", "tune", {"dataset": "folder:/nowhere", "arch": "mlp", "epochs": 1})
    monkeypatch.setitem(benchmark.SIZES, "tiny", dataclasses.replace(benchmark.SIZES["tiny"], families=(given,)))
    (tmp_path / "scores.csv").write_text("kept")
    arguments = ["--size", "tiny", "--store", str(tmp_path / "s.sqlite"), "--out", str(tmp_path), "--read"]
    with pytest.raises(SystemExit, match="1 families cannot be read, gone first: nothing was written"):
        benchmark.main(arguments)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("scores.csv", "kept")]


def test_the_estimate_adds_up(capsys):
    benchmark.main(["--estimate", "--jobs", "4", "--part", "tune"])
    lines = capsys.readouterr().out.splitlines()
    size = probe_families.SIZES["full"]
    beside, alone = zip(
        *(probe_families.estimated_seconds(f, size) for f in size.families if f.part == "tune"), strict=True
    )
    assert len(lines) == len(beside) + 1
    assert lines[-1].endswith(f"4 at once: {(sum(beside) / 4 + sum(alone)) / 60:.1f}")
