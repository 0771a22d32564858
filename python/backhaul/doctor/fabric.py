"""Lanes within this process, and what a peer in another process of this host gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backhaul import BackhaulError, Context, topology
from backhaul.doctor.child import ChildFailed, started
from backhaul.doctor.findings import Finding, State
from backhaul.doctor.lanes import check_arena, check_lanes
from backhaul.doctor.ucx import Transport, transports_here, usable

__all__ = ["examine_lanes", "examine_peers", "other_hosts"]

_TIMEOUT_S = 20.0

#: Purpose of each carrier, and advice where a host does not let it work
_CARRIERS = {
    "lease": (
        "memory of an arena is lent, not copied",
        "results are copied between processes; see the arena above",
    ),
    "single-copy": (
        "long private messages may be read straight from the sender's memory",
        "allow process_vm_readv between processes of one user: the sysctl kernel.yama.ptrace_scope"
        " must be 0, and a container needs the same process id namespace",
    ),
}


def examine_lanes() -> Iterator[Finding]:
    """Try each lane, and shared memory, within this process."""
    for lane, said in check_lanes().items():
        works = said == "works"
        state = State.WORKS if works else State.BROKEN
        yield Finding("lanes", lane, state, "a message to itself arrived" if works else said)
    arena = check_arena()
    if arena == "works":
        yield Finding("lanes", "arena", State.WORKS, "blocks that peers could map can be had")
    else:
        advice = "memory is copied between processes instead of lent; allow memfd_create"
        yield Finding("lanes", "arena", State.LIMITED, arena, advice)


def examine_peers() -> Iterator[Finding]:
    """Meet another process of this host, and see which lane and carriers it gets."""
    context = Context()
    try:
        with context.listen("127.0.0.1:0") as listener, started("peer", listener.address):
            endpoint = listener.accept().wait(_TIMEOUT_S)
            answer = bytearray(8)
            endpoint.recv(answer).wait(_TIMEOUT_S)
            info = endpoint.info()
            endpoint.send(answer).wait(_TIMEOUT_S)
            endpoint.close().wait(_TIMEOUT_S)
    except (BackhaulError, ChildFailed) as error:
        yield Finding("peers", "a process of this host", State.BROKEN, str(error))
        return
    finally:
        context.close()
    lane = info["lane"]
    said = f"lane {lane}: {info['reason']}"
    if lane == "shm":
        yield Finding("peers", "a process of this host", State.WORKS, said)
    else:
        advice = "processes of one user on one host should share memory; the reason says why not"
        yield Finding("peers", "a process of this host", State.LIMITED, said, advice)
    for carrier, (purpose, advice) in _CARRIERS.items():
        subject = f"carrier {carrier}"
        if carrier in info["carriers"]:
            yield Finding("peers", subject, State.WORKS, purpose)
        else:
            detail = f"not with that process ({info['reason']}): {purpose} where it works"
            yield Finding("peers", subject, State.LIMITED, detail, advice)
    if "cuda" in info["carriers"]:
        said = "memory of GPUs is read by the peer's GPU"
        yield Finding("peers", "carrier cuda", State.WORKS, said)
    for carrier in info["carriers"]:
        if carrier not in _CARRIERS and carrier != "cuda":
            yield Finding("peers", f"carrier {carrier}", State.WORKS, "the two have agreed on it")
    subject = "another user, or a container with a network of its own"
    yield Finding("peers", subject, State.WORKS, "lane tcp, without carriers, on this host too")
    rdma = [device.name for device in topology.discover().rdma]
    yield other_hosts(rdma, _transports_of(rdma))


def other_hosts(rdma: Sequence[str], transports: Sequence[Transport] | None) -> Finding:
    """Say what a process of another host gets.

    Parameters
    ----------
    rdma : sequence of str
        Names of the RDMA devices here.
    transports : sequence of (str, str, str) or None
        Those that UCX has here; None without a UCX that works.
    """
    subject = "a process of another host"
    if not rdma:
        return Finding("peers", subject, State.WORKS, "lane tcp, without carriers")
    if transports and any(usable(device, transports) for device in rdma):
        said = "lane ucx with carrier ucx if RDMA and UCX are there too, otherwise tcp"
        return Finding("peers", subject, State.WORKS, said)
    said = f"lane tcp, without carriers, though there is RDMA ({', '.join(rdma)})"
    return Finding("peers", subject, State.LIMITED, said, "see what `backhaul doctor ucx` advises")


def _transports_of(rdma: Sequence[str]) -> Sequence[Transport] | None:
    """Ask UCX, if there is RDMA that it might use."""
    if not rdma:
        return None
    try:
        return transports_here()
    except ChildFailed:
        return None
