"""Ranges of NVTX around what comms do, for Nsight Systems and its like.

Off unless ``distributed.comm.backhaul.nvtx`` is true, and then in processes that have ``nvtx``.
Where it is off, ``nvtx`` is not imported; without a profiler, comms keep their class.

- ``serialize``: a message to buffers;
- ``write``: buffers until they are queued, or sent while much is queued; for the small messages of
  streams, the serialization too;
- ``read``: from asking for the next message until it is there, so waiting is in it;
- ``deserialize``: buffers to a message. Small messages that streams read along are left out.

They start and end in the order in which coroutines run, so they are no stack: each has an id. Their
domain is ``backhaul``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
from collections.abc import Iterator
from typing import Any

from backhaul.dask.comm.comm import BackhaulComm
from backhaul.dask.config.settings import Settings

__all__ = ["comm_class_for"]

logger = logging.getLogger(__name__)

_DOMAIN = "backhaul"
_COLORS = {"serialize": "yellow", "write": "blue", "read": "green", "deserialize": "orange"}


def comm_class_for(comm_class: type[BackhaulComm], settings: Settings) -> type[BackhaulComm]:
    """Choose the class of a comm: one derived from it that marks its work, if that is asked for.

    Where no tool looks, it is the same class; also where ``nvtx`` is not installed, which is
    logged.
    """
    return _with_ranges(comm_class) if settings.nvtx else comm_class


@functools.cache
def _with_ranges(comm_class: type[BackhaulComm]) -> type[BackhaulComm]:
    try:
        nvtx = importlib.import_module("nvtx")
    except ImportError as error:
        logger.warning(
            "distributed.comm.backhaul.nvtx is true, but nothing is marked: %s; pip install nvtx",
            error,
        )
        return comm_class
    domain = nvtx.get_domain(_DOMAIN)
    if not isinstance(domain, nvtx.Domain):
        # It gives another one where no tool has been loaded, which is so for good.
        return comm_class
    ranges = {name: _Range(domain, name, color) for name, color in _COLORS.items()}
    return type(comm_class.__name__, (_Marks, comm_class), {"ranges": ranges})


class _Range:
    """Marks what is done within it, of which there may be several at a time."""

    def __init__(self, domain: Any, name: str, color: str) -> None:
        self._domain = domain
        self._attributes = domain.get_event_attributes(message=name, color=color)

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        number = self._domain.start_range(self._attributes)
        try:
            yield
        finally:
            self._domain.end_range(number)


class _Marks(BackhaulComm):
    """Methods that are put before those of a class of comms."""

    ranges: dict[str, _Range]

    async def _encoded(self, *arguments: Any) -> Any:
        with self.ranges["serialize"]():
            return await super()._encoded(*arguments)

    async def _decoded(self, *arguments: Any) -> Any:
        with self.ranges["deserialize"]():
            return await super()._decoded(*arguments)

    async def _send(self, *arguments: Any) -> None:
        with self.ranges["write"]():
            await super()._send(*arguments)

    async def _next_frames(self) -> list[memoryview]:
        with self.ranges["read"]():
            return await super()._next_frames()

    def write_nowait(self, *arguments: Any, **options: Any) -> int | None:
        with self.ranges["write"]():
            return super().write_nowait(*arguments, **options)
