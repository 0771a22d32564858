"""Messages that threads read before the event loop: the class without locks and threads."""

from __future__ import annotations

from typing import Any

import pytest

from backhaul.dask.comm.inbox import ALL, ALL_QUOTA, BATCHES, NONE, PARTS, Quota
from backhaul.dask.worker.early_messages import BEHIND_S, LEFT_S, Access, EarlyMessages
from backhaul.dask.worker.idle_thread import IdleThread, Wait
from backhaul.dask.worker.item_state import ItemState
from backhaul.dask.worker.local_queue import Phase
from backhaul.dask.worker.transitions import State

PAUSE = {"op": "pause"}


class Item:
    """An early task."""

    def __init__(self, state: ItemState = ItemState.TAKEN) -> None:
        self.state = state


def task(key: str) -> dict[str, Any]:
    return {"op": "compute-task", "key": key}


def free(*keys: str) -> dict[str, Any]:
    return {"op": "free-keys", "keys": keys}


class Reading:
    """Messages on their way, at a chosen time."""

    def __init__(self) -> None:
        self.messages = EarlyMessages()
        self.batches: list[Any] = []
        self.early: dict[Any, Item] = {}
        self.now_s = 100.0

    def read(self, *batches: Any, is_last: bool = False) -> bool:
        messages = self.messages
        self.batches += batches
        unread = self.batches[max(0, messages.seen - messages.taken) :]
        found = messages.read(unread, self.now_s, is_last=is_last)
        messages.validate()
        return found

    def begin(self) -> Any:
        message = self.messages.first()
        if message is not None:
            self.messages.begin()
            self.early[message["key"]] = Item()
        self.messages.validate()
        return message

    def quota(self, *, is_waited_for: bool = False, reports_here: bool = False) -> Quota:
        quota = self.messages.quota(
            self.batches,
            self.early,
            self.now_s,
            is_waited_for=is_waited_for,
            reports_here=lambda: reports_here,
        )
        self.messages.validate()
        return quota

    def take(self, count: int) -> None:
        del self.batches[:count]
        self.messages.on_taken(self.messages.taken + count)
        self.messages.validate()


def test_a_thread_begins_tasks_in_order_and_notes_freed_keys() -> None:
    reading = Reading()
    assert reading.read([task("a"), free("x")], task("b"))
    assert reading.begin() == task("a")
    assert not reading.messages.is_freed("x")
    assert reading.begin() == task("b")
    assert reading.messages.is_freed("x")
    assert reading.begin() is None
    reading.take(2)
    assert not reading.messages.is_freed("x")


@pytest.mark.parametrize("odd", [PAUSE, "OK", [task("b"), PAUSE]])
def test_a_message_of_the_event_loop_blocks_it_and_all_before_it(odd: Any) -> None:
    reading = Reading()
    reading.read([task("a")], odd, [task("c")])
    assert reading.messages.access is Access.CLOSED
    assert reading.begin() is None
    assert reading.quota() == ALL_QUOTA
    # Later messages are not read until the event loop has taken these.
    reading.read([task("d")])
    reading.take(2)
    assert reading.messages.is_closed
    reading.take(1)
    assert not reading.messages.is_closed
    reading.read()
    assert reading.begin() == task("d")


def test_no_message_after_the_last_that_threads_may_read_is_begun() -> None:
    reading = Reading()
    reading.read([task("a")], is_last=True)
    assert reading.messages.is_closed
    reading.take(1)
    assert reading.messages.access is Access.OPEN


def test_a_held_task_is_for_the_next_thread_once_reports_are_handled() -> None:
    reading = Reading()
    reading.read([task("a")])
    reading.messages.hold()
    reading.messages.validate()
    assert reading.messages.on_reported()
    assert not reading.messages.on_reported()
    reading.messages.hold()
    # The event loop takes the message.
    reading.take(1)
    assert reading.messages.access is Access.OPEN
    assert not reading.messages.waiting


def test_the_event_loop_takes_tasks_that_have_ended() -> None:
    reading = Reading()
    reading.read([task("a")], [task("b"), free("x"), task("c")], [task("d")])
    for _ in range(4):
        reading.begin()
    assert reading.quota() == Quota(NONE, later_s=BEHIND_S)
    reading.early["a"].state = ItemState.ENDED
    assert reading.quota() == Quota(BATCHES, 1)
    # A thread reports it, with others.
    assert reading.quota(reports_here=True).share is NONE
    reading.take(1)
    reading.early["b"].state = ItemState.ENDED
    reading.now_s += 2 * BEHIND_S
    assert reading.quota() == Quota(PARTS, 2)
    reading.batches[0] = reading.batches[0][2:]
    assert reading.quota().share is NONE
    # None has ended since, or the first is too old.
    reading.now_s += 2 * BEHIND_S
    assert reading.quota() == ALL_QUOTA


def test_the_event_loop_asks_again_in_time_without_a_thread() -> None:
    """A task that a thread begins meanwhile does not wait for longer."""
    reading = Reading()
    reading.batches.append([task("unseen")])
    quota = reading.quota(is_waited_for=True)
    assert quota.wakes
    assert 0 < quota.later_s <= BEHIND_S
    reading.now_s += 2 * BEHIND_S
    assert 0 < reading.quota(is_waited_for=True).later_s <= BEHIND_S
    reading.now_s += LEFT_S
    assert reading.quota(is_waited_for=True).share is ALL


def test_the_waiting_thread_is_given_one_item() -> None:
    idle = IdleThread()
    assert idle.offer("a") == (True, False)
    idle.come()
    assert idle.offer(None) == (True, True)
    assert idle.offer("a") == (False, True)
    assert idle.state is Wait.HANDED
    idle.validate()
    assert idle.offer("b") == (True, True)
    assert idle.leave(None) == ("a", None)
    idle.come()
    idle.offer("a")
    # The thread has found a task itself.
    assert idle.leave("b") == ("b", "a")
    idle.come()
    with pytest.raises(AssertionError):
        idle.come()


@pytest.mark.parametrize("kind", [Access, ItemState, Phase, Wait])
def test_each_state_has_transitions_and_can_be_reached(kind: type[State]) -> None:
    first = next(iter(kind))
    reached, left = {first}, [first]
    while left:
        for each in set(left.pop().following) - reached:
            assert type(each) is kind
            reached.add(each)
            left.append(each)
    assert reached == set(kind)
