"""The page of the dashboard, in a browser and out of it."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from backhaul.dask.observe import dashboard
from backhaul.dask.observe.counters import Counts
from backhaul.dask.observe.exchange_counters import ExchangeAccount
from backhaul.dask.observe.ledger import Ledger
from backhaul.dask.observe.link_estimates import LinkAccount
from backhaul.dask.observe.matrix import Matrix, Peer, matrix_of
from backhaul.dask.observe.matrix_view import LENT_COLOR, UNTIMED_COLOR, MatrixView
from backhaul.dask.observe.transfer_history import INTERVALS, TransferHistory

pytestmark = pytest.mark.usefixtures("forked_workers")

if TYPE_CHECKING:
    from tests.dask.browser import Browser
    from tests.dask.conftest import Start

pytest.importorskip("bokeh", reason="the page needs bokeh")

MIB = 1 << 20
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": False}
WORKER = ["-m", "dask", "worker", "--nthreads", "1", "--no-nanny"]

#: Content of the page, cell by cell.
CELLS = """(() => {
    const source = Bokeh.documents[0].get_model_by_name("backhaul-cells");
    const data = source.data;
    return Array.from(data.receiver, (receiver, at) => ({
        receiver, sender: data.sender[at], lane: data.lane_text[at], lanes: data.lanes[at],
        moved: data.moved[at], lent: data.lent[at], messages: data.messages[at],
        bandwidth: data.rate_text[at],
        color: data.color[at], seconds: data.seconds[at], expected: data.expected[at],
    }));
})()"""
#: All text of a page, that of its components included.
TEXT = """(() => {
    const read = (node) => node.nodeType === 3 ? node.textContent
        : Array.from([...(node.shadowRoot ? node.shadowRoot.childNodes : []), ...node.childNodes])
            .filter((child) => !["STYLE", "SCRIPT"].includes(child.nodeName)).map(read).join(" ");
    return read(document.body);
})()"""
#: Where the middle of the matrix's frame is, and how large it is.
FRAME = """(() => {
    const matrix = Bokeh.documents[0].get_model_by_name("backhaul-matrix");
    const view = Object.values(Bokeh.index).map((root) => root.owner.get_one(matrix)).pop();
    const box = view.el.getBoundingClientRect(), frame = view.frame.bbox;
    return {x: box.x + frame.x, y: box.y + frame.y, width: frame.width, height: frame.height};
})()"""

#: Columns of the history.
HISTORY = 'Bokeh.documents[0].get_model_by_name("backhaul-history").data'

#: Addresses in the order of the rows.
ORDER = """(() => {
    const data = Bokeh.documents[0].get_model_by_name("backhaul-cells").data;
    const order = [];
    Array.from(data.receiver, (receiver, at) => { order[Math.floor(data.y[at])] = receiver; });
    return order;
})()"""


@pytest.fixture
def browser_of(tmp_path: Path) -> Callable[..., Browser]:
    """Make browsers; skips where there is no Chromium."""
    # The folder is no package.
    path = Path(__file__).with_name("browser.py")
    spec = importlib.util.spec_from_file_location("browser", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    program = module.chromium()
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(module.NAMES)} is installed")

    def make(**size: int) -> Browser:
        browser: Browser = module.Browser(program, tmp_path / "profile", **size)
        return browser

    return make


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """Start two workers in processes of their own, and a dashboard."""
    with LocalCluster(
        protocol="backhaul",
        n_workers=2,
        threads_per_worker=1,
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        yield cluster


async def move(client: Client, sender: str, receiver: str) -> None:
    made = client.submit(np.ones, MIB, workers=[sender], pure=False)
    await client.submit(np.sum, made, workers=[receiver], pure=False)


@pytest.mark.asyncio
async def test_the_page_shows_transfers_by_sender_and_receiver_and_is_updated(
    browser_of: Callable[..., Browser], start: Start, tmp_path: Path
) -> None:
    async with (
        LocalCluster(
            protocol="backhaul",
            n_workers=2,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            asynchronous=True,
        ) as cluster,
        Client(cluster, asynchronous=True) as client,
        browser_of() as browser,
    ):
        await browser.open(client.dashboard_link.replace("/status", "/backhaul"))
        await browser.until(f"{TEXT}.includes('Nothing has been received over Backhaul yet')")
        assert "Backhaul" in await browser.evaluate("document.querySelector('.navbar').innerText")

        a, b = cluster.scheduler.workers
        await move(client, a, b)
        # Without a reload: it comes with the next heartbeats, of each worker in its turn.
        await browser.until(
            f"{CELLS}.length == 2"
            f" && {CELLS}.some((cell) => cell.receiver == '{b}' && cell.sender == '{a}'"
            " && cell.lent.endsWith('MB'))"
        )
        cells = {(cell["receiver"], cell["sender"]): cell for cell in await browser.evaluate(CELLS)}
        assert set(cells) == {(a, b), (b, a)}
        cell = cells[b, a]
        assert (cell["lane"], cell["lanes"]) == ("shm", "shm")
        assert (cell["lent"], cell["bandwidth"], cell["color"]) == ("8.39 MB", "lent", LENT_COLOR)
        assert cell["moved"].endswith(" B"), "headers alone"
        # A cell with requests alone is too short to be timed.
        assert (cells[a, b]["bandwidth"], cells[a, b]["color"]) == ("–", UNTIMED_COLOR)
        assert cell["expected"].endswith("lent, from 1 message of this pair")
        assert cells[a, b]["expected"].endswith("lent, from 1 message of these hosts")

        # The last minutes, with lent bytes apart
        await browser.until(f"({HISTORY})['shm lent to'].some((rate) => rate > 0)")
        assert await browser.evaluate(f"({HISTORY}).ago.length") == INTERVALS

        # A worker that comes, over another lane, is shown too.
        worker = start(
            *WORKER,
            *("--host", "127.0.0.2"),
            cluster.scheduler_address,
            env={"DASK_DISTRIBUTED__COMM__BACKHAUL__LANES": "tcp"},
        )
        c = await asyncio.to_thread(worker.wait_for, r"Start worker at:\s+(backhaul://\S+)")
        await client.wait_for_workers(3)
        await move(client, a, c)
        await browser.until(
            f"{CELLS}.some((cell) => cell.receiver == '{c}' && cell.lane == 'tcp' && "
            "cell.moved.endsWith('MB'))"
        )
        text = await browser.evaluate(TEXT)
        for part in ("3 workers", "1–16MiB", "shm", "tcp", "rate", "host", "moved within"):
            assert part in " ".join(text.split())

        # Pointing at a cell says more. Senders go from left to right, receivers downwards.
        frame = await browser.evaluate(FRAME)
        order = await browser.evaluate(ORDER)
        x = frame["x"] + frame["width"] * (order.index(a) + 0.5) / 3
        y = frame["y"] + frame["height"] * (order.index(b) + 0.5) / 3
        await browser.point(x, y)
        await browser.until(f"{TEXT}.replace(/\\s+/g, ' ').includes('{a} → {b}')")
        picture = tmp_path / "page.png"
        await browser.screenshot(picture)
        assert picture.stat().st_size > 20_000
        # On a phone, wide parts scroll, and the page does not.
        await browser.call("Emulation.setDeviceMetricsOverride", **PHONE)
        await browser.until("document.documentElement.scrollWidth <= 390")
        await browser.call("Emulation.clearDeviceMetricsOverride")

        # The same by host, at the press of a button
        group = 'Bokeh.documents[0].get_model_by_name("backhaul-group")'
        await browser.evaluate(f"{group}.active = 1")
        await browser.until(
            f"{CELLS}.length > 0 && {CELLS}.every((cell) => cell.receiver.startsWith('127.0.0.'))"
        )
        await browser.evaluate(f"{group}.active = 0")
        await browser.until(f"{CELLS}.some((cell) => cell.receiver == '{a}')")
        assert browser.complaints == []
        worker.kill()
        # A worker that left is shown no more.
        await browser.until(
            f"{CELLS}.length > 0 && {CELLS}.every((cell) => cell.receiver != '{c}')"
        )


def test_a_look_that_costs_much_is_taken_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, cpu_s, looks = 0.0, 0.0, 0

    def look(_by_host: bool) -> Matrix:
        nonlocal cpu_s, looks
        looks += 1
        cpu_s += 0.05
        return matrix_of(Ledger(links_max=1), [], 1.0)

    monkeypatch.setattr(dashboard, "monotonic", lambda: now_s)
    monkeypatch.setattr(dashboard, "thread_time", lambda: cpu_s)
    page = dashboard.Page([MatrixView(look)])
    # With what Bokeh writes afterwards it is 70 ms at least, which is the CPU time of 14 s.
    for second in range(15):
        now_s = float(second)
        page.update()
    assert looks == 1
    now_s = 17.0
    page.update()
    assert looks == 2


def test_the_time_of_bokehs_writes_is_counted_with_a_look() -> None:
    from bokeh.document import Document
    from bokeh.protocol import Protocol

    ledger = Ledger(links_max=10_000)
    peers = [Peer(f"b://{worker}", "10.0.0.1", str(worker)) for worker in range(64)]
    page = MatrixView(lambda _by_host: matrix_of(ledger, peers, 1.0))
    document = Document()
    document.add_root(page.root)
    messages: list[Any] = []
    protocol: Any = Protocol()
    document.callbacks.on_change(
        lambda event: messages.append(protocol.create("PATCH-DOC", [event]))
    )
    counts = Counts(1, MIB, 0, 0.001)
    for peer in peers:
        flows = [
            [f"p{other.name}", 1, "h", "shm", [[MIB, *counts]]] for other in peers if other != peer
        ]
        report = {"process": f"p{peer.name}", "totals": [], "flows": flows}
        ledger.handle_report(peer.address, report, 1.0)
    began_s = time.thread_time()
    page.update()
    looked_s = time.thread_time()
    assert sum(len(message.content_json) for message in messages) > 100_000
    written_s = time.thread_time()
    assert written_s - began_s < (looked_s - began_s) * dashboard._WITH_WRITING


def test_cells_say_names_and_addresses() -> None:
    ledger = Ledger(links_max=10)
    peers = [Peer("backhaul://10.0.0.1:1", "10.0.0.1", "ada"), Peer("b://2", "10.0.0.1", "b://2")]
    flows = [["p1", 1, "h", "tls", [[MIB, *Counts(1, MIB, 0, 0.001)]]]]
    for number, peer in enumerate(peers):
        report = {"process": f"p{number}", "totals": [], "flows": [] if number else flows}
        ledger.handle_report(peer.address, report, 1.0)
    page = MatrixView(lambda _by_host: matrix_of(ledger, peers, 1.0))
    page.update()
    assert page.source.data["receiver_name"] == ["ada, backhaul://10.0.0.1:1"]
    assert page.source.data["sender_name"] == ["b://2"]
    assert page.source.data["receiver"] == ["backhaul://10.0.0.1:1"]


@pytest.mark.parametrize("number", [2, 64])
def test_every_cell_of_a_small_and_of_a_large_cluster_can_be_read(number: int) -> None:
    ledger = Ledger(links_max=10_000)
    peers = [Peer(f"w{worker}", "10.0.0.1", str(worker)) for worker in range(number)]
    counts = Counts(1, MIB, 0, 0.001)
    for peer in peers:
        flows = [
            [f"p{other.name}", 1, "h", "shm", [[MIB, *counts]]] for other in peers if other != peer
        ]
        report = {"process": f"p{peer.name}", "totals": [], "flows": flows}
        ledger.handle_report(peer.address, report, 1.0)
    page = MatrixView(lambda _by_host: matrix_of(ledger, peers, 1.0))
    page.update()
    assert len(page.source.data["x"]) == number * (number - 1)
    figure = page.figure
    assert figure.frame_width == figure.frame_height <= 800
    assert figure.frame_width // number >= 11
    assert set(page.source.data["lane_text"]) == {"shm" if number == 2 else "S"}
    # Every row has a label, and none is written over the next.
    assert len(figure.yaxis.major_label_overrides) == number
    assert len(figure.yaxis.ticker.ticks) == number
    before = page.source.data
    page.update()
    assert page.source.data is before, "nothing is sent when nothing is new"


def test_the_page_is_served_beside_those_of_dask(cluster: LocalCluster) -> None:
    for page in ("status", "backhaul", "workers"):
        url = cluster.dashboard_link.replace("status", page)
        with urllib.request.urlopen(url, timeout=300) as answer:
            assert 'href="backhaul"' in answer.read().decode()


def test_without_a_dashboard_there_is_no_page(start: Start) -> None:
    scheduler = start(
        *("-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-show"),
        *("--protocol", "backhaul", "--no-dashboard"),
    )
    with Client(scheduler.wait_for(r"Scheduler at:\s+(backhaul://\S+)")) as client:
        link = client.dashboard_link.replace("/status", "/backhaul")
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(link, timeout=300)


def test_without_bokeh_there_is_no_page_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # As where Dask could not import it.
    monkeypatch.delitem(sys.modules, "distributed.dashboard.scheduler", raising=False)
    scheduler: Any = object()
    with caplog.at_level(logging.INFO, logger="backhaul.dask.observe.dashboard"):
        assert not dashboard.install(
            scheduler,
            lambda: Ledger(links_max=1),
            LinkAccount(1),
            TransferHistory(),
            ExchangeAccount(),
        )
    assert "bokeh is missing" in caplog.text


def test_a_page_that_cannot_be_made_does_not_keep_the_scheduler_from_starting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise AttributeError("a name that has gone")

    monkeypatch.setattr(dashboard, "install", fail)
    with (
        LocalCluster(
            protocol="backhaul", n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        assert client.submit(sum, [1, 2]).result() == 3
    assert "The dashboard has no page /backhaul" in caplog.text
