"""Tasks as bytes, as the engine sends them to workers, and back."""

from __future__ import annotations

import pickle
from typing import Any

import msgpack

from backhaul.dask.compat.names import ToPickle
from backhaul.dask.serialize.codec import codec, encode
from backhaul.dask.serialize.pickled_task import keep

__all__ = ["spec_payload", "submitted_task"]

#: A larger task is written when it is sent, not kept as bytes
_SPEC_BYTES_MAX = 1 << 20


def spec_payload(task: Any, span_id: str | None) -> bytes:
    """Write a task, and the id of its group's span, as the engine sends them.

    Returns no bytes if Dask has to write the task: it is large, or cannot be pickled.
    """
    try:
        message = encode(ToPickle(task))
    except Exception:  # The same will be said of it when it is sent.
        return b""
    if message is None or message.message_bytes > _SPEC_BYTES_MAX:
        return b""
    return codec.pack([span_id, None, *message.frames[1:]])


def submitted_task(
    key: Any, payload: bytes, *, is_producer: bool = False
) -> tuple[Any, str | None]:
    """Return a task that was submitted without Python, and the id of its span.

    A call stays pickled. `is_producer` says whether the core knows that the task produces data.
    """
    span_id, dependencies, frame = msgpack.unpackb(payload, use_list=False)
    pickled = msgpack.unpackb(frame, use_list=False)["pickled-obj"]
    # A node that is no call has no list of dependencies, so it is loaded.
    if dependencies is None:
        return pickle.loads(pickled), span_id
    return keep(key, pickled, dependencies, is_producer=is_producer), span_id
