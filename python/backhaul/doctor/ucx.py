"""UCX: which libucp, from where, with which transports, and whether it serves the hardware here."""

from __future__ import annotations

from collections.abc import Iterator

from backhaul import topology
from backhaul.doctor.child import ChildFailed, ask
from backhaul.doctor.findings import Finding, State

__all__ = ["examine"]


def examine() -> Iterator[Finding]:
    """Connect over UCX in a process of its own, and look at what that has loaded."""
    has_rdma = bool(topology.discover().rdma)
    try:
        found = ask("ucx")
    except ChildFailed as error:
        yield Finding("ucx", "libucp", State.BROKEN, str(error))
        return
    libraries = found["libraries"]
    if not libraries:
        # Without RDMA nothing is lost: within a host, and over TCP, Backhaul has ways of its own.
        state = State.LIMITED if has_rdma else State.ABSENT
        advice = "install the system's UCX, which has verbs" if has_rdma else ""
        yield Finding("ucx", "libucp", state, found["error"], advice)
        return
    said = f"{found['version'] or 'version unknown'}, {libraries['libucp']}"
    if found["error"]:
        yield Finding("ucx", "libucp", State.BROKEN, f"{said}: {found['error']}")
        return
    yield Finding("ucx", "libucp", State.WORKS, said)
    transports = ", ".join(found["modules"]) or "those built in"
    yield Finding("ucx", "modules", State.WORKS, transports)
    if has_rdma and "ib" not in found["modules"]:
        advice = (
            "the wheels of PyPI are built without verbs: install the system's UCX, and remove the"
            " wheel or set RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=1"
        )
        detail = "this libucp cannot use the RDMA devices of this host"
        yield Finding("ucx", "RDMA", State.LIMITED, detail, advice)
