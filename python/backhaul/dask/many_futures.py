"""Futures of a whole map, in two steps: what hears of a task before the map is sent, then the rest.

Dask's client makes each by three calls with a lock, before it sends anything. What the client has
to have when the scheduler answers is the state of a task, and that somebody refers to it. The
object that a program holds can come later, while the scheduler is at work.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from backhaul.dask.private import Client, Future, FutureState

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


def states_of(client: Client, keys: Iterable[Any]) -> list[FutureState]:
    """Have a client hear of tasks, each of which gets a future.

    Parameters
    ----------
    client : distributed.Client
        The client; the caller has its ``_refcount_lock``.
    keys : iterable of key
        Of the tasks, each once.

    Returns
    -------
    list of FutureState
        For `make_futures`, which has to follow, or `give_up`.
    """
    new = object.__new__
    known, refcount = client.futures, client.refcount
    states = []
    for key in keys:
        state = known.get(key)
        if state is None:
            known[key] = state = new(FutureState)
            state._event = state.exception = state.traceback = state.type = None
            state.key = key
            state.status = "pending"
        refcount[key] += 1
        states.append(state)
    return states


def make_futures(client: Client, states: Iterable[FutureState], futures: list[Future[Any]]) -> None:
    """Make the futures of tasks that a client hears of.

    Parameters
    ----------
    client : distributed.Client
        The client; the caller has its ``_refcount_lock``.
    states : iterable of FutureState
        What `states_of` gave.
    futures : list of Future
        Where they are put, each as it is made.
    """
    new: Any = object.__new__
    generation = client.generation
    uid, numbers = Future._uid, Future._counter
    for state in states:
        future = new(Future)
        future.key = state.key
        future._client = client
        future._input_state = None
        future._state = state
        future._id = uid, next(numbers)
        future._cleared = False
        future._generation = generation
        futures.append(future)


def give_up(client: Client, states: Iterable[FutureState]) -> None:
    """Let go of tasks that are to have no future: somebody has interrupted the program."""
    for state in states:
        client._dec_ref(state.key)
