"""Fixtures for the native fabric: connected endpoints on each lane, and programs as processes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pytest

from backhaul import Context, Endpoint, Request

T = TypeVar("T")

#: Gives the result of a request, awaited or waited for.
Finish: TypeAlias = Callable[[Request[Any]], Awaitable[Any]]
#: Connects two endpoints of this process over one lane: ``with connected("shm") as (a, b)``.
Connected: TypeAlias = Callable[..., AbstractContextManager[tuple[Endpoint, Endpoint]]]
#: Starts a Python program.
Start: TypeAlias = Callable[..., "Program"]
#: Returns once a condition holds; for what nothing announces.
Eventually: TypeAlias = Callable[[Callable[[], object]], None]

#: When to give up on what should have happened.
DEADLINE_S = 300.0


@pytest.fixture(params=["inproc", "shm", "tcp"])
def lane(request: pytest.FixtureRequest) -> str:
    """Each lane that two ends in one process can use."""
    return str(request.param)


@pytest.fixture(params=["shm", "tcp"])
def far_lane(request: pytest.FixtureRequest) -> str:
    """Each lane that two processes can use."""
    return str(request.param)


@pytest.fixture(params=["await", "wait"])
def finish(request: pytest.FixtureRequest) -> Finish:
    """Both ways to get the result of a request."""

    async def awaited(operation: Request[Any]) -> Any:
        return await operation

    async def waited_for(operation: Request[Any]) -> Any:
        return operation.wait(DEADLINE_S)

    return awaited if request.param == "await" else waited_for


@pytest.fixture
def connected() -> Connected:
    """Connect two endpoints of this process."""

    @contextlib.contextmanager
    def connect(lane: str, **settings: Any) -> Iterator[tuple[Endpoint, Endpoint]]:
        with Context(lanes=[lane], **settings) as context:
            with context.listen("127.0.0.1:0") as listener:
                connecting = context.connect(listener.address)
                b = listener.accept().wait(DEADLINE_S)
                a = connecting.wait(DEADLINE_S)
            assert a.lane == b.lane == lane
            yield a, b

    return connect


@pytest.fixture
def eventually() -> Eventually:
    """Wait until a condition holds."""

    def wait(condition: Callable[[], object]) -> None:
        give_up_at = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < give_up_at, "it never came to hold"
            time.sleep(0.001)

    return wait


class Program:
    """A Python program in a process of its own, spoken to line by line.

    The words of ``prefix`` are put before the command.
    """

    def __init__(
        self,
        source: str,
        *arguments: str,
        prefix: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        # A file, so that neither pipe can fill up while the other is read.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [
                *prefix,
                *(sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(source)),
                *arguments,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=env,
        )

    def line(self) -> str:
        """Read the next line that the program prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the program ended: {self.end()}")
        return line.rstrip("\n")

    def tell(self, line: str = "") -> None:
        """Write a line that the program reads."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; gives the exit status and what is left of stdout and stderr."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        out = self.process.stdout.read()
        status = self.process.wait(DEADLINE_S)
        self._stderr.seek(0)
        return status, out, self._stderr.read().decode()

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def close(self) -> None:
        """Leave nothing behind."""
        self.kill()
        for stream in (self.process.stdin, self.process.stdout, self._stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@pytest.fixture
def start() -> Iterator[Start]:
    """Start programs, which end with the test."""
    with contextlib.ExitStack() as programs:

        def start_one(
            source: str,
            *arguments: object,
            prefix: Sequence[str] = (),
            env: Mapping[str, str] | None = None,
        ) -> Program:
            program = Program(source, *map(str, arguments), prefix=prefix, env=env)
            programs.callback(program.close)
            return program

        yield start_one


#: Listens over a lane and sends back what it gets: frames as frames, tagged messages tagged.
ECHO = """
    import asyncio
    import sys

    import backhaul

    async def echo_frames(endpoint):
        while True:
            await endpoint.send_frames(await endpoint.recv_frames())

    async def echo_tagged(endpoint):
        buffer = bytearray(int(sys.argv[2]))
        while True:
            nbytes, tag = await endpoint.recv(buffer, mask=0)
            await endpoint.send(memoryview(buffer)[:nbytes], tag=tag)

    async def main():
        context = backhaul.Context(lanes=[sys.argv[1]])
        with context.listen("127.0.0.1:0") as listener:
            print(listener.address, flush=True)
            endpoint = await listener.accept()
        echoes = [asyncio.ensure_future(f(endpoint)) for f in (echo_frames, echo_tagged)]
        for outcome in await asyncio.gather(*echoes, return_exceptions=True):
            print(type(outcome).__name__, flush=True)

    asyncio.run(main())
"""


@pytest.fixture
def echo(start: Start) -> Callable[..., AbstractContextManager[tuple[Endpoint, Program]]]:
    """Connect to an echo in another process: ``with echo("shm") as (endpoint, program)``."""

    @contextlib.contextmanager
    def connect(
        lane: str, *, buffer_bytes: int = 1 << 20, **settings: Any
    ) -> Iterator[tuple[Endpoint, Program]]:
        program = start(ECHO, lane, buffer_bytes)
        with Context(lanes=[lane], **settings) as context:
            endpoint = context.connect(program.line()).wait(DEADLINE_S)
            assert endpoint.lane == lane
            yield endpoint, program

    return connect


#: Connects to an echo in another process.
Echo: TypeAlias = Callable[..., AbstractContextManager[tuple[Endpoint, Program]]]


#: Begins a program that `run_gpu` runs.
_GPU_NAMES = """
import ctypes, gc, sys, time, weakref

import backhaul
from backhaul import _native
from device_arrays import *
"""


@pytest.fixture
def run_gpu(
    start: Start, cuda_driver: Path | None, gpu_environment: dict[str, str]
) -> Callable[..., None]:
    """Run a program that imports `device_arrays`, with changes of its environment."""

    def run(source: str, *arguments: object, **environment: str) -> None:
        if cuda_driver is None and any(name.startswith("FAKE_CUDA_") for name in environment):
            pytest.skip("a driver of NVIDIA's cannot be told to do this")
        program = start(_GPU_NAMES + source, *arguments, env={**gpu_environment, **environment})
        status, _, errors = program.end()
        assert status == 0, errors

    return run
