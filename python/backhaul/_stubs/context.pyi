"""Contexts, listeners and TLS."""

from collections.abc import Sequence
from os import PathLike
from types import TracebackType
from typing import Any, final

from backhaul._stubs.endpoint import Endpoint
from backhaul._stubs.memory import Arena
from backhaul._stubs.requests import Request

@final
class Tls:
    """Certificates for encryption: those a side believes, and its own.

    Both sides show a certificate, and each believes the other if an authority in ``ca`` has signed
    its certificate, whatever name it is for. A certificate that is itself in ``ca`` is believed
    too. The named files are read and checked once, here.

    Parameters
    ----------
    ca : str or os.PathLike
        Path of the certificates of the authorities, in PEM; or the PEM itself, which has lines.
    cert : str or os.PathLike, optional
        The certificate of this side, path or PEM, with its chain behind it if there is one. A
        listener needs one, and so does who connects to ours.
    key : str or os.PathLike, optional
        Its private key, path or PEM, not encrypted; by default it is with the certificate.
    min_version, max_version : str, default "1.2", "1.3"
        Oldest and newest version of TLS that may be spoken: ``"1.2"`` or ``"1.3"``.
    ciphers : str, optional
        Names of ciphers, as OpenSSL or IANA has them, with colons between. Where none of TLS 1.3 is
        named, all of that version stay allowed. By default all.

    Raises
    ------
    TlsError
        If a file cannot be read or used, a certificate has expired, the key is another one's, or a
        version or cipher is not known. Names the file and why.

    Notes
    -----
    The protocol is that of `rustls` with the cryptography of `ring`. Sessions are not resumed.
    """

    def __new__(
        cls,
        ca: str | PathLike[str],
        cert: str | PathLike[str] | None = None,
        key: str | PathLike[str] | None = None,
        *,
        min_version: str = "1.2",
        max_version: str = "1.3",
        ciphers: str | None = None,
    ) -> Tls: ...

@final
class Context:
    """Owns configuration, receive buffers and the engine thread of a set of endpoints.

    Parameters
    ----------
    lanes : sequence of str, optional
        Lanes that may be used, best first; by default ``["inproc", "shm", "tcp"]``. Connections
        begin on TCP, and stay there if no other lane can be used. ``"ucx"`` loads UCX (the extra
        ``ucx``), or raises `UcxUnavailable`; named without ``"tcp"``, peers without it are refused.
        By default it is used between hosts with RDMA.
    carriers : sequence of str, optional
        Ways for payload beside the lane, on lanes within a host: ``"lease"``, ``"single-copy"`` and
        ``"cuda"``, and on the ucx lane ``"ucx"``; by default all are used where both sides can,
        ``"cuda"`` where the host has a GPU of NVIDIA's, and ``"ucx-cuda"`` if the lane ucx is
        named and UCX moves memory of GPUs. Named, either loads CUDA now, or raises
        `CudaUnavailable`; ``"ucx-cuda"`` raises `UcxUnavailable` where UCX does not.
    eager_bytes_max : int, optional
        Longest message sent without asking the peer for room first, in bytes.
    credit_bytes, credit_messages : int, optional
        Bytes of eager messages, and messages of any size, that may wait here for a receive. A
        peer that has used them up waits.
    message_bytes_max, segments_max : int, optional
        Longest message, in bytes, and most segments of a message that are sent or received.
    sends_max : int, optional
        Sends that may be queued on an endpoint before `QueueFull`.
    ring_bytes : int, optional
        Bytes of a shared-memory ring, a power of two; each pair of peers has two.
    pool_cached_bytes_max : int, optional
        Bytes of freed receive buffers that stay mapped for reuse.
    spin_us : float, optional
        How long a wait polls before it sleeps, in microseconds; 0 to sleep at once.
    handshake_timeout_s : float, optional
        How long a peer may take to connect and agree on a lane, in seconds.
    keep_alive_interval_s, keep_alive_timeout_s : float, optional
        Silence after which a peer on the tcp lane is asked for a sign of life, and after which it
        counts as dead, in seconds. A process that is stopped is not dead while its host answers.
        An interval of 0 turns it off.
    linger_s : float, optional
        How long closing waits for the peer to take what was sent, in seconds.
    backlog : int, optional
        Connections that may wait to be accepted.
    arena : Arena, optional
        Memory that peers on this host can map. Large receive buffers are taken from it, and what is
        sent from it with ``shared=True`` is lent. A peer may lend to us without one.
    lease_bytes_min : int, optional
        Shorter frames are copied even if they could be lent, in bytes.
    populate_leases : bool, optional
        Map the pages of what peers lend at once, rather than each when it is first touched: faster
        where most of what is received is read.
    secret : bytes, optional
        Secret that all peers have to prove to each other, 16 to 1024 bytes drawn at random. It is
        never sent, kept or shown. Without one, each process that reaches a listener is a peer. See
        ``docs/security.md``.
    shared_memory_uids : sequence of int, optional
        Ids of users with whose processes memory may be shared, beside the user of this process.
        Both sides have to allow it; the kernel says who they are.

    Raises
    ------
    ConfigError
        If a setting cannot work; the message has the value and what is allowed, but of a secret
        only its size.
    TypeError
        If a setting is of another type.
    """

    def __new__(
        cls,
        *,
        lanes: Sequence[str] | None = None,
        carriers: Sequence[str] | None = None,
        eager_bytes_max: int | None = None,
        credit_bytes: int | None = None,
        credit_messages: int | None = None,
        message_bytes_max: int | None = None,
        segments_max: int | None = None,
        sends_max: int | None = None,
        ring_bytes: int | None = None,
        pool_cached_bytes_max: int | None = None,
        spin_us: float | None = None,
        handshake_timeout_s: float | None = None,
        keep_alive_interval_s: float | None = None,
        keep_alive_timeout_s: float | None = None,
        linger_s: float | None = None,
        backlog: int | None = None,
        arena: Arena | None = None,
        lease_bytes_min: int | None = None,
        populate_leases: bool = False,
        secret: bytes | None = None,
        shared_memory_uids: Sequence[int] | None = None,
        tls: Tls | None = None,
    ) -> Context: ...
    def listen(self, address: str, *, tls: Tls | None = None) -> Listener:
        """Listen on ``host:port``, ``[ipv6]:port`` or ``:port``; see `backhaul.listen`."""

    def connect(
        self, address: str, *, lanes: Sequence[str] | None = None, tls: Tls | None = None
    ) -> Request[Endpoint]:
        """Connect to a listener; see `backhaul.connect`."""

    def statistics(self) -> dict[str, int]:
        """State of the pool of receive buffers: live, cached and peak bytes, hits and misses."""

    def flows(self) -> list[dict[str, Any]]:
        """Amounts that each peer process has sent over each lane, since the context was made.

        Each message is counted once, where it is received, when it is received.

        Returns
        -------
        list of dict
            For each peer process and lane: the process (its `process_token`), its ``pid``, the
            address of its ``host``, the ``lane``, how many ``connections`` are open, and ``sizes``:
            for each class of sizes of which there were messages, by its
            `SIZE_CLASSES_BYTES_MIN`, how many, their bytes, those of them that were lent, and the
            seconds in which they were on their way. Messages below 64 KiB are not timed; of the
            time in which several were on their way each has an equal part, so that the sum is the
            time in which there were any. Of processes that are gone the last 4096 are kept apart;
            the others are summed up by host, with None for the process. ``links`` are estimates of
            the link, as `Links.report` takes them, and ``ignored`` is how many messages said
            nothing of it, as no link can have moved them so.
        """

    def close(self) -> None:
        """End the engine; every endpoint and listener of the context is closed at once."""

    def closed(self) -> bool:
        """Return whether `close` was called."""

    def __enter__(self) -> Context: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close it."""

@final
class Listener:
    """Accepts peers at one address; made by `backhaul.listen`.

    A context manager, also asynchronous, which closes it. Iterating over it asynchronously gives
    peers until it is closed::

        async for endpoint in listener:
            ...
    """

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port`` with the port that was picked."""

    def accept(self) -> Request[Endpoint]:
        """Wait for the next peer; `EndpointClosed` once the listener is closed."""

    def info(self) -> dict[str, Any]:
        """The address, what a peer has to show (``trust``), and a warning if that is not enough.

        ``trust`` is ``"certificate"``, ``"secret"``,
        ``"certificate and secret"``, or ``"anyone"`` where nothing keeps out who reaches the
        address; then ``warning`` says so, unless only users of this host can. It is None otherwise.
        """

    def statistics(self) -> dict[str, Any]:
        """Peers accepted and rejected, handshakes under way, and the last rejection."""

    def close(self) -> None:
        """Stop listening; peers that were not accepted are disconnected."""

    def closed(self) -> bool:
        """Return whether `close` was called."""

    def __enter__(self) -> Listener: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    def __aenter__(self) -> Request[Listener]: ...
    def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> Request[None]: ...
    def __aiter__(self) -> Listener: ...
    def __anext__(self) -> Request[Endpoint]: ...
