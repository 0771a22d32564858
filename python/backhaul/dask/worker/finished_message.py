"""The ``task-finished`` message of a worker, and pickles of the classes that it names.

Dask pickles the class of each result. Threads that report tasks take the pickle of a class that is
compiled into a module from earlier messages. The message may contain a small result. A message that
a thread has sent already is marked as sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backhaul.dask.comm.already_sent import SentStimulusId, told
from backhaul.dask.compat.names import TaskFinishedMsg, WorkerStateMachine
from backhaul.dask.worker.inline_results import carrying

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
    """Make a `_get_task_finished_msg` that notes pickled classes, and adds a small result."""

    def _get_task_finished_msg(
        self: WorkerStateMachine, ts: Any, run_id: int, stimulus_id: str
    ) -> TaskFinishedMsg:
        message = original(self, ts, run_id=run_id, stimulus_id=stimulus_id)
        kind = ts.type
        if (
            type(kind) is type
            and not kind.__flags__ & _MADE_AT_RUN_TIME
            and len(_described) < _DESCRIBED_MAX
        ):
            _described[kind] = message.type, message.typename
        if type(stimulus_id) is SentStimulusId and stimulus_id.key == ts.key:
            return told(message)
        return carrying(self, ts, message)

    return _get_task_finished_msg
