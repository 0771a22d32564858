"""Dask's own command line, with processes that have nothing in common but an address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from distributed import Client

from backhaul.dask import lanes

if TYPE_CHECKING:
    from tests.dask.conftest import Start

SCHEDULER = ["-m", "dask", "scheduler", "--host", "127.0.0.1", "--no-dashboard", "--no-show"]
WORKER = ["-m", "dask", "worker", "--nthreads", "1", "--no-dashboard"]

TCP_ONLY_CLIENT = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "backhaul":
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Refuse())

from distributed import Client

with Client(sys.argv[1]) as client:
    workers = list(client.nthreads())
    assert all(worker.startswith("backhaul://") for worker in workers), workers
    print("answer:", client.submit(sum, client.map(abs, range(-10, 0))).result())
"""


@pytest.fixture(scope="module")
def addresses(start: Start) -> dict[str, str]:
    """Start a scheduler that listens on both protocols, and two workers over Backhaul."""
    scheduler = start(*SCHEDULER, "--protocol", "tcp,backhaul", "--port", "0,0")
    found = {
        scheme: scheduler.wait_for(rf"Scheduler at:\s+({scheme}://127\.0\.0\.1:\d+)")
        for scheme in ("tcp", "backhaul")
    }
    # One with a nanny and one without.
    workers = [
        start(*WORKER, option, "--host", "127.0.0.1", found["backhaul"])
        for option in ("--nanny", "--no-nanny")
    ]
    for worker in workers:
        worker.wait_for(r"Registered to:\s+(backhaul://)")
    return found


def test_workers_join_over_backhaul_and_exchange_data_over_shared_memory(
    addresses: dict[str, str],
) -> None:
    with Client(addresses["backhaul"]) as client:
        client.wait_for_workers(2)
        workers = client.nthreads()
        assert all(worker.startswith("backhaul://127.0.0.1:") for worker in workers)
        found = lanes(client)
        assert isinstance(found, dict)
        assert set(found.values()) == {"shm"}
        assert client.submit(sum, client.map(abs, range(-10, 0))).result() == 55


def test_a_client_without_backhaul_uses_such_a_cluster_over_tcp(
    addresses: dict[str, str], start: Start
) -> None:
    client = start("-c", TCP_ONLY_CLIENT, addresses["tcp"])
    assert client.wait() == 0, client.output
    assert "answer: 55" in client.output
