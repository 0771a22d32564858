"""Listener, connector and backend: how comms come to be.

Dask finds `BackhaulBackend` by the entry point ``backhaul`` in the group
``distributed.comm.backends``. The classes are written for any scheme: the tests put them in the
place of Dask's TCP (see ``tests/dask/upstream``).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final

import distributed.core

from backhaul import (
    BackhaulError,
    ConnectFailed,
    Endpoint,
    EndpointClosed,
    HandshakeFailed,
    Request,
    Tls,
)
from backhaul import Listener as NativeListener
from backhaul.dask.comm.addresses import (
    Location,
    bracketed,
    contact_host,
    is_ip,
    local_host_for,
    parse_location,
    resolve_host,
)
from backhaul.dask.comm.capabilities import offered_by
from backhaul.dask.comm.comm import BackhaulComm
from backhaul.dask.comm.exposed_ports import warn_of_listeners
from backhaul.dask.comm.native_context import shared_context
from backhaul.dask.comm.nvtx import comm_class_for
from backhaul.dask.comm.tls import remember, tls_for
from backhaul.dask.compat.names import (
    Backend,
    BaseListener,
    CommClosedError,
    Connector,
    FatalCommClosedError,
)
from backhaul.dask.config.settings import Settings
from backhaul_default_scheme import heed_secret

__all__ = [
    "BackhaulBackend",
    "BackhaulConnector",
    "BackhaulListener",
    "BackhaulTlsBackend",
    "before_comms",
]

logger = logging.getLogger(__name__)

#: Times to ask the system for a free port: it may give one that is taken, now and then.
_BIND_ATTEMPTS = 5
#: Pause after an accept that failed for want of resources, so as not to spin.
_ACCEPT_PAUSE_S = 0.1
#: Time between two warnings of one kind
_WARNING_INTERVAL_S = 10.0


#: Functions that are called before each connector and listener is made, with the server that
#: listens, or None; `backhaul.dask` adds the one that installs accelerations
before_comms: Final[list[Callable[[object], None]]] = []


class _RepeatedWarning:
    """Writes one of a kind of warnings in a while, as the native module does.

    Dask's workers try to reach their scheduler ten times a second, whatever the reason.
    """

    def __init__(self) -> None:
        self._written_at: float | None = None
        self._left_out = 0

    def warn(self, text: str) -> None:
        now = time.monotonic()
        if self._written_at is not None and now - self._written_at < _WARNING_INTERVAL_S:
            self._left_out += 1
            return
        logger.warning("%s%s", text, f" left_out={self._left_out}" if self._left_out else "")
        self._written_at = now
        self._left_out = 0


_repeated = _RepeatedWarning()


class BackhaulConnector(Connector):
    """Opens connections; Dask makes one connector for each."""

    prefix: ClassVar[str] = "backhaul://"
    #: The scheme asks for encryption, whatever the security settings say
    is_encrypted: ClassVar[bool] = False
    comm_class: ClassVar[type[BackhaulComm]] = BackhaulComm

    async def connect(
        self, address: str, deserialize: bool = True, **connection_args: Any
    ) -> BackhaulComm:
        """Connect to a listener.

        Parameters
        ----------
        address : str
            Location of the listener, with its port.
        deserialize : bool, default True
            Passed on to the comm.
        **connection_args
            Security settings. Any other argument is ignored, as by Dask's TCP.

        Raises
        ------
        OSError
            If the peer cannot be reached. Dask tries again until its timeout.
        FatalCommClosedError
            If what answers there does not speak Backhaul, no version of it that we know, or allows
            no lane that we do.
        ValueError
            If the address or the configuration is malformed, or asks for a UCX that is not there.
        RuntimeError
            If encryption is asked for and there are no certificates.
        backhaul.TlsError
            If the certificates cannot be used.

        Notes
        -----
        Cancelling drops the connection.
        """
        peer_addr = self.prefix + address
        tls = tls_for(peer_addr, connection_args, asked=self.is_encrypted)
        settings = Settings.current()
        host, port = parse_location(address)
        error: OSError | None = None
        for ip in await _addresses(host):
            try:
                endpoint = await _connect(settings, Location(ip, port), tls)
            except HandshakeFailed as failure:
                text = f"cannot speak Backhaul with {peer_addr}: {failure}"
                _repeated.warn(text)
                raise FatalCommClosedError(text) from failure
            except OSError as next_error:
                if isinstance(next_error, ConnectFailed) and next_error.errno is None:
                    # It was not the system that refused: the peers were there, and have no lane.
                    raise FatalCommClosedError(
                        f"cannot speak Backhaul with {peer_addr}: {next_error}"
                    ) from next_error
                error = error or next_error
                continue
            return comm_class_for(self.comm_class, settings)(
                endpoint,
                self.prefix + _location(endpoint.local_address),
                peer_addr,
                deserialize,
                settings=settings,
            )
        raise error or OSError(f"no address found for {host!r}")


class BackhaulListener(BaseListener):
    """Accepts peers at one address.

    Parameters
    ----------
    address : str
        Location to listen at, see `parse_location`. With a host, only that interface is bound;
        without one, every interface, IPv6 too where the system has it.
    comm_handler : callable
        Called with each comm once Dask's handshake is done. Its result is awaited if it can be.
    deserialize, allow_offload : bool, default True
        Passed on to the comms.
    default_host : str, optional
        Host to advertise when every interface is bound and the configuration names none.
    default_port : int, default 0
        Port to use where `address` has none; 0 lets the system choose.
    **connection_args
        Security settings. Any other argument is ignored, ``handshake_overrides`` among them: Dask's
        TCP listener ignores it too, so streams negotiate the same options over both.

    Raises
    ------
    ValueError
        If the address is malformed.
    RuntimeError
        If encryption is asked for and there are no certificates.
    backhaul.TlsError
        If the certificates cannot be used.
    """

    prefix: ClassVar[str] = "backhaul://"
    #: The scheme asks for encryption, whatever the security settings say
    is_encrypted: ClassVar[bool] = False
    comm_class: ClassVar[type[BackhaulComm]] = BackhaulComm

    def __init__(
        self,
        address: str,
        comm_handler: Callable[[BackhaulComm], object],
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        default_port: int = 0,
        **connection_args: Any,
    ) -> None:
        super().__init__()
        server = getattr(comm_handler, "__self__", None)
        self._tls = tls_for(
            self.prefix + address, connection_args, server=server, asked=self.is_encrypted
        )
        remember(server)
        self._server = server
        self._wanted = parse_location(address, default_port)
        self.comm_handler = comm_handler
        self.deserialize = deserialize
        self.allow_offload = allow_offload
        self.default_host = default_host
        self._settings: Settings | None = None
        #: Empty before `start` and after `stop`. The first one names the address.
        self._natives: list[NativeListener] = []
        self._bound: Location | None = None
        self._contact: Location | None = None
        #: Accept loops, and comms between accept and handler.
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Bind and begin to accept.

        Raises
        ------
        OSError
            If the host is unknown or the address cannot be bound; ``errno`` is ``EADDRINUSE`` when
            the port is taken, on which Dask tries the next port of a range.
        """
        settings = self._settings = Settings.current()
        host, port = self._wanted
        ip = "" if host == "" else (await _addresses(host))[0]
        self._natives = _bind(settings, ip, port, self._tls)
        chosen_port = parse_location(self._natives[0].address).port
        # A listener on every interface is known by its IPv4 address, which more peers can use.
        self._bound = Location(ip or "0.0.0.0", chosen_port)
        self._contact = Location(
            contact_host(
                self._bound.host,
                default_host=self.default_host,
                contact=settings.contact_host,
                interface=settings.contact_interface,
            ),
            self._bound.port,
        )
        self._accepting = [self._spawn(self._accept(native)) for native in self._natives]
        if settings.secret is not None:
            heed_secret(distributed.core)
            warn_of_listeners(self._server)

    def stop(self) -> None:
        """Accept no more peers. Comms that were handed over go on; later calls do nothing."""
        natives, self._natives = self._natives, []
        for native in natives:
            native.close()
        accepting, self._accepting = self._accepting, []
        for task in accepting:
            if not task.get_loop().is_closed():
                task.cancel()

    def get_host_port(self) -> tuple[str, int]:
        """Get the IP address and port that are bound.

        Raises
        ------
        ValueError
            If the listener was never started.
        """
        if self._bound is None:
            raise ValueError(f"invalid operation on non-started {type(self).__name__}")
        return self._bound.host, self._bound.port

    @property
    def listen_address(self) -> str:
        return self.prefix + str(Location(*self.get_host_port()))

    @property
    def contact_address(self) -> str:
        if self._contact is None:
            raise ValueError(f"invalid operation on non-started {type(self).__name__}")
        return self.prefix + str(self._contact)

    async def _accept(self, native: NativeListener) -> None:
        while native in self._natives:
            request = native.accept()
            try:
                endpoint = await request
            except EndpointClosed:
                return
            except asyncio.CancelledError:
                _give_up(request)
                del request
                raise
            except (BackhaulError, OSError) as error:
                logger.warning("Could not accept a peer at %s: %s", self.listen_address, error)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
            else:
                self._spawn(self._handle(endpoint))

    async def _handle(self, endpoint: Endpoint) -> None:
        if not self._natives:
            # Stopped since the peer was accepted. It waits for our side of Dask's handshake, which
            # has no timeout, and `abort_handshaking_comms` has run already.
            endpoint.abort()
            return
        assert self._settings is not None
        comm = comm_class_for(self.comm_class, self._settings)(
            endpoint,
            self.prefix + _location(endpoint.local_address),
            self.prefix + _location(endpoint.peer_address),
            self.deserialize,
            settings=self._settings,
        )
        comm.allow_offload = self.allow_offload
        comm.offered = offered_by(self._server)
        try:
            await self.on_connection(comm)
        except CommClosedError:
            logger.info("Connection from %s closed before the handshake", comm.peer_address)
            return
        except BaseException:
            comm.abort()
            raise
        result = self.comm_handler(comm)
        if inspect.isawaitable(result):
            await result

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("Uncaught error in the handler of a comm", exc_info=error)


class BackhaulBackend(Backend):
    """The backend of ``backhaul://``: makes listeners and connectors, and reads addresses."""

    _connector_class: ClassVar[type[BackhaulConnector]] = BackhaulConnector
    _listener_class: ClassVar[type[BackhaulListener]] = BackhaulListener

    def get_connector(self) -> BackhaulConnector:
        """Return a connector, after the functions of `before_comms`."""
        _prepare(None)
        return self._connector_class()

    def get_listener(
        self,
        loc: str,
        handle_comm: Callable[[BackhaulComm], Awaitable[object] | object],
        deserialize: bool,
        **connection_args: Any,
    ) -> BackhaulListener:
        """Return a listener, after the functions of `before_comms`."""
        _prepare(getattr(handle_comm, "__self__", None))
        return self._listener_class(loc, handle_comm, deserialize, **connection_args)

    def get_address_host(self, loc: str) -> str:
        return parse_location(loc, default_port=0).host

    def get_address_host_port(self, loc: str) -> tuple[str, int]:
        host, port = parse_location(loc)
        return host, port

    def resolve_address(self, loc: str) -> str:
        host, port = parse_location(loc)
        return str(Location(resolve_host(host), port))

    def get_local_address_for(self, loc: str) -> str:
        return bracketed(local_host_for(parse_location(loc, default_port=0).host))


class BackhaulTlsConnector(BackhaulConnector):
    """Opens connections to addresses of ``backhaul+tls://``: encrypted, or not at all."""

    prefix: ClassVar[str] = "backhaul+tls://"
    is_encrypted: ClassVar[bool] = True


class BackhaulTlsListener(BackhaulListener):
    """Accepts peers at addresses of ``backhaul+tls://``."""

    prefix: ClassVar[str] = "backhaul+tls://"
    is_encrypted: ClassVar[bool] = True


class BackhaulTlsBackend(BackhaulBackend):
    """The backend of ``backhaul+tls://``."""

    _connector_class: ClassVar[type[BackhaulConnector]] = BackhaulTlsConnector
    _listener_class: ClassVar[type[BackhaulListener]] = BackhaulTlsListener


def _prepare(server: object) -> None:
    """Call what `before_comms` lists."""
    for function in before_comms:
        function(server)


async def _addresses(host: str) -> list[str]:
    """Find the IP addresses of a host, IPv4 first, without blocking the event loop."""
    if is_ip(host):
        return [host]
    infos = await asyncio.get_running_loop().getaddrinfo(
        host or "localhost", None, type=socket.SOCK_STREAM
    )
    ips = dict.fromkeys(str(info[4][0]) for info in infos)
    return sorted(ips, key=lambda ip: ":" in ip)


async def _connect(settings: Settings, location: Location, tls: Tls | None) -> Endpoint:
    request = shared_context(settings).connect(str(location), tls=tls)
    try:
        return await request
    except asyncio.CancelledError:
        _give_up(request)
        raise
    finally:
        # A request keeps its exception, whose traceback keeps this frame: a reference cycle.
        del request


def _give_up(request: Request[Endpoint]) -> None:
    """Cancel what would give an endpoint; if it has come too late, close the endpoint."""
    request.cancel()
    if request.done():
        with contextlib.suppress(BackhaulError):
            request.result().abort()


def _bind(settings: Settings, ip: str, port: int, tls: Tls | None) -> list[NativeListener]:
    """Bind one address, or, for ``""``, every interface with IPv4 and, where there is one, IPv6."""
    if ip:
        return [_bind_one(settings, Location(ip, port), tls)]
    try:
        everywhere = _bind_one(settings, Location("::", port), tls)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        # No IPv6 here.
        return [_bind_one(settings, Location("0.0.0.0", port), tls)]
    chosen_port = parse_location(everywhere.address).port
    try:
        ipv4 = shared_context(settings).listen(f"0.0.0.0:{chosen_port}", tls=tls)
        return [everywhere, ipv4]
    except OSError:
        # The IPv6 wildcard takes IPv4 as well, unless net.ipv6.bindv6only is set.
        return [everywhere]


def _bind_one(settings: Settings, location: Location, tls: Tls | None) -> NativeListener:
    context = shared_context(settings)
    for _ in range(_BIND_ATTEMPTS - 1):
        try:
            return context.listen(str(location), tls=tls)
        except OSError as error:
            if location.port != 0 or error.errno != errno.EADDRINUSE:
                raise
    return context.listen(str(location), tls=tls)


def _location(address: str) -> str:
    """Write an address that the native module gave in the one way Dask should see."""
    return str(parse_location(address))
