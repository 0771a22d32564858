"""A chain that is submitted step by step: what `benches.python.shortcuts` adds to the jobs."""

from __future__ import annotations

import operator

from distributed import Client

from backhaul_bench.jobs import Job

__all__ = ["SubmitChain"]


class SubmitChain(Job):
    """Tasks that each need the one before, submitted one by one; one result in the end.

    Parameters
    ----------
    tasks : int
        Steps.
    seed : int
        Other inputs for each repetition.
    function : str
        Not used: the function is one of Python's own.
    """

    def __init__(self, *, tasks: int, seed: int, function: str = "module") -> None:
        super().__init__()
        self._steps = tasks
        self._first = 1_000_000 * (seed + 1)

    @property
    def tasks(self) -> int:
        return self._steps

    @property
    def timeout_s(self) -> float:
        return super().timeout_s + 0.05 * self.tasks

    def prepare(self, client: Client) -> None:
        pass

    def run(self, client: Client) -> None:
        future = client.submit(abs, self._first)
        for _ in range(self._steps - 1):
            future = client.submit(operator.neg, future)
        self.result = future.result()

    def check(self, client: Client) -> None:
        expected = self._first * (-1) ** (self._steps - 1)
        if self.result != expected:
            raise ValueError(f"wrong result: {self.result} instead of {expected}")
