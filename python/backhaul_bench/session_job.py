"""Jobs of ``backhaul bench session``: the cases of ``bench tasks`` within a session of a user.

A session holds a persisted array and a dataframe, has looked at the scheduler, added plugins,
shuffled and rechunked. It is opened once in a client's process, by the first job that asks for it,
and stays open for the jobs that follow.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, SchedulerPlugin, WorkerPlugin, performance_report, wait

from backhaul_bench.jobs import Job, make_job

__all__ = ["InSession", "TransposeMean"]


class TransposeMean(Job):
    """``(x + x.T).mean()`` of an array of many small chunks: its graph is built and computed.

    Parameters
    ----------
    tasks : int
        Chunks of the array, a square number.
    function : str
        Not used; every case of small tasks takes one.
    seed : int
        Differs between repetitions: the value of each element.
    """

    def __init__(self, *, tasks: int, function: str, seed: int) -> None:
        super().__init__()
        self.chunks_by_side = int(tasks**0.5)
        self.value = float(seed + 1)

    @property
    def tasks(self) -> int:
        return self.chunks_by_side**2

    @property
    def timeout_s(self) -> float:
        return 300.0

    def prepare(self, client: Client) -> None:
        """Nothing is made ahead: building the graph is measured."""

    def run(self, client: Client) -> None:
        side = 20 * self.chunks_by_side
        x = da.full((side, side), self.value, chunks=(20, 20))
        self.result = float((x + x.T).mean().compute())

    def check(self, client: Client) -> None:
        if self.result != 2 * self.value:
            raise ValueError(f"wrong result: {self.result} instead of {2 * self.value}")


class InSession(Job):
    """One case, in an idle session or in one that holds data and was looked at.

    Parameters
    ----------
    case : str
        A case of ``backhaul bench tasks``, or ``mean``.
    held : bool
        Opens the session first, unless it is open.
    **parameters : Any
        Parameters of the case.
    """

    def __init__(self, *, case: str, held: bool, **parameters: Any) -> None:
        super().__init__()
        self._held = held
        self._inner = (
            TransposeMean(**parameters) if case == "mean" else make_job(case, **parameters)
        )
        self._before: dict[str, Any] = {}

    @property
    def tasks(self) -> int:
        return self._inner.tasks

    @property
    def timeout_s(self) -> float:
        return self._inner.timeout_s

    @property
    def kept_tasks(self) -> int:
        return _Session.tasks if self._held else 0

    @property
    def kept_results(self) -> int:
        return _Session.results if self._held else 0

    def prepare(self, client: Client) -> None:
        if self._held:
            _Session.open(client)
        self._inner.prepare(client)
        self._before = client.run_on_scheduler(_core_counts)

    def run(self, client: Client) -> None:
        self._inner.run(client)

    def facts(self, client: Client) -> dict[str, Any]:
        """Count the finished tasks that the scheduler's core handled, and escapes from the core."""
        after = client.run_on_scheduler(_core_counts)
        return {name: after[name] - self._before[name] for name in after}

    def check(self, client: Client) -> None:
        self._inner.check(client)


class _Session:
    """The session of this process, once it is open."""

    held: tuple[Any, ...] = ()
    #: On the scheduler, and results on all workers
    tasks = 0
    results = 0

    @classmethod
    def open(cls, client: Client) -> None:
        """Persist an array of 256 chunks and a dataframe, look, add plugins, shuffle, rechunk."""
        if cls.held:
            return
        array = da.random.default_rng(0).random((2048, 2048), chunks=(128, 128)).persist()
        rows = pd.DataFrame({"key": np.arange(100_000) % 977, "value": np.arange(100_000.0)})
        frame = dd.from_pandas(rows, npartitions=16).persist()
        wait([array, frame])
        cls.held = (array, frame)
        client.get_task_stream()
        client.register_plugin(_QuietWorkerPlugin(), name="bench-session-worker")
        client.register_plugin(_QuietSchedulerPlugin(), name="bench-session-scheduler")
        client.story(next(iter(array.__dask_keys__()[0])))
        client.who_has(array)
        if importlib.util.find_spec("bokeh") is not None:
            with (
                tempfile.TemporaryDirectory() as folder,
                performance_report(filename=str(Path(folder) / "report.html")),
            ):
                array.sum().compute()
        frame.shuffle("key")["value"].sum().compute()
        array.rechunk((2048, 64)).sum().compute()
        cls.tasks = client.run_on_scheduler(_count_tasks)
        cls.results = sum(client.run(_count_results).values())


class _QuietWorkerPlugin(WorkerPlugin):
    """A plugin of a user that does nothing."""


class _QuietSchedulerPlugin(SchedulerPlugin):
    """A plugin of a user that does nothing."""


def _count_tasks(dask_scheduler: Any) -> int:
    return len(dask_scheduler.tasks)


def _count_results(dask_worker: Any) -> int:
    return len(dask_worker.data)


def _core_counts(dask_scheduler: Any) -> dict[str, int]:
    """Count, on the scheduler, finished tasks that the core handled, and escapes; 0 without one."""
    if importlib.util.find_spec("backhaul") is None:
        return {"handled": 0, "escapes": 0}
    from backhaul.dask.scheduler.core import live_core

    core = live_core.installed(dask_scheduler)
    if core is None:
        return {"handled": 0, "escapes": 0}
    handled = core.engine_counts().get("task-finished", 0)
    return {"handled": handled, "escapes": sum(core.escapes.values())}
