"""Examines everything, and survives each examination."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from backhaul.doctor import cluster, dask, devices, fabric, limits, ucx
from backhaul.doctor.findings import Finding, State

__all__ = ["TOPICS", "examine"]

#: Topics to examine, in the order of the report
TOPICS: Mapping[str, Callable[[], Iterable[Finding]]] = {
    "lanes": fabric.examine_lanes,
    "peers": fabric.examine_peers,
    "limits": limits.examine,
    "gpu": devices.examine_gpus,
    "rdma": devices.examine_rdma,
    "ucx": ucx.examine,
    "dask": dask.examine,
}


def examine(topics: Iterable[str] = tuple(TOPICS)) -> list[Finding]:
    """Try what Backhaul can use on this machine.

    Parameters
    ----------
    topics : iterable of str
        Topics to examine; all of `TOPICS` by default. A topic with a scheme is the address of a
        scheduler, whose cluster is looked at.

    Returns
    -------
    list of Finding
        In the order of the topics. An examination that fails is a finding too.

    Raises
    ------
    KeyError
        If a topic is unknown.
    """
    findings: list[Finding] = []
    for topic in topics:
        look = partial(cluster.examine, topic) if "://" in topic else TOPICS[topic]
        try:
            findings += look()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            findings.append(Finding(topic, "the examination itself", State.BROKEN, said))
    return findings
