"""States of an item: one task that a thread of a worker runs, until its end is reported.

The thread and the event loop advance the item in turn. The lock of the local queue is held where
both may do so: for early tasks, and for the tasks of the queue.
"""

from __future__ import annotations

from backhaul.dask.worker.transitions import State, set_transitions

__all__ = ["ABANDONED", "ENDED", "READY", "REPORTED", "STARTED", "TAKEN", "ItemState"]


class ItemState(State):
    """Owner and progress of a task."""

    #: No thread has the task, and the state machine has not started it
    READY = "ready"
    #: A thread has the task, and the state machine has not started it
    TAKEN = "taken"
    #: A thread has ended the task, and the state machine has not started it
    ENDED = "ended"
    #: The state machine has started the task, which may have ended already
    STARTED = "started"
    #: The state machine has the end of the task
    REPORTED = "reported"
    #: The state machine does not want the task; a thread may still run it
    ABANDONED = "abandoned"


# Read from a module, a state costs a fifth of the time that it costs from its class.
READY, TAKEN, ENDED, STARTED, REPORTED, ABANDONED = ItemState

set_transitions(
    {
        READY: (
            TAKEN,  # `claim`
            STARTED,  # `name`
        ),
        TAKEN: (
            ENDED,  # `tell_ahead`, `finish`
            STARTED,  # `name`
            ABANDONED,  # `disown`
        ),
        ENDED: (
            REPORTED,  # `settle`, `settle_in`
            STARTED,  # `name`
            ABANDONED,  # `disown`
        ),
        STARTED: (REPORTED,),  # `finish`
        REPORTED: (),
        ABANDONED: (),
    }
)
