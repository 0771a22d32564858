"""Process that runs programs over one protocol, and says as JSON what it observed.

::

    python -m tests.dask.like_tcp.runner tcp exceptions.causes     # one program, printed
    python -m tests.dask.like_tcp.runner backhaul                  # names are read, line by line

One cluster is kept for all programs that leave it as it was. A program that raises, that leaves
something, or that wants a cluster of its own costs the next one a new cluster. Nothing of Backhaul
is imported here, so that over ``tcp`` all is Dask's own.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import multiprocessing
import os
import pkgutil
import sys
import time
from typing import Any

from distributed import Client, LocalCluster, utils

import dask
from tests.dask.like_tcp import leftovers, logs, programs
from tests.dask.like_tcp.kit import PROGRAMS, Program, Run, describe, described_error, normal_lines

__all__ = ["load_programs", "main"]

#: A program that takes longer shows where, and ends the process.
_WATCHDOG_S = 400

_CONFIG: dict[str, Any] = {
    "distributed.worker.preload": ["tests.dask.like_tcp.logs"],
    # A cluster that a program has broken ends without patience.
    "distributed.deploy.lost-worker-timeout": "1 day",
    "distributed.admin.system-monitor.gil.enabled": False,
    # Which copy of a result it drops, and when, differs from run to run.
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.worker.profile.enabled": False,
    # A third of the time of a CPU that spawned workers take
    "distributed.worker.multiprocessing-method": "forkserver",
    "distributed.p2p.storage.disk": True,
}


def load_programs() -> dict[str, Program]:
    """Imports the modules of programs and returns the programs by name."""
    for each in pkgutil.iter_modules(programs.__path__):
        importlib.import_module(f"{programs.__name__}.{each.name}")
    return PROGRAMS


class Session:
    """Runs programs over one protocol.

    Parameters
    ----------
    protocol : str
        Protocol of the clusters.
    """

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        if protocol == "backhaul":
            # In the place of the modules that Dask names, which `preloaded` imports, too
            forkserver = multiprocessing.get_context("forkserver")
            forkserver.set_forkserver_preload(["tests.dask.preloaded"])
            setattr(utils, "_forkserver_preload_set", True)  # noqa: B010
        self._shared: contextlib.ExitStack | None = None
        self._run: Run | None = None

    def observe(self, program: Program) -> dict[str, Any]:
        """Runs a program and returns everything that was observed."""
        if program.own_cluster:
            with contextlib.ExitStack() as stack:
                return self._observed(program, self._open(stack, program))[0]
        if self._run is None:
            self._shared = contextlib.ExitStack()
            self._run = self._open(self._shared, program)
        observed, is_clean = self._observed(program, self._run)
        if not is_clean:
            self.close()
        return observed

    def close(self) -> None:
        """Closes the shared cluster."""
        shared, self._shared, self._run = self._shared, None, None
        if shared is not None:
            shared.close()
        logs.taken()

    def _open(self, stack: contextlib.ExitStack, program: Program) -> Run:
        stack.enter_context(dask.config.set({**_CONFIG, **program.config}))
        cluster = LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            protocol=self._protocol,
            dashboard_address=None,
            worker_dashboard_address=None,
            memory_limit=program.config.get("memory_limit", "2GiB"),
        )
        stack.enter_context(cluster)
        client = stack.enter_context(Client(cluster))
        # One after the other, as Dask lists workers in the order in which they have registered
        cluster.scale(2)
        client.wait_for_workers(2)
        client.run(leftovers.keep_imports)
        leftovers.worker_logs(client)
        logs.taken()
        return Run(client, cluster)

    def _observed(self, program: Program, run: Run) -> tuple[dict[str, Any], bool]:
        try:
            result = describe(program.function(run))
        except Exception as error:
            return {"error": described_error(error)}, False
        observed, is_clean = {"result": result}, False
        if program.left:
            left = observed["left"] = leftovers.leftovers(run.client)
            is_clean = not left["scheduler"]["tasks"] and len(left["workers"]) == 2
        records = logs.taken() + leftovers.worker_logs(run.client)
        if program.logs:
            observed["logs"] = normal_lines(records)
        return observed, is_clean


def main() -> int:
    """Runs the programs that are named as arguments, or on the standard input."""
    protocol, *names = sys.argv[1:]
    known = load_programs()
    logs.install()
    # Each program ends with a collection, which looks at nothing that was imported.
    gc.collect()
    gc.freeze()
    # Programs and workers print elsewhere; answers stay apart.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    session = Session(protocol)
    indent = 1 if names else None
    try:
        for line in names or sys.stdin:
            faulthandler.dump_traceback_later(_WATCHDOG_S, exit=True)
            began = time.monotonic()
            observed = session.observe(known[line.strip()])
            observed["seconds"] = round(time.monotonic() - began, 2)
            faulthandler.cancel_dump_traceback_later()
            answers.write(json.dumps(observed, indent=indent) + "\n")
            answers.flush()
    finally:
        session.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
