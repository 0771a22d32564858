"""Counts of a context for the data that each peer process sends."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from backhaul import Arena, Context, connect, listen
from backhaul._native import SIZE_CLASSES_BYTES_MIN, process_token

if TYPE_CHECKING:
    from tests.native.conftest import Start

MIB = 1 << 20

#: Greets one peer, and waits until it goes.
HELLO = """
import sys
from backhaul import Context
from backhaul._native import process_token

with Context(lanes=[sys.argv[1]]) as context:
    listener = context.listen("127.0.0.1:0")
    print(listener.address, flush=True)
    endpoint = listener.accept().wait(60)
    endpoint.send_frames([b"hello"]).wait(60)
    print(process_token(), flush=True)
    sys.stdin.readline()
"""


def test_messages_are_counted_by_class_of_sizes(lane: str) -> None:
    with Context(lanes=[lane]) as context:
        listener = context.listen("127.0.0.1:0")
        near = context.connect(listener.address).wait()
        far = listener.accept().wait()
        for nbytes in (10, 20, 5000, 3 * MIB):
            sending = near.send_frames([bytes(nbytes)])
            far.recv_frames().wait()
            sending.wait()
        (flow,) = context.flows()
    assert flow["process"] == process_token()
    assert (flow["pid"], flow["host"], flow["lane"]) == (os.getpid(), "127.0.0.1", lane)
    assert flow["connections"] == 2, "both ends are in this context"
    sizes = flow["sizes"]
    assert set(sizes) == {0, 4096, MIB} <= set(SIZE_CLASSES_BYTES_MIN)
    assert sizes[0] == (2, 30, 0, 0.0)
    assert sizes[4096] == (1, 5000, 0, 0.0)
    messages, nbytes, lent_bytes, seconds = sizes[MIB]
    assert (messages, nbytes, lent_bytes) == (1, 3 * MIB, 0)
    assert 0 < seconds < 60


def test_another_process_is_another_flow(far_lane: str, start: Start) -> None:
    program = start(HELLO, far_lane)
    with Context(lanes=[far_lane]) as context:
        endpoint = context.connect(program.line()).wait(60)
        assert endpoint.recv_frames().wait(60) == [b"hello"]
        (flow,) = context.flows()
        assert flow["process"] == program.line() != process_token()
        assert (flow["pid"], flow["lane"]) == (program.process.pid, far_lane)
        assert flow["sizes"] == {0: (1, 5, 0, 0.0)}
        program.tell()


def test_lent_bytes_are_told_apart() -> None:
    arena = Arena()
    with Context(lanes=["inproc"], arena=arena) as context:
        listener = listen("127.0.0.1:0", context=context)
        near = connect(listener.address, context=context).wait()
        far = listener.accept().wait()
        block = arena.take(MIB)
        near.send_frames([block, b"header"], shared=True)
        far.recv_frames().wait()
        (flow,) = context.flows()
    messages, nbytes, lent_bytes, _ = flow["sizes"][MIB]
    assert (messages, nbytes, lent_bytes) == (1, MIB + 6, MIB)


def test_a_child_has_none_of_its_parents_flows() -> None:
    with Context() as context:
        listener = context.listen("127.0.0.1:0")
        near = context.connect(listener.address).wait()
        listener.accept().wait()
        assert context.flows()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if context.flows() == [] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        near.abort()
