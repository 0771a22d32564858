"""The Rust fabric as Python sees it; import the names from ``backhaul`` instead."""

from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from os import PathLike
from types import GenericAlias, TracebackType
from typing import Any, ClassVar, Generic, TypeVar, final

from typing_extensions import Buffer

from backhaul import topology
from backhaul._buffers import Received

_T_co = TypeVar("_T_co", covariant=True)
_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

__all__ = [
    "DEBUG_BUILD",
    "LEND_BYTES_MIN",
    "SIZE_CLASSES_BYTES_MIN",
    "Arena",
    "Codec",
    "Context",
    "DeviceBuffer",
    "Endpoint",
    "EngineNotes",
    "FairNetwork",
    "Join",
    "Links",
    "Listener",
    "Lookout",
    "LoopBridge",
    "LoopReader",
    "Machine",
    "MemoryWatch",
    "Partitioning",
    "PassedRequest",
    "Placement",
    "Plan",
    "ReplicatedTask",
    "Request",
    "ResourcePlaces",
    "ResourcePools",
    "ResourceRequest",
    "RoomState",
    "RunRecord",
    "SchedulerCore",
    "SchedulerStreams",
    "StealOutcome",
    "StealRequest",
    "StoppedStreams",
    "SubmittedTask",
    "TaskCalls",
    "TaskGraph",
    "Tls",
    "UnmetRequest",
    "WindowPolicy",
    "WorkerCore",
    "WorkerLoad",
    "__version__",
    "arena_of_numpy_handler",
    "assemble_pieces",
    "borrowed_bytes",
    "call_interruptibly",
    "copy_memory",
    "cuda_devices",
    "current_numpy_handler",
    "difference_listing",
    "interrupt_call",
    "memory_policy",
    "numpy_handler",
    "order",
    "piece_sizes",
    "plan_roots",
    "process_token",
    "read_piece",
    "running_calls",
    "set_default_numpy_handler",
    "set_listing",
    "set_memory_policy",
    "set_numpy_handler",
]

__version__: str
DEBUG_BUILD: bool
LEND_BYTES_MIN: int
#: Size of the smallest message of each class of `Context.flows`, in bytes.
SIZE_CLASSES_BYTES_MIN: tuple[int, ...]

@final
class Codec:
    """Writes and reads messages of Python objects: msgpack, and frames for what it cannot say.

    Parameters
    ----------
    **names : object
        Classes and callables that give meaning to what msgpack cannot say; see
        ``crates/dask-python/src/codec/mod.rs`` for each.

    Raises
    ------
    TypeError
        If a name is missing, or is no class where one is needed.
    """

    def __new__(cls, **names: Any) -> Codec: ...
    def encode(
        self,
        message: object,
        frames: list[Any],
        options: object,
        or_pickle: bool = False,
        inline_bytes_max: int | None = None,
        /,
    ) -> int:
        """Write a message, its header to ``frames[0]`` and the rest behind.

        Returns the bytes of all frames, or -1 if writing was given up.
        """

    def decode(self, frames: object, options: object) -> Any:
        """Read a message."""

    def pack(self, object: object) -> bytes:
        """Write one object, as headers are written."""

    def unpack(self, data: object) -> Any:
        """Read one object, as headers are read."""

    def encode_task(self, task: object) -> bytes | None:
        """Write a task as a pickle; nothing, if it is not simple enough."""

    def encode_calls(
        self,
        task: object,
        keys: list[Any],
        calls: Iterable[tuple[Any, ...]],
        parse: Callable[[tuple[Any, ...]], tuple[tuple[Any, ...], frozenset[Any]] | None],
    ) -> bytes | None:
        """Write many calls of one function; nothing, if one is not simple enough.

        Parameters
        ----------
        task : object
            A task of the function with the named arguments that all calls have, and no others.
        keys : list
            Keys of the calls, all of them text.
        calls : iterable of tuple
            Arguments of each.
        parse : callable
            Gives arguments and dependencies of the task of a call whose arguments are not all
            numbers or text; nothing, if the calls are not to be written.

        Returns
        -------
        bytes or None
            As `TaskCalls` reads them.

        Raises
        ------
        ValueError
            If there are fewer calls than keys.
        """

    def encode_graph(
        self,
        graph: dict[Any, Any],
        ordered: dict[Any, int],
        wanted: Iterable[Any],
        pickle: Callable[[Any], bytes | None],
    ) -> bytes | None:
        """Write a graph of tasks; nothing, if something of it is for Dask to send.

        Parameters
        ----------
        graph : dict
            Tasks by key, materialized, culled.
        ordered : dict
            The place of each key in their order.
        wanted : iterable
            Keys that the client wants.
        pickle : callable
            Pickles a task that is not simple; nothing, if the graph is not to be written.

        Returns
        -------
        bytes or None
            As `TaskGraph` reads it.
        """

    def decode_task(self, payload: bytes) -> Any:
        """Read the payload of such a pickle."""

    def statistics(self) -> dict[str, int]:
        """Count functions and bytes that are remembered for sending and from receiving."""

    def clear(self) -> None:
        """Forget them."""

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
class Arena:
    """Recycled memory that peers on this host can map.

    Blocks keep their pages when they are freed and taken again, and those that a peer borrows are
    not reused before it gives them back or dies. Past the bounds, or where the system gives no such
    memory, users of an arena go on with private memory.

    Parameters
    ----------
    bytes_max : int, optional
        Bound on all memory of the arena, in bytes.
    cached_bytes_max : int, optional
        Freed blocks beyond this give their pages back, in bytes.
    block_bytes_min : int, optional
        Requests for less are left to private memory, in bytes.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """

    def __new__(
        cls,
        *,
        bytes_max: int | None = None,
        cached_bytes_max: int | None = None,
        block_bytes_min: int | None = None,
    ) -> Arena: ...
    def take(self, nbytes: int) -> memoryview:
        """Take writable memory of ``nbytes`` bytes, of unspecified content.

        It returns to the arena when the last view of it is gone.

        Raises
        ------
        MemoryError
            If it is below ``block_bytes_min``, past a bound, or the system has none.
        """

    def copy_to_lend(self, buffer: Any, /) -> memoryview | None:
        """Copy a buffer into the arena, to be sent as shared and dropped.

        Do not write to the copy: receivers would see that.

        Returns
        -------
        memoryview or None
            The copy. None if the buffer lies in the arena or is borrowed, so that it can be lent
            itself, or if there is no room: peers hold more freed blocks of the arena than it would
            keep for reuse, or as for `take`.

        Raises
        ------
        InvalidBuffer, TypeError
            If it cannot be sent as it is.
        """

    def trim(self, cached_bytes: int = 0, /) -> None:
        """Give memory of freed blocks back to the system, those freed longest ago first.

        Parameters
        ----------
        cached_bytes : int
            How much may be kept for reuse, in bytes.
        """

    def unavailable(self) -> str | None:
        """Tell why the system gives no such memory, if it refused the last time it was asked."""

    def statistics(self) -> dict[str, int]:
        """State of the arena.

        Returns
        -------
        dict
            Bytes of blocks in use (``live_bytes``), of those that peers borrow (``leased_bytes``),
            of those freed here but still borrowed (``orphaned_bytes``), of those that are used no
            more, since a peer may have them for ever (``abandoned_bytes``), of those kept for reuse
            (``cached_bytes``), of those that are copy-on-write, since they were lent or this
            process has forked (``copy_on_write_bytes``), of all pages that there are
            (``resident_bytes``), of all segments (``mapped_bytes``), the most there were in use
            (``peak_bytes``), and how many requests were served from kept blocks, from new ones, and
            not at all (``hits``, ``misses``, ``refused``).
        """

@final
class MemoryWatch:
    """Watches the memory of this process and shrinks its arena where memory is short.

    A thread without Python looks at an interval, until the object is dropped. The thread bounds the
    arena by the memory that the rest of the process leaves of the limit, keeps freed blocks only
    below the peak of the use within `window_s` and while the host has memory, and writes the result
    into a file in memory, ``backhaul-memory`` among the descriptors of the process: the time of the
    look (`time.monotonic_ns`), the resident bytes, how many of these do not count, and the number
    of `set_stage`, as four integers of 64 bits.

    Parameters
    ----------
    arena : Arena
        The arena of the process.
    kept_bytes : int
        Freed blocks that are kept whatever the demand is, until none is taken for `idle_s`, in
        bytes.
    window_s : float
        Time for which a peak of the use counts as demand, in seconds.
    idle_s, interval_s : float
        Times in seconds, the latter between two looks.
    limit_bytes : int, optional
        Bound on the memory of the process, with freed blocks, in bytes.

    Raises
    ------
    ConfigError
        If a number is out of range.
    OSError
        If the system gives no thread or no descriptor.
    """

    def __new__(
        cls,
        arena: Arena,
        *,
        kept_bytes: int,
        window_s: float,
        idle_s: float,
        interval_s: float,
        limit_bytes: int | None = None,
    ) -> MemoryWatch: ...
    def look(self) -> tuple[int, int]:
        """Look now, as the thread does.

        Returns
        -------
        tuple of int
            The memory that the process uses, and its resident memory, in bytes. The former has no
            freed blocks, no borrowed memory that its owner uses, and no freed memory that peers
            borrow; borrowed memory that its owner has freed counts.
        """

    def wait_above(self, counted_bytes: int, timeout_s: float) -> int | None:
        """Wait until a look finds that the process uses more than so much memory.

        From the first call on the thread looks every 10 ms while the process uses more than three
        quarters of that.

        Parameters
        ----------
        counted_bytes : int
            The use that is waited for, in bytes, as `look` counts.
        timeout_s : float
            The longest wait, in seconds.

        Returns
        -------
        int or None
            The memory that the process uses, in bytes; None after the time.
        """

    def set_stage(self, stage: int) -> None:
        """Set the number that the file of the next looks has for a supervisor of the process."""

    def account(self) -> dict[str, int]:
        """Look now, and return the memory of the process by its use.

        Returns
        -------
        dict
            Bytes: ``resident_bytes`` and ``counted_bytes``, the numbers of `look`; the pages of no
            file (``private_bytes``), of mapped files (``file_bytes``), of blocks of the arena that
            are in use (``arena_used_bytes``), of those freed here but still lent
            (``arena_orphaned_bytes``), of the other free blocks (``arena_free_bytes``), and of
            other shared memory (``other_shared_bytes``); blocks that peers borrow
            (``lent_bytes``), memory of peers that is mapped here (``borrowed_bytes``), and the
            part of that which its owner has freed (``borrowed_orphaned_bytes``).
        """

def call_interruptibly(
    owner: object, thread: int, function: Callable[[_Argument], _Result], argument: _Argument
) -> _Result:
    """Call a function so that another thread may interrupt it.

    An exception of `interrupt_call` is raised in the function, or not at all if the function ends
    before.

    Parameters
    ----------
    owner : object
        Names the call for `interrupt_call`.
    thread : int
        `threading.get_ident` of the calling thread.
    function : callable
        The function, which takes one argument.
    argument : object
        Its argument.
    """

def running_calls() -> list[object]:
    """List the owners of the calls by `call_interruptibly` that run, the first one first."""

def interrupt_call(owner: object, exception: type[BaseException]) -> bool:
    """Raise an exception in a call by `call_interruptibly` of another thread.

    The exception is raised before the next instruction of Python code in the call. A function in
    another language ends first.

    Parameters
    ----------
    owner : object
        The owner of the call.
    exception : type
        A class of exceptions, which is called without arguments.

    Returns
    -------
    bool
        False if no such call runs.

    Raises
    ------
    TypeError
        If `exception` is no class of exceptions.
    """

def borrowed_bytes() -> int:
    """Bytes of peers' arenas that are mapped in this process."""

_Column = tuple[str, Buffer, Buffer | None, Buffer | None, int]

@final
class Partitioning:
    """Assignment of the rows of one input partition to the slots of a block.

    A slot is a wanted output partition. Rows keep their order within a slot. A column is given as
    its kind (``"bool"``, ``"int8"`` to ``"float64"``, ``"time"`` or ``"text"``), its values, and
    for text its offsets of eight bytes, its validity bits or None, and the bit of its first row.
    """

    @staticmethod
    def by_keys(
        keys: Sequence[_Column], rows: int, partitions: int, wanted: Sequence[int] | None
    ) -> Partitioning:
        """Partition rows by the hash of their keys, as Dask does.

        Parameters
        ----------
        keys : sequence of tuple
            The key columns.
        rows : int
            Rows of the input partition.
        partitions : int
            Output partitions.
        wanted : sequence of int or None
            Output partitions of the slots, ascending; None for all.

        Raises
        ------
        ValueError
            If a key has another number of rows, or is inconsistent.
        """

    @staticmethod
    def by_numbers(
        numbers: Buffer, width: int, rows: int, partitions: int, wanted: Sequence[int] | None
    ) -> Partitioning:
        """Partition rows by partition numbers of `width` bytes; drop rows without a valid one.

        The other parameters and the errors are those of `by_keys`.
        """

    @staticmethod
    def by_divisions(
        key: _Column,
        divisions: _Column,
        rows: int,
        partitions: int,
        wanted: Sequence[int] | None,
        order: tuple[bool, bool],
    ) -> Partitioning:
        """Partition rows by sorted divisions of a key, as ``set_partitions_pre`` of Dask does.

        Parameters
        ----------
        key : tuple
            The key column.
        divisions : tuple
            The least value of each output partition, ascending, then the largest one.
        rows, partitions, wanted
            As for `by_keys`.
        order : tuple of bool
            Whether the first output partition has the least values, and whether the last one has
            the missing ones.

        Raises
        ------
        ValueError
            If the columns differ in type or have other numbers of values, or a division is missing.
        """

    def part(self, start: int, stop: int) -> Partitioning:
        """Assign the rows of some slots alone, in time in proportion to all rows.

        Parameters
        ----------
        start, stop : int
            The first slot, and the one after the last.

        Raises
        ------
        ValueError
            If there are no such slots.
        """

    @property
    def rows(self) -> int:
        """Rows of the block."""

    def block_bytes(self, columns: Sequence[_Column]) -> int:
        """Return the size of a block that has these columns."""

    def write_block(self, columns: Sequence[_Column], block: Buffer) -> None:
        """Write the columns into a block, grouped by slot, without the GIL.

        Raises
        ------
        ValueError
            If a column has another number of rows, or `block` another size than `block_bytes` says.
        """

def piece_sizes(blocks: Sequence[Buffer], slot: int) -> tuple[int, list[int]]:
    """Return the rows of one slot in all blocks, and the bytes of text of each column.

    Raises
    ------
    ValueError
        If a block is inconsistent, or the blocks differ in their columns.
    """

def assemble_pieces(
    blocks: Sequence[Buffer], slot: int, targets: Sequence[tuple[Buffer, ...]]
) -> list[int]:
    """Concatenate the pieces of one slot in the order of the blocks, without the GIL.

    Parameters
    ----------
    blocks : sequence of buffer
        The blocks.
    slot : int
        The slot.
    targets : sequence of tuple of buffer
        Memory for each column: values, or for text offsets, validity bits and text.

    Returns
    -------
    list of int
        Nulls of each text column; 0 for the others.

    Raises
    ------
    ValueError
        If a block is inconsistent, or a target has another size than `piece_sizes` says.
    """

@final
class Join:
    """Pairs of rows with equal keys of one slot of two frames, in the order of pandas.

    Null equals null, and NaN equals NaN.
    """

    @staticmethod
    def of_slot(
        left: Sequence[Buffer],
        right: Sequence[Buffer],
        slot: int,
        keys: tuple[Sequence[int], Sequence[int]],
        how: str,
        columns: Sequence[tuple[bool, int, int | None]],
    ) -> Join:
        """Join one slot on columns of each frame, without the GIL.

        Parameters
        ----------
        left, right : sequence of buffer
            The blocks of both frames.
        slot : int
            The slot.
        keys : tuple of sequence of int
            The columns with the keys, of the same types.
        how : str
            ``"inner"``, ``"left"``, ``"outer"``, or ``"semi"``: left rows with a partner, each with
            the first one.
        columns : sequence of tuple
            For each column of the result, whether it is of the right frame, its number there, and
            the column of the other frame that replaces missing rows, or None.

        Raises
        ------
        ValueError
            If a block is inconsistent, or if the types of the keys differ.
        """

    @property
    def rows(self) -> int:
        """Rows of the result."""

    @property
    def text_bytes(self) -> list[int]:
        """Bytes of text of each column of the result; 0 for those that are no text."""

    def has_missing(self, is_right: bool) -> bool:
        """Tell whether a row of the result has no row of a frame."""

    def gather(
        self,
        left: Sequence[Buffer],
        right: Sequence[Buffer],
        targets: Sequence[tuple[Buffer, ...]],
    ) -> list[int]:
        """Gather the columns of the result from the blocks, without the GIL.

        Where rows of a frame are missing and no other column replaces them, integers are converted
        to ``float64``. Missing values are NaN, NaT, null, or 2 for booleans.

        Parameters
        ----------
        left, right : sequence of buffer
            The blocks that were joined.
        targets : sequence of tuple of buffer
            Memory for each column, as for `assemble_pieces`.

        Returns
        -------
        list of int
            Nulls of each text column; 0 for the others.

        Raises
        ------
        ValueError
            If the blocks are others, or a target has another size than its column.
        """

def read_piece(descriptor: int, offset: int, size: int, slot: int) -> bytes:
    """Read one slot of a block in a file, without the GIL.

    Parameters
    ----------
    descriptor : int
        The file.
    offset : int
        First byte of the block.
    size : int
        Size of the block.
    slot : int
        The slot.

    Returns
    -------
    bytes
        A block of the same columns and slots, whose other slots are empty.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If the block is inconsistent.
    """

def process_token() -> str:
    """Tell what peers know this process by: 32 hexadecimal digits, others after a fork."""

def numpy_handler(arena: Arena) -> object:
    """Make a handler of NumPy's that takes large blocks from an arena."""

def current_numpy_handler() -> object:
    """Get the handler that NumPy uses in the current context."""

def set_numpy_handler(handler: object | None, /) -> object:
    """Make NumPy use a handler in the current context, or its own; give the one before."""

def set_default_numpy_handler(handler: object, /) -> bool:
    """Make NumPy use a handler in the current context if it uses its own there; tell whether."""

def arena_of_numpy_handler(handler: object, /) -> Arena | None:
    """Get the arena of a handler; None if it has none."""

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
class Links:
    """Estimates of the links between a scheduler's workers.

    Of two workers that have met it knows the estimates of their messages; of others those of their
    hosts' messages, or of messages over links of the same kind; else it gives the expected figures.

    Parameters
    ----------
    same_host, other_host, device : (float, float)
        Expected figures of links within a host, between hosts, and of devices of one host before
        anything was measured: bytes per second, and seconds beside that.
    links_max : int
        Most pairs of processes that are known apart.

    Raises
    ------
    ValueError
        If a bandwidth is not positive, or a latency is negative or no number.
    """

    def __new__(
        cls,
        *,
        same_host: tuple[float, float],
        other_host: tuple[float, float],
        device: tuple[float, float],
        links_max: int,
    ) -> Links: ...
    def add_worker(
        self, address: str, process: str, host: str, nic_bytes_per_s: float | None = None
    ) -> None:
        """Take note of a worker, its process, its host and the speed of its NIC; again is cheap."""

    def remove_worker(self, address: str) -> None:
        """Forget a worker and the links of its process; what is known of its host stays."""

    def open_report(self, process: str, now_s: float) -> None:
        """Take note that a process begins to report, at so many seconds of a clock."""

    def report(
        self,
        process: str,
        sender: str,
        sender_host: str,
        lane: str,
        moved_bytes: int,
        busy_s: float,
        estimates: bytes,
    ) -> None:
        """Take what a process says of what another one sends it, for what it said before.

        Parameters
        ----------
        process, sender : str
            Tokens of both processes.
        sender_host : str
            Address of the sender's host; of a worker that of `add_worker` counts.
        lane : str
            The lane.
        moved_bytes, busy_s : int, float
            Bytes of messages that are timed, without those that were lent, and the seconds in which
            any of them were on their way; since the receiver started.
        estimates : bytes
            13 for each memory and class of sizes: the class, and 128 for memory of a device;
            messages (4 bytes), bytes per second and latency in seconds (4 bytes each, floats).

        Raises
        ------
        ValueError
            If a figure is one that no link has.
        KeyError
            If no worker is in the process.
        """

    def seconds(self, sender: str, receiver: str, nbytes: int, *, on_device: bool = False) -> float:
        """Predict how long a message takes from one worker to another, in seconds.

        Raises
        ------
        KeyError
            If one of them has not reported.
        """

    def answer(
        self, sender: str, receiver: str, nbytes: int, *, on_device: bool = False
    ) -> tuple[float, float, float, int, str]:
        """Predict that, and say why.

        Returns
        -------
        tuple
            Seconds, bytes per second (infinite where bytes are lent), seconds beside that, how many
            messages are behind it, and where it comes from: ``same process``, ``process pair``,
            ``host pair``, ``class`` or ``prior``.
        """

    def rows(
        self,
    ) -> list[tuple[tuple[str, str], tuple[str, str], str, str, int, tuple[float, float, int]]]:
        """List what was measured.

        Returns
        -------
        list of tuple
            Tokens of sender and receiver, their hosts, the lane, ``host`` or ``device``, the size
            of the smallest message of the class in bytes, and the estimate: bytes per second,
            seconds beside that, messages.
        """

    def workers(self) -> list[str]:
        """List the addresses of the workers that are known."""

    def __len__(self) -> int:
        """How many workers are known."""

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

@final
class Endpoint:
    """One connected peer.

    Messages are either *tagged*, and matched as MPI matches them, or *untagged* lists of frames,
    received in the order sent. Dropping the endpoint ends the connection at once: `close` it first
    if what was sent must arrive.

    A context manager, also asynchronous, which closes it, or aborts if the body raised::

        async with await backhaul.connect(address) as endpoint:
            await endpoint.send(b"hello")

    All methods may be called from any thread.
    """

    @property
    def local_address(self) -> str:
        """Our address, as ``host:port``."""

    @property
    def peer_address(self) -> str:
        """The peer's address, as ``host:port``."""

    @property
    def lane(self) -> str:
        """The lane in use: ``"inproc"``, ``"shm"``, ``"ucx"``, ``"tcp"`` or ``"tls"``."""

    def send(self, buffer: Buffer | Any, *, tag: int = 0, shared: bool = False) -> Request[None]:
        """Send a buffer under a tag.

        Parameters
        ----------
        buffer : buffer
            Any C-contiguous memory: the buffer protocol of any format, or
            ``__array_interface__``; or, on a GPU, ``__cuda_array_interface__`` or DLPack. It must
            not change until the request is done, and is held until then: a ``bytearray`` cannot be
            resized. On a GPU it is sent after what is on the stream that its interface names, or
            on the default stream where that names none.
        tag : int, optional
            From 0 to 2**64 - 1.
        shared : bool, optional
            Promise that no code writes to the memory any more, also after the request is done.
            Memory in the context's `Arena` is then lent to a peer on this host instead of copied:
            the peer reads the same pages as long as it holds the message. A program that breaks
            the promise changes what the peer reads. Freeing the memory is safe at any time.

        Returns
        -------
        Request of None
            Done when the memory may be reused, unless it is shared. A message of less than 16 KiB
            leaves at once, unless so many wait unreceived at the peer that its credit is used up;
            that says nothing about its receive. A longer one may wait until the peer has posted a
            receive for it, and one of more than ``eager_bytes_max`` of the `Context` (64 KiB by
            default) does: two peers that first wait for such sends to each other, and then
            receive, wait for ever. Post the receive first, or wait for both together.

        Raises
        ------
        InvalidBuffer
            If the memory is not contiguous, holds references to Python objects, has a mask, or is
            said to be a GPU's and is not.
        CudaUnavailable
            If it is a GPU's, and CUDA cannot be used in this process.
        TypeError
            If the object offers no memory.
        ValueError
            If the tag is out of range, or an interface says what cannot be.

        Notes
        -----
        The request raises `MessageTooLarge`, `QueueFull`, or what ended the connection; and
        `NoCarrier` for memory of a GPU if the two sides do not both have the carrier, or the peer
        is on another host. To know before, look for ``"cuda"`` among the carriers that `info`
        lists.
        """

    def recv(
        self,
        buffer: Buffer | Any,
        *,
        tag: int = 0,
        mask: int = 0xFFFF_FFFF_FFFF_FFFF,
    ) -> Request[Received]:
        """Receive the next message whose tag matches into a buffer.

        Parameters
        ----------
        buffer : writable buffer
            Any C-contiguous memory, on the host or a GPU; see `send`. It must not be used until the
            request is done. A message that was sent from a GPU can be received in either; one that
            was sent from the host, on the host only.
        tag : int, optional
            Tag wanted.
        mask : int, optional
            Bits of the tag that count: 0 takes any message.

        Returns
        -------
        Request of Received
            The size and the tag of the message.

        Raises
        ------
        InvalidBuffer
            If the memory is read-only, or as for `send`.
        CudaUnavailable
            As for `send`.
        TypeError
            If the object offers no memory.
        ValueError
            If the tag or mask is out of range, or an interface says what cannot be.

        Notes
        -----
        The request raises `TruncatedError` if the message is larger than the buffer, `NoCarrier` if
        nothing brings it there, or what ended the connection. Once a receive on a GPU is done, all
        streams see what came.
        """

    def probe(self, *, tag: int = 0, mask: int = 0xFFFF_FFFF_FFFF_FFFF) -> Received | None:
        """Look for a tagged message that a receive with this tag and mask would get now.

        It stays where it is, and another thread may receive it meanwhile. A long message is found
        as soon as the peer has announced it. Untagged messages are not looked at.

        Parameters
        ----------
        tag : int, optional
            Tag wanted.
        mask : int, optional
            Bits of the tag that count: 0 finds any tagged message.

        Returns
        -------
        Received or None
            Size and tag of the message; None if there is none yet. No error, also where the
            connection has ended.

        Raises
        ------
        TypeError, ValueError
            If the tag or mask is no integer, or out of range.
        """

    def send_obj(self, object: object, *, tag: int = 0, shared: bool = False) -> Request[None]:
        """Send a Python object under a tag, for `recv_obj`.

        It is pickled (protocol 5); the memory of arrays goes beside the pickle as it is, without
        being copied first.

        Parameters
        ----------
        object : object
            Whatever `pickle` takes. Arrays in it must not change until the request is done.
        tag : int, optional
            From 0 to 2**64 - 1.
        shared : bool, optional
            As for `send`.

        Returns
        -------
        Request of None
            As for `send`.

        Raises
        ------
        pickle.PicklingError, TypeError, AttributeError
            As `pickle` raises them, if the object cannot be pickled.
        BufferError
            If memory that it leaves to us is not contiguous.
        TypeError, ValueError
            If the tag is no integer, or out of range.
        """

    def recv_obj(self, *, tag: int = 0, mask: int = 0xFFFF_FFFF_FFFF_FFFF) -> Request[Any]:
        """Receive the next object whose tag matches.

        Receive objects from peers that you trust alone: a pickle runs what its sender wants.

        Parameters
        ----------
        tag : int, optional
            Tag wanted.
        mask : int, optional
            Bits of the tag that count: 0 takes any tagged message.

        Returns
        -------
        Request of object
            The object. Its arrays lie in the memory that was received, and can be written to.

        Raises
        ------
        TypeError, ValueError
            If the tag or mask is no integer, or out of range.

        Notes
        -----
        The request raises `ObjectError` if the message was not sent by `send_obj`, what `pickle`
        raises, or what ended the connection. The message is consumed then.
        """

    def send_frames(self, frames: Iterable[Buffer | Any], *, shared: bool = False) -> Request[None]:
        """Send buffers as one untagged message; see `send`.

        A long one does not always wait for its receive: a peer fetches up to 64 MiB of them
        before it is asked to.

        Raises
        ------
        TypeError
            If it is one buffer rather than a list of them, or one of them offers no memory.
        InvalidBuffer, CudaUnavailable
            As for `send`.
        """

    def recv_frames(self) -> Request[list[Any]]:
        """Receive the next untagged message.

        Returns
        -------
        Request of list of memoryview or DeviceBuffer
            The frames, each in memory of its own: 64-byte aligned and writable, of format ``"B"``,
            or, in the place of one that was sent from a GPU, a `DeviceBuffer` on device 0 of this
            process. To get such a frame in memory of another library, or on another device, have it
            sent tagged, and receive it there.

        Notes
        -----
        The request raises `NoCarrier` if a GPU here cannot take what was sent from one.
        """

    def close(self) -> Request[None]:
        """Close in good order: what was sent goes out first, later sends fail."""

    def abort(self) -> None:
        """End the connection at once; what is in flight fails."""

    def closed(self) -> bool:
        """Return whether the connection has ended, or is being closed from here."""

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call a callback on the running event loop when the connection has ended."""

    def queued_bytes(self) -> int:
        """Payload bytes of sends that are not done."""

    def info(self) -> dict[str, Any]:
        """Lane and why it was chosen, addresses, and who the peer is.

        ``carriers`` are the names of those that both sides have. ``ways`` has a tuple for each way
        by which long private messages came, and each class of sizes: smallest size in bytes, name
        of the way, median bandwidth in bytes per second, messages timed, and whether it is the one
        chosen. ``trust`` is what the peer had to show, as for `Listener.info`. ``tls``
        is None, or how the peers have met: the ``version`` and the ``cipher`` by the names that
        `ssl` has for them, ``cipher_bits``, and the ``peer_certificate`` in DER.
        """

    def recent_events(self) -> list[tuple[float, str]]:
        """List the last events on the connection, besides bytes that moved.

        They show why something waits.

        Returns
        -------
        list of (float, str)
            How long ago, in seconds, to some milliseconds, and what; the oldest first, at most 64.
        """

    def statistics(self) -> dict[str, Any]:
        """Messages, bytes and time spent, by direction.

        ``overlooked`` counts work that had waited for seconds without a woken thread, until the
        engine's inspection found it: a defect, which is also logged as a warning.
        """

    def __enter__(self) -> Endpoint: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    def __aenter__(self) -> Request[Endpoint]: ...
    def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> Request[None]: ...

@final
class DeviceBuffer:
    """Memory on a GPU that other processes can open, of unspecified content.

    A message that is received from a GPU without a place of its own comes as one. It speaks DLPack
    and the CUDA Array Interface, as bytes, so that libraries take it without a copy::

        cupy.asarray(buffer).view("f4")
        torch.as_tensor(buffer, device="cuda").view(torch.float32)

    The memory is taken again for other buffers as soon as the last reference is gone: work that was
    queued on the default stream before that is waited for, work on other streams is not.

    Parameters
    ----------
    nbytes : int
        Size, in bytes.
    device : int, optional
        Number of the GPU in this process.

    Raises
    ------
    CudaUnavailable
        If CUDA cannot be used in this process.
    ConfigError
        If there is no such GPU.
    OutOfMemory
        If it has no memory left.
    """

    def __new__(cls, nbytes: int, *, device: int = 0) -> DeviceBuffer: ...
    @property
    def nbytes(self) -> int:
        """Size, in bytes."""

    @property
    def device(self) -> int:
        """Number of the GPU in this process."""

    @property
    def ptr(self) -> int:
        """Address of the first byte on the GPU, as RMM's buffers have it."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def copy_to_host(self, buffer: Buffer | Any) -> None:
        """Copy to a buffer of the same size, and wait for it.

        Raises
        ------
        InvalidBuffer, ValueError
            If it is read-only or not contiguous, or has another size.
        """

    def copy_from_host(self, buffer: Buffer | Any) -> None:
        """Copy from a buffer of the same size, and wait for it.

        Raises
        ------
        InvalidBuffer, ValueError
            If it is not contiguous, or has another size.
        """

    def __len__(self) -> int: ...

def copy_memory(source: Buffer | Any, target: Buffer | Any) -> None:
    """Copy memory between the host and GPUs, each way, and wait for it.

    Parameters
    ----------
    source, target : buffer
        As for `Endpoint.send` and `Endpoint.recv`, of the same size.

    Raises
    ------
    InvalidBuffer, CudaUnavailable, TypeError, ValueError
        As for these; also if the sizes differ.
    """

def cuda_devices() -> list[tuple[str, str]]:
    """List the GPUs that this process sees, in its order, by UUID and name; this starts CUDA.

    Raises
    ------
    CudaUnavailable
        If there is no driver, or no GPU.
    """

@final
class ResourceRequest:
    """Request of one task for resources; equal requests are equal, and hash alike.

    Parameters
    ----------
    needs : mapping of str to float
        Amounts in units, by name; those of nothing are left out.
    affinity : sequence of str
        Names of those of which the units are preferred that the inputs ran on.

    Raises
    ------
    ValueError
        If an amount is negative, no number, or too fine, or an affinity is to something that is not
        asked for.
    """

    def __new__(
        cls, needs: Mapping[str, float], affinity: Sequence[str] = ...
    ) -> ResourceRequest: ...
    @property
    def needs(self) -> dict[str, float]:
        """Amounts by name, without those of nothing."""

    @property
    def affinity(self) -> list[str]:
        """Names of the resources of which the units are preferred that the inputs ran on."""

    def __getnewargs__(self) -> tuple[dict[str, float], list[str]]: ...
    def __hash__(self) -> int: ...

@final
class ResourcePools:
    """The pools of one worker, and the leases of what is taken from them.

    Parameters
    ----------
    declared : dict
        By name: a whole number of units, counted from zero; ids like ``[0, 1]``; groups of ids like
        ``[[0, 1], [2, 3]]``; or, as a float, an amount. A whole number above 4096 is an amount too.
    coupled : dict, optional
        Ids of other pools that are near to some ids, like ``{"GPU": {0: {"NIC": [1]}}}``; they
        are near to each other. Of ids of the same pool, seconds that a byte takes to each:
        ``{"GPU": {0: {"GPU": {1: 5e-11}}}}``; else it is 20 GB/s within a group and 6 GB/s beyond.
    passes_max : int, optional
        Leases that may go past a request that waits, see `granted`; 16 by default.

    Raises
    ------
    ValueError
        If groups overlap, ids are unknown, or amounts or seconds are none.
    TypeError
        If something declared is neither a number nor ids.
    """

    def __new__(
        cls,
        declared: dict[str, Any],
        *,
        coupled: dict[str, dict[int, dict[str, list[int] | dict[int, float]]]] | None = None,
        passes_max: int = ...,
    ) -> ResourcePools: ...
    def declare(
        self,
        declared: dict[str, Any],
        *,
        coupled: dict[str, dict[int, dict[str, list[int] | dict[int, float]]]] | None = None,
    ) -> None:
        """Replace all that was declared by a new declaration; leases go on."""

    def unmeetable(self, request: ResourceRequest) -> str | None:
        """Say why a request can never be met here; None if it can."""

    def take(
        self,
        request: ResourceRequest,
        inputs: Mapping[str, Sequence[tuple[int, float]]] | None = None,
    ) -> int | None:
        """Take all that a request asks for, or nothing: the number of a lease, or None.

        Parameters
        ----------
        request : ResourceRequest
            Request of the task.
        inputs : mapping of str to sequence of tuple, optional
            Units that the inputs ran on, with their bytes, by name.

        Raises
        ------
        ValueError
            If it can never be met.
        """

    def is_free(self, request: ResourceRequest) -> bool:
        """Tell whether all that a request asks for is free, and may be taken by it.

        Raises
        ------
        ValueError
            If it can never be met.
        """

    def refused(
        self, request: ResourceRequest, stands: Sequence[float], *, threads: float = 1.0
    ) -> None:
        """Note that the first task of a request waits, and where it stands among all tasks.

        Tasks with the same request and other `threads` are another kind.
        """

    def granted(
        self, request: ResourceRequest, stood: Sequence[float], *, threads: float = 1.0
    ) -> None:
        """Note that a task has taken what it asks for, and where it stood among all tasks.

        After `passes_max` leases of tasks that come after the first one of a request, for something
        that it needs too, what it needs is lent to no other one until it has taken it; for one
        request at a time.
        """

    def left(self, request: ResourceRequest, *, threads: float = 1.0) -> bool:
        """Note that no task waits with a request any more; tell whether units were kept for it."""

    def is_kept(self, request: ResourceRequest, *, threads: float = 1.0) -> bool:
        """Tell whether units are kept for a request."""

    @property
    def passes_max(self) -> int:
        """Leases that may go past a request that waits."""

    @property
    def keeps(self) -> bool:
        """True if units are kept for a request."""

    def give_back(self, lease: int) -> None:
        """Give back all that a lease holds.

        Raises
        ------
        KeyError
            If it was given back before.
        """

    def held(self, lease: int) -> dict[str, Any]:
        """Tell what a lease holds: by name, units as a tuple, or an amount as a float."""

    def amounts(self) -> dict[str, tuple[float, float]]:
        """Tell how much there is and how much of it is free, by name."""

    def units(self, resource: str) -> dict[int, float] | None:
        """Tell how much of each unit is free; None for a sum, or what is not there."""

    @property
    def leases(self) -> int:
        """How many leases there are."""

@final
class ResourcePlaces:
    """Requests of a scheduler's tasks: workers with room, and tasks that hold units or wait.

    Workers, requests and tasks go by numbers here; that of a task is its `id`.
    """

    def __new__(cls) -> ResourcePlaces: ...
    def set_worker(self, place: int, declared: dict[str, Any]) -> None:
        """Know of a worker, or of what it has now; what is booked there stays booked."""

    def set_running(self, place: int, runs: bool) -> None:
        """Note whether a worker may be sent tasks."""

    def remove_worker(self, place: int, tasks: Sequence[int]) -> None:
        """Forget a worker, all that is booked there, and what these tasks of it hold."""

    def request(self, amounts: Sequence[tuple[str, float]], threads: float) -> int:
        """Give a request of resources and threads its number, the same for equal ones.

        Raises
        ------
        ValueError
            If that cannot be asked for.
        """

    def least_loaded(self, signature: int) -> int | None:
        """Return the running worker that would be the least loaded with one more such task.

        One that is kept for another request that needs the same is left out.
        """

    def has_room(self, signature: int, place: int) -> bool:
        """Tell whether a worker may be given one more such task, to run or to wait."""

    def choose(
        self,
        signature: int,
        transfers_s: Sequence[tuple[int, float]],
        duration_s: float,
        keeps: bool,
    ) -> int | None:
        """Choose, of the workers with room, the one where a task can begin first.

        Parameters
        ----------
        signature : int
            The task's request.
        transfers_s : sequence of (int, float)
            Candidates, and the seconds until each has the task's inputs.
        duration_s : float
            Expected duration of a task that the task would wait for at a worker; 0 to ignore it.
        keeps : bool
            Whether tasks wait for room at the scheduler: a worker without room gets none then.
        """

    def book(
        self,
        task: int,
        signature: int,
        place: int,
        priority: Sequence[float] | None,
        counts: bool,
    ) -> None:
        """Note that a task was sent to a worker.

        `counts` says whether it takes less than a thread and is not counted there yet. If others
        have gone past a request too often, a worker is kept for it.
        """

    def inherit_booking(self, task: int, signature: int, place: int, counts: bool) -> None:
        """Note that a worker has a task, which was sent there before."""

    def release(self, task: int, place: int | None) -> None:
        """Note that a task has left a worker, or has given back what it held there.

        `place` is None if the worker has left.
        """

    def beside(self, place: int) -> int:
        """Count tasks of a worker that take less than a thread."""

    def booked(self, signature: int, place: int) -> int:
        """Count such tasks that a worker was given, and has."""

    def wait(
        self,
        task: int,
        signature: int,
        workers: list[str],
        hosts: list[str],
        loose: bool,
        priority: Sequence[float] | None,
    ) -> str | None:
        """Keep a task that no worker has room for; return why none ever will, if that is so.

        `workers` and `hosts` are those that the task is bound to, `loose` says whether it may run
        elsewhere while none of these can run it.
        """

    def join_line(
        self,
        task: int,
        signature: int,
        workers: list[str],
        hosts: list[str],
        loose: bool,
        priority: Sequence[float] | None,
    ) -> None:
        """Put a task into its line, in which it waited before."""

    def leave_line(self, task: int) -> None:
        """Take a task out of the line in which it waits."""

    @property
    def has_lines(self) -> bool:
        """Whether tasks wait, or did until the last `drain`."""

    def drain(
        self,
        waits: Callable[[int], bool],
        may_go: Callable[[int], bool],
        send: Callable[[int], bool],
    ) -> None:
        """Send as many of the tasks that wait as workers have room for, the first ones first.

        Parameters
        ----------
        waits : callable
            Tells whether a task still waits.
        may_go : callable
            Tells whether a worker that a task is bound to may have room.
        send : callable
            Sends a task, and tells whether it still waits after that.
        """

    def state(
        self,
        booked: list[str],
        waiting: dict[int, str],
        addresses: dict[int, str],
        *,
        drains: bool,
    ) -> RoomState:
        """Return what another scheduler has to know.

        Parameters
        ----------
        booked : list of str
            Keys of tasks that hold what they ask for.
        waiting : dict
            Key of each task that still waits.
        addresses : dict
            Address of each worker.
        drains : bool
            Whether something has come back that a task may wait for.
        """

    def inherit(self, state: RoomState, places: dict[str, int]) -> None:
        """Take over requests that wait; their tasks are booked and in lines.

        `places` has the number of each worker by address.

        Raises
        ------
        KeyError
            If a worker is named that is not there.
        """

    def clear(self) -> None:
        """Forget all workers and tasks, but no request: another scheduler continues."""

@final
class PassedRequest:
    """A request that waits, and that others may have gone past."""

    @property
    def amounts(self) -> list[tuple[str, float]]:
        """How much of what it asks for, threads left out."""

    @property
    def threads(self) -> float:
        """How many threads it takes."""

    @property
    def stands(self) -> list[float]:
        """Priority of its first task."""

    @property
    def passes(self) -> int:
        """How many leases went past it."""

@final
class UnmetRequest:
    """A request that no worker can ever meet."""

    @property
    def key(self) -> str:
        """Key of the task that was the first to ask so."""

    @property
    def amounts(self) -> list[tuple[str, float]]:
        """How much of what it asks for, threads left out."""

    @property
    def threads(self) -> float:
        """How many threads it takes."""

    @property
    def reason(self) -> str:
        """The missing resource."""

@final
class RoomState:
    """Which tasks hold what they ask for and which wait, as another scheduler goes on from it."""

    @property
    def booked(self) -> list[str]:
        """Keys of tasks that hold what they ask for."""

    @property
    def waiting(self) -> list[str]:
        """Keys of tasks that wait, each line in the order in which it would go."""

    @property
    def passed(self) -> list[PassedRequest]:
        """Requests that wait, and others may have gone past."""

    @property
    def kept(self) -> int | None:
        """Place in `passed` of the request that a worker is kept for."""

    @property
    def kept_worker(self) -> str | None:
        """Address of the worker that is kept for it."""

    @property
    def served(self) -> list[str]:
        """Addresses of workers that were sent such tasks, the one served longest ago first."""

    @property
    def drains(self) -> bool:
        """Whether something has come back that a task may wait for, and nothing was sent yet."""

    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class Request(Generic[_T_co]):
    """One operation in flight: ``await`` it, or ``wait()`` for it.

    Cancelling the task that awaits it, or dropping a request that was waited for in vain, gives the
    operation up. A receive that is given up loses nothing: a message that it has met already is
    there for the next receive that wants it, whole and in its place in the order. A send that is
    given up is withdrawn if nothing of it has left. A request that is never waited for goes on
    until it is done; that a message was refused is then logged.

    It may be waited for as often as wanted, by several tasks and threads at once; all get the same
    result. After `cancel` the request
    is over with `Cancelled`, unless its operation was done before: then it has the result.

    Event loops are those of asyncio and uvloop. To asyncio it is a coroutine: it can be given to
    `asyncio.create_task`, `asyncio.TaskGroup.create_task`, `asyncio.gather` and
    `asyncio.wait_for`; `asyncio.wait` takes tasks alone, made by one of the first two. Under trio,
    ``await trio.to_thread.run_sync(request.wait)``.
    """

    def done(self) -> bool:
        """Return whether the result is there."""

    def wait(self, timeout: float | None = None) -> _T_co:
        """Block until the operation is done and return its result.

        Parameters
        ----------
        timeout : float, optional
            Longest time to wait, in seconds; 0 or less to look once.

        Raises
        ------
        TimedOut
            If it is not done by then. It goes on, and may be waited for again.
        Cancelled
            If it was cancelled.

        Notes
        -----
        Signals are handled meanwhile: Control-C raises ``KeyboardInterrupt``, and the operation
        goes on. The thread's event loop, if it has one, stands still.
        """

    def result(self) -> _T_co:
        """Return the result of an operation that is done, else raise `NotDone`."""

    def cancel(self) -> bool:
        """Ask to cancel; the operation still completes, cancelled or with its result.

        Returns
        -------
        bool
            False if it was done already.
        """

    def send(self, value: None, /) -> Any:
        """Go on, as the coroutine of a task does; for event loops."""

    def throw(self, kind: Any, value: Any = None, traceback: Any = None, /) -> Any:
        """Give the operation up and raise, as the coroutine of a task does; for event loops."""

    def close(self) -> None:
        """Give the operation up if a task has it as its coroutine; see `cancel` for others."""

    @classmethod
    def __class_getitem__(cls, key: Any) -> GenericAlias: ...
    def __await__(self) -> Generator[Any, None, _T_co]: ...

@final
class LoopBridge:
    """The futures of one event loop that wait for the engine; internal."""

    def __new__(cls) -> LoopBridge: ...
    def fileno(self) -> int:
        """Returns the descriptor that the loop watches for reading.

        Raises
        ------
        ValueError
            If the loop is closed.
        """

    def reader(self) -> LoopReader:
        """Returns the callback of the descriptor, which closes the descriptor when it is freed."""

    def drain(self) -> None:
        """Settle what is due, on the loop, when the descriptor is readable."""

@final
class LoopReader:
    """Calls `LoopBridge.drain`, and closes the bridge's descriptors when it is freed; internal.

    An event loop that is closed drops its callbacks. Other references to the bridge may live on:
    Dask keeps workers and schedulers that are closed.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Settle what is due, on the loop, when the descriptor is readable; takes no arguments."""

@final
class Lookout:
    """Place of one thread that waits for requests instead of the event loop; internal.

    A request that is done wakes the thread that waits here, which looks, and says when the event
    loop is to be called. While no thread waits, it calls the event loop.
    """

    def __new__(cls, bridge: LoopBridge) -> Lookout: ...
    def watch(self, request: Request[Any]) -> bool:
        """Make a request wake the waiting thread once it is done; False if it is."""

    def expect(self, request: Request[Any], callback: Callable[[], None]) -> bool:
        """Call `callback` on the event loop, once, for the next that is done.

        Called on the event loop. In the place of an earlier one.

        Parameters
        ----------
        request : Request
            Request that is in flight now.
        callback : callable
            Called without arguments.

        Returns
        -------
        bool
            False if the request is done; then `callback` is not called.
        """

    def disregard(self) -> None:
        """Take the callback back."""

    def wait(self, request: Request[Any], timeout: float, *, awake: bool = False) -> bool:
        """Block this thread until the request is done, `rouse` is called, or time is over.

        Parameters
        ----------
        request : Request
            Request that is in flight now.
        timeout : float
            In seconds.
        awake : bool, default False
            Whether to poll for a moment before it sleeps, four times the ``spin`` of the context,
            unless that has been in vain lately.

        Returns
        -------
        bool
            True if there is something to look at. The thread looks in any case: a request that was
            done meanwhile has called no other thread.

        Raises
        ------
        RuntimeError
            If another thread waits here.
        ValueError
            If `timeout` is negative or no number.
        """

    def rouse(self, or_next: bool = False) -> bool:
        """Wake the thread that waits; False if none does.

        Parameters
        ----------
        or_next : bool, default False
            If none does, the next that comes is not to wait: it was on its way.

        Returns
        -------
        bool
            Whether a thread is or will be woken.
        """

    def close(self) -> None:
        """Give its descriptor back: a thread that waits, now or later, returns immediately."""

    def call(self, within: float = 0.0) -> None:
        """Call the event loop, if it expects that: at once, or within so many seconds.

        Within a time: the loop handles it when it is called for something else, and at that time at
        the latest; no thread is woken for it before.
        """

def memory_policy() -> tuple[int, list[int]]:
    """Mode, as in ``linux/mempolicy.h``, and NUMA nodes of the calling thread's memory policy.

    Raises
    ------
    OSError
        As ``get_mempolicy(2)`` fails: not allowed here, or a kernel without NUMA.
    """

def set_memory_policy(mode: int, nodes: list[int]) -> None:
    """Set the memory policy of the calling thread and of what it starts from now on.

    Raises
    ------
    ValueError
        If a NUMA node is out of range.
    OSError
        As ``set_mempolicy(2)`` fails: not allowed here, no such node, no such mode.
    """

def order(
    graph: dict[Any, Any],
    graph_node: type,
    data_node: type,
) -> dict[Any, int]:
    """Number the keys of a Dask graph, given Dask's classes; see `backhaul.dask.scheduler.order`.

    Raises
    ------
    TypeError
        If a value of the graph is no node, or its dependencies are no frozenset.
    ValueError
        If only Dask can tell how to order it: it has a cycle, or its keys are not distinct.
    """

def set_listing(added: list[int]) -> list[int]:
    """Hashes in the order in which a set would list them; internal."""

def difference_listing(set: frozenset[int], other: list[int]) -> list[int]:
    """Hashes in the order in which ``set - other`` would list them; internal."""

@final
class FairNetwork:
    """Flows that share edges fairly, in simulated time.

    Parameters
    ----------
    capacities_bytes_per_s : sequence of float
        Of each edge.

    Raises
    ------
    ValueError
        If a capacity is not above 0.
    """

    def __new__(cls, capacities_bytes_per_s: Sequence[float]) -> FairNetwork: ...
    def start(self, now_s: float, path: Sequence[int], nbytes: float, /) -> int:
        """Start a flow along edges; return its number, which is used again once it has ended.

        `ValueError` for times that go backwards, unknown edges, an empty path or no size.
        """

    def next_end(self) -> float | None:
        """Say when the next flow ends if none starts before, in seconds."""

    def finish(self, now_s: float, /) -> list[int]:
        """Take out the flows that have ended by now; return their numbers."""

@final
class WorkerLoad:
    """Room of a worker, and the tasks in flight to it by prefix; internal.

    Parameters
    ----------
    threads : int
        Threads of the worker.
    memory_limit : int
        Memory that it may use, in bytes; 0 if that is not limited.
    used_bytes : float
        Memory in use there.
    tasks : dict of str to int
        Tasks that were sent and are not known to have ended, by prefix.
    """

    def __new__(
        cls, *, threads: int, memory_limit: int, used_bytes: float, tasks: dict[str, int]
    ) -> WorkerLoad: ...

@final
class WindowPolicy:
    """Policy of the in-flight window: how many tasks a worker is sent ahead of time; internal.

    Parameters
    ----------
    seconds : float
        Expected work for each thread, in seconds.
    tasks_per_thread : float
        Most tasks for each thread, however short.
    memory_share : float
        Share of its free memory that expected results may take.
    memory_budget_bytes : float
        The same in bytes, for a worker whose memory is not limited.
    saturation : float
        ``distributed.scheduler.worker-saturation``.
    """

    def __new__(
        cls,
        *,
        seconds: float,
        tasks_per_thread: float,
        memory_share: float,
        memory_budget_bytes: float,
        saturation: float,
    ) -> WindowPolicy: ...
    def learned(self) -> tuple[list[tuple[str, float, float]], list[tuple[str, int]]]:
        """Return the expected seconds and bytes by prefix, and the finished tasks by group."""

    def replace(
        self, expectations: list[tuple[str, float, float]], confirmed: list[tuple[str, int]]
    ) -> None:
        """Replace what was learned by the same of another window."""

    def observe(
        self, group: str, prefix: str, seconds: float, nbytes: float, *, patiently: bool = False
    ) -> bool:
        """Learn from a finished task; tell whether the expectation last acted on was wrong.

        Parameters
        ----------
        group, prefix : str
            Of the task.
        seconds : float
            Its duration, in seconds.
        nbytes : float
            Size of its result, in bytes.
        patiently : bool, default False
            Wait for several long tasks in a row, because a few may have waited for a CPU.
        """

    def is_low(self, worker: str, tasks: int) -> bool:
        """Tell whether a worker has so few tasks in flight that it is filled again."""

    def note_filled(self, worker: str, tasks: int, threads: int) -> None:
        """Note how many tasks a worker has in flight after it was filled."""

    def room(
        self,
        group: str,
        prefix: str,
        worker: WorkerLoad,
        *,
        duration_s: float,
        queued: int,
        threads_all: float,
    ) -> int:
        """Return how many more tasks of a group to send to a worker now.

        Parameters
        ----------
        group, prefix : str
            Of the task at the front of the queue.
        worker : WorkerLoad
            The worker.
        duration_s : float
            Upstream's expected duration of the prefix; negative if upstream has forgotten it.
        queued : int
            Tasks that wait for a worker.
        threads_all : float
            Threads of the cluster.
        """

    def excess(self, prefix: str, workers: list[WorkerLoad]) -> list[int]:
        """Return how many tasks of a prefix to take back from each worker.

        0 where so few are too many that it is not worth the requests.
        """

    def set_memory(self, worker: str, bytes: float) -> None:
        """Note how much memory a worker uses, for `refill` and `has_too_many`."""

    def refill(self, core: SchedulerCore, worker: str, stimulus: str, now_s: float) -> None:
        """Fill a worker of a core if it is down to the limit at which it is filled again."""

    def has_too_many(self, core: SchedulerCore, prefix: str) -> bool:
        """Tell whether a worker of a core has so many tasks that it is worth to take some back."""

@final
class RunRecord:
    """Ring buffer of the last runs of a scheduler that ended well.

    Parameters
    ----------
    runs_max : int
        Most runs; the oldest is dropped first.
    """

    def __new__(cls, runs_max: int) -> RunRecord: ...
    def add(
        self,
        *,
        key: str,
        prefix: str,
        worker: str,
        thread: int | None,
        nbytes: int,
        actions: list[tuple[str, float, float]],
    ) -> None:
        """Append a run: its actions are names with begin and end, in seconds."""

    def since(
        self, start_s: float
    ) -> tuple[
        list[tuple[str, str, str, int | None, int, list[tuple[str, float, float]]]],
        int,
    ]:
        """Return the runs that ended at or after a time, and how many were dropped so far.

        Parameters
        ----------
        start_s : float
            Time, in seconds since the epoch.

        Returns
        -------
        list of tuple, int
            Key, prefix, worker, thread, bytes of the result and actions of each run; the count.
        """

@final
class SchedulerStreams:
    """The streams of a scheduler, handled on the engine's thread, without Python; internal.

    A batch of messages that are all hot is handled there, and what follows from it is sent. Any
    other goes on to the reader of the connection. Messages of the core that follow from other calls
    leave with `flush`.

    Parameters
    ----------
    core : SchedulerCore
        The state.
    result_bytes_max : int, default 0
        Longest result that clients are handed, in bytes.
    window : WindowPolicy, optional
        How many tasks workers are sent before they need them. Its limits and what it has learned
        are taken over.
    fifo_timeout_s : float, default 0
        Graphs of a client that come this close together share a generation, in seconds.
    """

    def __new__(
        cls,
        core: SchedulerCore,
        *,
        result_bytes_max: int = 0,
        window: WindowPolicy | None = None,
        fifo_timeout_s: float = 0.0,
    ) -> SchedulerStreams: ...
    def add(self, kind: str, name: str, endpoint: Endpoint) -> int:
        """Take in a ``"worker"`` by its address, or a ``"client"`` by its name; give its number.

        Raises
        ------
        ValueError
            If the kind is neither.
        """

    def tap(self, peer: int) -> int:
        """Begin to handle the messages of a peer, once its reader has caught up.

        Returns
        -------
        int
            How many receives wait for messages. Others that were posted before are over.

        Raises
        ------
        ConnectionError
            If the connection has ended.
        """

    def remove(self, peer: int) -> list[list[bytes]]:
        """Handle the messages of a peer no more; its number is not used again.

        Messages that have gathered for it are sent. All other messages of the core to it are in the
        notes.

        Returns
        -------
        list of list of bytes
            Held messages, to be sent after those that they were held for: the frames of each batch.
        """

    def caught_up(self, peer: int, handled: int) -> None:
        """Tell how many messages the reader of a peer has handled, of those since the tap."""

    def hold(self, peer: int, hold: bool) -> None:
        """Tell that other messages for a peer are about to be sent and come first, or are sent."""

    def flush(self) -> bool:
        """Send what the core has to say; tell whether there are notes."""

    def pause(self, pause: bool) -> None:
        """Stop the handling of messages here for a while, or go on."""

    def set_keepers(self, clients: list[str]) -> None:
        """Tell which clients keep results."""

    def set_span(self, group: str, span: str | None) -> None:
        """Set the span of a group; tasks of no other group are submitted past Python."""

    def set_memory(self, worker: str, bytes: float) -> None:
        """Tell how much memory a worker uses, in bytes."""

    def observe(self, group: str, prefix: str, seconds: float, nbytes: float) -> bool:
        """Learn from a task handled elsewhere; tell if what was thought of it was wrong."""

    def refill(self, worker: str, stimulus: str, now_s: float) -> None:
        """Fill a worker if it is down to what it is filled at again."""

    def has_too_many(self, prefix: str) -> bool:
        """Tell whether it is worth it to take tasks of a prefix back from workers."""

    def notes(self) -> EngineNotes:
        """Take the work that is left to Python."""

    def failure(self) -> str | None:
        """Say what failed, upon which nothing is handled any more; None if nothing did."""

    def counts(self) -> dict[str, int]:
        """Count the messages that were handled, by operation, and the batches that were not."""

    def stop(self) -> StoppedStreams:
        """Handle nothing any more, from when this returns."""

@final
class EngineNotes:
    """Work that the engine leaves to Python."""

    @property
    def unwanted_from(self) -> list[str]:
        """Workers that send results that no client keeps."""

    @property
    def give_back(self) -> list[str]:
        """Prefixes of tasks of which workers have too many."""

    @property
    def submitted(self) -> list[SubmittedTask]:
        """Tasks that clients have submitted."""

    @property
    def gone_groups(self) -> list[dict[str, Any]]:
        """Groups in the form of `SchedulerCore.take_gone_groups`, which leaves these out."""

    @property
    def failure(self) -> str | None:
        """Why nothing is handled any more."""

    @property
    def unsaid(self) -> list[tuple[str, str | None, dict[str, Any]]]:
        """Messages in the form of `SchedulerCore.take_messages`."""

@final
class SubmittedTask:
    """A task that a client has submitted, and that the engine has taken."""

    @property
    def client(self) -> str:
        """Name of the client."""

    @property
    def start_s(self) -> float:
        """When it came, in seconds."""

    @property
    def is_new(self) -> bool:
        """Whether it was not known before."""

    @property
    def has_collided(self) -> bool:
        """Whether it is known with other dependencies, which it keeps."""

    @property
    def was_idle(self) -> bool:
        """Whether nothing was to be done before."""

    @property
    def group(self) -> str | None:
        """Name of the group that came to be with it, if one did."""

    @property
    def span(self) -> str | None:
        """Span of that group."""

    @property
    def gone_before(self) -> int:
        """How many of `EngineNotes.gone_groups` had gone when that group came to be."""

@final
class StoppedStreams:
    """The state of streams that the engine handles no more."""

    @property
    def held(self) -> list[tuple[int, list[bytes]]]:
        """Numbers of peers, and frames of messages that wait for others."""

    @property
    def notes(self) -> EngineNotes:
        """Work that is left to Python."""

    @property
    def counts(self) -> dict[str, int]:
        """Counts in the form of `SchedulerStreams.counts`."""

    @property
    def expectations(self) -> list[tuple[str, float, float]]:
        """Prefixes with expected seconds and bytes."""

    @property
    def confirmed(self) -> list[tuple[str, int]]:
        """Groups, and how many of their tasks have finished."""

@final
class StealRequest:
    """A request to move a task from a busy worker to an idle one."""

    @property
    def level(self) -> int:
        """Level of its cost."""

    @property
    def key(self) -> str:
        """Key of the task."""

    @property
    def cost_s(self) -> float:
        """By how much the victim is less busy then, in seconds."""

    @property
    def victim(self) -> str:
        """Address of the worker that has the task."""

    @property
    def victim_s(self) -> float:
        """How long the victim is busy, in seconds."""

    @property
    def thief(self) -> str:
        """Address of the worker that is to get the task."""

    @property
    def thief_s(self) -> float:
        """How long the thief is busy, in seconds."""

@final
class StealOutcome:
    """What a worker's answer to a request to move a task led to."""

    @property
    def outcome(self) -> str:
        """Outcome as Dask logs it, or ``"unknown"``."""

    @property
    def is_thief_gone(self) -> bool:
        """Whether the thief has left the cluster."""

    @property
    def victim(self) -> str:
        """Address of the worker that had the task; empty if nothing is known of the request."""

    @property
    def thief(self) -> str:
        """Address of the worker that was to get the task, likewise."""

@final
class ReplicatedTask:
    """A result that several workers hold."""

    @property
    def key(self) -> str:
        """Key of the task."""

    @property
    def nbytes(self) -> int:
        """Size of the result, in bytes; -1 if that is not known."""

    @property
    def actor(self) -> bool:
        """Whether the result is an actor."""

    @property
    def who_has(self) -> list[str]:
        """Addresses of the workers that hold the result."""

    @property
    def waiters(self) -> list[tuple[str, str | None]]:
        """Keys of tasks that wait for the result, and the worker that has each, if any."""

@final
class TaskCalls:
    """Many calls of one function, as `Codec.encode_calls` wrote them; internal.

    Parameters
    ----------
    data : bytes
        The calls.

    Raises
    ------
    ValueError
        If they are malformed, or two have one key.
    """

    def __new__(cls, data: bytes) -> TaskCalls: ...
    def __len__(self) -> int: ...
    def keys(self) -> list[str]:
        """List the keys."""

    def groups(self) -> list[tuple[str, str]] | None:
        """List the groups, which are the prefixes, and a key of each; None: Dask has to say."""

    def tasks(self) -> list[tuple[str, bytes, bytes | None]]:
        """List key, pickle of the task, and msgpack of the keys that it depends on, if any."""

@final
class TaskGraph:
    """A graph of tasks, as `Codec.encode_graph` wrote it; internal.

    Parameters
    ----------
    data : bytes
        The graph.

    Raises
    ------
    ValueError
        If it is malformed, names a key twice, or one that it has not.
    """

    def __new__(cls, data: bytes) -> TaskGraph: ...
    def __len__(self) -> int: ...
    def keys(self) -> bytes:
        """Give msgpack of the keys: those of the tasks, then those that others have to know."""

    def wanted(self) -> list[int]:
        """Give the numbers of the keys that are wanted."""

    def groups(self) -> list[tuple[str, str, bytes]] | None:
        """List name and prefix of groups, and msgpack of a key; None: Dask has to say."""

    def are_texts(self) -> bool:
        """Tell whether all keys are text."""

    def tasks(self) -> list[tuple[bytes, tuple[int, ...], int, bool, bool]]:
        """List the tasks, in the order of their keys.

        Of each its pickle, the numbers of the keys that it depends on, its place in the order,
        whether it is a call, and whether it produces data.
        """

@final
class WorkerCore:
    """The state of a worker in Rust: events in, instructions and attributes out; internal.

    The caller makes sure that one thread calls it at a time. Each event gives a list of tuples:
    what the worker is to do, by name, the id of the event, and what belongs to it.

    Parameters
    ----------
    address : str
        Of the worker.
    data : mutable mapping
        Its results by key.
    threads : dict
        By key, the threads that ran tasks.
    callables : dict of str to callable
        ``time``, ``monotonic``, ``random``, ``key_split``, ``is_remote``, ``sizeof``, ``error_of``,
        ``forgotten``.
    limits : dict of str to float
        ``threads``, ``transfers``, ``throttle_bytes``, ``incoming_bytes``, ``message_bytes``,
        ``default_bytes``.
    places : tuple of int or None
        Most entries of the log, and of that of stimuli.

    Raises
    ------
    ValueError
        If a callable or a limit is missing.
    RuntimeError
        From any method: while an event is handled, and where the state machine of Dask raises an
        error of its own. Where that asserts something, it is ``AssertionError``.
    """

    def __new__(
        cls,
        *,
        address: str,
        data: Any,
        threads: dict[Any, int],
        callables: dict[str, Callable[..., Any]],
        limits: dict[str, float],
        places: tuple[int | None, int | None],
    ) -> WorkerCore: ...
    def compute(self, message: dict[str, Any]) -> list[tuple[Any, ...]] | None:
        """Take on a task, as ``ComputeTaskEvent`` has it; what is to be run is taken out of it.

        None, and nothing is done, if it asks for more than a thread.
        """

    def live_through(
        self, message: dict[str, Any], done: tuple[Any, ...]
    ) -> tuple[bool | None, list[tuple[Any, ...]]] | None:
        """Take on a task that has ended well, and whose end the scheduler knows.

        False if it was not to be run immediately, so that its end is still to be reported; None if
        it runs, and Python has taken over before its end. Nothing at all as `compute`. ``done`` is
        as in `succeeded`.
        """

    def succeeded(
        self, key: Any, run_id: int, done: tuple[Any, ...]
    ) -> list[tuple[Any, ...]] | None:
        """End a run well: value, bytes, class or None, start and stop in s, id of the event.

        None, and nothing is done but that the value may be stored, if it is Python's to do.
        """

    def failed(
        self,
        event: Any,
        key: Any,
        run_id: int,
        error: tuple[Any, ...],
        times: tuple[float, float] | None,
    ) -> list[tuple[Any, ...]]:
        """End a run with an error: exception, traceback, and their texts."""

    def rescheduled(self, event: Any, key: Any) -> list[tuple[Any, ...]]:
        """End a run that wants to be run elsewhere."""

    def seceded(self, event: Any, key: Any, seconds: Any) -> list[tuple[Any, ...]]:
        """Note that a run has left the thread pool."""

    def free(self, keys: Any, stimulus_id: str) -> list[tuple[Any, ...]]:
        """Release tasks that the scheduler needs no more."""

    def gathered(
        self, event: Any, peer: str, total_bytes: int, data: Any
    ) -> list[tuple[Any, ...]] | None:
        """End a transfer that brought results by key, perhaps not all; None as `succeeded`."""

    def not_gathered(
        self,
        event: Any,
        peer: str,
        total_bytes: int,
        why: str,
        error: tuple[Any, ...] | None = None,
    ) -> list[tuple[Any, ...]]:
        """End a transfer that brought nothing: ``busy``, ``gone``, or with an error."""

    def peer_left(self, event: Any, peer: str) -> list[tuple[Any, ...]]:
        """Forget what a worker has."""

    def retry(self, event: Any, peer: str) -> list[tuple[Any, ...]]:
        """Ask a worker again that was busy."""

    def steal(self, event: Any, key: Any) -> list[tuple[Any, ...]]:
        """Give up a task that has not begun."""

    def cancel(self, event: Any, key: Any) -> list[tuple[Any, ...]]:
        """Give up a task that has not begun, and say nothing."""

    def set_running(self, event: Any, running: bool) -> list[tuple[Any, ...]]:
        """Begin tasks, or begin none."""

    def remove_replicas(self, event: Any, keys: Any) -> list[tuple[Any, ...]]:
        """Release copies of results."""

    def acquire_replicas(
        self, event: Any, nbytes: dict[Any, int], who_has: dict[Any, Any]
    ) -> list[tuple[Any, ...]] | None:
        """Fetch copies of results; None, and nothing is done, if it is Python's to do."""

    def refresh_who_has(self, event: Any, who_has: dict[Any, Any]) -> list[tuple[Any, ...]]:
        """Hear who has results."""

    def scattered(self, event: Any, data: Any) -> list[tuple[Any, ...]] | None:
        """Keep values that a client has sent; None as `succeeded`."""

    def find_missing(self, stimulus_id: str) -> list[tuple[Any, ...]]:
        """Ask who has what is missing."""

    def knows(self, key: Any) -> bool:
        """Tell whether there is a task of a key."""

    def __len__(self) -> int: ...
    def number(self, name: str) -> int:
        """Give a number that Dask's state machine has under a name."""

    def may_run_at_once(self) -> bool:
        """Tell whether a task that came now would not wait behind others."""

    def first_ready(self, most: int) -> list[Any]:
        """Give the keys of the tasks that get a thread next, in order."""

    def latest_needed(self, keys: list[Any]) -> int | None:
        """Choose the result that tasks here need latest.

        Parameters
        ----------
        keys : list
            Of results.

        Returns
        -------
        int or None
            The index of the first one that no task here needs; else of the one whose first task has
            the greatest priority number; None if there are no keys.
        """

    def write_counts(
        self, current: dict[tuple[str, str], int], elapsed: dict[tuple[str, str], float]
    ) -> float | None:
        """Write how many tasks are in each state, and for how many seconds; returns the time.

        Parameters
        ----------
        current : dict of tuple of str and str to int
            Tasks by prefix and state; everything in it is replaced.
        elapsed : dict of tuple of str and str to float
            Seconds by prefix and state, which has those that were counted before Rust had the
            state. Only groups that have changed since the last call are written.
        """

    def view_of(self, key: Any, make: Callable[[Any], Any]) -> Any:
        """Give what was made to show a task, made once by ``make(key)``; None without the task."""

    def set_view(self, key: Any, view: Any) -> None:
        """Say what shows a task."""

    def task_attribute(self, key: Any, name: str) -> Any:
        """Give what a task has under a name.

        Raises
        ------
        KeyError
            If there is no such task.
        AttributeError
            If there is no such name.
        """

    def add_time(self, key: Any, times: dict[str, Any]) -> None:
        """Note what took a task's time, as in ``TaskState.startstops``."""

    def add_line(self, line: tuple[Any, ...]) -> None:
        """Write a line into the log."""

    def take_out(self) -> dict[str, Any]:
        """Give all that there is, for another state machine to go on with, and empty the logs."""

    def put_in(self, state: dict[str, Any]) -> None:
        """Go on with what another state machine had; there is nothing here yet.

        Raises
        ------
        KeyError
            If something is not said, or a task is named that is not said.
        ValueError
            If a task is in a state that there is not here.
        """

@final
class SchedulerCore:
    """The state of a scheduler in Rust: events in, messages and attributes out; internal.

    Times are in seconds of a clock that only goes forward. Each
    ``handle_*`` raises ``KeyError`` for tasks, workers and clients that are not known, and
    ``RuntimeError`` where upstream raises in the middle of an event.

    Parameters
    ----------
    **settings : object
        Fields of ``Config`` in ``crates/dask/src/scheduler/config.rs``.

    Raises
    ------
    ValueError
        If there is no such setting, or it is out of range.
    """

    def __new__(cls, **settings: Any) -> SchedulerCore: ...
    @staticmethod
    def inherit(said: dict[str, Any], streams: list[str], /, **settings: Any) -> SchedulerCore:
        """Make a core with the state of another scheduler.

        Parameters
        ----------
        said : dict
            The state as `dump` says it, but for two lists of dicts: ``tasks``, in which what is
            None or empty is left out, and ``groups``, by serial, those that are gone included.
        streams : list of str
            Clients that have a stream.
        **settings
            As for the class.

        Raises
        ------
        LookupError
            If something is not said, or a worker, client, prefix, group or task is named that is
            not said.
        TypeError, OverflowError
            If a value is not of the type, or in the range, that the core has for it.
        ValueError
            If there is no such setting, or not of this value.
        """

    def take_messages(self) -> list[tuple[str, str | None, dict[str, Any]]]:
        """Take the messages to send: "worker" or "client", name or None for all, and message."""

    def take_transitions(self) -> list[tuple[str, str, str]]:
        """Take the transitions since the last call: key, start, finish."""

    def recent_transitions(self) -> list[tuple[str, str, str, str, float]]:
        """Say the last transitions: key, start, finish, stimulus, time in seconds.

        The oldest first, as many as the setting ``recent_transitions_max``; none by default.
        """

    def dump(self, tasks: bool = True) -> dict[str, Any]:
        """Say all attributes, by upstream's names; with ``tasks`` false, none of single tasks."""

    def keys(self) -> list[str]:
        """Keys of all tasks, in the order in which they came."""

    def task(self, key: str) -> dict[str, Any]:
        """Say all attributes of one task, by upstream's names; payloads are bytes."""

    def has_task(self, key: str) -> bool:
        """Tell whether there is a task of this key."""

    def task_count(self) -> int:
        """Count the tasks."""

    def transition_count(self) -> int:
        """Count the transitions so far."""

    def is_idle(self) -> bool:
        """Tell whether no task is waiting, queued or processing."""

    def is_group_done(self, name: str) -> bool:
        """Tell whether no task of a group is; also if there is no such group."""

    def has_any(self, name: str) -> bool:
        """Tell if there are ``queued``, ``unrunnable``, ``replicated_tasks``, ``erred_tasks``."""

    def count_in(self, name: str, of: str) -> int:
        """Count the tasks of a collection.

        Parameters
        ----------
        name : str
            ``processing``, ``long_running``, ``has_what``, ``actors``, ``wants_what``, ``queued``.
        of : str
            Address of the worker, or name of the client; of ``queued`` nothing.
        """

    def keys_in(self, name: str, of: str, keys_max: int | None = None) -> list[str]:
        """List the keys of its tasks, in its order, or the first of them."""

    def task_value(self, key: str, name: str) -> Any:
        """Say one attribute of a task, as `task` does.

        Raises
        ------
        KeyError
            If there is no such task.
        """

    def is_in(self, name: str, of: str, key: str) -> bool:
        """Tell whether a task is one of them."""

    def state_of(self, key: str) -> str | None:
        """Tell the state of a task; None if there is none."""

    def worker_load(self, address: str) -> tuple[float, int, list[tuple[str, int]]]:
        """Tell a worker's occupancy in seconds, the bytes it is to fetch, its tasks by prefix."""

    def cluster_load(self) -> dict[str, Any]:
        """Say who is idle and saturated, and what is counted of all, by upstream's names."""

    def group_names(self) -> list[tuple[str, str]]:
        """Name the groups, each with its prefix, in the order in which they came."""

    def prefix_names(self) -> list[str]:
        """Name the prefixes, in the order in which they were first met."""

    def group(self, name: str) -> dict[str, Any] | None:
        """Say all attributes of a group, as `dump` does; None if it has no tasks."""

    def prefix(self, name: str) -> dict[str, Any] | None:
        """Say all attributes of a prefix, as `dump` does; None if it was never met."""

    def record_runs(self, record: RunRecord) -> None:
        """Append each run that ends well to a record from now on."""

    def watch(self, name: str) -> None:
        """Begin to note ``runs`` that end well, all ``ends``, or ``nothing``."""

    def take_noted(self) -> list[tuple[str, str, str, dict[str, Any]]]:
        """Take those since the last call: key, start, finish, and what Dask tells plugins besides.

        Of what failed or is forgotten it is the stimulus alone.
        """

    def worker_bytes(self, address: str) -> int:
        """Add up the bytes of the results that a worker holds."""

    def holders_of(self, key: str) -> list[str]:
        """List the addresses of the workers that hold a result."""

    def running_task(
        self, key: str, address: str, run_id: int
    ) -> tuple[str, str, list[str]] | None:
        """Look at a task that a worker has been sent; None if it has not, or not any more.

        Returns
        -------
        tuple of str, str and list of str, or None
            Its group, its prefix, and the clients that want its result; none of the latter if
            another run counts.
        """

    def replicated_tasks(self) -> list[ReplicatedTask]:
        """List the results that several workers hold."""

    def file_worker(self, address: str, busy_s: float) -> None:
        """File a worker anew as idle or saturated, as a caller has asked.

        Parameters
        ----------
        address : str
            Of the worker.
        busy_s : float
            How long it is busy, in seconds; negative: as it is.

        Raises
        ------
        KeyError
            If the core does not know it.
        """

    def may_balance(self) -> bool:
        """Tell whether one worker is idle while another has too much."""

    def note_forgotten(self, note: bool) -> None:
        """Begin to note which tasks are forgotten, or stop."""

    def take_forgotten(self) -> list[str]:
        """Take the keys of tasks forgotten since the last call."""

    def take_gone_groups(self) -> list[dict[str, Any]]:
        """Take the groups whose tasks were all forgotten since the last call, as they were last."""

    def log_transitions(self, log: bool) -> None:
        """Begin to log transitions, as a new core does, or stop."""

    def handle_graph(self, stimulus: str, now_s: float, /, **parts: Any) -> tuple[int, int] | None:
        """Take a graph; return how many tasks are new and collide; None: it needs what is lost."""

    def knows_needs(self, calls: TaskCalls) -> bool:
        """Tell whether all that calls depend on are tasks."""

    def handle_calls(
        self,
        stimulus: str,
        now_s: float,
        calls: TaskCalls,
        /,
        *,
        spans: list[tuple[str, str | None]],
        client: str,
        submitting_task: str | None,
        fifo_timeout_s: float,
    ) -> tuple[int, int]:
        """Take calls as tasks, given the spans of groups; return how many are new and collide."""

    def knows_needs_of_graph(self, graph: TaskGraph) -> bool:
        """Tell whether all that a graph names are tasks of it, or known."""

    def handle_task_graph(
        self,
        stimulus: str,
        now_s: float,
        graph: TaskGraph,
        /,
        *,
        spans: list[tuple[str, str | None]],
        client: str,
        submitting_task: str | None,
        fifo_timeout_s: float,
    ) -> tuple[int, int]:
        """Take a graph, given the spans of groups; return how many tasks are new and collide."""

    def handle_task_finished(
        self,
        stimulus: str,
        now_s: float,
        /,
        *,
        key: str,
        worker: str,
        run_id: int,
        nbytes: int,
        type: bytes,
        typename: str,
        startstops: list[tuple[str, float, float]],
        thread: int | None = None,
    ) -> None:
        """Take a task that ended well.

        Parameters
        ----------
        run_id : int
            The run; a number that no run has, such as -1, is that of none, here and elsewhere.
        nbytes : int
            Size of the result, in bytes; at most 2⁴⁸.
        """

    def handle_task_erred(
        self,
        stimulus: str,
        now_s: float,
        /,
        *,
        key: str,
        worker: str,
        run_id: int,
        exception: bytes,
        traceback: bytes | None,
        exception_text: str,
        traceback_text: str,
    ) -> None:
        """Take a task that failed."""

    def handle_reschedule(self, stimulus: str, now_s: float, key: str, worker: str | None) -> None:
        """Take a task that its worker gives back."""

    def handle_long_running(
        self,
        stimulus: str,
        now_s: float,
        key: str,
        worker: str,
        run_id: int,
        compute_s: float | None,
    ) -> None:
        """Take a task that has left its thread."""

    def handle_worker_added(
        self,
        stimulus: str,
        now_s: float,
        /,
        *,
        address: str,
        name: str,
        host: str,
        nthreads: int,
        memory_limit: int,
        status: str,
        resources: dict[str, float],
        bandwidth_bytes_per_s: float,
    ) -> None:
        """Take a worker that joins."""

    def handle_worker_removed(
        self, stimulus: str, now_s: float, address: str, expected: bool, close: bool
    ) -> None:
        """Take a worker that has gone, or is sent away."""

    def handle_worker_lost(self, stimulus: str, now_s: float, address: str, expected: bool) -> None:
        """Take a worker that has gone, of which the caller tells it and the others."""

    def handle_worker_status(self, stimulus: str, now_s: float, address: str, status: str) -> None:
        """Take a worker that pauses or goes on."""

    def place_by_links(
        self, placement: Placement, result_bytes: list[tuple[str, float]], memory_target: float, /
    ) -> None:
        """Place tasks by what links cost from now on, as `backhaul.dask.placement` does.

        Parameters
        ----------
        placement : Placement
            Record of links and of workers, in which a worker is entered before the core gets it.
        result_bytes : list of tuple of str and float
            By prefix the size to expect of a result, in bytes.
        memory_target : float
            How much of its memory limit a worker holds before it spills.

        Raises
        ------
        ValueError
            If that is no number above 0.
        """

    def placing(self) -> dict[str, Any] | None:
        """Say what is known besides for placing tasks by links; None unless that has begun.

        Returns
        -------
        dict
            ``result_bytes`` by prefix; ``hints``, by key of a root that no worker has been given,
            the address of the worker that is to run it; ``own``, by address the keys of its roots
            in order, each with whether that task is there still; ``promised``, number and key of
            each result that is promised, and to which address.
        """

    def begin_stealing(self, fast: list[str], requests: int) -> None:
        """Begin to file tasks that may be moved, but those of some prefixes.

        Parameters
        ----------
        fast : list of str
            The prefixes.
        requests : int
            How many requests there have been, which are numbered.
        """

    def inherit_stealing(self, said: dict[str, Any]) -> None:
        """Take over what another scheduler knew of stealing, in the form of `stealing`.

        To be called after `begin_stealing`; without that nothing is taken over.

        Raises
        ------
        LookupError
            If something is not said, or a worker, prefix or task is named that is not known. The
            core must not be used then.
        """

    def balance(self, now_s: float) -> list[StealRequest]:
        """Ask busy workers for tasks that idle ones take."""

    def confirm_steal(
        self, stimulus: str, now_s: float, key: str, state: str | None
    ) -> StealOutcome:
        """Take the answer of a worker that was asked for a task."""

    def stealing(self) -> dict[str, Any] | None:
        """Say what is known of tasks that may be moved; None unless that has begun.

        Returns
        -------
        dict
            ``stealable``, by worker and level the keys; ``in_flight``, key, victim, thief, seconds
            of both and stimulus; ``occupancy`` and ``tasks``, by worker what it gains and loses by
            those; ``unknown``, by prefix the keys of tasks of unknown duration; ``requests``.
        """

    def handle_heartbeat(
        self, address: str, bandwidth_bytes_per_s: float, executing: list[tuple[str, float]]
    ) -> None:
        """Take what a worker measured."""

    def handle_resources(
        self, stimulus: str, now_s: float, address: str, resources: dict[str, float]
    ) -> None:
        """Take a worker whose resources change."""

    def declare_worker(self, address: str, declared: dict[str, Any]) -> None:
        """Say what a worker has by ids, as `ResourcePlaces.set_worker` does, before it joins.

        Raises
        ------
        TypeError
            If something is no declaration.
        """

    def take_unmet(self) -> list[UnmetRequest]:
        """Take the requests that no worker can ever meet, each once."""

    def room(self) -> RoomState | None:
        """Return which tasks hold what they ask for, and which wait; None if no task ever asked."""

    def inherit_room(self, state: RoomState) -> None:
        """Take over the requests of another scheduler.

        To be called after `declare_worker` for workers that have units by ids.

        Raises
        ------
        LookupError
            If a worker or task is named that is not known. The core must not be used then.
        """

    def handle_no_workers_check(self, stimulus: str, now_s: float) -> tuple[list[str], list[str]]:
        """Fail what no worker could run for too long.

        Returns
        -------
        list of str
            Tasks whose restrictions no worker met.
        list of str
            Tasks that failed as no worker ran.
        """

    def handle_client_added(self, client: str) -> None:
        """Take a client that connects."""

    def handle_client_removed(self, stimulus: str, now_s: float, client: str) -> None:
        """Take a client that goes."""

    def handle_client_desires_keys(
        self, stimulus: str, now_s: float, desired: list[str], client: str
    ) -> None:
        """Take a client that wants tasks."""

    def handle_client_releases_keys(
        self, stimulus: str, now_s: float, released: list[str], client: str
    ) -> None:
        """Take a client that no longer wants tasks."""

    def handle_cancel(
        self,
        stimulus: str,
        now_s: float,
        cancelled: list[str],
        client: str,
        force: bool,
        reason: str | None,
        msg: str | None,
    ) -> tuple[list[int], list[str]]:
        """Take a client that cancels tasks; return how many go with each, and all that are."""

    def handle_retry(self, stimulus: str, now_s: float, retried: list[str]) -> list[str]:
        """Take a client that has failed tasks run again; return which are."""

    def handle_report_key(self, reported: str, client: str | None) -> None:
        """Take a client that asks how a task is."""

    def handle_add_keys(self, stimulus: str, now_s: float, address: str, added: list[str]) -> None:
        """Take a worker that has results."""

    def handle_release_worker_data(
        self, stimulus: str, now_s: float, key: str, address: str
    ) -> None:
        """Take a worker that has lost a result."""

    def handle_request_refresh_who_has(
        self, stimulus: str, now_s: float, asked: list[str], address: str
    ) -> None:
        """Take a worker that asks where results are."""

    def handle_acquire_replicas(
        self, stimulus: str, now_s: float, address: str, acquired: list[str]
    ) -> None:
        """Ask a worker to fetch results."""

    def handle_remove_replicas(
        self, stimulus: str, now_s: float, address: str, removed: list[str]
    ) -> None:
        """Ask a worker to drop results of which there are others."""

    def handle_update_data(
        self,
        stimulus: str,
        now_s: float,
        placed: list[tuple[str, str, str, int | None, list[str]]],
        client: str | None,
    ) -> None:
        """Take results that a client put on workers: key, group, prefix, bytes, addresses."""

    def handle_restrictions(self, key: str, addresses: list[str] | None) -> None:
        """Restrict a task to workers, or lift that."""

@final
class Machine:
    """A machine; `backhaul.topology.Machine` is its record.

    Parameters
    ----------
    record : backhaul.topology.Machine
        A record with the same values.

    Raises
    ------
    MachineError
        If a value is not of its kind, or the parts of the machine do not fit together.
    """

    def __new__(cls, record: topology.Machine) -> Machine: ...
    @staticmethod
    def discover(root: str | PathLike[str] | None = None) -> Machine:
        """Find out what this machine is made of; see `backhaul.topology.discover`.

        Raises
        ------
        MachineError
            If the folder is not that of a Linux system.
        """

    @staticmethod
    def parse(text: str, format: str | None = None) -> Machine:
        """Read a machine from a text; see `backhaul.topology.parse`.

        Raises
        ------
        MachineError
            If the text describes no machine.
        ConfigError
            If the format is unknown.
        """

    def record(self) -> topology.Machine:
        """Make a record with the same values."""

    def plan(
        self,
        *,
        policy: str,
        n: int | None = None,
        threads_per_worker: int | None = None,
        memory_limit: int | None = None,
        memory_fraction: float | None = None,
        gpus: Iterable[str] | None = None,
        interface: str | None = None,
        nics: Iterable[str] | None = None,
        cpus: Iterable[int] | str | None = None,
        exclusive_cpus: bool | None = None,
    ) -> Plan:
        """Plan what to run on it; see `backhaul.topology.Machine.plan`.

        Raises
        ------
        ConfigError
            If an option is not of its kind.
        PlanError
            If the plan is impossible.
        """

    def distance(self, one: str, other: str) -> topology.Distance:
        """Tell what lies between two devices; see `backhaul.topology.Machine.distance`.

        Raises
        ------
        ConfigError
            If the machine lacks a device.
        """

    def route(self, one: str, other: str) -> topology.Route:
        """Find the fastest way between two devices; see `backhaul.topology.route`.

        Raises
        ------
        ConfigError
            If the machine lacks a device.
        """

    def tree(self) -> str:
        """Draw it as a tree of text; see `backhaul.topology.Machine.tree`."""

    def matrix(self) -> str:
        """Write the paths between devices; see `backhaul.topology.Machine.matrix`."""

    def svg(self, plan: Plan | None = None) -> str:
        """Draw it and a plan for it; see `backhaul.topology.Machine.svg`."""

@final
class Placement:
    """Where the bytes of one scheduler are, and what is under way.

    Parameters
    ----------
    beta, beta_private : float
        How much more a byte counts than the time that it takes alone, on an edge that several pairs
        of workers share, and on one of a pair alone; from 1.

    Raises
    ------
    ValueError
        If one of them is no number from 1.
    """

    def __new__(cls, *, beta: float, beta_private: float) -> Placement: ...
    def add_worker(self, worker: object, host: int, island: int, /) -> int:
        """Add a worker, which has an ``address``, on a host; return its own number.

        Numbers of hosts and islands leave out none.
        Workers of one island are candidates where one of them holds an input.
        """

    def remove_worker(self, worker: object, /) -> None:
        """Forget a worker, and what it was promised."""

    def replace_worker(self, number: int, worker: object, /) -> None:
        """Replace the object of a worker, by its number; `ValueError` if there is none."""

    def set_routes(
        self,
        capacities_bytes_per_s: Sequence[float],
        routes: Sequence[tuple[int, int, Sequence[int], float]],
        /,
    ) -> None:
        """Take all routes of the workers that there are: sender, receiver, edges, latency.

        `ValueError` for a pair without one, or a figure that cannot be.
        """

    def set_hosts(
        self,
        nics: Sequence[tuple[int, float]],
        flows: Sequence[tuple[int, int, float, float]],
        /,
    ) -> None:
        """Take what is known of NICs of hosts, and of one flow between two hosts or within one.

        NICs are a host and its bytes a second in both directions; flows are the hosts of sender
        and receiver, bytes a second and latency in seconds. `ValueError` for a host that is not
        there or a figure that cannot be; nothing is taken then.
        """

    def set_request_seconds(self, request_s: float, /) -> None:
        """Take what a request for data takes besides the latency of its link, in seconds.

        1.5 ms until it is set. `ValueError` for one that is no number from 0.
        """

    def promise(self, task: object, worker: object, /) -> None:
        """Note that a result will go to a worker, from where it comes soonest."""

    def settle(self, task: object, worker: object, /) -> None:
        """Note that a result has arrived at a worker, or is not needed there any more."""

    def transfer(self, task: object, worker: object, /) -> tuple[float, float] | None:
        """Say what the inputs of a task take to come to a worker, in seconds.

        Behind what is under way, and that with the weight of bytes. None for an unknown worker.
        """

    def choose(
        self,
        task: object,
        scheduler: object,
        unknown_s: float,
        running: Container[Any],
        result_bytes: float,
        /,
    ) -> Any:
        """Choose the worker where a task with inputs is expected to begin soonest, or None.

        ``unknown_s`` is what tasks are expected to take of which nothing is known, ``running`` the
        workers that may be chosen, and ``result_bytes`` the size to expect of the result, 0 if none
        is known: the way to the results with which it is combined counts, too.
        """

    def promises(self) -> int:
        """Count the results that are promised."""

    def promised(self) -> list[tuple[int, int]]:
        """List what is promised: a number for each result, and that of its receiver.

        For a result that `promise` has named it is the address of the object.
        """

    def rename(self, tasks: Sequence[tuple[int, object]], /) -> None:
        """Assign these objects to a core's promised results, by its number of each task.

        A promised result of any other task is taken for settled.
        """

@final
class Plan:
    """A launch plan; `backhaul.topology.Plan` is its record.

    Parameters
    ----------
    record : backhaul.topology.Plan
        A record with the same values.

    Raises
    ------
    ConfigError
        If a value is not of its kind.
    """

    def __new__(cls, record: topology.Plan) -> Plan: ...
    @staticmethod
    def parse(text: str) -> Plan:
        """Read a plan from JSON; see `backhaul.topology.Plan.from_json`.

        Raises
        ------
        ConfigError
            If the text is no plan.
        """

    def record(self) -> topology.Plan:
        """Make a record with the same values."""

    def table(self) -> str:
        """Write it as a table; see `backhaul.topology.Plan.table`."""

def plan_roots(
    placement: Placement,
    places: Sequence[int],
    needs: Sequence[int],
    kinds: Sequence[int],
    table: Sequence[tuple[float, float]],
    targets: Sequence[tuple[int, float, float]],
    /,
) -> list[int] | None:
    """Plan which worker runs which root of a graph: its number for each task, or -1.

    None if nothing is gained over roots that go to the first free worker.

    Tasks are in the order in which they are to run. ``places`` has -1 for a root, -2 for a task
    that comes later, or the number of the worker that has its result; ``needs`` for each task how
    many others it needs, and their numbers; ``kinds`` the kind of each task, and ``table`` for each
    kind the seconds of a task and the bytes of its result; ``targets`` the workers, their threads
    and the memory that they have left, in bytes, infinite if it is unknown.

    `ValueError` if the lists are no graph, a worker is unknown, or a figure cannot be.
    """
