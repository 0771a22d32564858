"""Two processes: messages, a peer that dies, exits and signals."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sysconfig
from typing import TYPE_CHECKING

import pytest

from backhaul import BackhaulError, Context, EndpointClosed, PeerGone

if TYPE_CHECKING:
    from tests.native.conftest import Echo, Eventually, Finish, Start


@pytest.mark.asyncio
async def test_messages_go_to_another_process_and_back(
    far_lane: str, finish: Finish, echo: Echo
) -> None:
    with echo(far_lane) as (endpoint, _):
        for nbytes in (0, 1, 5000, 100_000, 1 << 20):
            message, buffer = random.Random(nbytes).randbytes(nbytes), bytearray(nbytes)
            receive = endpoint.recv(buffer, tag=nbytes)
            await finish(endpoint.send(message, tag=nbytes))
            assert await finish(receive) == (nbytes, nbytes)
            assert buffer == message
            send = endpoint.send_frames([message, b"", message])
            assert await finish(endpoint.recv_frames()) == [message, b"", message]
            await finish(send)


@pytest.mark.asyncio
async def test_large_messages_go_to_another_process_and_back(far_lane: str, echo: Echo) -> None:
    message = random.Random(1).randbytes(1 << 20) * 64
    with echo(far_lane, buffer_bytes=64 << 20) as (endpoint, _):
        send = endpoint.send_frames([message])
        (frame,) = await endpoint.recv_frames()
        assert frame == message
        await send
        buffer = bytearray(64 << 20)
        receive = endpoint.recv(buffer)
        await endpoint.send(message)
        await receive
        assert buffer == message


@pytest.mark.asyncio
async def test_many_messages_are_under_way_at_once(far_lane: str, echo: Echo) -> None:
    with echo(far_lane) as (endpoint, _):
        sends = [endpoint.send_frames([bytes([i % 256]) * (i * 37)]) for i in range(2000)]
        for i in range(2000):
            assert await endpoint.recv_frames() == [bytes([i % 256]) * (i * 37)]
        await asyncio.gather(*sends)


def test_the_lane_is_chosen_and_explained(start: Start, far_lane: str, echo: Echo) -> None:
    with echo(far_lane) as (endpoint, program):
        info = endpoint.info()
        assert info["lane"] == far_lane
        assert info["peer_pid"] == program.process.pid
        assert info["peer_uid"] == os.getuid()
        assert info["same_host"] is True
        assert info["closed"] is None
        assert info["reason"]


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed", "why"),
    [
        (["inproc", "shm", "tcp"], "shm", "shm", "inproc: not offered"),
        (["inproc", "tcp"], "inproc", "tcp", "inproc: another process"),
        (["shm"], "tcp", "tcp", "shm: not offered by the peer"),
        ([], "shm", "tcp", ""),
    ],
)
def test_the_best_lane_that_both_have_is_used(
    ours: list[str], theirs: str, agreed: str, why: str, start: Start
) -> None:
    program = start(
        """
        import sys
        import backhaul
        listener = backhaul.Context(lanes=[sys.argv[1]]).listen("127.0.0.1:0")
        print(listener.address, flush=True)
        endpoint = listener.accept().wait()
        print(endpoint.lane, flush=True)
        sys.stdin.readline()
        """,
        theirs,
    )
    with Context() as context:
        endpoint = context.connect(program.line(), lanes=ours).wait(60)
        assert endpoint.lane == program.line() == agreed
        assert why in endpoint.info()["reason"]


@pytest.mark.asyncio
async def test_a_killed_peer_fails_what_is_pending(
    far_lane: str, finish: Finish, start: Start
) -> None:
    program = start(
        """
        import sys
        import backhaul
        listener = backhaul.Context(lanes=[sys.argv[1]]).listen("127.0.0.1:0")
        print(listener.address, flush=True)
        endpoint = listener.accept().wait()
        endpoint.send_frames([b"last words"]).wait()
        print("ready", flush=True)
        sys.stdin.readline()
        """,
        far_lane,
    )
    with Context(lanes=[far_lane]) as context:
        endpoint = await finish(context.connect(program.line()))
        pending = [
            endpoint.recv(bytearray(10)),
            endpoint.send(bytes(1 << 20)),
            endpoint.send_frames([bytes(200 << 20)]),
        ]
        assert program.line() == "ready"
        program.kill()
        for request in pending:
            with pytest.raises(PeerGone, match=r"peer 127.0.0.1:[0-9]+ is gone: "):
                await finish(request)
        # A message that came before the end can still be received.
        assert await finish(endpoint.recv_frames()) == [b"last words"]
        for request in (endpoint.recv_frames(), endpoint.send(b"")):
            with pytest.raises(PeerGone):
                await finish(request)
        assert endpoint.closed()
        assert "is gone" in endpoint.info()["closed"]
        assert endpoint.queued_bytes() == 0
        await finish(endpoint.close())


def test_a_peer_killed_amid_a_stream_is_noticed(far_lane: str, start: Start) -> None:
    program = start(
        """
        import sys
        import backhaul
        listener = backhaul.Context(lanes=[sys.argv[1]]).listen("127.0.0.1:0")
        print(listener.address, flush=True)
        endpoint = listener.accept().wait()
        while True:
            endpoint.send_frames([bytes(1 << 20), bytes(100)]).wait()
        """,
        far_lane,
    )
    with Context(lanes=[far_lane]) as context:
        endpoint = context.connect(program.line()).wait(60)
        for _ in range(20):
            endpoint.recv_frames().wait(60)
        program.kill()

        def receive_all() -> None:
            while True:
                first, second = endpoint.recv_frames().wait(60)
                assert first == bytes(1 << 20)
                assert second == bytes(100)

        with pytest.raises(PeerGone):
            receive_all()


@pytest.mark.parametrize("side", ["listens", "connects"])
def test_a_killed_peer_is_noticed_though_its_forked_child_lives(
    side: str, far_lane: str, start: Start
) -> None:
    program = start(
        """
        import os, sys, time
        import backhaul
        context = backhaul.Context(lanes=[sys.argv[2]])
        if sys.argv[1] == "listens":
            listener = context.listen("127.0.0.1:0")
            print(listener.address, flush=True)
            endpoint = listener.accept().wait()
        else:
            endpoint = context.connect(sys.stdin.readline().strip()).wait(60)
        # It outlives its parent, and would keep what it has of the connection open.
        child = os.fork()
        if child == 0:
            time.sleep(300)
            os._exit(0)
        print(child, flush=True)
        sys.stdin.readline()
        """,
        side,
        far_lane,
    )
    child = 0
    with Context(lanes=[far_lane]) as context:
        try:
            if side == "listens":
                endpoint = context.connect(program.line()).wait(60)
            else:
                listener = context.listen("127.0.0.1:0")
                program.tell(listener.address)
                endpoint = listener.accept().wait(60)
            child = int(program.line())
            assert endpoint.lane == far_lane
            receive = endpoint.recv_frames()
            program.process.kill()
            with pytest.raises(PeerGone):
                receive.wait(60)
        finally:
            if child:
                os.kill(child, signal.SIGKILL)


def test_a_peer_that_exits_without_closing_is_gone(far_lane: str, start: Start) -> None:
    program = start(
        """
        import sys
        import backhaul
        listener = backhaul.Context(lanes=[sys.argv[1]]).listen("127.0.0.1:0")
        print(listener.address, flush=True)
        endpoint = listener.accept().wait()
        sys.stdin.readline()
        """,
        far_lane,
    )
    with Context(lanes=[far_lane]) as context:
        endpoint = context.connect(program.line()).wait(60)
        receive = endpoint.recv_frames()
        program.tell()
        with pytest.raises(PeerGone):
            receive.wait(60)
    assert program.end() == (0, "", "")


def test_a_peer_that_closes_has_closed(far_lane: str, start: Start) -> None:
    program = start(
        """
        import sys
        import backhaul
        listener = backhaul.Context(lanes=[sys.argv[1]]).listen("127.0.0.1:0")
        print(listener.address, flush=True)
        endpoint = listener.accept().wait()
        endpoint.send_frames([b"goodbye", bytes(3 << 20)])
        endpoint.close().wait()
        """,
        far_lane,
    )
    with Context(lanes=[far_lane]) as context:
        endpoint = context.connect(program.line()).wait(60)
        assert endpoint.recv_frames().wait(60) == [b"goodbye", bytes(3 << 20)]
        for request in (endpoint.recv_frames(), endpoint.recv(bytearray(1)), endpoint.send(b"")):
            with pytest.raises(EndpointClosed, match=r"peer 127.0.0.1:[0-9]+ closed"):
                request.wait(60)
    assert program.end() == (0, "", "")


#: Leaves in the middle of everything, in the way that its second argument says.
LEAVE = """
    import asyncio
    import os
    import sys
    import threading

    import backhaul

    async def main():
        global kept
        context = backhaul.Context(lanes=[sys.argv[1]])
        listener = context.listen("127.0.0.1:0")
        connecting = context.connect(listener.address)
        b = await listener.accept()
        a = await connecting
        memory = bytearray(1 << 20)
        requests = [
            a.recv(bytearray(100)),
            a.recv_frames(),
            a.send(memory),
            b.send_frames([memory, b"x"]),
            listener.accept(),
            context.connect("127.0.0.1:1"),
            context.connect("name.invalid:1"),
        ]
        a.on_close(print)
        tasks = [asyncio.ensure_future(request) for request in requests]
        threads = [threading.Thread(target=request.wait, daemon=True) for request in requests[:4]]
        for thread in threads:
            thread.start()
        await asyncio.sleep(0)
        a.send_frames([memory] * 3)
        receive = b.recv_frames()
        kept = [value for name, value in locals().items() if name != "kept"]
        if sys.argv[2] == "return":
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        elif sys.argv[2] == "exit":
            sys.exit(0)
        elif sys.argv[2] == "raise":
            raise KeyboardInterrupt
        else:
            os._exit(0)

    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass
"""


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="at its end, free-threaded Python now and then waits for ever for the lock of a "
    "dictionary that a daemon thread had; 3.13 does so without Backhaul, too",
)
@pytest.mark.parametrize("how", ["return", "exit", "raise", "leave at once"])
def test_a_process_may_exit_with_everything_under_way(lane: str, how: str, start: Start) -> None:
    programs = [start(LEAVE, lane, how) for _ in range(2)]
    for program in programs:
        status, out, err = program.end()
        # A thread that waits gets the reason why its operation ended.
        errors = [line for line in err.splitlines() if line.startswith("backhaul.errors.")]
        assert (status, out) == (0, ""), err
        assert "Fatal" not in err
        assert "panic" not in err
        assert len(errors) <= 4, err


def test_a_process_may_exit_while_its_threads_exchange_messages(lane: str, start: Start) -> None:
    source = """
        import sys
        import threading

        import backhaul

        context = backhaul.Context(lanes=[sys.argv[1]])
        listener = context.listen("127.0.0.1:0")
        connecting = context.connect(listener.address)
        b = listener.accept().wait()
        a = connecting.wait()
        running = threading.Barrier(3)

        def send():
            running.wait()
            while True:
                a.send_frames([bytes(70_000), b"x"]).wait()

        def receive():
            running.wait()
            while True:
                b.recv_frames().wait()

        for target in (send, receive):
            threading.Thread(target=target, daemon=True).start()
        running.wait()
        for _ in range(100):
            a.send(b"x", tag=1).wait()
            b.recv(bytearray(1), tag=1).wait()
    """
    for program in [start(source, lane) for _ in range(4)]:
        assert program.end() == (0, "", "")


@pytest.mark.parametrize("call", ["wait()", "wait(100)"])
def test_control_c_ends_a_wait(call: str, start: Start) -> None:
    program = start(
        f"""
        import signal
        import backhaul
        # It is ignored where the tests were started in the background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        listener = backhaul.listen()
        connecting = backhaul.connect(listener.address)
        b = listener.accept().wait()
        a = connecting.wait()
        request = b.recv_frames()
        try:
            print("waiting", flush=True)
            request.{call}
        except KeyboardInterrupt:
            print("interrupted", request.done(), flush=True)
        a.send_frames([b"x"])
        print(bytes(request.wait()[0]), flush=True)
        """
    )
    assert program.line() == "waiting"
    program.process.send_signal(signal.SIGINT)
    assert program.line() == "interrupted False"
    assert program.end() == (0, "b'x'\n", "")


def test_a_signal_handler_runs_during_a_wait(start: Start) -> None:
    program = start(
        """
        import signal
        import backhaul
        listener = backhaul.listen()
        connecting = backhaul.connect(listener.address)
        b = listener.accept().wait()
        a = connecting.wait()
        signal.signal(signal.SIGUSR1, lambda *_: a.send_frames([b"from the handler"]))
        print("waiting", flush=True)
        print(bytes(b.recv_frames().wait()[0]), flush=True)
        """
    )
    assert program.line() == "waiting"
    program.process.send_signal(signal.SIGUSR1)
    assert program.end() == (0, "b'from the handler'\n", "")


def test_a_blocked_wait_lets_other_threads_run(far_lane: str, start: Start) -> None:
    program = start(
        """
        import sys
        import threading
        import backhaul

        context = backhaul.Context(lanes=[sys.argv[1]])
        listener = context.listen("127.0.0.1:0")
        connecting = context.connect(listener.address)
        b = listener.accept().wait(300)
        a = connecting.wait(300)
        # A thread gives the interpreter up only on its own accord.
        sys.setswitchinterval(1000)
        counted = 0
        asked = threading.Event()

        def count():
            global counted
            asked.wait()
            for _ in range(1000):
                counted += 1
            a.send_frames([b"done"])

        thread = threading.Thread(target=count)
        thread.start()
        asked.set()
        b.recv_frames().wait(300)
        assert counted == 1000
        thread.join()

        # So with much to copy: another thread gets its turn in the middle of it.
        finished = False

        def note():
            global noted
            asked.wait()
            noted = not finished

        asked.clear()
        thread = threading.Thread(target=note)
        thread.start()
        message, buffer = bytearray(256 << 20), bytearray(256 << 20)
        receive = b.recv(buffer)
        asked.set()
        a.send(message).wait(300)
        receive.wait(300)
        finished = True
        thread.join()
        assert noted
        """,
        far_lane,
    )
    assert program.end() == (0, "", "")


def test_an_endpoint_that_is_dropped_ends_the_connection(
    far_lane: str, echo: Echo, eventually: Eventually
) -> None:
    with echo(far_lane) as (endpoint, program):
        endpoint.send_frames([b"x"]).wait(60)
        assert endpoint.recv_frames().wait(60) == [b"x"]
        del endpoint
    assert program.end() == (0, "PeerGone\nPeerGone\n", "")


def test_errors_say_which_peer_it_was(far_lane: str, echo: Echo) -> None:
    with echo(far_lane) as (endpoint, program):
        peer = endpoint.peer_address
        receive = endpoint.recv_frames()
        program.kill()
        with pytest.raises(BackhaulError, match=f"peer {peer} is gone"):
            receive.wait(60)
