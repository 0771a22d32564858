"""Result cache of a client: small results that arrived with the message that their task finished.

A scheduler that supports inline results sends the result of a small task right before Dask's own
``key-in-memory`` (`backhaul.dask.scheduler.inline_results`). The cache holds the pickled result
while the client has a finished future of the task, and evicts the oldest results above
`small-results.kept` bytes. Where Dask's client would request keys from the scheduler, the request
leaves out the keys in the cache; if the cache has all keys, the client sends no request. Dask's
code does the rest of ``gather``: it waits, raises, skips and puts results in their places.

Each lookup unpickles a new value, as each request does. A function that `Client.run` calls may
replace a value in the data of a worker, so afterwards the client fetches the results of all futures
that existed then.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from backhaul._locks import RLock
from backhaul.dask.client.reader_thread import share_reports
from backhaul.dask.comm.capabilities import offers
from backhaul.dask.comm.comm import BackhaulComm
from backhaul.dask.comm.threaded_stream import SharedBatchedSend
from backhaul.dask.compat.instance_patches import CLIENT_RESULTS
from backhaul.dask.compat.names import Client
from backhaul.dask.compat.operations import RESULT, SMALL_RESULTS
from backhaul.dask.config.settings import SmallResultLimits, small_result_limits

__all__ = [
    "HeldResults",
    "forgetting_run",
    "held_by",
    "holding_handle_report",
    "releasing_release_key",
    "sparing_gather_remote",
]

logger = logging.getLogger(__name__)

_ATTRIBUTE = "_backhaul_held_results"

#: Classes by their pickles; only static classes of native modules, whose pickle never changes
_classes: dict[bytes, type] = {}
_CLASSES_MAX = 1000
#: ``Py_TPFLAGS_HEAPTYPE``: the class was made while the program ran.
_MADE_AT_RUN_TIME = 1 << 9

#: The result caches of all clients of this process
_all_held: WeakSet[HeldResults] = WeakSet()

#: Overhead of one cached result beside its pickle, in bytes
_ENTRY_BYTES = 200


class HeldResults:
    """The small results that one client holds.

    The event loop of the client calls the methods that change the cache. A thread that handles
    messages in its place (`backhaul.dask.client.reader_thread`) may also call `handle_result` and
    `handle_key_in_memory`. Any thread may call `value_of`.
    """

    def __init__(self, client: Client, limits: SmallResultLimits) -> None:
        self._client = client
        self._limits = limits
        #: Pickles by key, oldest first
        self._held: dict[Any, bytes] = {}
        self._held_bytes = 0
        #: The key and pickle of the last result, until its ``key-in-memory`` arrives
        self._arrived: tuple[Any, bytes] | None = None
        #: Keys whose next result is not cached, because `Client.run` may have replaced the value
        self._fetched: set[Any] = set()
        self._upstream: dict[str, Callable[..., Any]] = {}
        #: Protects `_held`, `_held_bytes` and `_fetched`
        self._lock = RLock()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Bytes of all cached results."""
        return self._held_bytes

    def attach(self) -> bool:
        """Install the handlers of the stream; return False if Dask's handlers are replaced."""
        ours: dict[str, Callable[..., Any]] = {
            RESULT: self.handle_result,
            "key-in-memory": self.handle_key_in_memory,
            "restart": self.handle_restart,
            "cancelled-keys": self.handle_cancelled_keys,
        }
        for operation in ("lost-data", "task-retried", "task-erred"):
            ours[operation] = self._ending(operation)
        slots = {f"_stream_handlers[{operation}]": handler for operation, handler in ours.items()}
        replaced = CLIENT_RESULTS.install(self._client, slots)
        for slot, replacement in replaced.items():
            self._upstream[slot.partition("[")[2].rstrip("]")] = replacement.original
        return bool(replaced)

    def value_of(self, key: Any) -> tuple[Any, ...]:
        """Return the result of a future, by its key, from the cache, in a tuple.

        The tuple is empty if the cache does not have it, or the future is not finished.
        """
        pickled = self._held.get(key)
        state = self._client.futures.get(key)
        if pickled is None or state is None or state.status != "finished":
            return ()
        try:
            return (pickle.loads(pickled),)
        except Exception:
            # A library is missing, or is another release: Dask's path raises the same error.
            logger.debug("Cannot load the result of %r that came with the news", key, exc_info=True)
            self.drop(key)
            return ()

    def drop(self, key: Any) -> None:
        """Evict a result, if the cache has it."""
        with self._lock:
            self._fetched.discard(key)
            pickled = self._held.pop(key, None)
            if pickled is not None:
                self._held_bytes -= len(pickled) + _ENTRY_BYTES

    def clear(self) -> None:
        """Evict all results."""
        with self._lock:
            self._held.clear()
            self._held_bytes = 0
            self._fetched.clear()
        self._arrived = None

    def expire(self) -> None:
        """Evict all results, and skip the next result of each pending future.

        That result may be on its way already.
        """
        self.clear()
        futures = list(self._client.futures.items())
        with self._lock:
            self._fetched.update(key for key, state in futures if state.status == "pending")

    def handle_result(self, key: Any = None, value: Any = None, **_: Any) -> None:
        """Keep a result until ``key-in-memory`` of its task arrives."""
        if type(value) is bytes and key in self._client.futures:
            self._arrived = key, value

    def handle_key_in_memory(self, key: Any = None, **message: Any) -> None:
        """Cache the result that arrived before this message, if any; then call Dask's handler."""
        arrived, self._arrived = self._arrived, None
        if key in self._fetched:
            self.drop(key)
            arrived = None
        if key in self._held:
            # The cached result is of another run of the task.
            self.drop(key)
        if arrived is not None and arrived[0] == key and key in self._client.futures:
            self._hold(*arrived)
            if key not in self._client.futures:
                # The event loop has released the future meanwhile.
                self.drop(key)
        pickled: Any = message.get("type")
        state: Any = self._client.futures.get(key)
        is_new = type(pickled) is bytes and state is not None and state.type is None
        if is_new and (known := _classes.get(pickled)) is not None:
            # Dask's handler does not load a type that is set.
            state.type = known
        self._upstream["key-in-memory"](key=key, **message)
        if is_new and len(_classes) < _CLASSES_MAX:
            kind = state.type
            if type(kind) is type and not kind.__flags__ & _MADE_AT_RUN_TIME:
                _classes[pickled] = kind

    def handle_cancelled_keys(self, keys: Any, **message: Any) -> None:
        """Evict the results of cancelled futures."""
        for key in keys:
            self.drop(key)
        self._upstream["cancelled-keys"](keys=keys, **message)

    def handle_restart(self, **message: Any) -> None:
        """Evict all results, because all futures are cancelled."""
        self.clear()
        self._upstream["restart"](**message)

    def _ending(self, operation: str) -> Callable[..., None]:
        """Make a handler that evicts a result, then calls Dask's handler."""

        def handle(key: Any = None, **message: Any) -> None:
            self.drop(key)
            self._upstream[operation](key=key, **message)

        return handle

    def _hold(self, key: Any, pickled: bytes) -> None:
        nbytes = len(pickled) + _ENTRY_BYTES
        with self._lock:
            self._held[key] = pickled
            self._held_bytes += nbytes
            while self._held_bytes > self._limits.kept_bytes_max:
                oldest = next(iter(self._held))
                self._held_bytes -= len(self._held.pop(oldest)) + _ENTRY_BYTES


def held_by(client: Client) -> HeldResults | None:
    """Return the result cache of a client; None if the client has none."""
    held: HeldResults | None = vars(client).get(_ATTRIBUTE)
    return held


def _begin(client: Client) -> None:
    """Give a client a result cache and notify its scheduler, if both can; idempotent."""
    if held_by(client) is not None:
        return
    stream = client.scheduler_comm
    comm = None if stream is None else stream.comm
    if not isinstance(comm, BackhaulComm) or not offers(comm, SMALL_RESULTS):
        return
    # Inline results are always pickled; a client with other serializers fetches its results.
    if client._serializers is not None or client._deserializers is not None:
        return
    limits = small_result_limits()
    if limits is None:
        return
    held = HeldResults(client, limits)
    if held.attach():
        _all_held.add(held)
        attributes = vars(client)
        attributes[_ATTRIBUTE] = held
        client._send_to_scheduler({"op": SMALL_RESULTS})
        if type(stream) is SharedBatchedSend and not client._asynchronous:
            share_reports(
                client,
                comm,
                {RESULT: held.handle_result, "key-in-memory": held.handle_key_in_memory},
            )


def holding_handle_report(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `Client._handle_report` that creates the result cache before it reads a message.

    Dask's method reconnects inside its loop, so a client that has reconnected does not register its
    cache again: from then on the client fetches results.
    """

    async def _handle_report(self: Client) -> None:
        _begin(self)
        await original(self)

    return _handle_report


def releasing_release_key(original: Callable[..., Any]) -> Callable[..., None]:
    """Make a `Client._release_key` that also evicts the result."""

    def _release_key(self: Client, key: Any) -> None:
        held = vars(self).get(_ATTRIBUTE)
        if held is not None:
            held.drop(key)
        original(self, key)

    return _release_key


def forgetting_run(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `Client._run` that expires all cached results: the function may replace them."""

    async def _run(
        self: Client,
        function: Any,
        *args: Any,
        nanny: bool = False,
        workers: Any = None,
        wait: bool = True,
        on_error: Any = "raise",
        **kwargs: Any,
    ) -> Any:
        options = {"nanny": nanny, "workers": workers, "wait": wait, "on_error": on_error}
        try:
            return await original(self, function, *args, **options, **kwargs)
        finally:
            # Other clients of this process may have the same futures.
            for held in list(_all_held):
                held.expire()

    return _run


def sparing_gather_remote(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `Client._gather_remote` that does not request cached results."""

    async def _gather_remote(self: Client, direct: bool, local_worker: bool) -> dict[str, Any]:
        held = vars(self).get(_ATTRIBUTE)
        if not held:
            return await original(self, direct, local_worker)  # type: ignore[no-any-return]
        keys: Any = self._gather_keys
        found = {key: value[0] for key in keys if (value := held.value_of(key))}
        self._gather_keys = keys - found.keys()
        if not self._gather_keys:
            # Dask's method resets these before its request, so that a later call makes a new one.
            self._gather_keys = None
            self._gather_future = None
            return {"status": "OK", "data": found}
        response: dict[str, Any] = await original(self, direct, local_worker)
        if response["status"] == "OK":
            return {**response, "data": {**response["data"], **found}}
        return response

    return _gather_remote
