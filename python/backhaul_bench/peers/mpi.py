"""Peer: mpi4py, blocking and in windows, started with the mpiexec beside it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from backhaul_bench.driver import BlockingDriver
from backhaul_bench.pair import Contender, ProcessPair
from backhaul_bench.peers import Interpreter, Peer, Variant

__all__ = ["PEER", "Driver", "make_driver", "role_of_rank"]


def _start(variant: Variant, interpreter: Interpreter) -> Contender:
    mpiexec = interpreter.program("mpiexec")
    assert mpiexec is not None, "a peer is started only where its programs are"
    # Open MPI starts as root, and on fewer cores than ranks, only when asked to.
    openmpi = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    return ProcessPair(
        __name__,
        variant.options,
        python=interpreter.python,
        environment={**openmpi, **variant.environment},
        roles=["rank"],
        launcher=[mpiexec, "-n", "2"],
    )


PEER = Peer(
    "mpi4py",
    [Variant("Send/Recv", "blocking")],
    packages=["mpi4py"],
    programs=["mpiexec"],
    start_variant=_start,
)


def role_of_rank() -> str:
    """Rank 0 echoes, rank 1 measures."""
    # Both MPICH and Open MPI say it before MPI is initialised.
    rank = os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK")
    if rank is None:
        from mpi4py import MPI

        rank = str(MPI.COMM_WORLD.Get_rank())
    return "server" if int(rank) == 0 else "client"


def make_driver(options: Mapping[str, Any], *, role: str) -> Driver:
    """Make one end."""
    return Driver(options, role=role)


class Driver(BlockingDriver):
    """One of two ranks."""

    def __init__(self, options: Mapping[str, Any], *, role: str) -> None:
        super().__init__(options, role=role)
        # Here and not in listen(): initialising may wait for the other rank.
        from mpi4py import MPI

        self._mpi: Any = MPI
        self._other = 1 if role == "server" else 0

    def listen(self) -> str:
        """Nothing to do: MPI connects by rank."""
        return ""

    def accept(self) -> None:
        """Nothing to do."""

    def connect(self, address: str) -> None:
        """Nothing to do."""

    @property
    def lane(self) -> str:
        """MPI does not say; on one host it is shared memory."""
        return "mpi"

    def sender(self, buffer: memoryview) -> Callable[[], object]:
        """MPI_Send."""
        return partial(self._mpi.COMM_WORLD.Send, self._spec(buffer), self._other, 0)

    def receiver(self, buffer: memoryview) -> Callable[[], object]:
        """MPI_Recv."""
        return partial(self._mpi.COMM_WORLD.Recv, self._spec(buffer), self._other, 0)

    def send_many(self, buffer: memoryview, *, count: int, window: int) -> None:
        """MPI_Isend, waiting for the oldest when the window is full."""
        start = partial(self._mpi.COMM_WORLD.Isend, self._spec(buffer), self._other, 0)
        pending: deque[Any] = deque()
        for _ in range(count):
            if len(pending) == window:
                pending.popleft().Wait()
            pending.append(start())
        for request in pending:
            request.Wait()

    def receive_many(self, buffers: Sequence[memoryview], *, count: int) -> None:
        """MPI_Irecv into each buffer in turn."""
        receive = self._mpi.COMM_WORLD.Irecv
        starts = [partial(receive, self._spec(each), self._other, 0) for each in buffers]
        pending: deque[Any] = deque()
        for index in range(count):
            if len(pending) == len(starts):
                pending.popleft().Wait()
            pending.append(starts[index % len(starts)]())
        for request in pending:
            request.Wait()

    def close(self) -> None:
        """MPI finalises itself at exit."""

    def _spec(self, buffer: memoryview) -> list[Any]:
        return [buffer, self._mpi.BYTE]
