"""A page of the dashboard that a browser shows while tasks run takes nothing out of the core."""

from __future__ import annotations

from collections.abc import Iterator
from operator import neg
from pathlib import Path
from typing import Any, Final

import pytest
from distributed import Client, LocalCluster, wait

import dask
from backhaul.dask.scheduler_core import live
from tests.dask.browser import NAMES, Browser, chromium

#: Whether a source of the page has this in a column
HAS = """Bokeh.documents.some((page) => Array.from(page._all_models.values()).some((model) =>
    model.data && model.data.%s && Array.from(model.data.%s).%s))"""


@pytest.fixture(autouse=True)
def no_stealing() -> Iterator[None]:
    """Leave a worker without work that is so on a busy machine: to steal for it is an escape."""
    with dask.config.set({"distributed.scheduler.work-stealing": False}):
        yield


#: No page's: where strangers have the CPU, tasks that took long are taken back from their worker
_STRANGERS: Final = frozenset({"tasks to take back"})


# The longer one is about how much there is to show; what a release of Dask shows, the other one has
@pytest.mark.parametrize(
    "tasks", [10_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.once])]
)
@pytest.mark.asyncio
async def test_an_open_page_shows_what_runs_and_escapes_nothing(tmp_path: Path, tasks: int) -> None:
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
        Browser(program, tmp_path / "profile") as browser,
    ):
        await browser.open(client.dashboard_link)
        await browser.until("Bokeh.documents.length > 0")
        core: Any = live.installed(cluster.scheduler)
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
