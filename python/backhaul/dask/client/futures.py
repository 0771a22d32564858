"""Futures of a whole map, in two steps: what hears of a task before the map is sent, then the rest.

Dask's client makes each by three calls with a lock, before it sends anything. What the client has
to have when the scheduler answers is the state of a task, and that somebody refers to it. The
object that a program holds can come later, while the scheduler is at work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

from backhaul.dask.compat.names import Client, Future, FutureState

__all__ = ["future_of", "give_up", "make_futures", "states_of"]


def future_of(client: Client, key: Any) -> Future[Any]:
    """Make the future of one task, as its constructor does.

    Parameters
    ----------
    client : distributed.Client
        The client; the caller has its ``_refcount_lock``.
    key : key
        Of the task.

    Returns
    -------
    distributed.Future
        The future.
    """
    futures: list[Future[Any]] = []
    make_futures(client, states_of(client, (key,)), futures)
    return futures[0]


def states_of(client: Client, keys: Sequence[Any]) -> list[FutureState]:
    """Have a client hear of tasks, each of which gets a future.

    Parameters
    ----------
    client : distributed.Client
        The client; the caller has its ``_refcount_lock``.
    keys : sequence of key
        Of the tasks, each once.

    Returns
    -------
    list of FutureState
        For `make_futures`, which has to follow, or `give_up`.
    """
    known, refcount = client.futures, client.refcount
    if (
        len(keys) > 1
        # As mostly: nobody has heard of any of them.
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
    """Make the futures of tasks that a client hears of.

    Parameters
    ----------
    client : distributed.Client
        The client; the caller has its ``_refcount_lock``.
    states : sequence of FutureState
        What `states_of` gave.
    futures : list of Future
        Where they are put, each as it is made.
    """
    new: Any = object.__new__
    generation, uid = client.generation, Future._uid
    made = map(new, repeat(Future, len(states)))
    # In this order: a number more than are needed would be taken otherwise.
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
    """Let go of tasks that are to have no future: somebody has interrupted the program."""
    for state in states:
        client._dec_ref(state.key)
