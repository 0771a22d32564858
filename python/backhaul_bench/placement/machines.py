"""Machines to simulate: workers, edges with a capacity, and the way of each pair along the edges.

Some are built in: five of the kinds that a study of placement compared, and one of these with
routes over two links; any other one is described in a file, see `described`. Figures of links are
round ones of what such machines are sold with.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["COMPARED", "MACHINES", "Machine", "Route", "SimulatedWorker", "hosts_machine"]

GB: Final = 1e9

#: Time before the first byte, in seconds: within a host by shared memory, by NVLink, by PCIe, and
#: between hosts
SHARED_S, NVLINK_S, PCIE_S, NETWORK_S = 30e-6, 10e-6, 20e-6, 100e-6


@dataclass(frozen=True)
class SimulatedWorker:
    """One Dask worker."""

    address: str
    host: str
    threads: int


@dataclass(frozen=True)
class Route:
    """The way of one pair of workers, in one direction."""

    #: Numbers of the edges
    edges: tuple[int, ...]
    latency_s: float


@dataclass
class Machine:
    """Workers and what joins them.

    Parameters
    ----------
    name : str
        For people.
    work : str
        Which sizes of workloads fit it: ``cpu`` or ``gpu``.
    """

    name: str
    work: str = "cpu"
    workers: list[SimulatedWorker] = field(default_factory=list)
    #: Names of the edges, by number
    edges: list[str] = field(default_factory=list)
    #: In bytes per second, by number of the edge
    capacities_bytes_per_s: list[float] = field(default_factory=list)
    #: By numbers of sender and receiver; each pair of different workers is there
    routes: dict[tuple[int, int], Route] = field(default_factory=dict)
    _numbers: dict[Hashable, int] = field(default_factory=dict, repr=False)

    @property
    def threads(self) -> int:
        """Threads of all workers."""
        return sum(worker.threads for worker in self.workers)

    def add_worker(self, host: str, threads: int) -> int:
        """Add a worker; return its number.

        Parameters
        ----------
        host : str
            Its host. Workers of one host have addresses with one IP.
        threads : int
            Tasks that it runs at a time.
        """
        hosts = list(dict.fromkeys(worker.host for worker in self.workers))
        at = hosts.index(host) if host in hosts else len(hosts)
        number = len(self.workers)
        address = f"tcp://10.{at // 250}.{at % 250}.1:{9000 + number}"
        self.workers.append(SimulatedWorker(address, host, threads))
        return number

    def edge(self, name: str, bytes_per_s: float) -> int:
        """Get the number of an edge, which is added when it is first asked for."""
        if name not in self._numbers:
            self._numbers[name] = len(self.edges)
            self.edges.append(name)
            self.capacities_bytes_per_s.append(bytes_per_s)
        return self._numbers[name]

    def add_route(self, sender: int, receiver: int, edges: Sequence[int], latency_s: float) -> None:
        """Say how one worker reaches another."""
        self.routes[sender, receiver] = Route(tuple(edges), latency_s)


#: NVLinks between the GPUs of a DGX-1 with V100, and how many.
#: Source: NVIDIA DGX-1 With Tesla V100 System Architecture (2017), figure 4.
_NVLINKS = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def dgx1(*, relayed: bool = False) -> Machine:
    """Eight GPUs in a cube of NVLinks.

    Parameters
    ----------
    relayed : bool, default False
        Pairs without an NVLink go over two of them, by a third GPU that copies on while it still
        receives (`backhaul.topology.route`), instead of by PCIe and the processors.
    """
    machine = Machine("DGX-1 with relays" if relayed else "DGX-1", work="gpu")
    for _ in range(8):
        machine.add_worker("dgx", 1)
    for sender in range(8):
        for receiver in range(8):
            if sender == receiver:
                continue
            links = _nvlinks(sender, receiver)
            if links:
                own = machine.edge(f"NVLink {sender}→{receiver}", links * 20 * GB)
                machine.add_route(sender, receiver, [own], NVLINK_S)
                continue
            if relayed:
                relay = _relay(sender, receiver)
                hops = [(sender, relay), (relay, receiver)]
                path = [
                    machine.edge(f"NVLink {one}→{other}", _nvlinks(one, other) * 20 * GB)
                    for one, other in hops
                ]
                machine.add_route(sender, receiver, path, 2 * NVLINK_S)
                continue
            path = [
                machine.edge(f"PCIe from {sender}", 12 * GB),
                machine.edge(f"PCIe to {receiver}", 12 * GB),
                machine.edge(f"copies {sender}→{receiver}", 6 * GB),
            ]
            if (sender < 4) != (receiver < 4):
                path.append(machine.edge(f"QPI from {sender // 4}", 6 * GB))
            machine.add_route(sender, receiver, path, PCIE_S)
    return machine


def _nvlinks(one: int, other: int) -> int:
    """Count the NVLinks between two GPUs."""
    return _NVLINKS.get((min(one, other), max(one, other)), 0)


def _relay(sender: int, receiver: int) -> int:
    """Find the GPU whose slower NVLink to both is fastest; of several another one each way."""
    slower = {relay: min(_nvlinks(sender, relay), _nvlinks(relay, receiver)) for relay in range(8)}
    best = [relay for relay in slower if slower[relay] == max(slower.values())]
    return best[0] if sender < receiver else best[-1]


def hosts_machine(
    name: str,
    *,
    hosts: int,
    workers: int,
    nic_gb_per_s: float,
    slow_host_gb_per_s: float | None = None,
    hosts_in_rack: int | None = None,
    uplink_gb_per_s: float = 0.0,
) -> Machine:
    """Hosts with some workers of two threads each, on one switch or in racks.

    Parameters
    ----------
    name : str
        For people.
    hosts, workers : int
        Number of hosts, and of workers on each.
    nic_gb_per_s : float
        Of each host, in each direction, in GB/s.
    slow_host_gb_per_s : float, optional
        That of the last host, if it is another one.
    hosts_in_rack : int, optional
        Hosts of one rack, if there are racks.
    uplink_gb_per_s : float
        Of each rack, in each direction, in GB/s.
    """
    machine = Machine(name)
    for host in range(hosts):
        for _ in range(workers):
            machine.add_worker(f"host {host}", 2)

    def nic(way: str, host: int) -> int:
        slow = slow_host_gb_per_s is not None and host == hosts - 1
        rate = slow_host_gb_per_s if slow and slow_host_gb_per_s else nic_gb_per_s
        return machine.edge(f"NIC {way} host {host}", rate * GB)

    for sender in range(hosts * workers):
        for receiver in range(hosts * workers):
            here, there = sender // workers, receiver // workers
            if sender == receiver:
                continue
            if here == there:
                memory = machine.edge(f"memory of host {here}", 16 * GB)
                pair = machine.edge(f"shared {sender}→{receiver}", 5 * GB)
                machine.add_route(sender, receiver, [pair, memory], SHARED_S)
                continue
            path = [nic("from", here), nic("to", there)]
            if hosts_in_rack and here // hosts_in_rack != there // hosts_in_rack:
                path += [
                    machine.edge(f"uplink from rack {here // hosts_in_rack}", uplink_gb_per_s * GB),
                    machine.edge(f"uplink to rack {there // hosts_in_rack}", uplink_gb_per_s * GB),
                ]
            machine.add_route(sender, receiver, path, NETWORK_S)
    return machine


#: The machines that are built in, by the name on the command line
MACHINES: Final[dict[str, Callable[[], Machine]]] = {
    "dgx-1": dgx1,
    "dgx-1-relays": lambda: dgx1(relayed=True),
    "4-hosts": lambda: hosts_machine("four hosts", hosts=4, workers=4, nic_gb_per_s=3.125),
    "slow-nic": lambda: hosts_machine(
        "one slow NIC", hosts=4, workers=2, nic_gb_per_s=1.25, slow_host_gb_per_s=0.125
    ),
    "racks": lambda: hosts_machine(
        "two racks", hosts=8, workers=2, nic_gb_per_s=1.25, hosts_in_rack=4, uplink_gb_per_s=1.25
    ),
    "flat": lambda: hosts_machine("flat network", hosts=8, workers=1, nic_gb_per_s=1.25),
}

#: Machines that are run by default
COMPARED: Final = tuple(name for name in MACHINES if name != "dgx-1-relays")
