"""Peer: ucx_perftest, what UCX reaches in C without any Python."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import partial

from backhaul_bench.pair import Contender, ContenderFailed, Latency, end_process
from backhaul_bench.peers import Interpreter, Peer, Variant

__all__ = ["PEER", "Perftest", "parse_final_line"]

_RUN_TIMEOUT_S = 120.0


def _start(variant: Variant, interpreter: Interpreter) -> Contender:
    folder = interpreter.packages["libucx"]
    return Perftest(
        os.path.join(folder, "bin", "ucx_perftest"),
        lane=variant.label,
        environment={
            "LD_LIBRARY_PATH": os.path.join(folder, "lib"),
            "UCX_WARN_UNUSED_ENV_VARS": "n",
            **variant.environment,
        },
    )


PEER = Peer(
    "ucx_perftest",
    [
        Variant("shm", "C", environment={"UCX_TLS": "self,sysv,posix,cma"}),
        Variant("tcp", "C", environment={"UCX_TLS": "self,tcp"}),
    ],
    packages=["libucx"],
    start_variant=_start,
)


class Perftest:
    """Runs the program as a server and as a client, anew for each figure.

    Parameters
    ----------
    program : str
        Path of ucx_perftest.
    lane : str
        Lane to which the environment restricts it.
    environment : mapping of str to str
        Variables to add to this process's own.
    """

    def __init__(self, program: str, *, lane: str, environment: Mapping[str, str]) -> None:
        self.lane = lane
        self._program = program
        self._environment = {**os.environ, **environment}

    def pingpong(self, *, nbytes: int, iterations: int, warmup: int) -> Latency:
        """Run ``tag_lat``, once for each percentile.

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
            If the program failed or printed something else than expected.
        """
        run = partial(self._run, "tag_lat", nbytes, iterations, warmup)
        return Latency(*(run("-R", rank)[0] * 1e3 for rank in ("50", "99")))

    def stream(self, *, nbytes: int, count: int, warmup: int, window: int) -> float:
        """Run ``tag_bw``.

        Parameters
        ----------
        nbytes : int
            Size of each message, in bytes.
        count : int
            Measured messages.
        warmup : int
            Messages before them that are not counted.
        window : int
            Messages that may be in flight.

        Returns
        -------
        float
            Bytes per second.

        Raises
        ------
        ContenderFailed
            If the program failed or printed something else than expected.
        """
        # It prints MB/s in units of 2**20; the time for a message is more exact for small ones.
        average_us = self._run("tag_bw", nbytes, count, warmup, "-O", str(window))[2]
        return nbytes / (average_us * 1e-6)

    def close(self) -> None:
        """Nothing outlives a measurement."""

    def _run(
        self, test: str, nbytes: int, iterations: int, warmup: int, *more: str
    ) -> Sequence[float]:
        port = str(_free_port())
        server = self._start("-p", port)
        try:
            _wait_for_listener(int(port), server)
            options = ["-t", test, "-s", str(nbytes), "-n", str(iterations), "-w", str(warmup)]
            client = self._start("127.0.0.1", "-p", port, *options, *more)
            try:
                output, _ = client.communicate(timeout=_RUN_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise ContenderFailed(f"ucx_perftest did not end in {_RUN_TIMEOUT_S} s") from None
            finally:
                end_process(client, grace_s=0)
        finally:
            end_process(server)
            if server.stdout is not None:
                server.stdout.close()
        return parse_final_line(output.decode(errors="replace"))

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self._program, *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def parse_final_line(output: str) -> list[float]:
    """Read the figures of the last line of a run.

    Parameters
    ----------
    output : str
        Output of the client.

    Returns
    -------
    list of float
        Percentile, average and overall latency in µs, then bandwidths and message rates, without
        the number of iterations before them.

    Raises
    ------
    ContenderFailed
        If there is no such line.
    """
    for line in reversed(output.splitlines()):
        match = re.match(r"\s*Final:\s+(\d+)\s+(.+)$", line)
        if match:
            return [float(figure) for figure in match[2].split()]
    raise ContenderFailed(f"no result from ucx_perftest:\n{output[-500:]}")


def _free_port() -> int:
    """Find a port that is free now; ucx_perftest cannot choose one itself."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _wait_for_listener(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait until a process listens, without connecting: the server takes the first connection."""
    deadline = time.monotonic() + 10
    listening = f":{port:04X} 00000000:0000 0A"
    while time.monotonic() < deadline and server.poll() is None:
        with open("/proc/net/tcp", encoding="ascii") as table:
            if any(listening in line for line in table):
                return
        with open("/proc/net/tcp6", encoding="ascii") as table:
            if any(f":{port:04X} " in line and " 0A " in line for line in table):
                return
        time.sleep(0.01)
    raise ContenderFailed("the server of ucx_perftest did not listen")
