"""Tasks of a running scheduler, in the form for the import into a core."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any, Protocol, TypeAlias

from backhaul.dask.scheduler.core.export_state import Said
from backhaul.errors import EscapeError

__all__ = ["SHUFFLE_PREFIX", "Payloads", "ThreadsOf", "is_size", "tasks_said"]

#: Prefix of the keys by which a shuffle's plugin knows its tasks
SHUFFLE_PREFIX = "shuffle-"

#: Returns how many threads a task requests by its annotations; None if it requests none
ThreadsOf: TypeAlias = Callable[[Any], float | None]

#: Largest result that a core takes, in bytes: as in the core
_NBYTES_MAX = 2**48

#: Most retries that a core counts
_RETRIES_MAX = (1 << 31) - 1

#: States of tasks that the scheduler is not about to run
_AT_REST = ("released", "memory", "erred")

#: Attributes that are imported unless they have their default, with the default
_PLAIN = (
    ("type", None),
    ("suspicious", 0),
    ("run_id", None),
    ("has_lost_dependencies", False),
    ("actor", False),
    ("exception_text", None),
    ("traceback_text", None),
)


class Payloads(Protocol):
    """Gives the bytes by which a core refers to Python's objects."""

    def run_spec(self, text: str, task: Any, /) -> bytes:
        """Return the bytes for the run spec of a task, which is not None."""

    def annotations(self, annotations: dict[str, Any], /) -> bytes:
        """Return the bytes for annotations of a task; `EscapeError` if they cannot be encoded."""

    def failure(self, raised: Any, /) -> bytes:
        """Return the bytes for an exception or a traceback, as upstream keeps it."""


def tasks_said(
    scheduler: Any,
    payloads: Payloads,
    key_text: Callable[[Any], str],
    threads_of: ThreadsOf | None,
) -> list[Said]:
    """Return all tasks of a scheduler, which is only read, in the order of their arrival.

    Raises
    ------
    EscapeError
        If a task has something that a core cannot hold.
    """
    said = _Tasks(scheduler, payloads, key_text, threads_of)
    return [said.task(ts) for ts in scheduler.tasks.values()]


def is_size(nbytes: object) -> bool:
    """Tell whether the size of a result is a number of bytes that a core can count."""
    return isinstance(nbytes, Integral) and 0 <= int(nbytes) <= _NBYTES_MAX


class _Tasks:
    def __init__(
        self,
        scheduler: Any,
        payloads: Payloads,
        key_text: Callable[[Any], str],
        threads_of: ThreadsOf | None,
    ) -> None:
        self._scheduler = scheduler
        self._payloads = payloads
        self._key_text = key_text
        self._threads_of = threads_of

    def task(self, ts: Any) -> Said:
        text = self._key_text(ts.key)
        if text.startswith(SHUFFLE_PREFIX) and ts.state not in _AT_REST:
            raise EscapeError(f"{text} of a shuffle is {ts.state}")
        said: Said = {
            "key": text,
            "state": ts.state,
            "group": ts.group.name,
            "dependencies": self._texts(ts.dependencies),
            "dependents": self._texts(ts.dependents),
            "who_has": [self._address(ts, ws) for ws in ts.who_has or ()],
        }
        if ts.run_spec is not None:
            said["run_spec"] = self._payloads.run_spec(text, ts)
            said["data_producer"] = bool(ts.run_spec.data_producer)
        if ts.priority is not None:
            said["priority"] = self._priority(ts)
        for name in ("waiting_on", "waiters"):
            if (members := getattr(ts, name)) is not None:
                said[name] = self._texts(members)
        if ts.who_wants is not None:
            said["who_wants"] = [cs.client_key for cs in ts.who_wants]
        if ts.processing_on is not None:
            said["processing_on"] = self._address(ts, ts.processing_on)
        if ts.nbytes != -1:
            if not is_size(ts.nbytes):
                raise EscapeError(f"{text} has a result of {ts.nbytes!r} bytes")
            said["nbytes"] = int(ts.nbytes)
        if not ts._queueable:
            said["queueable"] = False
        if ts.retries:
            if not -_RETRIES_MAX <= ts.retries <= _RETRIES_MAX:
                raise EscapeError(f"{text} has {ts.retries} retries")
            said["retries"] = ts.retries
        for name, nothing in _PLAIN:
            value = getattr(ts, name)
            if value != nothing:
                said[name] = value
        if ts.erred_on is not None:
            said["erred_on"] = list(ts.erred_on)
        self._add_failure(ts, said)
        self._add_requirements(ts, said)
        return said

    def _add_failure(self, ts: Any, said: Said) -> None:
        for name in ("exception", "traceback"):
            if (raised := getattr(ts, name)) is not None:
                said[name] = self._payloads.failure(raised)
        blamed = ts.exception_blame
        if blamed is not None:
            said["exception_blame"] = self._key_text(blamed.key)
            said["blame_is_forgotten"] = self._scheduler.tasks.get(blamed.key) is not blamed

    def _add_requirements(self, ts: Any, said: Said) -> None:
        asks: dict[str, Any] = {}
        if ts.annotations:
            asks["annotations"] = self._payloads.annotations(ts.annotations)
        if ts.host_restrictions is not None:
            asks["hosts"] = list(ts.host_restrictions)
        if ts.worker_restrictions is not None:
            asks["workers"] = list(ts.worker_restrictions)
        if ts.loose_restrictions:
            asks["loose"] = True
        if ts.resource_restrictions is not None:
            asks["resources"] = {name: float(n) for name, n in ts.resource_restrictions.items()}
        if self._threads_of is not None and (threads := self._threads_of(ts)) is not None:
            asks["threads"] = threads
        if asks:
            said["requirements"] = asks

    def _priority(self, ts: Any) -> tuple[float, float, float]:
        try:
            first, second, third = map(float, ts.priority)
        except (TypeError, ValueError, OverflowError) as error:
            raise EscapeError(f"{ts.key!r} has the priority {ts.priority!r}") from error
        if math.isnan(first + second + third):
            raise EscapeError(f"{ts.key!r} has a priority that is no number")
        return first, second, third

    def _texts(self, tasks: Iterable[Any]) -> list[str]:
        key_text = self._key_text
        return [key_text(ts.key) for ts in tasks]

    def _address(self, ts: Any, ws: Any) -> str:
        address: str = ws.address
        if self._scheduler.workers.get(address) is not ws:
            raise EscapeError(f"{ts.key!r} is on a worker that has left, {address}")
        return address
