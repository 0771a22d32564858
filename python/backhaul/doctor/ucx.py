"""UCX: which libucp, from where, with which transports, and whether it serves the hardware here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from backhaul import topology
from backhaul.doctor.child import ChildFailed, ask
from backhaul.doctor.findings import Finding, State

__all__ = ["Transport", "examine", "report", "transports_here", "usable"]

#: A transport, its device, and of which kind that is
Transport = Sequence[str]

_INSTALL = (
    "install the system's UCX, which has verbs (Debian: libucx0 and ibverbs-providers; Red Hat: ucx"
    " and ucx-ib; or that of MLNX_OFED), and remove the wheel or set"
    " RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=1: the wheels of PyPI are built without verbs"
)


def examine() -> Iterator[Finding]:
    """Connect over UCX in a process of its own, and look at what that has loaded."""
    try:
        found = ask("ucx")
    except ChildFailed as error:
        yield Finding("ucx", "libucp", State.BROKEN, str(error))
        return
    rdma = [device.name for device in topology.discover().rdma]
    transports: Iterable[Transport] = ()
    if found["libraries"] and not found["error"]:
        try:
            transports = transports_here()
        except ChildFailed as error:
            yield Finding("ucx", "transports", State.BROKEN, str(error))
    yield from report(found, list(transports), rdma)


def transports_here() -> list[Transport]:
    """List the transports of the UCX that Backhaul loads here.

    Raises
    ------
    ChildFailed
        If it cannot be loaded, or crashes.
    """
    answer = ask("transports")
    if answer["error"]:
        raise ChildFailed(answer["error"])
    found: list[Transport] = answer["transports"]
    return found


def usable(rdma: str, transports: Iterable[Transport]) -> list[str]:
    """List the transports that use an RDMA device, whose ports UCX names ``device:port``."""
    return sorted(
        {transport for transport, device, _ in transports if device.partition(":")[0] == rdma}
    )


def report(
    found: Mapping[str, Any], transports: Sequence[Transport], rdma: Sequence[str]
) -> Iterator[Finding]:
    """Say what came of it.

    Parameters
    ----------
    found : mapping
        Answers of the process that tried it.
    transports : sequence of (str, str, str)
        Those of UCX on this host: name, device, kind of device.
    rdma : sequence of str
        Names of the RDMA devices of this host.
    """
    libraries = found["libraries"]
    if not libraries:
        # Without RDMA nothing is lost: within a host, and over TCP, Backhaul has ways of its own.
        state = State.LIMITED if rdma else State.ABSENT
        yield Finding("ucx", "libucp", state, found["error"], _INSTALL if rdma else "")
        return
    said = f"{found['version'] or 'version unknown'}, {libraries['libucp']}"
    if found["error"]:
        yield Finding("ucx", "libucp", State.BROKEN, f"{said}: {found['error']}")
        return
    yield Finding("ucx", "libucp", State.WORKS, said)
    carriers = ", ".join(found["carriers"]) or "none"
    used = "between hosts with RDMA" if rdma else "only where lanes names it: there is no RDMA"
    yield Finding("ucx", "lane ucx", State.WORKS, f"{used}; carriers {carriers}")
    yield Finding("ucx", "modules", State.WORKS, ", ".join(found["modules"]) or "those built in")
    if transports:
        yield Finding("ucx", "transports", State.WORKS, _listed(transports))
    for device in rdma:
        ways = usable(device, transports)
        if ways:
            yield Finding("ucx", f"RDMA {device}", State.WORKS, f"by {', '.join(ways)}")
        else:
            detail = "this libucp cannot use it"
            yield Finding("ucx", f"RDMA {device}", State.LIMITED, detail, _INSTALL)


def _listed(transports: Iterable[Transport]) -> str:
    devices: dict[str, list[str]] = {}
    for transport, device, kind in transports:
        devices.setdefault(transport, [])
        if kind in ("network", "accelerator"):
            devices[transport].append(device)
    return ", ".join(
        f"{transport} ({', '.join(names)})" if names else transport
        for transport, names in sorted(devices.items())
    )
