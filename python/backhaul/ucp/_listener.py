"""`Listener`: calls the program for each peer that comes in."""

from __future__ import annotations

import asyncio
import inspect
import operator
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backhaul.ucp._acceptor import Acceptor
from backhaul.ucp._endpoint import Endpoint

if TYPE_CHECKING:
    from backhaul.ucp._connection import Connection, Greeting
    from backhaul.ucp._context import ApplicationContext

__all__ = ["Listener", "check_port"]

#: Handlers that run. Event loops keep their tasks only weakly.
_handling: set[asyncio.Future[Any]] = set()


class Listener:
    """Accepts peers as long as it has a holder, or until it is closed; see `create_listener`."""

    def __init__(
        self,
        context: ApplicationContext,
        callback_func: Callable[[Endpoint], object],
        port: int,
        endpoint_error_handling: bool,
    ) -> None:
        if not callable(callback_func):
            raise TypeError(f"callback_func must be callable, got {callback_func!r}")
        self._callback = callback_func
        self._error_handling = bool(endpoint_error_handling)
        # Weak, so that a callback that knows its listener does not keep it for ever.
        listener = weakref.ref(self)

        def on_greeting(connection: Connection, greeting: Greeting) -> None:
            this = listener()
            if this is None or this.closed() or greeting.to_worker:
                connection.native.abort()
            else:
                this._greeted(connection)

        self._acceptor = Acceptor(context, port, on_greeting)
        context.add(self._acceptor)
        context.open.add(self)
        weakref.finalize(self, self._acceptor.close)
        if (loop := asyncio._get_running_loop()) is not None:
            self._acceptor.pump = context.pump(loop)
            self._acceptor.pump.watch(self._acceptor)

    @property
    def ip(self) -> str:
        """The address that it listens on, ``"0.0.0.0"`` for all."""
        return self._acceptor.ip

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._acceptor.port

    def closed(self) -> bool:
        """Tell whether it has stopped listening."""
        return self._acceptor.native.closed()

    def close(self) -> None:
        """Stop listening. Endpoints that came in stay."""
        self._acceptor.close()
        self._acceptor.context.open.discard(self)

    def is_over(self) -> bool:
        """Tell whether `reset` need not wait for it to be closed."""
        return self.closed()

    def is_message_left(self, tag: int) -> bool:
        """Tell that it has no messages, as `reset` and probes ask all that is open."""
        return False

    def _greeted(self, connection: Connection) -> None:
        """Call the program, on the loop on which it listens."""
        endpoint = Endpoint(connection, self._error_handling)
        pump = self._acceptor.pump
        if pump is None:
            _handle(self._callback, endpoint)
        elif not pump.call_soon(_handle, self._callback, endpoint):
            endpoint.abort()

    def __repr__(self) -> str:
        return f"<ucp.Listener {self.ip}:{self.port}{', closed' if self.closed() else ''}>"


def check_port(port: object) -> int:
    """Check a number of a port, where None means any.

    Raises
    ------
    TypeError
        If it is no integer.
    ValueError
        If it is out of range.
    """
    if port is None:
        return 0
    try:
        number = operator.index(port)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"port must be an int or None, got {port!r}") from None
    if not 0 <= number < 1 << 16:
        raise ValueError(f"port must be in 0..65535, got {port!r}")
    return int(number)


def _handle(callback: Callable[[Endpoint], object], endpoint: Endpoint) -> None:
    handling = callback(endpoint)
    if inspect.isawaitable(handling):
        task = asyncio.ensure_future(handling)
        _handling.add(task)
        task.add_done_callback(_handling.discard)
