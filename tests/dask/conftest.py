"""Fixtures for the Dask room: pairs of comms on each lane, and Dask's own programs as processes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from distributed import core, process, utils, utils_test
from distributed.comm import connect, listen

import dask
from backhaul.dask import BackhaulComm
from backhaul.dask.compat import activation

#: Opens a comm and its peer; closes both in the end.
CommPair: TypeAlias = Callable[..., AbstractAsyncContextManager[tuple[BackhaulComm, BackhaulComm]]]
#: Waits until a condition holds; for what nothing announces.
Eventually: TypeAlias = Callable[[Callable[[], object]], Awaitable[None]]
#: Starts ``python …``.
Start: TypeAlias = Callable[..., "Program"]

DEADLINE_S = 300

# Dask ends each test of its kind after 30 s, which a busy machine takes for some. Before any module
# imports them; less than pytest's watchdog, as they tell which task was waiting for what.
for _name in ("gen_cluster", "gen_test"):
    setattr(utils_test, _name, functools.partial(getattr(utils_test, _name), timeout=500))

_wait_for = process.wait_for


async def _wait_patiently(future: Awaitable[Any], timeout: Any) -> Any:
    # A nanny gives a worker that it has killed the last of its 5 s to end.
    return await _wait_for(future, DEADLINE_S if timeout is not None and timeout <= 1 else timeout)


setattr(process, "wait_for", _wait_patiently)  # noqa: B010

# In the place of the modules that Dask names, which `preloaded` imports, too
multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.dask.preloaded"])
setattr(utils, "_forkserver_preload_set", True)  # noqa: B010

_EC = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"

needs_wheel = pytest.mark.skipif(find_spec("libucx") is None, reason="no wheel libucx")


@pytest.fixture(params=["inproc", "shm", "tcp", pytest.param("ucx", marks=needs_wheel)])
def lane(request: pytest.FixtureRequest) -> str:
    """Each lane that two ends in one process can use."""
    return str(request.param)


@pytest.fixture
def comm_pair(lane: str) -> CommPair:
    """Open pairs of comms on one lane."""

    @contextlib.asynccontextmanager
    async def open_pair(
        address: str = "backhaul://127.0.0.1",
        *,
        config: dict[str, Any] | None = None,
        connect_args: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> AsyncIterator[tuple[BackhaulComm, BackhaulComm]]:
        accepted: asyncio.Queue[BackhaulComm] = asyncio.Queue()
        settings = {"distributed.comm.backhaul.lanes": [lane], **(config or {})}
        with dask.config.set(settings):
            async with listen(address, accepted.put, **arguments) as listener:
                a = await connect(listener.contact_address, **arguments, **(connect_args or {}))
                b = await accepted.get()
        assert a.lane == b.lane == lane
        try:
            yield a, b
        finally:
            a.abort()
            b.abort()

    return open_pair


@pytest.fixture
def eventually() -> Eventually:
    """Look again and again until a condition holds."""

    async def wait(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.005)

    return wait


class Program:
    """A running ``python …`` and what it writes.

    Parameters
    ----------
    arguments : str
        Arguments of the interpreter.
    env : dict of str to str, optional
        Variables to add to the environment.
    within : sequence of str
        Command to run it with, such as ``ip netns exec …``.
    stdin : bool
        It reads what `write` is given.
    """

    def __init__(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        within: Sequence[str] = (),
        stdin: bool = False,
    ) -> None:
        self.process = subprocess.Popen(
            [*within, sys.executable, *arguments],
            stdin=subprocess.PIPE if stdin else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(env or {})},
            # Its own group: what it started goes with it.
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def write(self, text: str) -> None:
        """Give it something to read."""
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def wait_for(self, pattern: str) -> str:
        """Wait for a line to match, and return its first group."""
        compiled = re.compile(pattern)

        def find() -> re.Match[str] | None:
            return next(filter(None, map(compiled.search, self.lines)), None)

        with self._changed:
            self._changed.wait_for(
                lambda: find() or self.process.poll() is not None, timeout=DEADLINE_S
            )
            found = find()
        assert found, f"no line like {pattern!r} in:\n{self.output}"
        return found[1]

    def wait(self) -> int:
        """Wait for the end, and return the exit status."""
        status = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return status

    def kill(self) -> None:
        """End it at once, with SIGKILL, and everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.wait()

    @property
    def output(self) -> str:
        """Return the output so far."""
        return "".join(self.lines)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        # A waiting thread reads the exit status next, so the process has to have ended.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        with self._changed:
            self._changed.notify_all()


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Start programs that end with the module's last test."""
    programs: list[Program] = []

    def start_program(*arguments: str, **options: Any) -> Program:
        program = Program(*arguments, **options)
        programs.append(program)
        return program

    yield start_program
    for program in programs:
        program.kill()


#: Forks worker processes from one that has imported Dask: an import takes a processor a second.
#: Dask spawns workers by default, as `test_cluster.py`, `test_cli.py` and others do.
FORKED: Final = {"distributed.worker.multiprocessing-method": "forkserver"}


@pytest.fixture(scope="module")
def forked_workers() -> Iterator[None]:
    """Set `FORKED` for a module; a test of `gen_cluster` has settings of its own."""
    with dask.config.set(FORKED):
        yield


@pytest.fixture(autouse=True)
def no_server_is_kept() -> Iterator[None]:
    """Release the schedulers and workers of a test that is over.

    Dask remembers for ever which of their handlers take a comm, and what pages of the dashboard
    have. Objects that are there when the next module begins are kept out of garbage collection.
    """
    yield
    core._expects_comm.cache_clear()
    if (pages := sys.modules.get("distributed.dashboard.scheduler")) is not None:
        inspect.getclosurevars(pages.template_variables).nonlocals["cache"].clear()


@pytest.fixture
def plain_dask() -> Iterator[None]:
    """Take back what Backhaul has put in the place of Dask's functions, until it is used again."""
    activation.uninstall()
    yield
    activation.uninstall()
    activation.install()


@pytest.fixture
def copied_dask(tmp_path: Path) -> Path:
    """Return a folder with the sources of the Dask that is installed, for a test to change."""
    installed = Path(dask.__file__).parent.parent
    for package in ("dask", "distributed"):
        shutil.copytree(
            installed / package,
            tmp_path / package,
            ignore=shutil.ignore_patterns("tests", "*.js", "*.html"),
        )
    return tmp_path


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an authority, and a certificate of it for each role."""
    folder = tmp_path_factory.mktemp("tls")

    def run(command: str) -> None:
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True, timeout=300)

    for ca in ("ca", "other"):
        run(f"openssl req -x509 {_EC} -days 3 -subj /CN={ca} -keyout {ca}.key -out {ca}.pem")
    for role in ("scheduler", "worker", "client"):
        run(f"openssl req {_EC} -subj /CN={role} -keyout {role}.key -out {role}.csr")
        sign = "openssl x509 -req -days 3 -CAcreateserial -CA ca.pem -CAkey ca.key"
        run(f"{sign} -in {role}.csr -out {role}.pem")
    return folder
