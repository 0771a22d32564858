"""Machines: read, asked for distances, planned for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

from backhaul import _native
from backhaul._notebook import picture_html
from backhaul._units import parse_bytes
from backhaul.errors import ConfigError, MachineError
from backhaul.topology._cached import CachesNative, native_of, with_native
from backhaul.topology._json import to_json
from backhaul.topology._plan import Plan, Policy, plan_of

__all__ = [
    "CacheDomain",
    "Core",
    "Disk",
    "Distance",
    "Gpu",
    "GpuInstance",
    "Machine",
    "Nic",
    "NumaNode",
    "NvLink",
    "Place",
    "RdmaDevice",
    "Route",
    "ToldPath",
    "discover",
    "load",
    "parse",
    "route",
]

_T = TypeVar("_T")

Format = Literal["json", "hwloc-xml", "nvidia-smi"]

#: Longest text that is read, in bytes or characters: XML of the largest machines has a few million,
#: and a file that is no machine should not fill the memory.
_TEXT_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """Where a device is.

    Attributes
    ----------
    pci_path : tuple of str
        PCI addresses from the host bridge down to the device; empty when unknown.
    node : int or None
        Its NUMA node.
    cpus : frozenset of int
        CPUs near it; empty when unknown.
    """

    pci_path: tuple[str, ...]
    node: int | None
    cpus: frozenset[int]


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node: its number, CPUs, memory in bytes, and firmware's distance to each node."""

    id: int
    cpus: frozenset[int]
    memory_bytes: int | None
    distances: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CacheDomain:
    """CPUs that share a last-level cache, and its size in bytes."""

    cpus: frozenset[int]
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core: its package and its hardware threads."""

    package: int
    cpus: frozenset[int]


@dataclass(frozen=True, slots=True)
class Nic:
    """A network interface.

    Attributes
    ----------
    name : str
        As ``ib0``.
    kind : str
        ``loopback``, ``ethernet``, ``infiniband``, ``virtual`` or ``other``.
    up : bool
        Whether it is up and has a carrier.
    bits_per_s : int or None
        Speed, in bits per second.
    addresses : tuple of str
        IP addresses.
    place : Place
        Where it is.
    rdma : str or None
        Name of the RDMA device behind it.
    """

    name: str
    kind: str
    up: bool
    bits_per_s: int | None
    addresses: tuple[str, ...]
    place: Place
    rdma: str | None


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """An RDMA device: name, speed in bits per second, whether a port is active, place."""

    name: str
    bits_per_s: int | None
    active: bool | None
    place: Place


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A slice of a GPU (MIG): UUID, profile, memory in bytes."""

    uuid: str
    profile: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: NVML's number, UUID, model, memory in bytes, place, instances it is cut into (MIG)."""

    index: int
    uuid: str | None
    name: str
    memory_bytes: int | None
    place: Place
    instances: tuple[GpuInstance, ...]


@dataclass(frozen=True, slots=True)
class NvLink:
    """NVLink between two GPUs: their numbers, how many links, which generation."""

    gpus: tuple[int, int]
    links: int
    version: int | None


@dataclass(frozen=True, slots=True)
class Disk:
    """A block device: name, size in bytes, whether it turns, place."""

    name: str
    bytes: int | None
    rotational: bool | None
    place: Place


@dataclass(frozen=True, slots=True)
class ToldPath:
    """A path between two devices that a source states: PIX, PXB, PHB, NODE or SYS."""

    devices: tuple[str, str]
    path: str


@dataclass(frozen=True, slots=True)
class Distance:
    """The path between two devices.

    Attributes
    ----------
    path : str
        In the words of ``nvidia-smi topo -m``: ``X``, ``NV2``, ``PIX``, ``PXB``, ``PHB``, ``NODE``,
        ``SYS``; and ``CORE``, ``L3``, ``NUMA`` where a CPU or memory is one of them.
    bandwidth_bytes_per_s : float
        Expected bandwidth in one direction, in bytes per second.
    latency_s : float
        Expected latency one way, in seconds.
    """

    path: str
    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Route:
    """A way from one device to another.

    Attributes
    ----------
    devices : tuple of str
        The devices on it, both ends included.
    bandwidth_bytes_per_s : float
        Expected bandwidth in one direction, in bytes per second.
    latency_s : float
        Expected latency one way, in seconds.
    """

    devices: tuple[str, ...]
    bandwidth_bytes_per_s: float
    latency_s: float

    @property
    def hops(self) -> int:
        """How many links it goes over; 1 if it is the direct path."""
        return len(self.devices) - 1


@dataclass(frozen=True, slots=True)
class Machine(CachesNative):
    """One host, as one process sees it.

    A fact that could not be found out is None or empty, and `notes` says so; nothing is guessed.

    Attributes
    ----------
    format : int
        Version of the model in JSON.
    name : str
        Host name.
    sources : tuple of str
        Sources that were read.
    cpu_model : str
        CPU model.
    online_cpus, allowed_cpus : frozenset of int
        CPUs that are online, and those that this process may use.
    allowed_nodes : tuple of int
        NUMA nodes that this process may have memory from; empty when unknown.
    cpu_quota : float or None
        CPU time that the cgroup allows, in CPUs.
    memory_bytes, memory_limit_bytes : int or None
        Memory of the host, and what the cgroup allows of it, in bytes.
    nodes : tuple of NumaNode
        NUMA nodes.
    l3_domains : tuple of CacheDomain
        Groups of CPUs that share a last-level cache.
    cores : tuple of Core
        Physical cores.
    nics : tuple of Nic
        Network interfaces.
    rdma : tuple of RdmaDevice
        RDMA devices.
    gpus : tuple of Gpu
        GPUs.
    nvlinks : tuple of NvLink
        NVLink between pairs of GPUs.
    storage : tuple of Disk
        Block devices.
    told_paths : tuple of ToldPath
        Paths between devices that a driver or a table told.
    notes : tuple of str
        Facts that could not be read, and why.
    """

    format: int
    name: str
    sources: tuple[str, ...]
    cpu_model: str
    online_cpus: frozenset[int]
    allowed_cpus: frozenset[int]
    allowed_nodes: tuple[int, ...]
    cpu_quota: float | None
    memory_bytes: int | None
    memory_limit_bytes: int | None
    nodes: tuple[NumaNode, ...]
    l3_domains: tuple[CacheDomain, ...]
    cores: tuple[Core, ...]
    nics: tuple[Nic, ...]
    rdma: tuple[RdmaDevice, ...]
    gpus: tuple[Gpu, ...]
    nvlinks: tuple[NvLink, ...]
    storage: tuple[Disk, ...]
    told_paths: tuple[ToldPath, ...]
    notes: tuple[str, ...]

    def to_json(self, *, indent: int | None = None) -> str:
        """Write the machine as JSON, to be read with `load` or `parse`, here or elsewhere."""
        return json.dumps(to_json(self), indent=indent)

    def distance(self, one: str, other: str) -> Distance:
        """Tell what lies between two devices.

        Parameters
        ----------
        one, other : str
            ``gpu0``, ``cpu12``, ``node1`` (the memory of a NUMA node), or the name of an interface,
            an RDMA device or a disk.

        Returns
        -------
        Distance
            The path, and the bandwidth and latency to expect of it; figures of its kind, not of
            this machine (``docs/design/launch-plans.md`` has their sources).

        Raises
        ------
        ConfigError
            If the machine lacks one of them.
        """
        return native_of(self, _native.Machine).distance(one, other)

    def tree(self) -> str:
        """Draw the machine as a tree of text: packages, NUMA nodes, caches, devices."""
        return native_of(self, _native.Machine).tree()

    def matrix(self) -> str:
        """Write the paths between devices in the style of ``nvidia-smi topo -m``, with a legend."""
        return native_of(self, _native.Machine).matrix()

    def svg(self, plan: Plan | None = None) -> str:
        """Draw the machine as an SVG document, in the colours of a plan's workers if given one."""
        planned = None if plan is None else native_of(plan, _native.Plan)
        return native_of(self, _native.Machine).svg(planned)

    def _repr_html_(self) -> str:
        """Draw it in a notebook."""
        return picture_html(self.svg())

    def plan(
        self,
        policy: Policy = "per-numa",
        *,
        n: int | None = None,
        threads_per_worker: int | None = None,
        memory_limit: int | str | None = None,
        memory_fraction: float | None = None,
        gpus: Sequence[int | str] | str | None = None,
        nics: Sequence[str] | str | None = None,
        interface: str | None = None,
        cpus: Iterable[int] | str | None = None,
        exclusive_cpus: bool = False,
    ) -> Plan:
        """Plan which workers to run, and what each should use.

        Parameters
        ----------
        policy : {"per-numa", "per-gpu", "per-l3", "n"}
            Part of the machine that each worker runs for: a NUMA node, a GPU, a last-level cache;
            ``n`` for as many as asked for. Each CPU has one worker at most, but GPUs of one NUMA
            node share its CPUs.
        n : int, optional
            How many workers, for policy ``n`` alone.
        threads_per_worker : int, optional
            By default 1 with a GPU, and the number of its CPUs without.
        memory_limit : int or str, optional
            Memory of each worker, in bytes or as ``"4 GiB"``; 0 for no limit. By default a share of
            the machine's.
        memory_fraction : float, optional
            Part of the machine's memory that the workers share, above 0 and at most 1. By default
            all of it.
        gpus : sequence of int or str, optional
            Numbers or UUIDs of GPUs, or UUIDs of instances (MIG); a text is split at commas. By
            default all.
        nics : sequence of str, optional
            Interfaces to use, by name; a text is split at commas. By default Dask chooses.
        interface : str, optional
            Prefix of the interfaces to use, as ``"ib"``; each worker has the nearest.
        cpus : iterable of int or str, optional
            CPUs to keep to, as numbers or as ``"0-3,8"``. By default all that are allowed.
        exclusive_cpus : bool
            Whether workers with GPUs of one NUMA node divide its CPUs instead of sharing them.

        Returns
        -------
        Plan
            The workers, and why they are so in words.

        Raises
        ------
        PlanError
            If it is impossible: more workers than CPUs, an unknown GPU or interface, CPUs that are
            offline or forbidden.
        ConfigError
            If a value is not of its kind.
        """
        if isinstance(memory_limit, str):
            try:
                memory_limit = parse_bytes(memory_limit)
            except ValueError as error:
                raise ConfigError(f"memory_limit: {error}") from error
        native = native_of(self, _native.Machine).plan(
            policy=policy,
            n=n,
            threads_per_worker=threads_per_worker,
            memory_limit=memory_limit,
            memory_fraction=memory_fraction,
            gpus=None if gpus is None else [str(gpu) for gpu in _names(gpus)],
            interface=interface,
            nics=None if nics is None else _names(nics),
            cpus=cpus,
            exclusive_cpus=exclusive_cpus,
        )
        return plan_of(native)


def discover(*, root: str | PathLike[str] | None = None) -> Machine:
    """Find out what this machine is made of, as this process sees it.

    Parameters
    ----------
    root : path-like, optional
        Folder with the ``sys`` and ``proc`` of a recorded machine.

    Returns
    -------
    Machine
        What ``/sys``, ``/proc`` and the driver of GPUs tell without root; `Machine.notes` has what
        they do not.

    Raises
    ------
    MachineError
        If there is no Linux system below `root`.
    """
    return _machine_of(_native.Machine.discover(root))


def parse(text: str | bytes, *, name: str | None = None, format: Format | None = None) -> Machine:
    """Read a machine from a text.

    Parameters
    ----------
    text : str or bytes
        A machine as JSON, XML of hwloc, or what ``nvidia-smi topo -m`` prints, possibly with what
        ``nvidia-smi -L`` prints before it; bytes in UTF-8.
    name : str, optional
        Name of the text in errors, such as the name of its file.
    format : {"json", "hwloc-xml", "nvidia-smi"}, optional
        By default it is recognised.

    Returns
    -------
    Machine
        The machine of the text; `Machine.notes` lists missing facts.

    Raises
    ------
    MachineError
        If the text describes no machine; the message has name, line and value.
    ConfigError
        If the format is unknown.
    """
    called = "" if name is None else f"{name}: "
    if len(text) > _TEXT_MAX:
        raise MachineError(
            f"{called}more than {_TEXT_MAX >> 20} MiB of text: no machine takes so much"
        )
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        return _machine_of(_native.Machine.parse(text, format))
    except UnicodeDecodeError as error:
        raise MachineError(
            f"{called}byte {error.start} is not UTF-8: save the text in that encoding"
        ) from error
    except UnicodeEncodeError as error:
        raise MachineError(f"{called}character {error.start} is half of a character") from error
    except MachineError as error:
        raise MachineError(f"{called}{error}") from error


def route(machine: Machine, one: str, other: str) -> Route:
    """Find the fastest way between two devices of one host, by other GPUs if need be.

    Two GPUs without an NVLink between them may each have one to a third, which passes on what it
    receives. Only such relays are looked for, and only one on a way.

    Parameters
    ----------
    machine : Machine
        The host.
    one, other : str
        As for `Machine.distance`.

    Returns
    -------
    Route
        The direct path, unless a relay has more bandwidth; figures of its kind, not of this machine
        (``docs/design/topology.md``).

    Raises
    ------
    ConfigError
        If the machine lacks one of them.

    Examples
    --------
    >>> dgx1 = load("dgx-1.nvidia-smi.txt")  # doctest: +SKIP
    >>> route(dgx1, "gpu0", "gpu5").devices  # doctest: +SKIP
    ('gpu0', 'gpu1', 'gpu5')
    """
    return native_of(machine, _native.Machine).route(one, other)


def load(path: str | PathLike[str], *, format: Format | None = None) -> Machine:
    """Read a machine from a file.

    Parameters
    ----------
    path : path-like
        The file, in UTF-8.
    format : {"json", "hwloc-xml", "nvidia-smi"}, optional
        By default it is recognised.

    Returns
    -------
    Machine
        The machine of the file; see `parse`.

    Raises
    ------
    MachineError
        If the file describes no machine; the message has file, line and value.
    ConfigError
        If the format is unknown.
    OSError
        If the file cannot be read.
    """
    with Path(path).open("rb") as file:
        return parse(read_some(file), name=str(path), format=format)


def read_some(file: BinaryIO) -> bytes:
    """Read as much of a file as `parse` takes, and one byte more if there is more."""
    parts, left = [], _TEXT_MAX + 1
    while left and (part := file.read(min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _names(names: Sequence[_T] | str) -> Sequence[_T | str]:
    if not isinstance(names, str):
        return names
    return [name.strip() for name in names.split(",") if name.strip()]


def _machine_of(native: _native.Machine) -> Machine:
    return with_native(native.record(), native)
