"""Pages: templates, files written whole, and the page that all results but the paper's have.

A page depends on what it is given and on nothing else: written again from the same values it has the same bytes.
"""

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from asymtrain.errors import UsageError
from asymtrain.lab.files import remove_torn, write_whole
from asymtrain.lab.report.drawing import as_file, draw, room_of
from asymtrain.lab.report.figure import Figure, Headline
from asymtrain.lab.report.live import dense, embed, is_relief, library, packed_script
from asymtrain.lab.report.table import Cell, Mean, Range, Table, true_minus
from asymtrain.lab.texts import printable


def write_page(
    out: Path,
    name: str,
    *,
    figures: Sequence[Figure],
    document: Mapping[str, Any],
    page: str = "",
    **content: Any,
) -> dict[str, Path]:
    """Write name.html, name.json and name-FIGURE.svg into the folder `out`; the paths by "page", "json", FIGURE.

    `document` is the measurement as JSON values, all of them finite. `page` is another name for name.html. `content`
    is what `render_page` takes.
    """
    drawings = {figure.name: draw(figure) for figure in figures}
    for stem in (name, *drawings):
        assert re.fullmatch(r"[\w.-]+", stem), f"{stem!r} is no part of a file's name"
    assert len({*drawings, "page", "json"}) == len(figures) + 2, "figures share a name, or are called page or json"
    beside = f", every figure in a file {name}-….svg" if figures else ""
    files = f"Every number is in {name}.json{beside}, beside this page."
    text = render_page(figures=figures, drawings=drawings, files=files, **content)
    texts = {
        "page": (f"{page or name}.html", text),
        "json": (f"{name}.json", json_text(document)),
        **{figure: (f"{name}-{figure}.svg", as_file(svg)) for figure, svg in drawings.items()},
    }
    write_files(out, dict(texts.values()))
    return {kind: out / file for kind, (file, _) in texts.items()}


def render_page(
    *,
    title: str,
    headline: Headline | None = None,
    lead: str,
    figures: Sequence[Figure],
    tables: Sequence[Table],
    facts: Mapping[str, str],
    files: str = "",
    code: str = "",
    differing: Table | None = None,
    common: Mapping[str, str] | None = None,
    drawings: Mapping[str, str] | None = None,
    template: str = "page.html.j2",
    more_figures: Sequence[Figure] = (),
    **values: Any,
) -> str:
    """A page as HTML: headline, condition and first figure, then `code` to copy, the other figures, and the tables.

    An empty line in `lead` starts a new paragraph. Tables with `detail` are folded, and so is how the page was made:
    `facts` ("Command" is set as code), settings that are `differing` or in `common`, and the `files` beside it.
    `drawings` are figures that are already drawn, by name. A `template` that extends this page takes further figures
    and values.
    """
    assert len({table.name for table in tables}) == len(tables), "tables share a name"
    return render_template(
        template,
        figures=[*figures, *more_figures],
        title=title,
        headline=headline,
        lead=[part for part in lead.split("\n\n") if part.strip()],
        plots=plots_of(figures, drawings),
        tables=tables,
        facts=facts,
        files=files,
        code=code,
        differing=differing,
        common=common,
        **values,
    )


def plots_of(figures: Iterable[Figure], drawings: Mapping[str, str] | None = None) -> list[tuple[Any, ...]]:
    """Figures in the template's form: each with its width if it is wide, and both of its forms."""
    pictures = drawings or {}
    return [(figure, room_of(figure), embed(figure, pictures.get(figure.name))) for figure in figures]


def json_text(document: Mapping[str, Any]) -> str:
    """A document as the text of a file; raises a ValueError if a number is not finite."""
    return printable(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def render_template(template: str, /, *, figures: Sequence[Figure], **values: Any) -> str:
    """A template of the folder `templates` with its values; a name that is not given is an error.

    `figures` are all that the page shows: it carries the part of the plotting library that they need.
    """
    shared = {"library": library(figures), "relief": any(map(is_relief, figures))}
    return printable(_environment().get_template(template).render(**values, **shared))


@cache
def _environment() -> jinja2.Environment:
    """Cached, since it holds compiled templates."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_with_true_minus,
    )
    environment.globals |= {"spans": spans, "sort_order": sort_order, "leading_words": leading_words}
    environment.filters |= {"packed": packed_html, "dense": lambda code: Markup(dense(code)), "breakable": breakable}
    return environment


def _with_true_minus(value: Any) -> Any:
    """The value with the minus sign of figures; what is already HTML, such as code to copy, stays unchanged."""
    return true_minus(value) if type(value) is str else value


def breakable(text: str) -> Markup:
    """A text whose long names, such as examples.deep_network:build, break between their parts."""
    return Markup("<wbr>").join(re.split(r"(?<=\w[._:])(?=[^\W\d])", true_minus(text)))


def packed_html(html: str, kind: str) -> Markup:
    """A part of a page that a script unpacks, by its class."""
    return packed_script(printable(html), f'class="{kind}"')


def leading_words(table: Table) -> int:
    """How many columns of words it begins with, as far as the style sheet counts."""
    return min(4, sum(1 for _ in takewhile(lambda column: not column.is_number, table.columns)))


def spans(row: Sequence[Cell]) -> Iterator[tuple[int, int]]:
    """Where each cell of a row begins and how wide it is; adjacent missing ones become one."""
    for _, cells in groupby(enumerate(row), key=lambda cell: "missing" if cell[1].missing else cell[0]):
        (at, _), *others = cells
        yield at, 1 + len(others)


def sort_order(table: Table, column: int) -> str:
    """The rank of each row when sorted by this column, "-" without a number; empty if all are equal.

    An interval counts by its middle. Equal numbers have equal ranks.
    """
    keys = [_sort_key(row[column]) for row in table.rows]
    ranks = {key: rank for rank, key in enumerate(sorted({key for key in keys if key is not None}))}
    return " ".join("-" if key is None else str(ranks[key]) for key in keys) if len(ranks) > 1 else ""


def _sort_key(cell: Cell) -> float | None:
    match cell.value:
        case Mean(mean=value) | (int() | float() as value):
            return value
        case Range(low, high):
            return (low + high) / 2
    return None


def check_folder(out: Path) -> None:
    """Raise a `UsageError` unless files could be written there. Removes what killed commands left."""
    existing = out
    # A broken or circular link exists and cannot become a folder.
    while not existing.exists() and not existing.is_symlink() and existing != existing.parent:
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise _unwritable(out, error) from error
    for ending in ("csv", "html", "json", "md", "svg", "tex"):
        remove_torn(out, f"*.{ending}")


def write_files(out: Path, texts: Mapping[str, str]) -> None:
    """Write texts by file name into the folder `out`, which is made if missing; a `UsageError` if that fails."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_whole({out / name: text.encode() for name, text in texts.items()})
    except OSError as error:
        raise _unwritable(out, error) from error


def _unwritable(out: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write to the folder {out} ({error.strerror or error}): choose another with --out")
