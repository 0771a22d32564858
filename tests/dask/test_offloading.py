"""Measurements of Dask's serializers in its offload thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from distributed.metrics import context_meter
from distributed.protocol import to_serialize

from backhaul.dask.comm.offloading import offload_measured
from backhaul.dask.serialize import codec

MESSAGE = {str(number): to_serialize(b"x" * number) for number in range(20)}


def measured(call: Callable[[], Any]) -> tuple[list[tuple[Any, str]], int, set[int]]:
    """Run a coroutine; return its measurements, the wakes of the loop, and the threads."""
    found: list[tuple[Any, str]] = []
    wakes = 0
    threads = set()

    def note(label: Any, value: float, unit: str) -> None:
        found.append((label, unit))
        threads.add(threading.get_ident())

    async def run() -> None:
        nonlocal wakes
        loop = asyncio.get_running_loop()
        original = loop.call_soon_threadsafe

        def call_soon_threadsafe(*args: Any, **options: Any) -> Any:
            nonlocal wakes
            wakes += 1
            return original(*args, **options)

        loop.call_soon_threadsafe = call_soon_threadsafe  # type: ignore[method-assign, assignment]
        with context_meter.add_callback(note, allow_offload=True):
            await call()

    asyncio.run(run())
    return found, wakes, threads


def test_measurements_of_many_objects_wake_the_loop_once() -> None:
    async def here() -> None:
        codec.encode(MESSAGE)

    async def offloaded() -> None:
        message = await offload_measured(codec.encode, MESSAGE)
        assert len(message.frames) > 2 * len(MESSAGE)

    expected, _, _ = measured(here)
    found, wakes, threads = measured(offloaded)
    # Dask measures its offload, too.
    assert [each for each in found if each[0] != "offload"] == expected
    assert len(found) > 2 * len(MESSAGE)
    assert threads == {threading.get_ident()}
    # The end of the call in the other thread
    assert wakes == 1


def test_measurements_before_an_error_are_reported() -> None:
    def fail() -> None:
        with context_meter.meter("part"):
            raise ZeroDivisionError("the program's")

    async def offloaded() -> None:
        with pytest.raises(ZeroDivisionError, match="the program's"):
            await offload_measured(fail)

    found, _, _ = measured(offloaded)
    assert ("part", "seconds") in found
