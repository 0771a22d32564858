"""Does to a cluster what a plan says, and undoes it."""

from __future__ import annotations

import signal

from tests.chaos.cluster import Cluster, send
from tests.chaos.network import Network
from tests.chaos.schedule import Fault, Plan

__all__ = ["Mischief"]


class Mischief:
    """The faults of one run.

    Parameters
    ----------
    plan : Plan
        Faults, and their times.
    cluster, network
        Targets of the faults.
    """

    def __init__(self, plan: Plan, cluster: Cluster, network: Network) -> None:
        self._plan = plan
        self._cluster = cluster
        self._network = network
        #: Processes that a fault which is to be undone has stopped
        self._stopped: dict[Fault, list[int]] = {}
        self._cuts = 0
        #: Faults that have really happened so far
        self.done: list[str] = []
        self._set_link()

    def timeline(self) -> list[tuple[float, Fault, bool]]:
        """Say when what begins (True) or is undone, in seconds since the job began."""
        begins = [(fault.at_s, fault, True) for fault in self._plan.faults]
        ends = [(one.at_s + one.seconds, one, False) for one in self._plan.faults if one.seconds]
        return sorted([*begins, *ends], key=lambda event: event[0])

    def begin(self, fault: Fault) -> None:
        """Begin a fault."""
        if fault.kind == "cut":
            self._cuts += 1
            self._set_link()
        else:
            pids = (
                [self._cluster.scheduler_pid()]
                if fault.kind == "stop-scheduler"
                else self._cluster.worker_pids(fault.worker)
            )
            for pid in pids:
                send(pid, signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)
            self._stopped[fault] = pids
        self.done.append(str(fault))

    def undo(self, fault: Fault) -> None:
        """End a fault."""
        if fault.kind == "cut":
            self._cuts -= 1
            self._set_link()
        for pid in self._stopped.pop(fault, []):
            send(pid, signal.SIGCONT)

    def undo_all(self) -> None:
        """Let everybody go on, over a link without faults."""
        self._cluster.resume_all()
        self._network.set_link("near", "far")

    def _set_link(self) -> None:
        link = self._plan.link
        self._network.set_link(
            "near",
            "far",
            delay_s=link.delay_s,
            loss=link.loss,
            bytes_per_s=link.bytes_per_s,
            is_cut=self._cuts > 0,
        )
