"""Tasks whose processes fork: what children and parents see and leave."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import subprocess
import sys
from typing import Any

import numpy as np

from tests.dask.like_tcp.kit import Observation, Run, program

#: For how long a child may take
_CHILD_S = 60

_FORK = multiprocessing.get_context("fork")


def answer_of(pid: int, reading: int) -> str:
    """Reads what a child answers, and reaps it; a child that hangs is killed."""
    found = b""
    while select.select([reading], [], [], _CHILD_S)[0]:
        if not (part := os.read(reading, 1000)):
            break
        found += part
    else:
        os.kill(pid, signal.SIGKILL)
        found += b" hangs"
    os.close(reading)
    os.waitpid(pid, 0)
    return found.decode()


def in_child(function: Any, *args: Any) -> tuple[int, int]:
    """Calls a function in a forked child; returns its number and a pipe with its answer."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(writing, repr(function(*args)).encode())
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    return pid, reading


def snapshot(value: Any, write: bool) -> list[Any]:
    """Forks; the parent writes before the child looks."""
    to_child, from_parent = os.pipe()

    def child() -> float:
        os.read(to_child, 1)
        seen = float(value.sum())
        value[...] = 3
        return seen

    pid, reading = in_child(child)
    if write:
        value[...] = 7
    os.write(from_parent, b"x")
    by_child = answer_of(pid, reading)
    os.close(to_child)
    os.close(from_parent)
    return [by_child, float(value.sum())]


def may_have_children() -> None:
    """Lets this worker start processes, which a daemonic process may not."""
    process: Any = multiprocessing.current_process()
    process._config["daemon"] = False


def zeros(size: int) -> Any:
    return np.zeros(size)


def total(value: Any) -> float:
    return float(value.sum())


@program()
def snapshots(run: Run) -> Observation:
    """A forked child keeps what was there at the fork; the parent sees nothing of the child."""
    found = []
    for size in (100, 400_000):
        for write in (False, True):
            for worker in (0, 1):
                value = run.submit_on(0, zeros, size)
                found.append(run.submit_on(worker, snapshot, value, write).result())
                found.append(run.submit_on(0, total, value).result())
    return found


@program()
def pools(run: Run) -> Observation:
    """A task that makes a pool of forked processes over its input."""

    def pooled(value: Any) -> list[float]:
        with _FORK.Pool(2) as pool:
            return pool.map(total, [value, value[:10], np.ones(5)])

    value = run.submit_on(0, np.ones, 200_000)
    run.client.run(may_have_children)
    return [run.submit_on(number, pooled, value).result() for number in (0, 1)]


@program()
def processes(run: Run) -> Observation:
    """`multiprocessing.Process` with `fork`, and a queue that brings results back."""

    def forked(value: Any) -> Any:
        queue: Any = _FORK.Queue()
        process = _FORK.Process(target=lambda: queue.put(float(value.sum()) + 1))
        process.start()
        answer = queue.get()
        process.join()
        return answer, process.exitcode

    run.client.run(may_have_children)
    value = run.submit_on(0, np.ones, 150_000)
    return [run.submit_on(number, forked, value).result() for number in (0, 1)]


@program()
def subprocesses(run: Run) -> Observation:
    """`subprocess` with and without `preexec_fn`, its descriptors and its environment."""

    def call(value: Any) -> Any:
        text = "import os; print(len(os.listdir('/proc/self/fd')))"
        plain = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
        held = subprocess.run(
            [sys.executable, "-c", "print(5)"], capture_output=True, text=True, preexec_fn=os.getpid
        )
        return plain.stdout, held.stdout, float(value.sum()), os.system("exit 3") >> 8

    value = run.submit_on(0, np.ones, 150_000)
    return [run.submit_on(number, call, value).result() for number in (0, 1)]


@program()
def children_live_on(run: Run) -> Observation:
    """A child that outlives its task and ends later disturbs neither results nor workers."""

    def leave_child(value: Any) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                for _ in range(50):
                    value[...] = 1
                    float(value.sum())
            finally:
                os._exit(7)
        return pid

    def reap(pid: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    value = run.submit_on(0, zeros, 200_000)
    mine = value.result()
    pid = run.submit_on(0, leave_child, value).result()
    moved = run.submit_on(1, total, value).result()
    found = [moved, run.submit_on(0, reap, pid).result(), total(mine)]
    value.release()
    again = [run.submit_on(0, zeros, 200_000).result().sum() for _ in range(5)]
    return [*found, again]


@program()
def forks_in_the_client(run: Run) -> Observation:
    """A client process that forks keeps its results and its cluster."""
    value = run.submit_on(0, np.ones, 200_000).result()
    answer = answer_of(*in_child(total, value))
    found: list[Any] = [answer, total(value)]
    found.append(run.submit_on(1, total, value).result())
    return [*found, answer_of(*in_child(lambda: run.client is not None))]
