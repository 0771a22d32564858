"""The two sides of a round trip, awaited and waited for."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import backhaul.ucp as ucp
from backhaul.ucp import blocking

__all__ = ["Job", "measure", "measure_blocking", "serve", "serve_blocking"]


class Job(NamedTuple):
    """Messages that are sent to and fro.

    Attributes
    ----------
    n_bytes : int
        Size of the message, in bytes.
    n_iter, n_warmup_iter : int
        Round trips that count, and before those.
    reuse_alloc : bool
        Receive into the same memory each time.
    enable_am : bool
        Active messages in place of tagged ones.
    error_handling : bool
        Whether endpoints close when their peer dies.
    port : int or None
        Where the server listens.
    """

    n_bytes: int
    n_iter: int
    n_warmup_iter: int
    reuse_alloc: bool
    enable_am: bool
    error_handling: bool
    port: int | None

    @classmethod
    def of(cls, options: argparse.Namespace) -> Job:
        """Take it from the options of a command."""
        return cls(*(getattr(options, name) for name in cls._fields))

    @property
    def rounds(self) -> int:
        """All round trips."""
        return self.n_iter + self.n_warmup_iter


def _empty(nbytes: int) -> Any:
    import numpy as np

    return np.zeros(nbytes, dtype="u1")


async def serve(job: Job, tell: Callable[[int], None]) -> None:
    """Send one client's messages back.

    Parameters
    ----------
    job : Job
        Messages that come.
    tell : callable
        Called with the port.
    """
    ucp.register_am_allocator(_empty, "host")
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def answer(ep: ucp.Endpoint) -> None:
        try:
            message = _empty(job.n_bytes)
            for _ in range(job.rounds):
                if job.enable_am:
                    await ep.am_send(await ep.am_recv())
                else:
                    if not job.reuse_alloc:
                        message = _empty(job.n_bytes)
                    await ep.recv(message)
                    await ep.send(message)
            await ep.close()
            ended.set_result(None)
        except Exception as error:
            ended.set_exception(error)

    listener = ucp.create_listener(answer, job.port, job.error_handling)
    tell(listener.port)
    await ended
    listener.close()


async def measure(job: Job, host: str, port: int) -> list[float]:
    """Time round trips to a server.

    Parameters
    ----------
    job : Job
        Messages that are sent.
    host, port : str, int
        Where the server is.

    Returns
    -------
    list of float
        Time of each round trip that counts, in seconds.
    """
    ucp.register_am_allocator(_empty, "host")
    ep = await ucp.create_endpoint(host, port, job.error_handling)
    message, reply = _empty(job.n_bytes), _empty(job.n_bytes)
    times = []
    for _ in range(job.rounds):
        begin = time.perf_counter()
        if job.enable_am:
            await ep.am_send(message)
            await ep.am_recv()
        else:
            if not job.reuse_alloc:
                reply = _empty(job.n_bytes)
            await ep.send(message)
            await ep.recv(reply)
        times.append(time.perf_counter() - begin)
    await ep.close()
    return times[job.n_warmup_iter :]


def serve_blocking(job: Job, tell: Callable[[int], None]) -> None:
    """Do the same as `serve` without asyncio."""
    ucp.register_am_allocator(_empty, "host")
    with blocking.create_listener(job.port, job.error_handling) as listener:
        tell(listener.port)
        with listener.accept() as ep:
            message = _empty(job.n_bytes)
            for _ in range(job.rounds):
                if job.enable_am:
                    ep.am_send(ep.am_recv())
                else:
                    if not job.reuse_alloc:
                        message = _empty(job.n_bytes)
                    ep.recv(message)
                    ep.send(message)


def measure_blocking(job: Job, host: str, port: int) -> list[float]:
    """Do the same as `measure` without asyncio."""
    ucp.register_am_allocator(_empty, "host")
    times = []
    with blocking.create_endpoint(host, port, job.error_handling) as ep:
        message, reply = _empty(job.n_bytes), _empty(job.n_bytes)
        for _ in range(job.rounds):
            begin = time.perf_counter()
            if job.enable_am:
                ep.am_send(message)
                ep.am_recv()
            else:
                if not job.reuse_alloc:
                    reply = _empty(job.n_bytes)
                ep.send(message)
                ep.recv(reply)
            times.append(time.perf_counter() - begin)
    return times[job.n_warmup_iter :]
