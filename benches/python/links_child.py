"""The cluster of ``links`` over one protocol: runs jobs that standard input asks for.

Runs on the first host. For each line of JSON, one of JSON comes back: seconds of the job, CPU
seconds of this process and the workers, bytes that the first host has sent and received meanwhile,
and for each direction the seconds in which all but the first and the last hundredth of the bytes
passed.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any, Final

from distributed import Client, LocalCluster

import dask
from backhaul_bench.jobs import make_job
from backhaul_bench.usage import process_cpu_seconds

__all__: list[str] = []

_PERIOD_S: Final = 0.005
_COUNTERS: Final = [Path(f"/sys/class/net/eth0/statistics/{way}_bytes") for way in ("tx", "rx")]
_EDGE: Final = 0.01


class _Meter:
    """Samples the counters of the link."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, list[int]]] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> _Meter:
        self._note()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        self._thread.join()
        self._note()

    def _sample(self) -> None:
        while not self._ends.wait(_PERIOD_S):
            self._note()

    def _note(self) -> None:
        found = [int(path.read_text()) for path in _COUNTERS]
        self._samples.append((time.perf_counter(), found))

    def ways(self) -> list[tuple[int, float]]:
        """Return for each direction the bytes, and the seconds in which most of them passed."""
        found = []
        for way in range(len(_COUNTERS)):
            first, last = self._samples[0][1][way], self._samples[-1][1][way]
            edge = (last - first) * _EDGE
            busy = [at for at, count in self._samples if first + edge < count[way] < last - edge]
            found.append((last - first, busy[-1] - busy[0] if busy else 0.0))
        return found


def _main() -> None:
    options = json.loads(sys.argv[1])
    hosts, protocol, prefix = options["hosts"], options["protocol"], options["within"]
    workers = []
    with (
        LocalCluster(
            protocol=protocol, host=hosts[0], n_workers=0, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        try:
            for number, host in enumerate(hosts):
                within = prefix if number else []
                command = [
                    *within,
                    *(sys.executable, "-m", "dask", "worker", cluster.scheduler_address),
                    *("--host", host, "--nthreads", "1", "--no-nanny", "--memory-limit", "0"),
                    "--no-dashboard",
                ]
                workers.append(
                    subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                )
            client.wait_for_workers(len(hosts), timeout=120)
            _tell("ready")
            for line in sys.stdin:
                _tell(_run(client, [worker.pid for worker in workers], **json.loads(line)))
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait(60)


def _worker_of(addresses: list[str], key: tuple[Any, ...]) -> str:
    """Return the worker that makes an input partition, or a row of chunks."""
    return addresses[int(key[1]) % len(addresses)]


def _tell(found: Any) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def _run(
    client: Client, workers: list[int], job: str, parameters: dict[str, Any]
) -> dict[str, Any]:
    made = make_job(job, **parameters)
    # Each worker has half of the inputs.
    addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
    place = functools.partial(_worker_of, addresses)
    with (
        warnings.catch_warnings(),
        # Optimization drops annotations of arrays.
        dask.config.set({"optimization.fuse.active": False}),
        dask.annotate(workers=place),
    ):
        # Dask says wrongly that dataframes ignore annotations.
        warnings.simplefilter("ignore", UserWarning)
        made.prepare(client)
    pids = [os.getpid(), *workers]
    with _Meter() as meter:
        cpu_seconds = -sum(map(process_cpu_seconds, pids))
        began = time.perf_counter()
        made.run(client)
        seconds = time.perf_counter() - began
        cpu_seconds += sum(map(process_cpu_seconds, pids))
    made.check(client)
    found = {"seconds": seconds, "cpu_seconds": cpu_seconds, "ways": meter.ways()}
    del made
    gc.collect()
    return found


if __name__ == "__main__":
    _main()
