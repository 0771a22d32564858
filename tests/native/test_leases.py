"""Memory of an arena that is lent to peers: who sees what, for how long, and after a fork."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from backhaul import Arena, Context, Endpoint

if TYPE_CHECKING:
    from tests.native.conftest import Eventually, Program, Start

NBYTES = 1 << 20


def block(arena: Arena, content: bytes) -> memoryview:
    memory = arena.take(NBYTES)
    memory[:] = content * (NBYTES // len(content))
    return memory


def counts(arena: Arena) -> tuple[int, int]:
    """Blocks in use and lent."""
    found = arena.statistics()
    return found["live_bytes"] // NBYTES, found["leased_bytes"] // NBYTES


@contextlib.contextmanager
def lending(lane: str, **settings: Any) -> Iterator[tuple[Arena, Endpoint, Endpoint]]:
    """Connect a context with an arena to one without."""
    arena = Arena()
    settings = {"lanes": [lane], "lease_bytes_min": 100_000, **settings}
    with Context(arena=arena, **settings) as near, Context(**settings) as far:
        with far.listen("127.0.0.1:0") as listener:
            connecting = near.connect(listener.address)
            b = listener.accept().wait(60)
            a = connecting.wait(60)
        assert a.lane == b.lane == lane
        yield arena, a, b


def deliver(a: Endpoint, b: Endpoint, frame: Any, *, shared: bool = True) -> memoryview:
    sending = a.send_frames([frame], shared=shared)
    (received,) = b.recv_frames().wait(60)
    sending.wait(60)
    assert isinstance(received, memoryview)
    return received


@pytest.mark.parametrize("populate", [False, True])
def test_what_is_lent_is_writable_and_each_side_has_its_own(lane: str, populate: bool) -> None:
    with lending(lane, populate_leases=populate) as (arena, a, b):
        lent = block(arena, b"abcd")
        received = deliver(a, b, lent)
        assert counts(arena) == (1, int(lane != "tcp"))
        assert received == lent
        received[:4] = b"mine"
        assert bytes(lent[:8]) == b"abcdabcd"
        assert bytes(received[:8]) == b"mineabcd"
        del received
        assert counts(arena) == (1, 0)


def test_a_view_of_what_is_lent_keeps_it_though_everybody_else_is_gone(lane: str) -> None:
    with lending(lane) as (arena, a, b):
        view = deliver(a, b, block(arena, b"abcd"))[NBYTES // 2 :][4:8]
        a.close().wait(60)
        others = [block(arena, b"----") for _ in range(8)]
        assert counts(arena) == (8, int(lane != "tcp"))
    assert bytes(view) == b"abcd"
    del others


def test_only_what_is_sent_as_shared_is_lent(lane: str) -> None:
    with lending(lane) as (arena, a, b):
        lent = block(arena, b"abcd")
        received = deliver(a, b, lent, shared=False)
        assert counts(arena) == (1, 0)
        # The memory may be used again once the send is done.
        lent[:] = bytes(NBYTES)
        assert bytes(received[:4]) == b"abcd"


def test_a_peer_does_not_see_what_the_sender_writes_after_the_receive(lane: str) -> None:
    with lending(lane) as (arena, a, b):
        lent = block(arena, b"abcd")
        received = deliver(a, b, lent)
        page = 1 << 16
        received[:page] = b"mine" * (page // 4)
        lent[:] = b"late" * (NBYTES // 4)
        assert received[page:] == b"abcd" * ((NBYTES - page) // 4)
        assert received[:page] == b"mine" * (page // 4)
        again = deliver(a, b, lent)
        assert again == b"late" * (NBYTES // 4)
        # The bytes in the file are not those of the sender any more, so it was sent a copy.
        assert counts(arena) == (1, int(lane != "tcp"))
        del lent, received, again
        assert counts(arena) == (0, 0)
        # No byte of before is left in the block when it is used again.
        assert deliver(a, b, block(arena, b"next")) == b"next" * (NBYTES // 4)
        assert arena.statistics()["hits"] == 1


def test_a_receive_into_memory_of_the_caller_has_a_copy(lane: str) -> None:
    with lending(lane) as (arena, a, b):
        lent = block(arena, b"abcd")
        target = bytearray(NBYTES)
        receiving = b.recv(target, tag=3)
        a.send(lent, tag=3, shared=True).wait(60)
        assert receiving.wait(60).nbytes == NBYTES
        assert counts(arena) == (1, 0)
        lent[:] = bytes(NBYTES)
        assert target == b"abcd" * (NBYTES // 4)


#: Borrows a message, says so, and follows the commands on its standard input.
BORROWER = """
    import gc
    import os
    import sys
    import warnings

    import backhaul

    warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
    context = backhaul.Context(lanes=[sys.argv[1]])
    endpoint = context.connect(sys.argv[2]).wait(300)
    (held,) = endpoint.recv_frames().wait(300)
    print("held", flush=True)
    for line in sys.stdin:
        match line.split():
            case ["check", content]:
                nbytes = len(content)
                assert held[:nbytes] == held[-nbytes:] == content.encode()
                print("right", flush=True)
            case ["drop"]:
                del held
                print("dropped", flush=True)
            case ["fork", "drop"]:
                child = os.fork()
                if child == 0:
                    del held, endpoint, context
                    gc.collect()
                    sys.exit(0)
                print(os.waitpid(child, 0)[1], flush=True)
            case ["fork", "look"]:
                child = os.fork()
                if child == 0:
                    assert held[:4] == held[-4:] == b"abcd"
                    held[:4] = b"mine"
                    os._exit(0)
                print(os.waitpid(child, 0)[1], flush=True)
            case ["fork", "stay"]:
                child = os.fork()
                if child == 0:
                    # Not by sys.stdin: the parent is in the middle of reading it.
                    os.read(0, 1)
                    os._exit(0)
                print(child, flush=True)
"""


@contextlib.contextmanager
def borrower(far_lane: str, start: Start) -> Iterator[tuple[Arena, Program]]:
    """Lend a block to another process, and free it here."""
    arena = Arena()
    settings: dict[str, Any] = {"lanes": [far_lane], "lease_bytes_min": 100_000}
    with Context(arena=arena, **settings) as context:
        with context.listen("127.0.0.1:0") as listener:
            program = start(BORROWER, far_lane, listener.address)
            endpoint = listener.accept().wait(60)
        endpoint.send_frames([block(arena, b"abcd")], shared=True).wait(60)
        assert program.line() == "held"
        assert counts(arena) == (0, int(far_lane == "shm"))
        yield arena, program
        endpoint.abort()


def test_what_a_process_borrowed_comes_back_when_it_is_killed(
    far_lane: str, start: Start, eventually: Eventually
) -> None:
    with borrower(far_lane, start) as (arena, program):
        program.kill()
        eventually(lambda: counts(arena) == (0, 0))
        assert arena.statistics()["abandoned_bytes"] == 0


def test_a_forked_child_gives_nothing_back_that_its_parent_has(far_lane: str, start: Start) -> None:
    with borrower(far_lane, start) as (arena, program):
        program.tell("fork drop")
        assert program.line() == "0"
        assert counts(arena) == (0, int(far_lane == "shm"))
        program.tell("check abcd")
        assert program.line() == "right"
        program.tell("drop")
        assert program.line() == "dropped"
        assert counts(arena) == (0, 0)


def test_a_forked_child_reads_what_its_parent_borrows_and_writes_to_its_own(
    far_lane: str, start: Start
) -> None:
    with borrower(far_lane, start) as (arena, program):
        program.tell("fork look")
        assert program.line() == "0"
        program.tell("check abcd")
        assert program.line() == "right"
        assert counts(arena) == (0, int(far_lane == "shm"))


def test_what_a_killed_process_borrowed_is_held_as_long_as_its_forked_child_lives(
    far_lane: str, start: Start, eventually: Eventually
) -> None:
    with borrower(far_lane, start) as (arena, program):
        program.tell("fork stay")
        assert int(program.line()) > 0
        program.kill()
        # The child has the mapping too, and may look at it.
        others = [block(arena, b"----") for _ in range(8)]
        assert counts(arena) == (8, int(far_lane == "shm"))
        # Its parent is dead, and no other process has the other end of its standard input.
        assert program.process.stdin is not None
        program.process.stdin.close()
        eventually(lambda: counts(arena) == (8, 0))
        del others


def test_a_fork_of_the_lender_leaves_what_is_lent_alone(
    far_lane: str, start: Start, eventually: Eventually
) -> None:
    program = start(
        """
        import gc
        import os
        import sys
        import warnings

        import backhaul

        arena = backhaul.Arena()
        context = backhaul.Context(lanes=[sys.argv[1]], arena=arena, lease_bytes_min=100_000)
        listener = context.listen("127.0.0.1:0")
        print(listener.address, flush=True)
        endpoint = listener.accept().wait(300)
        lent = arena.take(1 << 20)
        lent[:] = b"abcd" * (1 << 18)
        endpoint.send_frames([lent], shared=True).wait(300)
        sys.stdin.readline()
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
        if child == 0:
            lent[:] = bytes(1 << 20)
            del lent, endpoint, listener, context, arena
            gc.collect()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert lent[:4] == b"abcd"
        print("right", flush=True)
        for _ in sys.stdin:
            print(arena.statistics()["leased_bytes"], flush=True)
        """,
        far_lane,
    )
    with Context(lanes=[far_lane]) as context:
        endpoint = context.connect(program.line()).wait(60)
        (held,) = endpoint.recv_frames().wait(60)
        program.tell()
        assert program.line() == "right"

        def leased_bytes() -> int:
            program.tell()
            return int(program.line())

        # The child had a lease of its own while it lived.
        eventually(lambda: leased_bytes() == (1 << 20 if far_lane == "shm" else 0))
        assert held == b"abcd" * (1 << 18)
        del held
        eventually(lambda: leased_bytes() == 0)
        assert program.end() == (0, "", "")
