"""The functions of the UCX-Py API, all on one context of the process."""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from backhaul._locks import RLock
from backhaul.ucp import _config, exceptions
from backhaul.ucp._address import UCXAddress, get_address
from backhaul.ucp._arr import Array
from backhaul.ucp._connection import wait_for_lingering
from backhaul.ucp._context import ApplicationContext
from backhaul.ucp._endpoint import Endpoint
from backhaul.ucp._listener import Listener, check_port
from backhaul.ucp.exceptions import UCXError

__all__ = [
    "Array",
    "Endpoint",
    "Listener",
    "UCXAddress",
    "continuous_ucx_progress",
    "create_endpoint",
    "create_endpoint_from_worker_address",
    "create_listener",
    "exceptions",
    "fence",
    "flush",
    "get_active_transports",
    "get_address",
    "get_config",
    "get_ucp_context_info",
    "get_ucp_worker",
    "get_ucp_worker_info",
    "get_ucx_address_from_buffer",
    "get_ucx_version",
    "get_worker_address",
    "init",
    "progress",
    "recv",
    "register_am_allocator",
    "reset",
]

logger = logging.getLogger("ucx")

#: Release of UCX whose options and errors this follows. There is no UCX behind it.
_UCX_VERSION = (1, 18, 0)
#: How long the end of the process waits for what closed endpoints have to send, in seconds.
_EXIT_LINGER_S = 2.0

_ctx: ApplicationContext | None = None
#: Threads that begin at the same time must not end up with a context each.
_making = RLock()

atexit.register(wait_for_lingering, _EXIT_LINGER_S)


def _get_ctx() -> ApplicationContext:
    global _ctx
    context = _ctx
    # One made before a fork counts as closed after it.
    if context is None or context.native.closed():
        with _making:
            context = _ctx
            if context is None or context.native.closed():
                context = _ctx = ApplicationContext()
    return context


def init(
    options: Mapping[str, str] | None = None,
    env_takes_precedence: bool = False,
    blocking_progress_mode: bool | None = None,
    connect_timeout: float | None = None,
) -> None:
    """Begin with options of one's own, where the first call of another function takes the default.

    Parameters
    ----------
    options : mapping of str to str, optional
        UCX options without ``UCX_`` before their names. These have an effect: ``TLS`` (transports
        that may be used, as ours are mapped to them), ``RNDV_THRESH`` (longest active or forced
        message that is copied on its way, at most 64 KiB), ``KEEPALIVE_INTERVAL`` and
        ``NET_DEVICES`` (an interface whose address `get_worker_address` tells). Others are
        remembered.
    env_takes_precedence : bool, optional
        Variables of the environment go before the options, and not after them.
    blocking_progress_mode : bool, optional
        Kept for programs that set it; it changes nothing.
    connect_timeout : float, optional
        How long a peer may take to connect, in seconds. By default ``UCXPY_CONNECT_TIMEOUT``,
        else 5.

    Raises
    ------
    RuntimeError
        If there is a context already: `reset` it first.
    UCXConfigError
        If an option cannot be used.
    """
    global _ctx
    if _ctx is not None:
        raise RuntimeError("UCX is already initiated: call reset() before init() with new options")
    chosen = dict(options or {})
    for name, value in chosen.items():
        in_environment = os.environ.get(f"UCX_{name}")
        if in_environment is not None and in_environment != value:
            taken = in_environment if env_takes_precedence else value
            logger.debug(
                "of %r and the environment's %r for UCX_%s %r is used",
                value,
                in_environment,
                name,
                taken,
            )
            chosen[name] = taken
    _ctx = ApplicationContext(chosen, blocking_progress_mode, connect_timeout)


def reset() -> None:
    """End the context; the next call of another function begins anew.

    Raises
    ------
    UCXError
        If endpoints or listeners are open; the message names them. They go on, and so does their
        context until they are closed, but it is used for nothing new.
    """
    global _ctx
    context, _ctx = _ctx, None
    if context is None or context.native.closed():
        return
    # Endpoints and listeners without a holder close.
    context.matcher.forget_closed_loops()
    gc.collect()
    left = [thing for thing in list(context.open) if not thing.is_over()]
    if left:
        text = "".join(f"\n  {thing!r}" for thing in left)
        raise UCXError(
            "Trying to reset UCX but not all Endpoints and/or Listeners are closed(). "
            f"These are open:{text}"
        )
    context.close()


def get_ucx_version() -> tuple[int, int, int]:
    """Give the release of UCX whose options and errors this follows."""
    return _UCX_VERSION


def progress() -> None:
    """Look after all connections once, on the calling thread; event loops need no such call."""
    _get_ctx().progress()


def get_config() -> dict[str, str]:
    """Give all options, by name without ``UCX_``: those in use, or that would be used now."""
    return dict(_config.current_options() if _ctx is None else _ctx.options)


def register_am_allocator(allocator: Callable[[int], Any], allocator_type: str) -> None:
    """Set what makes the memory of active messages that are received.

    Parameters
    ----------
    allocator : callable
        Given a size in bytes, gives writable memory of that size.
    allocator_type : str
        ``"host"``, or ``"cuda"`` for messages that were sent from a GPU. They come to the host
        where there is no allocator for them, and, as in UCX-Py, where they are shorter than the
        sender's ``RNDV_THRESH``.

    Raises
    ------
    UCXError
        If the type is another one.
    TypeError
        If the allocator cannot be called.
    """
    _get_ctx().register_am_allocator(allocator, allocator_type)


def create_listener(
    callback_func: Callable[[Endpoint], object],
    port: int | None = None,
    endpoint_error_handling: bool = True,
) -> Listener:
    """Listen for peers on all IPv4 interfaces.

    Parameters
    ----------
    callback_func : callable
        Called with the `Endpoint` of each peer, on the running event loop; if it is asynchronous,
        as a task.
    port : int, optional
        By default any free one, see ``Listener.port``.
    endpoint_error_handling : bool, optional
        Whether endpoints close when their peer dies.

    Returns
    -------
    Listener
        Keep it: it stops when it is dropped.

    Raises
    ------
    UCXError
        If the port is taken.
    TypeError, ValueError
        If the port is none.
    """
    return Listener(_get_ctx(), callback_func, check_port(port), endpoint_error_handling)


async def create_endpoint(
    ip_address: str, port: int, endpoint_error_handling: bool = True
) -> Endpoint:
    """Connect to a listener.

    Parameters
    ----------
    ip_address : str
        Address or name of its host.
    port : int
        Its port.
    endpoint_error_handling : bool, optional
        Whether the endpoint closes when its peer dies.

    Raises
    ------
    UCXUnreachable, UCXError
        If no process listens there; the error is both.
    TimeoutError
        If the peer does not answer.
    TypeError, ValueError
        If the port is none.
    """
    context = _get_ctx()
    host = f"[{ip_address}]" if ":" in ip_address else ip_address
    connection = await context.connect(f"{host}:{check_port(port)}")
    connection.greet()
    context.add(connection)
    return Endpoint(connection, bool(endpoint_error_handling))


async def create_endpoint_from_worker_address(
    address: UCXAddress, endpoint_error_handling: bool = True
) -> Endpoint:
    """Connect to a context by its address; its program gets no endpoint.

    Messages go by forced tags alone: ``send(…, tag=1, force_tag=True)``.

    Parameters
    ----------
    address : UCXAddress
        From `get_worker_address` of the peer.
    endpoint_error_handling : bool, optional
        Whether the endpoint closes when its peer dies.

    Raises
    ------
    UCXUnreachable, UCXError
        If the context is not there any more; the error is both. `UCXError` if it is no address.
    TimeoutError
        If the peer does not answer.
    """
    if not isinstance(address, UCXAddress):
        address = UCXAddress.from_buffer(address)
    connection = await _get_ctx().connect_to_worker(address)
    return Endpoint(connection, bool(endpoint_error_handling))


def continuous_ucx_progress(event_loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Let an event loop look after the waits of other loops, too; no program needs it.

    Parameters
    ----------
    event_loop : asyncio.AbstractEventLoop, optional
        By default the running one.
    """
    _get_ctx().continuous_ucx_progress(event_loop)


def get_ucp_worker() -> int:
    """Give a number that stands for the context; there is no UCX behind it."""
    return _get_ctx().handle


def get_worker_address() -> UCXAddress:
    """Give the address of this context, by which peers can send it forced tags.

    Returns
    -------
    UCXAddress
        Bytes that can be sent or pickled.
    """
    return _get_ctx().get_address()


def get_ucx_address_from_buffer(buffer: Any) -> UCXAddress:
    """Read the address of a context that came as bytes.

    Parameters
    ----------
    buffer : buffer
        The bytes.

    Raises
    ------
    UCXError
        If they are no such address.
    """
    return UCXAddress.from_buffer(buffer)


async def recv(buffer: Any, tag: int) -> bool:
    """Receive a message with a forced tag from any peer.

    Parameters
    ----------
    buffer : writable buffer
        Of the size of the message.
    tag : int
        From 0 to 2**64 - 1.

    Raises
    ------
    TypeError, OverflowError
        If it is no such tag.
    UCXMsgTruncated, UCXError, UCXCanceled
        As for `Endpoint.recv`.
    """
    return await _get_ctx().recv(buffer, tag)


def get_ucp_context_info() -> str:
    """Describe the context and the lanes that it may use."""
    return _get_ctx().info()


def get_ucp_worker_info() -> str:
    """Describe the connections of the context and its memory."""
    return _get_ctx().worker_info()


def get_active_transports() -> set[str]:
    """Give the transports of UCX that our lanes stand for, of those that may be used."""
    return {_config.TRANSPORT_OF_LANE[lane] for lane in _get_ctx().settings.lanes}


async def flush() -> None:
    """Let other tasks run; what was sent and awaited has left already."""
    await asyncio.sleep(0)


def fence() -> None:
    """Keep operations in order: they always are."""
