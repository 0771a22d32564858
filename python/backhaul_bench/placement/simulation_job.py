"""Dask's scheduler, its work stealing and its workers' state machines in simulated time.

All decisions are Dask's own code, or ours in its place; what is simulated is what takes time: tasks
run for as long as the graph says, bytes move over links that flows share fairly, and messages of
the control plane take a fixed time each. One event after another, so a run with the same seed
(``PYTHONHASHSEED``) gives the same result.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from distributed import Scheduler
from distributed.core import Status

import dask
from backhaul._native import FairNetwork
from backhaul.dask.compat.names import (
    ClientState,
    ExecuteSuccessEvent,
    GatherDepSuccessEvent,
    Task,
    TaskRef,
    WorkerState,
    WorkerStateMachine,
    WorkerTaskState,
    dask_order,
    instructions,
    worker_events,
)
from backhaul_bench.placement.machines import Machine
from backhaul_bench.placement.policy import PolicyInPython
from backhaul_bench.placement.workloads import Graph, Key, Phase, critical_path_s

__all__ = ["POLICIES", "Run", "SimulatedCluster", "bound_s", "simulate"]

#: One message between scheduler and worker takes this long, in seconds; a task takes so much more
#: than its function, and a request for data so much more than the latency of its link. Of the size
#: that ``backhaul bench tasks`` finds on one host.
MESSAGE_S, TASK_S, REQUEST_S = 0.5e-3, 0.3e-3, 1.0e-3

#: As a worker's configuration has them
_INCOMING_COUNT, _INCOMING_MESSAGE_BYTES = 10, 50_000_000

#: Time between two looks of work stealing, and between two heartbeats, in seconds
_BALANCE_S, _HEARTBEAT_S = 0.1, 0.5
#: How fast a worker's estimate of its bandwidth follows, and what is too small to count, as in Dask
_BANDWIDTH_WEIGHT, _BANDWIDTH_BYTES_MIN = 0.05, 1_000_000
#: Between the end of one round and the next, for what was released to be forgotten
_PAUSE_S = 0.3
#: No workload takes so long
_LIMIT_S = 1e4

_CLIENT = "simulated-client"

#: Policies that place tasks
POLICIES: Final = ("upstream", "backhaul")

_QUIET: Final = {
    "distributed.scheduler.dashboard.status.task-stream-length": 0,
    "distributed.admin.low-level-log-length": 0,
    "distributed.scheduler.active-memory-manager.start": False,
}


@dataclass
class Run:
    """Results of one phase."""

    seconds: float
    #: All that moved between workers, and between hosts
    moved_bytes: int = 0
    crossed_bytes: int = 0
    #: Worker, kind of task, beginning and end
    tasks: list[tuple[int, str, float, float]] = field(default_factory=list)
    #: Sender, receiver, bytes, beginning and end
    transfers: list[tuple[int, int, int, float, float]] = field(default_factory=list)


def simulate(
    machine: Machine, phases: Sequence[Phase], *, policy: str, warm_rounds: int = 2
) -> Run:
    """Compute a workload on a simulated cluster.

    Parameters
    ----------
    machine : Machine
        Where.
    phases : sequence of Phase
        What.
    policy : str
        One of `POLICIES`.
    warm_rounds : int
        How often it is computed before, so that durations and bandwidths are known.

    Returns
    -------
    Run
        Of the last phase of the last round.

    Raises
    ------
    ValueError
        If the policy is unknown.
    RuntimeError
        If tasks are left that nothing will ever run.
    """
    if policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}; known are {', '.join(POLICIES)}")

    async def in_a_loop() -> Run:
        cluster = SimulatedCluster(machine, policy=policy)
        run = Run(0.0)
        try:
            for number in range(warm_rounds + 1):
                for phase in phases:
                    run = cluster.compute(_renamed(phase, number))
                cluster.release()
        finally:
            cluster.close()
        return run

    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with dask.config.set(_QUIET), _tasks_hashed_by_key():
            return asyncio.run(in_a_loop())
    finally:
        logging.disable(level)


def bound_s(machine: Machine, phase: Phase) -> float:
    """Say how long a phase takes at least, in seconds.

    Parameters
    ----------
    machine : Machine
        Where it runs.
    phase : Phase
        Phase that runs.

    Returns
    -------
    float
        The larger of its tasks over all threads, and of its critical path.
    """
    work_s = sum(task.seconds + TASK_S for task in phase.graph.values())
    path_s = critical_path_s(phase.graph, overhead_s=TASK_S + 2 * MESSAGE_S)
    return max(work_s / machine.threads, path_s)


class SimulatedCluster:
    """A scheduler, a client and the workers of a machine, in one process and without sockets.

    Parameters
    ----------
    machine : Machine
        The machine.
    policy : str
        One of `POLICIES`.
    """

    def __init__(self, machine: Machine, *, policy: str) -> None:
        self.machine = machine
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self.tasks: Graph = {}
        self.run = Run(0.0)
        self._kept: list[Key] = []
        #: Called after each event of a computation, so that a caller can see its effect
        self.watch: Callable[[], None] | None = None
        self.network = _Network(self)
        self.scheduler = Scheduler(dashboard=False, validate=False, dashboard_address=":0")
        self.scheduler.status = Status.running
        self.scheduler.clients[_CLIENT] = ClientState(_CLIENT)
        self.workers: dict[str, _Worker] = {}
        self.placement: PolicyInPython | None = None
        for number in range(len(machine.workers)):
            self._add_worker(number)
        if policy == "backhaul":
            self._place()
        self._stealing = self.scheduler.extensions["stealing"]
        self.after(_BALANCE_S, self._balance)
        for worker in self.workers.values():
            worker.beat(first=True)

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something later, in simulated seconds."""
        heapq.heappush(self._events, (self.now_s + seconds, next(self._count), act))

    def compute(self, phase: Phase) -> Run:
        """Compute a phase, and keep what its client keeps.

        Parameters
        ----------
        phase : Phase
            Its keys must be new.

        Returns
        -------
        Run
            Its results.

        Raises
        ------
        RuntimeError
            If tasks are left that nothing will ever run.
        """
        run = self.run = Run(0.0)
        began_s = self.now_s
        self.tasks.update(phase.graph)
        self._kept += phase.keys
        specs: dict[Any, Any] = {
            key: Task(key, _nothing, *map(TaskRef, task.needs)) for key, task in phase.graph.items()
        }
        self.scheduler._create_taskstate_from_graph(
            start=self.now_s,
            dsk=specs,
            keys=set(phase.keys),
            ordered=dask_order(dict(specs)),
            client=_CLIENT,
            annotations_by_type={},
            global_annotations=None,
            stimulus_id="simulated-graph",
            submitting_task=None,
            span_metadata={"collections": []},
        )
        missing = [self.scheduler.tasks[key] for key in phase.keys]
        while missing:
            if missing[-1].state == "memory":
                missing.pop()
            elif not self._step():
                left = [(ts.key, ts.state) for ts in missing[:3]]
                raise RuntimeError(f"nothing will ever run {len(missing)} tasks, such as {left}")
        run.seconds = self.now_s - began_s
        return run

    def release(self) -> None:
        """Release what the client keeps, and let the cluster forget it."""
        self.scheduler.client_releases_keys(
            keys=self._kept, client=_CLIENT, stimulus_id="simulated-release"
        )
        self._kept = []
        end_s = self.now_s + _PAUSE_S
        while self._events and self._events[0][0] <= end_s:
            self._step()
        self.now_s = end_s
        self.tasks.clear()

    def receive(self, address: str, message: dict[str, Any]) -> None:
        """Handle a message of a worker at the scheduler."""
        operation = message.pop("op")
        self.scheduler.stream_handlers[operation](worker=address, **message)

    def _step(self) -> bool:
        # Beats and balances never end, so time does.
        if not self._events or self.now_s > _LIMIT_S:
            return False
        self.now_s, _, act = heapq.heappop(self._events)
        act()
        if self.watch is not None:
            self.watch()
        return True

    def _balance(self) -> None:
        self._stealing.balance()
        self.after(_BALANCE_S, self._balance)

    def _add_worker(self, number: int) -> None:
        """Do what `Scheduler.add_worker` does of this, without a comm to answer on."""
        described = self.machine.workers[number]
        scheduler, address = self.scheduler, described.address
        ws = WorkerState(
            address=address,
            status=Status.running,
            pid=0,
            nthreads=described.threads,
            memory_limit=0,
            name=address,
            local_directory="",
            nanny=None,
            server_id=address,
            scheduler=scheduler,
        )
        scheduler.workers[address] = ws
        scheduler.running.add(ws)
        scheduler.total_nthreads += ws.nthreads
        scheduler.aliases[address] = address
        host: Any = scheduler.host_info.setdefault(ws.host, {"addresses": set(), "nthreads": 0})
        host["addresses"].add(address)
        host["nthreads"] += ws.nthreads
        worker = self.workers[address] = _Worker(self, number)
        streams: dict[str, Any] = scheduler.stream_comms
        streams[address] = _Stream(worker)
        scheduler.check_idle_saturated(ws)
        scheduler.extensions["stealing"].add_worker(scheduler=scheduler, worker=address)

    def _place(self) -> None:
        """Let Backhaul place tasks, by the machine's description of its links."""
        self.placement = PolicyInPython(self.scheduler)
        self.placement.attach()
        self.placement.set_routes(
            self.machine.capacities_bytes_per_s,
            (
                (sender, receiver, route.edges, route.latency_s)
                for (sender, receiver), route in self.machine.routes.items()
            ),
        )

    def close(self) -> None:
        """Leave nothing in force that others of this process would meet."""
        if self.placement is not None:
            self.placement.detach()


class _Stream:
    """Stream by which the scheduler sends to a worker."""

    def __init__(self, worker: _Worker) -> None:
        self._worker = worker

    def send(self, *messages: dict[str, Any]) -> None:
        copied = [dict(message) for message in messages]
        self._worker.cluster.after(MESSAGE_S, lambda: self._worker.receive(copied))


class _Worker:
    """A worker's state machine, and what its instructions take."""

    def __init__(self, cluster: SimulatedCluster, number: int) -> None:
        described = cluster.machine.workers[number]
        self.cluster = cluster
        self.number = number
        self.address = described.address
        self.bandwidth = 100e6
        self.state = WorkerStateMachine(
            nthreads=described.threads,
            address=self.address,
            transfer_incoming_count_limit=_INCOMING_COUNT,
            transfer_message_bytes_limit=_INCOMING_MESSAGE_BYTES,
            validate=False,
        )

    def receive(self, messages: list[dict[str, Any]]) -> None:
        events = []
        for message in messages:
            event = worker_events.get(message.pop("op"))
            if event is None:
                continue
            if "run_spec" in message:
                message["run_spec"] = getattr(message["run_spec"], "data", message["run_spec"])
            events.append(event(**message))
        self.handle(*events)

    def handle(self, *events: Any) -> None:
        for instruction in self.state.handle_stimulus(*events):
            if isinstance(instruction, instructions.SendMessageToScheduler):
                message = instruction.to_dict()
                self._send(message)
            elif isinstance(instruction, instructions.Execute):
                self._execute(instruction.key)
            elif isinstance(instruction, instructions.GatherDep):
                self._gather(instruction)
            else:
                raise NotImplementedError(f"an instruction that is not simulated: {instruction}")

    def beat(self, *, first: bool = False) -> None:
        """Tell the scheduler the bandwidth, as each heartbeat does."""
        cluster, workers = self.cluster, len(self.cluster.machine.workers)
        if first:
            cluster.after(_HEARTBEAT_S * self.number / workers, self.beat)
            return
        scheduler: Any = cluster.scheduler
        scheduler.bandwidth += (self.bandwidth - scheduler.bandwidth) / workers
        cluster.after(_HEARTBEAT_S, self.beat)

    def _send(self, message: dict[str, Any]) -> None:
        self.cluster.after(MESSAGE_S, lambda: self.cluster.receive(self.address, message))

    def _execute(self, key: Any) -> None:
        cluster, began_s = self.cluster, self.cluster.now_s
        task = cluster.tasks[key]

        def ended() -> None:
            cluster.run.tasks.append((self.number, kind_of(key), began_s, cluster.now_s))
            event = ExecuteSuccessEvent(
                key=key,
                run_id=self.state.tasks[key].run_id,
                value=None,
                start=began_s,
                stop=cluster.now_s,
                nbytes=task.nbytes,
                type=None,
                stimulus_id="simulated-end",
            )
            self.handle(event)

        cluster.after(task.seconds + TASK_S, ended)

    def _gather(self, instruction: Any) -> None:
        cluster, began_s = self.cluster, self.cluster.now_s
        sender = cluster.workers[instruction.worker].number
        keys = list(instruction.to_gather)
        nbytes = sum(cluster.tasks[key].nbytes for key in keys)

        def ended() -> None:
            seconds = max(1e-3, cluster.now_s - began_s)
            if nbytes > _BANDWIDTH_BYTES_MIN:
                self.bandwidth += (nbytes / seconds - self.bandwidth) * _BANDWIDTH_WEIGHT
            cluster.run.transfers.append((sender, self.number, nbytes, began_s, cluster.now_s))
            event = GatherDepSuccessEvent(
                worker=instruction.worker,
                total_nbytes=instruction.total_nbytes,
                data=dict.fromkeys(keys),
                stimulus_id="simulated-data",
            )
            self.handle(event)

        workers = cluster.machine.workers
        cluster.run.moved_bytes += nbytes
        if workers[sender].host != workers[self.number].host:
            cluster.run.crossed_bytes += nbytes
        cluster.network.start(sender, self.number, nbytes, ended)


class _Network:
    """Flows over the edges of the machine."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._flows = FairNetwork(cluster.machine.capacities_bytes_per_s)
        self._ended: dict[int, Callable[[], None]] = {}
        #: Of the last look for the next end; an earlier one means nothing any more
        self._look = 0

    def start(self, sender: int, receiver: int, nbytes: int, ended: Callable[[], None]) -> None:
        route = self._cluster.machine.routes[sender, receiver]

        def begin() -> None:
            flow = self._flows.start(self._cluster.now_s, route.edges, float(nbytes))
            self._ended[flow] = ended
            self._look_ahead()

        self._cluster.after(route.latency_s + REQUEST_S, begin)

    def _look_ahead(self) -> None:
        """Find the next end once all that happens at this time has."""
        self._look += 1
        look = self._look

        def wait() -> None:
            if look == self._look and (end_s := self._flows.next_end()) is not None:
                self._cluster.after(max(0.0, end_s - self._cluster.now_s), finish)

        def finish() -> None:
            if look != self._look:
                return
            for flow in self._flows.finish(self._cluster.now_s):
                self._ended.pop(flow)()
            self._look_ahead()

        self._cluster.after(0.0, wait)


@contextmanager
def _tasks_hashed_by_key() -> Iterator[None]:
    """List sets of a worker's tasks in the same order in every process.

    They are hashed by their address otherwise, so that no run would be like another one. Equality
    stays identity.
    """
    before = WorkerTaskState.__hash__
    WorkerTaskState.__hash__ = lambda self: hash(self.key)  # type: ignore[method-assign]
    try:
        yield
    finally:
        WorkerTaskState.__hash__ = before  # type: ignore[method-assign]


def kind_of(key: Key) -> str:
    """Say what kind of task a key is one of: without the number of the round."""
    return str(key[0]).rpartition("-")[0]


def _nothing(*_: Any) -> None:
    """Stands for the functions of tasks, which are not called."""


def _renamed(phase: Phase, number: int) -> Phase:
    """Give the keys of a phase the number of a round."""

    def of(key: Key) -> Key:
        return (f"{key[0]}-{number}", *key[1:])

    graph = {
        of(key): task._replace(needs=[of(need) for need in task.needs])
        for key, task in phase.graph.items()
    }
    return Phase(graph, [of(key) for key in phase.keys])
