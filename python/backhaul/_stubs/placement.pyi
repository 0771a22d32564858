"""Placement: links, costs, plans of roots, and the machine."""

from collections.abc import Container, Iterable, Sequence
from os import PathLike
from typing import Any, final

from backhaul import topology

@final
class Links:
    """Estimates of the links between a scheduler's workers.

    Of two workers that have met it knows the estimates of their messages; of others those of their
    hosts' messages, or of messages over links of the same kind; else it gives the expected figures.

    Parameters
    ----------
    same_host, other_host, device : (float, float)
        Expected figures of links within a host, between hosts, and of devices of one host before
        anything was measured: bytes per second, and seconds beside that.
    links_max : int
        Most pairs of processes that are known apart.

    Raises
    ------
    ValueError
        If a bandwidth is not positive, or a latency is negative or no number.
    """

    def __new__(
        cls,
        *,
        same_host: tuple[float, float],
        other_host: tuple[float, float],
        device: tuple[float, float],
        links_max: int,
    ) -> Links: ...
    def add_worker(
        self, address: str, process: str, host: str, nic_bytes_per_s: float | None = None
    ) -> None:
        """Take note of a worker, its process, its host and the speed of its NIC; again is cheap."""

    def remove_worker(self, address: str) -> None:
        """Forget a worker and the links of its process; what is known of its host stays."""

    def open_report(self, process: str, now_s: float) -> None:
        """Take note that a process begins to report, at so many seconds of a clock."""

    def report(
        self,
        process: str,
        sender: str,
        sender_host: str,
        lane: str,
        moved_bytes: int,
        busy_s: float,
        estimates: bytes,
    ) -> None:
        """Take what a process says of what another one sends it, for what it said before.

        Parameters
        ----------
        process, sender : str
            Tokens of both processes.
        sender_host : str
            Address of the sender's host; of a worker that of `add_worker` counts.
        lane : str
            The lane.
        moved_bytes, busy_s : int, float
            Bytes of messages that are timed, without those that were lent, and the seconds in which
            any of them were on their way; since the receiver started.
        estimates : bytes
            13 for each memory and class of sizes: the class, and 128 for memory of a device;
            messages (4 bytes), bytes per second and latency in seconds (4 bytes each, floats).

        Raises
        ------
        ValueError
            If a figure is one that no link has.
        KeyError
            If no worker is in the process.
        """

    def seconds(self, sender: str, receiver: str, nbytes: int, *, on_device: bool = False) -> float:
        """Predict how long a message takes from one worker to another, in seconds.

        Raises
        ------
        KeyError
            If one of them has not reported.
        """

    def answer(
        self, sender: str, receiver: str, nbytes: int, *, on_device: bool = False
    ) -> tuple[float, float, float, int, str]:
        """Predict that, and say why.

        Returns
        -------
        tuple
            Seconds, bytes per second (infinite where bytes are lent), seconds beside that, how many
            messages are behind it, and where it comes from: ``same process``, ``process pair``,
            ``host pair``, ``class`` or ``prior``.
        """

    def rows(
        self,
    ) -> list[tuple[tuple[str, str], tuple[str, str], str, str, int, tuple[float, float, int]]]:
        """List what was measured.

        Returns
        -------
        list of tuple
            Tokens of sender and receiver, their hosts, the lane, ``host`` or ``device``, the size
            of the smallest message of the class in bytes, and the estimate: bytes per second,
            seconds beside that, messages.
        """

    def workers(self) -> list[str]:
        """List the addresses of the workers that are known."""

    def __len__(self) -> int:
        """How many workers are known."""

@final
class FairNetwork:
    """Flows that share edges fairly, in simulated time.

    Parameters
    ----------
    capacities_bytes_per_s : sequence of float
        Of each edge.

    Raises
    ------
    ValueError
        If a capacity is not above 0.
    """

    def __new__(cls, capacities_bytes_per_s: Sequence[float]) -> FairNetwork: ...
    def start(self, now_s: float, path: Sequence[int], nbytes: float, /) -> int:
        """Start a flow along edges; return its number, which is used again once it has ended.

        `ValueError` for times that go backwards, unknown edges, an empty path or no size.
        """

    def next_end(self) -> float | None:
        """Say when the next flow ends if none starts before, in seconds."""

    def finish(self, now_s: float, /) -> list[int]:
        """Take out the flows that have ended by now; return their numbers."""

@final
class Machine:
    """A machine; `backhaul.topology.Machine` is its record.

    Parameters
    ----------
    record : backhaul.topology.Machine
        A record with the same values.

    Raises
    ------
    MachineError
        If a value is not of its kind, or the parts of the machine do not fit together.
    """

    def __new__(cls, record: topology.Machine) -> Machine: ...
    @staticmethod
    def discover(root: str | PathLike[str] | None = None) -> Machine:
        """Find out what this machine is made of; see `backhaul.topology.discover`.

        Raises
        ------
        MachineError
            If the folder is not that of a Linux system.
        """

    @staticmethod
    def parse(text: str, format: str | None = None) -> Machine:
        """Read a machine from a text; see `backhaul.topology.parse`.

        Raises
        ------
        MachineError
            If the text describes no machine.
        ConfigError
            If the format is unknown.
        """

    def record(self) -> topology.Machine:
        """Make a record with the same values."""

    def plan(
        self,
        *,
        policy: str,
        n: int | None = None,
        threads_per_worker: int | None = None,
        memory_limit: int | None = None,
        memory_fraction: float | None = None,
        gpus: Iterable[str] | None = None,
        interface: str | None = None,
        nics: Iterable[str] | None = None,
        cpus: Iterable[int] | str | None = None,
        exclusive_cpus: bool | None = None,
    ) -> Plan:
        """Plan what to run on it; see `backhaul.topology.Machine.plan`.

        Raises
        ------
        ConfigError
            If an option is not of its kind.
        PlanError
            If the plan is impossible.
        """

    def distance(self, one: str, other: str) -> topology.Distance:
        """Tell what lies between two devices; see `backhaul.topology.Machine.distance`.

        Raises
        ------
        ConfigError
            If the machine lacks a device.
        """

    def route(self, one: str, other: str) -> topology.Route:
        """Find the fastest way between two devices; see `backhaul.topology.route`.

        Raises
        ------
        ConfigError
            If the machine lacks a device.
        """

    def tree(self) -> str:
        """Draw it as a tree of text; see `backhaul.topology.Machine.tree`."""

    def matrix(self) -> str:
        """Write the paths between devices; see `backhaul.topology.Machine.matrix`."""

    def svg(self, plan: Plan | None = None) -> str:
        """Draw it and a plan for it; see `backhaul.topology.Machine.svg`."""

@final
class Placement:
    """Where the bytes of one scheduler are, and what is under way.

    Parameters
    ----------
    beta, beta_private : float
        How much more a byte counts than the time that it takes alone, on an edge that several pairs
        of workers share, and on one of a pair alone; from 1.

    Raises
    ------
    ValueError
        If one of them is no number from 1.
    """

    def __new__(cls, *, beta: float, beta_private: float) -> Placement: ...
    def add_worker(self, worker: object, host: int, island: int, /) -> int:
        """Add a worker, which has an ``address``, on a host; return its own number.

        Numbers of hosts and islands leave out none.
        Workers of one island are candidates where one of them holds an input.
        """

    def remove_worker(self, worker: object, /) -> None:
        """Forget a worker, and what it was promised."""

    def replace_worker(self, number: int, worker: object, /) -> None:
        """Replace the object of a worker, by its number; `ValueError` if there is none."""

    def set_routes(
        self,
        capacities_bytes_per_s: Sequence[float],
        routes: Sequence[tuple[int, int, Sequence[int], float]],
        /,
    ) -> None:
        """Take all routes of the workers that there are: sender, receiver, edges, latency.

        `ValueError` for a pair without one, or a figure that cannot be.
        """

    def set_hosts(
        self,
        nics: Sequence[tuple[int, float]],
        flows: Sequence[tuple[int, int, float, float]],
        /,
    ) -> None:
        """Take what is known of NICs of hosts, and of one flow between two hosts or within one.

        NICs are a host and its bytes a second in both directions; flows are the hosts of sender
        and receiver, bytes a second and latency in seconds. `ValueError` for a host that is not
        there or a figure that cannot be; nothing is taken then.
        """

    def set_request_seconds(self, request_s: float, /) -> None:
        """Take what a request for data takes besides the latency of its link, in seconds.

        1.5 ms until it is set. `ValueError` for one that is no number from 0.
        """

    def promise(self, task: object, worker: object, /) -> None:
        """Note that a result will go to a worker, from where it comes soonest."""

    def settle(self, task: object, worker: object, /) -> None:
        """Note that a result has arrived at a worker, or is not needed there any more."""

    def transfer(self, task: object, worker: object, /) -> tuple[float, float] | None:
        """Say what the inputs of a task take to come to a worker, in seconds.

        Behind what is under way, and that with the weight of bytes. None for an unknown worker.
        """

    def choose(
        self,
        task: object,
        scheduler: object,
        unknown_s: float,
        running: Container[Any],
        result_bytes: float,
        /,
    ) -> Any:
        """Choose the worker where a task with inputs is expected to begin soonest, or None.

        ``unknown_s`` is what tasks are expected to take of which nothing is known, ``running`` the
        workers that may be chosen, and ``result_bytes`` the size to expect of the result, 0 if none
        is known: the way to the results with which it is combined counts, too.
        """

    def promises(self) -> int:
        """Count the results that are promised."""

    def promised(self) -> list[tuple[int, int]]:
        """List what is promised: a number for each result, and that of its receiver.

        For a result that `promise` has named it is the address of the object.
        """

    def rename(self, tasks: Sequence[tuple[int, object]], /) -> None:
        """Assign these objects to a core's promised results, by its number of each task.

        A promised result of any other task is taken for settled.
        """

@final
class Plan:
    """A launch plan; `backhaul.topology.Plan` is its record.

    Parameters
    ----------
    record : backhaul.topology.Plan
        A record with the same values.

    Raises
    ------
    ConfigError
        If a value is not of its kind.
    """

    def __new__(cls, record: topology.Plan) -> Plan: ...
    @staticmethod
    def parse(text: str) -> Plan:
        """Read a plan from JSON; see `backhaul.topology.Plan.from_json`.

        Raises
        ------
        ConfigError
            If the text is no plan.
        """

    def record(self) -> topology.Plan:
        """Make a record with the same values."""

    def table(self) -> str:
        """Write it as a table; see `backhaul.topology.Plan.table`."""

def plan_roots(
    placement: Placement,
    places: Sequence[int],
    needs: Sequence[int],
    kinds: Sequence[int],
    table: Sequence[tuple[float, float]],
    targets: Sequence[tuple[int, float, float]],
    /,
) -> list[int] | None:
    """Plan which worker runs which root of a graph: its number for each task, or -1.

    None if nothing is gained over roots that go to the first free worker.

    Tasks are in the order in which they are to run. ``places`` has -1 for a root, -2 for a task
    that comes later, or the number of the worker that has its result; ``needs`` for each task how
    many others it needs, and their numbers; ``kinds`` the kind of each task, and ``table`` for each
    kind the seconds of a task and the bytes of its result; ``targets`` the workers, their threads
    and the memory that they have left, in bytes, infinite if it is unknown.

    `ValueError` if the lists are no graph, a worker is unknown, or a figure cannot be.
    """
