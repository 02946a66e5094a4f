"""One table of everything that a cell can be, for the tests of every format."""

from asymtrain.lab.report.table import Cell, Column, Mean, Range, Table, make_rows

COLUMNS = (
    Column("Back|bone"),
    Column("Mean", "number"),
    Column("Change", "number", "%", 1, signed=True),
    Column("Interval", "number", "%", 1, signed=True),
    Column("p", "p", digits=4),
    Column("n", "count"),
    Column("Share", "share", digits=0),
    Column("Rate", "number", digits=None),
    Column("Ratio", "number", digits=2, significant=True),
    Column("change", "number", "%", 1, signed=True, papers=True),
    Column("Size", "millions", digits=2),
    Column("Result"),
)
ROWS = make_rows(
    [
        (
            "ViT",
            Mean(0.10049, 0.0205),
            8.34,
            Range(-3.3, 20.0),
            0.00009,
            10,
            0.285,
            4e-5,
            0.01234,
            -3.04,
            1_234_567,
            "a_b",
        ),
        ("CNN", Mean(0.5), -15.25, None, 0.0001, 3, None, 10.0, 1234.0, Cell(missing=True), None, "<b> & 5%"),
        ("A to B", *[Cell(missing=True)] * 3, 1.0, 0, 1.0, Cell(0.5, mark="*"), None, None, None, None),
        (
            Cell("±2", ("s1", "s2")),
            Cell(Mean(0.1, 0.02), ("s1",)),
            Cell(0.0, mark="(diverged)"),
            Cell(Range(-0.04, 0.0)),
            0.00012,
            Cell(1, mark="of 2"),
            0.0,
            -1.5,
            Cell(0.0, words="exactly 0"),
            "paper says so",
            0,
            "",
        ),
    ]
)
TABLE = Table("difficult", "A title: 5% & more", COLUMNS, ROWS, "A note_with signs, -3 and α.")
TEXTS = [
    ["ViT", "0.100 ± 0.021", "+8.3%", "-3.3% to +20.0%", "<0.0001", "10", "28%", "4e-05", "0.012", "-3.0%", "1.23M",
     "a_b"],
    ["CNN", "0.500", "-15.2%", "—", "0.0001", "3", "—", "10", "1.2e+03", "—", "—", "<b> & 5%"],
    ["A to B", "—", "—", "—", "1.0000", "0", "100%", "0.5*", "—", "—", "—", "—"],
    [
        "±2", "0.100 ± 0.020", "+0.0% (diverged)", "-0.0% to +0.0%", "0.0001", "1 of 2", "0%", "-1.5", "exactly 0",
        "paper says so", "0.00M", "",
    ],
]  # fmt: skip
