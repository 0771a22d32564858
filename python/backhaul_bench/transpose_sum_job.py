"""The job of ``backhaul bench transpose-sum`` and ``memory``: ``(x + x.T).sum()``."""

from __future__ import annotations

from typing import Any

import dask.array as da
from distributed import Client, Worker, wait

from backhaul_bench.jobs import Job
from backhaul_bench.transpose_sum import RELATIVE_TOLERANCE

__all__ = ["TransposeSum"]


class TransposeSum(Job):
    """Sum a persisted random array and its transpose.

    Every repetition has a new array: workers keep what they fetched, so that a second sum over the
    same one would move less.

    Parameters
    ----------
    size : int
        Rows and columns of the array of float64.
    chunks : int
        Rows and columns of a chunk.
    seed : int
        Of the array.
    """

    def __init__(self, *, size: int, chunks: int, seed: int) -> None:
        super().__init__()
        self._size = size
        self._chunks = chunks
        self._seed = seed

    @property
    def input_bytes(self) -> int:
        return self._size**2 * 8

    @property
    def timeout_s(self) -> float:
        return super().timeout_s + self.input_bytes / 10e6

    def prepare(self, client: Client) -> None:
        shape = (self._size, self._size)
        random = da.random.default_rng(self._seed).random(shape, chunks=(self._chunks,) * 2)
        self._x = client.persist(random)
        wait(self._x)
        client.run(_take_transfers)

    def run(self, client: Client) -> None:
        x = self._x
        self.result = float(client.compute((x + x.T).sum()).result())

    def facts(self, client: Client) -> dict[str, Any]:
        """Give the sum, and by name of the worker its transfers and their senders."""
        # Not `scheduler_info`: another answer, without workers, may take its place meanwhile.
        found: Any = client.sync(client.scheduler.identity, n_workers=-1)  # type: ignore[union-attr]
        names = {address: str(info["name"]) for address, info in found["workers"].items()}
        taken: dict[str, list[dict[str, Any]]] = client.run(_take_transfers)
        transfers = {
            names[worker]: [{**each, "who": names[each["who"]]} for each in log]
            for worker, log in taken.items()
        }
        return {"sum": self.result, "transfers": transfers}

    def check(self, client: Client) -> None:
        expected = 2 * float(client.compute(self._x.sum()).result())
        if not abs(self.result - expected) <= RELATIVE_TOLERANCE * expected:
            raise ValueError(f"wrong result: {self.result!r} instead of {expected!r}")


def _take_transfers(dask_worker: Worker) -> list[dict[str, Any]]:
    """Empty the log of fetched data; runs on the worker."""
    log = dask_worker.transfer_incoming_log
    taken = [{key: entry[key] for key in ("who", "total", "bandwidth")} for entry in log]
    log.clear()
    return taken
