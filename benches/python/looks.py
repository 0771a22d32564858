"""``looks``: cost of small tasks while a user looks at the scheduler, and the reads that escaped.

Each way to look has a cluster of its own with a dashboard: the scheduler is here, its workers are
processes, and a page is open in one more, which reads what the page sends as a browser does.
"""

from __future__ import annotations

import contextlib
import io
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from operator import neg
from typing import Any

import click
from distributed import Client, Future, LocalCluster, Scheduler, wait
from distributed.diagnostics.progressbar import TextProgressBar
from tornado.httpclient import HTTPRequest
from tornado.ioloop import IOLoop
from tornado.websocket import websocket_connect

from backhaul._machine import Machine, installed_versions
from backhaul._output import open_console, print_machine
from backhaul.dask.scheduler.core import live_core
from backhaul_bench.option_types import ListType

__all__ = ["main"]

#: How often one asks who asks again and again, in seconds
_POLL_S = 0.5

#: Pages of Dask's dashboard by what they are called here
_PAGES = {"page": "/status", "workers": "/workers", "progress": "/individual-progress"}

_ALL = ("none", "page", "metrics", "poll", "bar")


@click.command("looks")
@click.option(
    "--look",
    "looks",
    type=ListType((*_ALL, *_PAGES), all=_ALL),
    default="all",
)
@click.option("--tasks", type=click.IntRange(1), default=20_000, show_default=True)
@click.option("--repetitions", type=click.IntRange(1), default=3, show_default=True)
def main(looks: tuple[str, ...], tasks: int, repetitions: int) -> None:
    """Time a map while a page of the dashboard is open, or a program asks twice a second."""
    console = open_console(wide=True)
    print_machine(console, Machine.here(), installed_versions("backhaul", "distributed"))
    for look in looks:
        took_us, escapes, handled = _measure(look, tasks, repetitions)
        told = ", ".join(f"{one:.0f}" for one in sorted(took_us))
        console.print(
            f"{look}: {statistics.median(took_us):.0f} µs a task ({told}), "
            f"{handled:.0%} of the ends handled by the engine, escapes {escapes}"
        )


def _measure(look: str, tasks: int, repetitions: int) -> tuple[list[float], dict[str, int], float]:
    took_us = []
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            protocol="backhaul",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
        _looking(look, cluster.scheduler, client),
    ):
        # The first one is not counted.
        for number in range(repetitions + 1):
            began = time.perf_counter()
            futures = client.map(neg, range(tasks), key=f"neg-{number}")
            if look == "bar":
                _show_progress(futures, client)
            wait(futures)
            took_us.append((time.perf_counter() - began) / tasks * 1e6)
            del futures
            time.sleep(_POLL_S)
        core = live_core.installed(cluster.scheduler)
        if core is None:
            return took_us[1:], {}, 0.0
        handled = core.engine_counts().get("task-finished", 0)
        return took_us[1:], dict(core.escapes), handled / tasks / (repetitions + 1)


@contextlib.contextmanager
def _looking(look: str, scheduler: Scheduler, client: Client) -> Iterator[None]:
    server: Any = scheduler.http_server
    address = f"http://127.0.0.1:{server.port}"
    if look in ("none", "bar"):
        yield
    elif look in _PAGES:
        command = [sys.executable, "-m", __name__, address + _PAGES[look]]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as page:
            assert page.stdout is not None
            page.stdout.readline()
            yield
            page.terminate()
    else:
        asks = {"metrics": lambda: urllib.request.urlopen(f"{address}/metrics").read()}
        with _again_and_again(asks.get(look, lambda: _poll(client))):
            yield


@contextlib.contextmanager
def _again_and_again(ask: Callable[[], object]) -> Iterator[None]:
    end = threading.Event()

    def asking() -> None:
        while not end.wait(_POLL_S):
            ask()

    thread = threading.Thread(target=asking)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _show_progress(futures: list[Future[Any]], client: Client) -> None:
    """Show a progress bar until all is done, without output."""
    keys = [future.key for future in futures]
    scheduler: Any = client.scheduler
    with contextlib.redirect_stdout(io.StringIO()):
        bar: Any = TextProgressBar(keys, scheduler=scheduler.address, start=False)
        client.sync(bar.listen)


def _poll(client: Client) -> None:
    client.processing()
    client.has_what()
    client.nbytes()
    client.scheduler_info()
    client.who_has()


async def _open(page: str) -> None:
    """Read what a page is sent until the process is ended."""
    html = urllib.request.urlopen(page).read().decode()
    token = re.search(r'"token":"([^"]+)"', html)
    assert token is not None, f"{page} is no page of Bokeh's"
    request = HTTPRequest(f"{page.replace('http', 'ws', 1)}/ws")
    socket = await websocket_connect(
        request, subprotocols=["bokeh", token[1]], max_message_size=1 << 30
    )
    sys.stdout.write("open\n")
    sys.stdout.flush()
    while await socket.read_message() is not None:
        pass


if __name__ == "__main__":
    IOLoop.current().run_sync(lambda: _open(sys.argv[1]))
