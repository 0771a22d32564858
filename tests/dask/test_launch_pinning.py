"""Processes that start where they belong: every thread of them, and after every restart."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from distributed import Client, Nanny, Scheduler
from distributed.nanny import WorkerProcess
from distributed.process import AsyncProcess
from distributed.utils_test import gen_cluster, gen_test

import dask
from backhaul import ConfigError, _native
from backhaul.dask.compat import patching
from backhaul.dask.launch.nanny import PinnedNanny, pinned
from backhaul.dask.launch.pinning import Pinning
from backhaul.topology._json import cpu_list

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually

CPUS = sorted(os.sched_getaffinity(0))

needs_two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs to tell them apart")


def cpus_of_threads(pid: int) -> dict[str, str]:
    """Read the CPUs of every thread of a process, by thread id, as the kernel writes them."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):  # It has ended since it was listed.
            continue
        name, cpus = (
            next(line.split(":", 1)[1].strip() for line in lines if line.startswith(field))
            for field in ("Name:", "Cpus_allowed_list:")
        )
        found[f"{task.name} {name}"] = cpus
    return found


def policies_of_memory(pid: int) -> set[str]:
    """Read the policies of all mappings of a process that have memory."""
    lines = Path(f"/proc/{pid}/numa_maps").read_text().splitlines()
    return {line.split()[1] for line in lines if " N0=" in line}


def can_set_memory_policy() -> bool:
    """Tell whether this process may set a memory policy at all."""
    return Pinning(owner="test", memory_nodes=(0,)).check() is None


needs_memory_policy = pytest.mark.skipif(
    not can_set_memory_policy(), reason="set_mempolicy is not permitted here, or there is no NUMA"
)


def use_threads_of_libraries() -> int:
    """Make OpenBLAS, Arrow and Backhaul start their threads; run in the worker."""
    array = np.ones((600, 600))
    array @ array
    pc.sum(pa.chunked_array([pa.array(range(1000))] * 64))
    return os.getpid()


@needs_two_cpus
@gen_cluster(nthreads=[], client=True, scheduler_kwargs={"protocol": "backhaul"})
async def test_every_thread_of_a_worker_runs_on_its_cpus(
    client: Client, scheduler: Scheduler
) -> None:
    pinnings = [Pinning(owner=str(cpu), cpus=frozenset({cpu})) for cpu in CPUS[:2]]
    async with (
        PinnedNanny(scheduler.address, pinning=pinnings[0], nthreads=2, name="a") as a,
        PinnedNanny(scheduler.address, pinning=pinnings[1], nthreads=2, name="b") as b,
    ):
        pids: Any = await client.run(use_threads_of_libraries)
        await client.gather(client.map(lambda x: x, range(20)))
        for nanny, cpu in ((a, CPUS[0]), (b, CPUS[1])):
            threads = cpus_of_threads(pids[nanny.worker_address])
            assert any("backhaul" in name for name in threads), threads
            assert len(threads) > 5
            assert set(threads.values()) == {str(cpu)}, threads
    # No thread of the test was moved, nor processes that multiprocessing started along the way.
    assert set(cpus_of_threads(os.getpid()).values()) == {cpu_list(CPUS)}
    assert os.sched_getaffinity(0) == set(CPUS)


@needs_two_cpus
@pytest.mark.parametrize("unknown", [WorkerProcess.start, AsyncProcess.start])
def test_with_unknown_sources_a_worker_runs_unpinned_and_the_log_says_so(
    unknown: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    digest = patching.source_digest

    @gen_cluster(nthreads=[], client=True, scheduler_kwargs={"protocol": "backhaul"})
    async def check(client: Client, scheduler: Scheduler) -> None:
        monkeypatch.setattr(
            patching, "source_digest", lambda source: "" if source is unknown else digest(source)
        )
        pinning = Pinning(owner="a", cpus=frozenset({CPUS[0]}))
        async with PinnedNanny(scheduler.address, pinning=pinning, nthreads=1) as nanny:
            assert await client.submit(sum, [1, 2]) == 3
            assert nanny.pid is not None
            assert os.sched_getaffinity(nanny.pid) == os.sched_getaffinity(0)

    try:
        check()
    finally:
        patching._named_in_log.clear()
    assert "its worker is not pinned" in caplog.text


@needs_two_cpus
@gen_cluster(nthreads=[], client=True, scheduler_kwargs={"protocol": "backhaul"})
async def test_a_worker_that_dies_comes_back_on_its_own_cpus(
    client: Client, scheduler: Scheduler, eventually: Eventually
) -> None:
    pinning = Pinning(owner="a", cpus=frozenset({CPUS[1]}))
    async with PinnedNanny(scheduler.address, pinning=pinning, nthreads=1) as nanny:
        before = nanny.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        await eventually(lambda: nanny.pid not in (None, before) and scheduler.workers)
        await client.submit(sum, [1, 2])
        assert nanny.pid is not None
        assert set(cpus_of_threads(nanny.pid).values()) == {str(CPUS[1])}
        died = nanny.pid
        await client.restart()
        assert nanny.pid not in (None, died)
        assert set(cpus_of_threads(nanny.pid).values()) == {str(CPUS[1])}


@needs_memory_policy
@pytest.mark.parametrize(("policy", "expected"), [("prefer", "prefer:0"), ("bind", "bind:0")])
@gen_test()
async def test_memory_of_a_worker_comes_from_its_nodes(policy: Any, expected: str) -> None:
    before = _native.memory_policy()
    pinning = Pinning(owner="a", memory_nodes=(0,), memory_policy=policy)
    async with (
        Scheduler(protocol="backhaul", host="127.0.0.1", dashboard=False) as scheduler,
        PinnedNanny(scheduler.address, pinning=pinning, nthreads=1) as nanny,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        assert nanny.pid is not None
        assert policies_of_memory(nanny.pid) == {expected}
        of_task_threads = await client.submit(_native.memory_policy)
        assert of_task_threads[1] == [0]
    assert _native.memory_policy() == before


@gen_test()
async def test_cpus_that_are_forbidden_start_nothing() -> None:
    absent = CPUS[-1] + 1
    pinning = Pinning(owner="gpu0", cpus=frozenset({CPUS[0], absent}))
    async with Scheduler(protocol="backhaul", host="127.0.0.1", dashboard=False) as scheduler:
        with pytest.raises(RuntimeError) as caught:
            await PinnedNanny(scheduler.address, pinning=pinning, nthreads=1)
        assert isinstance(caught.value.__cause__, ConfigError)
        message = str(caught.value.__cause__)
        assert "'gpu0'" in message
        assert f"may not use {absent} " in message
        assert not scheduler.workers


def test_a_check_changes_nothing_here() -> None:
    before = os.sched_getaffinity(0)
    Pinning(owner="a", cpus=frozenset(CPUS[:1]), memory_nodes=(0,)).check()
    with pytest.raises(ConfigError, match="may not use 5000"):
        Pinning(owner="a", cpus=frozenset({5000})).check()
    with pytest.raises(ConfigError, match="memory_policy must be"):
        Pinning(owner="a", memory_policy="strict")  # type: ignore[arg-type]
    assert os.sched_getaffinity(0) == before


def test_a_memory_node_that_is_not_there_is_named_in_a_warning() -> None:
    refusal = Pinning(owner="numa9", memory_nodes=(900,)).check()
    assert refusal is not None
    assert "'numa9'" in refusal
    assert "900" in refusal
    assert "memory_policy='none'" in refusal


FORBIDDEN = """
import ctypes, struct, sys
# A seccomp filter as a container has it: set_mempolicy fails with EPERM.
from backhaul.dask.launch.pinning import Pinning
from backhaul.topology._json import cpu_list
number = int(sys.argv[1])
allow, refuse = (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | 1)
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), refuse, allow]
packed = b"".join(struct.pack("HBBI", *each) for each in code)
buffer = ctypes.create_string_buffer(packed, len(packed))
program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.create_string_buffer(program, len(program)), 0, 0) == 0
print(Pinning(owner="numa0", memory_nodes=(0,)).check())
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="knows x86-64's system calls only")
def test_a_container_that_forbids_memory_policies_is_named_in_a_warning() -> None:
    assert ctypes.sizeof(ctypes.c_void_p) == 8
    done = subprocess.run(
        [sys.executable, "-c", FORBIDDEN, "238"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "EPERM" in done.stdout
    assert "CAP_SYS_NICE" in done.stdout


def test_processes_that_are_not_spawned_cannot_be_pinned() -> None:
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        pytest.raises(ConfigError, match="'forkserver'"),
    ):
        PinnedNanny("backhaul://127.0.0.1:1", pinning=Pinning(owner="a"))


def test_nannies_of_other_classes_are_pinned_too() -> None:
    class Own(Nanny):
        pass

    assert pinned(Nanny) is PinnedNanny
    both = pinned(Own)
    assert issubclass(both, PinnedNanny)
    assert issubclass(both, Own)
    assert pinned(both) is both
