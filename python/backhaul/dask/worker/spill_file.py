"""One file without a path for all results that a worker spills, in the place of a file for each.

Dask writes a result to a new file, and deletes the file when the result is read back. Here results
lie in extents of one unlinked file. An extent is used again: the kernel has its pages already, and
they are in the cache of the CPU. Buffers of a result are read into the arena, so that they take no
new pages, and are lent to other workers without another copy. Nothing remains if the process is
killed.

Dask's classes around it choose what to spill, serialize, compress and count as before.

Threads: any. Locks: `SpillFile._lock` guards the tables; no other lock is taken, and no file is
read or written under it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice, pairwise
from typing import Any, Final, cast

import msgpack

from backhaul.dask.compat.instance_patches import STORE_FILE
from backhaul.dask.compat.names import (
    SpillBuffer,
    SpillSlow,
    Worker,
    context_meter,
    decompress,
    ensure_memoryview,
    merge_and_deserialize,
)
from backhaul.dask.worker.extents import Extents
from backhaul.dask.worker.lazy_collections import data_of
from backhaul.dask.worker.memory import allocate_in_arena
from backhaul.dask.worker.prefetch import Prefetch

__all__ = [
    "FileSlow",
    "SpillFile",
    "ahead_bytes",
    "install_for_worker",
    "read_ahead",
    "spill_file_of",
]

#: Smaller buffers are read into private memory
_ARENA_BYTES_MIN: Final = 64 << 10
#: Most buffers in one call of the system: IOV_MAX of Linux
_BUFFERS_MAX: Final = 1024
#: Share of the memory for results that results take which are read ahead
_AHEAD_SHARE: Final = 1 / 8


@dataclass(slots=True, eq=False)
class _Spilled:
    """A result in the file."""

    offset: int
    #: Bytes of its frames
    sizes: tuple[int, ...]
    readers: int = 0
    is_dropped: bool = False


class SpillFile(MutableMapping[Any, list[memoryview]]):
    """Results in one file without a path, by their keys: each a sequence of frames.

    Parameters
    ----------
    directory : str
        The file is created there with the first result.
    grouped : callable
        Takes the second frame of a result, and returns how many of the frames after it are to lie
        behind each other in memory: a number for each group.
    ahead_bytes_max : int
        Most bytes that `read_ahead` reads.
    """

    def __init__(
        self,
        directory: str,
        grouped: Callable[[memoryview], Sequence[int]],
        ahead_bytes_max: int = 0,
    ) -> None:
        self._directory = directory
        self._grouped = grouped
        self._prefetch = Prefetch(self._read_by_key, ahead_bytes_max)
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._close: Callable[[], object] | None = None
        self._extents = Extents()
        self._spilled: dict[Any, _Spilled] = {}

    def __getitem__(self, key: Any) -> list[memoryview]:
        """Read the frames of a result into new memory, which is writable.

        Raises
        ------
        KeyError
            If the result is not in the file.
        OSError
            If the file cannot be read.
        """
        ahead = self._prefetch.take(key)
        return self._read_by_key(key) if ahead is None else ahead.result()

    def read_ahead(self, keys: Iterable[Any], free_bytes: Callable[[], float]) -> None:
        """Begin to read results that are needed soon, the most urgent one first.

        Parameters
        ----------
        keys : iterable
            Keys that are not in the file have no effect. Earlier ones that are not in it are given
            up.
        free_bytes : callable
            Returns the memory that these results may take.
        """
        with self._lock:
            found = ((key, self._spilled.get(key)) for key in keys)
            sizes = {key: sum(known.sizes) for key, known in found if known is not None}
        self._prefetch.want(sizes, free_bytes)

    def read_for_peer(self, keys: Iterable[Any]) -> list[Future[list[memoryview]]]:
        """Begin to read results, whatever is read ahead; `release` ends that.

        Returns
        -------
        list of concurrent.futures.Future
            For the keys that are in the file.
        """
        begun = (self._prefetch.keep(key) for key in keys if key in self._spilled)
        return [read for read in begun if read is not None]

    def keys_ahead(self) -> list[Any]:
        """List the keys of results that were read for a peer or ahead, and not taken."""
        return self._prefetch.keys()

    def release(self, keys: Iterable[Any]) -> None:
        """Drop what was read for a peer and not taken."""
        for key in keys:
            self._prefetch.discard(key)

    def _read_by_key(self, key: Any) -> list[memoryview]:
        with self._lock:
            found = self._spilled[key]
            found.readers += 1
        try:
            lead_bytes = sum(found.sizes[:2])
            lead = memoryview(bytearray(lead_bytes))
            self._read(found.offset, [lead])
            frames = [lead[: found.sizes[0]], lead[found.sizes[0] :]]
            for count in self._grouped(frames[1]):
                sizes = found.sizes[len(frames) : len(frames) + count]
                memory = _allocated(sum(sizes))
                ends = accumulate(sizes, initial=0)
                frames += [memory[start:end] for start, end in pairwise(ends)]
            self._read(found.offset + lead_bytes, frames[2:])
        finally:
            with self._lock:
                found.readers -= 1
                self._free_dropped(found)
        return frames

    def __setitem__(self, key: Any, frames: Sequence[Any]) -> None:
        """Write a result.

        Raises
        ------
        OSError
            If the disk is full, or the file cannot be created.
        """
        self._prefetch.discard(key)
        views = [ensure_memoryview(frame) for frame in frames]
        sizes = tuple(view.nbytes for view in views)
        descriptor = self._open()
        with self._lock:
            spilled = _Spilled(self._extents.take(sum(sizes)), sizes)
        try:
            _transfer(partial(os.pwritev, descriptor), spilled.offset, views)
        except BaseException:
            self._drop(spilled)
            raise
        with self._lock:
            before = self._spilled.get(key)
            self._spilled[key] = spilled
        if before is not None:
            self._drop(before)

    def __delitem__(self, key: Any) -> None:
        with self._lock:
            found = self._spilled.pop(key)
        self._prefetch.discard(key)
        self._drop(found)

    def __contains__(self, key: object) -> bool:
        return key in self._spilled

    def __iter__(self) -> Iterator[Any]:
        with self._lock:
            return iter(list(self._spilled))

    def __len__(self) -> int:
        return len(self._spilled)

    def close(self) -> None:
        """Close the file, which frees its space; results in it are lost."""
        self._prefetch.close()
        with self._lock:
            self._spilled.clear()
            self._extents = Extents()
            close, self._close, self._descriptor = self._close, None, None
        if close is not None:
            close()

    def _drop(self, spilled: _Spilled) -> None:
        with self._lock:
            spilled.is_dropped = True
            self._free_dropped(spilled)

    def _free_dropped(self, spilled: _Spilled) -> None:
        """Give an extent back that no thread reads any more; the lock is held."""
        if spilled.is_dropped and not spilled.readers and self._descriptor is not None:
            file_bytes = self._extents.give(spilled.offset, sum(spilled.sizes))
            if file_bytes is not None:
                # Before another thread takes the space
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, file_bytes)

    def _open(self) -> int:
        with self._lock:
            if self._descriptor is None:
                with tempfile.TemporaryFile(dir=self._directory, buffering=0) as file:
                    self._descriptor = os.dup(file.fileno())
                self._close = weakref.finalize(self, os.close, self._descriptor)
            return self._descriptor

    def _read(self, offset: int, views: Sequence[memoryview]) -> None:
        """Fill buffers with the bytes from an offset on."""
        descriptor = self._descriptor
        if descriptor is None:
            raise OSError(errno.EBADF, "the file of spilled results is closed")

        def read(buffers: list[memoryview], offset: int) -> int:
            count = os.preadv(descriptor, buffers, offset)
            if not count:
                raise OSError(errno.EIO, f"the file of spilled results ends at {offset}")
            return count

        _transfer(read, offset, views)


class FileSlow(SpillSlow):
    """Dask's mapping of spilled results, which are in a `SpillFile`.

    Parameters
    ----------
    slow : distributed.spill.Slow
        The one whose place it takes.
    ahead_bytes_max : int
        Most bytes that `read_ahead` reads.
    """

    def __init__(self, slow: SpillSlow, ahead_bytes_max: int = 0) -> None:
        files: Any = slow.d
        super().__init__(files.directory, slow.max_weight)
        self._file = SpillFile(files.directory, _grouped, ahead_bytes_max)
        self.d = cast("Any", self._file)

    def __getitem__(self, key: Any) -> object:
        with context_meter.meter("disk-read", "seconds"):
            frames = self._file[key]
        context_meter.digest_metric("disk-read", 1, "count")
        context_meter.digest_metric("disk-read", sum(map(len, frames)), "bytes")
        header = _header(frames[1])
        return merge_and_deserialize(header, decompress(header, frames[2:]))

    @property
    def file(self) -> SpillFile:
        """The file of the results."""
        return self._file


def install_for_worker(worker: Worker) -> None:
    """Let a worker spill to one file, if its store is Dask's and has spilled nothing."""
    data = data_of(worker)
    if type(data) is not SpillBuffer:
        return
    slow = data._slow_uncached
    if type(slow) is SpillSlow and not slow.d and STORE_FILE.fits_on(data.slow, "data"):
        slow = FileSlow(slow, int(data.n * _AHEAD_SHARE))
        STORE_FILE.install(data.slow, {"data": slow})


def spill_file_of(data: Any) -> SpillFile | None:
    """Return the file of a worker's spilled results; None if its store has another place."""
    if type(data) is SpillBuffer and type(slow := data._slow_uncached) is FileSlow:
        return slow.file
    return None


def read_ahead(data: Any, keys: Iterable[Any], free_bytes: Callable[[], float]) -> None:
    """Begin to read spilled results of a worker that its next tasks need.

    Parameters
    ----------
    data : mapping
        The store of a worker's results; has no effect unless its results are in a `SpillFile`.
    keys, free_bytes
        As for `SpillFile.read_ahead`.
    """
    file = spill_file_of(data)
    if file is not None:
        file.read_ahead(keys, free_bytes)


def ahead_bytes(data: Any) -> int:
    """Return the memory of results that are read ahead of a worker's tasks, in bytes.

    Parameters
    ----------
    data : mapping
        The store of a worker's results.
    """
    file = spill_file_of(data)
    if file is None:
        return 0
    weights = data._slow_uncached.weight_by_key
    found = (weights.get(key) for key in file.keys_ahead())
    return sum(weight.memory for weight in found if weight is not None)


def _header(frame: memoryview) -> dict[str, Any]:
    header: dict[str, Any] = msgpack.loads(frame, raw=False, use_list=False)
    return header


def _grouped(frame: memoryview) -> Sequence[int]:
    """Return how many frames there are for each buffer of a result, from Dask's header."""
    header = _header(frame)
    if any(header["compression"]):
        return [1] * header["count"]
    groups: Sequence[int] = header["split-num-sub-frames"]
    return groups


def _allocated(nbytes: int) -> memoryview:
    """Allocate memory, in the arena if the workers of this process have one."""
    numpy = sys.modules.get("numpy")
    if numpy is None or nbytes < _ARENA_BYTES_MIN:
        return memoryview(bytearray(nbytes))

    def allocated() -> Any:
        allocate_in_arena()
        return numpy.empty(nbytes, numpy.uint8)

    return memoryview(copy_context().run(allocated))


def _transfer(
    call: Callable[[list[memoryview], int], int], offset: int, views: Iterable[memoryview]
) -> None:
    """Read or write buffers one after another, as many in a call as the system takes."""
    left = deque(view for view in views if view.nbytes)
    while left:
        count = call(list(islice(left, _BUFFERS_MAX)), offset)
        offset += count
        while left and count >= left[0].nbytes:
            count -= left.popleft().nbytes
        if count:
            left[0] = left[0][count:]
