"""The context of the UCX-Py API: connections, listeners, and what is matched across them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from backhaul import _native
from backhaul._locks import RLock
from backhaul.errors import (
    AddressError,
    BackhaulError,
    ConfigError,
    ConnectionFailed,
    CudaUnavailable,
    TruncatedError,
)
from backhaul.ucp import _config
from backhaul.ucp._address import Place, UCXAddress, get_address
from backhaul.ucp._arr import DeviceView, flat
from backhaul.ucp._connection import ID_BYTES, Connection, Greeting, wait_for_lingering
from backhaul.ucp._matching import Arrival, Matcher, Waiter
from backhaul.ucp._pump import Pump, Source
from backhaul.ucp._tags import PAYLOAD_TAG, forced_tag
from backhaul.ucp.exceptions import (
    DestinationUnreachable,
    UCXCanceled,
    UCXConfigError,
    UCXError,
    UCXMsgTruncated,
)

if TYPE_CHECKING:
    from backhaul.ucp._acceptor import Acceptor

__all__ = ["ApplicationContext"]

logger = logging.getLogger("ucx")

#: How long `close` waits for what endpoints that were just closed have to send, in seconds. UCX
#: waits without a bound.
_LINGER_S = 5.0
_CONNECT_TIMEOUT_S = 5.0


class ApplicationContext:
    """Context that `init` makes and `reset` ends; use the functions of `backhaul.ucp` instead.

    Parameters
    ----------
    config_dict : mapping of str to str, optional
        UCX options, without ``UCX_``; they go before the environment.
    blocking_progress_mode : bool, optional
        Kept for programs that set it: event loops are woken when something has come.
    connect_timeout : float, optional
        How long a peer may take to connect, in seconds. By default ``UCXPY_CONNECT_TIMEOUT``,
        else 5.

    Raises
    ------
    UCXConfigError
        If an option cannot be used.
    """

    def __init__(
        self,
        config_dict: Mapping[str, str] | None = None,
        blocking_progress_mode: bool | None = None,
        connect_timeout: float | None = None,
    ) -> None:
        self.options = _config.current_options(config_dict)
        self.settings = _config.settings_of(self.options)
        if blocking_progress_mode is None:
            blocking_progress_mode = "UCXPY_NON_BLOCKING_MODE" not in os.environ
        self.blocking_progress_mode = blocking_progress_mode
        self.connect_timeout = _connect_timeout_s(connect_timeout)
        try:
            self.native = _native.Context(
                lanes=self.settings.lanes,
                carriers=self.settings.carriers,
                handshake_timeout_s=self.connect_timeout,
                keep_alive_interval_s=self.settings.keep_alive_interval_s,
            )
        except ConfigError as error:
            raise UCXConfigError(str(error)) from error
        self.id = os.urandom(ID_BYTES)
        self.matcher = Matcher()
        self.host_allocator: Callable[[int], Any] = bytearray
        self.device_allocator: Callable[[int], Any] | None = None
        #: Endpoints and listeners that the program has, and that `reset` may not end.
        self.open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = RLock()
        self._sources: set[Source] = set()
        self._pumps: dict[asyncio.AbstractEventLoop, Pump] = {}
        self._worker_acceptor: Acceptor | None = None
        self._uids = itertools.count(int.from_bytes(os.urandom(5), "little") << 8, 8)
        logger.info("UCP initiated using config: ")
        for name, value in sorted(self.options.items()):
            logger.info("  %s: %s", name, value)

    # By these names the parts of UCX were reached; all of them are this object.

    @property
    def worker(self) -> ApplicationContext:
        """Itself, as UCX-Py's context had a worker."""
        return self

    @property
    def context(self) -> ApplicationContext:
        """Itself, as UCX-Py's context had one of UCX."""
        return self

    @property
    def cuda_support(self) -> bool:
        """Tell whether memory of GPUs can be sent and received, for which CUDA is started."""
        try:
            return bool(_native.cuda_devices())
        except CudaUnavailable:
            return False

    @property
    def handle(self) -> int:
        """A number that no other context of this process has at the time."""
        return id(self.native)

    def new_uid(self) -> int:
        """Give a number for an endpoint that no other one has."""
        return next(self._uids)

    # Sources and loops

    def add(self, source: Source) -> None:
        """Keep a source, and have the loops that watch everything watch it."""
        with self._lock:
            self._sources.add(source)
            pumps = list(self._pumps.items()) if self.matcher.is_awaited_anywhere() else []
        for loop, pump in pumps:
            if pump.is_wide and not pump.watch_soon(source):
                self._forget_loop(loop)

    def discard(self, source: Source) -> None:
        """Release a source."""
        with self._lock:
            self._sources.discard(source)

    def sources(self) -> list[Source]:
        """Give all sources that there are."""
        with self._lock:
            return list(self._sources)

    def pump(self, loop: asyncio.AbstractEventLoop | None = None) -> Pump:
        """Give the pump of a loop, by default the running one."""
        loop = loop or asyncio.get_running_loop()
        pump = self._pumps.get(loop)
        if pump is None:
            with self._lock:
                for known in [known for known in self._pumps if known.is_closed()]:
                    del self._pumps[known]
                self.matcher.forget_closed_loops()
                pump = self._pumps.setdefault(
                    loop, Pump(loop, self.sources, self.matcher.is_awaited_anywhere)
                )
        return pump

    def _forget_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._pumps.pop(loop, None)

    def continuous_ucx_progress(self, event_loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Let an event loop look after the waits of other loops, too.

        Each loop looks after its own waits itself, so no program needs this.

        Parameters
        ----------
        event_loop : asyncio.AbstractEventLoop, optional
            By default the running one; without one nothing is done.
        """
        running = asyncio._get_running_loop()
        loop = event_loop or running
        if loop is None:
            return
        pump = self.pump(loop)
        if loop is running:
            pump.widen()
        else:
            loop.call_soon_threadsafe(pump.widen)

    def progress(self) -> None:
        """Look at every connection once, on the calling thread."""
        for source in self.sources():
            source.look()

    # Connecting

    async def connect(self, address: str) -> Connection:
        """Connect to a listener.

        Parameters
        ----------
        address : str
            ``host:port``.

        Raises
        ------
        DestinationUnreachable
            If no process listens there, or only over lanes that the options exclude.
        TimeoutError
            If the peer does not answer.
        """
        try:
            native = await self.native.connect(address)
        except (ConnectionFailed, AddressError) as error:
            raise DestinationUnreachable(f"Destination is unreachable: {error}") from error
        self.check_lane(native)
        return Connection(self, native)

    async def connect_to_worker(self, address: UCXAddress) -> Connection:
        """Connect to the context that an address was made by; see `connect`."""
        place = address.place()
        failures = []
        for candidate in place.addresses:
            try:
                connection = await self.connect(candidate)
            except DestinationUnreachable as error:
                failures.append(str(error.__cause__ or error))
                continue
            # Another process may listen on a port that was given up.
            pid = connection.native.info()["peer_pid"]
            if pid == place.pid:
                connection.peer = place.context
                connection.greet(place.context)
                self.add(connection)
                return connection
            connection.native.abort()
            failures.append(f"{candidate} is process {pid} and not {place.pid}")
        raise DestinationUnreachable(f"Destination is unreachable: {'; '.join(failures)}")

    def check_lane(self, native: _native.Endpoint) -> None:
        """End a connection over a lane that the options exclude, and raise.

        The fabric falls back to tcp where no other lane can be had.
        """
        if native.lane not in self.settings.lanes:
            native.abort()
            raise DestinationUnreachable(
                f"Destination is unreachable: {native.peer_address} can be had only over "
                f"{_config.TRANSPORT_OF_LANE[native.lane]}, which UCX_TLS={self.options['TLS']} "
                "excludes"
            )

    def get_address(self) -> UCXAddress:
        """Give the address by which peers reach this context without a listener of the program."""
        from backhaul.ucp._acceptor import Acceptor

        with self._lock:
            if self._worker_acceptor is None:
                self._worker_acceptor = Acceptor(self, 0, self._worker_greeted)
                self.add(self._worker_acceptor)
            acceptor = self._worker_acceptor
        if (loop := asyncio._get_running_loop()) is not None:
            self.pump(loop).watch(acceptor)
        addresses = (f"{host}:{acceptor.port}" for host in self._own_hosts())
        return UCXAddress.of_place(Place(self.id, os.getpid(), tuple(addresses)))

    def _own_hosts(self) -> Iterable[str]:
        # A device of UCX is named with its port: mlx5_0:1. Such a name is no interface.
        device = self.options["NET_DEVICES"].partition(",")[0].partition(":")[0]
        hosts = []
        for ifname in (device, None):
            try:
                hosts.append(get_address(ifname))
                break
            except (OSError, RuntimeError):
                continue
        return dict.fromkeys([*hosts, "127.0.0.1"])

    def _worker_greeted(self, connection: Connection, greeting: Greeting) -> None:
        if not greeting.to_worker or greeting.target != self.id:
            # It was meant for one that had this port before.
            connection.native.abort()

    # Arrivals that are matched across connections

    async def arrival(
        self, key: Hashable, *, of: Connection | None, is_wide: bool = True
    ) -> Arrival:
        """Wait for a message that was announced.

        Parameters
        ----------
        key : hashable
            Key by which it is matched.
        of : Connection or None
            Whose end is the end of the wait.
        is_wide : bool, optional
            It may come over any connection, and not only over that one.

        Raises
        ------
        UCXCanceled
            If the connection or the context ends.
        """
        waiter = Waiter(key, of, is_wide or of is None)
        arrival = self.matcher.post(waiter)
        if arrival is not None:
            return arrival
        try:
            # After the receive is posted: what comes meanwhile finds it.
            pump = self.pump()
            if waiter.is_wide or of is None:
                pump.widen()
            else:
                pump.watch(of)
            return await waiter.wait()
        except BaseException:
            self.matcher.withdraw(waiter)
            raise

    async def fetch(
        self, key: Hashable, arrival: Arrival, view: memoryview | DeviceView, name: str
    ) -> None:
        """Bring a message to its place.

        Parameters
        ----------
        key : hashable
            Key by which it was matched; should the call be cancelled, it is matched again.
        arrival : Arrival
            The message.
        view : memoryview of bytes, or DeviceView
            The place.
        name : str
            Name of the receive in errors.

        Raises
        ------
        UCXMsgTruncated
            If the message is shorter than its place.
        UCXError
            If it is longer.
        UCXCanceled
            If the connection ends before it is there.
        """
        fits = arrival.nbytes <= view.nbytes
        place: Any = None
        if isinstance(view, DeviceView) and fits and arrival.nbytes:
            place = view.first(arrival.nbytes)
        if arrival.payload is None:
            # A message that does not fit is received all the same, into nothing, or it would stay
            # for ever.
            target: Any = bytearray()
            if place is not None:
                target = place if arrival.by_device else bytearray(arrival.nbytes)
            elif fits and not isinstance(view, DeviceView):
                target = view[: arrival.nbytes]
            tag = PAYLOAD_TAG | arrival.number
            try:
                await arrival.connection.native.recv(target, tag=tag)
            except asyncio.CancelledError:
                self.matcher.arrive(key, arrival, again=True)
                raise
            except TruncatedError:
                fits = False
            except ConnectionFailed as error:
                raise UCXCanceled(f"<{name}>: {error}") from error
            if place is not None and not arrival.by_device:
                _native.copy_memory(target, place)
        elif place is not None:
            _native.copy_memory(arrival.payload, place)
        elif fits and arrival.nbytes and not isinstance(view, DeviceView):
            view[: arrival.nbytes] = arrival.payload
        if not fits:
            raise UCXError(
                f"<{name}>: Message truncated: {arrival.nbytes} bytes (got) do not fit into "
                f"{view.nbytes} (expected)"
            )
        if arrival.nbytes < view.nbytes:
            raise UCXMsgTruncated(
                f"<{name}>: length mismatch: {arrival.nbytes} (got) != {view.nbytes} (expected)"
            )

    async def recv(self, buffer: Any, tag: int) -> bool:
        """Receive a message with a forced tag from any peer; see `backhaul.ucp.recv`."""
        key = forced_tag(tag)
        view = flat(buffer, writable=True)
        name = f"[Worker Recv] worker: {self.handle:#x}, tag: {key:#x}, nbytes: {view.nbytes}"
        arrival = await self.arrival(key, of=None)
        await self.fetch(key, arrival, view, name)
        return True

    def tag_probe(self, tag: int) -> bool:
        """Tell whether a message with a forced tag has come and waits for its receive.

        For the tag of an endpoint (``endpoint._tags["msg_recv"]``) it can tell only once the peer
        has closed, when it has said how many messages it has sent.
        """
        self.progress()
        if self.matcher.has(tag):
            return True
        return any(thing.is_message_left(tag) for thing in list(self.open))

    def end_of(self, connection: Connection, error: BackhaulError) -> None:
        """Cancel the waits for a connection that has ended, and release the connection."""
        waiting = "While waiting for am_recv or a forced tag the endpoint was closed"
        self.matcher.end(connection, UCXCanceled(f"{waiting}: {error}"))
        if connection.is_closed:
            self.matcher.forget(connection)
        self.discard(connection)

    def register_am_allocator(self, allocator: Callable[[int], Any], allocator_type: str) -> None:
        """Set what makes the memory of active messages; see `backhaul.ucp`."""
        if not callable(allocator):
            raise TypeError(f"allocator must be callable, got {allocator!r}")
        if allocator_type == "host":
            self.host_allocator = allocator
        elif allocator_type == "cuda":
            self.device_allocator = allocator
        else:
            raise UCXError(
                f"Allocator type not supported: {allocator_type!r}, use 'host' or 'cuda'"
            )

    def allocate(self, arrival: Arrival) -> Any:
        """Make memory for an active message, of the kind from which it was sent."""
        if arrival.on_device and self.device_allocator is not None:
            return self.device_allocator(arrival.nbytes)
        return self.host_allocator(arrival.nbytes)

    # The rest

    async def flush(self) -> None:
        """Give what was sent before the time to leave; see `backhaul.ucp.flush`."""
        await asyncio.sleep(0)

    def fence(self) -> None:
        """Keep the order of operations: it is always kept."""

    def info(self) -> str:
        """Describe the context in UCX's manner."""
        lines = ["#", "# Backhaul context", "#"]
        for number, lane in enumerate(self.settings.lanes):
            transport = _config.TRANSPORT_OF_LANE[lane]
            lines.append(
                f"#  resource {number}  :  md 0  dev {number}  flags -- {transport}/{lane}"
            )
        return "\n".join([*lines, "#", ""])

    def worker_info(self) -> str:
        """Describe connections and memory in UCX's manner."""
        connections = [one for one in self.sources() if isinstance(one, Connection)]
        lines = ["#", "# Backhaul worker", "#", f"#  address: {self.id.hex()}"]
        lines += [
            f"#  peer {one.native.peer_address} over {one.native.lane}" for one in connections
        ]
        lines += [f"#  {name}: {value}" for name, value in self.native.statistics().items()]
        return "\n".join([*lines, "#", ""])

    def close(self) -> None:
        """End everything at once, but for what was sent by endpoints that are closed."""
        self.matcher.end(None, UCXCanceled("UCX was reset"))
        for source in self.sources():
            # Peers that have connected to the worker, and that no loop has seen, are notified too.
            source.drain()
        for source in self.sources():
            if isinstance(source, Connection):
                source.abort()
            self.discard(source)
        if self._worker_acceptor is not None:
            self._worker_acceptor.close()
        wait_for_lingering(_LINGER_S)
        self.native.close()


def _connect_timeout_s(given: float | None) -> float:
    text = os.environ.get("UCXPY_CONNECT_TIMEOUT")
    try:
        timeout_s = float(given if given is not None else text or _CONNECT_TIMEOUT_S)
    except (TypeError, ValueError):
        timeout_s = float("nan")
    if not timeout_s > 0:
        raise UCXConfigError(f"connect_timeout must be positive seconds, got {given or text!r}")
    return timeout_s
