"""The scheduler's state in Rust."""

from typing import Any, final

from backhaul._stubs.codec import TaskCalls, TaskGraph
from backhaul._stubs.placement import Placement
from backhaul._stubs.resources import RoomState, UnmetRequest
from backhaul._stubs.scheduling import ReplicatedTask, RunRecord, StealOutcome, StealRequest

@final
class SchedulerCore:
    """The state of a scheduler in Rust: events in, messages and attributes out; internal.

    Times are in seconds of a clock that only goes forward. Each
    ``handle_*`` raises ``KeyError`` for tasks, workers and clients that are not known, and
    ``RuntimeError`` where upstream raises in the middle of an event.

    Parameters
    ----------
    **settings : object
        Fields of ``Config`` in ``crates/dask/src/scheduler/config.rs``.

    Raises
    ------
    ValueError
        If there is no such setting, or it is out of range.
    """

    def __new__(cls, **settings: Any) -> SchedulerCore: ...
    @staticmethod
    def inherit(said: dict[str, Any], streams: list[str], /, **settings: Any) -> SchedulerCore:
        """Make a core with the state of another scheduler.

        Parameters
        ----------
        said : dict
            The state as `dump` says it, but for two lists of dicts: ``tasks``, in which what is
            None or empty is left out, and ``groups``, by serial, those that are gone included.
        streams : list of str
            Clients that have a stream.
        **settings
            As for the class.

        Raises
        ------
        LookupError
            If something is not said, or a worker, client, prefix, group or task is named that is
            not said.
        TypeError, OverflowError
            If a value is not of the type, or in the range, that the core has for it.
        ValueError
            If there is no such setting, or not of this value.
        """

    def take_messages(self) -> list[tuple[str, str | None, dict[str, Any]]]:
        """Take the messages to send: "worker" or "client", name or None for all, and message."""

    def take_transitions(self) -> list[tuple[str, str, str]]:
        """Take the transitions since the last call: key, start, finish."""

    def recent_transitions(self) -> list[tuple[str, str, str, str, float]]:
        """Say the last transitions: key, start, finish, stimulus, time in seconds.

        The oldest first, as many as the setting ``recent_transitions_max``; none by default.
        """

    def dump(self, tasks: bool = True) -> dict[str, Any]:
        """Say all attributes, by upstream's names; with ``tasks`` false, none of single tasks."""

    def keys(self) -> list[str]:
        """Keys of all tasks, in the order in which they came."""

    def task(self, key: str) -> dict[str, Any]:
        """Say all attributes of one task, by upstream's names; payloads are bytes."""

    def has_task(self, key: str) -> bool:
        """Tell whether there is a task of this key."""

    def task_count(self) -> int:
        """Count the tasks."""

    def transition_count(self) -> int:
        """Count the transitions so far."""

    def is_idle(self) -> bool:
        """Tell whether no task is waiting, queued or processing."""

    def is_group_done(self, name: str) -> bool:
        """Tell whether no task of a group is; also if there is no such group."""

    def has_any(self, name: str) -> bool:
        """Tell if there are ``queued``, ``unrunnable``, ``replicated_tasks``, ``erred_tasks``."""

    def count_in(self, name: str, of: str) -> int:
        """Count the tasks of a collection.

        Parameters
        ----------
        name : str
            ``processing``, ``long_running``, ``has_what``, ``actors``, ``wants_what``, ``queued``.
        of : str
            Address of the worker, or name of the client; of ``queued`` nothing.
        """

    def keys_in(self, name: str, of: str, keys_max: int | None = None) -> list[str]:
        """List the keys of its tasks, in its order, or the first of them."""

    def task_value(self, key: str, name: str) -> Any:
        """Say one attribute of a task, as `task` does.

        Raises
        ------
        KeyError
            If there is no such task.
        """

    def is_in(self, name: str, of: str, key: str) -> bool:
        """Tell whether a task is one of them."""

    def state_of(self, key: str) -> str | None:
        """Tell the state of a task; None if there is none."""

    def worker_load(self, address: str) -> tuple[float, int, list[tuple[str, int]]]:
        """Tell a worker's occupancy in seconds, the bytes it is to fetch, its tasks by prefix."""

    def cluster_load(self) -> dict[str, Any]:
        """Say who is idle and saturated, and what is counted of all, by upstream's names."""

    def group_names(self) -> list[tuple[str, str]]:
        """Name the groups, each with its prefix, in the order in which they came."""

    def prefix_names(self) -> list[str]:
        """Name the prefixes, in the order in which they were first met."""

    def group(self, name: str) -> dict[str, Any] | None:
        """Say all attributes of a group, as `dump` does; None if it has no tasks."""

    def prefix(self, name: str) -> dict[str, Any] | None:
        """Say all attributes of a prefix, as `dump` does; None if it was never met."""

    def record_runs(self, record: RunRecord) -> None:
        """Append each run that ends well to a record from now on."""

    def watch(self, name: str) -> None:
        """Begin to note ``runs`` that end well, all ``ends``, or ``nothing``."""

    def take_noted(self) -> list[tuple[str, str, str, dict[str, Any]]]:
        """Take those since the last call: key, start, finish, and what Dask tells plugins besides.

        Of what failed or is forgotten it is the stimulus alone.
        """

    def worker_bytes(self, address: str) -> int:
        """Add up the bytes of the results that a worker holds."""

    def holders_of(self, key: str) -> list[str]:
        """List the addresses of the workers that hold a result."""

    def running_task(
        self, key: str, address: str, run_id: int
    ) -> tuple[str, str, list[str]] | None:
        """Look at a task that a worker has been sent; None if it has not, or not any more.

        Returns
        -------
        tuple of str, str and list of str, or None
            Its group, its prefix, and the clients that want its result; none of the latter if
            another run counts.
        """

    def replicated_tasks(self) -> list[ReplicatedTask]:
        """List the results that several workers hold."""

    def file_worker(self, address: str, busy_s: float) -> None:
        """File a worker anew as idle or saturated, as a caller has asked.

        Parameters
        ----------
        address : str
            Of the worker.
        busy_s : float
            How long it is busy, in seconds; negative: as it is.

        Raises
        ------
        KeyError
            If the core does not know it.
        """

    def may_balance(self) -> bool:
        """Tell whether one worker is idle while another has too much."""

    def note_forgotten(self, note: bool) -> None:
        """Begin to note which tasks are forgotten, or stop."""

    def take_forgotten(self) -> list[str]:
        """Take the keys of tasks forgotten since the last call."""

    def take_gone_groups(self) -> list[dict[str, Any]]:
        """Take the groups whose tasks were all forgotten since the last call, as they were last."""

    def log_transitions(self, log: bool) -> None:
        """Begin to log transitions, as a new core does, or stop."""

    def handle_graph(self, stimulus: str, now_s: float, /, **parts: Any) -> tuple[int, int] | None:
        """Take a graph; return how many tasks are new and collide; None: it needs what is lost."""

    def knows_needs(self, calls: TaskCalls) -> bool:
        """Tell whether all that calls depend on are tasks."""

    def handle_calls(
        self,
        stimulus: str,
        now_s: float,
        calls: TaskCalls,
        /,
        *,
        spans: list[tuple[str, str | None]],
        client: str,
        submitting_task: str | None,
        fifo_timeout_s: float,
    ) -> tuple[int, int]:
        """Take calls as tasks, given the spans of groups; return how many are new and collide."""

    def knows_needs_of_graph(self, graph: TaskGraph) -> bool:
        """Tell whether all that a graph names are tasks of it, or known."""

    def handle_task_graph(
        self,
        stimulus: str,
        now_s: float,
        graph: TaskGraph,
        /,
        *,
        spans: list[tuple[str, str | None]],
        client: str,
        submitting_task: str | None,
        fifo_timeout_s: float,
    ) -> tuple[int, int]:
        """Take a graph, given the spans of groups; return how many tasks are new and collide."""

    def handle_task_finished(
        self,
        stimulus: str,
        now_s: float,
        /,
        *,
        key: str,
        worker: str,
        run_id: int,
        nbytes: int,
        type: bytes,
        typename: str,
        startstops: list[tuple[str, float, float]],
        thread: int | None = None,
    ) -> None:
        """Take a task that ended well.

        Parameters
        ----------
        run_id : int
            The run; a number that no run has, such as -1, is that of none, here and elsewhere.
        nbytes : int
            Size of the result, in bytes; at most 2⁴⁸.
        """

    def handle_task_erred(
        self,
        stimulus: str,
        now_s: float,
        /,
        *,
        key: str,
        worker: str,
        run_id: int,
        exception: bytes,
        traceback: bytes | None,
        exception_text: str,
        traceback_text: str,
    ) -> None:
        """Take a task that failed."""

    def handle_reschedule(self, stimulus: str, now_s: float, key: str, worker: str | None) -> None:
        """Take a task that its worker gives back."""

    def handle_long_running(
        self,
        stimulus: str,
        now_s: float,
        key: str,
        worker: str,
        run_id: int,
        compute_s: float | None,
    ) -> None:
        """Take a task that has left its thread."""

    def handle_worker_added(
        self,
        stimulus: str,
        now_s: float,
        /,
        *,
        address: str,
        name: str,
        host: str,
        nthreads: int,
        memory_limit: int,
        status: str,
        resources: dict[str, float],
        bandwidth_bytes_per_s: float,
    ) -> None:
        """Take a worker that joins."""

    def handle_worker_removed(
        self, stimulus: str, now_s: float, address: str, expected: bool, close: bool
    ) -> None:
        """Take a worker that has gone, or is sent away."""

    def handle_worker_lost(self, stimulus: str, now_s: float, address: str, expected: bool) -> None:
        """Take a worker that has gone, of which the caller tells it and the others."""

    def handle_worker_status(self, stimulus: str, now_s: float, address: str, status: str) -> None:
        """Take a worker that pauses or goes on."""

    def place_by_links(
        self, placement: Placement, result_bytes: list[tuple[str, float]], memory_target: float, /
    ) -> None:
        """Place tasks by what links cost from now on, as `backhaul.dask.placement` does.

        Parameters
        ----------
        placement : Placement
            Record of links and of workers, in which a worker is entered before the core gets it.
        result_bytes : list of tuple of str and float
            By prefix the size to expect of a result, in bytes.
        memory_target : float
            How much of its memory limit a worker holds before it spills.

        Raises
        ------
        ValueError
            If that is no number above 0.
        """

    def placing(self) -> dict[str, Any] | None:
        """Say what is known besides for placing tasks by links; None unless that has begun.

        Returns
        -------
        dict
            ``result_bytes`` by prefix; ``hints``, by key of a root that no worker has been given,
            the address of the worker that is to run it; ``own``, by address the keys of its roots
            in order, each with whether that task is there still; ``promised``, number and key of
            each result that is promised, and to which address.
        """

    def begin_stealing(self, fast: list[str], requests: int) -> None:
        """Begin to file tasks that may be moved, but those of some prefixes.

        Parameters
        ----------
        fast : list of str
            The prefixes.
        requests : int
            How many requests there have been, which are numbered.
        """

    def inherit_stealing(self, said: dict[str, Any]) -> None:
        """Take over what another scheduler knew of stealing, in the form of `stealing`.

        To be called after `begin_stealing`; without that nothing is taken over.

        Raises
        ------
        LookupError
            If something is not said, or a worker, prefix or task is named that is not known. The
            core must not be used then.
        """

    def balance(self, now_s: float) -> list[StealRequest]:
        """Ask busy workers for tasks that idle ones take."""

    def confirm_steal(
        self, stimulus: str, now_s: float, key: str, state: str | None
    ) -> StealOutcome:
        """Take the answer of a worker that was asked for a task."""

    def stealing(self) -> dict[str, Any] | None:
        """Say what is known of tasks that may be moved; None unless that has begun.

        Returns
        -------
        dict
            ``stealable``, by worker and level the keys; ``in_flight``, key, victim, thief, seconds
            of both and stimulus; ``occupancy`` and ``tasks``, by worker what it gains and loses by
            those; ``unknown``, by prefix the keys of tasks of unknown duration; ``requests``.
        """

    def handle_heartbeat(
        self, address: str, bandwidth_bytes_per_s: float, executing: list[tuple[str, float]]
    ) -> None:
        """Take what a worker measured."""

    def handle_resources(
        self, stimulus: str, now_s: float, address: str, resources: dict[str, float]
    ) -> None:
        """Take a worker whose resources change."""

    def declare_worker(self, address: str, declared: dict[str, Any]) -> None:
        """Say what a worker has by ids, as `ResourcePlaces.set_worker` does, before it joins.

        Raises
        ------
        TypeError
            If something is no declaration.
        """

    def take_unmet(self) -> list[UnmetRequest]:
        """Take the requests that no worker can ever meet, each once."""

    def room(self) -> RoomState | None:
        """Return which tasks hold what they ask for, and which wait; None if no task ever asked."""

    def inherit_room(self, state: RoomState) -> None:
        """Take over the requests of another scheduler.

        To be called after `declare_worker` for workers that have units by ids.

        Raises
        ------
        LookupError
            If a worker or task is named that is not known. The core must not be used then.
        """

    def handle_no_workers_check(self, stimulus: str, now_s: float) -> tuple[list[str], list[str]]:
        """Fail what no worker could run for too long.

        Returns
        -------
        list of str
            Tasks whose restrictions no worker met.
        list of str
            Tasks that failed as no worker ran.
        """

    def handle_client_added(self, client: str) -> None:
        """Take a client that connects."""

    def handle_client_removed(self, stimulus: str, now_s: float, client: str) -> None:
        """Take a client that goes."""

    def handle_client_desires_keys(
        self, stimulus: str, now_s: float, desired: list[str], client: str
    ) -> None:
        """Take a client that wants tasks."""

    def handle_client_releases_keys(
        self, stimulus: str, now_s: float, released: list[str], client: str
    ) -> None:
        """Take a client that no longer wants tasks."""

    def handle_cancel(
        self,
        stimulus: str,
        now_s: float,
        cancelled: list[str],
        client: str,
        force: bool,
        reason: str | None,
        msg: str | None,
    ) -> tuple[list[int], list[str]]:
        """Take a client that cancels tasks; return how many go with each, and all that are."""

    def handle_retry(self, stimulus: str, now_s: float, retried: list[str]) -> list[str]:
        """Take a client that has failed tasks run again; return which are."""

    def handle_report_key(self, reported: str, client: str | None) -> None:
        """Take a client that asks how a task is."""

    def handle_add_keys(self, stimulus: str, now_s: float, address: str, added: list[str]) -> None:
        """Take a worker that has results."""

    def handle_release_worker_data(
        self, stimulus: str, now_s: float, key: str, address: str
    ) -> None:
        """Take a worker that has lost a result."""

    def handle_request_refresh_who_has(
        self, stimulus: str, now_s: float, asked: list[str], address: str
    ) -> None:
        """Take a worker that asks where results are."""

    def handle_acquire_replicas(
        self, stimulus: str, now_s: float, address: str, acquired: list[str]
    ) -> None:
        """Ask a worker to fetch results."""

    def handle_remove_replicas(
        self, stimulus: str, now_s: float, address: str, removed: list[str]
    ) -> None:
        """Ask a worker to drop results of which there are others."""

    def handle_update_data(
        self,
        stimulus: str,
        now_s: float,
        placed: list[tuple[str, str, str, int | None, list[str]]],
        client: str | None,
    ) -> None:
        """Take results that a client put on workers: key, group, prefix, bytes, addresses."""

    def handle_restrictions(self, key: str, addresses: list[str] | None) -> None:
        """Restrict a task to workers, or lift that."""
