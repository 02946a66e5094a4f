r"""Screenshots of pages for `pages.md`, at the width of a screen and of a phone.

    python docs/screenshots.py pages

The folder holds the pages that these commands write; pages that are not there are left out:

    asymtrain tune examples.deep_network:build --data shapes --data-option classes=4 --data-option size=1600 \
      --data-option image_size=16 --epochs 12 --batch 64 --learning-rate 2e-3 --whole --out pages/tune
    asymtrain run --arch mlp,vit --seeds 5 --epochs 4 --out pages/run
    asymtrain measure trajectory --run all --store pages/run/runs.sqlite --out pages/trajectory
    asymtrain measure landscape --arch mlp --seeds 1 --at 0 --redundancy 0,5,20 --draws 2 --grid 21 \
      --out pages/landscape
    asymtrain measure attention --seeds 2 --epochs 4 --at 0,2,4 --images 3 --out pages/attention
    asymtrain search --arch mlp --seeds 2 --epochs 1 --learning-rates 0.001,0.003,0.01 --weight-decays 0,0.01 \
      --alphas 0.1,1 --out pages/search
    asymtrain store import pages/practice.sqlite results/practice-*
    asymtrain practice show --store pages/practice.sqlite --out pages/practice
    asymtrain store import pages/paper/runs.sqlite results/*200-epochs*
    asymtrain paper show all --scale paper --precision bf16 --out pages/paper

It needs playwright, Pillow and the system's Chromium. The pictures have no clock and no animation: from the same pages,
by the same browser, they have the same pixels.
"""

import io
import sys
from pathlib import Path

import PIL.Image
from playwright.sync_api import Browser, sync_playwright

OUT = Path(__file__).parent / "figures"
# By the name of a picture: the page, what stands at its top, and where the pointer is, as a share of the first chart
# from there on.
SHOTS = {
    "tune": ("tune/report.html", "main", None),
    "tune-figures": ("tune/report.html", "#figures", (0.5, 0.4)),
    "report": ("run/report.html", "main", (0.7, 0.3)),
    "trajectory": ("trajectory/trajectory.html", "main", (0.7, 0.4)),
    "landscape": ("landscape/landscape.html", "figure:has-text('unit norm'):nth-of-type(4)", (0.5, 0.55)),
    "attention": ("attention/attention.html", "figure:has-text('Maps of layer 3')", None),
    "search": ("search/search.html", "main", (0.5, 0.4)),
    "practice": ("practice/practice.html", "main", None),
    "paper": ("paper/paper.html", "main", None),
    "paper-figure": ("paper/paper.html", "#figure-figure3", (0.6, 0.5)),
}
SIZES = {"wide": (1280, 760, "light"), "phone": (390, 760, "dark")}
SETTLED = """() => [...document.querySelectorAll('.plot')].every((plot) => {
    const { top, bottom } = plot.getBoundingClientRect();
    return bottom < -200 || top > innerHeight + 200 || plot.querySelector('.live canvas');
})"""


def shoot(browser: Browser, file: Path, top: str, pointer: tuple[float, float] | None, size: str) -> PIL.Image.Image:
    """The page as it stands with `top` at the upper edge, and on a screen what the pointer reads."""
    width, height, scheme = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.set_default_timeout(60_000)
    page.goto(file.as_uri())
    place = page.locator(top).first
    for _ in range(2):  # figures that become live move what is below them
        place.evaluate("element => element.scrollIntoView({ block: 'start' })")
        page.wait_for_function(SETTLED)
    if pointer and size == "wide":
        figure = top if top.startswith(("figure", "#figure-", "main")) else f"section:has({top})"
        chart = page.locator(f"{figure} .chart").first
        box = chart.bounding_box()
        assert box is not None
        for shift in (4, 0):  # a pointer that moves
            page.mouse.move(box["x"] + pointer[0] * box["width"] + shift, box["y"] + pointer[1] * box["height"])
        chart.locator(".tip").wait_for()
    picture = PIL.Image.open(io.BytesIO(page.screenshot()))
    page.close()
    return picture


def main(folder: Path) -> None:
    """Write the pictures of the pages in the folder."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        for name, (file, top, pointer) in SHOTS.items():
            if not (folder / file).exists():
                print(f"{file} is not there", file=sys.stderr)
                continue
            for size in SIZES:
                out = OUT / f"page-{name}-{size}.webp"
                shoot(browser, (folder / file).resolve(), top, pointer, size).save(out, quality=72, method=6)
                print(out, out.stat().st_size)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
