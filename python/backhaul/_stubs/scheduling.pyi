"""Parts of a scheduler beside its core: the in-flight window, runs, and tasks that move."""

from typing import final

from backhaul._stubs.scheduler_core import SchedulerCore

@final
class WorkerLoad:
    """Room of a worker, and the tasks in flight to it by prefix; internal.

    Parameters
    ----------
    threads : int
        Threads of the worker.
    memory_limit : int
        Memory that it may use, in bytes; 0 if that is not limited.
    used_bytes : float
        Memory in use there.
    tasks : dict of str to int
        Tasks that were sent and are not known to have ended, by prefix.
    """

    def __new__(
        cls, *, threads: int, memory_limit: int, used_bytes: float, tasks: dict[str, int]
    ) -> WorkerLoad: ...

@final
class WindowPolicy:
    """Policy of the in-flight window: how many tasks a worker is sent ahead of time; internal.

    Parameters
    ----------
    seconds : float
        Expected work for each thread, in seconds.
    tasks_per_thread : float
        Most tasks for each thread, however short.
    memory_share : float
        Share of its free memory that expected results may take.
    memory_budget_bytes : float
        The same in bytes, for a worker whose memory is not limited.
    saturation : float
        ``distributed.scheduler.worker-saturation``.
    """

    def __new__(
        cls,
        *,
        seconds: float,
        tasks_per_thread: float,
        memory_share: float,
        memory_budget_bytes: float,
        saturation: float,
    ) -> WindowPolicy: ...
    def learned(self) -> tuple[list[tuple[str, float, float]], list[tuple[str, int]]]:
        """Return the expected seconds and bytes by prefix, and the finished tasks by group."""

    def replace(
        self, expectations: list[tuple[str, float, float]], confirmed: list[tuple[str, int]]
    ) -> None:
        """Replace what was learned by the same of another window."""

    def observe(
        self, group: str, prefix: str, seconds: float, nbytes: float, *, patiently: bool = False
    ) -> bool:
        """Learn from a finished task; tell whether the expectation last acted on was wrong.

        Parameters
        ----------
        group, prefix : str
            Of the task.
        seconds : float
            Its duration, in seconds.
        nbytes : float
            Size of its result, in bytes.
        patiently : bool, default False
            Wait for several long tasks in a row, because a few may have waited for a CPU.
        """

    def is_low(self, worker: str, tasks: int) -> bool:
        """Tell whether a worker has so few tasks in flight that it is filled again."""

    def note_filled(self, worker: str, tasks: int, threads: int) -> None:
        """Note how many tasks a worker has in flight after it was filled."""

    def room(
        self,
        group: str,
        prefix: str,
        worker: WorkerLoad,
        *,
        duration_s: float,
        queued: int,
        threads_all: float,
    ) -> int:
        """Return how many more tasks of a group to send to a worker now.

        Parameters
        ----------
        group, prefix : str
            Of the task at the front of the queue.
        worker : WorkerLoad
            The worker.
        duration_s : float
            Upstream's expected duration of the prefix; negative if upstream has forgotten it.
        queued : int
            Tasks that wait for a worker.
        threads_all : float
            Threads of the cluster.
        """

    def excess(self, prefix: str, workers: list[WorkerLoad]) -> list[int]:
        """Return how many tasks of a prefix to take back from each worker.

        0 where so few are too many that it is not worth the requests.
        """

    def set_memory(self, worker: str, bytes: float) -> None:
        """Note how much memory a worker uses, for `refill` and `has_too_many`."""

    def refill(self, core: SchedulerCore, worker: str, stimulus: str, now_s: float) -> None:
        """Fill a worker of a core if it is down to the limit at which it is filled again."""

    def has_too_many(self, core: SchedulerCore, prefix: str) -> bool:
        """Tell whether a worker of a core has so many tasks that it is worth to take some back."""

@final
class RunRecord:
    """Ring buffer of the last runs of a scheduler that ended well.

    Parameters
    ----------
    runs_max : int
        Most runs; the oldest is dropped first.
    """

    def __new__(cls, runs_max: int) -> RunRecord: ...
    def add(
        self,
        *,
        key: str,
        prefix: str,
        worker: str,
        thread: int | None,
        nbytes: int,
        actions: list[tuple[str, float, float]],
    ) -> None:
        """Append a run: its actions are names with begin and end, in seconds."""

    def since(
        self, start_s: float
    ) -> tuple[
        list[tuple[str, str, str, int | None, int, list[tuple[str, float, float]]]],
        int,
    ]:
        """Return the runs that ended at or after a time, and how many were dropped so far.

        Parameters
        ----------
        start_s : float
            Time, in seconds since the epoch.

        Returns
        -------
        list of tuple, int
            Key, prefix, worker, thread, bytes of the result and actions of each run; the count.
        """

@final
class StealRequest:
    """A request to move a task from a busy worker to an idle one."""

    @property
    def level(self) -> int:
        """Level of its cost."""

    @property
    def key(self) -> str:
        """Key of the task."""

    @property
    def cost_s(self) -> float:
        """By how much the victim is less busy then, in seconds."""

    @property
    def victim(self) -> str:
        """Address of the worker that has the task."""

    @property
    def victim_s(self) -> float:
        """How long the victim is busy, in seconds."""

    @property
    def thief(self) -> str:
        """Address of the worker that is to get the task."""

    @property
    def thief_s(self) -> float:
        """How long the thief is busy, in seconds."""

@final
class StealOutcome:
    """The outcome of a worker's answer to a request to move a task."""

    @property
    def outcome(self) -> str:
        """Outcome as Dask logs it, or ``"unknown"``."""

    @property
    def is_thief_gone(self) -> bool:
        """True if the thief has left the cluster."""

    @property
    def victim(self) -> str:
        """Address of the worker that had the task; empty if nothing is known of the request."""

    @property
    def thief(self) -> str:
        """Address of the worker that was to get the task, likewise."""

@final
class ReplicatedTask:
    """A result that several workers hold."""

    @property
    def key(self) -> str:
        """Key of the task."""

    @property
    def nbytes(self) -> int:
        """Size of the result, in bytes; -1 if that is not known."""

    @property
    def actor(self) -> bool:
        """True if the result is an actor."""

    @property
    def who_has(self) -> list[str]:
        """Addresses of the workers that hold the result."""

    @property
    def waiters(self) -> list[tuple[str, str | None]]:
        """Keys of tasks that wait for the result, and the worker that has each, if any."""
