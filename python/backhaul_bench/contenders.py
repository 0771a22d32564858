"""The contenders: everything that Backhaul can be measured against, and how it is set up.

Between two processes they are the peers, one module each in `backhaul_bench.peers`; between the
processes of a cluster they are configurations. Both are asked for by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["CLUSTERS", "RECYCLED_MEMORY", "ClusterOptions", "Configuration", "peer_names"]

#: Dask's default of ``distributed.scheduler.worker-saturation``
_DASK_SATURATION = 1.1

#: Has glibc keep what a program frees, and use it again: no block is a mapping of its own, the heap
#: never shrinks, and threads share it (heaps of threads are too small for large blocks, which
#: would be mapped after all). Source: mallopt(3).
RECYCLED_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**40),
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(2**24),
}


@dataclass(frozen=True)
class Configuration:
    """Difference of one cluster from the others of the run."""

    #: URI scheme. Over ``inproc`` all is in one process, whose threads are as many as the workers'
    protocol: str
    #: ``distributed.scheduler.worker-saturation``: tasks sent to a worker for each of its threads
    saturation: float = _DASK_SATURATION
    #: Whether the allocator keeps what is freed; see :data:`RECYCLED_MEMORY`
    recycled: bool = False
    #: Keys of the configuration of Dask, and what they are set to in each of its processes
    settings: tuple[tuple[str, str], ...] = ()
    #: How reports name these settings
    settings_name: str = ""

    @property
    def one_process(self) -> bool:
        """Tell whether all is in one process, so that nothing is moved."""
        return self.protocol == "inproc"

    @property
    def environment(self) -> dict[str, str]:
        """Give the environment variables of its processes."""
        found = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION": str(self.saturation)}
        for key, value in self.settings:
            found["DASK_" + key.replace(".", "__").replace("-", "_").upper()] = value
        return {**found, **(RECYCLED_MEMORY if self.recycled else {})}

    @property
    def label(self) -> str:
        """How reports name it: what is Dask's default is not said."""
        parts = ["one process" if self.one_process else self.protocol]
        if self.saturation != _DASK_SATURATION:
            parts.append(f"saturation {self.saturation:g}")
        if self.recycled:
            parts.append("recycled")
        if self.settings_name:
            parts.append(self.settings_name)
        return ", ".join(parts)


#: Clusters that are asked for by a name that is no protocol: what would be left to gain
CLUSTERS = {
    "one-process": Configuration("inproc"),
    "one-process-recycled": Configuration("inproc", recycled=True),
    "tcp-recycled": Configuration("tcp", recycled=True),
}


def peer_names() -> list[str]:
    """List the peers that ``backhaul bench p2p --against`` knows.

    Returns
    -------
    list of str
        Sorted.
    """
    # Each is a module.
    from backhaul_bench.peers import discover

    return list(discover())


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Options of every run on clusters."""

    #: URI schemes
    protocols: Sequence[str] = ("tcp", "backhaul")
    #: Values of ``distributed.scheduler.worker-saturation``, each with every protocol
    saturations: Sequence[float] = (_DASK_SATURATION,)
    workers: int = 2
    #: Of each worker
    threads: int = 1
    #: Timed repetitions of each case in each configuration
    repetitions: int = 3
    #: Some of :data:`CLUSTERS`, beside the protocols
    against: Sequence[str] = ()

    @property
    def configurations(self) -> list[Configuration]:
        """List the configurations to compare; the first one is the baseline of the others."""
        own = [Configuration(p, s) for p in self.protocols for s in self.saturations]
        return [*own, *(CLUSTERS[name] for name in self.against)]
