"""Buffers that a comm lends instead of copying them: the decisions, in one place.

A buffer that is lent stays where it is, and the peer maps the memory of this process. The memory is
copy-on-write from then on, so neither process sees what the other writes later. A buffer is lent
where all of these hold:

1. *The lane can lend.* Both ends must be able to map the same memory, which the lanes of one host
   can; TCP and UCX copy: `arena_for_lane`.
2. *Writes to it are rare*, since each page that is written to costs a copy. That holds for results
   of tasks, which travel in the answer of ``Worker.get_data`` alone. That answer is known by its
   shape: `is_get_data_reply`. ``arena.share-results`` switches it off.
3. *It lies in the arena.* Large buffers of such a message that lie elsewhere are copied there:
   `move_to_arena`.
"""

from __future__ import annotations

from typing import Any, Final

from backhaul import Arena
from backhaul._native import LEND_BYTES_MIN
from backhaul.dask.comm.native_context import shared_arena
from backhaul.dask.compat.names import ensure_memoryview
from backhaul.dask.config.settings import Settings
from backhaul.dask.serialize import codec

__all__ = ["arena_for_lane", "in_order", "is_get_data_reply", "move_to_arena", "nbytes_of"]

#: Lanes whose ends can map the same memory
_LANES_THAT_LEND: Final = frozenset({"inproc", "shm"})

#: The keys of an answer of `distributed.Worker.get_data`, and of no other message. The result of an
#: actor's method, for one, may change later, and has other keys.
_RESULTS_KEYS: Final = {"status", "data"}


def arena_for_lane(lane: str, settings: Settings) -> Arena | None:
    """Give the arena that a comm lends from; None if its lane cannot lend, or it is off."""
    return shared_arena(settings) if lane in _LANES_THAT_LEND else None


def is_get_data_reply(msg: object) -> bool:
    """Tell whether a message is the answer to a request for results of tasks."""
    return type(msg) is dict and msg.keys() == _RESULTS_KEYS


def move_to_arena(message: codec.Message, arena: Arena | None) -> codec.Message:
    """Copy the large buffers of a message into an arena, if there is one, unless they lie there.

    Everything of the message, which is changed in place, may be lent. That is one copy instead of
    two through a ring, which need both processes to run by turns: where the processors have other
    work, that takes ten times as long.
    """
    if arena is not None:
        frames = message.frames
        for number, frame in enumerate(frames):
            if nbytes_of(frame) >= LEND_BYTES_MIN:
                copy = arena.copy_to_lend(in_order(frame))
                if copy is not None:
                    frames[number] = copy
    return message


def in_order(frame: Any) -> Any:
    """Give a frame as it is, unless it is a view whose items are out of order.

    A view over a view, as `ensure_memoryview` returns for almost anything, is to be avoided:
    CPython 3.11 crashes when its garbage collector meets one (python/cpython#77894, mended in
    3.12.7).
    """
    if isinstance(frame, memoryview) and not frame.c_contiguous:
        return ensure_memoryview(frame)
    return frame


def nbytes_of(buffer: Any) -> int:
    """Count the bytes of a frame."""
    # A frame without these types lies on a GPU.
    return len(buffer) if isinstance(buffer, (bytes, bytearray)) else int(buffer.nbytes)
