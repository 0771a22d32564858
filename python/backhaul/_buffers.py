"""Buffer handling in Python for the native module."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

__all__ = ["Received", "as_buffer", "make_received"]


class Received(NamedTuple):
    """Result of a tagged receive.

    Attributes
    ----------
    nbytes : int
        Size of the message, in bytes; the rest of the buffer is as it was.
    tag : int
        Tag of the message, of interest where a mask lets several match.
    """

    nbytes: int
    tag: int


#: Makes a `Received` of a pair in half the time that the class takes.
make_received = partial(tuple.__new__, Received)


def as_buffer(obj: Any) -> Any | None:
    """Give a buffer over the memory of an object that has only ``__array_interface__``.

    Parameters
    ----------
    obj : object
        Any object. NumPy arrays whose dtype the buffer protocol cannot express, such as
        ``datetime64``, come here too.

    Returns
    -------
    object or None
        An object with the buffer protocol over the same memory; None if there is none.
    """
    if not hasattr(obj, "__array_interface__"):
        return None
    import numpy as np

    array = np.asarray(obj)
    if isinstance(obj, np.generic):
        # A copy, which is as good as the value to send, and of no use to receive into.
        array.flags.writeable = False
    if array.flags.c_contiguous:
        return array.reshape(-1).view(np.uint8)
    # The strides are what the error is about, so keep them, under a type with a format.
    return array.view(np.dtype((np.void, array.itemsize)))
