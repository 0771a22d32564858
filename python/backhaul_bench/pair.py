"""Contenders: whatever can be asked for a latency and a bandwidth, and the usual way to be one.

:class:`ProcessPair` starts the two processes of a driver (``backhaul_bench.child``), connects
them and passes commands to both. It ends everything it started, whatever happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import backhaul_bench
from backhaul_bench.control import Control

__all__ = ["Contender", "ContenderFailed", "Latency", "ProcessPair", "child_command", "end_process"]

#: A process that says nothing for so long has failed
ANSWER_TIMEOUT_S = 60.0

#: Modules of drivers that need this package whole, with its native module
_OURS = (".device_copy", ".ours", ".ucp_tags")

# A peer's interpreter is given this package by its folder, so that the site-packages beside it do
# not come along.
_BOOTSTRAP = """
import runpy, sys, types
package = types.ModuleType("backhaul_bench")
package.__path__ = [sys.argv.pop(1)]
sys.modules["backhaul_bench"] = package
runpy.run_module("backhaul_bench.child", run_name="__main__", alter_sys=True)
"""


class ContenderFailed(RuntimeError):
    """A measured process failed, did not start or did not answer."""


class Latency(NamedTuple):
    """One-way latency of a ping-pong: half a round trip."""

    p50_ns: float
    p99_ns: float


class Contender(Protocol):
    """Something that can be measured beside others."""

    @property
    def lane(self) -> str:
        """The path the bytes take, as far as it tells; empty before the first measurement."""

    def pingpong(self, *, nbytes: int, iterations: int, warmup: int) -> Latency:
        """Measure the one-way latency of messages of one size."""

    def stream(self, *, nbytes: int, count: int, warmup: int, window: int) -> float:
        """Measure how many bytes per second a window of messages moves."""

    def close(self) -> None:
        """End everything that was started; idempotent."""


def child_command(python: str, module: str, options: Mapping[str, Any], control: str) -> list[str]:
    """Build the command of one measured process, but for the role that comes last.

    Parameters
    ----------
    python : str
        The interpreter. Another one than this needs only the peer's own packages.
    module : str
        Module with ``make_driver``.
    options : mapping of str to Any
        Options of the driver.
    control : str
        Path of the control socket.

    Returns
    -------
    list of str
        The command.
    """
    if module.endswith(_OURS):
        start = [python, "-m", "backhaul_bench.child"]
    else:
        package = str(Path(backhaul_bench.__file__).parent)
        start = [python, "-c", _BOOTSTRAP, package]
    return [*start, module, json.dumps(dict(options)), control]


class ProcessPair:
    """Two processes (or one with two threads) that hold the ends of one connection.

    Parameters
    ----------
    module : str
        Module with ``make_driver``.
    options : mapping of str to Any
        Options of the driver.
    python : str
        The interpreter to run it with.
    environment : mapping of str to str
        Variables to add to this process's own.
    roles : sequence of str
        One process is started for each: ``server`` and ``client``, or ``both`` in one.
    launcher : sequence of str
        Words to put before the command, such as ``mpiexec -n 2``.

    Raises
    ------
    ContenderFailed
        If the processes did not start or connect.
    """

    def __init__(
        self,
        module: str,
        options: Mapping[str, Any],
        *,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        roles: Sequence[str] = ("server", "client"),
        launcher: Sequence[str] = (),
    ) -> None:
        self.lane = ""
        self._controls: dict[str, Control] = {}
        #: Answers that came before they were asked for
        self._inbox: dict[str, list[dict[str, Any]]] = {"server": [], "client": []}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._folder = tempfile.mkdtemp(prefix="backhaul-bench-")
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                path = os.path.join(self._folder, "control")
                listener.bind(path)
                listener.listen()
                command = child_command(python, module, options, path)
                for role in roles:
                    self._start([*launcher, *command, role], environment or {})
                while len(self._controls) < 2:
                    self._accept(listener)
            self._open()
        except BaseException:
            self.close()
            raise

    def pingpong(self, *, nbytes: int, iterations: int, warmup: int) -> Latency:
        """Measure the one-way latency of messages of one size.

        Parameters
        ----------
        nbytes : int
            Size of each message, in bytes.
        iterations : int
            Measured round trips.
        warmup : int
            Round trips before them that are not counted.

        Returns
        -------
        Latency
            In nanoseconds.

        Raises
        ------
        ContenderFailed
            If a process failed, or bytes arrived changed.
        """
        answer = self._command("pingpong", nbytes=nbytes, iterations=iterations, warmup=warmup)
        return Latency(answer["p50_ns"], answer["p99_ns"])

    def stream(self, *, nbytes: int, count: int, warmup: int, window: int) -> float:
        """Measure how many bytes per second a window of messages moves.

        Parameters
        ----------
        nbytes : int
            Size of each message, in bytes.
        count : int
            Measured messages.
        warmup : int
            Messages before them that are not counted.
        window : int
            Messages that may be in flight, and receive buffers used in turn.

        Returns
        -------
        float
            Bytes per second, until the receiver acknowledged the last message.

        Raises
        ------
        ContenderFailed
            If a process failed, or bytes arrived changed.
        """
        answer = self._command("stream", nbytes=nbytes, count=count, warmup=warmup, window=window)
        return float(nbytes * count / (answer["elapsed_ns"] * 1e-9))

    def close(self) -> None:
        """End both processes and remove the control socket; idempotent."""
        for role in self._controls:
            self._send(role, op="close")
        for control in self._controls.values():
            with contextlib.suppress(OSError):
                control.close()
        self._controls.clear()
        for process in self._processes:
            end_process(process)
        self._processes.clear()
        self._errors.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, command: list[str], environment: Mapping[str, str]) -> None:
        self._processes.append(
            subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,
            )
        )

    def _accept(self, listener: socket.socket) -> None:
        """Take one more control connection, unless a process ends first."""
        listener.settimeout(0.2)
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                ended = [each for each in self._processes if each.poll() is not None]
                if ended or time.monotonic() > deadline:
                    status = ended[0].returncode if ended else "no connection"
                    raise self._failure(f"the measured process did not start ({status})") from None
                continue
            connection.settimeout(ANSWER_TIMEOUT_S)
            control = Control(connection)
            self._controls[control.receive()["role"]] = control
            return

    def _open(self) -> None:
        self._send("server", op="open")
        address = self._answer("server")["address"]
        self._send("client", op="open", address=address)
        self.lane = str(self._answer("client")["lane"])
        self._answer("server")

    def _command(self, operation: str, **parameters: int) -> dict[str, Any]:
        for role in self._controls:
            self._send(role, op=operation, **parameters)
        answer = self._answer("client")
        self._answer("server")
        return answer

    def _send(self, role: str, **message: Any) -> None:
        # Of a process that ended, the answer tells why.
        with contextlib.suppress(OSError):
            self._controls[role].send(**message)

    def _answer(self, role: str) -> dict[str, Any]:
        """Wait for one answer of one role, or for the failure of either."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while not self._inbox[role]:
            ready = [each for each in self._controls.values() if each.has_message()]
            if not ready:
                left_s = max(0.0, deadline - time.monotonic())
                ready = select.select(list(self._controls.values()), [], [], left_s)[0]
            if not ready:
                raise self._failure(f"the {role} did not answer in {ANSWER_TIMEOUT_S:.0f} s")
            for each, control in self._controls.items():
                if control in ready:
                    self._receive(each, control)
        return self._inbox[role].pop(0)

    def _receive(self, role: str, control: Control) -> None:
        try:
            answer = control.receive()
        except OSError as error:
            raise self._failure(f"the {role} ended: {error}") from error
        if "error" in answer:
            raise ContenderFailed(f"{role}: {answer['error']}\n{answer.get('detail', '')}".strip())
        self._inbox[role].append(answer)

    def _failure(self, what: str) -> ContenderFailed:
        """Describe a failure with the last lines that the processes wrote."""
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()[-8:]
        return ContenderFailed("\n".join([what, *said]))


def end_process(process: subprocess.Popen[bytes], *, grace_s: float = 2.0) -> None:
    """Wait for a process that was asked to end, then end it and its children by force.

    Parameters
    ----------
    process : Popen
        A process that leads a session of its own.
    grace_s : float
        How long it may take to end by itself, in seconds.
    """
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
