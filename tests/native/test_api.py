"""Properties of objects that users of such a library expect."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import backhaul
from backhaul import Context, Endpoint, EndpointClosed, PeerGone, Received, Request

if TYPE_CHECKING:
    from tests.native.conftest import Connected, Eventually


def test_objects_say_what_they_are(connected: Connected) -> None:
    context = Context(lanes=["shm", "tcp"])
    assert repr(context) == "<backhaul.Context shm tcp>"
    context.close()
    assert repr(context) == "<backhaul.Context shm tcp, closed>"
    listener = backhaul.listen()
    assert repr(listener) == f"<backhaul.Listener {listener.address}>"
    listener.close()
    assert repr(listener) == f"<backhaul.Listener {listener.address}, closed>"
    with connected("shm") as (a, b):
        ends = f"{a.local_address} -> {a.peer_address}"
        assert repr(a) == f"<backhaul.Endpoint {ends} over shm>"
        request: Request[Any] = b.recv(bytearray(1))
        assert repr(request) == (
            "<backhaul.Request, receive of tag 0, pending: no such message has come from the peer>"
        )
        a.send(b"x").wait(60)
        request.wait(60)
        assert repr(request) == "<backhaul.Request, receive of tag 0, returned>"
        a.abort()
        assert repr(a) == f"<backhaul.Endpoint {ends} over shm, closed>"
        request = a.send(b"x")
        with pytest.raises(EndpointClosed):
            request.wait(60)
        assert repr(request) == "<backhaul.Request, send of 1 bytes, raised>"


def test_what_is_bound_to_a_process_is_not_pickled_or_copied(connected: Connected) -> None:
    with connected("shm") as (a, b), Context() as context, backhaul.listen() as listener:
        for each in (a, b.recv_frames(), context, listener):
            for refused in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match=f"cannot pickle .*{type(each).__name__}"):
                    refused(each)


def test_nobody_makes_endpoints_by_hand() -> None:
    for cls in (Endpoint, Request, backhaul.Listener):
        with pytest.raises(TypeError):
            cls()


def test_a_received_message_is_a_pair() -> None:
    received = Received(5, 7)
    nbytes, tag = received
    assert (nbytes, tag) == (received.nbytes, received.tag) == (5, 7)


def test_requests_are_generic() -> None:
    assert Request[int] is not None


def test_objects_can_be_referred_to_weakly(connected: Connected) -> None:
    with connected("shm") as (a, b), Context() as context, backhaul.listen() as listener:
        for each in (a, b, context, listener):
            assert weakref.ref(each)() is each
        assert len({a, b}) == 2


def test_all_that_is_public_is_there() -> None:
    for name in backhaul.__all__:
        assert getattr(backhaul, name) is not None
    assert backhaul.__version__.count(".") == 2


def test_every_public_name_is_documented() -> None:
    for name in backhaul.__all__:
        if not name.startswith("_"):
            assert getattr(backhaul, name).__doc__


@pytest.mark.asyncio
async def test_endpoints_are_context_managers(lane: str, connected: Connected) -> None:
    with connected(lane) as (a, b):
        async with a as entered:
            assert entered is a
            a.send_frames([bytes(3 << 20)])
            receive = asyncio.ensure_future(b.recv_frames())
        # Closed in good order: what was sent has arrived.
        assert await receive == [bytes(3 << 20)]
        assert a.closed()
        with pytest.raises(EndpointClosed):
            await b.recv_frames()
        # Closing an end that the peer has closed is no error.
        async with b:
            pass


def test_endpoints_are_context_managers_without_a_loop(lane: str, connected: Connected) -> None:
    with connected(lane) as (a, b):
        with a as entered, b:
            assert entered is a
            a.send_frames([b"x"]).wait(60)
            assert b.recv_frames().wait(60) == [b"x"]
        assert a.closed()
        assert b.closed()


@pytest.mark.asyncio
async def test_an_endpoint_whose_body_raises_is_aborted(lane: str, connected: Connected) -> None:
    async def fail_in_async_block(endpoint: Endpoint) -> None:
        async with endpoint:
            raise ZeroDivisionError

    async def fail_in_block(endpoint: Endpoint) -> None:
        with endpoint:
            raise ZeroDivisionError

    for fail in (fail_in_async_block, fail_in_block):
        with connected(lane) as (a, b):
            send = a.send(bytes(3 << 20))
            with pytest.raises(ZeroDivisionError):
                await fail(a)
            with pytest.raises(EndpointClosed, match="closed here"):
                await send
            with pytest.raises(PeerGone):
                await b.recv_frames()


def test_a_context_ends_with_its_block() -> None:
    with Context() as context:
        listener = context.listen("127.0.0.1:0")
        waiting = listener.accept()
        assert not context.closed()
    assert context.closed()
    with pytest.raises(EndpointClosed):
        waiting.wait(60)
    context.close()


def test_the_context_of_the_process_is_made_again_if_closed() -> None:
    first = backhaul.default_context()
    first.close()
    second = backhaul.default_context()
    assert second is not first
    with backhaul.listen() as listener:
        connecting = backhaul.connect(listener.address)
        listener.accept().wait(60)
        connecting.wait(60)


def test_endpoints_and_listeners_keep_the_engine_alive(lane: str) -> None:
    def connect() -> tuple[Endpoint, Endpoint]:
        context = Context(lanes=[lane])
        listener = context.listen("127.0.0.1:0")
        connecting = context.connect(listener.address)
        return listener.accept().wait(60), connecting.wait(60)

    a, b = connect()
    gc.collect()
    a.send_frames([bytes(1 << 20)])
    assert b.recv_frames().wait(60) == [bytes(1 << 20)]


def test_statistics_count_messages_and_bytes(lane: str, connected: Connected) -> None:
    with connected(lane) as (a, b):
        sends = [a.send(bytes(10), tag=1), a.send_frames([bytes(5), bytes(100_000)])]
        b.recv(bytearray(10), tag=1).wait(60)
        b.recv_frames().wait(60)
        for send in sends:
            send.wait(60)
        counts: dict[str, Any] = a.statistics()
        assert counts["lane"] == lane
        assert (counts["sent_messages"], counts["sent_bytes"]) == (2, 100_015)
        assert (counts["received_messages"], counts["received_bytes"]) == (0, 0)
        assert counts["queued_bytes"] == a.queued_bytes() == 0
        assert counts["send_time_s"] > 0
        assert counts["age_s"] > 0
        counts = b.statistics()
        assert (counts["received_messages"], counts["received_bytes"]) == (2, 100_015)
        assert (counts["sent_messages"], counts["sent_bytes"]) == (0, 0)
        assert counts["recv_time_s"] > 0


def test_queued_bytes_are_those_of_sends_under_way(
    lane: str, connected: Connected, eventually: Eventually
) -> None:
    with connected(lane) as (a, b):
        for i in range(3):
            a.send(bytes(1 << 20), tag=i)
        assert a.queued_bytes() == a.statistics()["queued_bytes"] == 3 << 20
        b.recv(bytearray(1 << 20), tag=1).wait(60)
        eventually(lambda: a.queued_bytes() == 2 << 20)
        a.abort()
        assert a.queued_bytes() == 0


def test_both_ends_agree_on_their_addresses(lane: str, connected: Connected) -> None:
    with connected(lane) as (a, b):
        assert (a.local_address, a.peer_address) == (b.peer_address, b.local_address)
        for end in (a, b):
            info = end.info()
            assert info["lane"] == lane
            assert info["local_address"] == end.local_address
            assert info["peer_address"] == end.peer_address
        a.close().wait(60)
        assert a.info()["closed"] == "endpoint was closed here"
        eventually_closed = b.info()["closed"]
        assert eventually_closed in (None, f"peer {b.peer_address} closed the connection")


def test_a_listener_counts_its_peers(eventually: Eventually) -> None:
    with Context() as context, context.listen("127.0.0.1:0") as listener:
        connecting = [context.connect(listener.address) for _ in range(3)]
        endpoints = [request.wait(60) for request in connecting]
        eventually(lambda: listener.statistics()["waiting"] == 3)
        listener.accept().wait(60)
        assert listener.statistics() == {
            "accepted": 3,
            "rejected": 0,
            "handshakes": 0,
            "waiting": 2,
            "last_rejection": None,
        }
        assert len(endpoints) == 3
