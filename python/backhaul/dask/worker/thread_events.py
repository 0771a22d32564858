"""Reports of a worker's threads to its state machine, while Rust has the state.

After early execution (`backhaul.dask.worker.early_execution`) the scheduler has the end of the
task, but the state machine has neither the task nor its end. The event loop would handle both some
milliseconds later, in some 70 us of Python for each task. If Rust has the state
(`backhaul.dask.worker.core`), one call handles both, and any thread may make the call in the place
of the event loop: in the order of the messages, and with the same locks. A thread does so when it
would sleep otherwise.

Threads handle plain tasks that have succeeded, and freed results. The event loop handles any other
message, and all messages after it.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

from distributed import Status

from backhaul._locks import is_owned
from backhaul.dask.comm.inbox import SharedInbox
from backhaul.dask.comm.threaded_stream import SharedBatchedSend
from backhaul.dask.compat.names import Worker, key_split
from backhaul.dask.worker.core.events import Told
from backhaul.dask.worker.event_makers import execute_success_event
from backhaul.dask.worker.instructions import perform, perform_instructions
from backhaul.dask.worker.lazy_collections import data_of
from backhaul.dask.worker.local_queue import LocalQueue
from backhaul.dask.worker.metrics import Sums, may_be_summed
from backhaul.dask.worker.protocols import EarlyItem
from backhaul.dask.worker.spill_buffer import has_room, in_memory

__all__ = ["ThreadEvents", "apply_completed"]

#: Dask's method, whose digest was checked; a program may replace it later
_BATCHED_SEND: Final = Worker.batched_send


class ThreadEvents:
    """The messages of a worker's scheduler that its threads handle.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    local_queue : LocalQueue
        The local queue of its default pool.
    inbox : SharedInbox
        Inbox of messages of its scheduler.
    """

    def __init__(self, worker: Worker, local_queue: LocalQueue, inbox: SharedInbox) -> None:
        self._worker = worker
        self._local_queue = local_queue
        self._inbox = inbox
        self._sums = Sums()
        self._is_at_work = False

    # Called by threads of the pool between their tasks, and before a read of the state

    def handle(self) -> bool:
        """Handle the oldest messages, as far as a thread may; tell whether any was handled.

        The method does not wait for another thread that handles messages: the event loop calls this
        method often, and the owner of one lock may wait for the other.
        """
        inbox = self._inbox
        # Nothing is handled while the event loop is at work, which reads the state with the local
        # queue's lock, nor while this thread has one of the locks: a finalizer may read the state.
        if (
            not inbox.has_unhandled(1)
            or inbox.is_handling
            or self._local_queue.is_busy()
            or is_owned(inbox.lock)
            or is_owned(self._local_queue.lock)
            or not inbox.lock.acquire(blocking=False)
        ):
            return False
        # Released objects are destroyed when this returns and the locks are free, because a
        # finalizer may wait for the event loop, which waits for the locks.
        gone: list[Any] = []
        try:
            # Code that the reports run may read the state, which calls this method again.
            if inbox.is_handling or self._is_at_work:
                return False
            self._is_at_work = True
            try:
                return self._handle_with_locks(gone)
            finally:
                self._is_at_work = False
        except Exception as error:
            # Ends the stream, as an error of a handler in the event loop does.
            inbox.fail(error)
            return True
        finally:
            inbox.lock.release()

    # Called by threads of the pool, between their tasks

    def are_handled_here(self) -> bool:
        """Tell whether threads may handle messages now; the lock of the local queue is held."""
        worker, state_owner = self._worker, self._local_queue.state_owner
        return (
            state_owner is not None
            and state_owner.core is not None
            and not self._local_queue.holds
            and not state_owner.is_watched()
            and worker.status is Status.running
            and type(worker).batched_send is _BATCHED_SEND
            and may_be_summed(worker)
        )

    def _handle_with_locks(self, gone: list[Any]) -> bool:
        """Handle messages; the lock of the inbox is held, and no other lock."""
        local_queue = self._local_queue
        with local_queue.lock:
            # Reports of the event loop come first.
            return local_queue.may_be_told() and self.are_handled_here() and self._handle_all(gone)

    def _handle_all(self, gone: list[Any]) -> bool:
        """Handle messages up to the first for the event loop, and perform the instructions.

        `gone` keeps the released objects alive.
        """
        told: Told = []
        try:
            return self._handle_messages(told, gone)
        finally:
            self._tell(told)

    def _handle_messages(self, told: Told, gone: list[Any]) -> bool:
        inbox = self._inbox
        batches = inbox.unhandled
        handled = 0
        for number, batch in enumerate(batches):
            messages = batch if isinstance(batch, (list, tuple)) else (batch,)
            handled = 0
            for message in messages:
                if not self._handle(message, told, gone):
                    break
                handled += 1
            if handled < len(messages):
                inbox.drop_first(number)
                if handled:
                    inbox.replace_first(messages[handled:])
                return number > 0 or handled > 0
        inbox.drop_first(len(batches))
        return bool(batches)

    def _handle(self, message: Any, told: Told, gone: list[Any]) -> bool:
        """Handle one message; False, without any effect, if the event loop has to handle it."""
        if type(message) is not dict:
            return False
        operation = message.get("op")
        if operation == "free-keys":
            keys = message["keys"]
            values = in_memory(data_of(self._worker), keys)
            if values is None:
                return False
            gone += values
            more = self._local_queue.state_owner.free(
                keys, message["stimulus_id"], is_unwatched=True
            )
            if more is None:
                return False
            told += more
            return True
        return operation == "compute-task" and self._ended(message, told, gone)

    def _ended(self, message: dict[str, Any], told: Told, gone: list[Any]) -> bool:
        """Report an ended task; False, without any effect, if the event loop has to do that."""
        local_queue, worker = self._local_queue, self._worker
        key, inputs = message["key"], message["who_has"]
        item = local_queue.early_tasks.get(key)
        if item is None or item.run_id != message["run_id"]:
            return False
        ending = item.ending()
        if ending is None or not has_room(data_of(worker), ending.nbytes):
            return False
        del message["op"]
        answer = _gone_through(local_queue, item, message, ending, is_unwatched=True)
        if answer is None:
            message["op"] = "compute-task"
            return False
        lived, more = answer
        # The item may have the last reference to its inputs.
        gone.append(item)
        if lived is not False:
            item.settle_in(self._sums, key_split(key), message["span_id"], inputs)
        if more:
            told += more
        if lived is None:
            self._call(local_queue.handle, _done(message, ending))
        return True

    def _tell(self, told: Told) -> None:
        """Send the state machine's messages about released results.

        The event loop performs other instructions, such as to fetch a result or to run a task.
        """
        if not told:
            return
        stream = self._worker.batched_stream
        if all(each[0] == "release-worker-data" for each in told):
            messages = [{"op": each[0], "key": each[2], "stimulus_id": each[1]} for each in told]
            if isinstance(stream, SharedBatchedSend) and stream.post_in_thread(*messages):
                return
        else:
            # One of the instructions may need a thread.
            self._local_queue.leave_threads()
        self._call(self._local_queue.perform, told)

    def _call(self, function: Any, *args: Any) -> None:
        # The event loop may be closed, with the worker
        with contextlib.suppress(RuntimeError):
            self._local_queue.event_loop.call_soon_threadsafe(function, *args)

    # Called by the event loop

    def publish(self) -> None:
        """Add the measured times to the worker's metrics."""
        self._sums.publish(self._worker)


def apply_completed(local_queue: LocalQueue, item: EarlyItem, message: dict[str, Any]) -> bool:
    """Report an ended early task to the state machine, if Rust has the state.

    Called by the event loop.

    Parameters
    ----------
    local_queue : LocalQueue
        The local queue of the pool that has run the task.
    item : EarlyItem
        The task, which has ended.
    message : dict
        The scheduler's message that requested the task, without ``op``.

    Returns
    -------
    bool
        False, without any effect, if Rust does not have the state, or Python has to handle the
        task.
    """
    state_owner = local_queue.state_owner
    if state_owner is None or local_queue.is_busy():
        return False
    with local_queue.lock:
        ending = item.ending() if state_owner.import_state() else None
        answer = None if ending is None else _gone_through(local_queue, item, message, ending)
        if answer is None:
            return False
        lived, told = answer
        if lived is not False:
            item.settle(key_split(message["key"]), message["span_id"], message["who_has"])
        perform_instructions(local_queue.worker, told)
        if lived is None:
            perform(local_queue.worker, _done(message, ending))
        return True


def _gone_through(
    local_queue: LocalQueue,
    item: EarlyItem,
    message: dict[str, Any],
    ending: Any,
    *,
    is_unwatched: bool = False,
) -> tuple[bool | None, Told] | None:
    """Handle both events of a task as `StateOwner.apply_completed_task` does; the lock is held."""
    key, threads = message["key"], local_queue.worker.threads
    threads[key] = ending.thread
    answer: tuple[bool | None, Told] | None = local_queue.state_owner.apply_completed_task(
        message, ending[:6], is_unwatched=is_unwatched
    )
    if answer is None:
        del threads[key]
    elif answer[0] is False:
        # The state machine starts the task later, when it has a thread for the task.
        item.is_announced = True
        threads.pop(key, None)
    else:
        local_queue.forget(key)
    return answer


def _done(message: dict[str, Any], ending: Any) -> Any:
    """Make the event of the success of a task."""
    value, nbytes, kind, start_s, stop_s, stimulus_id = ending[:6]
    return execute_success_event(
        message["key"], message["run_id"], value, start_s, stop_s, nbytes, kind, stimulus_id
    )
