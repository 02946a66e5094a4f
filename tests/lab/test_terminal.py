"""Tables on a terminal: whole where there is room, shorter where there is little, in parts where there is less."""

import io

import pytest
from rich.console import Console

from asymtrain.lab import terminal as screen
from asymtrain.lab.engine import Progress
from asymtrain.lab.report.table import Cell, Column, Mean, Range, Table, make_rows, missing_cells
from asymtrain.lab.runs import Run, RunSpec
from invented_runs import invented_epoch

COLUMNS = (
    Column("Backbone"),
    Column("Plain", "number"),
    Column("Asymmetric", "number", short="Asymm."),
    Column("Interval over images", "number", "%", 1, signed=True),
    Column("p", "p", digits=4),
    Column("n", "count"),
    Column("improvement", "number", "%", 1, signed=True, papers=True),
    Column("Result"),
)
FULL = (
    "MLP",
    Mean(0.2034, 0.0031),
    Mean(0.25, 0.01),
    Range(2.2, 6.8),
    1e-9,
    10,
    -22.0,
    "Right direction, other size",
)
WAITING = ("CNN", *missing_cells(5), 3.0, None)
TABLE = Table("t", "A title", COLUMNS, make_rows([FULL, WAITING]), "A note.")


@pytest.fixture
def shown(monkeypatch, capsys):
    def at(width, table=TABLE, **options):
        monkeypatch.setattr(screen, "stdout", lambda: Console(width=width, highlight=False, markup=False))
        screen.show_table(table, **options)
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines), default=0) <= width
        return lines

    return at


def words(lines):
    return [" ".join(line.split()) for line in lines]


def test_where_there_is_room_the_table_is_as_it_is(shown):
    lines = shown(140)
    assert words(lines) == [
        "A title",
        "Backbone Plain Asymmetric Interval over images p n Paper: improvement Result",
        words(lines)[2],
        "MLP 0.203 ± 0.003 0.250 ± 0.010 +2.2% to +6.8% <0.0001 10 -22.0% Right direction, other size",
        "CNN — — — — — +3.0% —",
        "A note.",
    ]


def test_with_less_room_cells_and_headings_are_shorter(shown):
    lines = shown(110)
    assert words(lines)[-3:] == [
        "MLP 0.203±0.003 0.250±0.010 +2.2 to +6.8% <0.0001 10 -22.0% Right direction, other size",
        "CNN — — — — — +3.0% —",
        "A note.",
    ]
    headings = " ".join(words(lines)[1:4])
    assert "Paper" in headings
    assert "Asymm." in headings
    assert "Asymmetric" not in headings


@pytest.mark.parametrize("width", range(40, 140, 7))
def test_no_number_and_no_word_is_broken_however_narrow(shown, width):
    text = "\n".join(shown(width))
    for word in ("Backbone", "MLP", "0.203", "0.003", "+2.2", "+6.8%", "<0.0001", "-22.0%", "direction,", "images"):
        assert word in text


def test_each_part_repeats_what_names_the_rows(shown):
    lines = words(shown(50))
    parts = [line for line in lines if line.startswith("MLP")]
    assert len(parts) > 1
    assert len(parts) == sum(line.startswith("CNN") for line in lines)
    assert parts[0] == "MLP 0.203±0.003 0.250±0.010 +2.2 to +6.8%"


def test_words_are_broken_before_a_table_is_divided(shown):
    table = Table("t", "", (Column("Name"), Column("Value", "number")), make_rows([("one two three", 1.0)]))
    assert words(shown(14, table))[-2:] == ["one two 1.000", "three"]


def test_a_path_is_folded(shown):
    table = Table("t", "", (Column("Name"), Column("Where")), make_rows([("shapes", "/path" * 20)]))
    assert "".join("".join(shown(60, table)).split()).endswith("/path" * 8)


def test_numbers_stand_right_and_text_left(shown):
    table = Table("t", "", (Column("Name"), Column("n", "count")), make_rows([("a", 5), ("bbb", 1234)]))
    assert [line.rstrip() for line in shown(60, table)[-2:]] == ["a         5", "bbb    1234"]


def test_a_note_can_be_left_out_and_no_rows_are_no_table(shown):
    assert "A note." not in shown(140, note=False)
    empty = Table("t", "A title", COLUMNS, (), "A note.")
    assert shown(140, empty) == ["A title", "A note."]


def test_marks_are_shown(shown):
    table = Table("t", "", (Column("Name"), Column("x", "number")), make_rows([("a", Cell(0.05, mark="(diverged)"))]))
    assert words(shown(60, table))[-1] == "a 0.050 (diverged)"


def test_the_bar_begins_again_with_each_stage(monkeypatch):
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100, highlight=False)
    monkeypatch.setattr(screen, "stderr", lambda: terminal)
    with screen.progress_display() as display:
        display.update(
            Progress(runs_total=2, runs_done=2, epochs_total=4, epochs_done=4, images_per_second=1.0, seconds_left=0.0)
        )
        display.stage("Rung 1 of 3")
        (task,) = display.bar.tasks
        assert (task.description, task.completed, task.total) == ("starting", 0, None)
    assert "Rung 1 of 3" in terminal.file.getvalue()


def test_a_run_of_a_search_is_told_by_its_validation_accuracy(capsys):
    searched = RunSpec(epochs=1, test="never")
    runs = [
        Run(searched, (invented_epoch(1, 0.51, None, None),)),
        Run(searched, (invented_epoch(1, 0.51, None, None),), outcome="diverged"),
        Run(RunSpec(epochs=1), (invented_epoch(1, 0.51, 0.25, None),)),
    ]
    with screen.progress_display() as display:
        for number, run in enumerate(runs, 1):
            display.finished(run, number, len(runs))
    assert capsys.readouterr().err.splitlines() == [
        "1/3 search: mlp asymmetric seed 42: best validation accuracy 0.500",
        "2/3 search: mlp asymmetric seed 42: diverged",
        "3/3 mlp asymmetric seed 42: test accuracy 0.250",
    ]
