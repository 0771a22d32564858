"""A plugin of pytest that validates the state of workers at the end of a test, and only then.

For ``BACKHAUL_UNCHECKED``, see `substitute`: upstream's helper leaves out workers that do
not validate each step.
"""

from __future__ import annotations

from distributed import Scheduler, Worker, utils_test


def _validate_state(*servers: object) -> None:
    """Validate schedulers as upstream does, and all workers."""
    for server in servers:
        if isinstance(server, Worker) or (isinstance(server, Scheduler) and server.validate):
            server.validate_state()


setattr(utils_test, "validate_state", _validate_state)  # noqa: B010
