"""Python objects as messages, and looking for a message without receiving it."""

from __future__ import annotations

import asyncio
import collections.abc
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from backhaul import Context, ObjectError, Received, Request, TimedOut

if TYPE_CHECKING:
    from tests.native.conftest import Connected, Eventually, Finish


async def check_object(finish: Finish, a: Any, b: Any, sent: object) -> None:
    receiving = b.recv_obj(tag=3)
    await finish(a.send_obj(sent, tag=3))
    assert await finish(receiving) == sent


@pytest.mark.parametrize(
    "sent",
    [None, {"a": [1, 2.5, "ü"]}, (b"", bytearray(b"x")), "long " * 50_000, range(5)],
    ids=["none", "dict", "bytes", "long text", "range"],
)
def test_an_object_arrives_as_it_was(
    lane: str, finish: Finish, connected: Connected, sent: object
) -> None:
    with connected(lane) as (a, b):
        asyncio.run(check_object(finish, a, b, sent))


def test_arrays_of_an_object_go_beside_its_pickle_and_can_be_written_to(
    lane: str, connected: Connected
) -> None:
    arrays = {"long": np.arange(100_000.0), "fortran": np.ones((30, 20), order="F"), "empty": []}
    with connected(lane) as (a, b):
        receiving = b.recv_obj()
        a.send_obj(arrays).wait(300)
        received = receiving.wait(300)
    assert (received["long"] == arrays["long"]).all()
    assert received["fortran"].flags.f_contiguous
    received["long"][0] = 7.0
    assert arrays["long"][0] == 0.0  # type: ignore[index]
    assert not received["long"].flags.owndata, "it lies in the memory that was received"


def test_what_cannot_be_pickled_is_refused_at_once(connected: Connected) -> None:
    with connected("inproc") as (a, b):
        with pytest.raises((pickle.PicklingError, AttributeError, TypeError), match="pickle"):
            a.send_obj(lambda: None)
        a.send_obj("the next one arrives").wait(300)
        assert b.recv_obj().wait(300) == "the next one arrives"


@pytest.mark.parametrize("message", [b"", b"12345", bytes(100_000)])
def test_a_message_that_is_no_object_is_refused_by_size_and_tag(
    connected: Connected, message: bytes
) -> None:
    with connected("inproc") as (a, b):
        receiving = b.recv_obj(tag=9)
        a.send(message, tag=9).wait(300)
        with pytest.raises(
            ObjectError, match=f"message of {len(message)} bytes under tag 9 was not"
        ):
            receiving.wait(300)
        a.send_obj(1, tag=9).wait(300)
        assert b.recv_obj(mask=0).wait(300) == 1


def test_probing_finds_size_and_tag_and_takes_nothing(
    lane: str, connected: Connected, eventually: Eventually
) -> None:
    with connected(lane) as (a, b):
        assert b.probe(mask=0) is None
        a.send(b"12345", tag=7).wait(300)
        long = a.send(bytes(1 << 20), tag=8)
        eventually(lambda: b.probe(tag=8))
        assert b.probe(tag=7) == b.probe(mask=0) == Received(5, 7)
        assert b.probe(tag=8) == Received(1 << 20, 8)
        assert b.probe(tag=6) is None
        assert not long.done()
        buffer = bytearray(1 << 20)
        assert b.recv(buffer, tag=7).wait(300).nbytes == 5
        assert b.probe(tag=7) is None
        assert b.recv(buffer, tag=8).wait(300).nbytes == 1 << 20
        long.wait(300)


def test_probing_does_not_see_untagged_messages(
    connected: Connected, eventually: Eventually
) -> None:
    with connected("shm") as (a, b):
        a.send_frames([b"frame"]).wait(300)
        a.send(b"tagged", tag=1).wait(300)
        eventually(lambda: b.probe(mask=0))
        assert b.probe(mask=0) == Received(6, 1)


def test_an_ended_connection_has_nothing_to_probe(connected: Connected) -> None:
    with connected("tcp") as (a, b):
        a.abort()
        b.abort()
        assert b.probe() is None


def test_a_send_that_waits_for_its_receive_says_so(lane: str, connected: Connected) -> None:
    with connected(lane) as (a, b):
        a.send(bytes(8 << 10)).wait(300)
        sending = a.send(bytes(1 << 20))
        cause = r"a message of more than \d+ bytes may wait until the peer receives it"
        with pytest.raises(
            TimedOut, match=f"send of 1048576 bytes is not done after 0.05 s: .*{cause}"
        ):
            sending.wait(0.05)
        assert "may wait until the peer receives it" in repr(sending)
        assert b.recv(bytearray(1 << 20), mask=0).wait(300).nbytes == 8 << 10
        assert b.recv(bytearray(1 << 20), mask=0).wait(300).nbytes == 1 << 20
        sending.wait(300)
        assert repr(sending) == "<backhaul.Request, send of 1048576 bytes, returned>"


@pytest.mark.parametrize(
    ("post", "message"),
    [
        (lambda a: a.recv(bytearray(1), tag=5), "receive of tag 5 is not done after .*no such"),
        (lambda a: a.recv_obj(mask=0), "receive of any tag is not done"),
        (lambda a: a.recv(bytearray(1), tag=1, mask=3), "tag 0x1 under mask 0x3 is not done"),
        (lambda a: a.recv_frames(), "receive of untagged frames is not done"),
    ],
)
def test_a_receive_that_runs_out_of_time_says_what_for(
    connected: Connected, post: Any, message: str
) -> None:
    with connected("inproc") as (a, _), pytest.raises(TimedOut, match=message):
        post(a).wait(0)


def test_an_accept_that_runs_out_of_time_says_so() -> None:
    message = "accept is not done after 0 s: no peer has connected"
    with (
        Context() as context,
        context.listen("127.0.0.1:0") as listener,
        pytest.raises(TimedOut, match=message),
    ):
        listener.accept().wait(0)


def test_a_request_is_a_coroutine_to_asyncio(lane: str, connected: Connected) -> None:
    async def main() -> None:
        receiving = b.recv_obj(tag=1)
        assert isinstance(receiving, collections.abc.Coroutine)
        assert asyncio.iscoroutine(receiving)
        one = asyncio.create_task(receiving)
        async with asyncio.TaskGroup() as group:
            two = group.create_task(b.recv_obj(tag=2))
            group.create_task(a.send_obj("two", tag=2))
            group.create_task(a.send_obj("one", tag=1))
        done, pending = await asyncio.wait([one, two], timeout=300)
        assert not pending
        assert {task.result() for task in done} == {"one", "two"}
        await asyncio.wait_for(a.send(b""), 300)

    with connected(lane) as (a, b):
        asyncio.run(main())


def test_a_task_of_a_request_gives_up_its_receive_when_cancelled(connected: Connected) -> None:
    async def main() -> None:
        receiving = asyncio.create_task(b.recv_obj(tag=1))
        await asyncio.sleep(0)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        await a.send_obj("for the next one", tag=1)
        assert await b.recv_obj(tag=1) == "for the next one"

    with connected("shm") as (a, b):
        asyncio.run(main())


def test_other_event_loops_are_refused_in_words(connected: Connected) -> None:
    with connected("shm") as (a, _):
        receiving: Request[Any] = a.recv_frames()
        with pytest.raises(RuntimeError, match=r"asyncio or uvloop.*trio is not supported"):
            receiving.send(None)
        with pytest.raises(TypeError, match=r"None alone.*Endpoint.send"):
            receiving.send(1)  # type: ignore[arg-type]
