"""Workers that belong to a command: started, reported and ended together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from distributed import Nanny

from backhaul.dask.compat.cli_names import wait_for_signals
from backhaul.dask.compat.names import process_of
from backhaul.dask.launch.scheduler_probe import root_cause
from backhaul.dask.launch.worker_specs import Spec
from backhaul.topology._json import cpu_list

__all__ = ["WorkerFailed", "reason_of", "run_workers"]

#: How often to say who is still missing, in seconds
_PATIENCE_S = 5.0
#: How long workers may take to end, in seconds; then they are killed
_FAREWELL_S = 10.0


class WorkerFailed(Exception):
    """A worker that did not start: which one, and why."""


async def run_workers(
    address: str, specs: Mapping[str, Spec], *, say: Callable[[str], None]
) -> None:
    """Start workers by their `worker_specs`, stay until they have ended, and leave none behind.

    SIGINT and SIGTERM end them in good order, at any time; a second one ends this process
    immediately, and with it every worker. `say` is called with each line of progress.

    Raises
    ------
    WorkerFailed
        If one did not start, once the others have been ended.
    """
    signalled = asyncio.create_task(wait_for_signals())
    nannies: dict[str, Nanny] = {}
    working: asyncio.Task[None] | None = None
    try:
        # Signals are handled from here on.
        await asyncio.sleep(0)
        for name, spec in specs.items():
            nannies[name] = spec["cls"](address, **spec["options"])
        working = asyncio.create_task(_work(address, nannies, say))
        await asyncio.wait({working, signalled}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        else:
            say(f"signal {signalled.result()}: ending {len(nannies)} workers")
    finally:
        await _end(nannies)
        for task in (working, signalled):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task


async def _work(address: str, nannies: Mapping[str, Nanny], say: Callable[[str], None]) -> None:
    starting = {asyncio.ensure_future(nanny): name for name, nanny in nannies.items()}
    pending = set(starting)
    while pending:
        done, pending = await asyncio.wait(
            pending, timeout=_PATIENCE_S, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            name = starting[task]
            try:
                task.result()
            except Exception as error:
                called = nannies[name].name
                why = reason_of(error)
                raise WorkerFailed(
                    f"worker {called} did not start (scheduler at {address}): {why}"
                ) from error
            nanny: Any = nannies[name]
            where = f"on CPUs {cpu_list(nanny.pinning.cpus)}" if nanny.pinning.cpus else "anywhere"
            count = len(starting) - len(pending)
            say(f"{count} of {len(starting)}: {nanny.name} at {nanny.worker_address} {where}")
        if pending and not done:
            missing = ", ".join(sorted(starting[task] for task in pending))
            say(f"waiting for {len(pending)} of {len(starting)} ({missing}) to reach {address}")
    await asyncio.gather(*(nanny.finished() for nanny in nannies.values()))
    say("all workers have ended")


def reason_of(error: BaseException) -> str:
    """Return in one line why a worker did not start, and what to do if its name is taken.

    Names are compared before workers start, but two commands may start at the same time.
    """
    why = root_cause(error)
    if "name taken" in why:
        return f"the cluster has a worker of that name already, give these another --name ({why})"
    return why


async def _end(nannies: Mapping[str, Nanny]) -> None:
    """Close what is running, and kill what does not end in time."""
    closing = [
        asyncio.create_task(nanny.close(timeout=_FAREWELL_S / 2, reason="command-ended"))
        for nanny in nannies.values()
    ]
    if closing:
        await asyncio.wait(closing, timeout=_FAREWELL_S)
    for task in closing:
        task.cancel()
    for nanny in nannies.values():
        worker: Any = nanny.process
        process = None if worker is None else worker.process
        if process is not None and process.is_alive():
            process_of(process).kill()
    await asyncio.gather(*closing, return_exceptions=True)
