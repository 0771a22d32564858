"""Processes that are all connected to each other, for benchmarks of whole clusters.

A server brings the workers together: each sends its own address, and gets those of all others.
The functions have the names and parameters that UCX-Py's benchmarks are written for.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import multiprocessing
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import backhaul.ucp as ucp
from backhaul.ucp._address import get_address

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

__all__ = ["recv_pickled_msg", "run_cluster_server", "run_cluster_workers", "send_pickled_msg"]

Options = dict[str, str]
Work = Callable[[int, dict[int, ucp.Endpoint], Any], Any]


async def send_pickled_msg(ep: ucp.Endpoint, obj: object) -> None:
    """Send any object that can be pickled."""
    await ep.send_obj(pickle.dumps(obj))


async def recv_pickled_msg(ep: ucp.Endpoint) -> Any:
    """Receive an object from a peer, which is trusted with all that unpickling can do."""
    return pickle.loads(await ep.recv_obj())


def run_cluster_server(
    server_file: str | None, n_workers: int, ucx_options_list: Options | None = None
) -> list[Any]:
    """Bring workers together and wait for what they return.

    Parameters
    ----------
    server_file : str or None
        File to write the address to, as JSON; None for the standard output.
    n_workers : int
        How many workers there will be.
    ucx_options_list : dict of str to str, optional
        UCX options of the server.

    Returns
    -------
    list
        Results of the workers, by rank.
    """
    process, queue = _run_cluster_server(server_file, n_workers, ucx_options_list)
    results = [queue.get() for _ in range(n_workers)]
    _join([process])
    return results


def run_cluster_workers(*args: Any, **kwargs: Any) -> None:
    """Run workers until they end; see `_run_cluster_workers` for the parameters."""
    _join(_run_cluster_workers(*args, **kwargs))


def _run_cluster_server(
    server_file: str | None, n_workers: int, ucx_options_list: Options | None = None
) -> tuple[BaseProcess, Any]:
    """Start the server; gives its process and a queue of the workers' results, by rank."""
    queue: Any = multiprocessing.Queue()
    arguments = (queue, server_file, n_workers, ucx_options_list)
    process = multiprocessing.Process(target=_server_process, args=arguments)
    process.start()
    return process, queue


def _run_cluster_workers(
    server_info: str | Mapping[str, Any],
    num_workers: int,
    num_node_workers: int,
    node_idx: int,
    worker_func: Work,
    worker_args: Any = None,
    ucx_options_list: Sequence[Options] | None = None,
    ensure_cuda_device: bool = False,
) -> list[BaseProcess]:
    """Start the workers of one host.

    Parameters
    ----------
    server_info : str or mapping
        File that the server has written, or what is in it.
    num_workers : int
        Accepted: the server knows how many there are.
    num_node_workers, node_idx : int
        How many workers each host has, and which host this is, from 0.
    worker_func : callable
        Called in each worker with its rank, the endpoints to the others by their ranks, and
        `worker_args`. It may be asynchronous.
    worker_args : object, optional
        Handed to it.
    ucx_options_list : sequence of dict, optional
        UCX options of each worker, by rank.
    ensure_cuda_device : bool, optional
        Must be false: nothing here touches a GPU.

    Returns
    -------
    list of Process
        The workers, started.
    """
    if ensure_cuda_device:
        raise ValueError(f"no lane reaches a GPU, got ensure_cuda_device={ensure_cuda_device!r}")
    if isinstance(server_info, str):
        with open(server_info) as file:
            server_info = json.load(file)
    if not isinstance(server_info, Mapping):
        raise ValueError(f"server_info must be a file or a mapping, got {server_info!r}")
    processes: list[BaseProcess] = []
    for rank in range(node_idx * num_node_workers, (node_idx + 1) * num_node_workers):
        options = None if ucx_options_list is None else ucx_options_list[rank]
        arguments = (dict(server_info), rank, options, worker_func, worker_args)
        processes.append(multiprocessing.Process(target=_worker_process, args=arguments))
        processes[-1].start()
    return processes


def _server_process(
    queue: Any, server_file: str | None, n_workers: int, options: Options | None
) -> None:
    if options is not None:
        ucp.init(options)
    for result in asyncio.run(_bring_together(server_file, n_workers)):
        queue.put(result)


async def _bring_together(server_file: str | None, n_workers: int) -> list[Any]:
    places: dict[int, tuple[str, int]] = {}
    results: dict[int, Any] = {}
    all_are_here, all_are_done = asyncio.Event(), asyncio.Event()

    async def look_after(ep: ucp.Endpoint) -> None:
        rank, place = await recv_pickled_msg(ep)
        places[rank] = place
        if len(places) == n_workers:
            all_are_here.set()
        await all_are_here.wait()
        await send_pickled_msg(ep, places)
        results[rank] = await recv_pickled_msg(ep)
        if len(results) == n_workers:
            all_are_done.set()

    listener = ucp.create_listener(look_after)
    text = json.dumps({"address": get_address(), "port": listener.port})
    if server_file is None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    else:
        with open(server_file, "w") as file:
            file.write(text)
    await all_are_done.wait()
    return [results[rank] for rank in range(n_workers)]


def _worker_process(
    server: Mapping[str, Any], rank: int, options: Options | None, work: Work, args: Any
) -> None:
    if options is not None:
        ucp.init(options)
    asyncio.run(_take_part(server, rank, work, args))


async def _take_part(server: Mapping[str, Any], rank: int, work: Work, args: Any) -> None:
    eps: dict[int, ucp.Endpoint] = {}
    came = asyncio.Event()

    async def welcome(ep: ucp.Endpoint) -> None:
        eps[await recv_pickled_msg(ep)] = ep
        came.set()

    listener = ucp.create_listener(welcome)
    server_ep = await ucp.create_endpoint(server["address"], server["port"])
    await send_pickled_msg(server_ep, (rank, (get_address(), listener.port)))
    places: dict[int, tuple[str, int]] = await recv_pickled_msg(server_ep)
    # Of each pair the lower rank connects.
    for other in range(rank + 1, len(places)):
        eps[other] = await ucp.create_endpoint(*places[other])
        await send_pickled_msg(eps[other], rank)
    while len(eps) < len(places) - 1:
        came.clear()
        await came.wait()
    result = work(rank, eps, args)
    if inspect.isawaitable(result):
        result = await result
    await send_pickled_msg(server_ep, result)


def _join(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"{process.name} ended with status {process.exitcode}")
