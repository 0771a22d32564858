"""The UCX-Py API without asyncio, which UCX-Py never had: each call waits, on any thread.

::

    from backhaul.ucp import blocking

    with blocking.create_listener() as listener:  # one process
        with listener.accept() as endpoint:
            endpoint.send(array)

    with blocking.create_endpoint(host, port) as endpoint:  # another
        endpoint.recv(array)

Either side may as well be a program that awaits. Both faces share the context of the process, its
options and its `reset`. ``timeout`` is in seconds everywhere, None to wait for ever; a receive that
has run out of time has taken nothing.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import threading
import weakref
from collections.abc import Callable, Coroutine, Hashable
from types import TracebackType
from typing import Any, Self, TypeVar

from backhaul.errors import ConnectionFailed, TruncatedError
from backhaul.ucp import _endpoint, core
from backhaul.ucp._acceptor import Acceptor
from backhaul.ucp._address import UCXAddress
from backhaul.ucp._connection import Connection, Greeting
from backhaul.ucp._listener import check_port
from backhaul.ucp._matching import Arrival
from backhaul.ucp._tags import forced_tag
from backhaul.ucp.exceptions import UCXCloseError

__all__ = [
    "Endpoint",
    "Listener",
    "create_endpoint",
    "create_endpoint_from_worker_address",
    "create_listener",
    "recv",
]

_T = TypeVar("_T")

#: The event loop of each thread that waits for what only an event loop sees. It never runs but
#: within a call of this module.
_loops = threading.local()


class Endpoint:
    """One connected peer, to wait for.

    A context manager, which closes it, or aborts if the body raised.

    Parameters
    ----------
    endpoint : backhaul.ucp.Endpoint
        The endpoint to await; also the attribute ``asynchronous``, for all that needs no waiting.
    """

    def __init__(self, endpoint: _endpoint.Endpoint) -> None:
        self.asynchronous = endpoint

    def send(
        self,
        buffer: Any,
        tag: Hashable | None = None,
        force_tag: bool = False,
        *,
        timeout: float | None = None,
    ) -> None:
        """Send a buffer to the peer; see `backhaul.ucp.Endpoint.send`.

        Parameters
        ----------
        buffer : buffer
            Data to send.
        tag : hashable, optional
            Tag that the peer's receive must name.
        force_tag : bool, optional
            Send under this very number.
        timeout : float, optional
            Longest time to wait, in seconds.

        Raises
        ------
        TimeoutError
            If the memory cannot be reused by then. The message is withdrawn if nothing of it has
            left.
        TypeError, ValueError, UCXCloseError, UCXConnectionReset, UCXError, UCXCanceled
            As for the other one.
        """
        endpoint = self.asynchronous
        if force_tag:
            _run(endpoint.send(buffer, forced_tag(tag), True), timeout)
            return
        request = endpoint._post_send(buffer, tag)
        try:
            request.wait(timeout)
        except ConnectionFailed as error:
            raise endpoint._failed_send(error, buffer, tag) from error
        except BaseException:
            request.cancel()
            raise

    def recv(
        self,
        buffer: Any,
        tag: Hashable | None = None,
        force_tag: bool = False,
        *,
        timeout: float | None = None,
    ) -> None:
        """Receive a message into a buffer; see `backhaul.ucp.Endpoint.recv`.

        Parameters
        ----------
        buffer : writable buffer
            Where to put it.
        tag : hashable, optional
            The tag of the message.
        force_tag : bool, optional
            Receive what any peer has sent under this very number.
        timeout : float, optional
            Longest time to wait, in seconds.

        Raises
        ------
        TimeoutError
            If no message has come by then.
        TypeError, ValueError, UCXMsgTruncated, UCXError, UCXCloseError, UCXConnectionReset
            As for the other one, also `UCXCanceled`.
        """
        endpoint = self.asynchronous
        if force_tag:
            _run(endpoint.recv(buffer, forced_tag(tag), True), timeout)
            return
        request, staging = endpoint._post_recv(buffer, tag)
        try:
            received = request.wait(timeout)
            if staging is not None or endpoint._connection.by_device:
                rest = endpoint._rest_of(received, buffer, staging)
                if rest is not None:
                    # It has begun to come, and would be lost.
                    received = rest.wait()
        except (ConnectionFailed, TruncatedError) as error:
            raise endpoint._failed_recv(error, buffer, tag) from error
        except BaseException:
            request.cancel()
            raise
        endpoint._finish_recv(received, buffer, tag)

    def am_send(self, buffer: Any, *, timeout: float | None = None) -> None:
        """Send an active message; see `backhaul.ucp.Endpoint.am_send`."""
        _run(self.asynchronous.am_send(buffer), timeout)

    def am_recv(self, *, timeout: float | None = None) -> Any:
        """Receive an active message; see `backhaul.ucp.Endpoint.am_recv`."""
        return _run(self.asynchronous.am_recv(), timeout)

    def send_obj(
        self, obj: Any, tag: Hashable | None = None, *, timeout: float | None = None
    ) -> None:
        """Send a buffer whose size the peer does not know; see `backhaul.ucp.Endpoint.send_obj`."""
        _run(self.asynchronous.send_obj(obj, tag), timeout)

    def recv_obj(
        self,
        tag: Hashable | None = None,
        allocator: Callable[[int], Any] = bytearray,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Receive what a peer sends by `send_obj`; see `backhaul.ucp.Endpoint.recv_obj`."""
        return _run(self.asynchronous.recv_obj(tag, allocator), timeout)

    def close(self, *, timeout: float | None = None) -> None:
        """Close in good order; see `backhaul.ucp.Endpoint.close`."""
        _run(self.asynchronous.close(), timeout)

    def abort(self) -> None:
        """Close without waiting; see `backhaul.ucp.Endpoint.abort`."""
        self.asynchronous.abort()

    def closed(self) -> bool:
        """Tell whether it was closed, or its peer is gone."""
        return self.asynchronous.closed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __repr__(self) -> str:
        return f"<blocking {self.asynchronous!r}>"


class Listener:
    """Accepts peers one by one; made by `create_listener`.

    A context manager, which closes it. It stops listening when it is dropped, too.
    """

    def __init__(self, port: int | None, endpoint_error_handling: bool) -> None:
        context = core._get_ctx()
        self._context = context
        self._error_handling = bool(endpoint_error_handling)
        #: Peers that have come are matched with those who wait for one, like messages.
        self._key = key = ("peer", object())

        def on_greeting(connection: Connection, greeting: Greeting) -> None:
            if greeting.to_worker or acceptor.native.closed():
                connection.native.abort()
            else:
                context.matcher.arrive(key, Arrival(connection, 0, None, 0))

        self._acceptor = acceptor = Acceptor(context, check_port(port), on_greeting)
        context.add(self._acceptor)
        context.open.add(self)
        self._finalizer = weakref.finalize(self, _stop, acceptor, key)
        # A thread that waits while the process ends has no caller to report to.
        self._finalizer.atexit = False

    @property
    def ip(self) -> str:
        """The address that it listens on, ``"0.0.0.0"`` for all."""
        return self._acceptor.ip

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._acceptor.port

    def accept(self, *, timeout: float | None = None) -> Endpoint:
        """Wait for the next peer.

        Parameters
        ----------
        timeout : float, optional
            Longest time to wait, in seconds.

        Raises
        ------
        TimeoutError
            If none has come by then.
        UCXCloseError
            If the listener is closed.
        """
        if self.closed():
            raise UCXCloseError(f"the listener on port {self.port} is closed")
        arrival = _run(self._context.arrival(self._key, of=None), timeout)
        return Endpoint(_endpoint.Endpoint(arrival.connection, self._error_handling))

    def closed(self) -> bool:
        """Tell whether it has stopped listening."""
        return self._acceptor.native.closed()

    def close(self) -> None:
        """Stop listening. Peers that were accepted stay; those that were not are turned away."""
        self._finalizer()
        self._context.open.discard(self)

    def is_over(self) -> bool:
        """Tell whether `reset` need not wait for it to be closed."""
        return self.closed()

    def is_message_left(self, tag: int) -> bool:
        """Tell that it has no messages, as probes ask all that is open."""
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        closed = ", closed" if self.closed() else ""
        return f"<blocking ucp.Listener {self.ip}:{self.port}{closed}>"


def _stop(acceptor: Acceptor, key: Hashable) -> None:
    """End a listener, which waits for its peers, and the peers that have not been accepted."""
    acceptor.close()
    matcher = acceptor.context.matcher
    matcher.end_key(key, UCXCloseError(f"the listener on port {acceptor.port} is closed"))
    while (arrival := matcher.take(key)) is not None:
        arrival.connection.abort()


def create_listener(port: int | None = None, endpoint_error_handling: bool = True) -> Listener:
    """Listen for peers on all IPv4 interfaces, to accept them one by one.

    Parameters
    ----------
    port : int, optional
        By default any free one.
    endpoint_error_handling : bool, optional
        Whether endpoints close when their peer dies.

    Raises
    ------
    UCXError, TypeError, ValueError
        As for `backhaul.ucp.create_listener`.
    """
    return Listener(port, endpoint_error_handling)


def create_endpoint(
    ip_address: str,
    port: int,
    endpoint_error_handling: bool = True,
    *,
    timeout: float | None = None,
) -> Endpoint:
    """Connect to a listener; see `backhaul.ucp.create_endpoint`."""
    connecting = core.create_endpoint(ip_address, port, endpoint_error_handling)
    return Endpoint(_run(connecting, timeout))


def create_endpoint_from_worker_address(
    address: UCXAddress, endpoint_error_handling: bool = True, *, timeout: float | None = None
) -> Endpoint:
    """Connect to a context; see `backhaul.ucp.create_endpoint_from_worker_address`."""
    connecting = core.create_endpoint_from_worker_address(address, endpoint_error_handling)
    return Endpoint(_run(connecting, timeout))


def recv(buffer: Any, tag: int, *, timeout: float | None = None) -> None:
    """Receive a message with a forced tag from any peer; see `backhaul.ucp.recv`."""
    _run(core.recv(buffer, tag), timeout)


def _run(coroutine: Coroutine[Any, Any, _T], timeout: float | None) -> _T:
    """Run what only an event loop can wait for on the thread's own."""
    if asyncio._get_running_loop() is not None:
        coroutine.close()
        raise RuntimeError("a call that blocks would stop the running event loop: await instead")
    loop = getattr(_loops, "loop", None)
    if loop is None or loop.pid != os.getpid():
        loop = _loops.loop = _ThreadLoop()
    if timeout is not None:
        coroutine = asyncio.wait_for(coroutine, timeout)
    return loop.runner.run(coroutine)


class _ThreadLoop:
    """The event loop of a thread, closed with it; a fork begins anew."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        # Its own factory, so that the loop does not become what `asyncio.get_event_loop` gives.
        self.runner = asyncio.Runner(loop_factory=_new_loop)
        weakref.finalize(self, _close_runner, self.runner, self.pid)


def _new_loop() -> asyncio.AbstractEventLoop:
    # A process and its forks have one epoll between them, so that closing a copy would deafen the
    # loop of the other. The descriptors that poll watches are only in memory.
    return asyncio.SelectorEventLoop(selectors.PollSelector())


def _close_runner(runner: asyncio.Runner, pid: int) -> None:
    # In a fork it may be of a thread that is not there, and was anywhere in it; what it holds is
    # memory. At the end of the process another thread may still wait in it.
    if pid != os.getpid() or (loop := runner.get_loop()).is_running():
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        runner.close()
    else:
        # The garbage collector calls from within another loop, beside which none can run. Nothing
        # is left to be run here either: each call has waited for its end.
        loop.close()
