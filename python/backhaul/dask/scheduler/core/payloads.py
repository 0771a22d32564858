"""Conversion of the core's texts and bytes to Python: keys, run specs, errors, transitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backhaul.dask.compat.names import Transition
from backhaul.dask.scheduler.core.task_payloads import submitted_task
from backhaul.dask.serialize.codec import codec
from backhaul.errors import EscapeError

if TYPE_CHECKING:
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = ["LivePayloads", "TakenPayloads", "past_transitions"]


class TakenPayloads:
    """Keeps Python's objects during an import, by the bytes that the core gets for them."""

    def __init__(self, live: LiveCore) -> None:
        self._live = live

    def run_spec(self, text: str, task: Any) -> bytes:
        """Keep the run spec of a task; without bytes in the core, Python sends it."""
        self._live.specs[text] = task.run_spec, task.group.span_id
        return b""

    def annotations(self, annotations: dict[str, Any]) -> bytes:
        """Keep the annotations of a task."""
        try:
            payload = bytes(codec.pack(annotations))
        except Exception as error:  # Any error of msgpack
            raise EscapeError(f"annotations {annotations!r}") from error
        known = self._live.annotations.setdefault(payload, annotations)
        if repr(known) != repr(annotations):
            # A tuple and a list have the same bytes.
            raise EscapeError(f"annotations {known!r} and {annotations!r} of two tasks")
        return payload

    def failure(self, raised: Any) -> bytes:
        """Keep an exception or a traceback."""
        return self._live.raised.keep(raised)


class LivePayloads:
    """Converts texts and bytes of a running core to Python's objects."""

    def __init__(self, live: LiveCore) -> None:
        self._live = live

    def key(self, text: str) -> Any:
        """Return the key of a text, also of a forgotten task."""
        return self._live.texts.key(text)

    def run_spec(self, text: str, payload: bytes) -> Any:
        """Return the run spec of a task."""
        found = self._live.specs.get(text)
        if found is None and payload:
            # The task arrived as bytes, in which the core has read whether it produces data.
            is_producer = bool(self._live.core.task_value(text, "data_producer"))
            found = submitted_task(self._live.texts.key(text), payload, is_producer=is_producer)
        return None if found is None else found[0]

    def annotations(self, text: str, payload: bytes) -> dict[str, Any]:
        """Return the annotations of a task."""
        return dict(self._live.annotations[payload])

    def exception(self, text: str, payload: bytes) -> Any:
        """Return the exception of a task."""
        return self._live.raised.get(payload)

    def traceback(self, text: str, payload: bytes) -> Any:
        """Return the traceback of a task."""
        return self._live.raised.get(payload)


def past_transitions(live: LiveCore) -> list[Transition]:
    """Return the core's last transitions as Dask's, oldest first, without recommendations."""
    key_of = live.texts.key
    make: Any = Transition
    return [
        make(key_of(text), start, finish, {}, stimulus_id, at)
        for text, start, finish, stimulus_id, at in live.core.recent_transitions()
    ]
