"""One computation of ``random-array``, in a process of its own: nothing is warm but the system."""

from __future__ import annotations

import importlib
import json
import os
import sys
from time import perf_counter
from typing import Any, TypeAlias

import dask.array as da

#: Rows of the array and of a chunk, seed, and mean of the numbers
What: TypeAlias = tuple[int, int, int, float]


class NotThere(Exception):
    """The hardware to compute on is not on this machine."""


def main() -> None:
    """Compute as the arguments say, and print what it took as JSON."""
    on, size, chunks, seed, mean = sys.argv[1:]
    try:
        units, seconds, total = _COMPUTE[on]((int(size), int(chunks), int(seed), float(mean)))
    except NotThere as error:
        json.dump({"missing": str(error)}, sys.stdout)
        return
    json.dump({"units": units, "seconds": seconds, "sum": total}, sys.stdout)


def reduction(what: What, random_state: Any = None) -> Any:
    """Make the experiment, lazily."""
    size, chunks, seed, mean = what
    source = {} if random_state is None else {"RandomState": random_state}
    numbers = da.random.RandomState(seed, **source)
    x = numbers.normal(mean, 1, size=(size, size), chunks=(chunks, chunks))
    return (x + 1)[::2, ::2].sum()


def timed(lazy: Any, **how: Any) -> tuple[float, float]:
    """Compute, returning seconds and the result."""
    began = perf_counter()
    result = float(lazy.compute(**how))
    return perf_counter() - began, result


def on_one_core(what: What) -> tuple[int, float, float]:
    """In the thread that asks."""
    return (1, *timed(reduction(what), scheduler="single-threaded"))


def on_threads(what: What) -> tuple[int, float, float]:
    """By Dask's scheduler for threads, one for each core."""
    cores = len(os.sched_getaffinity(0))
    return (cores, *timed(reduction(what), scheduler="threads", num_workers=cores))


def on_workers(what: What) -> tuple[int, float, float]:
    """On a cluster of processes, one for each core."""
    from distributed import Client, LocalCluster

    cores = len(os.sched_getaffinity(0))
    with (
        LocalCluster(
            protocol="backhaul", n_workers=cores, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        Client(cluster),
    ):
        return (cores, *timed(reduction(what)))


def on_one_gpu(what: What) -> tuple[int, float, float]:
    """In the thread that asks, with arrays on its GPU."""
    cupy, _ = gpus()
    lazy = reduction(what, random_state=cupy.random.RandomState)
    return (1, *timed(lazy, scheduler="single-threaded"))


def on_all_gpus(what: What) -> tuple[int, float, float]:
    """On a cluster with a worker for each GPU."""
    cupy, count = gpus()
    from distributed import Client

    from backhaul.dask import CUDACluster

    with CUDACluster() as cluster, Client(cluster):
        return (count, *timed(reduction(what, random_state=cupy.random.RandomState)))


def gpus() -> tuple[Any, int]:
    """CuPy, and how many GPUs it sees."""
    try:
        cupy: Any = importlib.import_module("cupy")
    except ImportError as error:
        raise NotThere(f"no CuPy: {error}") from error
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise NotThere(f"no GPU: {error}") from error
    if count == 0:
        raise NotThere("no GPU")
    return cupy, count


_COMPUTE = {
    "core": on_one_core,
    "threads": on_threads,
    "workers": on_workers,
    "gpu": on_one_gpu,
    "gpus": on_all_gpus,
}


if __name__ == "__main__":
    main()
