"""From which worker a worker fetches first: the nearest one of those that have a result.

Dask prefers workers of the same host, and among them any. Where links differ within a host, as
those between GPUs do, it matters which one. A worker that nobody has told of its links does as Dask
does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from backhaul.dask.private import HeapSet, WorkerStateMachine

__all__ = ["forget_links", "nearest_first", "set_links"]

#: Says of the address of a peer how long a byte takes from there, in seconds
SecondsPerByte: TypeAlias = Callable[[str], float]

_Peers: TypeAlias = Iterator[tuple[str, HeapSet[Any]]]

#: What is known of the links of each worker of this process, by its address
_links: dict[str, SecondsPerByte] = {}


def set_links(address: str, seconds_per_byte: SecondsPerByte) -> None:
    """Have a worker of this process fetch from where data comes fastest.

    Parameters
    ----------
    address : str
        Of the worker.
    seconds_per_byte : callable
        Says of the address of a peer how long a byte takes from there.
    """
    _links[address] = seconds_per_byte


def forget_links(address: str) -> None:
    """Have a worker fetch as Dask does again."""
    _links.pop(address, None)


def nearest_first(original: Callable[[WorkerStateMachine], _Peers]) -> Callable[..., _Peers]:
    """Make a `_select_workers_for_gather` that knows how fast links are."""

    def _select_workers_for_gather(self: WorkerStateMachine) -> _Peers:
        seconds_per_byte = _links.get(self.address)
        return original(self) if seconds_per_byte is None else _select(self, seconds_per_byte)

    return _select_workers_for_gather


def _select(state: WorkerStateMachine, seconds_per_byte: SecondsPerByte) -> _Peers:
    """Yield peers, best first, and what can be fetched from each."""
    needed = state.data_needed
    taken = state.in_flight_workers.keys() | state.busy_workers
    for address in [address for address, tasks in needed.items() if not tasks]:
        del needed[address]
    heap = [
        _entry(state, address, tasks, seconds_per_byte(address))
        for address, tasks in needed.items()
        if address not in taken
    ]
    heapq.heapify(heap)
    while heap:
        _, per_byte, count, _, address = heapq.heappop(heap)
        tasks = needed[address]
        if tasks and -count != len(tasks):
            # Some were taken from another peer meanwhile, perhaps the most urgent one.
            heapq.heappush(heap, _entry(state, address, tasks, per_byte))
            continue
        if tasks:
            yield address, tasks
        if not tasks:
            del needed[address]


def _entry(
    state: WorkerStateMachine, address: str, tasks: HeapSet[Any], per_byte: float
) -> tuple[Any, float, int, float, str]:
    """Order by priority, then by link, then by how much is to be had there, then at random."""
    return tasks.peek().priority, per_byte, -len(tasks), state.rng.random(), address
