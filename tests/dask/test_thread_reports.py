"""Reports of the scheduler to a client, handled by threads and the event loop: once, in order."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from operator import add
from typing import TYPE_CHECKING, Any

from distributed import Client, Scheduler, Worker
from distributed.client import FutureState
from distributed.utils_test import gen_cluster, gen_test

from backhaul.dask.client.reader_thread import ThreadReports, reports_of

if TYPE_CHECKING:
    from tests.dask.conftest import CommPair


class Listening:
    """As much of a client as reports are for."""

    def __init__(self) -> None:
        self.id = "client"
        self.futures: dict[str, FutureState] = {}
        self.handled: list[tuple[str, int, bool]] = []
        self._stream_handlers = {"ours": self.ours, "loops": self.loops}

    def ours(self, key: str, number: int) -> None:
        self.handled.append((key, number, asyncio._get_running_loop() is not None))
        state = self.futures.get(key)
        if state is not None:
            state.finish()

    def loops(self, key: str, number: int) -> None:
        assert asyncio._get_running_loop() is not None
        self.ours(key, number)


class Reader:
    """A thread that waits for nothing but its end."""

    def __init__(self) -> None:
        self.is_over = False
        self.looks = threading.Event()

    def nudge(self) -> None:
        self.looks.set()

    def read(self, reports: ThreadReports) -> None:
        reports.threads.append(self)
        while not self.is_over:
            if reports.become_reader(self):
                may_read = reports.read(self, time.monotonic() + 0.05)
                reports.stop_reading(self, pass_on=may_read)
                if may_read or reports.may_read():
                    continue
            self.looks.wait(1)
            self.looks.clear()
        reports.threads.remove(self)


@gen_test()
async def test_everything_is_handled_once_and_in_order_by_any_reader(comm_pair: CommPair) -> None:
    count = 3000
    async with comm_pair() as (a, b):
        listening: Any = Listening()
        reports = ThreadReports(listening, b, b.share(), {"ours": listening.ours})
        readers = [Reader() for _ in range(3)]

        async def read_as_the_client_does() -> None:
            while len(listening.handled) < count:
                for message in await b.read():
                    operation = message.pop("op")
                    listening._stream_handlers[operation](**message)
                    await asyncio.sleep(0)

        async def send() -> None:
            number = 0
            while number < count:
                size = min(count - number, 1 + number % 5)
                await a.write(
                    [
                        {"op": "loops" if n % 37 == 0 else "ours", "key": "k", "number": n}
                        for n in range(number, number + size)
                    ]
                )
                number += size
                if number % 11 == 0:
                    await asyncio.sleep(0.0005)

        with ThreadPoolExecutor(3) as pool:
            reading = [pool.submit(reader.read, reports) for reader in readers]
            loop = asyncio.create_task(read_as_the_client_does())
            await send()
            deadline = time.monotonic() + 60
            while len(listening.handled) < count and time.monotonic() < deadline:
                await asyncio.sleep(0.005)
            for reader in readers:
                reader.is_over = True
                reader.nudge()
            reports.rouse()
            loop.cancel()
            for each in reading:
                each.result(60)
        assert [number for _, number, _ in listening.handled] == list(range(count))
        by_threads = sum(not by_loop for _, _, by_loop in listening.handled)
        # The loop has its own, and what it finds: all, where a busy machine gives threads no turn.
        assert by_threads < count


@gen_test()
async def test_an_interrupted_thread_leaves_the_rest_to_the_loop(comm_pair: CommPair) -> None:
    async with comm_pair() as (a, b):
        listening: Any = Listening()

        def handle(key: str, number: int) -> None:
            if number == 2 and asyncio._get_running_loop() is None:
                raise KeyboardInterrupt
            listening.ours(key, number)

        listening._stream_handlers["ours"] = handle
        reports = ThreadReports(listening, b, b.share(), {"ours": handle})
        reading = asyncio.create_task(b.read())
        await asyncio.sleep(0)
        thread = Reader()

        def lead() -> None:
            reports.threads.append(thread)
            assert reports.become_reader(thread)
            try:
                reports.read(thread, time.monotonic() + 60)
            except KeyboardInterrupt:
                pass
            finally:
                reports.stop_reading(thread, pass_on=True)

        with ThreadPoolExecutor(1) as pool:
            leading = pool.submit(lead)
            await a.write([{"op": "ours", "key": "k", "number": n} for n in range(4)])
            await asyncio.wrap_future(leading)
        # It handles the message when it is called for the next one, at the latest.
        await a.write([{"op": "ours", "key": "k", "number": 4}])
        left = [message["number"] for message in await asyncio.wait_for(reading, 60)]
        assert [number for _, number, _ in listening.handled] == [0, 1]
        assert left == [2, 3]
        (last,) = await asyncio.wait_for(b.read(), 60)
        assert last["number"] == 4


@gen_test()
async def test_a_thread_that_is_gone_leads_no_more(comm_pair: CommPair) -> None:
    async with comm_pair() as (_, b):
        listening: Any = Listening()
        reports = ThreadReports(listening, b, b.share(), {"ours": listening.ours})
        first, second = Reader(), Reader()
        reports.threads.append(first)
        assert reports.become_reader(first)
        reports.threads.append(second)
        assert not reports.become_reader(second)
        # As Ctrl-C may leave it
        reports.threads.remove(first)
        assert reports.become_reader(second)
        reports.stop_reading(first, pass_on=False)
        assert not reports.become_reader(first)
        reports.stop_reading(second, pass_on=False)
        assert reports.become_reader(first)


@gen_test()
async def test_a_future_with_an_event_of_asyncios_is_the_loops(comm_pair: CommPair) -> None:
    async with comm_pair() as (a, b):
        listening: Any = Listening()
        state: Any = FutureState("k")
        state._event = asyncio.Event()
        listening.futures["k"] = state
        reports = ThreadReports(listening, b, b.share(), {"ours": listening.ours})
        reading = asyncio.create_task(b.read())
        await asyncio.sleep(0)
        await a.write([{"op": "ours", "key": "k", "number": 0}])
        thread = Reader()

        def lead() -> bool:
            reports.threads.append(thread)
            assert reports.become_reader(thread)
            may_read = reports.read(thread, time.monotonic() + 60)
            reports.stop_reading(thread, pass_on=may_read)
            return may_read

        with ThreadPoolExecutor(1) as pool:
            assert not await asyncio.wrap_future(pool.submit(lead))
        assert len(await asyncio.wait_for(reading, 60)) == 1
        assert listening.handled == []


@gen_cluster(
    client=True, nthreads=[("127.0.0.1", 1)], config={"distributed.comm.default-scheme": "backhaul"}
)
async def test_an_asynchronous_client_reads_by_its_loop_alone(
    client: Client, scheduler: Scheduler, worker: Worker
) -> None:
    assert reports_of(client) is None
    assert await client.submit(add, 1, 2, pure=False) == 3
