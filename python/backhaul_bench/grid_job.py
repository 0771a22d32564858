"""Jobs on grids over time, as of weather and climate: ``memory`` and ``out-of-core``.

The fields are uniform random numbers, so that each result is known but for its statistical error.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any, Final

import dask.array as da
from distributed import Client

from backhaul_bench.jobs import Job

__all__ = ["Anomaly", "QuadraticMeans", "Vorticity"]

#: Latitudes and longitudes
_GRID: Final = (240, 480)
#: Time steps of a chunk, of 18 MB
_STEPS: Final = 20
_STEP_BYTES: Final = 8 * _GRID[0] * _GRID[1]
#: Variance of the numbers
_VARIANCE: Final = 1 / 12
#: Far above the statistical error of the means of 10⁸ numbers
_TOLERANCE: Final = 1e-3


class _Grids(Job):
    """A job on fields over time, which reports how many workers were restarted.

    Parameters
    ----------
    nbytes : int
        Input in bytes, rounded up to whole chunks.
    seed : int
        Differs between repetitions.
    scale : float
        Factor of the input.
    """

    #: Fields that the job reads
    fields: int = 1

    def __init__(self, *, nbytes: int, seed: int, scale: float = 1.0) -> None:
        super().__init__()
        self._chunks = max(2, -(-int(nbytes * scale) // (self.fields * _STEPS * _STEP_BYTES)))
        self._seed = seed
        self._pids: set[int] = set()

    @property
    def steps(self) -> int:
        """Steps of time."""
        return self._chunks * _STEPS

    @property
    def input_bytes(self) -> int:
        return self.fields * self.steps * _STEP_BYTES

    @property
    def timeout_s(self) -> float:
        return 600.0

    def prepare(self, client: Client) -> None:
        self._pids = set(client.run(os.getpid).values())

    def field(self, number: int) -> Any:
        """Return one of the fields, of shape ``(steps, latitudes, longitudes)``."""
        rng = da.random.default_rng([self._seed, number])
        return rng.random((self.steps, *_GRID), chunks=(_STEPS, *_GRID))

    @abstractmethod
    def expected(self) -> list[float]:
        """Return the results to be found."""

    def facts(self, client: Client) -> dict[str, Any]:
        return {"restarted": len(self._pids - set(client.run(os.getpid).values()))}

    def check(self, client: Client) -> None:
        for found, expected in zip(self.result, self.expected(), strict=True):
            if not abs(found - expected) <= _TOLERANCE:
                raise ValueError(f"wrong result: {self.result} instead of {self.expected()}")


class Anomaly(_Grids):
    """Mean square of what the steps of each year differ from the mean of all years."""

    def run(self, client: Client) -> None:
        shape = (self._chunks, _STEPS, *_GRID)
        years = self.field(0).reshape(shape, merge_chunks=False)
        anomalies = years - years.mean(axis=0)
        self.result = [float(client.compute((anomalies**2).mean()).result())]

    def expected(self) -> list[float]:
        return [_VARIANCE * (1 - 1 / self._chunks)]


class Vorticity(_Grids):
    """Mean square of the vorticity of a wind."""

    fields = 2

    def run(self, client: Client) -> None:
        east, north = self.field(0), self.field(1)
        vorticity = da.gradient(north, axis=2) - da.gradient(east, axis=1)
        self.result = [float(client.compute((vorticity**2).mean()).result())]

    def expected(self) -> list[float]:
        # Half of the difference of two neighbours; at both ends the difference of two numbers
        return [
            sum((2 * _VARIANCE / 4 * (size - 2) + 2 * 2 * _VARIANCE) / size for size in _GRID),
        ]


class QuadraticMeans(_Grids):
    """Variances and covariance of two fields over time, at each point."""

    fields = 2

    def run(self, client: Client) -> None:
        u, v = (each - each.mean(axis=0) for each in (self.field(0), self.field(1)))
        means = [(a * b).mean(axis=0).mean() for a, b in ((u, u), (v, v), (u, v))]
        self.result = [float(each) for each in client.gather(client.compute(means))]

    def expected(self) -> list[float]:
        variance = _VARIANCE * (1 - 1 / self.steps)
        return [variance, variance, 0.0]
