"""Streams that end, hear nothing or become a program's while the engine handles them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from distributed import Client, LocalCluster, wait
from distributed.utils_test import gen_test, inc, slowinc

import dask
from backhaul.dask.scheduler.core import live_core
from tests.dask.conftest import Eventually
from tests.dask.scheduler_core.test_streams import SETTINGS, cluster
from tests.dask.test_batching import Held

pytestmark = pytest.mark.usefixtures("forked_workers")


def test_a_worker_that_is_killed_in_the_middle() -> None:
    with (
        dask.config.set(SETTINGS),
        LocalCluster(
            n_workers=3, threads_per_worker=1, protocol="backhaul", dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        core = live_core.installed(cluster.scheduler)
        assert core is not None
        futures = client.map(slowinc, range(600), delay=0.002, pure=False)
        wait(futures[:50])
        assert core.engine_counts()["task-finished"] > 0
        victim = next(iter(client.run(os.getpid).values()))
        os.kill(victim, signal.SIGKILL)
        assert client.gather(futures) == list(range(1, 601))
        # On a busy machine tasks turn out longer than was learned of them.
        assert set(core.escapes) <= {"tasks to take back"}
        assert client.gather(client.map(inc, futures)) == list(range(2, 602))
        del futures
        assert client.submit(inc, 1).result() == 2


#: A client that never ends, and prints when the engine has handled some of its tasks
OTHER_CLIENT = """
import sys, time
from distributed import Client, wait
from distributed.utils_test import slowinc
client = Client(sys.argv[1])
futures = client.map(slowinc, range(200), delay=0.002, pure=False)
wait(futures[:20])
print("under way", flush=True)
time.sleep(600)
"""


def test_a_client_process_that_is_gone_holds_nothing() -> None:
    with (
        dask.config.set(SETTINGS),
        LocalCluster(
            n_workers=2, threads_per_worker=1, protocol="backhaul", dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        core = live_core.installed(cluster.scheduler)
        assert core is not None
        futures = client.map(inc, range(300), pure=False)
        program = [sys.executable, "-c", OTHER_CLIENT, cluster.scheduler_address]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "under way\n"
            other.kill()
        assert client.gather(futures) == list(range(1, 301))
        assert client.gather(client.map(inc, range(100), pure=False)) == list(range(1, 101))
        del futures
        while tasks := client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)):
            assert tasks <= 500
            time.sleep(0.01)


#: A client that hears nothing for as long as it is stopped
STOPPED_CLIENT = """
import sys
from distributed import Client, wait
from distributed.utils_test import inc
client = Client(sys.argv[1])
futures = client.map(inc, range(20_000))
wait(futures[:1])
print("submitted", flush=True)
print(sum(client.gather(futures)), flush=True)
"""


def test_an_escape_while_a_client_reads_nothing() -> None:
    with (
        dask.config.set({**SETTINGS, "distributed.scheduler.work-stealing": False}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, protocol="backhaul", dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        program = [sys.executable, "-c", STOPPED_CLIENT, cluster.scheduler_address]
        other = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "submitted\n"
            other.send_signal(signal.SIGSTOP)
            while not client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.is_idle):
                time.sleep(0.05)
            # Its messages were gathered, and are sent as the engine leaves.
            groups = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.task_groups))
            assert groups == 1
            other.send_signal(signal.SIGCONT)
            assert other.stdout.readline() == f"{sum(range(1, 20_001))}\n"
            assert other.wait(300) == 0
        finally:
            other.kill()
            other.communicate()


@gen_test()
async def test_a_comm_that_a_program_puts_in_a_stream_is_not_passed_over(
    eventually: Eventually,
) -> None:
    async with cluster(workers=1) as (c, s, core, (worker,)):
        assert await c.submit(inc, 1) == 2
        assert core.streams is not None
        assert core.streams.is_active
        stream = s.stream_comms[worker.address]
        comm = stream.comm
        stream.comm = comm
        assert not core.escapes
        stream.comm = held = Held(comm)
        assert core.escapes == {"the comm of a stream that is replaced": 1}
        future = c.submit(inc, 2)
        await held.held.wait()
        # Backhaul sends nothing on the comm below, whatever else is to be done.
        others = c.map(inc, range(10))
        last = others[-1].key
        await eventually(lambda: last in s.tasks)
        assert worker.state.tasks.keys().isdisjoint([future.key, *(one.key for one in others)])
        held.free.set()
        assert await c.gather([future, *others]) == [3, *range(1, 11)]
        stream.comm = comm
        del future, others
        # The stream is as it was, and the engine takes it again.
        while core.streams is None or not core.streams.is_active:
            await eventually(lambda: not s.tasks)
            assert await c.submit(inc, 1, pure=False) == 2
        assert await c.gather(c.map(inc, range(20))) == list(range(1, 21))
