"""Python objects as messages: a pickle, and the memory of arrays beside it as it is."""

from __future__ import annotations

import pickle
from typing import Any

from backhaul.errors import ObjectError

__all__ = ["dump", "load"]

#: The first frame of such a message; the number is that of this layout.
_MARK = b"backhaul object 1\n"


def dump(obj: object) -> list[Any]:
    """Write an object as frames.

    Parameters
    ----------
    obj : object
        Whatever `pickle` takes.

    Returns
    -------
    list of buffer
        A mark, the pickle (protocol 5, PEP 574), and the contiguous memory that it leaves out.
    """
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(obj, protocol=5, buffer_callback=buffers.append)
    return [_MARK, text, *(buffer.raw() for buffer in buffers)]


def load(frames: list[Any], tag: int) -> Any:
    """Read what `dump` wrote.

    Parameters
    ----------
    frames : list of memoryview
        The frames. Arrays of the object lie in their memory.
    tag : int
        Tag of the message, for the error.

    Returns
    -------
    object
        The object.

    Raises
    ------
    ObjectError
        If the message was sent by something else than `dump`.
    """
    if len(frames) < 2 or frames[0] != _MARK:
        nbytes = sum(memoryview(frame).nbytes for frame in frames if len(frame))
        raise ObjectError(
            f"the message of {nbytes} bytes under tag {tag} was not sent by send_obj; it is lost. "
            "Give objects tags of their own"
        )
    return pickle.loads(frames[1], buffers=frames[2:])
