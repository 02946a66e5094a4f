"""The page of a search in a real browser: it fits, and every seed is in sight."""

import io

import numpy as np
import pytest
from PIL import Image
from search_examples import base_of, finish

from asymtrain.lab.search import gold_standard
from asymtrain.lab.search.page import write_search
from live_pages import assert_whole, live

ALPHAS = "Alpha of Asymmetric: MLP on shapes, N = 1"
SCORES = {0.1: 0.5, 1.0: 0.7, 10.0: 0.3}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Both seeds of a trial are equal: they lie where their mean is."""
    grids = {"learning_rates": (1e-3, 1e-2), "weight_decays": (1e-3, 1e-1), "alphas": tuple(SCORES), "seeds": (7, 8)}
    result = finish(gold_standard(base_of(), **grids), lambda spec: [SCORES.get(spec.alpha, 0.2)])
    return write_search(tmp_path_factory.mktemp("search"), [result], {"Command": "asymtrain search"})["page"]


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_nothing_overflows_and_no_request_leaves_the_page(open_page, file, width, scheme):
    assert_whole(open_page(file, width, scheme), width)


def painted(shown):
    """How many pixels of the chart have a colour."""
    drawn = Image.open(io.BytesIO(shown.locator(".chart").screenshot())).convert("HSV")
    return int((np.asarray(drawn)[..., 1] > 60).sum())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_seeds_stand_beside_their_mean_and_can_be_switched_off(open_page, file, scheme):
    page = open_page(file, 1280, scheme)
    shown = live(page, ALPHAS)
    page.mouse.move(0, 0)
    both = painted(shown)
    shown.get_by_role("combobox").select_option("none")
    page.wait_for_timeout(300)  # a frame of the canvas: nothing else tells that it is drawn
    dot = 3.14 * 3**2
    assert both - painted(shown) > 0.6 * len(SCORES) * dot
