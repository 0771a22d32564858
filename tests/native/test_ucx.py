"""The ucx lane: forced by name, or refused with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import backhaul
from backhaul._ucx import library_folders

needs_wheel = pytest.mark.skipif(find_spec("libucx") is None, reason="no wheel libucx")

_ECHO = """
import sys
import backhaul

context = backhaul.Context(lanes=["ucx"])
server = backhaul.listen("127.0.0.1:0", context=context)
connecting = backhaul.connect(server.address, lanes=["ucx"], context=context)
far = server.accept().wait(20.0)
near = connecting.wait(20.0)
for size in (8, 1 << 20):
    received = bytearray(size)
    sending = near.send(bytes(range(256)) * (size // 256) or b"backhaul")
    far.recv(received).wait(20.0)
    sending.wait(20.0)
    assert received == (bytes(range(256)) * (size // 256) or b"backhaul")
frames = near.send_frames([b"head", bytearray(1 << 20)])
assert [len(frame) for frame in far.recv_frames().wait(20.0)] == [4, 1 << 20]
frames.wait(20.0)
print(near.lane, far.lane)
"""

_IMPORTED = """
import backhaul

with open("/proc/self/maps") as maps:
    assert "libuc" not in maps.read()
context = backhaul.Context()
with open("/proc/self/maps") as maps:
    print("libucp" in maps.read())
"""


def _run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@needs_wheel
@pytest.mark.parametrize("transports", ["tcp", "posix,cma"])
def test_messages_pass_over_ucx(transports: str) -> None:
    done = _run(_ECHO, UCX_TLS=transports)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ucx", "ucx"]


def test_import_and_a_usual_context_load_no_ucx() -> None:
    done = _run(_IMPORTED)
    assert done.returncode == 0, done.stderr
    if not any(Path("/sys/class/infiniband").glob("*")):
        assert done.stdout.strip() == "False"


def test_a_library_that_is_not_there_is_an_error_with_its_path() -> None:
    done = _run(
        "import backhaul\n"
        "try:\n"
        "    backhaul.Context(lanes=['ucx'])\n"
        "except backhaul.UcxUnavailable as error:\n"
        "    print(error)\n",
        BACKHAUL_LIBUCP="/nowhere/libucp.so",
    )
    assert "/nowhere/libucp.so" in done.stdout, done.stderr


def test_without_ucx_the_error_names_the_extra() -> None:
    done = _run(
        "import backhaul, backhaul._ucx\n"
        "backhaul._ucx.library_folders = lambda: ()\n"
        "try:\n"
        "    backhaul.Context(lanes=['ucx'])\n"
        "except backhaul.UcxUnavailable as error:\n"
        "    print(error)\n"
        "else:\n"
        "    print('the system has UCX')\n",
    )
    assert "backhaul[ucx]" in done.stdout or "the system has UCX" in done.stdout, done.stderr


def test_ucx_unavailable_is_an_error_of_configuration() -> None:
    assert issubclass(backhaul.UcxUnavailable, backhaul.ConfigError)


def test_the_folders_of_the_wheel_are_found_without_importing_it() -> None:
    folders = library_folders()
    assert all(Path(folder, "libucp.so").exists() for folder in folders)
    assert (find_spec("libucx") is None) == (not folders)
