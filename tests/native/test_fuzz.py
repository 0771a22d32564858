"""Random sequences of operations between two processes, held against a naive model of matching.

This file is also the program of the other process: it does what lines of JSON say.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import backhaul

#: Longer than any message.
ROOM = 1 << 20

#: When to give up, in seconds.
DEADLINE_S = 300


def content(ident: int, nbytes: int) -> bytes:
    """Bytes that tell one message from the others."""
    return (ident.to_bytes(4, "little") + bytes([ident % 251]) * nbytes)[:nbytes]


class Side:
    """One end of the connection; operations are named by the order of posting."""

    def __init__(self, endpoint: backhaul.Endpoint) -> None:
        self.endpoint = endpoint
        self.requests: list[tuple[backhaul.Request[Any], bytearray]] = []

    def _post(self, request: backhaul.Request[Any], buffer: bytearray) -> None:
        self.requests.append((request, buffer))

    def send(self, ident: int, tag: int, nbytes: int) -> None:
        self._post(self.endpoint.send(bytearray(content(ident, nbytes)), tag=tag), bytearray())

    def send_frames(self, ident: int, sizes: list[int]) -> None:
        frames = [content(ident + i, nbytes) for i, nbytes in enumerate(sizes)]
        self._post(self.endpoint.send_frames(frames), bytearray())

    def recv(self, tag: int, mask: int, nbytes: int) -> None:
        buffer = bytearray(nbytes)
        self._post(self.endpoint.recv(buffer, tag=tag, mask=mask), buffer)

    def recv_frames(self) -> None:
        self._post(self.endpoint.recv_frames(), bytearray())

    def look(self, index: int) -> None:
        """Do what must not matter."""
        request, _ = self.requests[index]
        request.done()
        self.endpoint.info()
        self.endpoint.statistics()
        with contextlib.suppress(backhaul.BackhaulError):
            request.wait(0)

    def cancel(self, index: int) -> list[Any]:
        self.requests[index][0].cancel()
        return self.outcome(index)

    def outcome(self, index: int) -> list[Any]:
        request, buffer = self.requests[index]
        try:
            blocking = index % 2
            result = request.wait(DEADLINE_S) if blocking else asyncio.run(self._result(request))
        except backhaul.BackhaulError as error:
            return [type(error).__name__]
        if isinstance(result, list):
            return ["frames", *(zlib.crc32(frame) for frame in result)]
        if result is None:
            return ["sent"]
        return ["received", result.nbytes, result.tag, zlib.crc32(buffer[: result.nbytes])]

    @staticmethod
    async def _result(request: backhaul.Request[Any]) -> Any:
        return await asyncio.wait_for(request, DEADLINE_S)

    def end(self, how: str) -> None:
        if how == "close":
            self.endpoint.close().wait(DEADLINE_S)
        elif how == "abort":
            self.endpoint.abort()
        self.requests.clear()
        del self.endpoint


def serve(lane: str) -> None:
    """Do what standard input says."""

    def answer(value: object) -> None:
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()

    listener = backhaul.Context(lanes=[lane], credit_messages=8).listen("127.0.0.1:0")
    answer(listener.address)
    side = None
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        if name == "accept":
            side = Side(listener.accept().wait(DEADLINE_S))
            answer(None)
        else:
            answer(getattr(side, name)(*arguments))


if __name__ == "__main__":
    serve(sys.argv[1])
    sys.exit()

# The imports that follow are not for the other process, which starts the faster for it.

import hypothesis.strategies as st  # noqa: E402
import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from hypothesis.stateful import (  # noqa: E402
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)


class Other:
    """The other process."""

    def __init__(self, lane: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, lane],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address: str = self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the other process ended with status {self.process.wait(DEADLINE_S)}"
        return json.loads(line)

    def call(self, name: str, *arguments: object) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        with self.process:
            self.process.kill()


class Remote:
    """Our handle on the side in the other process."""

    def __init__(self, other: Other) -> None:
        self._call = other.call

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self._call(name, *arguments)


class Message(NamedTuple):
    number: int
    ident: int
    #: None if it has frames
    tag: int | None
    sizes: list[int]


class Receive(NamedTuple):
    number: int
    #: None if it takes frames
    tag: int | None
    mask: int
    nbytes: int


class Model:
    """Messages that one side has sent and received; matching by trying every pair in order."""

    def __init__(self) -> None:
        self.count = 0
        self.sent: list[Message] = []
        self.receives: list[Receive] = []

    def next_number(self) -> int:
        self.count += 1
        return self.count - 1


def match(sent: list[Message], receives: list[Receive]) -> dict[int, Message]:
    """Give the message of each receive: the first that fits the first that waits for it."""
    waiting, matched = list(receives), {}
    for message in sent:
        for receive in waiting:
            if (message.tag is None) == (receive.tag is None) and (
                message.tag is None
                or receive.tag is None
                or not (message.tag ^ receive.tag) & receive.mask
            ):
                matched[receive.number] = message
                waiting.remove(receive)
                break
    return matched


def compete(one: Receive, other: Receive) -> bool:
    """Tell whether some message fits both receives."""
    if one.tag is None or other.tag is None:
        return one.tag is None and other.tag is None
    return not (one.tag ^ other.tag) & one.mask & other.mask


def expected(message: Message, nbytes: int) -> list[Any]:
    """Give the outcome of a receive that takes a message."""
    if message.tag is None:
        frames = (content(message.ident + i, size) for i, size in enumerate(message.sizes))
        return ["frames", *map(zlib.crc32, frames)]
    (size,) = message.sizes
    if size > nbytes:
        return ["TruncatedError"]
    return ["received", size, message.tag, zlib.crc32(content(message.ident, size))]


SIDES = st.integers(0, 1)
SIZES = st.sampled_from([0, 1, 3, 100, 4096, 5000, 65_536, 65_537, 300_000])
TAGS = st.sampled_from([0, 1, 2, 3, 2**64 - 1])
# Not the operation itself: whether there is one may depend on time, and draws must not.
CHOICES = st.integers(0, 1000)
MASKS = st.sampled_from([0, 1, 2, 2**64 - 1])


class Traffic(RuleBasedStateMachine):
    """Random operations on both sides of one connection."""

    other: Other
    context: backhaul.Context

    @initialize()
    def connect(self) -> None:
        connecting = self.context.connect(self.other.address)
        self.other.call("accept")
        self.sides: list[Any] = [Side(connecting.wait(DEADLINE_S)), Remote(self.other)]
        self.models = [Model(), Model()]
        self.idents: Iterator[int] = itertools.count(1, 10)

    @rule(side=SIDES, tag=TAGS, nbytes=SIZES)
    def send(self, side: int, tag: int, nbytes: int) -> None:
        model, ident = self.models[side], next(self.idents)
        self.sides[side].send(ident, tag, nbytes)
        model.sent.append(Message(model.next_number(), ident, tag, [nbytes]))

    @rule(side=SIDES, sizes=st.lists(SIZES, max_size=5))
    def send_frames(self, side: int, sizes: list[int]) -> None:
        model, ident = self.models[side], next(self.idents)
        self.sides[side].send_frames(ident, sizes)
        model.sent.append(Message(model.next_number(), ident, None, sizes))

    @rule(side=SIDES, tag=TAGS, mask=MASKS, nbytes=SIZES)
    def recv(self, side: int, tag: int, mask: int, nbytes: int) -> None:
        model = self.models[side]
        self.sides[side].recv(tag, mask, nbytes)
        model.receives.append(Receive(model.next_number(), tag, mask, nbytes))

    @rule(side=SIDES)
    def recv_frames(self, side: int) -> None:
        model = self.models[side]
        self.sides[side].recv_frames()
        model.receives.append(Receive(model.next_number(), None, 0, 0))

    @rule(side=SIDES, choice=CHOICES)
    def look(self, side: int, choice: int) -> None:
        if count := self.models[side].count:
            self.sides[side].look(choice % count)

    @rule(side=SIDES, choice=CHOICES)
    def cancel(self, side: int, choice: int) -> None:
        receives = self.models[side].receives
        # One that a later one competes with may have met a message, and that later one the next.
        # A message that is given up then goes to the receive after both, as no result is taken
        # back.
        alone = [
            receive
            for index, receive in enumerate(receives)
            if not any(compete(receive, later) for later in receives[index + 1 :])
        ]
        if alone:
            receive = alone[choice % len(alone)]
            if self.sides[side].cancel(receive.number) == ["Cancelled"]:
                # It has taken nothing, so it is as if it had never been.
                receives.remove(receive)

    def teardown(self) -> None:
        if not hasattr(self, "sides"):
            return
        for side, model, sent in (
            (self.sides[0], self.models[0], self.models[1].sent),
            (self.sides[1], self.models[1], self.models[0].sent),
        ):
            taken = {message.number for message in match(sent, model.receives).values()}
            for message in sent:
                if message.number not in taken:
                    if message.tag is None:
                        side.recv_frames()
                    else:
                        side.recv(message.tag, 2**64 - 1, ROOM)
                    receive = Receive(model.next_number(), message.tag, 2**64 - 1, ROOM)
                    model.receives.append(receive)
        for side, model, sent in (
            (self.sides[0], self.models[0], self.models[1].sent),
            (self.sides[1], self.models[1], self.models[0].sent),
        ):
            matched = match(sent, model.receives)
            assert len(matched) == len(sent)
            for receive in model.receives:
                if receive.number in matched:
                    outcome = side.outcome(receive.number)
                    assert outcome == expected(matched[receive.number], receive.nbytes), receive
                else:
                    assert side.cancel(receive.number) == ["Cancelled"], receive
        for side, model in zip(self.sides, self.models, strict=True):
            for message in model.sent:
                assert side.outcome(message.number) == ["sent"], message
        endings = ["close", "abort", "drop"]
        self.sides[0].end(endings[self.models[0].count % 3])
        self.sides[1].end(endings[self.models[1].count % 3])


@pytest.mark.parametrize(
    "examples", [50, pytest.param(100, marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize("lane", ["shm", "tcp"])
def test_any_sequence_of_operations_matches_as_the_model(lane: str, examples: int) -> None:
    other = Other(lane)
    try:
        with backhaul.Context(lanes=[lane], credit_messages=8) as context:

            class OnLane(Traffic):
                """On one lane; a class of its own, because Hypothesis makes the objects."""

            OnLane.other, OnLane.context = other, context
            run_state_machine_as_test(
                OnLane,
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=40,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
    finally:
        other.close()
