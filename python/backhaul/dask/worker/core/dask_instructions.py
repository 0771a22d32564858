"""Conversion of the instructions of a state machine in Rust to Dask's instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from backhaul.dask.compat.names import WorkerStateMachine, instructions
from backhaul.dask.worker.core.events import Told

__all__ = ["finished_message", "made"]


class _Ended:
    """The attributes of an ended task that Dask reads to report its end."""

    __slots__ = (
        "exception",
        "exception_text",
        "key",
        "metadata",
        "nbytes",
        "startstops",
        "state",
        "traceback",
        "traceback_text",
        "type",
    )

    exception: Any
    exception_text: str
    nbytes: int
    state: str
    traceback: Any
    traceback_text: str
    type: Any

    def __init__(self, key: Any, startstops: list[dict[str, Any]]) -> None:
        self.key = key
        self.startstops = startstops
        self.metadata: dict[str, Any] = {}


def made(state: WorkerStateMachine, told: Told) -> list[Any]:
    """Convert the instructions of a `WorkerCore`.

    Parameters
    ----------
    state : distributed.worker_state_machine.WorkerState
        The state machine of the instructions.
    told : list of tuple
        In order.

    Returns
    -------
    list of Instruction
        The same.
    """
    return [_MAKERS[each[0]](state, *each[1:]) for each in told]


def finished_message(
    state: WorkerStateMachine,
    stimulus_id: str,
    key: Any,
    run_id: int,
    nbytes: int,
    kind: type,
    startstops: list[dict[str, Any]],
) -> Any:
    """Make the message that a run has ended well, as the state machine would."""
    ended = _Ended(key, startstops)
    ended.state = "memory"
    ended.nbytes = nbytes
    ended.type = kind
    return state._get_task_finished_msg(ended, run_id=run_id, stimulus_id=stimulus_id)  # type: ignore[arg-type]


def _erred(
    state: WorkerStateMachine,
    stimulus_id: str,
    key: Any,
    run_id: int,
    error: tuple[Any, ...],
    startstops: list[dict[str, Any]],
) -> Any:
    ended = _Ended(key, startstops)
    ended.exception, ended.traceback, ended.exception_text, ended.traceback_text = error
    return instructions.TaskErredMsg.from_task(
        ended,  # type: ignore[arg-type]
        run_id=run_id,
        stimulus_id=stimulus_id,
        thread=state.threads.get(key),
    )


def _execute(_: Any, stimulus_id: str, key: Any, __: str | None) -> Any:
    return instructions.Execute(stimulus_id, key)


def _gather(_: Any, stimulus_id: str, worker: str, keys: set[Any], total_bytes: int) -> Any:
    return instructions.GatherDep(
        worker=worker, to_gather=keys, total_nbytes=total_bytes, stimulus_id=stimulus_id
    )


def _add_keys(_: Any, stimulus_id: str, key: Any) -> Any:
    return instructions.AddKeysMsg(keys=[key], stimulus_id=stimulus_id)


def _release(_: Any, stimulus_id: str, key: Any) -> Any:
    return instructions.ReleaseWorkerDataMsg(stimulus_id, key)


def _reschedule(_: Any, stimulus_id: str, key: Any) -> Any:
    return instructions.RescheduleMsg(stimulus_id, key)


def _long_running(_: Any, stimulus_id: str, key: Any, run_id: int, seconds: float | None) -> Any:
    return instructions.LongRunningMsg(
        key=key, run_id=run_id, compute_duration=seconds, stimulus_id=stimulus_id
    )


def _retry(_: Any, stimulus_id: str, worker: str) -> Any:
    return instructions.RetryBusyWorkerLater(stimulus_id, worker)


def _refresh(_: Any, stimulus_id: str, keys: list[Any]) -> Any:
    return instructions.RequestRefreshWhoHasMsg(stimulus_id, keys)


def _steal(_: Any, stimulus_id: str, key: Any, state: Any) -> Any:
    return instructions.StealResponseMsg(key=key, state=state, stimulus_id=stimulus_id)


_MAKERS: Final[dict[str, Callable[..., Any]]] = {
    "execute": _execute,
    "gather-dep": _gather,
    "task-finished": finished_message,
    "task-erred": _erred,
    "add-keys": _add_keys,
    "release-worker-data": _release,
    "reschedule": _reschedule,
    "long-running": _long_running,
    "retry-busy-worker-later": _retry,
    "request-refresh-who-has": _refresh,
    "steal-response": _steal,
}
