"""Inline results, the scheduler's part: small results in the ``task-finished`` message.

In Dask the client gets ``key-in-memory``, then requests the result from the scheduler, which
requests it from the worker: two requests for a few bytes, a quarter of the time of a small task.
Here the worker adds a plain small result to ``task-finished``
(`backhaul.dask.worker.inline_results`). The scheduler forwards the result, right before its own
``key-in-memory``, to the clients that want the task and have a result cache
(`backhaul.dask.client.result_cache`). The scheduler keeps no copy; the worker keeps the result as
in Dask.

Support is negotiated before anything is sent. A scheduler announces its support in the handshake of
Backhaul's comms (`backhaul.dask.comm.capabilities`). Clients and workers then announce theirs in a
message, and the scheduler asks these workers for results while there are such clients. Only one
message of Dask changes: ``task-finished`` has one more field, to a scheduler that has asked for the
field. So a peer without support gets no changed message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakValueDictionary

from distributed import Scheduler

from backhaul.dask.compat.instance_patches import SCHEDULER_RESULTS
from backhaul.dask.compat.names import (
    BatchedSend,
    CommClosedError,
)
from backhaul.dask.compat.operations import RESULT, RESULT_REQUESTS, SMALL_RESULTS
from backhaul.dask.compat.patching import Replacement
from backhaul.dask.config.settings import small_result_limits

__all__ = ["ResultCarrier", "install_for_scheduler", "installed"]

#: Most messages that wait for a client to which results are sent: a slow client gets only the
#: messages of Dask, and requests results later
_WAITING_MAX = 1024


def install_for_scheduler(scheduler: Scheduler) -> bool:
    """Let a scheduler forward inline results, and tell whether it does now; idempotent."""
    if installed(scheduler) is not None:
        return True
    limits = small_result_limits()
    if limits is None:
        return False
    if not SCHEDULER_RESULTS.fits_on(scheduler):
        return False
    ResultCarrier(scheduler, limits.bytes_max).attach()
    return True


def installed(scheduler: Scheduler) -> ResultCarrier | None:
    """Return the `ResultCarrier` of a scheduler; None if it has none."""
    owner = getattr(scheduler.stream_handlers.get(SMALL_RESULTS), "__self__", None)
    return owner if isinstance(owner, ResultCarrier) else None


class ResultCarrier:
    """Forwards the results in ``task-finished`` messages to the clients of one scheduler.

    The handler of ``task-finished`` is replaced on the instance, below Backhaul's other
    replacements: it removes the result, of at most `bytes_max`, before Dask, or a plugin, gets the
    message.
    """

    def __init__(self, scheduler: Scheduler, bytes_max: int) -> None:
        self.scheduler = scheduler
        self.bytes_max = bytes_max
        # Weak references, because each stream has a log of its sent messages, with their contents.
        #: Streams of the clients that keep results, by their ids
        self._holders: WeakValueDictionary[str, BatchedSend] = WeakValueDictionary()
        #: Streams of the workers that send results if asked to, by their addresses
        self._carriers: WeakValueDictionary[str, BatchedSend] = WeakValueDictionary()
        self._upstream_finished: Any = scheduler.handle_task_finished
        self._replaced: list[Replacement] = []

    def attach(self) -> None:
        """Install the handlers on the scheduler."""
        finished, tellers = SCHEDULER_RESULTS.slots
        ours = {finished: self.handle_task_finished, tellers: self.handle_teller}
        replaced = SCHEDULER_RESULTS.install(self.scheduler, ours)
        self._upstream_finished = replaced[finished].original
        self._replaced = list(replaced.values())

    def handle_teller(self, client: str | None = None, worker: str | None = None, **_: Any) -> None:
        """Note that a client keeps results, or that a worker sends them, and request results."""
        scheduler = self.scheduler
        if client is not None and client in scheduler.client_comms:
            self._holders[client] = scheduler.client_comms[client]
            for address in list(self._carriers):
                self._ask(address, self.bytes_max)
        if worker is not None and worker in scheduler.stream_comms:
            self._carriers[worker] = scheduler.stream_comms[worker]
            if self.keepers():
                self._ask(worker, self.bytes_max)

    def handle_task_finished(
        self, key: Any, worker: str, stimulus_id: str, value: Any = None, **message: Any
    ) -> None:
        """Handle the message; replaces `distributed.Scheduler.handle_task_finished`."""
        if value is not None and not self._hand_on(key, worker, message.get("run_id"), value):
            self.not_wanted(worker)
        self._upstream_finished(key=key, worker=worker, stimulus_id=stimulus_id, **message)

    def _hand_on(self, key: Any, worker: str, run_id: Any, value: Any) -> bool:
        """Send a result to the clients that want the task and keep results; tell if any got it."""
        ts = self.scheduler.tasks.get(key)
        if (
            ts is None
            or not ts.who_wants
            # Otherwise Dask does not put this run of the task in memory.
            or ts.state != "processing"
            or ts.run_id != run_id
            or ts.processing_on is None
            or ts.processing_on.address != worker
            or ts.actor
        ):
            return False
        return self.hand_to((cs.client_key for cs in ts.who_wants), key, value)

    def keepers(self) -> list[str]:
        """List the clients that keep results."""
        comms = self.scheduler.client_comms
        holders = self._holders.copy()
        return [client for client, one in holders.items() if comms.get(client) is one]

    def not_wanted(self, worker: str) -> None:
        """Ask a worker to send no more results, if no client keeps them."""
        if not self.keepers():
            self._ask(worker, 0)

    def hand_to(self, clients: Iterable[str], key: Any, value: Any) -> bool:
        """Send a result to those of some clients that keep results; tell if any got it."""
        if type(value) is not bytes or len(value) > self.bytes_max:
            return False
        sent = False
        for client in clients:
            stream = self._holders.get(client)
            if stream is None or len(stream.buffer) > _WAITING_MAX:
                continue
            try:
                stream.send({"op": RESULT, "key": key, "value": value})
            except CommClosedError:
                # Dask's next message gets the same error, and Dask reports it.
                self._holders.pop(client, None)
            else:
                sent = True
        return sent

    def _ask(self, worker: str, bytes_max: int) -> None:
        """Ask a worker for results of at most some bytes, 0 for none, if it supports that."""
        stream = self._carriers.get(worker)
        if stream is None or self.scheduler.stream_comms.get(worker) is not stream:
            return
        self.scheduler.worker_send(worker, {"op": RESULT_REQUESTS, "bytes_max": bytes_max})
