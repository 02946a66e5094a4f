"""The part of each recipe that is of some backbones: rows with the numbers of the whole, and nothing of the others."""

import dataclasses

import pytest
from shown_tables import headings

from asymtrain.lab.report.drawing import draw
from asymtrain.lab.studies.paper.recipe import build_result, part_of, parts_of
from asymtrain.lab.studies.paper.recipes import RECIPES
from asymtrain.lab.studies.paper.study import ARCHS
from asymtrain.lab.studies.paper.verdicts import gather, judge_results
from asymtrain.models import BACKBONES, display_name

# One worker: they share what was trained, and whoever comes first waits for it, long on a busy machine.
pytestmark = [pytest.mark.xdist_group("paper"), pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def parts(tiny, known):
    """By backbone the results of every recipe that has something of it."""
    return {
        arch: {one.name: build_result(one, tiny, known) for one in parts_of(RECIPES.values(), tiny, [arch])}
        for arch in ARCHS
    }


@pytest.mark.parametrize("name", RECIPES)
def test_all_backbones_are_the_whole(name, tiny, known, results):
    part, whole = build_result(part_of(RECIPES[name], ARCHS), tiny, known), results[name]
    assert dataclasses.replace(part, figures=()) == dataclasses.replace(whole, figures=())
    assert list(map(draw, part.figures)) == list(map(draw, whole.figures))


@pytest.mark.parametrize("arch", ARCHS)
def test_rows_are_those_of_the_whole_without_the_others(arch, parts, results):
    for name, part in parts[arch].items():
        whole = {table.name: table for table in results[name].tables}
        for table in part.tables:
            names = headings(table)
            column = names.index("Backbone") if "Backbone" in names else None
            rows = [row for row in whole[table.name].rows if column is None or row[column].value == display_name(arch)]
            assert list(table.rows) == rows
            assert rows
        assert part.runs_there == part.runs_needed
        assert part.measurements_there == part.measurements_needed


def test_runs_measurements_and_rows_add_up(parts, results):
    for name, whole in results.items():
        mine = [found[name] for found in parts.values() if name in found]
        assert sum(one.runs_there for one in mine) == whole.runs_there
        assert sum(one.measurements_there for one in mine) == whole.measurements_there
        counted = sum(len(table.rows) for one in mine for table in one.tables)
        assert counted == sum(len(table.rows) for table in whole.tables if "Backbones" not in headings(table))


def test_recipes_of_another_backbone_are_left_out(parts):
    assert {"table7", "table8", "table11", "table12"} <= set(parts["mlp"])
    assert {"table9", "table14", "figure9", "figure4"} <= set(parts["vit"])
    for arch, other in (("vit", "table8"), ("cnn", "table9"), ("mlp", "table14")):
        assert other not in parts[arch]
    assert [table.name for table in parts["mlp"]["table5"].tables] == ["table5", "table5-total"]
    assert [table.name for table in parts["cnn"]["table5"].tables] == ["table6", "table6-total"]


def test_figures_show_the_backbone_alone(parts):
    """Lines and panels of the others are gone, those of the paper too; Figure 6 and the maps are of one backbone."""
    names = {arch: display_name(arch) for arch in BACKBONES}
    for arch, name in names.items():
        others = [other for other in names.values() if other != name]
        for recipe in ("table1", "table2", "figure3", "figure8", "schedules", "controls"):
            for figure in parts[arch][recipe].figures:
                svg = draw(figure)
                assert f">{name}" in svg
                assert not any(f">{other}" in svg for other in others)


def test_claims_rest_on_the_backbone_alone(parts, results):
    whole = gather(results.values())["primary"]
    claimed = {arch: {name for result in found.values() for name in result.claims} for arch, found in parts.items()}
    for arch, found in parts.items():
        evidence = gather(found.values())["primary"]
        assert evidence == {label: whole[label] for label in evidence}
        assert not any(other in label.split("/") for label in evidence for other in ARCHS if other != arch)
    assert {arch for arch in ARCHS if "c06" in claimed[arch]} == set()  # the CNN against the ViT
    assert {arch for arch in ARCHS if "c01" in claimed[arch]} == {"vit"}
    assert {arch for arch in ARCHS if "c24" in claimed[arch]} == {"vit"}


def test_a_claim_that_compares_backbones_is_there_where_all_of_its_own_are(tiny, known, results):
    two = {one.name: build_result(one, tiny, known) for one in parts_of(RECIPES.values(), tiny, ["cnn", "vit"])}
    assert "c06" in two["table1"].claims
    assert not {"c05", "c12", "c35"} & {name for result in two.values() for name in result.claims}
    part, whole = (
        next(one for one in judge_results(found.values()) if one.claim.id == "c06") for found in (two, results)
    )
    assert (part.effect, part.low, part.high) == (whole.effect, whole.low, whole.high)


def test_notes_say_what_the_others_have_settled(parts, results):
    """A search of another backbone is finished or not whatever is shown."""
    note = parts["vit"]["table10"].tables[0].note
    assert note == results["table10"].tables[0].note
