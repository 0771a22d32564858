"""Machines to simulate that a file describes, in TOML.

::

    name = "two hosts and two GPUs"
    work = "cpu"               # sizes of the workloads: cpu (the default) or gpu

    [[host]]
    name = "a"
    workers = 2                # Dask workers; 1 unless said
    threads = 4                # of each; 1 unless said
    nic_gb_per_s = 3.125       # in each direction; needed where there is another host
    shared_gb_per_s = 5.0      # of one pair of its workers; 5 unless said
    memory_gb_per_s = 16.0     # of all of them together; 16 unless said
    rack = "left"              # for hosts in racks

    [[host]]
    name = "b"
    nic_gb_per_s = 0.125
    rack = "right"

    [[rack]]
    name = "left"
    uplink_gb_per_s = 1.25     # in each direction

    [[rack]]
    name = "right"
    uplink_gb_per_s = 1.25

    [[link]]                   # between two workers alone, as NVLink is; by number, in order
    between = [0, 1]
    gb_per_s = 20.0            # in each direction

GB is 1e9 bytes.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from backhaul_bench.placement.machines import (
    GB,
    MACHINES,
    NETWORK_S,
    NVLINK_S,
    SHARED_S,
    Machine,
)

__all__ = ["MachineError", "load_machine", "read_machine"]

#: More than this many workers would take a simulation of hours
WORKERS_MAX: Final = 256

_KEYS: Final = {
    "": {"name", "work", "host", "rack", "link"},
    "host": {
        *("name", "workers", "threads", "nic_gb_per_s", "shared_gb_per_s", "memory_gb_per_s"),
        "rack",
    },
    "rack": {"name", "uplink_gb_per_s"},
    "link": {"between", "gb_per_s"},
}


class MachineError(ValueError):
    """A file does not describe a machine; the message names what is wrong and where."""


def load_machine(name: str) -> Machine:
    """Get a built-in machine, or read the one that a file describes.

    Parameters
    ----------
    name : str
        One of `MACHINES`, or the path of a file.

    Returns
    -------
    Machine
        The machine.

    Raises
    ------
    MachineError
        If there is no such machine or file, or it describes none.
    """
    if name in MACHINES:
        return MACHINES[name]()
    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(MACHINES)
        raise MachineError(
            f"{name!r} is no machine ({known}) nor a file that can be read: {error}"
        ) from error
    try:
        return read_machine(text, name=path.stem)
    except MachineError as error:
        raise MachineError(f"{name}: {error}") from None


def read_machine(text: str, *, name: str) -> Machine:
    """Read a machine from a description.

    Parameters
    ----------
    text : str
        TOML.
    name : str
        Of the machine, if it does not say.

    Returns
    -------
    Machine
        The machine.

    Raises
    ------
    MachineError
        If it describes none.
    """
    try:
        described = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MachineError(f"no TOML: {error}") from error
    _check_keys("", described)
    for table in ("host", "rack", "link"):
        for entry in _tables(described, table):
            _check_keys(table, entry)
    hosts = _by_name(described, "host")
    racks = _by_name(described, "rack")
    if not hosts:
        raise MachineError("no [[host]]")
    work = described.get("work", "cpu")
    if work not in ("cpu", "gpu"):
        raise MachineError(f"work is {work!r}, which is neither cpu nor gpu")
    machine = Machine(_text(described.get("name", name), "name"), work=work)
    of_worker: list[Mapping[str, Any]] = []
    for host in hosts.values():
        if (rack := host.get("rack")) is not None and rack not in racks:
            raise MachineError(f"host {host['name']!r} is in rack {rack!r}, which is not there")
        where = f"host {host['name']!r}"
        workers = _count(host, "workers", where)
        threads = _count(host, "threads", where)
        if len(of_worker) + workers > WORKERS_MAX:
            raise MachineError(f"{len(of_worker) + workers} workers are above {WORKERS_MAX}")
        for _ in range(workers):
            machine.add_worker(host["name"], threads)
            of_worker.append(host)
    links = _links(described, len(of_worker))
    for sender, here in enumerate(of_worker):
        for receiver, there in enumerate(of_worker):
            if sender != receiver:
                _join(machine, sender, receiver, here, there, links, racks)
    return machine


def _join(
    machine: Machine,
    sender: int,
    receiver: int,
    here: Mapping[str, Any],
    there: Mapping[str, Any],
    links: Mapping[tuple[int, int], float],
    racks: Mapping[str, Mapping[str, Any]],
) -> None:
    """Add the way from one worker to another."""
    low, high = sorted((sender, receiver))
    own = links.get((low, high))
    if own is not None:
        edge = machine.edge(f"link {sender}→{receiver}", own * GB)
        machine.add_route(sender, receiver, [edge], NVLINK_S)
        return
    a, b = here["name"], there["name"]
    if here is there:
        pair = _rate(here, "shared_gb_per_s", f"host {a!r}", 5.0)
        memory = _rate(here, "memory_gb_per_s", f"host {a!r}", 16.0)
        edges = [
            machine.edge(f"shared {sender}→{receiver}", pair * GB),
            machine.edge(f"memory of {a}", memory * GB),
        ]
        machine.add_route(sender, receiver, edges, SHARED_S)
        return
    edges = [
        machine.edge(f"NIC from {a}", _rate(here, "nic_gb_per_s", f"host {a!r}") * GB),
        machine.edge(f"NIC to {b}", _rate(there, "nic_gb_per_s", f"host {b!r}") * GB),
    ]
    if here.get("rack") != there.get("rack"):
        for way, host in (("from", here), ("to", there)):
            if (rack := host.get("rack")) is not None:
                rate = _rate(racks[rack], "uplink_gb_per_s", f"rack {rack!r}")
                edges.append(machine.edge(f"uplink {way} {rack}", rate * GB))
    machine.add_route(sender, receiver, edges, NETWORK_S)


def _tables(described: Mapping[str, Any], table: str) -> list[Mapping[str, Any]]:
    found = described.get(table, [])
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise MachineError(f"{table} is no array of tables: write [[{table}]]")
    return found


def _check_keys(table: str, entry: Mapping[str, Any]) -> None:
    for key in entry:
        if key not in _KEYS[table]:
            where = f"[[{table}]]" if table else "the file"
            raise MachineError(
                f"unknown key {key!r} in {where}; known are {', '.join(sorted(_KEYS[table]))}"
            )


def _by_name(described: Mapping[str, Any], table: str) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for number, entry in enumerate(_tables(described, table)):
        if "name" not in entry:
            raise MachineError(f"[[{table}]] number {number} has no name")
        name = _text(entry["name"], f"name of [[{table}]] number {number}")
        if name in found:
            raise MachineError(f"two [[{table}]] are called {name!r}")
        found[name] = entry
    return found


def _links(described: Mapping[str, Any], workers: int) -> dict[tuple[int, int], float]:
    links: dict[tuple[int, int], float] = {}
    for number, entry in enumerate(_tables(described, "link")):
        where = f"[[link]] number {number}"
        between = entry.get("between")
        fits = isinstance(between, list) and len(between) == 2
        if not fits or any(type(end) is not int or not 0 <= end < workers for end in between or ()):
            raise MachineError(
                f"{where}: between is {between!r}, not two numbers of workers below {workers}"
            )
        assert isinstance(between, list)
        low, high = sorted(between)
        if low == high:
            raise MachineError(f"{where} joins worker {low} with itself")
        if (low, high) in links:
            raise MachineError(f"{where} is a second one between {low} and {high}")
        links[low, high] = _rate(entry, "gb_per_s", where)
    return links


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise MachineError(f"{what} is {value!r}, which is no text")
    return value


def _count(entry: Mapping[str, Any], key: str, where: str) -> int:
    value = entry.get(key, 1)
    if type(value) is not int or not 1 <= value <= WORKERS_MAX:
        raise MachineError(
            f"{where}: {key} is {value!r}, not a whole number from 1 to {WORKERS_MAX}"
        )
    return value


def _rate(entry: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
    value = entry.get(key, default)
    if value is None:
        raise MachineError(f"{where} has no {key}")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MachineError(f"{where}: {key} is {value!r}, which is no number")
    if not 0 < value < math.inf:
        raise MachineError(f"{where}: {key} is {value!r}, which is not above 0")
    return float(value)
