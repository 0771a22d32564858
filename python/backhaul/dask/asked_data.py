"""What other workers ask a worker for, while its threads read ahead of its event loop.

The scheduler knows of a result as soon as the thread has told it, and may send what needs it to
another worker, which asks for it before the event loop has heard of the task: it would be told that
there is none, and ask again a second later. So the event loop catches up before it looks.
"""

from __future__ import annotations

import functools
from typing import Any

from backhaul.dask.instance_patches import GET_DATA
from backhaul.dask.private import Worker
from backhaul.dask.runs import Line

__all__ = ["catch_up_when_asked"]


def catch_up_when_asked(worker: Worker, line: Line) -> bool:
    """Have a worker hear of what threads have done before it gives data away.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    line : Line
        Of its default pool.

    Returns
    -------
    bool
        False if that is refused.
    """
    original: Any = worker.handlers["get_data"]

    @functools.wraps(original)
    async def get_data(*args: Any, **kwargs: Any) -> Any:
        if line.foretold:
            line.handle()
        return await original(*args, **kwargs)

    return GET_DATA.install(worker.handlers, get_data) is not None
