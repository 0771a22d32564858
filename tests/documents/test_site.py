"""The site in a browser: six pages that fit a phone and a desk, and a search without a server.

A table of figures may be wider than a phone, and scrolls there. One of words begins each of its
columns within the window.

``make site`` builds what is looked at; without it, or without Chromium, this is skipped. With
``BACKHAUL_SCREENSHOTS`` naming a folder, what was seen is left there.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.dask.browser import NAMES, Browser, chromium
from tests.documents.written import ROOT

#: Python of the environment that `make site` makes
DOCS_PYTHON = ROOT / ".venv-docs" / "bin" / "python"
SITE = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "site"

#: With tables, code, generated signatures, pictures
PAGES = [
    "index.html",
    "first-ten-minutes.html",
    "guides/troubleshooting.html",
    "reference/api.html",
    "reference/configuration.html",
    "transfers.html",
]

WIDTHS = [390, 1440]

#: Boxes that are wider than the page, and do not scroll in one that is not
OVERFLOWING = """
[...document.querySelectorAll('.md-content *')]
  .filter(each => each.getBoundingClientRect().right > innerWidth + 1)
  .filter(each => {
    for (let box = each; box; box = box.parentElement)
      if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(box).overflowX)) return false;
    return true;
  })
  .map(each => each.tagName + ' ' + each.textContent.trim().slice(0, 60))
"""

#: Tables of words whose last column, the advice in most of them, is hidden without scrolling
CUT = """
[...document.querySelectorAll('.md-content table:not([class]) th:last-child')]
  .filter(each => each.getBoundingClientRect().left > innerWidth - 40)
  .map(each => each.parentElement.textContent.trim().replace(/\\s+/g, ' '))
"""

#: Pictures so small that the words in them cannot be read
SHRUNK = """
[...document.querySelectorAll('.md-content img')]
  .filter(each => each.clientWidth < 0.4 * each.naturalWidth)
  .map(each => each.src)
"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing on the terminal of the tests."""


@pytest.fixture
def program() -> str:
    found = chromium()
    if found is None:
        pytest.skip(f"none of {', '.join(NAMES)} is on the path")
    if not (SITE / "index.html").exists():
        pytest.skip("the site is not built: make site")
    return found


@pytest.fixture
def site(program: str) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(SITE))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.asyncio
@pytest.mark.timeout(400)
@pytest.mark.parametrize("width", WIDTHS)
async def test_pages_fit_their_window_and_load_nothing_from_elsewhere(
    site: str, program: str, width: int, tmp_path: Path
) -> None:
    async with Browser(program, tmp_path, width=width, height=940) as browser:
        for page in PAGES:
            await browser.open(f"{site}/{page}")
            await browser.until(
                f"document.readyState == 'complete' && location.href.endsWith('{page}')"
            )
            if folder := os.environ.get("BACKHAUL_SCREENSHOTS"):
                name = f"{page.removesuffix('.html').replace('/', '-')}-{width}.png"
                await browser.screenshot(Path(folder) / name)
            assert await browser.evaluate("document.documentElement.scrollWidth") <= width, page
            assert await browser.evaluate(OVERFLOWING) == [], page
            assert await browser.evaluate(CUT) == [], page
            await browser.until("[...document.images].every(each => each.complete)")
            assert await browser.evaluate(SHRUNK) == [], page
            loaded = await browser.evaluate(
                "performance.getEntriesByType('resource').map(each => each.name)"
            )
            assert [each for each in loaded if not each.startswith(site)] == [], page
        assert not browser.complaints


#: Opens the search of a page and types a word
SEARCH = """
(() => {
  document.querySelector('[data-md-toggle=search]').click();
  const input = document.querySelector('[data-md-component=search-query]');
  input.value = %r;
  for (const type of ['keydown', 'input', 'keyup'])
    input.dispatchEvent(new Event(type, {bubbles: true}));
})()
"""

FOUND = "[...document.querySelectorAll('.md-search-result__link')].map(each => each.href)"


@pytest.mark.asyncio
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", ["index.html", "guides/slurm.html"])
async def test_pages_opened_as_files_can_be_searched(
    program: str, page: str, tmp_path: Path
) -> None:
    async with Browser(program, tmp_path) as browser:
        await browser.open((SITE / page).as_uri())
        await browser.until(
            f"document.readyState == 'complete' && location.href.endsWith('{page}')"
        )
        await browser.evaluate(SEARCH % "troubleshooting")
        found: Any = await browser.until(f"({FOUND}).length ? {FOUND} : null")
        assert any("guides/troubleshooting.html" in each for each in found)
        loaded: Any = await browser.evaluate(
            "performance.getEntriesByType('resource').map(each => each.name)"
        )
        assert [each for each in loaded if not each.startswith("file:")] == []
        assert not browser.complaints


CARDS = """
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File
from mkdocs.structure.pages import Page

import hooks

for address in ("", "https://docs.example/en/"):
    config = MkDocsConfig()
    config.load_dict({"site_name": "Backhaul", "site_url": address, "use_directory_urls": False})
    file = File("users/rust.md", "docs", "site", use_directory_urls=False)
    page = Page("Rust & C", file, config)
    print(hooks.on_post_page("<head></head>", page=page, config=config))
"""


@pytest.mark.skipif(not DOCS_PYTHON.exists(), reason="make site makes .venv-docs")
def test_pages_of_a_site_with_an_address_have_social_cards() -> None:
    done = subprocess.run(
        [str(DOCS_PYTHON), "-c", CARDS],
        cwd=ROOT / "docs",
        capture_output=True,
        text=True,
        check=True,
    )
    without, first, *others = done.stdout.splitlines()
    assert without == "<head></head>"
    assert first == '<head><meta property="og:type" content="website">'
    card = dict(re.findall(r'property="(\S+)" content="(.*?)"', "\n".join(others)))
    assert card["og:title"] == "Rust &amp; C"
    assert card["og:url"] == "https://docs.example/en/users/rust.html"
    picture = card["og:image"].removeprefix("https://docs.example/en/")
    assert (ROOT / "docs" / picture).is_file()
