"""A Dask cluster whose parts are processes of their own, so that CPU time can be measured apart.

Scheduler and workers are what ``dask scheduler`` and ``dask worker --no-nanny`` start; the client
is ``backhaul_bench.dask_client``, told what to do over a control connection. All end with the
benchmark, however it ends. In a cluster of one process that client is all there is.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from backhaul_bench.contenders import Configuration
from backhaul_bench.control import Control, ControlClosed
from backhaul_bench.pair import end_process

__all__ = ["ROLES", "BenchmarkFailed", "DaskCluster"]

#: Parts of a cluster, in the order of every report
ROLES = ("client", "scheduler", "workers")

_START_TIMEOUT_S = 60.0
_POLL_S = 0.02

# Ends the process when the pipe at its standard input does: also when the benchmark was killed.
_BOOTSTRAP = """
import os, runpy, sys, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


class BenchmarkFailed(RuntimeError):
    """A process of the cluster failed, did not start or did not answer, or a result is wrong."""


class DaskCluster:
    """A scheduler, workers and a client, each in a process of its own.

    Parameters
    ----------
    configuration : Configuration
        Protocol and settings of this cluster.
    workers : int
        Number of worker processes.
    threads : int
        Threads of each worker.
    memory_limit : str
        Of each worker, as ``dask worker`` takes it: near it, workers spill and pause.

    Raises
    ------
    BenchmarkFailed
        If a process did not start.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        workers: int,
        threads: int,
        memory_limit: str = "0",
    ) -> None:
        self.configuration = configuration
        #: Where the scheduler listens; in one process, how many threads that has
        self.address = f"inproc://{workers * threads}"
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._control: Control | None = None
        self._connection: socket.socket | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="backhaul-bench-"))
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        try:
            if configuration.one_process:
                workers = 1
            else:
                self._start_servers(workers, threads, memory_limit)
            self._start_client(workers)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> dict[str, list[int]]:
        """Processes of each role."""
        return {role: [p.pid for r, p in self._processes if r == role] for role in ROLES}

    def command(self, operation: str, *, timeout_s: float, **parameters: Any) -> dict[str, Any]:
        """Run an operation in the client process, and wait until it is done.

        Parameters
        ----------
        operation : str
            Name of an operation of ``backhaul_bench.dask_client``.
        timeout_s : float
            How long it may take, in seconds.
        **parameters : Any
            What JSON can hold.

        Returns
        -------
        dict of str to Any
            The answer.

        Raises
        ------
        BenchmarkFailed
            If the client failed, or did not answer in time.
        """
        assert self._control is not None
        assert self._connection is not None
        self._connection.settimeout(timeout_s)
        try:
            self._control.send(op=operation, **parameters)
            answer = self._control.receive()
        except TimeoutError:
            what = f"{operation} took more than {timeout_s:.0f} s over {self.configuration.label}"
            raise self._failure(what) from None
        except (ControlClosed, OSError) as error:
            raise self._failure(f"the client ended: {error}") from error
        if "error" in answer:
            detail = f"{answer['error']}\n{answer.get('detail', '')}".strip()
            raise BenchmarkFailed(f"{self.configuration.label}: {detail}")
        return answer

    def close(self) -> None:
        """End every process; idempotent.

        By force: a worker may wait for a scheduler that went before it, and none of them holds
        anything worth keeping.
        """
        if self._control is not None:
            self._control.close()
            self._control = None
        for _, process in self._processes:
            if process.poll() is None:
                process.kill()
        for _, process in self._processes:
            end_process(process)
            if process.stdin is not None:
                process.stdin.close()
        self._processes.clear()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> DaskCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_servers(self, workers: int, threads: int, memory_limit: str) -> None:
        scheduler_file = str(self._folder / "scheduler.json")
        protocol = self.configuration.protocol
        shared = ("--protocol", protocol, "--host", "127.0.0.1", "--no-dashboard")
        self._start(
            "scheduler",
            *("dask", "scheduler", *shared, "--port", "0", "--scheduler-file", scheduler_file),
        )
        self.address = self._wait_for_scheduler(scheduler_file)
        for index in range(workers):
            self._start(
                "workers",
                *("dask", "worker", self.address, *shared, "--no-nanny", "--name", f"w{index}"),
                *("--nthreads", str(threads), "--local-directory", str(self._folder)),
                *("--memory-limit", memory_limit, "--death-timeout", f"{_START_TIMEOUT_S:.0f}"),
            )

    def _start(self, role: str, module: str, *arguments: str) -> None:
        configuration = self.configuration
        # With one process, the worker is in the client.
        environment = {
            **(_nanny_environment() if role == "workers" or configuration.one_process else {}),
            **os.environ,
            **configuration.environment,
            "DASK_TEMPORARY_DIRECTORY": str(self._folder),
        }
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP, module, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self._processes.append((role, process))

    def _wait_for_scheduler(self, path: str) -> str:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            # The file is there before all of it is written.
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                return str(json.loads(Path(path).read_text(encoding="utf-8"))["address"])
            self._check_alive(deadline)
            time.sleep(_POLL_S)

    def _start_client(self, workers: int) -> None:
        path = str(self._folder / "control")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(path)
            listener.listen()
            self._start("client", "backhaul_bench.dask_client", path, self.address)
            listener.settimeout(_POLL_S)
            deadline = time.monotonic() + _START_TIMEOUT_S
            while self._connection is None:
                try:
                    self._connection, _ = listener.accept()
                except TimeoutError:
                    self._check_alive(deadline)
        self._control = Control(self._connection)
        self.command("wait_for_workers", timeout_s=_START_TIMEOUT_S, count=workers)

    def _check_alive(self, deadline: float) -> None:
        for role, process in self._processes:
            if process.poll() is not None:
                raise self._failure(f"a process ({role}) ended with status {process.returncode}")
        if time.monotonic() > deadline:
            raise self._failure(f"no cluster after {_START_TIMEOUT_S:.0f} s")

    def _failure(self, what: str) -> BenchmarkFailed:
        """Describe a failure with the last lines that the processes wrote."""
        self._log.seek(0)
        said = self._log.read().decode(errors="replace").strip().splitlines()[-12:]
        return BenchmarkFailed("\n".join([f"{self.configuration.label}: {what}", *said]))


def _nanny_environment() -> dict[str, str]:
    """Give what a nanny would set for its worker: here none is in between."""
    import distributed  # noqa: F401 - loads the defaults

    import dask

    found = dask.config.get("distributed.nanny.pre-spawn-environ")
    return {name: str(value) for name, value in found.items() if value is not None}
