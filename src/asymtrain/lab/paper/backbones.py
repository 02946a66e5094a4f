"""The part of a recipe that is of some backbones: what it needs, its rows and lines, the claims that name no other.

The rows have the numbers that they have in the whole table: corrections count the cells of the paper, not those that
are shown.
"""

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any

from asymtrain.lab.paper.claims import claim
from asymtrain.lab.paper.known import Snapshot
from asymtrain.lab.paper.panels import Effects, Panel, Panels
from asymtrain.lab.paper.recipe import Draw, Needs, Recipe, RecipeOutput
from asymtrain.lab.paper.result import ResultTable
from asymtrain.lab.paper.running import of_archs
from asymtrain.lab.paper.sizes import ARCHS
from asymtrain.lab.paper.study import Study
from asymtrain.lab.runs import NAMES

HEADINGS = ("Backbone", "Backbones")  # of the column that names one or two; a table without it is of one backbone


def parts_of(recipes: Iterable[Recipe], study: Study, archs: Collection[str]) -> tuple[Recipe, ...]:
    """The recipes' parts of these backbones, without recipes that have nothing of them."""
    nothing, parts = Needs(), [part_of(recipe, archs) for recipe in recipes]
    return tuple(part for part in parts if part.needs(study, Snapshot()) != nothing)


def part_of(recipe: Recipe, archs: Collection[str]) -> Recipe:
    """The recipe's part of these backbones."""

    def needs(study: Study, known: Snapshot) -> Needs:
        return of_archs(recipe.needs(study, known), archs)

    def make(study: Study, known: Snapshot, draw: Draw) -> RecipeOutput:
        others = {one.spec.id for one in recipe.needs(study, known).measurements if one.spec.arch not in archs}
        made = recipe.make(study, _without(known, others), _drawing(draw, archs))
        tables = (_rows_of(table, archs) for table in made.tables)
        evidence = {
            reading: {label: one for label, one in labelled.items() if _are_of([label], archs)}
            for reading, labelled in made.evidence.items()
        }
        return dataclasses.replace(made, tables=tuple(table for table in tables if table.rows), evidence=evidence)

    claims = tuple(name for name in recipe.claims if _are_of(claim(name).needs, archs))
    return dataclasses.replace(recipe, needs=needs, make=make, claims=claims)


def _without(known: Snapshot, others: Collection[str]) -> Snapshot:
    """What is known, without what was measured of other backbones' specs: figures of it are theirs alone.

    Their runs stay: a note may say what they have settled.
    """
    measured = {key: values for key, values in known.measured.items() if key[0] not in others}
    return dataclasses.replace(known, measured=measured)


def _rows_of(table: ResultTable, archs: Collection[str]) -> ResultTable:
    column = next((table.columns.index(name) for name in HEADINGS if name in table.columns), None)
    if column is None:
        return table
    others = set(ARCHS) - set(archs)
    return dataclasses.replace(table, rows=tuple(row for row in table.rows if not _names(row[column].text, others)))


def _drawing(draw: Draw, archs: Collection[str]) -> Draw:
    """Draws figures without lines and panels of other backbones, the paper's included: colour or title names them."""
    others = set(ARCHS) - set(archs)

    def lines_of(panel: Panel) -> Panel:
        return dataclasses.replace(panel, lines=tuple(line for line in panel.lines if line.colour not in others))

    def part(kind: str, name: str, content: Any) -> str:
        if isinstance(content, Effects):
            kept = tuple(panel for panel in content.panels if panel.colour not in others)
            content = dataclasses.replace(content, panels=kept)
        elif isinstance(content, Panels):
            own = tuple(lines_of(panel) for panel in content.panels if not _names(panel.title, others))
            content = dataclasses.replace(content, panels=own)
        return draw(kind, name, content)

    return part


def _names(title: str, archs: Collection[str]) -> bool:
    return any(NAMES[arch] in title for arch in archs)


def _are_of(labels: Iterable[str], archs: Collection[str]) -> bool:
    """Are all of them cells of these backbones? Labels that name none are of tables of one backbone."""
    named = {word for label in labels for word in label.split("/")} & set(ARCHS)
    return named <= set(archs)
