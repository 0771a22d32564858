"""``page``: what the page ``/backhaul`` of a large cluster costs its scheduler, with one browser.

The page is served by Bokeh from a ledger that is made up, in which every pair of workers moves
something each second, so that all cells are new at each look. The time of the ledger is left out.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import click
from tornado.ioloop import IOLoop, PeriodicCallback

from backhaul._machine import Machine, installed_versions
from backhaul._output import open_console, print_machine
from backhaul.dask.observe.counters import Counts
from backhaul.dask.observe.dashboard import PAGE, Page
from backhaul.dask.observe.history_view import HistoryView
from backhaul.dask.observe.ledger import Ledger
from backhaul.dask.observe.matrix import Matrix, Peer, matrix_of
from backhaul.dask.observe.matrix_view import MatrixView
from backhaul.dask.observe.transfer_history import TransferHistory

__all__ = ["main"]

_MESSAGE_BYTES = 1 << 20
_PERIOD_S = 1.0
#: Until the browser has what is there
_FIRST_S = 10.0


@click.command("page")
@click.option("--workers", type=click.IntRange(2), default=64, show_default=True)
@click.option("--seconds", type=click.IntRange(1), default=300, show_default=True)
def main(workers: int, seconds: int) -> None:
    """Measure CPU time of the page of transfers, of which every cell is new at each look."""
    console = open_console(wide=True)
    print_machine(console, Machine.here(), installed_versions("backhaul", "bokeh"))
    cpu_s, looks = IOLoop.current().run_sync(lambda: _measure(workers, seconds))
    console.print(
        f"{workers} workers: {cpu_s / seconds * 1e3:.2f} ms of CPU a second, "
        f"{looks} looks in {seconds} s"
    )


async def _measure(workers: int, seconds: int) -> tuple[float, int]:
    from bokeh.application import Application
    from bokeh.application.handlers.function import FunctionHandler
    from bokeh.document import Document
    from bokeh.server.server import Server

    traffic = _Traffic(workers)
    looks = 0

    def look(_by_host: bool) -> Matrix:
        nonlocal looks
        looks += 1
        return matrix_of(traffic.ledger, traffic.peers, float(traffic.rounds))

    def show(document: Document) -> None:
        page = Page([MatrixView(look), HistoryView(traffic.history)])
        page.update()
        document.add_root(page.root)
        document.add_periodic_callback(page.update, 500)

    server = Server({PAGE: Application(FunctionHandler(show))}, port=0)
    server.start()
    address = f"http://localhost:{server.port}{PAGE}"
    browser = subprocess.Popen(
        [sys.executable, "-m", "benches.python.looks", address], stdout=subprocess.DEVNULL
    )
    try:
        await asyncio.sleep(_FIRST_S)
        moving = PeriodicCallback(traffic.move, _PERIOD_S * 1e3)
        moving.start()
        looks, traffic.cpu_s, began_s = 0, 0.0, time.process_time()
        await asyncio.sleep(seconds)
        if browser.poll() is not None:
            raise click.ClickException("the browser is gone")
        return time.process_time() - began_s - traffic.cpu_s, looks
    finally:
        browser.terminate()
        browser.wait()


class _Traffic:
    """A message from each worker to each other one, again and again."""

    def __init__(self, workers: int) -> None:
        self.ledger = Ledger(links_max=workers**2)
        self.peers = [
            Peer(f"backhaul://10.0.0.{n // 8}:{4000 + n}", f"10.0.0.{n // 8}", f"worker-{n}")
            for n in range(workers)
        ]
        self.rounds = 0
        self.history = TransferHistory()
        #: CPU time of the ledger
        self.cpu_s = 0.0
        self.move()

    def move(self) -> None:
        """Let each worker report one more message from each other one."""
        began_s = time.thread_time()
        self.rounds += 1
        counts = Counts(self.rounds, self.rounds * _MESSAGE_BYTES, 0, self.rounds * 1e-3)
        for peer in self.peers:
            flows = [
                [f"p{other.name}", 1, "h", "shm", [[_MESSAGE_BYTES, *counts]]]
                for other in self.peers
                if other != peer
            ]
            totals = [["shm", [[_MESSAGE_BYTES, *counts]]]]
            report = {"process": f"p{peer.name}", "totals": totals, "flows": flows}
            gained = self.ledger.handle_report(peer.address, report, float(self.rounds))
            self.history.note(gained, time.monotonic())
        self.cpu_s += time.thread_time() - began_s
