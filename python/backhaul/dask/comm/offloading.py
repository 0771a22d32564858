"""Serialization in Dask's offload thread, whose measurements reach the event loop in one step.

Dask's serializers measure each object and each frame. Callbacks of a measurement run on the event
loop, so that in another thread each measurement wakes the loop, which takes the GIL from that
thread. Of many small objects, that takes longer than their serialization.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from backhaul.dask.compat.names import context_meter, offload

__all__ = ["offload_measured"]


async def offload_measured(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in Dask's offload thread, and report its measurements afterwards."""
    measured: list[tuple[Hashable, float, str]] = []

    def note(label: Hashable, value: float, unit: str) -> None:
        measured.append((label, value, unit))

    def call() -> Any:
        with context_meter.clear_callbacks(), context_meter.add_callback(note):
            return function(*args)

    try:
        return await offload(call)
    finally:
        for each in measured:
            context_meter.digest_metric(*each)
