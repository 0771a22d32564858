"""Performing of a state machine's instructions: a faster `BaseWorker.handle_stimulus`.

The class of an instruction selects the code for it, and the messages of all instructions are sent
together, in order.
"""

from __future__ import annotations

from typing import Any, Final

from backhaul.dask.comm.already_sent import ALREADY_SENT
from backhaul.dask.compat.names import CommClosedError, Worker, instructions
from backhaul.dask.worker.core.dask_instructions import made
from backhaul.dask.worker.core.events import Told
from backhaul.dask.worker.core.guarded_state import Owner

__all__ = ["perform", "perform_instructions", "send"]

_Execute: Final = instructions.Execute
_ReleaseWorkerDataMsg: Final = instructions.ReleaseWorkerDataMsg
_SendMessageToScheduler: Final = instructions.SendMessageToScheduler
_GatherDep: Final = instructions.GatherDep
_RetryBusyWorkerLater: Final = instructions.RetryBusyWorkerLater

#: Dask's method, whose digest was checked; a program may replace it later
_BATCHED_SEND = Worker.batched_send


def perform(worker: Any, *stimuli: Any) -> None:
    """Handle events in a worker's state machine, and perform its instructions.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    *stimuli : StateMachineEvent
        The events.

    Raises
    ------
    Exception
        The exception of the state machine; also logged as an event of the worker if Dask does so.
    """
    try:
        state = worker.state
        owner: Owner | None = getattr(state, "core_owner", None)
        if owner is not None:
            with owner.lock:
                told, number = owner.handle(stimuli)
            perform_instructions(worker, told)
            stimuli = stimuli[number:]
            if not stimuli:
                return
        wanted = state.handle_stimulus(*stimuli)
        if wanted:
            _perform(worker, wanted)
    except Exception as error:
        if hasattr(error, "to_event"):
            topic, message = error.to_event()
            worker.log_event(topic, message)
        raise


def perform_instructions(worker: Any, told: Told) -> None:
    """Perform the instructions of a state machine in Rust, in the form of `WorkerCore`."""
    messages: list[dict[str, Any]] = []
    try:
        for each in told:
            kind, stimulus_id = each[0], each[1]
            if kind == "release-worker-data":
                messages.append({"key": each[2], "op": kind, "stimulus_id": stimulus_id})
            elif kind == "execute":
                key = each[2]
                worker._start_async_instruction(
                    f"execute({key!r})",
                    worker.execute,
                    key,
                    span_id=each[3],
                    stimulus_id=stimulus_id,
                )
            elif kind == "gather-dep":
                _fetch(worker, each[2], each[3], each[4], stimulus_id)
            elif kind == "retry-busy-worker-later":
                _retry(worker, each[2])
            else:
                (instruction,) = made(worker.state, [each])
                message = instruction.to_dict()
                if message is not ALREADY_SENT:
                    messages.append(message)
    finally:
        if messages:
            send(worker, messages)


def _fetch(worker: Any, peer: str, keys: Any, total_bytes: int, stimulus_id: str) -> None:
    worker._start_async_instruction(
        f"gather_dep({peer}, {{{_named(worker, keys)}}})",
        worker.gather_dep,
        peer,
        keys,
        total_nbytes=total_bytes,
        stimulus_id=stimulus_id,
    )


def _retry(worker: Any, peer: str) -> None:
    worker._start_async_instruction(
        f"retry_busy_worker_later({peer})", worker.retry_busy_worker_later, peer
    )


def _perform(worker: Any, wanted: list[Any]) -> None:
    messages: list[dict[str, Any]] = []
    try:
        for each in wanted:
            kind = type(each)
            if kind is _ReleaseWorkerDataMsg:
                messages.append(
                    {
                        "key": each.key,
                        "op": "release-worker-data",
                        "stimulus_id": each.stimulus_id,
                    }
                )
            elif kind is _Execute:
                key = each.key
                worker._start_async_instruction(
                    f"execute({key!r})",
                    worker.execute,
                    key,
                    span_id=worker.state.tasks[key].span_id,
                    stimulus_id=each.stimulus_id,
                )
            elif isinstance(each, _SendMessageToScheduler):
                message = each.to_dict()
                if message is not ALREADY_SENT:
                    messages.append(message)
            elif kind is _GatherDep:
                assert each.to_gather
                _fetch(worker, each.worker, each.to_gather, each.total_nbytes, each.stimulus_id)
            elif kind is _RetryBusyWorkerLater:
                _retry(worker, each.worker)
            else:
                raise TypeError(each)
    finally:
        if messages:
            send(worker, messages)


def send(worker: Any, messages: list[dict[str, Any]]) -> None:
    """Send messages to the scheduler, as `Worker.batched_send` each of them."""
    if type(worker).batched_send is not _BATCHED_SEND:
        for message in messages:
            worker.batched_send(message)
        return
    stream = worker.batched_stream
    if stream and stream.comm:
        try:
            stream.send(*messages)
        except CommClosedError:
            # Without a scheduler they are dropped.
            return


def _named(worker: Any, keys: Any) -> str:
    """List keys for the names of asyncio tasks in debug mode, as Dask does."""
    if not worker.debug:
        return "..."
    text = ", ".join(sorted(map(str, keys))[:27])
    return text if len(text) <= 80 else text[:77] + "..."
