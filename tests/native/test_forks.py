"""A forked process has a fabric of its own, and leaves its parent's alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backhaul import Context, ListenError

if TYPE_CHECKING:
    from tests.native.conftest import Start


@pytest.mark.parametrize("when", ["after the import", "after use"])
def test_a_forked_process_has_a_fabric_of_its_own(when: str, far_lane: str, start: Start) -> None:
    program = start(
        """
        import os
        import sys
        import warnings
        import backhaul

        def exchange(context):
            with context.listen("127.0.0.1:0") as listener:
                connecting = context.connect(listener.address, lanes=[sys.argv[1]])
                with listener.accept().wait(300) as b, connecting.wait(300) as a:
                    assert a.lane == sys.argv[1], a.info()
                    a.send_frames([b"x" * 100_000])
                    assert b.recv_frames().wait(300) == [b"x" * 100_000]

        if sys.argv[2] == "after use":
            exchange(backhaul.default_context())
        receiving, sending = os.pipe()
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
        if child == 0:
            exchange(backhaul.default_context())
            with backhaul.listen("127.0.0.1:0") as listener:
                os.write(sending, listener.address.encode())
                endpoint = listener.accept().wait(300)
                endpoint.send_frames([b"from the child"])
                endpoint.close().wait(300)
            sys.exit(0)
        exchange(backhaul.default_context())
        endpoint = backhaul.connect(os.read(receiving, 100).decode(), lanes=[sys.argv[1]]).wait(300)
        assert endpoint.lane == sys.argv[1], endpoint.info()
        assert endpoint.info()["peer_pid"] == child
        print(bytes(endpoint.recv_frames().wait(300)[0]))
        endpoint.close().wait(300)
        assert os.waitpid(child, 0)[1] == 0
        """,
        far_lane,
        when,
    )
    assert program.end() == (0, "b'from the child'\n", "")


def test_a_forked_process_leaves_its_parents_connections_alone(lane: str, start: Start) -> None:
    program = start(
        """
        import gc
        import os
        import sys
        import warnings
        import backhaul

        context = backhaul.Context(lanes=[sys.argv[1]])
        listener = context.listen("127.0.0.1:0")
        connecting = context.connect(listener.address)
        b = listener.accept().wait(300)
        a = connecting.wait(300)
        pending = b.recv(bytearray(10), tag=1)
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
        if child == 0:
            # As the end of the process does to what is left.
            del a, b, listener, context, pending, connecting
            gc.collect()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        a.send(b"abc", tag=1).wait(300)
        assert pending.wait(300).nbytes == 3
        a.send_frames([bytes(1 << 20)])
        assert b.recv_frames().wait(300) == [bytes(1 << 20)]
        again = context.connect(listener.address)
        listener.accept().wait(300)
        again.wait(300)
        assert not a.closed()
        """,
        lane,
    )
    assert program.end() == (0, "", "")


def test_what_was_made_before_a_fork_is_refused_after_it(lane: str, start: Start) -> None:
    program = start(
        """
        import os
        import sys
        import warnings
        import backhaul

        context = backhaul.Context(lanes=[sys.argv[1]])
        listener = context.listen("127.0.0.1:0")
        connecting = context.connect(listener.address)
        b = listener.accept().wait(300)
        a = connecting.wait(300)
        pending = b.recv_frames()
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
        if child == 0:
            for use in (
                lambda: a.send_frames([b"from the child"]),
                lambda: a.send(b"from the child"),
                lambda: b.recv(bytearray(1)),
                b.recv_frames,
                lambda: pending.wait(300),
                listener.accept,
                lambda: context.connect(listener.address),
                lambda: context.listen("127.0.0.1:0"),
                a.close,
            ):
                try:
                    use()
                except backhaul.BackhaulError as error:
                    assert "fork" in str(error), error
                else:
                    raise AssertionError("it was not refused")
            a.abort()
            context.close()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        a.send_frames([b"x"]).wait(300)
        assert pending.wait(300) == [b"x"]
        """,
        lane,
    )
    assert program.end() == (0, "", "")


def test_a_result_that_came_before_a_fork_is_its_parents(lane: str, start: Start) -> None:
    program = start(
        """
        import gc
        import os
        import sys
        import warnings
        import backhaul

        context = backhaul.Context(lanes=[sys.argv[1]])
        listener = context.listen("127.0.0.1:0")
        connecting = context.connect(listener.address)
        b = listener.accept().wait(300)
        while not connecting.done():
            os.sched_yield()
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
        if child == 0:
            for use in (connecting.result, connecting.wait):
                try:
                    use()
                except backhaul.BackhaulError as error:
                    assert "fork" in str(error), error
                else:
                    raise AssertionError("it was not refused")
            del connecting
            gc.collect()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        a = connecting.wait(300)
        a.send_frames([b"x"]).wait(300)
        assert b.recv_frames().wait(300) == [b"x"]
        """,
        lane,
    )
    assert program.end() == (0, "", "")


def test_an_endpoint_ends_though_a_forked_child_has_its_socket(lane: str, start: Start) -> None:
    program = start(
        """
        import os
        import sys
        import warnings
        import backhaul

        context = backhaul.Context(lanes=[sys.argv[1]])
        listener = context.listen("127.0.0.1:0")
        connecting = context.connect(listener.address)
        b = listener.accept().wait(300)
        a = connecting.wait(300)
        pending = b.recv_frames()
        watched, kept = os.pipe()
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
        if child == 0:
            os.close(kept)
            os.read(watched, 1)
            os._exit(0)
        a.abort()
        try:
            pending.wait(300)
        except backhaul.PeerGone:
            pass
        else:
            raise AssertionError("it got a message")
        address = listener.address
        listener.close()
        try:
            context.connect(address).wait(300)
        except backhaul.ConnectFailed:
            pass
        else:
            raise AssertionError("a closed listener was connected to")
        os.close(kept)
        assert os.waitpid(child, 0)[1] == 0
        """,
        lane,
    )
    assert program.end() == (0, "", "")


@pytest.mark.parametrize("lane", ["shm", "inproc"])
def test_a_fork_at_any_moment_of_busy_threads_leaves_no_lock_taken(lane: str, start: Start) -> None:
    program = start(
        """
        import os
        import signal
        import sys
        import threading
        import warnings
        import backhaul

        lanes = [sys.argv[1]]

        def talk(context, listener):
            accepting = listener.accept()
            near = context.connect(listener.address).wait(300)
            far = accepting.wait(300)
            near.send_frames([b"x" * 200_000]).wait(300)
            assert len(far.recv_frames().wait(300)[0]) == 200_000
            near.abort()
            far.abort()

        over = threading.Event()
        # A module that another thread imports at that moment stays half imported in the child:
        # that is Python's.
        begun = threading.Barrier(3)

        def keep_talking():
            # Connects and ends: what takes locks of the whole process, in the engine too.
            with backhaul.Context(lanes=lanes) as context:
                with context.listen("127.0.0.1:0") as listener:
                    talk(context, listener)
                    begun.wait(60)
                    while not over.is_set():
                        talk(context, listener)

        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        threads = [threading.Thread(target=keep_talking, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        begun.wait(60)
        for _ in range(20):
            child = os.fork()
            if child == 0:
                signal.alarm(60)  # it ends a child that hangs
                with backhaul.Context(lanes=lanes) as context:
                    with context.listen("127.0.0.1:0") as listener:
                        talk(context, listener)
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            assert status == 0, status
        over.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        """,
        lane,
    )
    assert program.end() == (0, "", "")


def test_a_port_is_free_when_its_process_ends_though_a_forked_child_lives(start: Start) -> None:
    refused: list[ListenError] = []
    # Another process may have been given the port by then; a child that holds it holds each.
    for _ in range(5):
        program = start(
            """
            import os
            import sys
            import warnings
            import backhaul

            listener = backhaul.Context().listen("127.0.0.1:0")
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
            child = os.fork()
            if child == 0:
                sys.stdin.readline()
                os._exit(0)
            print(listener.address, flush=True)
            os._exit(0)
            """
        )
        address = program.line()
        assert program.process.wait(60) == 0
        # Its child has the pipe, and waits.
        try:
            with Context() as context, context.listen(address) as listener:
                assert listener.address == address
        except ListenError as error:
            refused.append(error)
        else:
            break
        finally:
            program.tell()
    assert len(refused) < 5, refused
