"""What a worker does for its state machine: Dask's `BaseWorker.handle_stimulus`, with less.

Instructions are told apart by their class, and the messages of all of them go to the stream
together, in their order.
"""

from __future__ import annotations

from typing import Any, Final

from backhaul.dask.private import CommClosedError, Worker, instructions
from backhaul.dask.told import TOLD

__all__ = ["perform", "send"]

_Execute: Final = instructions.Execute
_ReleaseWorkerDataMsg: Final = instructions.ReleaseWorkerDataMsg
_SendMessageToScheduler: Final = instructions.SendMessageToScheduler
_GatherDep: Final = instructions.GatherDep
_RetryBusyWorkerLater: Final = instructions.RetryBusyWorkerLater

#: The one whose source was read, whoever replaces it later
_BATCHED_SEND = Worker.batched_send


def perform(worker: Any, *stimuli: Any) -> None:
    """Tell a worker's state machine something, and do what it wants.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    *stimuli : StateMachineEvent
        The events.

    Raises
    ------
    Exception
        What the state machine raised, which is an event of the worker if Dask makes it one.
    """
    try:
        wanted = worker.state.handle_stimulus(*stimuli)
        if wanted:
            _perform(worker, wanted)
    except Exception as error:
        if hasattr(error, "to_event"):
            topic, message = error.to_event()
            worker.log_event(topic, message)
        raise


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
                if message is not TOLD:
                    messages.append(message)
            elif kind is _GatherDep:
                assert each.to_gather
                worker._start_async_instruction(
                    f"gather_dep({each.worker}, {{{_named(worker, each.to_gather)}}})",
                    worker.gather_dep,
                    each.worker,
                    each.to_gather,
                    total_nbytes=each.total_nbytes,
                    stimulus_id=each.stimulus_id,
                )
            elif kind is _RetryBusyWorkerLater:
                worker._start_async_instruction(
                    f"retry_busy_worker_later({each.worker})",
                    worker.retry_busy_worker_later,
                    each.worker,
                )
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
    """Name keys for somebody who debugs, as Dask does."""
    if not worker.debug:
        return "..."
    text = ", ".join(sorted(map(str, keys))[:27])
    return text if len(text) <= 80 else text[:77] + "..."
