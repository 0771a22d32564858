"""Waiting for many futures of a client at little cost for each.

`Client.gather` waits for every future by a task of its own, with a timeout that is never set and an
entry in a tornado iterator. Here the coroutines that it makes for its futures are resumed by one
callback of the event loop for all futures that finished in a turn; nothing else is made for them.
What is not one of these coroutines gets a task, as ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from types import CodeType, CoroutineType
from typing import Any, Final, Protocol, TypeAlias, TypeGuard

from backhaul._locks import RLock
from backhaul.dask.compat.names import Client, FutureState

__all__ = ["StateEvent", "Waiter", "untimed_wait", "wait_for_all", "wait_for_state"]

_Quiet: TypeAlias = type | tuple[type, ...]

#: Held while the event of a future is made
_making = RLock()
#: What `_Gathering` resumes in this thread at the moment.
_current = threading.local()


class _Waiter:
    """Somebody who waits for a state, in a task of his own."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        event_loop = self.future.get_loop()
        if asyncio._get_running_loop() is event_loop:
            self._go_on()
        else:
            _leave_to(event_loop, self._go_on)

    def _go_on(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class _Step:
    """One of the coroutines that somebody gathers."""

    __slots__ = ("coroutine", "gathering", "is_over", "is_woken", "number")

    def __init__(self, gathering: _Gathering, number: int, coroutine: Coroutine[Any, Any, Any]):
        self.gathering = gathering
        self.number = number
        self.coroutine = coroutine
        self.is_woken = False
        #: Whether it has ended, though a thread may have woken it since
        self.is_over = False

    def wake(self, _: object = None) -> None:
        # Once: whoever is resumed may be done.
        if not self.is_woken:
            self.is_woken = True
            self.gathering.resume_soon(self)


class Waiter(Protocol):
    """Somebody who waits for a state."""

    def wake(self) -> None:
        """Hear that the state is there; again, if it is there again. Called by any thread."""


class StateEvent:
    """An `asyncio.Event` of a future, which wakes whole gatherings as well as tasks."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[Waiter] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Wake all who wait, tasks for the next turn of the event loop; called by any thread."""
        self._is_set = True
        # A copy: a thread that is woken takes itself out. Also if it was set before: whoever set it
        # may have been interrupted.
        for waiter in tuple(self._waiters):
            waiter.wake()

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> bool:
        if not self._is_set:
            waiter = _Waiter()
            self._waiters.append(waiter)
            try:
                # A thread may have set it since, and woken those who were there.
                if not self._is_set:
                    await waiter.future
            finally:
                self._waiters.remove(waiter)
        return True

    def add(self, waiter: Waiter) -> None:
        """Have somebody woken; he looks after this whether it is set."""
        self._waiters.append(waiter)

    def discard(self, waiter: Waiter) -> None:
        """Leave somebody alone from now on."""
        try:  # noqa: SIM105 - for each result that a thread waits for
            self._waiters.remove(waiter)
        except ValueError:
            pass

    def park(self, step: _Step) -> Generator[None]:
        """Leave the coroutine of a step here until it is woken."""
        self._waiters.append(step)
        try:
            # As in `wait`.
            if not self._is_set:
                yield
        finally:
            self._waiters.remove(step)


def _leave_to(event_loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Have an event loop call something, from another thread."""
    # Closed: nobody waits there any more.
    with contextlib.suppress(RuntimeError):
        event_loop.call_soon_threadsafe(callback)


@types.coroutine
def wait_for_state(state: FutureState) -> Generator[Any, Any]:
    """Wait until a future is finished, failed or cancelled."""
    event: Any = state._event
    if event is None:
        event = state._get_event()
    if event.is_set():
        return
    step = getattr(_current, "step", None)
    if step is None or type(event) is not StateEvent:
        yield from event.wait().__await__()
    else:
        yield from event.park(step)


class _Gathering:
    """Coroutines that wait for nothing but states, each resumed when its state is there.

    Parameters
    ----------
    coroutines : list of coroutine
        None has begun.
    """

    def __init__(self, coroutines: list[Coroutine[Any, Any, Any]]) -> None:
        self._coroutines = coroutines
        self._event_loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[None] = self._event_loop.create_future()
        self._results: list[Any] = [None] * len(coroutines)
        self._left = len(coroutines)
        #: Those whose state is there, and whether they are about to be resumed.
        self._woken: deque[_Step] = deque()
        self._is_due = False

    async def wait(self) -> list[Any]:
        """Wait for all, or for the first that raises; ends the others then."""
        try:
            for number, coroutine in enumerate(self._coroutines):
                self._resume(_Step(self, number, coroutine))
            await self._outcome
        finally:
            for coroutine in self._coroutines:
                coroutine.close()
        return self._results

    def resume_soon(self, step: _Step) -> None:
        """Resume a coroutine in the next turn of the event loop; called by any thread."""
        self._woken.append(step)
        if not self._is_due:
            self._is_due = True
            if asyncio._get_running_loop() is self._event_loop:
                self._event_loop.call_soon(self._resume_woken)
            else:
                _leave_to(self._event_loop, self._resume_woken)

    def _resume_woken(self) -> None:
        # Before it looks: one that is woken from here on is seen, or comes in another turn. Without
        # the GIL it is the lock inside the deque that says which, so it looks by taking.
        self._is_due = False
        while True:
            try:
                step = self._woken.popleft()
            except IndexError:
                return
            self._resume(step)

    def _resume(self, step: _Step) -> None:
        if self._outcome.done() or step.is_over:
            return
        step.is_woken = False
        _current.step = step
        try:
            awaited = step.coroutine.send(None)
        except StopIteration as done:
            step.is_over = True
            self._results[step.number] = done.value
            self._left -= 1
            if not self._left:
                self._outcome.set_result(None)
        except asyncio.CancelledError:
            self._outcome.cancel()
        except Exception as error:
            self._outcome.set_exception(error)
        else:
            if awaited is not None:
                # A future of asyncio's: its event was made before Dask's method was replaced.
                awaited._asyncio_future_blocking = False
                awaited.add_done_callback(step.wake)
        finally:
            _current.step = None


def shared_event(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `FutureState._get_event` whose events are `StateEvent`."""

    def _get_event(self: FutureState) -> Any:
        event: Any = self._event
        if event is None:
            # A thread that waits may make it, too.
            with _making:
                event = self._event
                if event is None:
                    event = StateEvent()
                    self._event = event
        return event

    return _get_event


def untimed_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `FutureState.wait` that sets no timeout where there is none."""

    async def wait(self: FutureState, timeout: Any = None) -> None:
        if timeout is None:
            await wait_for_state(self)
        else:
            await original(self, timeout)

    return wait


def _codes_within(function: Any, name: str) -> list[CodeType]:
    """Find the code of functions of one name that are defined in another function."""
    # Without a code, as when somebody has put an object in its place, none is found.
    constants: Iterable[Any] = getattr(getattr(function, "__code__", None), "co_consts", ())
    return [code for code in constants if isinstance(code, CodeType) and code.co_name == name]


# `_Gathering` may resume only coroutines of which it is known that they wait for one state and for
# nothing else. A coroutine does not name its function, but it has its code, and a function that is
# defined in another one has the same code object each time it is made: a constant of the outer one.
# So a coroutine is recognised by that object. There are two such functions: ours in `untimed_wait`,
# and the one in `Client._gather` that awaits it, whose source
# `backhaul.dask.compat.process_patches` checks.

#: Code of what `untimed_wait` makes
(_WAIT_CODE,) = _codes_within(untimed_wait, "wait")
#: Code of all coroutines that wait for one state and for nothing else
_STATE_WAIT_CODES: Final = frozenset({_WAIT_CODE, *_codes_within(Client._gather, "wait")})


def _waits_for_a_state(waiting: object) -> TypeGuard[Coroutine[Any, Any, Any]]:
    """Tell whether an awaitable is a coroutine that waits for one state, and has not begun."""
    return (
        type(waiting) is CoroutineType
        and waiting.cr_code in _STATE_WAIT_CODES
        and inspect.getcoroutinestate(waiting) == inspect.CORO_CREATED
    )


async def wait_for_all(args: Iterable[Awaitable[Any]], quiet_exceptions: _Quiet = ()) -> list[Any]:
    """Wait for all, or for the first that raises, whose exception comes through.

    Parameters
    ----------
    args : iterable of awaitable
        What to wait for. None is cancelled; coroutines that only wait for the state of a future
        end with this call.
    quiet_exceptions : type or tuple of type
        Exceptions that are not logged if others raise them later.

    Returns
    -------
    list
        The results, in the order of `args`.
    """
    args = list(args)
    if not args:
        return []
    # Dask's coroutine awaits `FutureState.wait`: only while that is ours is it one of these.
    if getattr(FutureState.wait, "__code__", None) is _WAIT_CODE:
        known = [arg for arg in args if _waits_for_a_state(arg)]
        if len(known) == len(args):
            return await _Gathering(known).wait()
    return await _wait_for_tasks(args, quiet_exceptions)


async def _wait_for_tasks(args: list[Awaitable[Any]], quiet_exceptions: _Quiet) -> list[Any]:
    event_loop = asyncio.get_running_loop()
    tasks = [asyncio.ensure_future(arg) for arg in args]
    outcome: asyncio.Future[None] = event_loop.create_future()
    left = len(tasks)

    def finished(task: asyncio.Future[Any]) -> None:
        nonlocal left
        left -= 1
        if outcome.done():
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, quiet_exceptions):
                event_loop.call_exception_handler(
                    {"message": "Task exception came too late", "exception": error, "task": task}
                )
        elif task.cancelled():
            outcome.cancel()
        elif (error := task.exception()) is not None:
            outcome.set_exception(error)
        elif left == 0:
            outcome.set_result(None)

    for task in tasks:
        task.add_done_callback(finished)
    await outcome
    return [task.result() for task in tasks]


def light_all(original: Callable[..., Any]) -> Callable[..., Any]:
    """Give `wait_for_all`, which takes the place of `distributed.utils.All`."""
    return wait_for_all
