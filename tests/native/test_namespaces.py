"""Namespaces that two containers of one host have to share so that they share memory.

``docs/guides/containers.md`` has the same table. A container is a set of namespaces, of which
``unshare`` gives a process new ones, those apart that matter. Networks of their own are those of
``tests/dask/test_launch_hosts.py``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence

import pytest

import backhaul

WATCHDOG_S = 60

CONNECT = """
import sys
import backhaul

endpoint = backhaul.connect(sys.argv[1]).wait(60)
endpoint.send(b"here").wait(60)
info = endpoint.info()
print(info["lane"], ",".join(info["carriers"]), info["reason"], sep="|")
endpoint.close().wait(60)
"""

NEW = {
    "ipc, host name, control groups, a /dev/shm of its own": [
        "--ipc",
        "--uts",
        "--cgroup",
        "--mount",
    ],
    "process ids": ["--pid", "--fork", "--mount-proc"],
    "users, mapped": ["--user", "--map-root-user"],
    "users, not mapped": ["--user"],
}
LANES = {"users, not mapped": "tcp"}


def connect_by(command: Sequence[str]) -> list[str]:
    """Connect from a process that a command starts; gives lane, carriers and reason."""
    with backhaul.listen("127.0.0.1:0") as listener:
        accepting = listener.accept()
        child = subprocess.Popen(
            [*command, sys.executable, "-c", CONNECT, listener.address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            with accepting.wait(WATCHDOG_S) as endpoint:
                endpoint.recv(bytearray(4)).wait(WATCHDOG_S)
                said, complaints = child.communicate(timeout=WATCHDOG_S)
        finally:
            child.kill()
            child.wait()
    assert child.returncode == 0, complaints
    return said.strip().split("|")


@pytest.fixture(scope="module", autouse=True)
def unshare() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    for options in NEW.values():
        tried = subprocess.run(["unshare", *options, "true"], capture_output=True, text=True)
        if tried.returncode:
            pytest.skip(f"unshare {' '.join(options)} is not permitted: {tried.stderr.strip()}")


@pytest.mark.parametrize("name", NEW)
def test_the_lane_into_a_new_namespace_is_what_the_guide_says(name: str) -> None:
    command = ["unshare", *NEW[name]]
    if "/dev/shm" in name:
        # In a mount namespace of its own, so that no other process sees it
        script = 'mount -t tmpfs none /dev/shm && exec "$0" "$@"'
        command += ["sh", "-c", script]
    lane, carriers, reason = connect_by(command)
    assert lane == LANES.get(name, "shm"), reason
    if name == "process ids":
        # Whose memory to read cannot be said then; it is lent all the same.
        assert carriers == "lease"
        assert "single-copy: the peer is in another process id namespace" in reason
