"""The reproduction's page as text: claims, numbers and the specs behind them, from invented runs."""

import dataclasses
import json
import random
import re
from html.parser import HTMLParser

import pytest
from paper_results import NASTY, STUDY, invented_results

from asymtrain.lab.report.page import spans
from asymtrain.lab.report.table import Cell, Column, Table, true_minus
from asymtrain.lab.runs import AUXILIARY, DEFAULTS
from asymtrain.lab.studies.paper.page import (
    HEADLINE,
    document,
    filters,
    is_folded,
    primary_rows,
    render_paper,
    shown_claims,
    strip,
    with_useful_columns,
    write_paper,
)
from asymtrain.lab.studies.paper.spec_index import ALWAYS, SpecsUsed, index_specs
from asymtrain.lab.studies.paper.study import PRIMARY
from asymtrain.lab.studies.paper.summary import forest
from asymtrain.lab.studies.paper.tables import READING
from asymtrain.lab.studies.paper.verdicts import judge_results
from live_pages import unpacked

LISTED, TABLES = (
    re.compile(rf'<script type="application/gzip" class="{name}">(.*?)</script>') for name in ("listed", "tables")
)
TABLE = re.compile(r"<table.*?</table>", re.DOTALL)
PLACE = re.compile(r"<table.*?</table>|<noscript>It is in .*?</noscript>", re.DOTALL)  # of a table, also a folded one


def with_whole_tables(page):
    """The page with the tables that come packed, each in its place."""
    whole = iter(TABLE.findall(json.loads(unpacked(TABLES.search(page)[1]))))
    start = page.index('<section class="recipe"')
    return page[:start] + PLACE.sub(lambda _: next(whole), page[start:])


class Outline(HTMLParser):
    """Ids, links, missing places, and the text and link of each cell of each table, as the page's script sets them up.

    A number of ours without a link has the same specs as that before it in its row.
    """

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.missing, self.tables = [], [], 0, {}
        self.listings, self.sets = {}, {}  # spec ids by anchor, and of each set the listings and ids that it names
        self.table = self.place = self.listing = self.set = self.link = self.item = None
        self.heads = []
        self.feed(LISTED.sub(lambda found: json.loads(unpacked(found[1])), with_whole_tables(text)))
        self.specs = {f"#{name}": set(ids) for name, ids in self.listings.items()}
        for name, parts in self.sets.items():
            self.specs[f"#{name}"] = {one for listing, own in parts for one in own or self.listings[listing[1:]]}

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        name, styles = values.get("id", ""), values.get("class", "").split()
        self.ids += [name] if name else []
        self.links += [value for key, value in attrs if key in ("src", "href", "xlink:href")]
        self.item = None
        if name.startswith("table-"):
            self.table = self.tables.setdefault(name.removeprefix("table-"), [])
        if tag == "table":
            self.heads = []
        if tag == "th" and values.get("scope") == "col":
            self.heads.append(values["class"])
        if tag == "tr":
            self.column, self.link = 0, None
        if tag in ("td", "th") and values.get("scope") != "col":
            ours = tag == "td" and not {"left", "papers"} & {*self.heads[self.column].split()}
            self.column += int(values.get("colspan", 1))
            self.place = ["", self.link if ours and not {"missing", "apart"} & {*styles} else None]
            self.table.append(self.place)
            if "missing" in styles:
                self.missing += int(values.get("colspan", 1))
        if tag in ("p", "div", "section"):
            self.place = None
        if tag == "a" and self.place is not None:
            self.place[1] = self.link = values["href"]
        if tag == "li" and re.fullmatch(r"_\d+", name):
            self.listing, self.set = self.listings.setdefault(name, []), None
        elif tag == "li" and re.fullmatch(r"_s\d+", name):
            self.set = self.sets.setdefault(name, [])
        elif tag == "a" and self.set is not None:
            self.set.append((values["href"], []))
        elif tag == "li" and not name and not styles:
            self.item = self.listing if self.set is None else self.set[-1][1]
        if tag in ("section", "details"):
            self.set = self.listing = None

    def handle_endtag(self, tag):
        if tag in ("td", "th", "tbody"):
            self.place = None

    def handle_data(self, data):
        if self.place is not None:
            self.place[0] += data.rstrip("\n")
        if self.item is not None:
            self.item.append(data.split()[0])
            self.item = None


@pytest.fixture(scope="module")
def made():
    return invented_results()


@pytest.fixture(scope="module")
def page(made):
    results, behind = made
    return render_paper(results, judge_results(results), STUDY, "asymtrain paper show <all>", behind)


@pytest.fixture(scope="module")
def outline(page):
    return Outline(page)


def test_every_number_of_ours_links_to_exactly_its_specs(made, outline):
    results, _ = made
    checked = 0
    for result in map(with_useful_columns, results):
        for table in result.tables:
            places = iter(outline.tables[table.name])
            for row, texts in zip(table.rows, table.texts("missing"), strict=True):
                for at, _ in spans(row):
                    text, link = next(places)
                    assert text == true_minus(texts[at])
                    assert (link is None) == (not row[at].spec_ids)
                    if link:
                        assert outline.specs[link] == set(row[at].spec_ids)
                        checked += 1
    assert checked > 200


def test_without_the_script_the_tables_have_the_primary_reading(made, page):
    results, _ = made
    shown = TABLE.findall(page[page.index('<section class="recipe"') :])
    every = [(table, result) for result in map(with_useful_columns, results) for table in result.tables]
    tables = [table for table, result in every if not is_folded(table, result)]
    folded = {table.name for table, _ in every} - {table.name for table in tables}
    assert {"table1-sizes", "table5-total"} < folded
    assert not {"table1", "table5", "table6"} & folded
    for name in folded:  # which page says where to find it
        assert re.search(rf'<details class="table" id="table-{name}">.*?paper-{name}\.md', page, re.DOTALL)
    for text, table in zip(shown, tables, strict=True):
        assert "href" not in text
        assert text.count("<tr><th>") == len(primary_rows(table).rows)
    readings = [(Cell(reading), Cell(1.0)) for reading in (PRIMARY.title, "another", PRIMARY.title)]
    mixed = Table("t", "", (READING, Column("Value", "number")), tuple(readings))
    assert primary_rows(mixed).rows == (readings[0], readings[2])
    assert primary_rows(dataclasses.replace(mixed, rows=(readings[1],))).rows == (readings[1],)


def test_every_spec_is_listed_once_and_every_link_leads_somewhere(made, outline):
    _, behind = made
    assert len(set(outline.ids)) == len(outline.ids)
    named = {spec.id for specs in behind.specs.values() for spec in specs}
    run = {name for name in named if behind.outcomes[name] != "not yet run"}
    listed = [name for ids in outline.listings.values() for name in ids]
    assert sorted(listed) == sorted(run)
    assert len(run) < len(named)
    inner = {link[1:] for link in outline.links if link.startswith("#")}
    assert inner <= set(outline.ids)


def test_a_listing_and_the_common_fields_give_back_the_whole_spec(made):
    _, behind = made
    index = index_specs([], behind)
    specs = {spec.id: spec for found in behind.specs.values() for spec in found}
    common = dict(index.common)
    for listing in index.listings:
        own = dict(part.rsplit(" ", 1) for part in listing.fields.split("; ") if "options" not in part)
        for spec_id, seed, _ in listing.specs:
            spec = specs[spec_id]
            assert seed == spec.seed
            assert listing.title.endswith(spec.variant.capitalize())
            for name in ("alpha", "learning_rate", "weight_decay", "epochs", "per_class", "signal", "branch_weights"):
                said = name.replace("_", " ")
                if name in AUXILIARY and spec.redundancy == 0:
                    assert said not in own
                    continue
                value = own.get(said) or common[said].removesuffix(" where not named")
                assert value == ("not set" if getattr(spec, name) is None else
                                 f"{getattr(spec, name):g}" if isinstance(getattr(spec, name), float)
                                 else str(getattr(spec, name)))  # fmt: skip
    assert {name.replace("_", " ") for name in DEFAULTS if name not in ALWAYS} <= set(common)


def test_missing_places_are_counted_as_the_results_count_them(made, page, outline):
    results, _ = made
    cells = sum(cell.missing for result in results for table in result.tables for row in table.rows for cell in row)
    assert outline.missing == cells > 100
    waiting = [figure for result in results for figure in result.figures if figure.missing]
    assert page.count('class="absent"') == len(waiting) > 0
    for figure in waiting:
        assert figure.caption in page


def test_the_headline_comes_first_then_verdicts_in_their_order(made):
    results, _ = made
    chance = random.Random(0)
    judged = list(judge_results(results))
    verdicts = ["Contradicted", "Reproduced", "Right direction, different size", "No effect"]
    judged = [dataclasses.replace(one, verdict=chance.choice(verdicts), preliminary=None) for one in judged]
    shown = shown_claims(results, judged)
    assert shown[0].judgement.claim.id == HEADLINE
    order = [verdicts.index(one.judgement.verdict) for one in shown[1:]]
    place = {"Reproduced": 0, "Right direction, different size": 1, "No effect": 2, "Contradicted": 3}
    assert [place[verdicts[i]] for i in order] == sorted(place[verdicts[i]] for i in order)
    counted = {one.tag: one.count for one in filters(shown)}
    assert counted[""] == len(shown) == sum(count for tag, count in counted.items() if tag)
    assert {one.judgement.claim.id for one in shown} == {name for result in results for name in result.claims}


def test_a_claim_has_one_filter_which_is_called_as_its_verdict_is(made):
    results, behind = made
    first, second, *others = judge_results(results)
    first = dataclasses.replace(first, verdict="Only under", reading="instruments", preliminary=None)
    judged = [first, dataclasses.replace(second, verdict="Not yet run", preliminary="Cannot differ"), *others]
    choices = {one.words: one.count for one in filters(shown_claims(results, judged))}
    assert choices["Only under instruments"] == 1
    assert choices["Not yet run, so far cannot differ"] > 0
    assert choices.pop("All") == sum(choices.values())
    page = render_paper(results, judged, STUDY, "asymtrain paper show", behind)
    assert '<li class="only-under" style' in page  # the bar has the colour of the claim
    assert '<li class="claim only-under' in page


def test_the_strip_has_ours_the_papers_and_the_band_where_they_belong(made):
    results, _ = made
    (part,) = next(one for one in judge_results(results) if one.claim.id == "c06").parts
    part = dataclasses.replace(
        part, estimate=40.7, low=-20.35, high=1000.0, part=dataclasses.replace(part.part, paper=40.7)
    )
    text = str(strip(part))

    def x(share):  # of the paper's number; 1.7 times it is at the edge
        return f"{round(100 + 92 * share / 1.7, 1):g}"

    assert f'cx="{x(1)}"' in text
    assert f'class="papers" d="M{x(1)} ' in text
    assert f'class="bar" d="M{x(-0.5)} 13H192"' in text
    assert f'class="band" x="{float(x(0.5))}"' in text
    assert text.count('class="arrow"') == 1
    assert strip(dataclasses.replace(part, estimate=None)) == ""


def test_bars_of_the_forest_are_named_by_their_claims_and_coloured_by_verdict(made):
    results, _ = made
    judged = {one.claim.id: one for one in judge_results(results)}
    verdicts = {"Reproduced": "good", "Right direction, different size": "plain", "Contradicted": "bad"}
    ruling = judged["c06"].parts[0]
    shown = [
        dataclasses.replace(
            judged["c06"],
            claim=claim,
            verdict=verdict,
            preliminary=None,
            parts=(dataclasses.replace(ruling, ruling=verdict),),
        )
        for claim, verdict in zip((judged[name].claim for name in ("c22", "c23", "c06")), verdicts, strict=True)
    ]
    figure = forest(shown)
    (panel,) = figure.panels
    assert [bar.colour for bar in panel.bars] == list(verdicts.values())
    assert [bar.label for bar in panel.bars] == [
        "c22 ViT(20x) object coverage higher than Plain", "c23 attention coverage change",
        "c06 effect depends on architecture",
    ]  # fmt: skip
    for bar, one in zip(panel.bars, shown, strict=True):
        assert (
            bar.more == f"{one.words}: ours {one.effect:+.1f} points ({one.low:+.1f} to {one.high:+.1f} points), "
            "paper +40.7 points"
        )


def test_the_files_and_their_bytes(made, tmp_path):
    results, behind = made
    first = write_paper(tmp_path / "a", results, judge_results(results), STUDY, "command", behind)
    again, same = invented_results(reverse=True)
    second = write_paper(tmp_path / "b", again, judge_results(again), STUDY, "command", same)
    assert {path.name for path in (tmp_path / "a").iterdir()} == {path.name for path in first.values()}
    assert list(first) == list(second)
    for kind in first:
        assert first[kind].read_bytes() == second[kind].read_bytes(), kind
    written = json.loads(first["json"].read_text(encoding="utf-8"))
    assert written == json.loads(json.dumps(document(results, judge_results(results), STUDY)))
    assert first["table1.md"].name == "paper-table1.md"
    assert first["figure5"].read_text(encoding="utf-8").startswith("<svg")
    assert "figure6" not in first
    outline = Outline(first["page"].read_text(encoding="utf-8"))
    files = {path.name for path in first.values()}
    assert all(link.startswith(("#", "data:")) or link in files for link in outline.links)


def test_every_interval_has_both_ends_in_the_document(made):
    results, _ = made
    tables = {table["name"]: table for one in document(results, judge_results(results), STUDY)["results"]
              for table in one["tables"]}  # fmt: skip
    row = dict(zip(tables["table1"]["columns"], tables["table1"]["rows"][0], strict=True))
    interval, plain = row["Interval"], row["Plain"]
    assert interval["text"] == f"{interval['low']:+.1f}% to {interval['high']:+.1f}%"
    assert interval["low"] < row["Improvement"]["value"] < interval["high"]
    assert plain["text"] == f"{plain['value']:.3f} ± {plain['deviation']:.3f}"
    assert set(plain) >= {"text", "value", "spec_ids", "missing"}


def test_what_others_wrote_is_escaped(page):
    assert NASTY not in page
    assert "&lt;all&gt;" in page
    # The texts to copy, the tables, two lists of specs, the library, the script of figures, four others; the values of
    # each figure.
    assert page.count("<script") == page.count("</script>") == 10 + page.count('<div class="plot">')


def test_a_reading_that_is_the_same_everywhere_is_no_column(made):
    results, _ = made
    (table,) = with_useful_columns(results[1]).tables
    assert READING in results[1].tables[0].columns
    assert READING not in table.columns
    assert [row[2] for row in table.rows] == [row[3] for row in results[1].tables[0].rows]
    (difficult,) = with_useful_columns(results[-1]).tables
    assert READING in difficult.columns


def test_claims_of_recipes_that_are_not_shown_are_left_out(made):
    results, behind = made
    page = render_paper(results[1:2], judge_results(results[1:2]), STUDY, "", behind)
    assert 'id="claim-c07"' in page
    assert 'id="claim-c06"' not in page


def test_ids_without_specs_are_still_listed(made):
    results, _ = made
    outline = Outline(render_paper(results, judge_results(results), STUDY, "", SpecsUsed()))
    used = {one for result in results for table in result.tables for row in table.rows for cell in row
            for one in cell.spec_ids}  # fmt: skip
    assert {name for ids in outline.listings.values() for name in ids} >= used
