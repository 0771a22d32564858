"""Commands with addresses where no scheduler answers: the address and the reason, in few lines."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import Thread

import click
import pytest
from click.testing import CliRunner

import dask
from backhaul.cli import main as backhaul_command
from backhaul.dask.launch import scheduler_probe
from backhaul.dask.launch.command import main as dask_command
from backhaul.doctor import cluster

#: Time in which a command has to say why an address is dead, in seconds
NAMED_WITHIN_S = 5
LINES_MAX = 3
TIMED_OUT = "within"
LOCAL = ("127.0.0.1", 0)

pytest.importorskip("distributed")


@contextmanager
def refused() -> Iterator[int]:
    """Yield a port where no process listens."""
    with socket.socket() as unused:
        unused.bind(LOCAL)
        yield unused.getsockname()[1]


@contextmanager
def full() -> Iterator[int]:
    """Yield a port whose connections are not established, as behind a firewall."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(LOCAL, backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield server.getsockname()[1]


@contextmanager
def silent() -> Iterator[int]:
    """Yield a port where a server accepts connections and says nothing."""
    with socket.create_server(LOCAL) as server:
        yield server.getsockname()[1]


@contextmanager
def foreign() -> Iterator[int]:
    """Yield the port of a server that speaks another protocol."""

    def serve() -> None:
        while True:
            try:
                taken, _ = server.accept()
            except OSError:
                return
            with taken:
                taken.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(LOCAL) as server:
        thread = Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


PLACES = pytest.mark.parametrize(
    ("place", "scheme", "reason"),
    [
        (refused, "tcp", "Connection refused"),
        (refused, "backhaul", "Connection refused"),
        (full, "tcp", TIMED_OUT),
        (full, "backhaul", TIMED_OUT),
        (silent, "tcp", TIMED_OUT),
        (silent, "backhaul", TIMED_OUT),
        (foreign, "tcp", "does not speak Dask's protocol"),
        (foreign, "backhaul", "does not speak backhaul"),
    ],
)


def said_by(root: click.Command, *arguments: str) -> str:
    done = CliRunner().invoke(root, arguments)
    assert done.exit_code == 1, done.output
    assert isinstance(done.exception, SystemExit), done.exception
    return done.output


@PLACES
@pytest.mark.parametrize("command", ["explain", "doctor"])
def test_command_for_a_cluster_names_the_address_and_the_reason(
    command: str,
    place: Callable[[], AbstractContextManager[int]],
    scheme: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert cluster.TIMEOUT_S < NAMED_WITHIN_S
    # A busy machine may take seconds to be refused.
    monkeypatch.setattr(cluster, "TIMEOUT_S", 1 if reason == TIMED_OUT else 60)
    with place() as port:
        said = said_by(backhaul_command, command, f"{scheme}://127.0.0.1:{port}")
    assert f"{scheme}://127.0.0.1:{port}" in said
    assert reason in said
    if command == "explain":
        assert len(said.strip().splitlines()) <= LINES_MAX, said


@PLACES
def test_workers_name_the_address_and_the_reason(
    place: Callable[[], AbstractContextManager[int]],
    scheme: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempt_s, pause_s = scheduler_probe._ATTEMPT_S, scheduler_probe._PAUSE_S
    assert max(attempt_s, scheduler_probe._SAY_FIRST_S + pause_s) < NAMED_WITHIN_S
    monkeypatch.setattr(scheduler_probe, "_ATTEMPT_S", 1.0 if reason == TIMED_OUT else 60.0)
    limit_s = 1 if reason == TIMED_OUT else 5
    limit = dask.config.set({"distributed.comm.timeouts.connect": f"{limit_s}s"})
    with limit, place() as port:
        address = f"{scheme}://127.0.0.1:{port}"
        said = said_by(dask_command, "worker", address, "--nworkers", "1", "--nthreads", "1")
    *_, ended = said.splitlines()
    assert ended.startswith(
        f"Error: the scheduler at {address} was not reached within {limit_s} s: "
    )
    assert reason in ended


def test_name_without_a_host_is_refused() -> None:
    address = "tcp://no-such-host.invalid:8786"
    done = CliRunner().invoke(dask_command, ["worker", address])
    assert (done.exit_code, len(done.output.strip().splitlines())) == (2, 2), done.output
    assert address in done.output
    said = said_by(backhaul_command, "explain", address)
    assert f"{address} is not reached: " in said
    assert len(said.strip().splitlines()) <= LINES_MAX
