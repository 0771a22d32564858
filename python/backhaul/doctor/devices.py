"""GPUs with their driver, and RDMA devices."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from backhaul import topology
from backhaul.doctor.child import ChildFailed, ask
from backhaul.doctor.findings import Finding, State

__all__ = ["examine_gpus", "examine_rdma", "peer_access", "rmm"]


def examine_gpus() -> Iterator[Finding]:
    """Look for the driver and for GPUs, and tell how these reach each other."""
    machine = topology.discover()
    try:
        driver = ask("cuda")
    except ChildFailed as error:
        yield Finding("gpu", "libcuda", State.BROKEN, str(error))
        return
    if "path" not in driver:
        state = State.BROKEN if machine.gpus else State.ABSENT
        advice = "install the NVIDIA driver's libraries, or pass them into the container"
        said = driver["why"]
        yield Finding("gpu", "libcuda", state, said, advice if machine.gpus else "")
        return
    version = f"{driver['path']}, CUDA {driver['version'] // 1000}.{driver['version'] % 1000 // 10}"
    if driver["error"]:
        # A driver without a GPU is common in containers and on hosts to build on.
        state = State.BROKEN if machine.gpus else State.ABSENT
        yield Finding("gpu", "libcuda", state, f"{version}: {driver['error']}")
        return
    yield Finding("gpu", "libcuda", State.WORKS, f"{version}, {driver['devices']} devices")
    for gpu in machine.gpus:
        memory = f", {gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else ""
        said = f"{gpu.name}{memory}"
        yield Finding("gpu", f"GPU {gpu.index}", State.WORKS, said)
    for one, other in combinations(machine.gpus, 2):
        way = machine.distance(f"gpu{one.index}", f"gpu{other.index}")
        yield Finding("gpu", f"GPU {one.index} to {other.index}", State.WORKS, way.path)
    yield from peer_access(driver["peers"])
    if driver["devices"]:
        yield _carrier()
    yield rmm(needed=bool(driver["devices"]))


def _carrier() -> Finding:
    """Send memory of the first GPU by the carrier, between two ends of another process."""
    subject = "carrier cuda"
    try:
        said = ask("device")
    except ChildFailed as error:
        return Finding("gpu", subject, State.BROKEN, str(error))
    if said["why"]:
        advice = "arrays on GPUs go by way of the host; a container needs its GPUs' driver mounted"
        return Finding("gpu", subject, State.BROKEN, said["why"], advice)
    if not said["is_default"]:
        detail = "it works, and is not used by default: this host has no /dev/nvidiactl"
        return Finding("gpu", subject, State.LIMITED, detail, 'name it: carriers=[…, "cuda"]')
    detail = f"{said['nbytes'] >> 20} MiB of GPU memory were sent and are as they were"
    return Finding("gpu", subject, State.WORKS, detail)


def peer_access(pairs: Sequence[Sequence[Any]]) -> Iterator[Finding]:
    """Say which GPUs may read each other's memory, as the driver sees it.

    Parameters
    ----------
    pairs : sequence of (str, str, bool)
        PCI addresses of reader and owner, and whether the first may.
    """
    refused = [f"{reader} from {owner}" for reader, owner, may in pairs if not may]
    count = sum(bool(may) for *_, may in pairs)
    if refused:
        advice = "their copies pass through the host; look at IOMMU, ACS and nvidia-smi topo -p2p r"
        detail = f"not {', '.join(refused)}; {count} others may"
        yield Finding("gpu", "peer access", State.LIMITED, detail, advice)
    elif count:
        said = f"each may read the memory of each other one ({count} directions)"
        yield Finding("gpu", "peer access", State.WORKS, said)


def rmm(*, needed: bool) -> Finding:
    """Say whether workers can have pools of GPU memory; RMM is not imported."""
    for name in ("rmm-cu12", "rmm-cu13", "rmm"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(name)
            return Finding("gpu", "RMM", State.WORKS, f"{name} {version}, for rmm_pool_size")
    said = "not installed: no pools of GPU memory for workers"
    advice = "pip install 'backhaul[rmm]'" if needed else ""
    return Finding("gpu", "RMM", State.ABSENT, said, advice)


def examine_rdma() -> Iterator[Finding]:
    """List RDMA devices."""
    devices = topology.discover().rdma
    if not devices:
        yield Finding("rdma", "devices", State.ABSENT, "there is none: other hosts by tcp")
    for device in devices:
        speed = f"{device.bits_per_s / 1e9:.0f} Gb/s" if device.bits_per_s else "speed unknown"
        if device.active is False:
            advice = "its port is down: check the cable and the subnet manager"
            yield Finding("rdma", device.name, State.LIMITED, f"{speed}, no active port", advice)
        else:
            yield Finding("rdma", device.name, State.WORKS, speed)
