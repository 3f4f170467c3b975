"""The site that ``noxfile.py site`` has built: every page is there, and nothing is fetched."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "site"
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src"}
"""Element → the attribute that names what a browser fetches."""

pytestmark = pytest.mark.skipif(not SITE.is_dir(), reason="python3 noxfile.py site builds it")


class Fetched(HTMLParser):
    """Gathers what a browser fetches for a page from other servers."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an address of another server; a canonical link is not fetched."""
        values = dict(attrs)
        address = values.get(LOADED.get(tag, "")) or ""
        if re.match(r"(https?:)?//", address) and values.get("rel") != "canonical":
            self.addresses.append(address)


def page_of(source: Path) -> Path:
    """Return the page that is made of a file."""
    path = source.relative_to(ROOT)
    name = "index.html" if path.name == "README.md" else f"{path.stem}.html"
    return SITE / path.parent / name


def test_every_page_is_built() -> None:
    """None is left out of the navigation, which the strict build compares with the files."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    assert [] == [page.name for page in pages if not page_of(page).is_file()]


def test_a_page_fetches_nothing_from_another_server() -> None:
    """Fonts, scripts and the search are beside it."""
    fetched = {}
    for page in SITE.rglob("*.html"):
        parser = Fetched()
        parser.feed(page.read_text())
        fetched[page.name] = parser.addresses
    assert {} == {name: addresses for name, addresses in fetched.items() if addresses}


def test_the_search_knows_every_page_without_a_server() -> None:
    """Its index is a script, which a browser loads from a disk, too."""
    index = (SITE / "search" / "search_index.js").read_text()
    pages = [str(page_of(page).relative_to(SITE)) for page in (ROOT / "docs").glob("*.md")]
    assert [] == [page for page in pages if page not in index]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="apt-get install chromium")
def test_the_search_answers_in_a_page_that_is_opened_from_a_disk() -> None:
    """A browser starts no worker there; docs/iframe-worker.js does it in a frame."""
    page = f"file://{SITE}/docs/ledger.html?q=reuseport"
    browser = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom")
    done = subprocess.run(
        [*browser, "--virtual-time-budget=8000", page], capture_output=True, text=True, timeout=120
    )
    assert re.search(r"[1-9]\d* matching documents", done.stdout)
