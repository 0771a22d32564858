"""Dask's nanny, whose worker processes are pinned, the first one and every one after it.

A nanny makes a ``WorkerProcess`` whenever it starts or restarts its worker, that makes an
``AsyncProcess``, and that a process of ``multiprocessing`` which a thread of its own starts. None
of the three takes a class to use: `worker_class` is what runs in the process, whose
interpreter has started by then, with its threads. So each is given our class as it is handed over,
as `backhaul.dask.compat.instance_patches` lists.
"""

from __future__ import annotations

import logging
from typing import Any

from distributed import Nanny, Status

from backhaul.dask.compat.instance_patches import PINNED_PROCESS
from backhaul.dask.compat.names import AsyncProcess, WorkerProcess, process_of, starting_method
from backhaul.dask.launch.pinning import PinnedProcess, Pinning
from backhaul.errors import ConfigError

__all__ = ["PinnedNanny", "pinned"]

logger = logging.getLogger("distributed.nanny")


class PinnedWorkerProcess(WorkerProcess):
    """A nanny's view of one worker process, which is pinned."""

    pinning: Pinning

    # Dask looks for the worker's first message that often, in seconds; by default 0.05.
    _init_msg_interval = 0.01

    @property
    def process(self) -> AsyncProcess | None:
        """The process, once there is one."""
        found: AsyncProcess | None = vars(self).get("process")
        return found

    @process.setter
    def process(self, process: AsyncProcess | None) -> None:
        vars(self)["process"] = process
        if process is not None:
            spawned = process_of(process)
            if PINNED_PROCESS.install(self, {"process._process.__class__": PinnedProcess}):
                spawned.pinning = self.pinning

    async def start(self) -> Any:
        """Start the worker process where it belongs."""
        try:
            status = await super().start()
        except ConfigError:
            # No process was started that the nanny could end, but its queues have threads to end.
            self.child_stop_q.close()
            if self.process is not None:
                self.process.close()
            self.status = Status.stopped
            raise
        if self.process is not None and (
            refusal := getattr(process_of(self.process), "refusal", None)
        ):
            logger.warning(refusal)
        return status


class PinnedNanny(Nanny):
    """A nanny whose worker runs on its own CPUs, with memory from its own NUMA nodes.

    Parameters
    ----------
    pinning : Pinning
        Where each worker process of this nanny runs, from before its interpreter starts; also
        after a restart, and after the worker has died.
    *args, **kwargs
        As for `distributed.Nanny`.

    Raises
    ------
    ConfigError
        If worker processes are not spawned: what is forked from a server or from a running
        program cannot be pinned from here.
    """

    def __init__(self, *args: Any, pinning: Pinning, **kwargs: Any) -> None:
        method = starting_method()
        if method != "spawn":
            raise ConfigError(
                f"distributed.worker.multiprocessing-method is {method!r}, but workers are pinned "
                "as they are spawned; set it to 'spawn', Dask's default"
            )
        self.pinning = pinning
        super().__init__(*args, **kwargs)

    @property
    def process(self) -> WorkerProcess | None:
        """The worker process, while there is one."""
        found: WorkerProcess | None = vars(self).get("process")
        return found

    @process.setter
    def process(self, process: Any) -> None:
        if process is not None and PINNED_PROCESS.install(
            process, {"__class__": PinnedWorkerProcess}
        ):
            process.pinning = self.pinning
        vars(self)["process"] = process


def pinned(nanny_class: type[Nanny]) -> type[PinnedNanny]:
    """Make the pinned kind of a class of nannies, derived from it and `PinnedNanny`."""
    if issubclass(nanny_class, PinnedNanny):
        return nanny_class
    if nanny_class is Nanny:
        return PinnedNanny
    return type(f"Pinned{nanny_class.__name__}", (PinnedNanny, nanny_class), {})
