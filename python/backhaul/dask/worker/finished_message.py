"""The ``task-finished`` message of a worker, with the class of the result pickled only once.

Dask pickles the class of each result. Here a class that is compiled into a module is pickled once.
The message may contain a small result. A message that a thread has sent already is marked as sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backhaul.dask.comm.already_sent import SentStimulusId, told
from backhaul.dask.compat.names import TaskFinishedMsg, WorkerStateMachine
from backhaul.dask.worker.inline_results import CarryingTaskFinishedMsg, carried_value, carrying

__all__ = ["described_class", "quick_finished_message"]

#: Pickles and names of classes for which they are always the same: those that are compiled into a
#: module
_described: dict[type, tuple[bytes, str]] = {}
_DESCRIBED_MAX = 1000
#: ``Py_TPFLAGS_HEAPTYPE``: the class was made while the program ran.
_MADE_AT_RUN_TIME = 1 << 9


def described_class(kind: Any) -> tuple[bytes, str] | None:
    """Return the pickle and the name of a class as Dask sends them; None if they are not known."""
    return _described.get(kind)


def quick_finished_message(original: Callable[..., TaskFinishedMsg]) -> Callable[..., Any]:
    """Make a `_get_task_finished_msg` that pickles a class like `int` once."""

    def _get_task_finished_msg(
        self: WorkerStateMachine, ts: Any, run_id: int, stimulus_id: str
    ) -> TaskFinishedMsg:
        is_told = type(stimulus_id) is SentStimulusId and stimulus_id.key == ts.key
        kind = ts.type
        described = None if self.validate else _described.get(kind)
        if described is None:
            message = original(self, ts, run_id=run_id, stimulus_id=stimulus_id)
            if (
                type(kind) is type
                and not kind.__flags__ & _MADE_AT_RUN_TIME
                and len(_described) < _DESCRIBED_MAX
            ):
                _described[kind] = message.type, message.typename
            return told(message) if is_told else carrying(self, ts, message)
        assert ts.nbytes is not None
        value = None if is_told else carried_value(self, ts, ts.nbytes)
        finished: Any = object.__new__(
            TaskFinishedMsg if value is None else CarryingTaskFinishedMsg
        )
        finished.key = key = ts.key
        finished.run_id = run_id
        finished.nbytes = ts.nbytes
        finished.type, finished.typename = described
        finished.metadata = ts.metadata
        finished.thread = self.threads.get(key)
        finished.startstops = ts.startstops
        finished.stimulus_id = stimulus_id
        if value is not None:
            finished.value = value
        return told(finished) if is_told else finished

    return _get_task_finished_msg
