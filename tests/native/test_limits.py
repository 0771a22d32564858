"""A process without descriptors or memory to spare, and a host that goes away."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import backhaul
from backhaul import Context, Request

if TYPE_CHECKING:
    from tests.native.conftest import Eventually, Start

#: Does something first of all, with so many descriptors to spare, and prints what came of it.
SPARE = """
    import os
    import resource
    import sys

    import backhaul

    kind, spare, address = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    used = max(map(int, os.listdir("/proc/self/fd"))) + 1
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, most))
    try:
        context = backhaul.Context()
        if kind == "listen":
            context.listen("127.0.0.1:0")
        else:
            context.connect(address).wait(60)
        print("done", flush=True)
    except (backhaul.BackhaulError, OSError):
        print("error", flush=True)
    except BaseException as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize("kind", ["listen", "connect"])
def test_the_first_use_without_descriptors_is_an_error(kind: str, start: Start) -> None:
    with Context() as context, context.listen("127.0.0.1:0") as listener:
        outcomes = [start(SPARE, kind, spare, listener.address).line() for spare in range(16)]
    assert set(outcomes) <= {"done", "error"}, outcomes
    assert outcomes[0] == "error"


#: Connects over TCP with a short keep-alive, and prints the end of the connection.
WATCH = """
    import sys

    import backhaul

    settings = {"keep_alive_interval_s": 0.2, "keep_alive_timeout_s": 1.0}
    with backhaul.Context(lanes=["tcp"], **settings) as context:
        endpoint = context.connect(sys.argv[1]).wait(60)
        print("connected", flush=True)
        try:
            while True:
                endpoint.recv_frames().wait(100)
        except backhaul.BackhaulError as error:
            print(type(error).__name__, flush=True)
"""


def noticed(what: str, seconds: float) -> None:
    """Print how long it took, to be seen with ``pytest -s``."""
    sys.stdout.write(f"{what}: noticed after {seconds:.2f} s\n")


@pytest.fixture
def far_host() -> Iterator[tuple[str, str, str]]:
    """Join a network namespace by a link; gives its name, our address and our end of the link."""
    ip = shutil.which("ip")
    if os.geteuid() != 0 or ip is None:
        pytest.skip("a network namespace needs root and ip(8)")
    name = f"bh{uuid.uuid4().hex[:8]}"
    near, far = f"{name}a", f"{name}b"

    def run(*arguments: str) -> None:
        subprocess.run([ip, *arguments], check=True, capture_output=True)

    with contextlib.ExitStack() as stack:
        try:
            run("netns", "add", name)
            stack.callback(run, "netns", "del", name)
            run("link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
            run("addr", "add", "198.18.77.1/30", "dev", near)
            run("link", "set", near, "up")
            run("-n", name, "addr", "add", "198.18.77.2/30", "dev", far)
            run("-n", name, "link", "set", far, "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespace: {error.stderr.decode().strip()}")
        yield name, "198.18.77.1", near


#: How long a peer takes nothing before its host vanishes: the kernel asks it for room ever more
#: seldom if it is left alone, by then once in so long
FULL_S = float(os.environ.get("BACKHAUL_FULL_WINDOW_S", "1"))


@pytest.mark.parametrize("state", ["idle", "busy", "full"])
def test_a_host_that_vanishes_is_noticed(
    far_host: tuple[str, str, str], start: Start, state: str
) -> None:
    name, address, link = far_host
    with (
        Context(lanes=["tcp"], keep_alive_interval_s=0.2, keep_alive_timeout_s=1.0) as context,
        context.listen(f"{address}:0") as listener,
    ):
        watch = start(WATCH, listener.address, prefix=["ip", "netns", "exec", name])
        endpoint = listener.accept().wait(60)
        assert watch.line() == "connected"
        if state == "full":
            watch.process.send_signal(signal.SIGSTOP)

        # Data on its way to the vanished host is not acknowledged any more.
        def send_much() -> list[backhaul.Request[None]]:
            return [endpoint.send_frames([bytes(1 << 20)]) for _ in range(20)]

        sends = [] if state == "idle" else send_much()
        if state == "full":
            until = time.monotonic() + FULL_S
            while time.monotonic() < until:
                time.sleep(FULL_S / 20)
                if not endpoint.queued_bytes():
                    # The kernel of the other side has room for 32 MiB, on some machines.
                    sends += send_much()
            assert endpoint.queued_bytes() > 0
        subprocess.run(["ip", "link", "set", link, "down"], check=True)
        vanished_at = time.monotonic()
        with pytest.raises(backhaul.PeerGone):
            endpoint.recv_frames().wait(180)
        noticed(state, time.monotonic() - vanished_at)
        watch.process.send_signal(signal.SIGCONT)
        assert watch.line() == "PeerGone"
        for send in sends:
            with contextlib.suppress(backhaul.PeerGone):
                send.wait(60)


#: Keeps all that comes to it, in a control group of its own.
KEEP = """
    import os
    import sys

    import backhaul

    with open(sys.argv[1], "a") as group:
        group.write(str(os.getpid()))
    with backhaul.Context(lanes=[sys.argv[2]]) as context:
        listener = context.listen("127.0.0.1:0")
        print(listener.address, flush=True)
        endpoint = listener.accept().wait(60)
        kept = []
        while True:
            kept.append(bytes(endpoint.recv_frames().wait(60)[0]))
"""


@pytest.fixture
def small_group() -> Iterator[Path]:
    """Make a control group with little memory; gives the file that its processes enter by."""
    try:
        group, limits = new_group()
    except OSError as error:
        pytest.skip(f"no control group for memory: {error}")
    try:
        for name, value in limits.items():
            # Where swap is not counted, its file is not there.
            with contextlib.suppress(FileNotFoundError):
                (group / name).write_text(value)
        yield group / "cgroup.procs"
    finally:
        for _ in range(100):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def new_group() -> tuple[Path, dict[str, str]]:
    """Make a group below ours; with the files that limit it, and what to write there."""
    limit = str(192 << 20)
    lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    name = f"backhaul-{uuid.uuid4().hex[:8]}"
    root = Path("/sys/fs/cgroup")
    if "memory" in paths:
        group = root / "memory" / paths["memory"].lstrip("/") / name
        names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    else:
        group = root / paths[""].lstrip("/") / name
        names = ("memory.max", "memory.swap.max")
    group.mkdir()
    if not (group / names[0]).exists():
        group.rmdir()
        raise OSError("its controller is not handed down to us")
    return group, dict.fromkeys(names, limit)


def test_a_peer_that_runs_out_of_its_memory_is_gone(
    small_group: Path, far_lane: str, start: Start, eventually: Eventually
) -> None:
    program = start(KEEP, str(small_group), far_lane)
    address = program.line()
    with Context(lanes=[far_lane]) as context:
        # Descriptors that the first connection of a process opens for good.
        with context.listen("127.0.0.1:0") as listener:
            context.connect(listener.address).wait(60).abort()
        before = descriptors()
        endpoint = context.connect(address).wait(60)
        sends = [endpoint.send_frames([bytes(8 << 20)]) for _ in range(64)]
        outcomes = [is_sent(send) for send in sends]
        # The kernel has ended it: some were taken before, and each of the others got its answer.
        assert outcomes == sorted(outcomes, reverse=True)
        assert not outcomes[-1]
        assert program.process.wait(60) == -signal.SIGKILL
        endpoint.abort()
        del endpoint, sends
        eventually(lambda: not set(descriptors()) - set(before))


def is_sent(send: Request[None]) -> bool:
    """Return whether a message was taken before its receiver was gone."""
    try:
        send.wait(60)
    except backhaul.PeerGone:
        return False
    return True


def descriptors() -> list[str]:
    """Tell the open descriptors of this process, but for the one that finds them out."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(f"{name}: {os.readlink(f'/proc/self/fd/{name}')}")
    return found
