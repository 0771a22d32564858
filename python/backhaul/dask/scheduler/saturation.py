"""How many tasks may be in flight to one Dask worker: the policy alone.

Numbers in, a number out. Nothing here knows Dask, a clock or a connection; `window` reads
the numbers off the scheduler and acts on the answer.

A worker that holds no more tasks than it has threads waits a round trip for each new one. One that
holds many has a backlog that memory pays for, and that neither priorities nor idle workers can
reach. So the backlog is bounded by what it costs: by expected time, by expected bytes, by number,
by how well the guess is confirmed and by what is left to share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from backhaul.dask.config.settings import WindowLimits

__all__ = [
    "TURNAROUND_S",
    "Expectation",
    "InFlight",
    "excess_tasks",
    "floor_tasks",
    "room_tasks",
]

#: Time of a Dask worker for one task besides running it, in seconds: receiving, starting,
#: reporting. The worker's event loop does this for one task at a time, with any number of threads.
#: ``backhaul bench tasks`` measures this order of size: see ``docs/benchmarks/dask.md``.
TURNAROUND_S = 0.3e-3

#: An expectation that has grown by this much since it was last acted on is a wrong guess.
SURPRISE = 2.0

#: A kind of task is heavy if the budget holds fewer than this many times upstream's limit. So few
#: more would save no round trip that is worth the memory.
HEAVY_FLOORS = 4

_SECONDS_UP, _SECONDS_DOWN = 1 / 2, 1 / 8
_BYTES_DOWN = 1 / 16


class Expectation:
    """What the next task of a kind is expected to take, learnt from those that finished.

    Cautious: a longer task moves the expectation half way at once, a shorter one an eighth; a
    heavier one moves it all the way, a lighter one a sixteenth. So does one slow task among a
    thousand quick ones cost a few round trips, and one heavy task keeps its weight for a while.

    Attributes
    ----------
    seconds : float
        Expected duration, in seconds.
    nbytes : float
        Expected size of the output, in bytes.
    """

    __slots__ = ("_nbytes_alarm", "_seconds_alarm", "nbytes", "seconds")

    def __init__(self, seconds: float, nbytes: float) -> None:
        self.seconds = seconds
        self.nbytes = nbytes
        self.act()

    def observe(self, seconds: float, nbytes: float) -> bool:
        """Learn from a finished task.

        Parameters
        ----------
        seconds : float
            How long it ran, in seconds.
        nbytes : float
            Size of its output, in bytes.

        Returns
        -------
        bool
            Whether the guess that was last acted on was wrong: too short or too light.
        """
        error_s = seconds - self.seconds
        self.seconds += error_s * (_SECONDS_UP if error_s > 0 else _SECONDS_DOWN)
        if nbytes >= self.nbytes:
            self.nbytes = nbytes
        else:
            self.nbytes += (nbytes - self.nbytes) * _BYTES_DOWN
        return self.seconds > self._seconds_alarm or self.nbytes > self._nbytes_alarm

    @property
    def seconds_alarm(self) -> float:
        """What the expected duration may grow to before the guess was wrong, in seconds."""
        return self._seconds_alarm

    @property
    def is_heavier(self) -> bool:
        """Whether the guess was wrong because outputs are larger."""
        return self.nbytes > self._nbytes_alarm

    def act(self) -> None:
        """Note that tasks are now sent out on the strength of this guess."""
        # Below the turnaround a duration makes no difference.
        self._seconds_alarm = SURPRISE * max(self.seconds, TURNAROUND_S)
        self._nbytes_alarm = SURPRISE * self.nbytes


@dataclass(slots=True)
class InFlight:
    """The tasks in flight to one worker: sent, and not known to have finished.

    Parameters
    ----------
    threads : int
        Threads of the worker; positive.
    budget_bytes : float
        What the outputs may take, in bytes.
    tasks : int
        Number of tasks.
    seconds : float
        Expected time until all are done, in seconds.
    nbytes : float
        Expected size of their outputs, in bytes.
    """

    threads: int
    budget_bytes: float
    tasks: int = 0
    seconds: float = 0.0
    nbytes: float = 0.0

    def add(self, tasks: int, expectation: Expectation) -> None:
        """Count further tasks of one kind.

        Parameters
        ----------
        tasks : int
            How many.
        expectation : Expectation
            What each is expected to take.
        """
        self.tasks += tasks
        self.seconds += tasks * _turn_s(self, expectation)
        self.nbytes += tasks * expectation.nbytes


def floor_tasks(threads: int, saturation: float) -> int:
    """How many tasks upstream gives a worker, whatever they take.

    Parameters
    ----------
    threads : int
        Threads of the worker.
    saturation : float
        ``distributed.scheduler.worker-saturation``; finite.
    """
    return max(math.ceil(saturation * threads), 1)


def room_tasks(
    limits: WindowLimits,
    in_flight: InFlight,
    expectation: Expectation,
    *,
    floor_tasks: int,
    confirmed: int,
    queued: int,
    threads_all: int,
) -> int:
    """How many more tasks of one kind to send to a worker now.

    Parameters
    ----------
    limits : WindowLimits
        Its in-flight window.
    in_flight : InFlight
        What it has in flight.
    expectation : Expectation
        What each further task is expected to take.
    floor_tasks : int
        Tasks that it is given whatever they take.
    confirmed : int
        Tasks of this group that have finished.
    queued : int
        Tasks that wait for a worker.
    threads_all : int
        Threads of the cluster.

    Returns
    -------
    int
        Tasks to send; 0 if it has enough.

    Notes
    -----
    The number in flight beyond the floor never exceeds, over the whole cluster, the number of tasks
    that have confirmed the guess: it may double with each round, like the window of a TCP
    connection that starts (RFC 5681, section 3.1). And no worker is given more than half of its
    share of what is left, so that the workers end together: Factoring, S. F. Hummel, E. Schonberg
    and L. E. Flynn, Communications of the ACM 35(8) (1992) 90-101.
    """
    if in_flight.budget_bytes < HEAVY_FLOORS * floor_tasks * expectation.nbytes:
        return 0
    part = in_flight.threads / max(threads_all, in_flight.threads)
    room = min(
        limits.tasks_per_thread * in_flight.threads - in_flight.tasks,
        floor_tasks + confirmed * part - in_flight.tasks,
        queued * part / 2,
        _room_by_cost(limits, in_flight, expectation),
    )
    return max(0, math.floor(room))


def excess_tasks(
    limits: WindowLimits, in_flight: InFlight, expectation: Expectation, *, floor_tasks: int
) -> int:
    """How many tasks of one kind a worker has in flight that it should not.

    Parameters
    ----------
    limits : WindowLimits
        Its in-flight window.
    in_flight : InFlight
        What it has in flight.
    expectation : Expectation
        What each of the tasks is now expected to take.
    floor_tasks : int
        Tasks that it may have whatever they take.

    Returns
    -------
    int
        Tasks to take back; 0 if that is not worth the trouble, because they are less than half of
        what it has.
    """
    excess = min(
        math.ceil(-_room_by_cost(limits, in_flight, expectation)), in_flight.tasks - floor_tasks
    )
    return excess if 2 * excess >= in_flight.tasks and excess > 0 else 0


def _room_by_cost(limits: WindowLimits, in_flight: InFlight, expectation: Expectation) -> float:
    """Room for tasks of one kind by time and by bytes; negative if there are too many."""
    tasks_max = limits.tasks_per_thread * in_flight.threads
    by_time = (limits.seconds - in_flight.seconds) / _turn_s(in_flight, expectation)
    left_bytes = in_flight.budget_bytes - in_flight.nbytes
    if expectation.nbytes > 0:
        by_bytes = left_bytes / expectation.nbytes
    else:
        by_bytes = tasks_max if left_bytes >= 0 else -tasks_max
    return max(-tasks_max, min(by_time, by_bytes, tasks_max))


def _turn_s(in_flight: InFlight, expectation: Expectation) -> float:
    """Time from one task's end to the next one's, in seconds, while all threads are busy."""
    return max(expectation.seconds / in_flight.threads, TURNAROUND_S)
