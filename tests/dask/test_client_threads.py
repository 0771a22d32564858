"""Threads of a program that send and read by themselves: what they do, and what is the loop's."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from operator import add
from typing import Any

import pytest
from distributed import Client, Event, Future, LocalCluster, as_completed, wait
from distributed.client import FutureCancelledError, FutureState

import dask
from backhaul.dask import BackhaulComm
from backhaul.dask.client import thread_wait
from backhaul.dask.client.reader_thread import ThreadReports, reports_of
from backhaul.dask.comm.batched_stream import AdaptiveBatchedSend
from backhaul.dask.compat import activation

pytestmark = pytest.mark.usefixtures("forked_workers")

THREADS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=1,
        threads_per_worker=4,
        processes=False,
        protocol="backhaul",
        dashboard_address=None,
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        assert reports_of(client) is not None
        yield client


def waited(name: str, value: Any) -> Any:
    Event(name).wait()
    if isinstance(value, Exception):
        raise value
    return value


def submit(client: Client, value: Any) -> tuple[Future[Any], Any]:
    """Submit a task that waits, and give what lets it go on."""
    event = Event(client=client)
    return client.submit(waited, event.name, value, pure=False), event


def until(condition: Any) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def waits_for(future: Future[Any]) -> bool:
    """Return whether a thread or coroutine waits for a future."""
    event: Any = future._state and future._state._event
    return event is not None and bool(event._waiters)


#: In a process of its own: whatever else opens descriptors, other tests do not
DESCRIPTORS = """\
import os
import sys
import time
from operator import add

from distributed import Client, LocalCluster


def descriptors():
    return {name: target(name) for name in os.listdir("/proc/self/fd")}


def target(name):
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except FileNotFoundError:
        return "the list's own"


if __name__ == "__main__":
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=4, processes=False, protocol="backhaul",
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):
        assert client.submit(add, 1, 1, pure=False).result() == 2
        # The scheduler fetches a large result, and a small one that a busy machine delays, over a
        # connection that stays.
        assert len(client.submit(bytes, 100_000, pure=False).result()) == 100_000
        # A new worker's first heartbeat, after half a second, opens a connection that stays.
        (worker,) = cluster.workers.values()
        while not worker.rpc.open:
            time.sleep(0.001)
        before = descriptors()
        closed = []
        for _ in range(5):
            with Client(cluster) as other:
                assert other.submit(add, 1, 2, pure=False).result() == 3
                # The list keeps the client from being collected.
                closed.append(other)
        deadline = time.monotonic() + 60
        while len(after := descriptors()) > len(before) + 1 and time.monotonic() < deadline:
            time.sleep(0.001)
        print(len(closed), len(after) <= len(before) + 1)
        print(before, after, sep="\\n", file=sys.stderr)
"""


def test_a_client_that_closes_leaves_no_descriptors(tmp_path: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text(DESCRIPTORS)
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "5 True\n", done.stderr[-5000:]


# Work of a thread without the event loop


def test_a_thread_sends_what_it_submits_and_reads_the_answer(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    write: Any = BackhaulComm.write_in_thread
    handle: Any = ThreadReports._handle_one

    def counted_write(self: Any, *arguments: Any) -> Any:
        # The worker is of this process, and has threads that send, too.
        if self.name == "Client->Scheduler":
            seen.append(("write", threading.get_ident()))
        return write(self, *arguments)

    def counted_handle(self: Any, message: Any) -> Any:
        seen.append((message["op"], threading.get_ident()))
        return handle(self, message)

    monkeypatch.setattr(BackhaulComm, "write_in_thread", counted_write)
    monkeypatch.setattr(ThreadReports, "_handle_one", counted_handle)
    me = threading.get_ident()
    for number in range(50):
        assert client.submit(add, number, 1, pure=False).result() == number + 1
    written = [thread for what, thread in seen if what == "write"]
    assert len(written) > 10
    assert set(written) == {me}
    # The loop may have been at work on something, and have read some.
    read = [thread for what, thread in seen if what == "key-in-memory"]
    assert len(read) > 10
    assert set(read) == {me}


def test_threads_find_what_another_one_reads(client: Client) -> None:
    futures, events = zip(*(submit(client, number) for number in range(THREADS)), strict=True)
    with ThreadPoolExecutor(2 * THREADS) as pool:
        waiting = [pool.submit(future.result) for future in futures]
        gathering = [pool.submit(client.gather, list(futures)) for _ in range(THREADS)]
        until(lambda: all(map(waits_for, futures)))
        # The thread that reads is done first, or last.
        for event in events:
            event.set()
        assert [each.result(60) for each in waiting] == list(range(THREADS))
        assert [each.result(60) for each in gathering] == [list(range(THREADS))] * THREADS
    assert not any(map(waits_for, futures))
    reports = reports_of(client)
    assert reports is not None
    assert not reports.threads


def test_the_loop_finds_what_a_thread_reads(client: Client) -> None:
    slow, event = submit(client, "slow")
    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(slow.result)
        until(lambda: waits_for(slow))
        for _ in range(20):
            quick = [client.submit(add, number, 1, pure=False) for number in range(10)]
            assert sorted(each.result() for each in as_completed(quick)) == list(range(1, 11))
            more = client.map(add, range(10), range(10), pure=False)
            wait(more, timeout=300)
            assert client.sync(client._gather, more) == [2 * number for number in range(10)]
        event.set()
        assert leading.result(60) == "slow"


def test_a_gather_of_one_that_fails_waits_for_no_other(client: Client) -> None:
    failing, event = submit(client, ZeroDivisionError("on purpose"))
    never, other = submit(client, 1)
    with ThreadPoolExecutor(1) as pool:
        gathering = pool.submit(client.gather, [never, failing])
        until(lambda: waits_for(failing))
        event.set()
        with pytest.raises(ZeroDivisionError, match="on purpose"):
            gathering.result(60)
    other.set()


def test_gather_gives_what_dask_gives(client: Client) -> None:
    futures = client.map(add, range(5), range(5))
    large = client.submit(bytes, 100_000)
    numbers = [0, 2, 4, 6, 8]
    assert client.gather(futures) == numbers
    assert client.gather(tuple(futures)) == tuple(numbers)
    assert client.gather([futures[1], futures[1]]) == [2, 2]
    assert client.gather([*futures, large])[-1] == bytes(100_000)
    assert client.gather([]) == []
    assert client.gather(futures[3]) == 6
    assert client.gather({"a": futures[1], "b": [futures[2]]}) == {"a": 2, "b": [4]}
    assert client.gather([futures[0], [futures[1]], 7]) == [0, [2], 7]
    assert list(client.gather(iter([futures[1]]))) == [2]
    failing = client.submit(waited, "", ZeroDivisionError("on purpose"))
    failing.cancel()
    assert client.gather([*futures, failing], errors="skip") == numbers
    with pytest.raises(FutureCancelledError):
        client.gather([*futures, failing])


# Ends of a wait


@pytest.mark.parametrize("end", ["cancel", "restart", "close", "cut off"])
def test_the_end_of_futures_ends_all_waits(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        # Outermost: it waits for its threads, which wait until the client is closed if this fails.
        ThreadPoolExecutor(3) as pool,
        LocalCluster(
            n_workers=1, threads_per_worker=2, protocol="backhaul", dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        future = client.submit(time.sleep, 3600)
        waiting = [
            pool.submit(future.result),
            pool.submit(client.gather, [future]),
            pool.submit(future.result, timeout=600),
        ]
        reports = reports_of(client)
        assert reports is not None
        until(lambda: len(reports.threads) == 3)
        stream = client.scheduler_comm
        if end == "cancel":
            client.cancel(future)
        elif end == "restart":
            client.restart(timeout=500)
        elif end == "close":
            client.close()
        else:
            scheduler: Any = cluster.scheduler
            connect: Any = client._ensure_connected

            async def connect_later(timeout: Any = None) -> None:
                # Or the scheduler closes the new stream, too, when it ends the old one.
                while client.id in scheduler.client_comms:
                    await asyncio.sleep(0.001)
                await connect(timeout=timeout)

            monkeypatch.setattr(client, "_ensure_connected", connect_later)
            cluster.loop.add_callback(scheduler.client_comms[client.id].abort)
        done, pending = wait_for(waiting, 300)
        assert not pending
        for each in done:
            assert isinstance(each.exception(), FutureCancelledError)
        if end == "cut off":
            # It has found the scheduler again, and reads as Dask does.
            until(lambda: client.status == "running" and client.scheduler_comm is not stream)
            assert reports_of(client) is None
        if end != "close":
            assert client.submit(add, 1, 2, pure=False).result() == 3


def test_a_timeout_ends_a_wait_with_any_reader(client: Client) -> None:
    slow, event = submit(client, "slow")
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(slow.result, timeout) for timeout in (0.05, "100 ms", None)]
        for each in waiting[:2]:
            with pytest.raises(TimeoutError, match="timed out after"):
                each.result(60)
        event.set()
        assert waiting[2].result(60) == "slow"


CTRL_C = """
import os, signal, sys, threading, time
from distributed import Client, LocalCluster
from operator import add

def interrupt(ready, over):
    ready.wait()
    # Python drops one that comes while a finalizer runs.
    delay_s = 0.01
    while not over.wait(delay_s):
        os.kill(os.getpid(), signal.SIGINT)
        delay_s = 5

if __name__ == "__main__":
    cluster = LocalCluster(
        n_workers=1, threads_per_worker=6, protocol="backhaul", dashboard_address=None
    )
    client = Client(cluster)
    for way in ("result", "gather", "result with timeout"):
        future = client.submit(time.sleep, 3600, pure=False)
        calls = {
            "result": future.result,
            "gather": lambda: client.gather([future]),
            "result with timeout": lambda: future.result(timeout=600),
        }
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        try:
            calls[way]()
        except KeyboardInterrupt:
            print(way, "interrupted", time.monotonic() - began < 30, flush=True)
        future.cancel()
        results = [client.submit(add, number, 1, pure=False).result() for number in range(50)]
        print(results == list(range(1, 51)), flush=True)
    # And at any moment of many submits and results
    interrupted = 0
    for _ in range(40):
        ready, over = threading.Event(), threading.Event()
        threading.Thread(target=interrupt, args=(ready, over)).start()
        try:
            ready.set()
            while True:
                client.submit(add, 1, 1, pure=False).result()
        except KeyboardInterrupt:
            over.set()
            interrupted += 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    total = client.gather([client.submit(add, number, 1, pure=False) for number in range(500)])
    print(interrupted, total == list(range(1, 501)), client.status, flush=True)
    os._exit(0)
"""


def test_ctrl_c_ends_a_wait_and_the_client_goes_on(tmp_path: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text(CTRL_C)
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=300, check=False
    )
    lines = done.stdout.splitlines()
    assert lines == [
        "result interrupted True",
        "True",
        "gather interrupted True",
        "True",
        "result with timeout interrupted True",
        "True",
        "40 True running",
    ], done.stderr[-5000:]


def test_a_handler_of_a_signal_may_wait_while_its_thread_waits(client: Client) -> None:
    slow, event = submit(client, "slow")
    found: list[Any] = []

    def handle(*_: object) -> None:
        found.extend(client.submit(add, number, 1, pure=False).result() for number in range(3))
        found.extend(client.gather([client.submit(add, 1, 1, pure=False)]))
        event.set()

    former = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        assert slow.result(timeout=300) == "slow"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert found == [1, 2, 3, 2]


def test_a_wake_up_that_is_forgotten_costs_a_second_and_is_logged(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    state = FutureState("forgotten")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(thread_wait.wait_in_thread, client, [state], None)
        event: Any = state._get_event()
        until(lambda: event._waiters)
        state.status = "finished"
        event._is_set = True
        assert waiting.result(60)
    assert "was not woken for 1 futures" in caplog.text


def test_a_forked_child_reads_nothing(client: Client) -> None:
    pid = os.fork()
    if not pid:
        os._exit(int(reports_of(client) is not None))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert client.submit(add, 1, 1, pure=False).result() == 2


# Switches


def test_switched_off_the_loop_does_it_all(cluster: LocalCluster, plain_dask: None) -> None:
    with dask.config.set({"distributed.comm.backhaul.hot-path.client-threads": False}):
        activation.install()
        with Client(cluster) as client:
            assert "gather" not in vars(client)
            stream: Any = client.scheduler_comm
            assert type(stream) is AdaptiveBatchedSend
            assert reports_of(client) is None
            assert client.submit(add, 1, 2).result() == 3
            assert client.gather([client.submit(add, 1, 2)]) == [3]


def test_workers_die_while_threads_wait() -> None:
    """Short; `make soak-threads` is the long one."""
    options = "--seconds 4 --kill-every 1 3 --seed 5"
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak.threads", *options.split()],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-5000:]
    assert "workers killed" in done.stdout
    assert "was not woken" not in done.stderr
