"""Small results that travel with the message that a task has finished.

Dask's client hears that a result is there, asks the scheduler for it, which asks the worker: two
requests for a few bytes, a quarter of what a small task takes. Here the worker adds a plain small
result to ``task-finished``; the scheduler hands it on to those clients that want the task and have
said that they keep results (`backhaul.dask.held_results`), right before its own ``key-in-memory``.
The scheduler keeps nothing of it. The result stays on its worker as ever.

Who understands is said before anything is sent. A scheduler says so in the handshake of our comms
(`backhaul.dask.offers`). Clients and workers then tell it in a message what they do, and it asks
these workers for results while there are such clients. A message of Dask's gains one field, in
``task-finished`` to a scheduler that has asked for it. So a peer without this sees nothing of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any
from weakref import WeakValueDictionary

from distributed import Scheduler, Worker

from backhaul.dask.comm import BackhaulComm
from backhaul.dask.config import small_result_limits, switched_on
from backhaul.dask.instance_patches import RESULT_REQUESTS, RESULTS_FINISHED, SMALL_RESULTS_TELLERS
from backhaul.dask.offers import SMALL_RESULTS, offers
from backhaul.dask.patching import Replacement
from backhaul.dask.plain_values import pickled_if_plain
from backhaul.dask.private import (
    BatchedSend,
    CommClosedError,
    SpillBuffer,
    TaskFinishedMsg,
    WorkerStateMachine,
)

__all__ = [
    "RESULT",
    "CarryingTaskFinishedMsg",
    "ResultCarrier",
    "asked_bytes",
    "carried_value",
    "carrying",
    "install_for_scheduler",
    "install_for_worker",
    "installed",
    "tell_scheduler",
]

#: Operation of the message with a result, from a scheduler to a client
RESULT = "backhaul-result"

#: Most messages that wait for a peer while results are among them: one that does not keep up is
#: told no more than it must be, and asks for them later
_WAITING_MAX = 1024

#: How large a result may be to be added to the message, in bytes, and the worker; by its address
_asked: dict[str, tuple[int, weakref.ref[Worker]]] = {}


class CarryingTaskFinishedMsg(TaskFinishedMsg):
    """The message that a task has finished, with its result.

    Attributes
    ----------
    value : bytes
        The pickled result.
    """

    __slots__ = ("value",)

    value: bytes

    def to_dict(self) -> dict[str, Any]:
        # Dask's goes by the annotations of the class, which are not these.
        return {
            "key": self.key,
            "run_id": self.run_id,
            "nbytes": self.nbytes,
            "type": self.type,
            "typename": self.typename,
            "metadata": self.metadata,
            "thread": self.thread,
            "startstops": self.startstops,
            "op": self.op,
            "stimulus_id": self.stimulus_id,
            "status": "OK",
            "value": self.value,
        }


def carrying(state: WorkerStateMachine, ts: Any, message: TaskFinishedMsg) -> TaskFinishedMsg:
    """Add the result of a task to the message that it has finished, if the scheduler asked for it.

    Parameters
    ----------
    state : distributed.worker_state_machine.WorkerState
        Of the worker.
    ts : distributed.worker_state_machine.TaskState
        The task; its result is in memory.
    message : TaskFinishedMsg
        The message.

    Returns
    -------
    TaskFinishedMsg
        The message, or one that carries the result.
    """
    value = carried_value(state, ts, message.nbytes)
    if value is None:
        return message
    carried = object.__new__(CarryingTaskFinishedMsg)
    for name in (*TaskFinishedMsg.__annotations__, "stimulus_id"):
        setattr(carried, name, getattr(message, name))
    carried.value = value
    return carried


def carried_value(state: WorkerStateMachine, ts: Any, nbytes: int) -> bytes | None:
    """Pickle the result of a task, if the scheduler asked for it.

    Parameters
    ----------
    state : distributed.worker_state_machine.WorkerState
        Of the worker.
    ts : distributed.worker_state_machine.TaskState
        The task; its result is in memory.
    nbytes : int
        What Dask says that the result takes.

    Returns
    -------
    bytes or None
        None if it is not asked for, not plain, or too large.
    """
    bytes_max = asked_bytes(state, nbytes)
    if bytes_max is None:
        return None
    data = state.data
    if type(data) is SpillBuffer:
        # Without counting as a read of it.
        data = data.fast
    elif type(data) is not dict:
        return None
    if ts.key not in data:
        return None
    return pickled_if_plain(data[ts.key], bytes_max)


def asked_bytes(state: WorkerStateMachine, nbytes: int) -> int | None:
    """Tell whether the scheduler of a worker asked for results of that size.

    Parameters
    ----------
    state : distributed.worker_state_machine.WorkerState
        Of the worker.
    nbytes : int
        What Dask says that the result takes.

    Returns
    -------
    int or None
        How many bytes it may have, pickled; None if it is not asked for.
    """
    if not _asked:
        return None
    bytes_max, worker_of = _asked.get(getattr(state, "address", ""), (-1, None))
    worker = None if worker_of is None or nbytes > bytes_max else worker_of()
    # Another worker of this process may have had the address before.
    if worker is None or worker.state is not state:
        return None
    return None if len(worker.batched_stream.buffer) > _WAITING_MAX else bytes_max


def install_for_worker(worker: Worker) -> None:
    """Have a worker listen to whether results are asked for; again costs nothing."""
    if not switched_on("small-results.enabled") or RESULT_REQUESTS.item in worker.stream_handlers:
        return
    if not switched_on("hot-path.execution"):
        # What makes the message is Dask's own then.
        return
    RESULT_REQUESTS.install(worker.stream_handlers, _Requests(worker))


def tell_scheduler(server: object, comm: BackhaulComm) -> None:
    """Tell the scheduler at the other end of a stream that its worker sends results if asked to.

    Parameters
    ----------
    server : object
        Whose stream begins; nothing happens unless it is a worker that does.
    comm : BackhaulComm
        The comm of the stream.
    """
    if (
        isinstance(server, Worker)
        and offers(comm, SMALL_RESULTS)
        and isinstance(server.stream_handlers.get(RESULT_REQUESTS.item), _Requests)
    ):
        server.batched_send({"op": SMALL_RESULTS})


class _Requests:
    """Hears what the scheduler of one worker asks for."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def __call__(self, bytes_max: Any = None, **_: Any) -> None:
        worker = self._worker
        if type(bytes_max) is int and bytes_max > 0:
            known = _asked.get(worker.address, (0, None))[1]
            if known is None or known() is not worker:
                known = weakref.ref(worker)
                weakref.finalize(worker, _forget, worker.address, known)
            _asked[worker.address] = bytes_max, known
        else:
            _asked.pop(worker.address, None)


def _forget(address: str, gone: weakref.ref[Worker]) -> None:
    """Forget a worker that is gone, not the one that has its address now."""
    if address in _asked and _asked[address][1] is gone:
        del _asked[address]


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
