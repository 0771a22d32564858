"""Fixtures for the UCX-Py API: connected endpoints on each lane, and programs as processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

import pytest

import backhaul.ucp as ucp

#: Connects two endpoints of this process: ``async with connected() as (a, b)``, a having connected.
Connected: TypeAlias = Callable[..., AbstractAsyncContextManager[tuple[ucp.Endpoint, ucp.Endpoint]]]
#: Starts a Python program: ``start(code, *arguments)``.
Start: TypeAlias = Callable[..., "Program"]

#: When to give up on what should have happened.
DEADLINE_S = 300.0


class Program:
    """A Python program in a process of its own, which we write lines to and read lines from."""

    def __init__(self, code: str, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(code), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def read(self) -> str:
        """Read a line, without its end."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            _, errors = self.process.communicate(timeout=DEADLINE_S)
            raise AssertionError(f"the program ended: {errors}")
        return line.rstrip("\n")

    def write(self, line: str) -> None:
        """Write a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Wait for its end, which must be in order and without a word on stderr.

        But for the warning of a listener on all interfaces, as those of UCX-Py are.
        """
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        # Asyncio's debug mode names steps that took 0.1 s, as any does on a busy machine.
        expected = re.compile(r"is open to every process|^Executing <.* took \d+\.\d+ seconds$")
        lines = [line for line in errors.splitlines() if not expected.search(line)]
        assert (self.process.returncode, lines) == (0, [])


@pytest.fixture
def start() -> Iterator[Start]:
    """Start programs, and end those that a failed test leaves."""
    programs: list[Program] = []

    def start_one(code: str, *arguments: str, **environment: str) -> Program:
        # Without a path before ours, so that no file here is taken for a module.
        programs.append(Program(code, arguments, {**os.environ, **environment}))
        return programs[-1]

    yield start_one
    for program in programs:
        program.process.kill()
        program.process.communicate()


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin and end each test without a context, and without options of the environment."""
    for name in [name for name in os.environ if name.startswith("UCX")]:
        monkeypatch.delenv(name)
    with contextlib.suppress(ucp.exceptions.UCXError):
        ucp.reset()
    yield
    with contextlib.suppress(ucp.exceptions.UCXError):
        ucp.reset()


@pytest.fixture(params=["self", "posix", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    """Choose each lane that two ends in one process can use, by its name in UCX."""
    ucp.init({"TLS": request.param})
    return str(request.param)


@pytest.fixture
def connected() -> Connected:
    """Connect two endpoints of this process."""

    @contextlib.asynccontextmanager
    async def connect(**options: bool) -> AsyncIterator[tuple[ucp.Endpoint, ucp.Endpoint]]:
        accepted: asyncio.Future[ucp.Endpoint] = asyncio.get_running_loop().create_future()
        listener = ucp.create_listener(accepted.set_result, **options)
        a = await ucp.create_endpoint("127.0.0.1", listener.port, **options)
        b = await accepted
        listener.close()
        try:
            yield a, b
        finally:
            a.abort()
            b.abort()

    return connect


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop run until a condition holds; for what nothing announces."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], object]:
    """Give what waits for a condition."""
    return until
