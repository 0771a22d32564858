"""The listening process of ``idle``; it starts the other one itself."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import backhaul
from backhaul_bench.pss import read_memory
from benches.python.certificates import make_files, tls_of

_CONNECT_TIMEOUT_S = 60.0


def main() -> None:
    """Listen, or connect if the first argument is an address."""
    raise_descriptor_limit()
    if sys.argv[1] == "connect":
        connect(sys.argv[2], sys.argv[3], Path(sys.argv[4]), int(sys.argv[5]))
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(sys.argv[1], Path(folder), int(sys.argv[2]), float(sys.argv[3]))


def measure(lane: str, folder: Path, peers: int, seconds: float) -> None:
    """Listen, and look at what the peers cost."""
    if lane == "tls":
        make_files(folder)
    with (
        backhaul.Context(**options(lane, folder)) as context,
        context.listen("127.0.0.1:0") as listener,
    ):
        where = [listener.address, lane, str(folder), f"{peers}"]
        other = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, "connect", *where],
            stdin=subprocess.PIPE,
            text=True,
        )
        try:
            # One connection is there before: what the first one costs is not of interest.
            endpoints = [listener.accept().wait(_CONNECT_TIMEOUT_S)]
            endpoints[0].recv_frames().wait(_CONNECT_TIMEOUT_S)
            before = [read_memory(pid).pss for pid in (os.getpid(), other.pid)]
            endpoints[0].send_frames([b"go"]).wait(_CONNECT_TIMEOUT_S)
            endpoints += [listener.accept().wait(_CONNECT_TIMEOUT_S) for _ in range(peers)]
            endpoints[0].recv_frames().wait(_CONNECT_TIMEOUT_S)
            # Work that the last of them left is not a cost of idle peers.
            time.sleep(1)
            began_s, cpu_began_s = time.monotonic(), time.process_time()
            time.sleep(seconds)
            used = (time.process_time() - cpu_began_s) / (time.monotonic() - began_s)
            after = [read_memory(pid).pss for pid in (os.getpid(), other.pid)]
        finally:
            other.communicate("over\n", timeout=_CONNECT_TIMEOUT_S)
    grown_bytes = sum(after) - sum(before)
    json.dump({"core_percent": 100 * used, "kb_each": grown_bytes / 2 / peers / 1e3}, sys.stdout)


def options(lane: str, folder: Path) -> dict[str, Any]:
    """Options of a context on a lane."""
    return {"lanes": [lane], **({"tls": tls_of(folder)} if lane == "tls" else {})}


def connect(address: str, lane: str, folder: Path, peers: int) -> None:
    """Open the endpoints, and hold them until told otherwise."""
    with backhaul.Context(**options(lane, folder)) as context:
        first = context.connect(address).wait(_CONNECT_TIMEOUT_S)
        first.send_frames([b"here"]).wait(_CONNECT_TIMEOUT_S)
        first.recv_frames().wait(_CONNECT_TIMEOUT_S)
        endpoints = [context.connect(address).wait(_CONNECT_TIMEOUT_S) for _ in range(peers)]
        first.send_frames([b"all"]).wait(_CONNECT_TIMEOUT_S)
        sys.stdin.readline()
        del endpoints


def raise_descriptor_limit() -> None:
    """Peers need a handful of descriptors each."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
