"""Names of Dask's command line that its documentation does not promise.

Apart from `names`, which every worker imports: these cost as much as the rest of it. Read for
2026.7.1 and 2026.8.0, between which nothing changed in ``distributed.cli`` and
``distributed._signals``.
"""

from __future__ import annotations

from distributed._signals import wait_for_signals
from distributed.cli.dask_scheduler import main as scheduler_command
from distributed.cli.dask_worker import _apportion_ports as apportion_ports
from distributed.cli.dask_worker import main as worker_command

__all__ = ["apportion_ports", "scheduler_command", "wait_for_signals", "worker_command"]
