"""Notes of the tasks that threads begin early, for tests; and small tasks."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from distributed import (
    Client,
    Worker,
)

from backhaul.dask.compat import activation
from backhaul.dask.worker.core.ownership import StateOwner
from backhaul.dask.worker.early_execution import EarlyExecution
from backhaul.dask.worker.early_reader import EarlyReader

if TYPE_CHECKING:
    from tests.dask.conftest import Eventually

#: Keys that threads have begun with by themselves, those whose end they have told, and those that
#: the state machine went through in one step
begun: list[Any] = []
told: list[Any] = []
whole: list[Any] = []
gates: dict[str, threading.Event] = {}
#: How often a task ran
counted: Counter[Any] = Counter()


def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Note what threads begin with and tell."""
    begun.clear()
    told.clear()
    whole.clear()
    gates.clear()
    counted.clear()
    begin, tell = EarlyReader._begin, EarlyExecution.tell_ahead

    def noting_begin(self: EarlyReader, message: dict[str, Any]) -> EarlyExecution | None:
        found = begin(self, message)
        if found is not None:
            begun.append(message["key"])
        return found

    def noting_tell(self: EarlyExecution, *, is_last: bool) -> bool:
        is_told = tell(self, is_last=is_last)
        if is_told:
            told.append(self._key)
        return is_told

    def noting_lived(self: StateOwner, message: dict[str, Any], done: Any, **looks: bool) -> Any:
        key = message["key"]
        answer = in_rust(self, message, done, **looks)
        if answer is not None and answer[0]:
            whole.append(key)
        return answer

    in_rust = StateOwner.apply_completed_task
    monkeypatch.setattr(StateOwner, "apply_completed_task", noting_lived)
    monkeypatch.setattr(EarlyReader, "_begin", noting_begin)
    monkeypatch.setattr(EarlyExecution, "tell_ahead", noting_tell)
    activation.install()
    yield
    for gate in gates.values():
        gate.set()


def inc(value: int) -> int:
    return value + 1


def fail(number: int) -> None:
    raise ValueError(number)


async def chain(client: Client, count: int, value: int = 0) -> Any:
    """Run tasks, each of which waits for the one before it."""
    future: Any = client.submit(inc, value, pure=False)
    for _ in range(count - 1):
        future = client.submit(inc, future, pure=False)
    return await future


async def until_ahead(client: Client, eventually: Eventually) -> None:
    """Run tasks until a thread has begun with one by itself."""

    async def is_ahead() -> bool:
        await chain(client, 5)
        return bool(begun)

    for _ in range(1000):
        if await is_ahead():
            return
    pytest.fail("no thread began with a task by itself")


def watch_nothing(worker: Worker) -> None:
    """Turn off the checks of a test's state machine, by Dask's functions."""
    worker.state.validate = False
    worker.state.transition_counter_max = False
