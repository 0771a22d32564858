"""Resources with identity: requests, the units of a worker, and the rooms of a scheduler."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, final

@final
class ResourceRequest:
    """Request of one task for resources; equal requests are equal, and hash alike.

    Parameters
    ----------
    needs : mapping of str to float
        Amounts in units, by name; those of nothing are left out.
    affinity : sequence of str
        Names of those of which the units are preferred that the inputs ran on.

    Raises
    ------
    ValueError
        If an amount is negative, no number, or too fine, or an affinity is to something that is not
        asked for.
    """

    def __new__(
        cls, needs: Mapping[str, float], affinity: Sequence[str] = ...
    ) -> ResourceRequest: ...
    @property
    def needs(self) -> dict[str, float]:
        """Amounts by name, without those of nothing."""

    @property
    def affinity(self) -> list[str]:
        """Names of the resources of which the units are preferred that the inputs ran on."""

    def __getnewargs__(self) -> tuple[dict[str, float], list[str]]: ...
    def __hash__(self) -> int: ...

@final
class ResourcePools:
    """The pools of one worker, and the leases of what is taken from them.

    Parameters
    ----------
    declared : dict
        By name: a whole number of units, counted from zero; ids like ``[0, 1]``; groups of ids like
        ``[[0, 1], [2, 3]]``; or, as a float, an amount. A whole number above 4096 is an amount too.
    coupled : dict, optional
        Ids of other pools that are near to some ids, like ``{"GPU": {0: {"NIC": [1]}}}``; they
        are near to each other. Of ids of the same pool, seconds that a byte takes to each:
        ``{"GPU": {0: {"GPU": {1: 5e-11}}}}``; else it is 20 GB/s within a group and 6 GB/s beyond.
    passes_max : int, optional
        Leases that may go past a request that waits, see `granted`; 16 by default.

    Raises
    ------
    ValueError
        If groups overlap, ids are unknown, or amounts or seconds are none.
    TypeError
        If something declared is neither a number nor ids.
    """

    def __new__(
        cls,
        declared: dict[str, Any],
        *,
        coupled: dict[str, dict[int, dict[str, list[int] | dict[int, float]]]] | None = None,
        passes_max: int = ...,
    ) -> ResourcePools: ...
    def declare(
        self,
        declared: dict[str, Any],
        *,
        coupled: dict[str, dict[int, dict[str, list[int] | dict[int, float]]]] | None = None,
    ) -> None:
        """Replace all that was declared by a new declaration; leases go on."""

    def unmeetable(self, request: ResourceRequest) -> str | None:
        """Say why a request can never be met here; None if it can."""

    def take(
        self,
        request: ResourceRequest,
        inputs: Mapping[str, Sequence[tuple[int, float]]] | None = None,
    ) -> int | None:
        """Take all that a request asks for, or nothing: the number of a lease, or None.

        Parameters
        ----------
        request : ResourceRequest
            Request of the task.
        inputs : mapping of str to sequence of tuple, optional
            Units that the inputs ran on, with their bytes, by name.

        Raises
        ------
        ValueError
            If it can never be met.
        """

    def is_free(self, request: ResourceRequest) -> bool:
        """Tell whether all that a request asks for is free, and may be taken by it.

        Raises
        ------
        ValueError
            If it can never be met.
        """

    def refused(
        self, request: ResourceRequest, stands: Sequence[float], *, threads: float = 1.0
    ) -> None:
        """Note that the first task of a request waits, and where it stands among all tasks.

        Tasks with the same request and other `threads` are another kind.
        """

    def granted(
        self, request: ResourceRequest, stood: Sequence[float], *, threads: float = 1.0
    ) -> None:
        """Note that a task has taken what it asks for, and where it stood among all tasks.

        After `passes_max` leases of tasks that come after the first one of a request, for something
        that it needs too, what it needs is lent to no other one until it has taken it; for one
        request at a time.
        """

    def left(self, request: ResourceRequest, *, threads: float = 1.0) -> bool:
        """Note that no task waits with a request any more; tell whether units were kept for it."""

    def is_kept(self, request: ResourceRequest, *, threads: float = 1.0) -> bool:
        """Tell whether units are kept for a request."""

    @property
    def passes_max(self) -> int:
        """Leases that may go past a request that waits."""

    @property
    def keeps(self) -> bool:
        """True if units are kept for a request."""

    def give_back(self, lease: int) -> None:
        """Give back all that a lease holds.

        Raises
        ------
        KeyError
            If it was given back before.
        """

    def held(self, lease: int) -> dict[str, Any]:
        """Tell what a lease holds: by name, units as a tuple, or an amount as a float."""

    def amounts(self) -> dict[str, tuple[float, float]]:
        """Tell how much there is and how much of it is free, by name."""

    def units(self, resource: str) -> dict[int, float] | None:
        """Tell how much of each unit is free; None for a sum, or what is not there."""

    @property
    def leases(self) -> int:
        """How many leases there are."""

@final
class ResourcePlaces:
    """Requests of a scheduler's tasks: workers with room, and tasks that hold units or wait.

    Workers, requests and tasks go by numbers here; that of a task is its `id`.
    """

    def __new__(cls) -> ResourcePlaces: ...
    def set_worker(self, place: int, declared: dict[str, Any]) -> None:
        """Know of a worker, or of what it has now; what is booked there stays booked."""

    def set_running(self, place: int, runs: bool) -> None:
        """Note whether a worker may be sent tasks."""

    def remove_worker(self, place: int, tasks: Sequence[int]) -> None:
        """Forget a worker, all that is booked there, and what these tasks of it hold."""

    def request(self, amounts: Sequence[tuple[str, float]], threads: float) -> int:
        """Give a request of resources and threads its number, the same for equal ones.

        Raises
        ------
        ValueError
            If that cannot be asked for.
        """

    def least_loaded(self, signature: int) -> int | None:
        """Return the running worker that would be the least loaded with one more such task.

        One that is kept for another request that needs the same is left out.
        """

    def has_room(self, signature: int, place: int) -> bool:
        """Tell whether a worker may be given one more such task, to run or to wait."""

    def choose(
        self,
        signature: int,
        transfers_s: Sequence[tuple[int, float]],
        duration_s: float,
        keeps: bool,
    ) -> int | None:
        """Choose, of the workers with room, the one where a task can begin first.

        Parameters
        ----------
        signature : int
            The task's request.
        transfers_s : sequence of (int, float)
            Candidates, and the seconds until each has the task's inputs.
        duration_s : float
            Expected duration of a task that the task would wait for at a worker; 0 to ignore it.
        keeps : bool
            Whether tasks wait for room at the scheduler: a worker without room gets none then.
        """

    def book(
        self,
        task: int,
        signature: int,
        place: int,
        priority: Sequence[float] | None,
        counts: bool,
    ) -> None:
        """Note that a task was sent to a worker.

        `counts` says whether it takes less than a thread and is not counted there yet. If others
        have gone past a request too often, a worker is kept for it.
        """

    def inherit_booking(self, task: int, signature: int, place: int, counts: bool) -> None:
        """Note that a worker has a task, which was sent there before."""

    def release(self, task: int, place: int | None) -> None:
        """Note that a task has left a worker, or has given back what it held there.

        `place` is None if the worker has left.
        """

    def beside(self, place: int) -> int:
        """Count tasks of a worker that take less than a thread."""

    def booked(self, signature: int, place: int) -> int:
        """Count such tasks that a worker was given, and has."""

    def wait(
        self,
        task: int,
        signature: int,
        workers: list[str],
        hosts: list[str],
        loose: bool,
        priority: Sequence[float] | None,
    ) -> str | None:
        """Keep a task that no worker has room for; return why none ever will, if that is so.

        `workers` and `hosts` are those that the task is bound to, `loose` says whether it may run
        elsewhere while none of these can run it.
        """

    def join_line(
        self,
        task: int,
        signature: int,
        workers: list[str],
        hosts: list[str],
        loose: bool,
        priority: Sequence[float] | None,
    ) -> None:
        """Put a task into its line, in which it waited before."""

    def leave_line(self, task: int) -> None:
        """Take a task out of the line in which it waits."""

    @property
    def has_lines(self) -> bool:
        """True if tasks wait, or did until the last `drain`."""

    def drain(
        self,
        waits: Callable[[int], bool],
        may_go: Callable[[int], bool],
        send: Callable[[int], bool],
    ) -> None:
        """Send as many of the tasks that wait as workers have room for, the first ones first.

        Parameters
        ----------
        waits : callable
            Tells whether a task still waits.
        may_go : callable
            Tells whether a worker that a task is bound to may have room.
        send : callable
            Sends a task, and tells whether it still waits after that.
        """

    def state(
        self,
        booked: list[str],
        waiting: dict[int, str],
        addresses: dict[int, str],
        *,
        drains: bool,
    ) -> RoomState:
        """Return what another scheduler has to know.

        Parameters
        ----------
        booked : list of str
            Keys of tasks that hold what they ask for.
        waiting : dict
            Key of each task that still waits.
        addresses : dict
            Address of each worker.
        drains : bool
            Whether something has come back that a task may wait for.
        """

    def inherit(self, state: RoomState, places: dict[str, int]) -> None:
        """Take over requests that wait; their tasks are booked and in lines.

        `places` has the number of each worker by address.

        Raises
        ------
        KeyError
            If a worker is named that is not there.
        """

    def clear(self) -> None:
        """Forget all workers and tasks, but no request: another scheduler continues."""

@final
class PassedRequest:
    """A request that waits, and that others may have gone past."""

    @property
    def amounts(self) -> list[tuple[str, float]]:
        """How much of what it asks for, threads left out."""

    @property
    def threads(self) -> float:
        """How many threads it takes."""

    @property
    def stands(self) -> list[float]:
        """Priority of its first task."""

    @property
    def passes(self) -> int:
        """How many leases went past it."""

@final
class UnmetRequest:
    """A request that no worker can ever meet."""

    @property
    def key(self) -> str:
        """Key of the task that was the first to ask so."""

    @property
    def amounts(self) -> list[tuple[str, float]]:
        """How much of what it asks for, threads left out."""

    @property
    def threads(self) -> float:
        """How many threads it takes."""

    @property
    def reason(self) -> str:
        """The missing resource."""

@final
class RoomState:
    """Which tasks hold what they ask for and which wait, as another scheduler goes on from it."""

    @property
    def booked(self) -> list[str]:
        """Keys of tasks that hold what they ask for."""

    @property
    def waiting(self) -> list[str]:
        """Keys of tasks that wait, each line in the order in which it would go."""

    @property
    def passed(self) -> list[PassedRequest]:
        """Requests that wait, and others may have gone past."""

    @property
    def kept(self) -> int | None:
        """Place in `passed` of the request that a worker is kept for."""

    @property
    def kept_worker(self) -> str | None:
        """Address of the worker that is kept for it."""

    @property
    def served(self) -> list[str]:
        """Addresses of workers that were sent such tasks, the one served longest ago first."""

    @property
    def drains(self) -> bool:
        """True if something has come back that a task may wait for, and nothing was sent yet."""

    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
