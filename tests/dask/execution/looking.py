"""Program that reads a worker's state in the middle of other operations, beside chains of tasks.

``python -m tests.dask.execution.looking WHAT LOOK``: ``WHAT`` names the object that reads the
state: ``spilled`` (a result loaded from disk), ``sent`` (an object that is pickled for a message)
or ``finalizer`` (an object that the garbage collector releases). ``LOOK`` is the part that is read:
``data``, ``repr`` or ``tasks``. A worker that waits for itself never ends.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from distributed import Client, Scheduler, Worker

from backhaul.dask.compat import activation
from backhaul.dask.compat.names import to_serialize
from backhaul.dask.worker.core import ownership
from backhaul.dask.worker.lazy_collections import data_of

__all__ = ["LOOKERS", "LOOKS", "main"]

HOST = "backhaul://127.0.0.1"

#: For how long it does that at least, and how many looks and chains are to be exceeded
SECONDS = 0.6
LOOKS_MIN, CHAINS_MIN = 10, 2

LOOKS: dict[str, Callable[[Worker], object]] = {
    "data": lambda worker: list(worker.data),
    "repr": repr,
    "tasks": lambda worker: list(worker.state.tasks),
}


class World:
    """The state that is read, the number of reads, and the number of chains that have ended."""

    workers: tuple[Worker, ...] = ()
    look: Callable[[Worker], object] = LOOKS["data"]
    looks = 0
    chains = 0


def look() -> None:
    for worker in World.workers:
        World.looks += 1
        World.look(worker)


class Spilled:
    """A result that looks when it is read from disk."""

    def __init__(self) -> None:
        self.content = bytes(10_000)

    def __sizeof__(self) -> int:
        return 10_000

    def __reduce__(self) -> Any:
        return read, ()


def read() -> Spilled:
    look()
    return Spilled()


class Sent:
    """An object that reads the state when it is pickled."""

    def __reduce__(self) -> Any:
        look()
        return Sent, ()


class Finalized:
    """An object in a cycle that reads the state when the garbage collector releases it."""

    def __init__(self, number: int) -> None:
        self.itself = self, number

    def __del__(self) -> None:
        look()


def inc(number: int) -> int:
    return number + 1


async def chains(client: Client, address: str) -> None:
    while True:
        futures = [client.submit(inc, number, pure=False, workers=[address]) for number in range(4)]
        for _ in range(20):
            futures = [client.submit(inc, one, pure=False, workers=[address]) for one in futures]
        await client.gather(futures)
        World.chains += 1


async def read_spilled(client: Client, worker: Worker) -> None:
    held = [
        client.submit(Spilled, pure=False, workers=[worker.address], key=f"spilled-{number}")
        for number in range(5)
    ]
    for future in held:
        await future
    while True:
        data = data_of(worker)
        while data.fast and any(key in data.fast for key in (one.key for one in held)):
            data.evict()
        await client.gather(held, direct=True)


async def send(_: Client, worker: Worker) -> None:
    while True:
        worker.batched_send({"op": "log-event", "topic": "looked", "msg": to_serialize(Sent())})
        await asyncio.sleep(0)


async def make_cycles(_: Client, __: Worker) -> None:
    while True:
        for number in range(50):
            Finalized(number)
        await asyncio.sleep(0)


LOOKERS: dict[str, Callable[[Client, Worker], Coroutine[Any, Any, None]]] = {
    "spilled": read_spilled,
    "sent": send,
    "finalizer": make_cycles,
}


async def look_amid(what: str, kind: str) -> None:
    """Run it for `SECONDS`, and print how often was looked."""
    activation.install()
    # Rust takes over soon after a read.
    vars(ownership).update(_REST_S=0.001, _REST_MAX_S=0.001)
    World.look = LOOKS[kind]
    if what == "finalizer":
        # At every turn, so that it happens in the middle of any operation
        gc.set_threshold(200, 5, 5)
    async with (
        Scheduler(host=HOST, dashboard=False, dashboard_address=":0") as scheduler,
        Worker(scheduler.address, nthreads=2, host=HOST, memory_limit="1 GiB") as worker,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        World.workers = (worker,)
        works = [chains(client, worker.address) for _ in range(2)]
        works.append(LOOKERS[what](client, worker))
        tasks = [asyncio.create_task(work) for work in works]
        done, _ = await asyncio.wait(tasks, timeout=SECONDS, return_when=asyncio.FIRST_EXCEPTION)
        # On a busy machine
        while not done and (World.looks <= LOOKS_MIN or World.chains <= CHAINS_MIN):
            done, _ = await asyncio.wait(tasks, timeout=0.1, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()
        World.workers = ()
    sys.stdout.write(f"looked {World.looks} times beside {World.chains} chains\n")


def main() -> int:
    """Run what the arguments name."""
    asyncio.run(look_amid(*sys.argv[1:]))
    return 0


if __name__ == "__main__":
    # By its name, under which results are pickled.
    from tests.dask.execution import looking

    sys.exit(looking.main())
