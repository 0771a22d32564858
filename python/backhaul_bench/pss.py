"""How much memory processes hold together, read from outside: PSS, and files in memory.

A page that several processes map counts for each of them by its share (proc_pid_smaps(5)), so that
the sum over processes counts it once. Pages of a memfd that no process maps, or that were never
touched through a mapping, are in no process's PSS: files in memory are counted by their descriptors
too. Linux only.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

__all__ = ["Memory", "Sample", "Sampler", "memfd_bytes", "read_all", "read_memory"]

_FIELD = re.compile(rb"^(Pss|Pss_Anon|Pss_Shmem|SwapPss):\s*(\d+) kB$", re.MULTILINE)
#: Unit of ``st_blocks``: stat(2)
_BLOCK_BYTES = 512


class Memory(NamedTuple):
    """Memory that one or several processes hold, in bytes."""

    pss: int
    #: Part of the PSS: pages of no file
    anon: int
    #: Part of the PSS: files in memory, mapped by these processes or by others too
    shmem: int
    #: Swapped out; not in the PSS
    swap: int


@dataclass(frozen=True)
class Sample:
    """Sample of one moment."""

    #: Since the sampler was started
    seconds: float
    #: Phase of the benchmark
    phase: str
    #: By role, summed over its processes
    memory: dict[str, Memory]
    #: Of all processes; 0 where they were not asked for
    memfd_bytes: int

    @property
    def total(self) -> Memory:
        """Summed over the roles."""
        return _sum(self.memory.values())


def read_memory(pid: int) -> Memory:
    """Read what a process holds.

    Parameters
    ----------
    pid : int
        The process; it must be of the same user, or the caller may trace it.

    Returns
    -------
    Memory
        Of this process.

    Raises
    ------
    ProcessLookupError
        If there is no such process.
    OSError
        If the kernel does not tell: other user, or no ``smaps_rollup``.

    Notes
    -----
    The kernel walks the page tables, which takes about 10 ms for each GiB in small pages, and less
    in huge ones. Meanwhile the process cannot change its mappings.
    """
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
    except FileNotFoundError as error:
        if Path(f"/proc/{pid}").exists():
            raise OSError("this kernel has no /proc/PID/smaps_rollup") from error
        raise ProcessLookupError(f"process {pid} ended") from error
    found = {name: int(kib) * 1024 for name, kib in _FIELD.findall(text)}
    return Memory(found[b"Pss"], found[b"Pss_Anon"], found[b"Pss_Shmem"], found[b"SwapPss"])


def read_all(processes: Mapping[str, Sequence[int]]) -> dict[str, Memory]:
    """Read what several processes hold.

    Parameters
    ----------
    processes : mapping of str to sequence of int
        By role.

    Returns
    -------
    dict of str to Memory
        By role, summed over its processes.

    Raises
    ------
    OSError
        As :func:`read_memory`.
    """
    return {role: _sum(map(read_memory, pids)) for role, pids in processes.items()}


def memfd_bytes(pids: Iterable[int]) -> int:
    """Read how many bytes of memory the memfds have that some processes hold open.

    Parameters
    ----------
    pids : iterable of int
        The processes.

    Returns
    -------
    int
        Bytes of pages that were written, each file once, mapped or not. A memfd that is mapped but
        open nowhere is left out.

    Raises
    ------
    ProcessLookupError
        If one of them ended.
    """
    files: dict[tuple[int, int], int] = {}
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            descriptors = os.listdir(folder)
        except FileNotFoundError as error:
            raise ProcessLookupError(f"process {pid} ended") from error
        for descriptor in descriptors:
            path = f"{folder}/{descriptor}"
            try:
                if not os.readlink(path).startswith("/memfd:"):
                    continue
                status = os.stat(path)
            except FileNotFoundError:
                continue  # closed meanwhile
            files[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK_BYTES
    return sum(files.values())


class Sampler:
    """Reads the memory of some processes again and again, in a thread of this process.

    Between two reads it rests at least as long as asked for, and longer where reading takes so
    long that it would take more than its share of a CPU.

    Parameters
    ----------
    processes : mapping of str to sequence of int
        By role.
    interval_s : float
        Rest after each read, in seconds.
    cpu_share_max : float
        Share of one CPU that reading may take, from 0 to 1.
    """

    def __init__(
        self,
        processes: Mapping[str, Sequence[int]],
        *,
        interval_s: float,
        cpu_share_max: float = 0.1,
    ) -> None:
        #: Phase that samples are marked with, from now on; the thread reads nothing while it is ""
        self.phase = ""
        #: In order of time
        self.samples: list[Sample] = []
        #: CPU time that reading took
        self.cpu_seconds = 0.0
        self._processes = processes
        self._interval_s = interval_s
        self._rest_factor = 1 / cpu_share_max - 1
        self._start = time.monotonic()
        self._error: OSError | None = None
        self._stop = threading.Event()
        # With the thread another one may read: the thread that asks for a sample of its own.
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    @property
    def seconds(self) -> float:
        """Time since the start, in seconds."""
        return time.monotonic() - self._start

    def sample(self) -> Sample:
        """Read once, now.

        Returns
        -------
        Sample
            Also the last one of the samples.

        Raises
        ------
        OSError
            If a process ended, or the kernel does not tell.
        """
        with self._lock:
            before = time.thread_time()
            everyone = [pid for pids in self._processes.values() for pid in pids]
            memory = read_all(self._processes)
            sample = Sample(self.seconds, self.phase, memory, memfd_bytes(everyone))
            self.cpu_seconds += time.thread_time() - before
            self.samples.append(sample)
        return sample

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        # If what was watched failed, that is the reason; it may have ended the processes too.
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        took_s = 0.0
        while not self._stop.wait(max(self._interval_s, took_s * self._rest_factor)):
            if not self.phase:
                continue
            before = self.cpu_seconds
            try:
                self.sample()
            except OSError as error:
                self._error = error
                return
            took_s = self.cpu_seconds - before


def _sum(several: Iterable[Memory]) -> Memory:
    return Memory(*(sum(each) for each in zip(Memory(0, 0, 0, 0), *several, strict=True)))
