"""Membership of workers while the core has the state: workers that join, leave, pause or resume.

Dask's own methods run, with all their side effects: events, plugins, counts, streams. The core
handles the change first, so that Dask's methods have no tasks left to handle; their reads of
workers are answered from the core (`guarded_classes`). Plugins see a new worker before the core
has it. Until the core has it, the worker takes no part in the core's decisions and is not exported
with the state.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backhaul.dask.compat.names import Status, time
from backhaul.dask.scheduler.core.export_state import status_name
from backhaul.dask.scheduler.core.import_state import are_amounts, name_text

if TYPE_CHECKING:
    from backhaul.dask.scheduler.core.guarded_classes import Guards
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = ["Membership"]

logger = logging.getLogger("distributed.scheduler")


@dataclass(frozen=True, kw_only=True)
class _Losses:
    """Keys of the tasks and results that are lost with a worker."""

    address: str
    stimulus_id: str
    #: Tasks that fail because of this loss, each with the number of workers that died
    failed: list[tuple[Any, int]]
    processing: set[Any]
    computed: set[Any]
    scattered: set[Any]

    def event(self) -> dict[str, set[Any]]:
        """Return the fields of Dask's event."""
        return {
            "processing-tasks": self.processing,
            "lost-computed-tasks": self.computed,
            "lost-scattered-tasks": self.scattered,
        }

    def log(self) -> None:
        """Write the log lines that Dask writes."""
        for key, suspicious in self.failed:
            logger.error(
                "Task %s marked as failed because %d workers died while trying to run it",
                key,
                suspicious,
            )
        if self.computed:
            logger.warning(
                "Removing worker %r caused the cluster to lose already computed task(s), which "
                "will be recomputed elsewhere: %s (stimulus_id=%r)",
                self.address,
                self.computed,
                self.stimulus_id,
            )
        if self.scattered:
            logger.error(
                "Removing worker %r caused the cluster to lose scattered data, which can't be "
                "recovered: %s (stimulus_id=%r)",
                self.address,
                self.scattered,
                self.stimulus_id,
            )


class Membership:
    """Adds workers to the core and removes them.

    Attributes
    ----------
    known : set of str
        Addresses of the workers that the core has.
    departed : dict of str to WorkerState
        Workers that left, by address; failures of tasks may refer to these.
    """

    def __init__(self, live: LiveCore, guards: Guards) -> None:
        self._live = live
        self._guards = guards
        self.known: set[str] = set(live.scheduler.workers)
        self.departed: dict[str, Any] = {}
        #: Stimulus ids of workers that are joining, by the id of the worker
        self._stimuli: dict[str, str] = {}
        #: Losses that the event of a worker that leaves reports, by address
        self._lost: dict[str, _Losses] = {}

    def unknown_workers(self) -> list[Any]:
        """List the workers that Dask has and the core does not have."""
        workers = self._live.scheduler.workers.items()
        return [ws for address, ws in workers if address not in self.known]

    # Replacements of methods of the scheduler

    def methods(self) -> dict[str, Callable[[Any], Any]]:
        """Return, by name, functions that make a replacement from the method of the class."""
        return {
            "_refresh_no_workers_since": self._nothing_to_do,
            "add_resources": self._add_resources,
            "bulk_schedule_unrunnable_after_adding_worker": self._begin_work,
            "check_idle_saturated": self._check_idle_saturated,
            "handle_worker": self._handle_worker,
            "handle_worker_status_change": self._change_status,
            "log_event": self._log_event,
            "remove_worker": self._remove_worker,
            "stimulus_queue_slots_maybe_opened": self._nothing_to_do,
        }

    def _nothing_to_do(self, upstream: Any) -> Any:
        live = self._live

        def method(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            # The core does this work with each event.
            return None if live.is_active else upstream(scheduler, *args, **kwargs)

        return method

    def _add_resources(self, upstream: Any) -> Any:
        live = self._live

        def method(scheduler: Any, worker: str, resources: Any = None) -> Any:
            # `add` reads the resources of a worker that is yet to join.
            if live.is_active and worker in self.known:
                live.escape("add_resources")
            return upstream(scheduler, worker, resources)

        return method

    def _check_idle_saturated(self, upstream: Any) -> Any:
        live = self._live

        def method(scheduler: Any, ws: Any, occ: float = -1.0) -> None:
            if not live.is_active:
                upstream(scheduler, ws, occ)
            elif ws.address in self.known:
                live.core.file_worker(ws.address, occ)

        return method

    def _begin_work(self, upstream: Any) -> Any:
        live = self._live

        def method(scheduler: Any, ws: Any) -> Any:
            if not live.is_active:
                return upstream(scheduler, ws)
            if ws.address not in self.known and scheduler.workers.get(ws.address) is ws:
                self.add(ws)
                if not live.is_active:
                    return upstream(scheduler, ws)
            # The core has handled the change of a worker that resumes.
            return {}

        return method

    def _handle_worker(self, upstream: Any) -> Any:
        live = self._live

        async def method(scheduler: Any, comm: Any, worker: str) -> None:
            if live.is_active and worker in scheduler.workers:
                if worker not in self.known:
                    # The worker is not running yet.
                    self.add(scheduler.workers[worker])
                # A later callback, because Dask's method below starts the stream
                asyncio.get_running_loop().call_soon(self._share_stream, worker)
            await upstream(scheduler, comm, worker)

        return method

    def _change_status(self, upstream: Any) -> Any:
        live = self._live

        def method(scheduler: Any, status: Any, worker: Any, stimulus_id: str) -> None:
            if live.is_active:
                ws = scheduler.workers.get(worker) if isinstance(worker, str) else worker
                if ws is not None and ws.address in self.known:
                    now = Status[status] if isinstance(status, str) else status
                    handle = live.core.handle_worker_status
                    live.call(handle, stimulus_id, time(), ws.address, status_name(now))
            upstream(scheduler, status, worker, stimulus_id)
            if live.is_active:
                live.send()

        return method

    def _log_event(self, upstream: Any) -> Any:
        def method(scheduler: Any, topic: Any, msg: Any) -> None:
            if self._lost and isinstance(msg, dict) and msg.get("action") == "remove-worker":
                worker = msg.get("worker", topic)
                losses = self._lost.get(worker) if isinstance(worker, str) else None
                if losses is not None:
                    msg.update(losses.event())
                    # This is the first of two events; Dask logs the losses before it.
                    if topic == worker:
                        losses.log()
            upstream(scheduler, topic, msg)

        return method

    def _remove_worker(self, upstream: Any) -> Any:
        live = self._live

        async def method(
            scheduler: Any,
            address: str,
            *,
            stimulus_id: str,
            expected: bool = False,
            close: bool = True,
        ) -> Any:
            if live.is_active and scheduler.status != Status.closed:
                address = scheduler.coerce_address(address)
                if address in self.known:
                    self.remove(address, stimulus_id, expected=expected)
            try:
                return await upstream(
                    scheduler, address, stimulus_id=stimulus_id, expected=expected, close=close
                )
            finally:
                self._lost.pop(address, None)

        return method

    # Replacement of a handler

    def register_worker(self, upstream: Callable[..., Any]) -> Callable[..., Any]:
        """Make the handler that registers a worker; it notes the stimulus id for `add`."""

        @functools.wraps(upstream)
        async def handle(comm: Any, *, server_id: str, stimulus_id: str, **more: Any) -> Any:
            self._stimuli[server_id] = stimulus_id
            try:
                return await upstream(comm, server_id=server_id, stimulus_id=stimulus_id, **more)
            finally:
                self._stimuli.pop(server_id, None)

        return handle

    # Changes of the core

    def add(self, ws: Any) -> None:
        """Add a worker that Dask has to the core, which may immediately send it tasks."""
        live = self._live
        if not are_amounts(ws.resources):
            live.escape("resources that are no numbers")
            return
        if live.admission.is_first_with_cpu(ws):
            live.escape("resources of a worker that are called as threads are")
            return
        now_s = time()
        stimulus_id = self._stimuli.get(ws.server_id, f"worker-added-{now_s}")
        if live.streams is not None:
            live.streams.note_memory(ws.address, ws.metrics)
        self.known.add(ws.address)
        self.departed.pop(ws.address, None)
        self._guards.guard_worker(ws)
        live.admission.describe(ws)
        live.call(
            live.core.handle_worker_added,
            stimulus_id,
            now_s,
            address=ws.address,
            name=name_text(ws.name),
            host=ws.host,
            nthreads=ws.nthreads,
            memory_limit=ws.memory_limit,
            status=status_name(ws.status),
            resources=dict(ws.resources),
            bandwidth_bytes_per_s=float(ws.metrics["bandwidth"]["total"]),
        )
        live.send()

    def remove(self, address: str, stimulus_id: str, *, expected: bool) -> None:
        """Remove a worker that leaves from the core, before Dask removes it."""
        # Meanwhile the engine thread sends nothing to the worker and handles none of its messages.
        with self._live.alone():
            self._remove(address, stimulus_id, expected=expected)

    def _remove(self, address: str, stimulus_id: str, *, expected: bool) -> None:
        live = self._live
        ws = live.scheduler.workers[address]
        if live.streams is not None:
            live.streams.remove_worker(address)
        self._lost[address] = self._losses(ws, stimulus_id, expected=expected)
        self.known.discard(address)
        self.departed[address] = ws
        occupancy_s = ws.occupancy
        try:
            handle = live.core.handle_worker_lost
            live.call(handle, stimulus_id, time(), address, expected)
        except Exception:
            # The failure was an escape. Dask does the work that the core has left undone.
            self._lost.pop(address)
            return
        # Before failures refer to the worker: Dask's failures show the object's final values.
        self._guards.release_one(ws)
        ws._occupancy_cache = occupancy_s
        live.send()

    def _losses(self, ws: Any, stimulus_id: str, *, expected: bool) -> _Losses:
        """Collect the tasks and results that are lost with a worker."""
        live = self._live
        core, key_of = live.core, live.texts.key
        processing = core.keys_in("processing", ws.address)
        allowed = live.scheduler.allowed_failures
        failed = []
        for text in processing if not expected else ():
            suspicious = core.task_value(text, "suspicious") + 1
            if suspicious > allowed:
                failed.append((key_of(text), suspicious))
        computed: set[Any] = set()
        scattered: set[Any] = set()
        for text in core.keys_in("has_what", ws.address):
            if len(core.holders_of(text)) > 1 or core.is_in("actors", ws.address, text):
                continue
            is_computed = core.task_value(text, "run_spec") is not None
            (computed if is_computed else scattered).add(key_of(text))
        return _Losses(
            address=ws.address,
            stimulus_id=stimulus_id,
            failed=failed,
            processing=set(map(key_of, processing)),
            computed=computed,
            scattered=scattered,
        )

    def _share_stream(self, worker: str) -> None:
        """Hand the stream of a worker that has joined to the engine."""
        live = self._live
        if not live.is_active or live.streams is None or worker not in self.known:
            return
        stream = live.scheduler.stream_comms.get(worker)
        if not live.streams.knows_worker(worker, stream):
            live.leave_engine()
