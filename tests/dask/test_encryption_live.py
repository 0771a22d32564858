"""Encryption by the options of Dask's command line and of Backhaul's, with real processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from distributed import Client
from distributed.security import Security

from backhaul.dask import lanes

if TYPE_CHECKING:
    from tests.dask.conftest import Start

#: Nothing of it goes through shared memory, so that data between workers is encrypted too.
ENVIRONMENT = {"DASK_DISTRIBUTED__COMM__BACKHAUL__LANES": "['tcp']"}

SCHEDULER = ["--host", "127.0.0.1", "--port", "0", "--protocol", "backhaul", "--no-dashboard"]
WORKER = ["--host", "127.0.0.1", "--nthreads", "1", "--no-dashboard"]


def options(folder: Path, role: str) -> list[str]:
    """Name the files of a role as Dask's programs want them."""
    files = {"ca-file": "ca.pem", "cert": f"{role}.pem", "key": f"{role}.key"}
    return [part for name, file in files.items() for part in (f"--tls-{name}", str(folder / file))]


def security(folder: Path) -> Any:
    client = {"tls_client_cert": str(folder / "client.pem")}
    return Security(
        tls_ca_file=str(folder / "ca.pem"), tls_client_key=str(folder / "client.key"), **client
    )


def test_programs_with_certificates_encrypt_all_that_they_say(
    start: Start, certificates: Path
) -> None:
    of = {role: options(certificates, role) for role in ("scheduler", "worker")}
    scheduler = start(
        "-m", "dask", "scheduler", *SCHEDULER, *of["scheduler"], "--no-show", env=ENVIRONMENT
    )
    address = scheduler.wait_for(r"Scheduler at:\s+(backhaul://127\.0\.0\.1:\d+)")
    workers = [
        start("-m", "dask", *program, address, *WORKER, *of["worker"], env=ENVIRONMENT)
        for program in (
            ["worker", "--nanny"],
            ["worker", "--no-nanny"],
            ["backhaul", "worker", "--nworkers", "1"],
        )
    ]
    for worker in workers:
        worker.wait_for(r"Registered to:\s+(backhaul://)")
    with Client(address, security=security(certificates)) as client:
        client.wait_for_workers(3)
        infos = client.run(lambda dask_worker: dask_worker.batched_stream.comm.extra_info)
        subjects = {info["peercert"]["subject"][0][0] for info in infos.values()}
        assert subjects == {("commonName", "scheduler")}
        there = list(infos)
        blocks = [client.submit(bytes, 300_000, workers=[where], pure=False) for where in there * 2]
        total = client.submit(lambda blocks: sum(map(len, blocks)), blocks, workers=there[:1])
        assert total.result(60) == 1_800_000
        found = lanes(client)
        assert isinstance(found, dict)
        assert set(found.values()) == {"tls"}
    # A worker without encryption gets the reason, and the cluster goes on.
    stranger = start("-m", "dask", "worker", address, *WORKER, "--no-nanny", env=ENVIRONMENT)
    stranger.wait_for(r"(the peer speaks TLS)")
    with Client(address, security=security(certificates)) as client:
        assert client.submit(sum, [1, 2]).result(60) == 3


@pytest.mark.parametrize("beside", ["tls", "backhaul"])
def test_workers_find_the_encrypted_way_whichever_address_they_are_given(
    start: Start, certificates: Path, beside: str
) -> None:
    scheduler = start(
        *["-m", "dask", "backhaul", "scheduler", "--host", "127.0.0.1", "--port", "0,0"],
        *["--no-dashboard", *options(certificates, "scheduler")],
    )
    address = scheduler.wait_for(rf"({beside}://127\.0\.0\.1:\d+)")
    worker = start(
        *["-m", "dask", "backhaul", "worker", address, "--nworkers", "1", *WORKER],
        *options(certificates, "worker"),
    )
    worker.wait_for(r"Registered to:\s+(backhaul://)")
    with Client(address, security=security(certificates)) as client:
        infos = client.run(lambda dask_worker: dask_worker.batched_stream.comm.extra_info)
        assert [info["cipher"][1] for info in infos.values()] == ["TLSv1.3"]
