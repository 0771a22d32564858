"""Small results that a client holds, as they came with the news that they are there.

A scheduler that understands sends the result of a small task right before Dask's own
``key-in-memory`` (`backhaul.dask.scheduler.inline_results`). It is held here, pickled, for as long
as the client has a future of the task that is finished, and no more than `small-results.kept` of
all of them. Where Dask's client would ask the scheduler for keys, those that are held are left out
of the request; if all are, none is made. Everything else of ``gather`` is Dask's: what waits,
raises, skips and puts results in their places.

Each look gives a value of its own, as each request does. A function that `Client.run` calls may
replace a value in the data of a worker, so the results of all futures of that time are fetched.
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

#: By their pickles, classes for which these are always the same: those compiled into a module
_classes: dict[bytes, type] = {}
_CLASSES_MAX = 1000
#: ``Py_TPFLAGS_HEAPTYPE``: the class was made while the program ran.
_MADE_AT_RUN_TIME = 1 << 9

#: Those of all clients of this process
_all_held: WeakSet[HeldResults] = WeakSet()

#: What a result takes beside its bytes, in bytes
_ENTRY_BYTES = 200


class HeldResults:
    """The small results that one client holds.

    Parameters
    ----------
    client : distributed.Client
        The client.
    limits : SmallResultLimits
        How much it holds.

    Notes
    -----
    What changes runs on the event loop of the client, or, of `handle_result` and
    `handle_key_in_memory`, on a thread that handles messages in its place
    (`backhaul.dask.client.reader_thread`); `value_of` may be asked by any thread.
    """

    def __init__(self, client: Client, limits: SmallResultLimits) -> None:
        self._client = client
        self._limits = limits
        #: Pickles by key, oldest first
        self._held: dict[Any, bytes] = {}
        self._held_bytes = 0
        #: The result that came last and its key, until its ``key-in-memory`` follows
        self._arrived: tuple[Any, bytes] | None = None
        #: Keys of which the next result is not held, as `Client.run` may have replaced the value
        self._fetched: set[Any] = set()
        self._upstream: dict[str, Callable[..., Any]] = {}
        #: Of the dictionary and the count together
        self._lock = RLock()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is held."""
        return self._held_bytes

    def attach(self) -> bool:
        """Hear of results and of what ends them; False if the client is not quite Dask's."""
        handlers = self._client._stream_handlers
        if not all(patch.fits(handlers) for patch in CLIENT_RESULTS.values()):
            return False
        ours: dict[str, Callable[..., Any]] = {
            RESULT: self.handle_result,
            "key-in-memory": self.handle_key_in_memory,
            "restart": self.handle_restart,
            "cancelled-keys": self.handle_cancelled_keys,
        }
        for operation, patch in CLIENT_RESULTS.items():
            ours.setdefault(operation, self._ending(operation))
            replacement = patch.install(handlers, ours[operation])
            assert replacement is not None
            self._upstream[operation] = replacement.original
        return True

    def value_of(self, key: Any) -> tuple[Any, ...]:
        """Look a result up.

        Parameters
        ----------
        key : key
            Of a future.

        Returns
        -------
        tuple
            The result alone; empty if it is not held, or the future not finished.
        """
        pickled = self._held.get(key)
        state = self._client.futures.get(key)
        if pickled is None or state is None or state.status != "finished":
            return ()
        try:
            return (pickle.loads(pickled),)
        except Exception:
            # A library is not here, or is another release: Dask's way meets that too, and says so.
            logger.debug("Cannot load the result of %r that came with the news", key, exc_info=True)
            self.drop(key)
            return ()

    def drop(self, key: Any) -> None:
        """Let go of a result, if it is held."""
        with self._lock:
            self._fetched.discard(key)
            pickled = self._held.pop(key, None)
            if pickled is not None:
                self._held_bytes -= len(pickled) + _ENTRY_BYTES

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._held.clear()
            self._held_bytes = 0
            self._fetched.clear()
        self._arrived = None

    def expire(self) -> None:
        """Drop all results, and the next result of each pending future, which may be on its way."""
        self.clear()
        futures = list(self._client.futures.items())
        with self._lock:
            self._fetched.update(key for key, state in futures if state.status == "pending")

    def handle_result(self, key: Any = None, value: Any = None, **_: Any) -> None:
        """Take a result; it counts once the scheduler says that the task is in memory."""
        if type(value) is bytes and key in self._client.futures:
            self._arrived = key, value

    def handle_key_in_memory(self, key: Any = None, **message: Any) -> None:
        """Hold the result that came with the news, if one did, and let Dask hear of it."""
        arrived, self._arrived = self._arrived, None
        if key in self._fetched:
            self.drop(key)
            arrived = None
        if key in self._held:
            # Of another run of the task.
            self.drop(key)
        if arrived is not None and arrived[0] == key and key in self._client.futures:
            self._hold(*arrived)
            if key not in self._client.futures:
                # Dropped meanwhile, by the event loop.
                self.drop(key)
        pickled: Any = message.get("type")
        state: Any = self._client.futures.get(key)
        is_new = type(pickled) is bytes and state is not None and state.type is None
        if is_new and (known := _classes.get(pickled)) is not None:
            # Dask's does not load it again.
            state.type = known
        self._upstream["key-in-memory"](key=key, **message)
        if is_new and len(_classes) < _CLASSES_MAX:
            kind = state.type
            if type(kind) is type and not kind.__flags__ & _MADE_AT_RUN_TIME:
                _classes[pickled] = kind

    def handle_cancelled_keys(self, keys: Any, **message: Any) -> None:
        """Let go of results of futures that are cancelled."""
        for key in keys:
            self.drop(key)
        self._upstream["cancelled-keys"](keys=keys, **message)

    def handle_restart(self, **message: Any) -> None:
        """Let go of everything: all futures are cancelled."""
        self.clear()
        self._upstream["restart"](**message)

    def _ending(self, operation: str) -> Callable[..., None]:
        """Make a handler that lets go of a result before Dask's hears that it is none any more."""

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
    """Get what a client holds; None if it does not hold results."""
    held: HeldResults | None = vars(client).get(_ATTRIBUTE)
    return held


def _begin(client: Client) -> None:
    """Have a client hold results and tell its scheduler, if both can; again costs nothing."""
    if held_by(client) is not None:
        return
    stream = client.scheduler_comm
    comm = None if stream is None else stream.comm
    if not isinstance(comm, BackhaulComm) or not offers(comm, SMALL_RESULTS):
        return
    # What a client is told to serialize by, results are to come by, too.
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
    """Make a `Client._handle_report` that has the client hold results before it reads the first.

    A client that had to connect again reads on without: its results are fetched from then on.
    """

    async def _handle_report(self: Client) -> None:
        _begin(self)
        await original(self)

    return _handle_report


def releasing_release_key(original: Callable[..., Any]) -> Callable[..., None]:
    """Make a `Client._release_key` that lets go of the result, too."""

    def _release_key(self: Client, key: Any) -> None:
        held = vars(self).get(_ATTRIBUTE)
        if held is not None:
            held.drop(key)
        original(self, key)

    return _release_key


def forgetting_run(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `Client._run` after which results are fetched: the function may have replaced them."""

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
    """Make a `Client._gather_remote` that does not ask for results that are held."""

    async def _gather_remote(self: Client, direct: bool, local_worker: bool) -> dict[str, Any]:
        held = vars(self).get(_ATTRIBUTE)
        if not held:
            return await original(self, direct, local_worker)  # type: ignore[no-any-return]
        keys: Any = self._gather_keys
        found = {key: value[0] for key in keys if (value := held.value_of(key))}
        self._gather_keys = keys - found.keys()
        if not self._gather_keys:
            # As Dask's own does before it asks: who comes now asks anew.
            self._gather_keys = None
            self._gather_future = None
            return {"status": "OK", "data": found}
        response: dict[str, Any] = await original(self, direct, local_worker)
        if response["status"] == "OK":
            return {**response, "data": {**response["data"], **found}}
        return response

    return _gather_remote
