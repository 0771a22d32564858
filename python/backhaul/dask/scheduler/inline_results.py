"""Small results that travel with the message that a task has finished: the part of a scheduler.

Dask's client hears that a result is there, asks the scheduler for it, which asks the worker: two
requests for a few bytes, a quarter of what a small task takes. Here the worker adds a plain small
result to ``task-finished`` (`backhaul.dask.worker.inline_results`); the scheduler hands it on to
those clients that want the task and have said that they keep results
(`backhaul.dask.client.result_cache`), right before its own ``key-in-memory``. The scheduler keeps
nothing of it. The result stays on its worker as ever.

Who understands is said before anything is sent. A scheduler says so in the handshake of our comms
(`backhaul.dask.comm.capabilities`). Clients and workers then tell it in a message what they do, and
it asks these workers for results while there are such clients. A message of Dask's gains one field,
in ``task-finished`` to a scheduler that has asked for it. So a peer without this sees nothing of
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakValueDictionary

from distributed import Scheduler

from backhaul.dask.compat.instance_patches import (
    RESULT_REQUESTS,
    RESULTS_FINISHED,
    SMALL_RESULTS_TELLERS,
)
from backhaul.dask.compat.names import (
    BatchedSend,
    CommClosedError,
)
from backhaul.dask.compat.operations import RESULT, SMALL_RESULTS
from backhaul.dask.compat.patching import Replacement
from backhaul.dask.config.settings import small_result_limits

__all__ = ["ResultCarrier", "install_for_scheduler", "installed"]

#: Most messages that wait for a peer while results are among them: one that does not keep up is
#: told no more than it must be, and asks for them later
_WAITING_MAX = 1024


def install_for_scheduler(scheduler: Scheduler) -> bool:
    """Have a scheduler hand small results on; again costs nothing.

    Returns
    -------
    bool
        Whether it does now.

    Raises
    ------
    ValueError
        If the configuration cannot be understood.
    """
    if installed(scheduler) is not None:
        return True
    limits = small_result_limits()
    if limits is None:
        return False
    handlers = scheduler.stream_handlers
    if not (RESULTS_FINISHED.fits(handlers) and SMALL_RESULTS_TELLERS.fits(handlers)):
        return False
    ResultCarrier(scheduler, limits.bytes_max).attach()
    return True


def installed(scheduler: Scheduler) -> ResultCarrier | None:
    """Get what hands small results of one scheduler on; None if nothing does."""
    owner = getattr(scheduler.stream_handlers.get(SMALL_RESULTS), "__self__", None)
    return owner if isinstance(owner, ResultCarrier) else None


class ResultCarrier:
    """Hands results that come with ``task-finished`` on to the clients of one scheduler.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler.
    bytes_max : int
        Most bytes of one result.

    Notes
    -----
    The handler of ``task-finished`` is replaced on the instance, below what others of ours put
    there: the result leaves the message before Dask, or a plugin, sees it.
    """

    def __init__(self, scheduler: Scheduler, bytes_max: int) -> None:
        self.scheduler = scheduler
        self.bytes_max = bytes_max
        # As long as they are there: each has a log of messages that it has sent, with what is in
        # them.
        #: Streams of the clients that keep results, by their ids
        self._holders: WeakValueDictionary[str, BatchedSend] = WeakValueDictionary()
        #: Streams of the workers that send results if asked to, by their addresses
        self._carriers: WeakValueDictionary[str, BatchedSend] = WeakValueDictionary()
        self._upstream_finished: Any = scheduler.handle_task_finished
        self._replaced: list[Replacement] = []

    def attach(self) -> None:
        """Take our place on the scheduler."""
        handlers = self.scheduler.stream_handlers
        finished = RESULTS_FINISHED.install(handlers, self.handle_task_finished)
        tellers = SMALL_RESULTS_TELLERS.install(handlers, self.handle_teller)
        assert finished is not None
        assert tellers is not None
        self._upstream_finished = finished.original
        self._replaced = [finished, tellers]

    def handle_teller(self, client: str | None = None, worker: str | None = None, **_: Any) -> None:
        """Note that a client keeps results, or that a worker sends them, and ask for them."""
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
        """Handle the message; takes the place of `distributed.Scheduler.handle_task_finished`."""
        if value is not None and not self._hand_on(key, worker, message.get("run_id"), value):
            self.not_wanted(worker)
        self._upstream_finished(key=key, worker=worker, stimulus_id=stimulus_id, **message)

    def _hand_on(self, key: Any, worker: str, run_id: Any, value: Any) -> bool:
        """Send a result to the clients that want the task and keep results; tell if there are."""
        ts = self.scheduler.tasks.get(key)
        if (
            ts is None
            or not ts.who_wants
            # Otherwise it is not this run of the task that Dask puts in memory.
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
        """Tell a worker that sends results that nobody keeps them, if that is so."""
        if not self.keepers():
            self._ask(worker, 0)

    def hand_to(self, clients: Iterable[str], key: Any, value: Any) -> bool:
        """Send a result to those of some clients that keep results; tell if there are any."""
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
                # Dask meets this too, with what it sends next, and says so.
                self._holders.pop(client, None)
            else:
                sent = True
        return sent

    def _ask(self, worker: str, bytes_max: int) -> None:
        """Ask a worker for results of so many bytes, 0: for none, if it knows what that is."""
        stream = self._carriers.get(worker)
        if stream is None or self.scheduler.stream_comms.get(worker) is not stream:
            return
        self.scheduler.worker_send(worker, {"op": RESULT_REQUESTS.item, "bytes_max": bytes_max})
