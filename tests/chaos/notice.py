"""Measures how long it takes until a process notices that its peer is gone.

::

    .venv/bin/python -m tests.chaos.notice --times 20

Two processes, on one host or on two network namespaces; the peer is killed, with or without a
forked child that lives on, or the link between the hosts is cut, with nothing on its way or with a
peer that has taken nothing for a while. The clock runs from just before that until a receive that
was posted has its error.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import backhaul
from backhaul import Context, Endpoint
from tests.chaos.network import Network, why_no_network

#: Sleeps, connected, with a child that it has forked if its arguments say so.
PEER = """
import os, sys, time

import backhaul

address, lane, forks = sys.argv[1:]
with backhaul.Context(lanes=[lane]) as context:
    endpoint = context.connect(address).wait(60)
    child = os.fork() if forks == "forks" else os.getpid()
    if child:
        print(child, flush=True)
    time.sleep(600)
"""

#: Program of the other host, which shares nothing with this side but the link.
WATCHER = """
import sys, time

import backhaul

full_s, interval_s, timeout_s = map(float, sys.argv[1:])
settings = {"keep_alive_interval_s": interval_s, "keep_alive_timeout_s": timeout_s}
with backhaul.Context(lanes=["tcp"], **settings) as context:
    with context.listen("10.79.2.2:0") as listener:
        print(listener.address, flush=True)
        endpoint = listener.accept().wait(60)
    receive = endpoint.recv_frames()
    # The peer does not receive them.
    sends = [endpoint.send_frames([bytes(1 << 20)]) for _ in range(20 if full_s else 0)]
    print("ready", flush=True)
    sys.stdin.readline()
    began_at = time.monotonic()
    try:
        receive.wait(300)
    except backhaul.PeerGone:
        print(time.monotonic() - began_at, flush=True)
"""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=10, help="of each kill")
    parser.add_argument("--interval", type=float, default=1.0, help="of the keep-alive, in seconds")
    parser.add_argument("--timeout", type=float, default=4.0, help="of the keep-alive, in seconds")
    parser.add_argument("--full", type=float, nargs="*", default=[5, 30], help="peers without room")
    options = parser.parse_args()
    for lane in ("shm", "tcp"):
        for forks in (False, True):
            taken = [killed(lane, forks) for _ in range(options.times)]
            what = f"killed, {lane}" + (", its forked child lives" if forks else "")
            show(
                f"{what}: median {statistics.median(taken) * 1e3:.1f} ms, "
                f"worst {max(taken) * 1e3:.1f} ms of {len(taken)}"
            )
    if reason := why_no_network():
        show(f"not cut off: {reason}")
        return 0
    settings = (options.interval, options.timeout)
    show(f"cut off, with a keep-alive of {settings[0]:g} s and {settings[1]:g} s:")
    for full_s in (0.0, *options.full):
        what = f"has taken nothing for {full_s:g} s" if full_s else "with nothing on its way"
        show(f"  {what}: {cut_off(full_s, settings):.2f} s")
    return 0


def killed(lane: str, forks: bool) -> float:
    """Kill a connected process, and give the seconds until that is noticed."""
    with Context(lanes=[lane]) as context, context.listen("127.0.0.1:0") as listener:
        arguments = [listener.address, lane, "forks" if forks else "no"]
        with program(PEER, arguments) as peer:
            endpoint = listener.accept().wait(60)
            child = int(local_queue_of(peer))
            try:
                return until_gone(endpoint, peer)
            finally:
                if forks:
                    os.kill(child, signal.SIGKILL)


def until_gone(endpoint: Endpoint, peer: subprocess.Popen[str]) -> float:
    """Kill the peer of an endpoint, and give the seconds until a receive fails."""
    receive = endpoint.recv_frames()
    began_at = time.monotonic()
    peer.kill()
    try:
        receive.wait(60)
    except backhaul.PeerGone:
        return time.monotonic() - began_at
    raise RuntimeError("a message came from a peer that sends none")


def cut_off(full_s: float, keep_alive: tuple[float, float]) -> float:
    """Cut a host off, and give the seconds until that is noticed."""
    network = Network({"here": "10.79.2.1", "there": "10.79.2.2"}, seed=0)
    try:
        network.make()
        arguments = [str(value) for value in (full_s, *keep_alive)]
        with program(WATCHER, arguments, within=network.within("there")) as watcher:
            address = local_queue_of(watcher)
            with program(PEER, [address, "tcp", "no"], within=network.within("here")) as peer:
                local_queue_of(peer)
                if full_s:
                    peer.send_signal(signal.SIGSTOP)
                local_queue_of(watcher)
                time.sleep(max(1.0, full_s))
                network.set_link("here", "there", is_cut=True)
                assert watcher.stdin is not None
                watcher.stdin.write("\n")
                watcher.stdin.flush()
                return float(local_queue_of(watcher))
    finally:
        network.close()


@contextmanager
def program(
    source: str, arguments: Sequence[str], within: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """Run a program, and end it."""
    command = [*within, sys.executable, "-W", "ignore", "-c", source, *arguments]
    started = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait(30)


def local_queue_of(started: subprocess.Popen[str]) -> str:
    """Read a line of a program."""
    assert started.stdout is not None
    line = started.stdout.readline()
    if not line:
        raise RuntimeError("a program ended early; what it says is above")
    return line.strip()


def show(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
