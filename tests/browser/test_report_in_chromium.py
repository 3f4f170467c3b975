"""The HTML report in a real browser: what it fetches, how wide it is, and whether it can be read.

Run by ``python3 noxfile.py browser``; behind ``-- --basetemp=DIR`` DIR keeps a picture of each page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from analysis.build import LOAD_MS, experiment, failed, hog, lossy, record, series, shared, trial
from report.stored import ODD, drawn_study, stored, swept

from udpbench.records.run import Run
from udpbench.report import document

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

playwright = pytest.importorskip("playwright.sync_api", reason="noxfile.py browser installs it")
LOST = {"right": {"snmp.Udp.RcvbufErrors": 250, "snmp.Udp.InErrors": 250}}
WIDTHS = (360, 1440)
SCHEMES = ("light", "dark")
LEAST_CONTRAST = 4.5
"""WCAG 2.2, 1.4.3, of text that is not large."""
LONG = "a-name-without-any-blank-in-it-" * 4

TOO_FAINT = """least => {
  const part = value => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const colour = text => text.match(/[\\d.]+/g).map(Number);
  const paper = element => {
    for (; element; element = element.parentElement) {
      const behind = colour(getComputedStyle(element).backgroundColor);
      if (behind.length < 4 || behind[3] > 0) return behind;
    }
    throw "no paper";
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const element = node.parentElement;
    if (!node.data.trim() || element.tagName === "title") continue;
    const style = getComputedStyle(element);
    const svg = element.closest("svg");
    const ink = colour(svg ? style.fill : style.color);
    const areas = svg && ink.join() === "17,17,17" || ink.join() === "254,254,254";
    if (areas) continue;
    const [low, high] = [light(ink), light(paper(element))].sort((a, b) => a - b);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < least) faint.push(`${node.data.trim().slice(0, 40)}: ${contrast.toFixed(2)}`);
  }
  return faint;
}"""
"""Every text whose contrast to what is behind it is below a limit, but that on coloured areas."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Start Debian's Chromium; root has no sandbox."""
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        yield browser
        browser.close()


def odd(folder: Path) -> list[Run]:
    """Return a run of every kind of trial, with names that are long or odd."""
    points = [trial("good", source="cloudflare-2015/pinned"), trial(ODD), trial(LONG)]
    of = experiment(points=points, question=f"{ODD} </script> {LONG}?", repetitions=2)
    records = [
        lossy(1000, LOST, 250, of=points[0], series=series([1000])),
        record(900, of=replace(points[0], repetition=2)),
        replace(shared(LOAD_MS + 400, hog(400)), trial=points[1]),
        failed("WorkerFailed", LONG, of=points[2]),
    ]
    return [stored(folder / "odd", records, of)]


def study(folder: Path) -> list[Run]:
    """Return two runs of a hundred trials each."""
    of, records = swept([100 * size for size in range(1, 21)], 5)
    return [stored(folder / name, records, of) for name in ("one", "two")]


def over_time(folder: Path) -> list[Run]:
    """Return a study whose figures refer to parts of each other."""
    return [drawn_study(folder / "drawn", 2)]


@pytest.fixture(scope="module", params=[odd, study, over_time], ids=lambda each: each.__name__)
def page_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page."""
    folder = tmp_path_factory.mktemp(request.param.__name__)
    return document.write(request.param(folder), folder, ["html"])[0]


@pytest.fixture(params=[(scheme, width) for scheme in SCHEMES for width in WIDTHS], ids=str)
def opened(
    request: pytest.FixtureRequest, chromium: Browser, page_file: Path
) -> Iterator[tuple[Page, list[str]]]:
    """Open the page, everything unfolded, with all that it asked for and complained of."""
    scheme, width = request.param
    context = chromium.new_context(viewport={"width": width, "height": 1600}, color_scheme=scheme)
    page = context.new_page()
    messages: list[str] = []
    page.on("request", lambda fetch: messages.append(fetch.url))
    page.on("console", lambda line: messages.append(line.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(page_file.as_uri())
    page.screenshot(path=page_file.with_name(f"{scheme}-{width}.png"))
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    yield page, messages
    context.close()


def test_no_request_leaves(opened: tuple[Page, list[str]], page_file: Path) -> None:
    """The page itself is all that is read, and its policy has nothing to forbid."""
    page, messages = opened
    page.wait_for_load_state("networkidle")
    assert [page_file.as_uri()] == messages


def test_the_page_never_scrolls_sideways(opened: tuple[Page, list[str]]) -> None:
    """A table or a figure that is wider scrolls in a box of its own."""
    page, _ = opened
    wide, inner = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= inner
    cut = page.evaluate(
        """[...document.querySelectorAll('.wide, pre')].filter(each =>
          each.scrollWidth > each.clientWidth && getComputedStyle(each).overflowX !== 'auto'
        ).length"""
    )
    assert 0 == cut


def test_every_text_can_be_read(opened: tuple[Page, list[str]]) -> None:
    """Light and dark, in figures, too."""
    page, _ = opened
    assert [] == page.evaluate(TOO_FAINT, LEAST_CONTRAST)


def test_nothing_is_drawn_outside_of_its_figure(opened: tuple[Page, list[str]]) -> None:
    """The page's own letters are no wider than those that the figure was laid out with."""
    page, _ = opened
    outside = page.evaluate(
        """[...document.querySelectorAll('svg text')].filter(text => {
          const [inner, box] = [text, text.closest('svg')].map(each => each.getBoundingClientRect());
          return inner.left < box.left - 4 || inner.right > box.right + 4;
        }).map(text => text.textContent)"""
    )
    assert [] == outside


def test_what_a_figure_refers_to_is_drawn(opened: tuple[Page, list[str]]) -> None:
    """Each axis and legend that an earlier figure has, at a place of its own."""
    page, _ = opened
    sizes = page.evaluate(
        """[...document.querySelectorAll('use[href^="#d"]')].map(use => {
          const box = use.getBoundingClientRect();
          return box.width + box.height;
        })"""
    )
    assert 0 == len([size for size in sizes if size < 4])
    assert len(sizes) >= 20 or page.locator("svg").count() < 20


def test_the_data_is_saved_by_a_click(chromium: Browser, page_file: Path) -> None:
    """As a file that holds JSON."""
    context = chromium.new_context(accept_downloads=True)
    page = context.new_page()
    page.goto(page_file.as_uri())
    with page.expect_download() as saving:
        page.click("#udpbench-data")
    assert saving.value.suggested_filename.endswith(".json.gz")
    assert b"\x1f\x8b" == Path(saving.value.path()).read_bytes()[:2]
    context.close()


def test_it_prints_in_light_colours(chromium: Browser, page_file: Path) -> None:
    """Also from a dark screen, on A4, and nothing is cut at the side."""
    context = chromium.new_context(color_scheme="dark", viewport={"width": 700, "height": 1000})
    page = context.new_page()
    page.goto(page_file.as_uri())
    page.emulate_media(media="print")
    assert "rgb(255, 255, 255)" == page.evaluate("getComputedStyle(document.body).backgroundColor")
    wide, inner = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= inner
    page.pdf(path=page_file.with_name("printed.pdf"), format="A4")
    context.close()
