"""Dask's security settings over Backhaul: files, text in memory, roles, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Scheduler, Worker
from distributed.comm import CommClosedError, connect, listen
from distributed.security import Security
from distributed.utils_test import gen_test

import backhaul
from backhaul.doctor.cluster import examine

_PARTS = (("cert", "pem"), ("key", "key"))


@pytest.fixture
def security(certificates: Path) -> Any:
    roles = ("scheduler", "worker", "client")
    shown = {f"tls_{role}_cert": str(certificates / f"{role}.pem") for role in roles}
    keys = {f"tls_{role}_key": str(certificates / f"{role}.key") for role in roles}
    return Security(tls_ca_file=str(certificates / "ca.pem"), **shown, **keys)


async def _echo(comm: Any) -> None:
    while True:
        try:
            await comm.write(await comm.read())
        except CommClosedError:
            return


@pytest.mark.parametrize("scheme", ["backhaul", "backhaul+tls"])
@gen_test()
async def test_comms_are_encrypted_with_the_certificates_of_their_roles(
    security: Any, scheme: str
) -> None:
    options: dict[str, Any] = {"dashboard_address": ":0", "port": 0, "security": security}
    async with Scheduler(protocol=f"{scheme}://", **options) as scheduler:
        assert scheduler.address.startswith(f"{scheme}://")
        async with Worker(scheduler.address, security=security) as worker:
            assert worker.address.startswith(f"{scheme}://")
            async with Client(scheduler.address, security=security, asynchronous=True) as client:
                assert await client.submit(sum, [1, 2]) == 3
                info = client.scheduler_comm.comm.extra_info
                assert info["peercert"]["subject"] == ((("commonName", "scheduler"),),)
                assert info["cipher"] == ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256)
                arguments = security.get_connection_args("client")
                comm = await connect(worker.address, **arguments)
                assert comm.extra_info["peercert"]["subject"] == ((("commonName", "worker"),),)
                await comm.close()


@gen_test()
async def test_ciphers_and_versions_are_kept_to(security: Any) -> None:
    import ssl

    security.tls_max_version = ssl.TLSVersion.TLSv1_2
    security.tls_ciphers = "ECDHE-ECDSA-AES128-GCM-SHA256"
    arguments = security.get_listen_args("scheduler")
    async with listen("backhaul://127.0.0.1", _echo, **arguments) as listener:
        comm = await connect(listener.contact_address, **security.get_connection_args("client"))
        assert comm.extra_info["cipher"] == ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLSv1.2", 128)
        await comm.write({"x": 1})
        assert await comm.read() == {"x": 1}
        await comm.close()


@gen_test()
async def test_peers_with_and_without_encryption_disconnect_immediately(security: Any) -> None:
    arguments = security.get_listen_args("scheduler")
    async with listen("backhaul://127.0.0.1", _echo, **arguments) as listener:
        with pytest.raises(CommClosedError, match="speaks TLS"):
            await connect(listener.contact_address, timeout=300)
    async with listen("backhaul://127.0.0.1", _echo) as listener:
        arguments = security.get_connection_args("client")
        with pytest.raises(CommClosedError, match="may not speak TLS"):
            await connect(listener.contact_address, timeout=300, **arguments)


@gen_test()
async def test_each_context_is_known_by_the_settings_that_made_it(
    certificates: Path, security: Any
) -> None:
    """Also where those are gone, and others of the same authority are there."""
    files = {"tls_ca_file": str(certificates / "ca.pem")}

    async def subject(role: str) -> str:
        settings = {
            f"tls_client_{kind}": str(certificates / f"{role}.{end}") for kind, end in _PARTS
        }
        arguments = Security(**files, **settings).get_connection_args("client")
        comm = await connect(listener.contact_address, **arguments)
        found = (await comm.read())["subject"]
        await comm.close()
        return str(found)

    async def tell(comm: Any) -> None:
        await comm.write({"subject": comm.extra_info["peercert"]["subject"][0][0][1]})

    arguments = security.get_listen_args("scheduler")
    async with listen("backhaul://127.0.0.1", tell, **arguments) as listener:
        for role in ("worker", "client", "scheduler"):
            assert await subject(role) == role


@gen_test()
async def test_the_encrypted_scheme_needs_certificates() -> None:
    with pytest.raises(RuntimeError, match="name no certificates"):
        await listen("backhaul+tls://127.0.0.1", _echo)


_TEMPORARY = """
import sys
from distributed import Client, LocalCluster
from distributed.security import Security

if __name__ == "__main__":
    security = Security.temporary()
    with LocalCluster(
        2, threads_per_worker=1, protocol="backhaul", security=security,
        dashboard_address=":0", processes=True,
    ) as cluster, Client(cluster) as client:
        assert cluster.scheduler_address.startswith("backhaul://")
        blocks = client.map(lambda i: bytes([i]) * 500_000, range(8))
        total = client.submit(lambda blocks: sum(map(len, blocks)), blocks)
        assert total.result(60) == 4_000_000
        infos = client.run(lambda dask_worker: dask_worker.batched_stream.comm.extra_info)
        assert len(infos) == 2
        for info in infos.values():
            assert info["cipher"][1] == "TLSv1.3", info
            assert info["peercert"]["subjectAltName"] == (("DNS", "dask-internal"),), info
    print("encrypted")
"""


def test_a_cluster_of_processes_is_encrypted_with_certificates_in_memory(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="Security.temporary needs cryptography")
    program = tmp_path / "program.py"
    program.write_text(_TEMPORARY)
    run = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.stdout.strip() == "encrypted", run.stderr


def test_the_doctor_says_how_to_reach_a_cluster_with_certificates_or_a_secret(
    certificates: Path,
) -> None:
    files = (certificates / name for name in ("ca.pem", "scheduler.pem", "scheduler.key"))
    with backhaul.listen("127.0.0.1:0", tls=backhaul.Tls(*files)) as listener:
        (finding,) = examine(f"backhaul://{listener.address}")
        assert "the peer speaks TLS" in finding.detail
        assert "distributed.comm.tls.ca-file" in finding.advice
    context = backhaul.Context(secret=b"0123456789abcdef")
    with context, context.listen("127.0.0.1:0") as listener:
        (finding,) = examine(f"backhaul://{listener.address}")
        assert "secret" in finding.detail
        assert "distributed.comm.backhaul.secret-file" in finding.advice
    (finding,) = examine("tcp://127.0.0.1:9")
    assert "does this host reach it" in finding.advice
