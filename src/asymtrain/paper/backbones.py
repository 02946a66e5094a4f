"""The part of a recipe that is of some backbones: what it needs, its rows and lines, the claims that name one of them.

The rows have the numbers that they have in the whole table: corrections count the cells of the paper, not those that
are shown. What compares backbones (a claim, a note) is without the others, as where their rows are missing.
"""

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any

from asymtrain.paper.claims import claim
from asymtrain.paper.known import Known
from asymtrain.paper.panels import Effects, Panel, Panels
from asymtrain.paper.recipe import Draw, Made, Needs, Recipe
from asymtrain.paper.result import ResultTable
from asymtrain.paper.running import of_archs
from asymtrain.paper.sizes import ARCHS
from asymtrain.paper.study import Study
from asymtrain.statistics import NAMES

BACKBONE = "Backbone"  # the heading of the column that names one; a table without it is of one backbone


def parts_of(recipes: Iterable[Recipe], study: Study, archs: Collection[str]) -> tuple[Recipe, ...]:
    """The recipes' parts of these backbones, without recipes that have nothing of them."""
    nothing, parts = Needs(), [part_of(recipe, archs) for recipe in recipes]
    return tuple(part for part in parts if part.needs(study, Known()) != nothing)


def part_of(recipe: Recipe, archs: Collection[str]) -> Recipe:
    """The recipe's part of these backbones."""

    def needs(study: Study, known: Known) -> Needs:
        return of_archs(recipe.needs(study, known), archs)

    def make(study: Study, known: Known, draw: Draw) -> Made:
        others = {one.spec.id for one in recipe.needs(study, known).measurements if one.spec.arch not in archs}
        made = recipe.make(study, _without(known, others, archs), _drawing(draw, archs))
        tables = (_rows_of(table, archs) for table in made.tables)
        return dataclasses.replace(made, tables=tuple(table for table in tables if table.rows))

    claims = tuple(name for name in recipe.claims if _names_one(claim(name).needs, archs))
    return dataclasses.replace(recipe, needs=needs, make=make, claims=claims)


def _without(known: Known, others: Collection[str], archs: Collection[str]) -> Known:
    """What is known of these backbones; `others` are measured specs of another one, which need not have a run."""
    return dataclasses.replace(
        known,
        runs={spec_id: run for spec_id, run in known.runs.items() if run.spec.arch in archs},
        measured={key: values for key, values in known.measured.items() if key[0] not in others},
    )


def _rows_of(table: ResultTable, archs: Collection[str]) -> ResultTable:
    if BACKBONE not in table.columns:
        return table
    column, names = table.columns.index(BACKBONE), {NAMES[arch] for arch in archs}
    return dataclasses.replace(table, rows=tuple(row for row in table.rows if row[column].text in names))


def _drawing(draw: Draw, archs: Collection[str]) -> Draw:
    """Draws figures without the lines and panels of other backbones, the paper's included: their colour names them."""
    others = set(ARCHS) - set(archs)

    def lines_of(panel: Panel) -> Panel:
        return dataclasses.replace(panel, lines=tuple(line for line in panel.lines if line.colour not in others))

    def part(kind: str, name: str, content: Any) -> str:
        if isinstance(content, Effects):
            kept = tuple(panel for panel in content.panels if panel.colour not in others)
            content = dataclasses.replace(content, panels=kept)
        elif isinstance(content, Panels):
            content = dataclasses.replace(content, panels=tuple(map(lines_of, content.panels)))
        return draw(kind, name, content)

    return part


def _names_one(labels: Iterable[str], archs: Collection[str]) -> bool:
    """Is a cell of these backbones among them? Labels that name none are of tables of one backbone."""
    named = {word for label in labels for word in label.split("/")} & set(ARCHS)
    return not named or bool(named & set(archs))
