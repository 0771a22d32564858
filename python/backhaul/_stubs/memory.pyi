"""Memory: arenas, the memory of NumPy arrays and of devices, NUMA policy, and its watch."""

from typing import Any, final

from typing_extensions import Buffer

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

def borrowed_bytes() -> int:
    """Bytes of peers' arenas that are mapped in this process."""

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
