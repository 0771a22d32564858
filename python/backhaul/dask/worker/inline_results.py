"""Inline results, the worker's part: small results in the ``task-finished`` message.

A worker adds the result of a task to ``task-finished`` if its scheduler has asked for results of
that size (`backhaul.dask.scheduler.inline_results`), and if the result is plain and immutable
(`backhaul.dask.serialize.inline_values`). The worker keeps the result.
"""

from __future__ import annotations

import weakref
from typing import Any

from distributed import Worker

from backhaul.dask.comm.capabilities import offers
from backhaul.dask.comm.comm import BackhaulComm
from backhaul.dask.compat.instance_patches import WORKER_RESULTS
from backhaul.dask.compat.names import SpillBuffer, TaskFinishedMsg, WorkerStateMachine
from backhaul.dask.compat.operations import RESULT_REQUESTS, SMALL_RESULTS
from backhaul.dask.config.settings import switched_on
from backhaul.dask.serialize.inline_values import pickled_if_plain

__all__ = [
    "asked_bytes",
    "carrying",
    "install_for_worker",
    "tell_scheduler",
]

#: Most messages that wait for the scheduler while results are added to them
_WAITING_MAX = 1024

#: How large a result may be to be added to the message, in bytes, and the worker; by its address
_asked: dict[str, tuple[int, weakref.ref[Worker]]] = {}


class _CarryingTaskFinishedMsg(TaskFinishedMsg):
    """The ``task-finished`` message of a task, with its result.

    Attributes
    ----------
    value : bytes
        The pickled result.
    """

    __slots__ = ("value",)

    value: bytes

    def to_dict(self) -> dict[str, Any]:
        # Dask's method uses the annotations of the class, which lack `value`.
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
    """Add the result of a task to its ``task-finished`` message, if the scheduler asked for it.

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
    value = _carried_value(state, ts, message.nbytes)
    if value is None:
        return message
    carried = object.__new__(_CarryingTaskFinishedMsg)
    for name in (*TaskFinishedMsg.__annotations__, "stimulus_id"):
        setattr(carried, name, getattr(message, name))
    carried.value = value
    return carried


def _carried_value(state: WorkerStateMachine, ts: Any, nbytes: int) -> bytes | None:
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
    data: Any = state.data
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
    """Make a worker note which results its scheduler asks for; a repeated call costs nothing."""
    if not switched_on("small-results.enabled") or RESULT_REQUESTS in worker.stream_handlers:
        return
    if not switched_on("hot-path.execution"):
        # Without that switch Dask's own code makes the message.
        return
    (slot,) = WORKER_RESULTS.slots
    WORKER_RESULTS.install(worker, {slot: _Requests(worker)})


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
        and isinstance(server.stream_handlers.get(RESULT_REQUESTS), _Requests)
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
