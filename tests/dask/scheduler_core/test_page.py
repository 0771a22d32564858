"""Pages of the dashboard that a browser shows while tasks run."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from operator import neg
from pathlib import Path
from typing import Any, Final

import pytest
from distributed import Client, LocalCluster, wait

import dask
from backhaul.dask.scheduler.core import live_core
from tests.dask.browser import NAMES, Browser, chromium

#: Whether a source of the page has this in a column
HAS = """Bokeh.documents.some((page) => Array.from(page._all_models.values()).some((model) =>
    model.data && model.data.%s && Array.from(model.data.%s).%s))"""


@pytest.fixture
def no_stealing() -> Iterator[None]:
    """Leave a worker without work that is so on a busy machine: to steal for it is an escape."""
    with dask.config.set({"distributed.scheduler.work-stealing": False}):
        yield


@contextlib.asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[tuple[Any, Client, Browser]]:
    """Make a cluster with a dashboard, a client, and a browser; skips without one."""
    pytest.importorskip("bokeh")
    program = chromium()
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    async with (
        LocalCluster(
            protocol="backhaul",
            n_workers=2,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            asynchronous=True,
        ) as cluster,
        Client(cluster, asynchronous=True) as client,
        Browser(program, folder / "profile") as browser,
    ):
        yield cluster, client, browser


#: Escapes that no page causes: where other programs have the CPU, long tasks are taken back
_STRANGERS: Final = frozenset({"tasks to take back"})


#: Tests of 100,000 tasks take a minute of a processor and more: how much there is to show.
_only_if_all = pytest.mark.skipif(
    os.environ.get("PAGES") != "all", reason="takes minutes: PAGES=all has 100,000 tasks shown"
)


@pytest.mark.parametrize("tasks", [10_000, pytest.param(100_000, marks=_only_if_all)])
@pytest.mark.usefixtures("no_stealing")
@pytest.mark.asyncio
async def test_an_open_page_shows_what_runs_and_escapes_nothing(tmp_path: Path, tasks: int) -> None:
    async with watched(tmp_path) as (cluster, client, browser):
        await browser.open(client.dashboard_link)
        await browser.until("Bokeh.documents.length > 0")
        core: Any = live_core.installed(cluster.scheduler)
        futures = client.map(neg, range(tasks))
        await wait(futures)
        assert core.escapes.keys() <= _STRANGERS, core.escapes
        if not core.escapes:
            assert core.is_active
            assert core.engine_counts()["task-finished"] > tasks / 2
        # The last look is at the end.
        await browser.until(HAS % ("done", "done", f"includes('{tasks} / {tasks}')"))
        await browser.until(HAS % ("duration_text", "duration_text", "length > 900"))
        await browser.screenshot(tmp_path / "page.png")
        assert not browser.complaints
        assert core.escapes.keys() <= _STRANGERS, core.escapes


def opposite(number: int, seconds: float) -> int:
    time.sleep(seconds)
    return -number


#: Pages that show what tasks do, each in its way
MAIN: Final = ("/status", "/workers", "/tasks", "/graph", "/groups", "/profile", "/stealing")


# Tasks are long enough for the pages to be looked at while there are some left.
@pytest.mark.parametrize(
    ("tasks", "seconds", "pages"),
    [(1_000, 0.01, MAIN), pytest.param(100_000, 0.001, None, marks=_only_if_all)],
    ids=["some", "all"],
)
@pytest.mark.asyncio
async def test_pages_work_while_tasks_run(
    tmp_path: Path, tasks: int, seconds: float, pages: tuple[str, ...] | None
) -> None:
    if pages is None:
        pages = tuple(importlib.import_module("distributed.dashboard.scheduler").applications)
    shown: list[str] = []
    rounds = 0
    async with watched(tmp_path) as (_, client, browser):
        home = client.dashboard_link.removesuffix("/status")

        async def show() -> None:
            for page in pages:
                await browser.open(f"{home}{page}")
                # Not of the page before
                await browser.until(f"location.pathname == '{page}' && Bokeh.documents.length > 0")
                # For what it asks for every now and then
                await asyncio.sleep(0.5)
                assert not browser.complaints, page
                shown.append(page)

        async with asyncio.TaskGroup() as group:
            showing = group.create_task(show())
            while not showing.done() or not rounds:
                futures = client.map(opposite, range(rounds, rounds + tasks), seconds=seconds)
                await wait(futures)
                total = sum(await client.gather(futures))
                assert total == -sum(range(rounds, rounds + tasks))
                rounds += 1
                del futures
    assert shown == list(pages)
