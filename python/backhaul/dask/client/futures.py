"""Futures of a whole map, made in two steps: states before the map is sent, futures after it.

Dask's client makes each future by three calls with a lock, before it sends the graph. When the
scheduler answers, the client needs only the state of a task and a reference count for it. So the
`Future` objects are made after the message is sent, while the scheduler works.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

from backhaul.dask.compat.names import Client, Future, FutureState

__all__ = ["future_of", "give_up", "make_futures", "states_of"]


def future_of(client: Client, key: Any) -> Future[Any]:
    """Make the future of one task, as its constructor does.

    The caller has the ``_refcount_lock`` of the client.
    """
    futures: list[Future[Any]] = []
    make_futures(client, states_of(client, (key,)), futures)
    return futures[0]


def states_of(client: Client, keys: Sequence[Any]) -> list[FutureState]:
    """Register tasks with a client: a state and one reference for each; keys have no duplicates.

    The caller has the ``_refcount_lock`` of the client, and passes each state to `make_futures` or
    to `give_up`.
    """
    known, refcount = client.futures, client.refcount
    if (
        len(keys) > 1
        # The usual case: the client has none of these keys yet.
        and known.keys().isdisjoint(keys)
        and refcount.keys().isdisjoint(keys)
    ):
        states = _new_states(keys)
        known.update(zip(keys, states, strict=True))
        refcount.update(zip(keys, repeat(1)))
        return states
    states = []
    for key in keys:
        state = known.get(key)
        if state is None:
            (state,) = _new_states((key,))
            known[key] = state
        refcount[key] += 1
        states.append(state)
    return states


def _new_states(keys: Sequence[Any]) -> list[FutureState]:
    """Make the states of tasks, as their constructor does."""
    new: Any = object.__new__
    states: list[FutureState] = list(map(new, repeat(FutureState, len(keys))))
    for state, key in zip(states, keys, strict=True):
        state._event = state.exception = state.traceback = state.type = None
        state.key = key
        state.status = "pending"
    return states


def make_futures(client: Client, states: Sequence[FutureState], futures: list[Future[Any]]) -> None:
    """Make the futures of states of `states_of`; `futures` receives each as soon as it is made.

    The caller has the ``_refcount_lock`` of the client.
    """
    new: Any = object.__new__
    generation, uid = client.generation, Future._uid
    made = map(new, repeat(Future, len(states)))
    # The counter is the last of the three, because `zip` would take one number too many otherwise.
    for state, future, number in zip(states, made, Future._counter, strict=False):
        future.key = state.key
        future._client = client
        future._input_state = None
        future._state = state
        future._id = uid, number
        future._cleared = False
        future._generation = generation
        futures.append(future)


def give_up(client: Client, states: Iterable[FutureState]) -> None:
    """Release the references of tasks whose futures were not made, after an interrupt."""
    for state in states:
        client._dec_ref(state.key)
