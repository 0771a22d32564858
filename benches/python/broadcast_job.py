"""The job of ``broadcast``: one array, on every worker."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt
from distributed import Client, wait

from backhaul_bench.jobs import Job

__all__ = ["Broadcast"]

_PIECE = 2**16


class Broadcast(Job):
    """Bring an array to every worker of a cluster.

    Parameters
    ----------
    way : str
        ``scatter``: from the client, to all. ``replicate``: the result of a task, copied to the
        other workers. ``fetch``: the same, but by tasks on every worker that need it.
    nbytes : int
        Size of the array, a multiple of 8.
    seed : int
        Differs between repetitions.
    """

    def __init__(self, *, way: str, nbytes: int, seed: int) -> None:
        super().__init__()
        self._way = way
        self._nbytes = nbytes
        self._seed = seed

    @property
    def input_bytes(self) -> int:
        return self._nbytes

    @property
    def timeout_s(self) -> float:
        return super().timeout_s + self._nbytes / 5e6

    def prepare(self, client: Client) -> None:
        self._workers = sorted(client.nthreads())
        # It drops copies that it finds too many, every two seconds.
        client.amm.stop()
        if self._way == "scatter":
            self._array = make_array(self._nbytes, self._seed)
        else:
            self.result = client.submit(
                make_array, self._nbytes, self._seed, workers=self._workers[:1], pure=False
            )
            wait(self.result)

    def run(self, client: Client) -> None:
        if self._way == "scatter":
            # Hashing the array for a key would take longer than moving it.
            self.result = client.scatter(self._array, broadcast=True, hash=False)
        elif self._way == "replicate":
            client.replicate([self.result])
        else:
            wait([client.submit(_length, self.result, **on) for on in self._on_each()])

    def check(self, client: Client) -> None:
        holders = next(iter(client.who_has([self.result]).values()))
        if sorted(holders) != self._workers:
            raise ValueError(f"wrong result: {len(holders)} of {len(self._workers)} have it")
        read = [client.submit(checksum, self.result, **on) for on in self._on_each()]
        expected = _expected_checksum(self._nbytes, self._seed)
        found = client.gather(read)
        if found != [expected] * len(self._workers):
            raise ValueError(f"wrong result: checksums {found} instead of {expected}")

    def _on_each(self) -> list[dict[str, object]]:
        return [{"workers": [each], "pure": False} for each in self._workers]


def make_array(nbytes: int, seed: int) -> npt.NDArray[np.int64]:
    """Make an array no page of which is like another."""
    return np.arange(seed, seed + nbytes // 8)


def checksum(array: npt.NDArray[np.int64]) -> int:
    """Read every byte of an array."""
    return zlib.crc32(array.data)


def _expected_checksum(nbytes: int, seed: int) -> int:
    """Do without a second array: the memory of this process is measured too."""
    found = 0
    for start in range(0, nbytes // 8, _PIECE):
        stop = min(start + _PIECE, nbytes // 8)
        found = zlib.crc32(np.arange(seed + start, seed + stop).data, found)
    return found


def _length(array: npt.NDArray[np.int64]) -> int:
    return len(array)
