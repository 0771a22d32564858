"""Calls that another thread interrupts: the exception is raised in the call, or nowhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from backhaul import _native

DEADLINE_S = 60


class Interrupted(BaseException):
    """An exception of these tests alone."""


def call(owner: object, function: Callable[[object], object]) -> object:
    return _native.call_interruptibly(owner, threading.get_ident(), function, owner)


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_a_call_returns_and_raises_as_the_function_does() -> None:
    assert call("owner", lambda given: (given, _native.running_calls())) == ("owner", ["owner"])
    with pytest.raises(ZeroDivisionError):
        call("owner", lambda _: 1 / 0)
    assert _native.running_calls() == []


def test_a_running_call_is_interrupted() -> None:
    caught: list[BaseException] = []

    def run(_: object) -> None:
        while True:
            time.sleep(0.001)

    def target() -> None:
        try:
            call(owner, run)
        except Interrupted as error:
            caught.append(error)

    owner = object()
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    until(lambda: owner in _native.running_calls())
    assert not _native.interrupt_call(object(), Interrupted)
    assert _native.interrupt_call(owner, Interrupted)
    thread.join(DEADLINE_S)
    assert [type(error) for error in caught] == [Interrupted]
    assert not _native.interrupt_call(owner, Interrupted)


def test_what_is_no_exception_is_refused() -> None:
    with pytest.raises(TypeError, match="int"):
        _native.interrupt_call("owner", int)  # type: ignore[arg-type]


def test_code_after_a_call_is_never_interrupted() -> None:
    counts = {"within": 0, "after": 0, "sent": 0}
    current: list[object] = []
    ended = threading.Event()

    def run(_: object) -> int:
        return sum(range(50))

    def target() -> None:
        for _ in range(20_000):
            owner = object()
            current[:] = [owner]
            try:
                try:
                    call(owner, run)
                except Interrupted:
                    counts["within"] += 1
                # Would be here if it came late.
                for _ in range(5):
                    owner = object()
            except Interrupted:
                counts["after"] += 1
        ended.set()

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    while not ended.is_set():
        for owner in list(current):
            counts["sent"] += _native.interrupt_call(owner, Interrupted)
    thread.join(DEADLINE_S)
    assert counts["after"] == 0
    assert counts["within"] <= counts["sent"]
