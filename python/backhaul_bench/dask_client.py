"""The client of a measured cluster: ``python -m backhaul_bench.dask_client CONTROL ADDRESS``.

With the address ``inproc://THREADS`` the cluster is in this process, with that many threads. Does
what the control connection says with one ``distributed.Client``, one answer for each command, until
the connection ends.
"""

from __future__ import annotations

import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from distributed import Client

from backhaul_bench.control import Control, ControlClosed
from backhaul_bench.jobs import Job, make_job

__all__ = ["main"]

# Less than the benchmark waits for an answer
_WORKERS_TIMEOUT_S = 50.0
_RELEASE_TIMEOUT_S = 50.0
_RELEASE_POLL_S = 0.01


def main(argv: list[str]) -> int:
    """Serve one benchmark.

    Parameters
    ----------
    argv : list of str
        Path of the control socket, address of the scheduler.

    Returns
    -------
    int
        Exit status.
    """
    control_path, address = argv
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(control_path)
    control = Control(connection)
    try:
        with _open_client(address) as client:
            _serve(control, _Operations(client))
    except ControlClosed:
        pass  # the benchmark ended
    return 0


def _open_client(address: str) -> Client:
    scheme, _, rest = address.partition("://")
    if scheme != "inproc":
        return Client(address)
    return Client(
        processes=False,
        n_workers=1,
        threads_per_worker=int(rest),
        memory_limit=0,
        dashboard_address=None,
    )


def _serve(control: Control, operations: _Operations) -> None:
    while True:
        command = control.receive()
        operation: Callable[..., dict[str, Any]] = getattr(operations, command.pop("op"))
        try:
            answer = operation(**command)
        except Exception as error:
            detail = traceback.format_exc(limit=-3)
            answer = {"error": f"{type(error).__name__}: {error}", "detail": detail}
        control.send(**answer)


class _Operations:
    """Operations that a benchmark may ask for."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._job: Job | None = None

    def wait_for_workers(self, *, count: int) -> dict[str, Any]:
        self._client.wait_for_workers(count, timeout=_WORKERS_TIMEOUT_S)
        return {}

    def prepare(self, *, job: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Make what the job needs, which is not measured."""
        self._job = make_job(job, **parameters)
        self._job.prepare(self._client)
        return {
            "tasks": self._job.tasks,
            "input_bytes": self._job.input_bytes,
            "timeout_s": self._job.timeout_s,
        }

    def run(self) -> dict[str, Any]:
        """Do what is measured."""
        assert self._job is not None
        start = time.perf_counter()
        self._job.run(self._client)
        return {"seconds": time.perf_counter() - start}

    def check(self) -> dict[str, Any]:
        """Return the facts of the run, and compare its result with the expected one."""
        assert self._job is not None
        facts = self._job.facts(self._client)
        self._job.check(self._client)
        return {"facts": facts}

    def release(self) -> dict[str, Any]:
        """Drop everything, and wait until the cluster has dropped it too."""
        job, self._job = self._job, None
        tasks, results = (job.kept_tasks, job.kept_results) if job is not None else (0, 0)
        del job
        deadline = time.monotonic() + _RELEASE_TIMEOUT_S
        while (
            self._client.run_on_scheduler(_count_tasks) > tasks
            or sum(self._client.run(_count_data).values()) > results
        ):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the cluster holds tasks after {_RELEASE_TIMEOUT_S:.0f} s")
            time.sleep(_RELEASE_POLL_S)
        return {}

    def lanes(self) -> dict[str, Any]:
        """Tell the lanes between the workers that are in use."""
        from backhaul.dask import lanes

        found: Any = lanes(self._client)
        return {"lanes": sorted(set(found.values()))}


def _count_tasks(dask_scheduler: Any) -> int:
    """Count the tasks that the scheduler knows; runs on it."""
    return len(dask_scheduler.tasks)


def _count_data(dask_worker: Any) -> int:
    """Count the results that a worker holds; runs on it."""
    return len(dask_worker.data)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
