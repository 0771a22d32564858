"""Runs a small job with a Dask that lacks one private name at a time.

    python -m tests.dask.missing_names [NAME ...]

Each name of `backhaul.dask.compat.names` is removed in turn, each source that a patch rests on, and
each function that a patch replaces, in a forked process that has not imported Backhaul's part for
Dask yet. A job runs there over ``backhaul://``: a scheduler, two workers, a client, results that
travel. A line says for each name how that ended: ``ok``, ``transport`` where the messages
themselves need the name, or the error.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, Scheduler, Worker

import dask

__all__ = ["main"]


async def _job() -> None:
    """Map, reduce, send arrays between workers, fail, and close."""
    settings = {
        "distributed.scheduler.dashboard.status.task-stream-length": 10,
        "distributed.comm.timeouts.connect": "60s",
    }
    with dask.config.set(settings):
        async with (
            Scheduler(protocol="backhaul", host="127.0.0.1", dashboard=False) as scheduler,
            Worker(scheduler.address, nthreads=1) as a,
            Worker(scheduler.address, nthreads=1) as b,
            Client(scheduler.address, asynchronous=True) as client,
        ):
            total = client.submit(sum, client.map(lambda x: x + 1, range(20)))
            assert await total == 210
            array = client.submit(np.ones, 100_000, workers=[a.address])
            assert await client.submit(np.sum, array, workers=[b.address]) == 100_000
            error = await client.submit(lambda: 1 / 0).exception()
            assert isinstance(error, ZeroDivisionError)
            assert await client.gather(client.map(str, range(5))) == list("01234")


def _private() -> Any:
    """Import the table of names before the package, which imports names from it."""
    found = importlib.util.find_spec("backhaul")
    assert found is not None
    assert found.submodule_search_locations is not None
    file = Path(found.submodule_search_locations[0]) / "dask" / "compat" / "names.py"
    spec = importlib.util.spec_from_file_location("backhaul.dask.compat.names", file)
    assert spec is not None
    assert spec.loader is not None
    private = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(private)
    return private


def _child(name: str) -> str:
    private = _private()
    if name in private.NAMES:
        private.NAMES[name] += "_of_another_release"
    else:
        resolve = private.resolve

        def resolve_others(path: str) -> Any:
            if path == name:
                raise private.MissingName(path)
            return resolve(path)

        private.resolve = resolve_others
    try:
        importlib.import_module("backhaul.dask")
    except private.MissingName:
        return "transport"
    asyncio.run(asyncio.wait_for(_job(), 120))
    return "ok"


def _in_child(name: str) -> str:
    return _forked(functools.partial(_child, name)) or "the process ended"


def _forked(call: Callable[[], str]) -> str:
    """Call a function in a forked process, and return what it returns, or its traceback."""
    read, written = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            ended = call()
        except BaseException:
            ended = traceback.format_exc()
        with open(written, "w") as report:
            report.write(ended)
        os._exit(0)
    os.close(written)
    with open(read) as report:
        ended = report.read()
    os.waitpid(child, 0)
    return ended


def _all_names() -> str:
    """List the names of the table, the sources of patches and what they replace, a line each."""
    names = dict.fromkeys(_private().NAMES)
    patches = importlib.import_module("backhaul.dask.compat.process_patches").PATCHES
    single = importlib.import_module("backhaul.dask.compat.instance_patches")
    for patch in (*patches, *single.INSTANCE_PATCHES, *single.REQUIREMENTS):
        names.update(dict.fromkeys(patch.read))
    names.update({function.path: None for patch in patches for function in patch.functions})
    return "\n".join(names)


def main(arguments: list[str]) -> int:
    """Print how the job ends without each name; return 1 if a job failed."""
    logging.disable(logging.ERROR)
    failed = 0
    for name in arguments or _forked(_all_names).splitlines():
        ended = _in_child(name)
        print(name, ended, flush=True)
        failed += ended not in {"ok", "transport"}
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
