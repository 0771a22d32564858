"""Dask over the lane ucx: real processes, a worker that is killed, and UCX that is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from distributed import Client

import dask
from backhaul.dask import Settings
from backhaul.dask.comm.buffer_sharing import arena_for_lane

if TYPE_CHECKING:
    from pathlib import Path

    from tests.dask.conftest import Start

needs_wheel = pytest.mark.skipif(find_spec("libucx") is None, reason="no wheel libucx")

UCX_ALONE = {"DASK_DISTRIBUTED__COMM__BACKHAUL__LANES": "ucx"}
NOWHERE = {"BACKHAUL_LIBUCP": "/nowhere/libucp.so"}

SCHEDULER = (
    "-m", "dask", "scheduler", "--protocol", "backhaul", "--host", "127.0.0.1", "--port", "0",
    "--no-dashboard",
)  # fmt: skip

JOB = """
import os
import signal

import dask.array as da
from distributed import Client, Event, LocalCluster, Variable, get_worker
from backhaul.dask import lanes, transfers


def hold(block):
    held = Event("held")
    if not held.is_set():
        # Not where Dask tries it with an empty block, which is no worker.
        Variable("holder").set((get_worker().name, os.getpid()))
        held.set()
        Event("go").wait(300)
    return block


def comms(dask_worker):
    found = [comm.info for comm in dask_worker._comms]
    return {(info["lane"], info["same_host"], *info["carriers"]) for info in found}


def mapped():
    with open("/proc/self/maps") as maps:
        return "libucp.so" in maps.read()


def main():
    with LocalCluster(protocol="backhaul", n_workers=2, threads_per_worker=1,
                      dashboard_address=None) as cluster, Client(cluster) as client:
        x = (da.ones((2000, 2000), chunks=(500, 500)) + 0).persist()
        assert (x + x.T).sum().compute() == 8_000_000
        print("lanes", *sorted(set(lanes(client).values())))
        print("comms", *sorted(set().union(*client.run(comms).values())))
        print("mapped", *client.run(mapped).values())
        print("accounted", *sorted(transfers(client)["lane"].unique()))
        y = da.ones((2000, 2000), chunks=(500, 500)).map_blocks(hold, dtype=float)
        future = client.compute((y + y.T).sum())
        assert Event("held").wait(300)
        os.kill(Variable("holder").get(timeout=300)[1], signal.SIGKILL)
        Event("go").set()
        assert future.result(timeout=90) == 8_000_000
        client.wait_for_workers(2, timeout=300)
        print("afterwards", *sorted(set(lanes(client).values())))


if __name__ == "__main__":
    main()
"""


@needs_wheel
@pytest.mark.parametrize("transports", ["tcp", "posix,cma"])
def test_jobs_of_processes_pass_over_ucx_though_a_worker_is_killed(
    transports: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**UCX_ALONE, "UCX_TLS": transports}.items():
        monkeypatch.setenv(name, value)
    program = tmp_path / "program.py"
    program.write_text(JOB)
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "lanes ucx",
        "comms ('ucx', True, 'ucx')",
        "mapped True True",
        "accounted ucx",
        "afterwards ucx",
    ]


HOOKS = """
import ctypes, os
from backhaul.dask import Settings
from backhaul.dask.comm.native_context import shared_context

place = ctypes.cast(ctypes.CDLL(None).munmap, ctypes.c_void_p).value
before = ctypes.string_at(place, 12)
shared_context(Settings.current())
print(ctypes.string_at(place, 12) != before, *(name for name in os.environ if "HOOK" in name))
"""


@needs_wheel
def test_ucx_patches_libc_once_rather_than_every_library_that_is_loaded() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOOKS],
        env={**os.environ, **UCX_ALONE},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.split() == ["True"], done.stderr


def test_a_scheduler_without_the_library_says_which(start: Start) -> None:
    scheduler = start(*SCHEDULER, env={**UCX_ALONE, **NOWHERE})
    assert scheduler.wait() != 0
    assert "UcxUnavailable: /nowhere/libucp.so cannot be opened" in scheduler.output


@needs_wheel
def test_peers_without_a_common_lane_fail_immediately_with_the_reason(start: Start) -> None:
    scheduler = start(*SCHEDULER, env=UCX_ALONE)
    address = scheduler.wait_for(r"Scheduler at:\s+(backhaul://\S+)")
    # Were it tried again, it would end with another error, and after the default of 30 s.
    with (
        dask.config.set({"distributed.comm.backhaul.lanes": ["tcp"]}),
        pytest.raises(OSError, match=r"no lane to .*: the peer allows ucx alone"),
    ):
        Client(address)
    worker = start("-m", "dask", "worker", address, "--no-nanny", env={**UCX_ALONE, **NOWHERE})
    assert worker.wait() != 0
    assert "UcxUnavailable: /nowhere/libucp.so cannot be opened" in worker.output


@pytest.mark.parametrize("lane", ["ucx", "tcp"])
def test_nothing_is_copied_into_the_arena_for_a_lane_that_cannot_lend(lane: str) -> None:
    assert arena_for_lane(lane, Settings.current()) is None
    assert arena_for_lane("shm", Settings.current()) is not None
