"""Append-only files of blocks, for the blocks that a worker has no memory for.

A block in memory is lent to the other workers, and counts in each of them until the exchange ends.
A worker that has no memory for a block appends the block to an unlinked file in its local
directory. The other workers open the file by ``/proc/PID/fd`` and read the pieces that a task
needs. The kernel removes the file when the last process has dropped its last block.

A result in a file is a reference, so that Dask must not spill it to disk: the descriptor would be
closed. The attribute ``stays_in_memory`` tells the store of a worker's results.

Threads: any. Locks: `BlockStore._lock` guards the counters; `BlockFile._lock` guards the end of the
file; `_files_lock` guards the table of open files. No lock is held while another one is taken.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import weakref
from collections import OrderedDict
from typing import Any, Final

from distributed import Status, Worker

from backhaul._native import read_piece

__all__ = ["BlockFile", "BlockStore", "block_store", "keeps_references", "open_file"]

logger = logging.getLogger(__name__)

#: Share of a worker's memory limit above which new blocks go to a file
MEMORY_SHARE: Final = 0.6
#: Bytes of the random name at the start of a file: a new file may have the inode of an old one
_NAME_BYTES: Final = 16
#: Exchanges whose blocks a process counts
_COUNTED_MAX: Final = 64

#: Open files by their names
_files: Final[weakref.WeakValueDictionary[bytes, BlockFile]] = weakref.WeakValueDictionary()
_files_lock = threading.Lock()


class BlockFile:
    """A file of blocks, which is closed when the last block is dropped.

    Parameters
    ----------
    descriptor : int
        The open file, which the new object owns.
    name : bytes
        The first bytes of the file, which no other file has.
    """

    def __init__(self, descriptor: int, name: bytes) -> None:
        self.descriptor = descriptor
        self.name = name
        self._lock = threading.Lock()
        self._end = len(name)
        weakref.finalize(self, os.close, descriptor)

    @classmethod
    def create(cls, directory: str) -> BlockFile:
        """Create a file without a path.

        Raises
        ------
        OSError
            If the directory or the process has no room for a file.
        """
        name = os.urandom(_NAME_BYTES)
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            file.write(name)
            made = cls(os.dup(file.fileno()), name)
        with _files_lock:
            _files[name] = made
        return made

    def append(self, block: memoryview) -> int:
        """Write a block at the end, and return its offset.

        Raises
        ------
        OSError
            If the disk is full.
        """
        with self._lock:
            offset = self._end
            self._end += len(block)
        done = 0
        while done < len(block):
            done += os.pwrite(self.descriptor, block[done:], offset + done)
        return offset

    def piece(self, offset: int, nbytes: int, slot: int) -> bytes:
        """Read one slot of a block, as `backhaul._native.read_piece` does.

        A mapping of the block would count the pages around the piece as memory of the process.
        """
        return read_piece(self.descriptor, offset, nbytes, slot)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read bytes of a block.

        Raises
        ------
        OSError
            If the file is shorter.
        """
        parts = []
        while nbytes:
            part = os.pread(self.descriptor, nbytes, offset)
            if not part:
                raise OSError("a file of blocks is truncated")
            parts.append(part)
            offset += len(part)
            nbytes -= len(part)
        return b"".join(parts)


def open_file(pid: int, descriptor: int, name: bytes) -> BlockFile:
    """Open a file of another process, unless this process has it already.

    Parameters
    ----------
    pid, descriptor : int
        The process, and its descriptor of the file.
    name : bytes
        As for `BlockFile`.

    Raises
    ------
    OSError
        If the process has ended, or has closed the file.
    """
    with _files_lock:
        found = _files.get(name)
        if found is None:
            path = f"/proc/{pid}/fd/{descriptor}"
            found = BlockFile(os.open(path, os.O_RDONLY | os.O_NONBLOCK), name)
            if os.pread(found.descriptor, len(name), 0) != name:
                raise FileNotFoundError(f"process {pid} has closed a file of blocks")
            _files[name] = found
        return found


class BlockStore:
    """Decides which blocks of a process stay in memory, and has the files for the others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: tuple[weakref.ref[Worker], ...] = ()
        self._made: OrderedDict[str, int] = OrderedDict()
        self._writing: weakref.WeakValueDictionary[str, BlockFile] = weakref.WeakValueDictionary()

    def install(self, worker: Worker) -> None:
        """Let a worker write blocks to files; again costs nothing.

        Nothing changes if the worker keeps its results in a store that is not Dask's, which may
        write any result to disk.
        """
        if self.writes_for(worker):
            return
        if not keeps_references(worker.memory_manager.data):
            return
        known = (each for each in self._workers if each() is not None)
        self._workers = (*known, weakref.ref(worker))

    def writes_for(self, worker: Worker) -> bool:
        """Tell whether blocks of a worker may go to files."""
        return any(known() is worker for known in self._workers)

    def file_for(self, token: str, nbytes: int, memory_bytes: float) -> BlockFile | None:
        """Choose the file that a new block goes to; None if the block stays in memory.

        Parameters
        ----------
        token : str
            Names the exchange.
        nbytes : int
            Size of the block, which is in memory.
        memory_bytes : float
            Memory that the blocks of the exchange may take in this process.

        Raises
        ------
        OSError
            If no file can be created.
        """
        worker = self._live_worker()
        if worker is None:
            return None
        is_tight = _is_tight(worker)
        with self._lock:
            made = self._made.pop(token, 0)
            stays = not is_tight and made + nbytes <= memory_bytes
            self._made[token] = made + nbytes * stays
            while len(self._made) > _COUNTED_MAX:
                self._made.popitem(last=False)
            if stays:
                return None
            file = self._writing.get(token)
        if file is None:
            file = BlockFile.create(worker.local_directory)
            with self._lock:
                file = self._writing.setdefault(token, file)
        return file

    def _live_worker(self) -> Worker | None:
        for known in self._workers:
            worker = known()
            if worker is not None and worker.status not in (Status.closed, Status.failed):
                return worker
        return None


def keeps_references(data: Any) -> bool:
    """Tell whether the store of a worker's results never writes references to disk."""
    if type(data) is dict:
        return True
    evict = getattr(getattr(data, "fast", None), "evict", None)
    return getattr(evict, "spares_references", False)


#: The store of this process
block_store: Final = BlockStore()


def _is_tight(worker: Worker) -> bool:
    limit = worker.memory_manager.memory_limit
    return limit is not None and worker.monitor.get_process_memory() > MEMORY_SHARE * limit
