"""Reads and writes a file without a path, through the page cache or around it (`O_DIRECT`).

Through the cache, each byte is copied by the CPU into a new page of the kernel; these pages compete
for memory with the workers. Around it, the disk reads and writes the memory of the arena, and the
thread only waits; what is read back comes from the disk, too. The cheaper way is measured, because
it depends on the disk and on the memory that the kernel has left.

Sources: open(2), section "O_DIRECT", for the rules of alignment.

Threads: any. Locks: `FileAccess._lock` guards the costs; no file is read or written under it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from itertools import islice
from typing import Final

from backhaul.dask.worker.extents import BLOCK_BYTES

__all__ = ["AccessCosts", "FileAccess", "Way"]

#: Less goes through the page cache
_DIRECT_BYTES_MIN: Final = 1 << 20
#: Most buffers in one call of the system: IOV_MAX of Linux
_BUFFERS_MAX: Final = 1024
#: Writes of each way before the costs decide
_FIRST_WRITES: Final = 2
#: One write among so many goes the way that is dearer as far as known
_RETRY_WRITES: Final = 64
#: After so many bytes, earlier ones count half
_COUNTED_BYTES_MAX: Final = 256 << 20


class Way(Enum):
    """How bytes reach the disk."""

    CACHED = auto()
    DIRECT = auto()


@dataclass(slots=True)
class _Cost:
    """Seconds that bytes took."""

    nbytes: float = 0.0
    seconds: float = 0.0

    def add(self, nbytes: int, seconds: float) -> None:
        self.nbytes += nbytes
        self.seconds += seconds
        if self.nbytes > _COUNTED_BYTES_MAX:
            self.nbytes /= 2
            self.seconds /= 2

    @property
    def rate(self) -> float:
        """Seconds a byte; 0 if nothing is known."""
        return self.seconds / self.nbytes if self.nbytes else 0.0


@dataclass(slots=True)
class AccessCosts:
    """Chooses the way of the next write by what earlier writes and reads cost. No I/O, no clock.

    A result is read about as often as it is written, so a way costs what both take.
    """

    _writes: dict[Way, _Cost] = field(default_factory=lambda: {way: _Cost() for way in Way})
    _reads: dict[Way, _Cost] = field(default_factory=lambda: {way: _Cost() for way in Way})
    _count: int = 0

    def choose(self) -> Way:
        """Choose the way of the next write."""
        count = self._count
        self._count += 1
        if count < _FIRST_WRITES * len(Way):
            return (Way.DIRECT, Way.CACHED)[count // _FIRST_WRITES]
        dearer, cheaper = sorted(Way, key=self._cost, reverse=True)
        return dearer if count % _RETRY_WRITES == 0 else cheaper

    def _cost(self, way: Way) -> float:
        """Return seconds a byte of a way, as far as both ways are known."""
        are_read = all(cost.nbytes for cost in self._reads.values())
        return self._writes[way].rate + (self._reads[way].rate if are_read else 0.0)

    def wrote(self, way: Way, nbytes: int, seconds: float) -> None:
        """Learn from a write."""
        self._writes[way].add(nbytes, seconds)

    def read(self, way: Way, nbytes: int, seconds: float) -> None:
        """Learn from a read of what was written in a way."""
        self._reads[way].add(nbytes, seconds)


class FileAccess:
    """A file without a path, open until `close` or until no reference is left.

    Parameters
    ----------
    directory : str
        Of the file system.

    Raises
    ------
    OSError
        If no file can be created there.
    """

    def __init__(self, directory: str) -> None:
        self._lock = threading.Lock()
        self._costs = AccessCosts()
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            self.descriptor = os.dup(file.fileno())
        # Not every file system has it.
        self._direct: int | None = None
        with contextlib.suppress(OSError):
            path = f"/proc/self/fd/{self.descriptor}"
            self._direct = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
        self.close = weakref.finalize(self, _close, [self.descriptor, self._direct])

    def write(self, offset: int, bodies: Sequence[memoryview], rest: Iterable[memoryview]) -> Way:
        """Write buffers one behind another, and return the way that the bodies went.

        Parameters
        ----------
        offset : int
            Of the first one, in whole blocks.
        bodies : sequence of memoryview
            Each of whole blocks.
        rest : iterable of memoryview
            Of any size, behind the bodies; through the page cache.

        Raises
        ------
        OSError
            If the disk is full, or fails.
        """
        body_bytes = sum(body.nbytes for body in bodies)
        way = Way.CACHED
        if body_bytes >= _DIRECT_BYTES_MIN and self._direct is not None and _are_aligned(bodies):
            with self._lock:
                way = self._costs.choose()
        with _Stopwatch() as watch:
            if way is Way.DIRECT and not self._try_direct(os.pwritev, offset, bodies):
                way = Way.CACHED
            if way is Way.CACHED:
                _transfer(partial(os.pwritev, self.descriptor), offset, bodies)
        if body_bytes >= _DIRECT_BYTES_MIN:
            with self._lock:
                self._costs.wrote(way, body_bytes, watch.seconds)
        _transfer(partial(os.pwritev, self.descriptor), offset + body_bytes, rest)
        return way

    def read(self, offset: int, buffers: Sequence[memoryview], way: Way = Way.CACHED) -> None:
        """Fill buffers with the bytes from an offset on, which were written in a way.

        Raises
        ------
        OSError
            If the file ends before, or the disk fails.
        """
        nbytes = sum(buffer.nbytes for buffer in buffers)
        with _Stopwatch() as watch:
            if not (
                way is Way.DIRECT
                and _are_aligned(buffers)
                and self._try_direct(_preadv, offset, buffers)
            ):
                _transfer(partial(_preadv, self.descriptor), offset, buffers)
        if nbytes >= _DIRECT_BYTES_MIN:
            with self._lock:
                self._costs.read(way, nbytes, watch.seconds)

    def cut(self, nbytes: int) -> None:
        """Cut the file to a size."""
        os.ftruncate(self.descriptor, nbytes)

    def _try_direct(
        self,
        call: Callable[[int, list[memoryview], int], int],
        offset: int,
        buffers: Iterable[memoryview],
    ) -> bool:
        """Read or write around the page cache; False if the file system refuses that."""
        direct = self._direct
        if direct is None:
            return False
        try:
            _transfer(partial(call, direct), offset, buffers)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct = None
            return False
        return True


class _Stopwatch:
    """Measures seconds of the clock and of the CPU; the latter are missing elsewhere."""

    __slots__ = ("seconds",)

    def __enter__(self) -> _Stopwatch:
        self.seconds = -time.perf_counter() - time.thread_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() + time.thread_time()


def _close(descriptors: Iterable[int | None]) -> None:
    for descriptor in descriptors:
        if descriptor is not None:
            os.close(descriptor)


def _are_aligned(buffers: Iterable[memoryview]) -> bool:
    """Tell whether buffers begin at whole blocks of memory, as the arena's do."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and all(
        not buffer.nbytes or numpy.frombuffer(buffer, numpy.uint8).ctypes.data % BLOCK_BYTES == 0
        for buffer in buffers
    )


def _preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
    count = os.preadv(descriptor, buffers, offset)
    if not count:
        raise OSError(errno.EIO, f"the file of spilled results ends at {offset}")
    return count


def _transfer(
    call: Callable[[list[memoryview], int], int], offset: int, buffers: Iterable[memoryview]
) -> None:
    """Read or write buffers one after another, as many in a call as the system takes."""
    left = deque(buffer for buffer in buffers if buffer.nbytes)
    while left:
        count = call(list(islice(left, _BUFFERS_MAX)), offset)
        offset += count
        while left and count >= left[0].nbytes:
            count -= left.popleft().nbytes
        if count:
            left[0] = left[0][count:]
