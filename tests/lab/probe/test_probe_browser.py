"""The page of a probe in a real browser: values under the pointer, places that can be switched, every pair in sight."""

import re

import pytest

from asymtrain.lab.probe.page import write_probe
from asymtrain.lab.probe.result import Advice, Outlook, PlaceFinding, Probe, Shadow, Trial
from live_pages import assert_whole, hover, live


def finding(name, mean):
    cosines = tuple(mean + 0.01 * (i % 3 - 1) for i in range(30))
    numbers = {"alignment": mean, "low": mean - 0.1, "high": mean + 0.1, "trend": 0.1, "trend_low": 0.0}
    learnt = {"conflict": 0.1, "ratio": 0.5, "accuracy": 0.4, "loss": 1.0, "speed": 0.8}
    return PlaceFinding(name, tuple(range(0, 150, 5)), cosines, **numbers, trend_high=0.2, **learnt)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    places = tuple(finding(f"encoder.blocks.{i}", 0.1 * i) for i in range(3))
    shadow = Shadow(places, finding("all places", 0.2), 150, 0.6, 0.9, 0.1, 400, 0, 3.0, 0.01)
    plain, better = ((0.3, 0.4),) * 3, ((0.3, 0.42), (0.3, 0.43), (0.3, 0.44))
    trials = tuple(Trial(alpha, (0, 1, 2), plain, better, 150, 500) for alpha in (0.1, 1.0))
    outlooks = tuple(Outlook(trial.alpha, 0.9, 0.03, 0.01, 0.05, 3, 500) for trial in trials)
    advice = Advice("attach", tuple(place.place for place in places), 0.1, 0.9, outlooks, ("It helped.",), "invented")
    probe = Probe(shadow, trials, advice, (), 9.0)
    return write_probe(tmp_path_factory.mktemp("probe"), probe, {"Command": "asymtrain probe"})["page"]


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_nothing_overflows_and_no_request_leaves_the_page(open_page, file, width, scheme):
    assert_whole(open_page(file, width, scheme), width)


def test_gains_and_places_say_their_values(open_page, file):
    page = open_page(file, 1280)
    said = hover(page, live(page, "Gain in the short runs"), 0.6, 0.25)
    assert "alpha 0.1" in said
    assert re.search(r"mean\s+3\b", said)
    assert "1 to 5" in said
    assert "2, 3, 4" in said
    assert re.search(r"encoder\.blocks\.0\s+mean\s+0\b", hover(page, live(page, "Alignment over depth"), 0.6, 0.15))


def test_a_place_is_switched_off(open_page, file):
    page = open_page(file, 1280)
    shown = live(page, "Alignment over time")
    first, *_, last = shown.get_by_role("button").all_inner_texts()
    assert first in hover(page, shown)
    shown.get_by_role("button", name=first).click()
    said = hover(page, shown, 0.55)
    assert first not in said
    assert last in said
