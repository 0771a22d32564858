"""Streams of a scheduler whose state is in the core, handled on the engine thread.

While the engine handles the streams, hot messages of workers and clients do not reach Python
(``crates/dask/src/hot``). All other messages reach Python in order, and `handlers` handles them.
The engine sends all messages of the core, so that each peer gets them in the order in which the
core made them; messages that are already queued for a peer are sent first
(`backhaul.dask.comm.batched_stream.Gate`). The rest of the work, in Python, is done within half a
second, and before the state leaves the core.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgpack
from dask.utils import parse_timedelta

from backhaul._native import EngineNotes, SchedulerStreams
from backhaul.dask.comm.batched_stream import AdaptiveBatchedSend
from backhaul.dask.comm.comm import BackhaulComm
from backhaul.dask.compat.function_origin import is_dasks
from backhaul.dask.compat.instance_patches import ENGINE_STREAMS
from backhaul.dask.compat.names import Pickled
from backhaul.dask.compat.operations import UPDATE_GRAPH
from backhaul.dask.scheduler.core.submissions import note_collisions, note_submission
from backhaul.dask.scheduler.core.window import CoreWindow
from backhaul.dask.scheduler.window import compute_seconds
from backhaul.dask.serialize.submit_message import FIFO_TIMEOUT

if TYPE_CHECKING:
    from backhaul.dask.scheduler.core.live_core import LiveCore
    from backhaul.dask.scheduler.window import InFlightWindow

__all__ = ["EngineStreams", "EngineWindow"]

#: Longest wait of the work that is left for Python, in seconds: under load, and when idle
_LOOK_S, _LOOK_MAX_S = 0.05, 0.4


class EngineStreams:
    """The streams of one core, from the adoption of the state until it leaves.

    Attributes
    ----------
    is_active : bool
        Whether the engine handles messages.
    """

    def __init__(self, live: LiveCore) -> None:
        self._live = live
        self.is_active = False
        self._window: InFlightWindow | None = None
        #: The comm of each peer, and the stream that sends on it, by the number of the peer
        self._peers: dict[int, tuple[BackhaulComm, AdaptiveBatchedSend]] = {}
        #: Numbers of the clients by name, and of the workers by address
        self._clients: dict[str, int] = {}
        self._workers: dict[str, int] = {}
        self._keepers: set[str] = set()
        self._look_s = _LOOK_S
        self._looked: dict[str, int] = {}
        self._due: asyncio.Handle | None = None
        #: Reasons for the engine to handle nothing for now
        self._pauses = 0
        self._is_looked_at = False

    def begin(self) -> bool:
        """Start the engine if all streams use Backhaul's comms; tell whether it has started."""
        live = self._live
        scheduler = live.scheduler
        try:
            self._event_loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        # A handler of graphs that a program has installed must get the graphs of clients.
        if not ENGINE_STREAMS.fits(scheduler.send_all) or not is_dasks(
            scheduler.stream_handlers.get(UPDATE_GRAPH)
        ):
            return False
        workers = {address: scheduler.stream_comms.get(address) for address in scheduler.workers}
        clients = {name: scheduler.client_comms.get(name) for name in scheduler.clients}
        # An internal client of the scheduler has no stream, and gets no messages.
        clients = {name: stream for name, stream in clients.items() if stream is not None}
        if not all(map(_is_ours, (*workers.values(), *clients.values()))):
            return False
        window, results = live.window, live.results
        self._native = SchedulerStreams(
            live.core,
            result_bytes_max=0 if results is None else results.bytes_max,
            window=None if window is None else window.upstream.policy,
            fifo_timeout_s=float(parse_timedelta(FIFO_TIMEOUT)),
        )
        self.is_active = True
        if window is not None:
            self._window = window.upstream
            live.fill_by(EngineWindow(live, self._window, self._native))
            for address, ws in scheduler.workers.items():
                self.note_memory(address, ws.metrics)
        try:
            for address, stream in workers.items():
                self._add("worker", address, stream)
            for name, stream in clients.items():
                self._add("client", name, stream)
        except ConnectionError:
            # A peer has just closed its comm; Dask will notice that soon.
            self.end()
            return False
        except BaseException:
            self.end()
            raise
        self._note_keepers()
        self._look_later()
        return True

    def end(self) -> None:
        """Stop the engine, and take over its messages and its notes."""
        if not self.is_active:
            return
        self.is_active = False
        if self._due is not None:
            self._due.cancel()
        live = self._live
        left = self._native.stop()
        for comm, stream in self._peers.values():
            comm.untap()
            stream.leave()
        for peer, frames in left.held:
            stream = self._peers[peer][1]
            _send_held(stream, [frames])
        if self._window is not None:
            self._window.policy.replace(left.expectations, left.confirmed)
            live.fill_by(CoreWindow(live, self._window))
        live.note_handled(left.counts)
        self._peers.clear()
        self._write_down(left.notes)

    def knows_client(self, name: str, stream: Any) -> bool:
        """Add a client that has connected since; tell whether the engine handles its stream."""
        if name in self._clients:
            return True
        if not _is_ours(stream):
            return False
        try:
            self._add("client", name, stream)
        except ConnectionError:
            return False
        self._note_keepers()
        return True

    def knows_worker(self, address: str, stream: Any) -> bool:
        """Add a worker that has joined since; tell whether the engine handles its stream."""
        if address in self._workers:
            return True
        if not _is_ours(stream):
            return False
        # Dask will notice soon if the worker has closed its comm.
        with contextlib.suppress(ConnectionError):
            self._add("worker", address, stream)
        return True

    def remove_worker(self, address: str) -> None:
        """Return the stream of a worker that is about to leave to Python."""
        self._remove(self._workers.pop(address, None))

    def remove_client(self, name: str) -> None:
        """Return the stream of a client that leaves to Python."""
        self._remove(self._clients.pop(name, None))

    def _remove(self, peer: int | None) -> None:
        if peer is None:
            return
        held = self._native.remove(peer)
        comm, stream = self._peers.pop(peer)
        comm.untap()
        stream.leave()
        _send_held(stream, held)

    def flush(self) -> None:
        """Send the messages of the core."""
        if self._native.flush():
            self.catch_up()

    def pause(self, pause: bool) -> None:
        """Pause the engine, or end one pause; it handles messages when no pause is left."""
        self._pauses += 1 if pause else -1
        if self.is_active:
            self._native.pause(self._pauses > 0)

    def look(self) -> None:
        """Pause the engine until the next turn of the event loop, because a program reads state."""
        if self._is_looked_at or not self.is_active:
            return
        self._is_looked_at = True
        self.pause(True)
        self._event_loop.call_soon(self._looked_at)
        self._live.forget_gone()

    def _looked_at(self) -> None:
        self._is_looked_at = False
        self.pause(False)

    def note_memory(self, worker: str, metrics: dict[str, Any]) -> None:
        """Pass the memory use of a worker to the in-flight window."""
        if self._window is not None:
            self._native.set_memory(worker, float(metrics.get("memory", 0)))

    def note_spans(self, spans: Mapping[str, str | None]) -> None:
        """Pass the span of each group of a graph to the engine."""
        for group, span_id in spans.items():
            self._native.set_span(group, span_id)

    def has_failed(self) -> bool:
        """Tell whether the engine has met a defect; the state has left the core then."""
        failure = self._native.failure() if self.is_active else None
        if failure is not None:
            self._live.give_up(failure, "an error in the core")
        return failure is not None

    def counts(self) -> dict[str, int]:
        """Count the messages that the engine has handled, by operation."""
        return self._native.counts() if self.is_active else {}

    def _add(self, kind: str, name: str, stream: AdaptiveBatchedSend) -> None:
        comm = stream.comm
        peer = self._native.add(kind, name, comm.endpoint)
        self._peers[peer] = comm, stream
        if kind == "worker":
            self._workers[name] = peer
        else:
            self._clients[name] = peer
        give_up = partial(self._live.escape, "the comm of a stream that is replaced")
        stream.join(_Gate(self._native, peer, give_up))
        comm.tap(self._native, peer)

    def _look_later(self) -> None:
        self._due = self._event_loop.call_later(self._look_s, self._look)

    def _look(self) -> None:
        """Do the work that the engine has left for Python."""
        if not self.is_active:
            return
        counts = self._native.counts()
        busy = counts != self._looked
        self._looked = counts
        self._look_s = _LOOK_S if busy else min(2 * self._look_s, _LOOK_MAX_S)
        self._native.flush()
        self._live.forget_gone()
        self._note_keepers()
        self._look_later()

    def catch_up(self) -> None:
        """Record the engine's work; a later callback does what may cause an escape."""
        if self.is_active:
            notes = self._native.notes()
            self._write_down(notes)
            if notes.failure is not None or notes.give_back:
                self._event_loop.call_soon(self._act_on, notes)

    def _write_down(self, notes: EngineNotes) -> None:
        live = self._live
        # The engine cannot write these.
        if unsaid := notes.unsaid:
            live.send_messages(unsaid)
        results = live.results
        if results is not None:
            for worker in notes.unwanted_from:
                results.not_wanted(worker)
        gone = notes.gone_groups
        written = 0
        for task in notes.submitted:
            if task.was_idle:
                live.spans.begin_computation()
            if (group := task.group) is not None:
                for last in gone[written : task.gone_before]:
                    live.spans.gone(last)
                written = max(written, task.gone_before)
                live.spans.come_again(group, task.span)
            if has_collided := task.has_collided:
                note_collisions(1)
            note_submission(
                live.scheduler,
                task.client,
                task.start_s,
                new_tasks=int(task.is_new),
                collisions=int(has_collided),
            )
        for last in gone[written:]:
            live.spans.gone(last)

    def _act_on(self, notes: EngineNotes) -> None:
        """Do the work that may cause an escape."""
        live = self._live
        if not self.is_active:
            return
        if not self.has_failed() and live.window is not None:
            for prefix in notes.give_back:
                live.window.give_back(prefix)

    def _note_keepers(self) -> None:
        results = self._live.results
        keepers = set() if results is None else set(results.keepers())
        if keepers != self._keepers:
            self._keepers = keepers
            self._native.set_keepers(sorted(keepers))


class EngineWindow(CoreWindow):
    """The in-flight window that the engine keeps, for messages that Python handles.

    `window` is used again without the engine; `native` keeps the window meanwhile.
    """

    def __init__(self, live: LiveCore, window: InFlightWindow, native: SchedulerStreams) -> None:
        super().__init__(live, window)
        self._native = native

    def finished(self, group: str, prefix: str, message: dict[str, Any]) -> bool:
        seconds = compute_seconds(message)
        return self._native.observe(group, prefix, seconds, message["nbytes"] or 0)

    def refill(self, worker: str, stimulus_id: str, now_s: float) -> None:
        self._native.refill(worker, stimulus_id, now_s)

    def has_too_many(self, prefix: str) -> bool:
        return self._native.has_too_many(prefix)

    def give_back(self, prefix: str) -> None:
        # The escape returns the engine's expectations, which the line below needs.
        self._live.escape("tasks to take back")
        self.upstream.give_back(prefix)


class _Gate:
    """Holds the engine's messages for a peer while messages of Python are queued for it."""

    def __init__(self, native: SchedulerStreams, peer: int, give_up: Callable[[], None]) -> None:
        self._native = native
        self._peer = peer
        self.give_up = give_up

    def hold(self) -> None:
        self._native.hold(self._peer, True)

    def release(self) -> None:
        self._native.hold(self._peer, False)


def _is_ours(stream: Any) -> bool:
    if not isinstance(stream, AdaptiveBatchedSend):
        return False
    # A subclass that overrides `read` or `write` has to see all messages.
    kind = type(stream.comm)
    return (
        isinstance(stream.comm, BackhaulComm)
        and kind.read is BackhaulComm.read
        and kind.write is BackhaulComm.write
    )


def _send_held(stream: AdaptiveBatchedSend, held: list[list[bytes]]) -> None:
    """Send messages that the engine held, after those that are queued in Python."""
    for frames in held:
        if not stream.comm.closed():
            stream.send(*_messages_of(frames))


def _messages_of(frames: list[bytes]) -> list[dict[str, Any]]:
    """Decode messages that were encoded for a peer, without loading the tasks in them."""
    messages = msgpack.unpackb(frames[0], use_list=False, strict_map_key=False)
    for message in messages:
        task = message.get("run_spec")
        if task is not None:
            place = task["__Pickled__"]
            header = msgpack.unpackb(frames[place], use_list=False)
            parts = frames[place + 1 : place + 1 + header["num-sub-frames"]]
            message["run_spec"] = Pickled(header, parts)
    return list(messages)
