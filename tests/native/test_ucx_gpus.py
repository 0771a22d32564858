"""Memory of GPUs by UCX, under a driver that needs no GPU: on one host, and between two."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.dask.hosts import Hosts, needs_namespaces

pytestmark = pytest.mark.skipif(
    find_spec("libucx") is None and "BACKHAUL_LIBUCP" not in os.environ,
    reason="no wheel libucx, and BACKHAUL_LIBUCP names no libucp",
)

ADDRESSES = {"sender": "10.81.7.1", "receiver": "10.81.7.2"}

_RECEIVER = """
import sys
import backhaul
from device_arrays import DATA, DeviceArray

context = backhaul.Context(lanes=["ucx"], carriers=["ucx", "ucx-cuda"])
listener = backhaul.listen(sys.argv[1] + ":0", context=context)
print(listener.address, flush=True)
endpoint = listener.accept().wait(100.0)
assert endpoint.lane == "ucx" and endpoint.info()["carriers"] == ["ucx", "ucx-cuda"]
target = DeviceArray(len(DATA))
endpoint.recv(target).wait(100.0)
assert target.read() == DATA
on_host = bytearray(len(DATA))
endpoint.recv(on_host).wait(100.0)
assert on_host == DATA
frame, head = endpoint.recv_frames().wait(100.0)
assert isinstance(frame, backhaul.DeviceBuffer) and bytes(head) == b"head"
endpoint.send(frame).wait(100.0)
assert endpoint.statistics()["received_device_bytes"] == 2 * len(DATA)
"""

_SENDER = """
import sys
import backhaul
from device_arrays import DATA, DeviceArray, filled

context = backhaul.Context(lanes=["ucx"], carriers=["ucx", "ucx-cuda"])
endpoint = backhaul.connect(sys.argv[1], lanes=["ucx"], context=context).wait(100.0)
array = filled(DATA)
endpoint.send(array).wait(100.0)
endpoint.send(array).wait(100.0)
endpoint.send_frames([array, b"head"]).wait(100.0)
back = DeviceArray(len(DATA))
endpoint.recv(back).wait(100.0)
assert back.read() == DATA
"""

_BY_DEFAULT = """
import backhaul

context = backhaul.Context(lanes=["ucx"])
listener = backhaul.listen("127.0.0.1:0", context=context)
connecting = backhaul.connect(listener.address, lanes=["ucx"], context=context)
far = listener.accept().wait(100.0)
near = connecting.wait(100.0)
print(*near.info()["carriers"])
"""

_REFUSED = """
import backhaul

try:
    backhaul.Context(lanes=["ucx"], carriers=["ucx", "ucx-cuda"])
except backhaul.UcxUnavailable as error:
    print(error)
else:
    raise SystemExit("it was not refused")
try:
    backhaul.Context(lanes=["tcp"], carriers=["ucx-cuda"])
except backhaul.UcxUnavailable as error:
    print(error)
else:
    raise SystemExit("it was not refused")
# By default it is left out, and that is all.
backhaul.Context(lanes=["ucx"])
"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Two hosts that reach each other."""
    made = Hosts(ADDRESSES)
    try:
        made.make()
        yield made
    finally:
        made.close()


def _start(
    command: list[str], program: str, argument: str, environment: dict[str, str]
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*command, sys.executable, "-c", program, argument],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _exchange(receiving: list[str], sending: list[str], host: str, to: dict[str, str]) -> None:
    receiver = _start(receiving, _RECEIVER, host, to)
    assert receiver.stdout is not None
    address = receiver.stdout.readline().strip()
    sender = _start(sending, _SENDER, address, to)
    for process in (sender, receiver):
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said


@pytest.mark.parametrize("transports", ["tcp,cuda_copy", "posix,cma,cuda_copy"])
def test_memory_of_gpus_goes_by_ucx(gpu_environment: dict[str, str], transports: str) -> None:
    _exchange([], [], "127.0.0.1", {**gpu_environment, "UCX_TLS": transports})


@needs_namespaces
def test_memory_of_gpus_goes_by_ucx_between_hosts(
    gpu_environment: dict[str, str], hosts: Hosts
) -> None:
    environment = {**gpu_environment, "UCX_TLS": "tcp,cuda_copy"}
    receiving, sending = hosts.within("receiver"), hosts.within("sender")
    _exchange(receiving, sending, ADDRESSES["receiver"], environment)


@pytest.mark.parametrize("transports", ["tcp", "tcp,cuda_copy"])
def test_it_is_used_by_default_where_the_host_has_a_gpu_and_ucx_moves_its_memory(
    gpu_environment: dict[str, str], transports: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BY_DEFAULT],
        env={**gpu_environment, "UCX_TLS": transports},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    has_gpu = any(map(os.path.exists, ["/dev/nvidiactl", "/dev/dxg"]))
    is_used = has_gpu and "cuda" in transports
    assert done.stdout.split() == ["ucx", "ucx-cuda"][: 1 + is_used]


@pytest.mark.parametrize(
    "options",
    [{"UCX_TLS": "tcp"}, {"UCX_TLS": "tcp,cuda_copy", "UCX_RCACHE_ENABLE": "n"}],
    ids=["without its module for CUDA", "without a cache of registrations"],
)
def test_a_ucx_that_moves_no_memory_of_gpus_is_refused_by_name(
    gpu_environment: dict[str, str], options: dict[str, str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _REFUSED],
        env={**gpu_environment, **options},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "libucp" in first
    assert "moves no memory of GPUs" in first
    assert "the lane ucx is not in use" in second
