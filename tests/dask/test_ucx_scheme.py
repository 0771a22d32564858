"""``ucx://`` over Backhaul: programs written for UCX run once the scheme is claimed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.dask.conftest import Start

CLUSTER = """
import sys
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

def main(scheme, claims):
    if claims:
        from backhaul.dask import claim_ucx
        claim_ucx()
    with LocalCluster(protocol=scheme, n_workers=2, threads_per_worker=1, dashboard_address=None,
                      processes=True) as cluster, Client(cluster) as client:
        x = (da.ones((2000, 2000), chunks=(500, 500)) + 0).persist()
        assert (x + x.T).sum().compute() == 8_000_000
        # However that was placed: one array that has to travel.
        here, there = client.nthreads()
        lot = client.submit(np.arange, 1_000_000, workers=here)
        assert client.submit(len, lot, workers=there).result() == 1_000_000
        from backhaul.dask import lanes, transfers
        print("scheduler", cluster.scheduler_address)
        print("workers", *sorted(client.nthreads()))
        print("lanes", *sorted(set(lanes(client).values())))
        print("sent", int(transfers(client)["bytes"].sum()))

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "claimed")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(CLUSTER)
    return path


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_cluster_of_that_scheme_runs_over_shared_memory(program: Path) -> None:
    done = run(program, "ucx", "claimed")
    assert done.returncode == 0, done.stderr
    said = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert said["scheduler"].startswith("ucx://")
    workers = said["workers"].split()
    assert len(workers) == 2
    assert all(worker.startswith("ucx://") for worker in workers)
    assert said["lanes"] == "shm"
    assert int(said["sent"]) > 1_000_000


def test_without_a_claim_dask_refuses_the_scheme(program: Path) -> None:
    done = run(program, "ucx", "unclaimed")
    assert done.returncode != 0
    assert "UCX-Py has been deprecated" in done.stderr


def test_the_scheme_of_distributed_ucxx_is_claimed_too() -> None:
    done = run(
        "-c",
        "import asyncio; from distributed.comm import connect, listen\n"
        "from backhaul.dask import claim_ucx; claim_ucx(); claim_ucx()\n"
        "async def main():\n"
        "    async def echo(comm): await comm.write(await comm.read())\n"
        "    async with listen('ucxx://127.0.0.1', echo) as listener:\n"
        "        comm = await connect(listener.contact_address)\n"
        "        await comm.write({'x': 1}); print(await comm.read(), comm.peer_address[:17])\n"
        "        await comm.close()\n"
        "asyncio.run(main())",
    )
    assert done.stdout.strip() == "{'x': 1} ucxx://127.0.0.1:", done.stderr


def test_importing_claims_nothing() -> None:
    done = run(
        "-c",
        "import backhaul.dask, distributed.comm.registry as r;"
        "print(type(r.backends.get('ucx')).__module__, 'ucxx' in r.backends)",
    )
    assert done.stdout.split() == ["distributed.comm.ucx", "False"]


def test_a_scheme_of_another_package_is_left_to_it_unless_forced() -> None:
    done = run(
        "-c",
        "from distributed.comm.registry import backends\n"
        "from distributed.comm.tcp import TCPBackend\n"
        "from backhaul.dask import claim_ucx; from backhaul.errors import ConfigError\n"
        "other = backends['ucxx'] = TCPBackend(); stub = backends['ucx']\n"
        "try: claim_ucx()\n"
        "except ConfigError as error: print(error)\n"
        "assert backends['ucxx'] is other and backends['ucx'] is stub\n"
        "claim_ucx(force=True)\n"
        "print(type(backends['ucxx']).__name__, type(backends['ucx']).__name__)",
    )
    refusal, names = done.stdout.splitlines()
    assert "ucxx://" in refusal
    assert "distributed.comm.tcp" in refusal
    assert names.split() == ["UcxxBackend", "UcxBackend"]


def test_programs_of_the_command_line_take_the_preload(start: Start) -> None:
    preload = ("--preload", "backhaul.dask.ucx_preload")
    scheduler = start(
        "-m", "dask", "scheduler", "--protocol", "ucx", "--port", "0", "--host", "127.0.0.1",
        "--no-dashboard", *preload,
    )  # fmt: skip
    address = scheduler.wait_for(r"Scheduler at:\s+(ucx://\S+)")
    worker = start("-m", "dask", "worker", address, "--no-dashboard", "--nthreads", "1", *preload)
    worker.wait_for(r"Registered to:\s+(ucx://\S+)")
    done = run(
        "-c",
        "import backhaul.dask.ucx_preload, sys; from distributed import Client\n"
        f"with Client({address!r}) as client: print(client.submit(sum, [1, 2, 3]).result())",
    )
    assert done.stdout.strip() == "6", done.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "[]"),
        (["--for-each"], "['--for-each']"),
        ([["--one"]], "[['--one'], []]"),
    ],
)
def test_preloads_that_are_configured_stay_with_their_options(
    options: list[object], expected: str
) -> None:
    # Dask takes a text for one preload.
    done = run(
        "-c",
        "import dask; from backhaul.dask import claim_ucx\n"
        f"dask.config.set({{'distributed.worker.preload': 'json',"
        f" 'distributed.worker.preload-argv': {options!r}}})\n"
        "claim_ucx(); claim_ucx()\n"
        "from distributed.preloading import process_preloads\n"
        "names, argv = (dask.config.get(f'distributed.worker.preload{end}')"
        " for end in ('', '-argv'))\n"
        "print(argv)\n"
        "print(*(preload.name for preload in process_preloads(None, names, argv)))",
    )
    assert done.stdout.splitlines() == [expected, "json backhaul.dask.ucx_preload"], done.stderr
