"""The thread of a scheduler's event loop, which alone uses a core and exports its state.

A scheduler of `LocalCluster` is in the process of the program, whose threads may read its state. If
such a thread exported the state, the event loop would run meanwhile and see half of it. So the
event loop reads in the place of the other thread, which waits. If the event loop is closed, or
waits for that thread itself, the read raises `EscapeError` instead of returning half a state.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from backhaul.errors import EscapeError

__all__ = ["WAIT_S_MAX", "LoopThread"]

_T = TypeVar("_T")

#: How long another thread waits for the event loop: longer than an escape of a million tasks takes
WAIT_S_MAX: Final = 30.0


class LoopThread:
    """The thread that makes this, and the event loop that runs in it.

    Raises
    ------
    RuntimeError
        If none does.
    """

    def __init__(self) -> None:
        self._event_loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def is_current(self) -> bool:
        """Tell whether the caller is in that thread."""
        return threading.get_ident() == self._thread

    def run(self, look: Callable[[], _T]) -> _T:
        """Run a function in the event loop and wait for it; for callers in other threads.

        Raises
        ------
        EscapeError
            If the event loop is closed, or has not called the function within `WAIT_S_MAX`; the
            call is cancelled then.
        """
        answer: Future[_T] = Future()

        def answered() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(look())
            except BaseException as error:
                answer.set_exception(error)
                if not isinstance(error, Exception):
                    raise

        try:
            self._event_loop.call_soon_threadsafe(answered)
        except RuntimeError as error:
            raise EscapeError("the scheduler's event loop is closed") from error
        try:
            return answer.result(WAIT_S_MAX)
        except TimeoutError:
            # The function may have raised this exception, or may have started just now.
            if answer.done() or not answer.cancel():
                return answer.result()
            raise EscapeError(
                f"the scheduler's event loop has not answered for {WAIT_S_MAX:.0f} s, which thread "
                f"{threading.current_thread().name!r} has waited for"
            ) from None
        finally:
            # For example after an interrupt of this thread
            answer.cancel()

    def attribute(
        self,
        name: str,
        read: Callable[[Any], Any],
        write: Callable[[Any, Any], None] | None = None,
    ) -> property:
        """Make a property that is read in this thread, and written if there is a `write`."""

        # By name, because the guard may be gone when the event loop runs this.
        def read_here(one: Any) -> Any:
            return read(one) if self.is_current() else self.run(lambda: getattr(one, name))

        if write is None:
            return property(read_here)

        def write_here(one: Any, value: Any) -> None:
            if self.is_current():
                write(one, value)
            else:
                self.run(lambda: setattr(one, name, value))

        return property(read_here, write_here)
