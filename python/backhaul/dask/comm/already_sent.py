"""Reports that a worker's thread has sent before the state machine handled the end of a task.

The state machine goes through the same steps, and makes the same message, which is not sent again.
"""

from __future__ import annotations

from typing import Any, Final

from backhaul.dask.compat.names import TaskFinishedMsg

__all__ = ["ALREADY_SENT", "SentStimulusId", "told"]

#: Stands for a message that has been sent
ALREADY_SENT: Final[dict[str, Any]] = {"op": "backhaul-told"}


class SentStimulusId(str):
    """A stimulus id that the scheduler already has, with the end of one task.

    Attributes
    ----------
    key : key
        Of the task.
    """

    __slots__ = ("key",)

    key: Any


class _ToldTaskFinishedMsg(TaskFinishedMsg):
    """A message that a task has finished, which has been sent."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        return ALREADY_SENT


def told(message: TaskFinishedMsg) -> TaskFinishedMsg:
    """Make a message one that has been sent."""
    # A class of the same slots: what the message says stays.
    message.__class__ = _ToldTaskFinishedMsg
    return message
