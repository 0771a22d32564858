"""Events of Dask's for a state machine in Rust."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from backhaul._native import WorkerCore
from backhaul.dask.compat.names import instructions
from backhaul.dask.resource_pools.requests import ANNOTATION

__all__ = ["LOGGED", "Told", "handle", "handle_computed", "is_odd"]

#: Instructions for the worker, in the form of `WorkerCore`
Told: TypeAlias = list[tuple[Any, ...]]

#: Fields of the ``compute-task`` message, without those of the run spec
LOGGED: Final = (
    "stimulus_id",
    "key",
    "run_id",
    "who_has",
    "nbytes",
    "priority",
    "resource_restrictions",
    "actor",
    "annotations",
    "span_id",
)


def handle(core: WorkerCore, event: Any, handled_s: float) -> Told | None:
    """Handle an event in a core.

    Parameters
    ----------
    core : WorkerCore
        The state.
    event : StateMachineEvent
        An event of Dask. It may be changed, as Dask changes it.
    handled_s : float
        Time of handling, in seconds since 1970.

    Returns
    -------
    list of tuple or None
        The instructions for the worker; None, without any effect, if Dask has to handle the event.
    """
    handler = _HANDLERS.get(type(event))
    return None if handler is None else handler(core, event, handled_s)


def handle_computed(core: WorkerCore, message: dict[str, Any]) -> Told | None:
    """Handle a ``compute-task`` message of the scheduler in a core; as `handle`."""
    return None if is_odd(message) else core.compute(message)


def is_odd(message: dict[str, Any]) -> bool:
    """Tell whether a task requests resources by its annotations, which needs Python."""
    annotations = message["annotations"]
    return bool(annotations) and ANNOTATION in annotations


def _compute(core: WorkerCore, event: Any, _: float) -> Told | None:
    message = {name: getattr(event, name) for name in LOGGED}
    message["run_spec"] = event.run_spec
    return handle_computed(core, message)


def _success(core: WorkerCore, event: Any, _: float) -> Told | None:
    done = (event.value, event.nbytes, event.type, event.start, event.stop, event.stimulus_id)
    return core.succeeded(event.key, event.run_id, done)


def _failure(core: WorkerCore, event: Any, handled_s: float) -> Told | None:
    times = None if event.start is None or event.stop is None else (event.start, event.stop)
    logged = event.to_loggable(handled=handled_s)
    return core.failed(logged, event.key, event.run_id, _error_of(event), times)


def _error_of(event: Any) -> tuple[Any, ...]:
    return event.exception, event.traceback, event.exception_text, event.traceback_text


def _free(core: WorkerCore, event: Any, _: float) -> Told | None:
    return core.free(event.keys, event.stimulus_id)


def _gathered(core: WorkerCore, event: Any, handled_s: float) -> Told | None:
    logged = event.to_loggable(handled=handled_s)
    return core.gathered(logged, event.worker, event.total_nbytes, event.data)


def _not_gathered(why: str) -> Callable[[WorkerCore, Any, float], Told | None]:
    def handler(core: WorkerCore, event: Any, handled_s: float) -> Told | None:
        error = _error_of(event) if why == "failed" else None
        logged = event.to_loggable(handled=handled_s)
        return core.not_gathered(logged, event.worker, event.total_nbytes, why, error)

    return handler


def _of(
    method: Callable[..., Told | None], *names: str
) -> Callable[[WorkerCore, Any, float], Told | None]:
    """Make a handler that passes on fields of the event, in order."""

    def handler(core: WorkerCore, event: Any, handled_s: float) -> Told | None:
        values = [getattr(event, name) for name in names]
        return method(core, event.to_loggable(handled=handled_s), *values)

    return handler


def _pause(core: WorkerCore, event: Any, handled_s: float) -> Told:
    return core.set_running(event.to_loggable(handled=handled_s), False)


def _unpause(core: WorkerCore, event: Any, handled_s: float) -> Told:
    return core.set_running(event.to_loggable(handled=handled_s), True)


def _scattered(core: WorkerCore, event: Any, handled_s: float) -> Told | None:
    # The logged form has no values.
    return core.scattered(event.to_loggable(handled=handled_s), event.data)


def _find_missing(core: WorkerCore, event: Any, _: float) -> Told:
    return core.find_missing(event.stimulus_id)


_HANDLERS: Final[dict[type, Callable[[WorkerCore, Any, float], Told | None]]] = {
    instructions.ComputeTaskEvent: _compute,
    instructions.ExecuteSuccessEvent: _success,
    instructions.ExecuteFailureEvent: _failure,
    instructions.RescheduleEvent: _of(WorkerCore.rescheduled, "key"),
    instructions.SecedeEvent: _of(WorkerCore.seceded, "key", "compute_duration"),
    instructions.FreeKeysEvent: _free,
    instructions.GatherDepSuccessEvent: _gathered,
    instructions.GatherDepBusyEvent: _not_gathered("busy"),
    instructions.GatherDepNetworkFailureEvent: _not_gathered("gone"),
    instructions.GatherDepFailureEvent: _not_gathered("failed"),
    instructions.RemoveWorkerEvent: _of(WorkerCore.peer_left, "worker"),
    instructions.RetryBusyWorkerEvent: _of(WorkerCore.retry, "worker"),
    instructions.StealRequestEvent: _of(WorkerCore.steal, "key"),
    instructions.CancelComputeEvent: _of(WorkerCore.cancel, "key"),
    instructions.PauseEvent: _pause,
    instructions.UnpauseEvent: _unpause,
    instructions.RemoveReplicasEvent: _of(WorkerCore.remove_replicas, "keys"),
    instructions.AcquireReplicasEvent: _of(WorkerCore.acquire_replicas, "nbytes", "who_has"),
    instructions.RefreshWhoHasEvent: _of(WorkerCore.refresh_who_has, "who_has"),
    instructions.UpdateDataEvent: _scattered,
    instructions.FindMissingEvent: _find_missing,
}
