"""Memory that one process lends to a second, and that to a third, of which some are killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from backhaul import Arena, Context, Endpoint, _native, numpy_memory

if TYPE_CHECKING:
    from tests.native.conftest import Eventually, Start

LARGE = 4 << 20

#: Connects to the address it is given, twice, and passes on what comes first by one to the other.
BETWEEN = """
    import sys
    import numpy as np
    from backhaul import Context

    context = Context(lanes=["shm"])
    first, second = (context.connect(sys.argv[1]).wait(60) for _ in range(2))
    (received,) = first.recv_frames().wait(60)
    array = np.frombuffer(received, np.uint8)
    if sys.argv[2] == "change":
        array[-1] = 7
    second.send_frames([array], shared=True).wait(60)
    print("passed on", flush=True)
    sys.stdin.readline()
    del array, received
    print("dropped", flush=True)
    sys.stdin.readline()
"""


class Chain:
    """Memory that this process lends, and that comes back to it by way of another."""

    def __init__(self, start: Start, what: str) -> None:
        self.arena = Arena()
        self.context = Context(lanes=["shm"], arena=self.arena)
        with self.context.listen("127.0.0.1:0") as listener:
            self.between = start(BETWEEN, listener.address, what)
            accepted: list[Endpoint] = [listener.accept().wait(60) for _ in range(2)]
        with numpy_memory.arrays_in(self.arena):
            array = np.arange(LARGE, dtype=np.uint8)
        self.expected = array.tobytes()
        accepted[0].send_frames([array], shared=True).wait(60)
        del array
        (received,) = accepted[1].recv_frames().wait(60)
        self.received: np.ndarray[tuple[int], np.dtype[np.uint8]] | None
        self.received = np.frombuffer(received, np.uint8)
        assert self.between.line() == "passed on"

    def lent_bytes(self) -> int:
        """Count what this process has freed and others have."""
        return self.arena.statistics()["orphaned_bytes"]

    def is_whole(self) -> bool:
        """Tell whether what came back is right, after the arena was used for other things."""
        with numpy_memory.arrays_in(self.arena):
            for _ in range(3):
                [np.full(LARGE, 9, np.uint8) for _ in range(3)]
        return self.received is not None and self.received.tobytes() == self.expected


def test_the_first_lease_goes_back_when_both_borrowers_have_dropped(
    start: Start, eventually: Eventually
) -> None:
    chain = Chain(start, "pass on")
    assert _native.borrowed_bytes() >= LARGE
    chain.between.tell()
    assert chain.between.line() == "dropped"
    assert chain.is_whole()
    assert chain.lent_bytes() == LARGE
    chain.received = None
    assert _native.borrowed_bytes() == 0
    eventually(lambda: chain.lent_bytes() == 0)
    chain.between.tell()
    assert chain.between.end()[0] == 0


def test_the_end_of_the_one_between_is_not_the_end_of_the_loan(
    start: Start, eventually: Eventually
) -> None:
    chain = Chain(start, "pass on")
    chain.between.kill()
    assert chain.is_whole()
    assert chain.lent_bytes() == LARGE
    chain.received = None
    eventually(lambda: chain.lent_bytes() == 0)


def test_what_was_changed_is_passed_on_changed(start: Start, eventually: Eventually) -> None:
    chain = Chain(start, "change")
    assert chain.received is not None
    assert chain.received[-1] == 7
    assert chain.received[:-1].tobytes() == chain.expected[:-1]
    assert _native.borrowed_bytes() == 0
    chain.between.kill()
    eventually(lambda: chain.lent_bytes() == 0)


def test_what_can_be_lent_itself_is_not_copied_to_be_lent(start: Start) -> None:
    chain = Chain(start, "pass on")
    assert chain.received is not None
    other = Arena()
    assert other.copy_to_lend(chain.received) is None
    with numpy_memory.arrays_in(other):
        own = np.ones(LARGE, np.uint8)
    assert other.copy_to_lend(own) is None
    assert other.copy_to_lend(own[100:]) is None
    copy = other.copy_to_lend(np.full(LARGE, 3, np.uint8))
    assert copy is not None
    assert bytes(copy) == b"\3" * LARGE


def test_copies_to_lend_are_bounded_by_what_peers_hold() -> None:
    arena = Arena(cached_bytes_max=2 * LARGE)
    memory = bytes(LARGE)
    with Context(lanes=["shm"], arena=arena) as ours, Context(lanes=["shm"]) as theirs:
        with theirs.listen("127.0.0.1:0") as listener:
            connecting = ours.connect(listener.address)
            b = listener.accept().wait(60)
            a = connecting.wait(60)
        held = []
        for _ in range(2):
            a.send_frames([arena.copy_to_lend(memory)], shared=True).wait(60)
            held.append(b.recv_frames().wait(60))
        assert arena.copy_to_lend(memory) is None
        held.pop()
        assert arena.copy_to_lend(memory) is not None
