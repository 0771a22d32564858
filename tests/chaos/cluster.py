"""A Dask cluster on two hosts, each part a process that can be stopped, killed and looked into.

::

    scheduler, client, nanny 0 10.79.0.2 ── switch ── 10.79.0.3 nannies 1 and 2
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.network import Network
from tests.chaos.schedule import KEEP_ALIVE_S
from tests.chaos.trust import environment

__all__ = ["ADDRESSES", "WORKERS", "Cluster", "Hung"]

ADDRESSES = {"near": "10.79.0.2", "far": "10.79.0.3"}

#: The host of each worker
WORKERS = ("near", "far", "far")

_ROOT = Path(__file__).resolve().parent.parent.parent

#: How long the cluster may take to become whole
_READY_S = 240.0

#: How long a nanny may have no worker
_NANNY_S = 30.0


class Hung(Exception):
    """Something did not come to an end in time."""


class Cluster:
    """A scheduler, nannies with workers, and a client.

    Parameters
    ----------
    network : Network
        Where they live.
    protocol : str
        ``backhaul``, or ``tcp`` to compare.
    lane : str
        Lane of the processes of one host: ``shm``, or ``tcp``.
    folder : path
        Where the log of each process goes, by its name.
    trust : str
        Proof that they have to show each other, one of `tests.chaos.trust.KINDS`.
    """

    def __init__(
        self, network: Network, *, protocol: str, lane: str, folder: Path, trust: str = "anyone"
    ) -> None:
        self.network = network
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._protocol = protocol
        self._trust = trust
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
            "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": f"{KEEP_ALIVE_S}s",
            # A worker that dies is no fault of the task it ran.
            "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1000",
            # A connection that was cut off on its way in is tried again before the job may be given
            # up.
            "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "10s",
            "DASK_TEMPORARY_DIRECTORY": str(folder / "scratch"),
            **environment(trust, folder),
        }
        if lane == "tcp":
            self._environment["DASK_DISTRIBUTED__COMM__BACKHAUL__LANES"] = "['tcp']"
        self._programs: dict[str, subprocess.Popen[Any]] = {}
        self._groups: list[int] = []
        self._had_worker_at: dict[int, float] = {}
        self._answers: queue.Queue[str] = queue.Queue()
        self.address = ""

    def start(self) -> None:
        """Start them all, and wait until they know each other."""
        common = ["--host", ADDRESSES["near"], "--protocol", self._protocol, "--port", "8786"]
        self._start(
            "scheduler", "near", "-m", "dask", "scheduler", *common, "--no-dashboard", "--no-show"
        )
        self.address = f"{self._protocol}://{ADDRESSES['near']}:8786"
        self.mend()
        client = self._start(
            "client", "near", "-m", "tests.chaos.driver", self.address, is_spoken_to=True
        )
        threading.Thread(target=self._read, args=(client.stdout,), daemon=True).start()
        self._expect("ready", _READY_S)
        if self._protocol == "backhaul":
            self._ask("trust")
            self._expect(self._trust, _READY_S)
        self.wait_until_whole()

    def mend(self) -> None:
        """Start nannies that are not there, or do nothing: what a service manager would do.

        Nannies that were cut off for long close themselves. One that gave a worker up as it started
        may stay without, and reports that nowhere (``Nanny.kill`` asserts on its status).
        """
        for place, host in enumerate(WORKERS):
            name = f"worker-{place}"
            program = self._programs.get(name)
            if program is not None and program.poll() is None and not self._is_idle(place):
                continue
            if program is not None:
                _end_group(program.pid)
                program.wait(30)
            self._had_worker_at[place] = time.monotonic()
            options = ["--host", ADDRESSES[host], "--nthreads", "1", "--memory-limit", "2GiB"]
            options += ["--no-dashboard", "--name", name, "--death-timeout", "300"]
            options += ["--preload-nanny", "tests.chaos.diagnose"]
            self._start(name, host, "-m", "dask", "worker", self.address, *options)

    def _is_idle(self, place: int) -> bool:
        """Return whether a nanny has had no worker for long."""
        now = time.monotonic()
        if self.worker_pids(place):
            self._had_worker_at[place] = now
        return now - self._had_worker_at.setdefault(place, now) > _NANNY_S

    def wait_until_whole(self) -> None:
        """Wait until every worker is there, and start nannies anew meanwhile."""
        self._ask(f"workers {len(WORKERS)}")
        self._expect("right", _READY_S, meanwhile=self.mend)

    def begin(self, job: str, seed: int) -> None:
        """Start a job in the client."""
        self._ask(f"{job} {seed}")

    def outcome(self, seconds: float) -> str:
        """Wait for what became of the job.

        Raises
        ------
        Hung
            If it takes longer than so many seconds.
        """
        return self._answer(seconds, meanwhile=self.mend)

    def outcome_until(self, moment: float) -> str | None:
        """Wait for what became of the job until a moment of the monotonic clock, or else None."""
        try:
            return self._answers.get(timeout=max(0.0, moment - time.monotonic()))
        except queue.Empty:
            return None

    def worker_pids(self, place: int) -> list[int]:
        """Find the process of a worker, below its nanny; there is none while that starts it."""
        program = self._programs[f"worker-{place}"]
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(program.pid).children(recursive=True)
            return [one.pid for one in children if _is_worker(one)]
        return []

    def scheduler_pid(self) -> int:
        """Find the process of the scheduler."""
        return self._programs["scheduler"].pid

    def resume_all(self) -> None:
        """Let every process go on that was stopped."""
        for pid in self._pids():
            send(pid, signal.SIGCONT)

    def explain(self) -> Path:
        """Make every process write its waits into its log, and give their folder."""
        self.resume_all()
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            for pid in self._pids():
                # Only who heeds it; it would end another.
                if _heeds(pid, number):
                    send(pid, number)
            time.sleep(2)
        return self._folder

    def close(self) -> None:
        """End all of them."""
        for group in self._groups:
            _end_group(group)
        for program in self._programs.values():
            program.wait(30)

    def _start(
        self, name: str, host: str, *arguments: str, is_spoken_to: bool = False
    ) -> subprocess.Popen[Any]:
        if name != "client":
            arguments = (*arguments, "--preload", "tests.chaos.diagnose")
        pipe = subprocess.PIPE if is_spoken_to else None
        with open(self._folder / f"{name}.log", "ab") as log:
            program = subprocess.Popen(
                [*self.network.within(host), sys.executable, *arguments],
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or log,
                stderr=log,
                env=self._environment,
                cwd=_ROOT,
                text=is_spoken_to,
                # Its own group: what it started goes with it, though it may have ended itself.
                start_new_session=True,
            )
        self._programs[name] = program
        self._groups.append(program.pid)
        return program

    def _pids(self) -> Iterator[int]:
        for program in self._programs.values():
            if program.poll() is None:
                yield program.pid
                with contextlib.suppress(psutil.Error):
                    below = psutil.Process(program.pid).children(recursive=True)
                    yield from [one.pid for one in below]

    def _ask(self, line: str) -> None:
        stdin = self._programs["client"].stdin
        assert stdin is not None
        stdin.write(line + "\n")
        stdin.flush()

    def _read(self, lines: Any) -> None:
        for line in lines:
            self._answers.put(line.strip())
        self._answers.put("failed: the client has ended")

    def _answer(self, seconds: float, meanwhile: Callable[[], None] | None = None) -> str:
        end = time.monotonic() + seconds
        while True:
            try:
                return self._answers.get(timeout=min(1.0, max(0.0, end - time.monotonic())))
            except queue.Empty:
                if time.monotonic() >= end:
                    raise Hung(f"no answer of the client within {seconds:.0f} s") from None
                if meanwhile is not None:
                    meanwhile()

    def _expect(
        self, word: str, seconds: float, meanwhile: Callable[[], None] | None = None
    ) -> None:
        answer = self._answer(seconds, meanwhile)
        if answer != word:
            raise Hung(f"the client said {answer!r}, not {word!r}")


def _is_worker(process: psutil.Process) -> bool:
    """Return whether a process below a nanny is the worker, and not one that helps to start it."""
    command = " ".join(process.cmdline())
    return "spawn_main" in command


def _heeds(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    caught = next(line for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def _end_group(group: int) -> None:
    """Kill a program and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
