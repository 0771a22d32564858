"""Listening and connecting with the context of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, overload

from backhaul._native import Context, Endpoint, Listener, Request, Tls
from backhaul.errors import EndpointClosed

__all__ = ["Server", "connect", "default_context", "listen"]

Handler = Callable[[Endpoint], Awaitable[object]]

_default: Context | None = None


def default_context() -> Context:
    """Give the context that `listen` and `connect` use when none is given.

    Returns
    -------
    Context
        One per process, made on first use with the default settings, and again if it was closed.
    """
    global _default
    # One made before a fork counts as closed after it.
    if _default is None or _default.closed():
        _default = Context()
    return _default


def connect(
    address: str,
    *,
    lanes: Sequence[str] | None = None,
    context: Context | None = None,
    tls: Tls | None = None,
) -> Request[Endpoint]:
    """Connect to a listener over the best lane that both sides have.

    Parameters
    ----------
    address : str
        ``host:port`` or ``[ipv6]:port``, with or without ``backhaul://`` before it.
    lanes : sequence of str, optional
        Lanes that may be used, best first: some of ``"inproc"``, ``"shm"``, ``"ucx"`` and
        ``"tcp"``. TCP is used if none of them can be, unless ``"ucx"`` is named and ``"tcp"`` is
        not.
    context : Context, optional
        By default that of the process.
    tls : Tls, optional
        Encrypts, and refuses a listener that does not. Lanes in clear text, ``"tcp"`` and
        ``"ucx"``, are then not used; those within a host are, once TLS has proved the peer. By
        default that of the context.

    Returns
    -------
    Request of Endpoint
        Await it, or ``wait()`` for it.

    Raises
    ------
    ConfigError
        If a lane is unknown.

    Notes
    -----
    The request raises `AddressError`, `ConnectFailed`, `HandshakeFailed`,
    `EncryptionFailed`, `TimedOut` or `UcxUnavailable`.
    """
    return (context or default_context()).connect(_without_scheme(address), lanes=lanes, tls=tls)


@overload
def listen(
    address: str = ...,
    handler: None = ...,
    *,
    context: Context | None = ...,
    tls: Tls | None = ...,
) -> Listener: ...


@overload
def listen(
    address: str, handler: Handler, *, context: Context | None = ..., tls: Tls | None = ...
) -> Server: ...


def listen(
    address: str = "127.0.0.1:0",
    handler: Handler | None = None,
    *,
    context: Context | None = None,
    tls: Tls | None = None,
) -> Listener | Server:
    """Listen for peers.

    Parameters
    ----------
    address : str, optional
        ``host:port``, ``[ipv6]:port``, or ``:port`` for every interface. Port 0 picks a free one,
        see the ``address`` of the result. By default a free port of the loopback interface.
    handler : async callable, optional
        Called with each `Endpoint` that comes in, as a task of the running event loop. The endpoint
        is closed when it returns. It may let `EndpointClosed` pass, which is how most handlers
        end; other exceptions go to the exception handler of the loop, which logs them, and end the
        connection at once.
    context : Context, optional
        By default that of the process.
    tls : Tls, optional
        Encrypts, and refuses peers that do not or whose certificate it does not believe. By default
        that of the context.

    Returns
    -------
    Listener or Server
        Without a handler a `Listener`, whose ``accept()`` gives endpoints one by one; with one a
        `Server`, which listens until it is closed.

    Raises
    ------
    AddressError
        If the text is no address.
    TlsError
        If `tls` has no certificate.
    ListenError
        If the system refuses it, for example because the port is taken (``errno.EADDRINUSE``).
    """
    listener = (context or default_context()).listen(_without_scheme(address), tls=tls)
    if handler is None:
        return listener
    return Server(listener, handler)


class Server:
    """Calls a handler for each peer of a listener.

    Made by `listen`. An asynchronous context manager, which closes it. It belongs to the event loop
    that it was made on.

    Parameters
    ----------
    listener : Listener
        Where peers come in.
    handler : async callable
        Called with each `Endpoint`.
    """

    def __init__(self, listener: Listener, handler: Handler) -> None:
        self._listener = listener
        self._handler = handler
        self._handling: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port`` with the port that was picked."""
        return self._listener.address

    def statistics(self) -> dict[str, Any]:
        """Peers accepted and rejected, handshakes under way, and the last rejection."""
        return self._listener.statistics()

    def closed(self) -> bool:
        """Return whether it has stopped listening."""
        return self._listener.closed()

    async def wait_closed(self) -> None:
        """Wait until it is closed and no handler runs any more."""
        # Waiting must not cancel what is waited for.
        await asyncio.wait([self._accepting])
        while others := self._handling - {asyncio.current_task()}:
            await asyncio.wait(others)

    async def _accept(self) -> None:
        while True:
            try:
                endpoint = await self._listener.accept()
            except EndpointClosed:
                return
            task = asyncio.get_running_loop().create_task(self._handle(endpoint))
            self._handling.add(task)
            task.add_done_callback(self._handling.discard)

    async def _handle(self, endpoint: Endpoint) -> None:
        try:
            await self._handler(endpoint)
            await endpoint.close()
        except EndpointClosed:
            pass
        except Exception as error:
            message = f"the handler of {self!r} failed for peer {endpoint.peer_address}"
            # Without the task, whose context Python 3.12 would want to enter a second time.
            asyncio.get_running_loop().call_exception_handler(
                {"message": message, "exception": error}
            )
        finally:
            endpoint.abort()

    async def close(self) -> None:
        """Stop listening and cancel the handlers that still run, but for one that calls this."""
        self._listener.close()
        tasks = {self._accepting, *self._handling} - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __repr__(self) -> str:
        closed = ", closed" if self.closed() else ""
        return f"<backhaul.Server {self.address}, {len(self._handling)} peers{closed}>"

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _without_scheme(address: str) -> str:
    if not isinstance(address, str):
        raise TypeError(f"address must be a str such as 'host:port', got {address!r}")
    return address.removeprefix("backhaul://")
