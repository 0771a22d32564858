"""A secret in Dask: where it is read from, who gets in, what is said to who does not."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from distributed import Client, LocalCluster
from distributed.comm import CommClosedError, connect, listen
from distributed.utils_test import gen_test

import dask
from backhaul.dask import Settings
from backhaul.dask.comm.backend import _repeated
from backhaul.dask.comm.native_context import shared_context

if TYPE_CHECKING:
    from tests.dask.conftest import Start

SECRET = "a secret of this cluster, drawn at random"
ROOT = "distributed.comm.backhaul"


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    return path


def with_secret(secret: object = SECRET) -> Any:
    return dask.config.set({f"{ROOT}.secret": secret})


def test_it_comes_from_the_configuration_or_a_file_and_is_not_shown(secret_file: Path) -> None:
    with with_secret():
        first = Settings.current()
    with dask.config.set({f"{ROOT}.secret-file": str(secret_file)}):
        second = Settings.current()
    assert first.secret == second.secret
    assert first == second
    assert first.secret is not None
    assert first.secret.value == SECRET.encode()
    assert SECRET not in repr(first)
    assert SECRET not in repr(first.secret)
    assert shared_context(first) is shared_context(second)
    assert shared_context(first) is not shared_context(Settings.current())


def test_an_environment_variable_is_enough() -> None:
    program = (
        "from backhaul.dask import Settings;"
        "s = Settings.current(); print(s.secret.value.decode(), s, sep='|')"
    )
    env = {**os.environ, "DASK_DISTRIBUTED__COMM__BACKHAUL__SECRET": SECRET}
    command = [sys.executable, "-c", program]
    out = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=300)
    secret, _, settings = out.stdout.partition("|")
    assert secret == SECRET
    assert SECRET not in settings


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o640, 0o644, 0o666])
def test_a_file_that_others_may_read_or_write_is_refused(secret_file: Path, mode: int) -> None:
    secret_file.chmod(mode)
    with (
        dask.config.set({f"{ROOT}.secret-file": str(secret_file)}),
        pytest.raises(ValueError, match=f"has mode {mode:o}: chmod 600 {secret_file}") as caught,
    ):
        Settings.current()
    assert SECRET not in str(caught.value)


def test_a_secret_that_makes_no_sense_is_refused_and_not_shown(
    secret_file: Path, tmp_path: Path
) -> None:
    file_key = f"{ROOT}.secret-file"
    os.mkfifo(tmp_path / "pipe", 0o600)
    cases: list[tuple[dict[str, object], str]] = [
        ({f"{ROOT}.secret": SECRET, file_key: str(secret_file)}, "are both set"),
        ({f"{ROOT}.secret": 1234567890123456}, "must be text, got a value of type int"),
        ({file_key: 7}, "must be the path of a file, got 7"),
        ({file_key: str(tmp_path / "absent")}, "cannot read .*absent.*No such file"),
        ({file_key: str(tmp_path)}, "is not a file"),
        ({file_key: str(tmp_path / "pipe")}, "is not a file"),
    ]
    for values, text in cases:
        with dask.config.set(values), pytest.raises(ValueError, match=text) as caught:
            Settings.current()
        assert SECRET not in str(caught.value)
        assert "1234567890" not in str(caught.value)
    with with_secret("short"), pytest.raises(ValueError, match="has 5 bytes") as caught:
        shared_context(Settings.current())
    assert "short" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_a_file_of_another_user_is_refused(secret_file: Path) -> None:
    os.chown(secret_file, 65534, 65534)
    with (
        dask.config.set({f"{ROOT}.secret-file": str(secret_file)}),
        pytest.raises(ValueError, match="belongs to user 65534, not to 0"),
    ):
        Settings.current()


@gen_test()
async def test_comms_need_the_same_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    # As in a process that has not warned yet.
    _repeated.__init__()  # type: ignore[misc]

    async def handle(comm: Any) -> None:
        await comm.write(await comm.read())

    with with_secret():
        async with listen("backhaul://127.0.0.1", handle) as listener:
            comm = await connect(listener.contact_address)
            await comm.write("hello")
            assert await comm.read() == "hello"
            await comm.close()
            for secret, text in [(None, "this side has none"), (SECRET[::-1], "may differ")]:
                # At once: Dask does not try again.
                with with_secret(secret), pytest.raises(CommClosedError, match=text):
                    await connect(listener.contact_address, timeout=30)
    async with listen("backhaul://127.0.0.1", handle) as listener:
        with with_secret(), pytest.raises(CommClosedError, match="the peer proves no secret"):
            await connect(listener.contact_address, timeout=30)
    said = [record for record in caplog.records if "cannot speak Backhaul" in record.message]
    assert len(said) == 1
    assert listener.contact_address not in said[0].message
    assert SECRET not in caplog.text


def test_workers_in_processes_inherit_it() -> None:
    with (
        with_secret(),
        LocalCluster(
            protocol="backhaul", n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        futures = client.map(lambda x: x + 1, range(10))
        assert client.submit(sum, futures).result() == 55

        def trust() -> Any:
            import gc

            from backhaul import Endpoint

            return {it.info()["trust"] for it in gc.get_objects() if isinstance(it, Endpoint)}

        found = client.run(trust)
        assert len(found) == 2
        # Objects of the native module are not all tracked; those that are say the same.
        assert set().union(*found.values()) <= {"secret"}
        with dask.config.set({f"{ROOT}.secret": None}), pytest.raises(OSError, match="none"):
            Client(cluster.scheduler_address, timeout=5)


def test_a_worker_without_it_says_so_and_one_with_it_computes(
    start: Start, secret_file: Path
) -> None:
    key = "DASK_DISTRIBUTED__COMM__BACKHAUL__SECRET"
    plain = {name: value for name, value in os.environ.items() if name != key}
    assert key not in plain
    scheduler = start(
        *("-m", "distributed.cli.dask_scheduler", "--no-dashboard", "--port", "0"),
        *("--protocol", "backhaul", "--host", "127.0.0.1"),
        env={f"{key}_FILE": str(secret_file)},
    )
    address = scheduler.wait_for(r"(backhaul://127\.0\.0\.1:\d+)")
    worker = ("-m", "distributed.cli.dask_worker", address, "--no-dashboard", "--nthreads", "1")
    stranger = start(*worker, "--no-nanny")
    assert stranger.wait_for("cannot speak Backhaul with .*(this side has none)")
    assert scheduler.wait_for("a connection was rejected.*(the peer proves no secret)")
    start(*worker, env={key: SECRET})
    with with_secret(), Client(address) as client:
        client.wait_for_workers(1, timeout=300)
        assert client.submit(lambda: 7).result(60) == 7
    assert SECRET not in scheduler.output + stranger.output


@gen_test()
async def test_a_wrong_secret_does_not_wait_for_the_timeout() -> None:
    with with_secret():
        async with listen("backhaul://127.0.0.1", lambda comm: None) as listener:
            with with_secret(None):
                attempts = [connect(listener.contact_address, timeout=3600) for _ in range(20)]
                outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    assert all(isinstance(outcome, CommClosedError) for outcome in outcomes)
