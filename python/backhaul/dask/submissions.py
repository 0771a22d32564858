"""Tasks that clients submit one by one in compact messages, on the scheduler.

`backhaul.dask.compact_submit` sends them, to a scheduler that has said in the handshake of our
comms that it has a handler for them (`backhaul.dask.offers`). What `Scheduler.update_graph` does
for a graph is done for the one task: lost dependencies, the state that
`Scheduler._create_taskstate_from_graph` makes, with computations, annotations, priorities, spans
and plugins, events, errors that end at the future. Left out is what turns an expression into tasks:
there is none. The task stays the pickle that it came as (`backhaul.dask.kept_specs`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from distributed import Scheduler

from backhaul.dask.compact_submit import FIFO_TIMEOUT
from backhaul.dask.config import switched_on
from backhaul.dask.instance_patches import SUBMISSIONS
from backhaul.dask.kept_specs import keep
from backhaul.dask.patching import Replacement
from backhaul.dask.private import error_message, offload, span_metadata, time
from backhaul.dask.small_graphs import turn

__all__ = ["Submissions", "install_for_scheduler"]

#: Dask's own log, for what Dask logs there
logger = logging.getLogger("distributed.scheduler")


def install_for_scheduler(scheduler: Scheduler) -> None:
    """Have a scheduler understand compact messages of clients; again costs nothing.

    Raises
    ------
    ValueError
        If the configuration cannot be understood.
    """
    handlers = scheduler.stream_handlers
    if SUBMISSIONS.item in handlers or not switched_on("hot-path.submit"):
        return
    if type(scheduler).update_graph is Scheduler.update_graph and SUBMISSIONS.fits(handlers):
        Submissions(scheduler).attach()


class Submissions:
    """Makes tasks of what clients submit to one scheduler.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._replaced: Replacement | None = None

    def attach(self) -> None:
        """Take our place on the scheduler."""
        self._replaced = SUBMISSIONS.install(self.scheduler.stream_handlers, self.handle_submit)

    async def handle_submit(self, client: str, key: Any = None, **message: Any) -> None:
        """Make a task; takes the place of `distributed.Scheduler.update_graph` for one.

        Parameters
        ----------
        client : str
            Who submits it.
        key : key
            Of the task.
        **message
            ``spec``, its pickle; if there are any, ``dependencies``, keys that it refers to;
            ``actor``, ``fifo_timeout``, ``submitting_task``, ``annotations`` and ``code`` as in
            Dask's message.
        """
        if self.scheduler._active_graph_updates:
            # A graph of somebody else's is with the thread: whoever refers to it comes after it.
            await offload(int)
        while not turn.has_room():
            await asyncio.sleep(0)
        self._submit(client, key, **message)

    def _submit(
        self,
        client: str,
        key: Any,
        spec: Any = None,
        dependencies: Any = (),
        actor: bool = False,
        fifo_timeout: Any = FIFO_TIMEOUT,
        submitting_task: Any = None,
        annotations: dict[str, Any] | None = None,
        code: Any = (),
    ) -> None:
        """Do what `Scheduler.update_graph` does, in its order."""
        scheduler: Any = self.scheduler
        start = time()
        stimulus_id = f"update-graph-{start}"
        event: dict[str, Any] = {"action": "update-graph", "stimulus_id": stimulus_id}
        keys = {key}
        scheduler._active_graph_updates += 1
        try:
            graph = {key: keep(key, spec, dependencies)}
            made = time()
            if scheduler._find_lost_dependencies(graph, keys):
                reason = "lost dependencies"
                scheduler.report(
                    {"op": "cancelled-keys", "keys": keys, "reason": reason}, client=client
                )
                scheduler.client_releases_keys(keys=keys, client=client, stimulus_id=stimulus_id)
                scheduler.log_event(["scheduler", client], {**event, "status": "cancelled"})
                return
            metrics = scheduler._create_taskstate_from_graph(
                dsk=graph,
                client=client,
                keys=keys,
                ordered={key: 0},
                submitting_task=submitting_task,
                user_priority=0,
                actors=actor,
                fifo_timeout=fifo_timeout,
                code=code,
                span_metadata=span_metadata(),
                annotations_by_type={},
                global_annotations=annotations or {},
                start=start,
                stimulus_id=stimulus_id,
            )
            created = time()
            metrics.update(
                {
                    "start_timestamp_seconds": start,
                    "materialization_duration_seconds": made - start,
                    "ordering_duration_seconds": 0.0,
                    "state_initialization_duration_seconds": made - created,
                    "duration_seconds": created - start,
                }
            )
            scheduler.log_event(
                ["scheduler", client], {**event, "metrics": metrics, "status": "OK"}
            )
        except Exception as error:
            scheduler.log_event(["scheduler", client], {**event, "status": "error"})
            logger.error("Task %r cannot be submitted: %s", key, error)
            found = error_message(error)
            scheduler.report(
                {
                    "op": "task-erred",
                    "key": key,
                    "exception": found["exception"],
                    "traceback": found["traceback"],
                },
                client=client,
            )
        finally:
            scheduler._active_graph_updates -= 1
            scheduler.digest_metric("update-graph-duration", time() - start)
