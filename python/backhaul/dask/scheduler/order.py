"""Dask's static order of tasks, computed in Rust: `order` stands in for `dask.order.order`.

The function returns the same priorities as Dask's. In cases that it does not support, and after any
error, it calls Dask's function, so that results and exceptions are Dask's. ``docs/design/order.md``
says how the two are kept equal.
"""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any

import dask.order

from backhaul import _native
from backhaul.dask.compat.names import DataNode, GraphNode

__all__ = ["native_order", "order"]

logger = logging.getLogger(__name__)

#: Dask's function, whatever stands in its place later
_dask_order: Callable[..., dict[Any, Any]] = dask.order.order


def order(
    dsk: Mapping[Any, Any],
    dependencies: Mapping[Any, set[Any]] | None = None,
    *,
    return_stats: bool = False,
) -> dict[Any, Any]:
    """Return the priority of each key of a task graph.

    Parameters
    ----------
    dsk : mapping of key to GraphNode
        The graph. One with values of other kinds is left to Dask.
    dependencies : mapping of key to set of keys, optional
        Not looked at, by Dask neither: the nodes of the graph tell.
    return_stats : bool, optional
        Whether to return `dask.order.Order` tuples, which is left to Dask.

    Returns
    -------
    dict of key to int, or to `dask.order.Order`
        The place of each key in the order, from 0. Lower is to run first.

    Raises
    ------
    RuntimeError
        If the graph has a cycle.

    Notes
    -----
    The algorithm is that of `dask.order.order`. The GIL is released meanwhile.
    """
    if not return_stats and sets_are_as_modelled():
        try:
            return _native.order(dsk if type(dsk) is dict else dict(dsk), GraphNode, DataNode)
        except Exception as error:
            logger.debug("%d tasks are ordered by Dask itself: %s", len(dsk), error)
    return _dask_order(dsk, dependencies, return_stats=return_stats)


@functools.cache
def sets_are_as_modelled(*, seed: int = 0, members_max: int = 120) -> bool:
    """Try whether this interpreter's sets list their members as the native order assumes.

    Sets of up to `members_max` random numbers are tried. If not, Dask's own function orders every
    graph.
    """
    numbers = random.Random(seed)
    for size in range(1, members_max, 1 + members_max // 12):
        # Numbers are their own hashes; those of few bits collide.
        for bits in (size.bit_length() + 1, 58):
            values = list(dict.fromkeys(numbers.getrandbits(bits) * 4 for _ in range(size)))
            if not _set_is_as_modelled(values):
                logger.debug("sets of this interpreter list their members in an order of their own")
                return False
    return True


def _set_is_as_modelled(values: list[int]) -> bool:
    members: set[int] = set()
    for value in values:
        members.add(value)
    listing = _native.set_listing(values)
    # A set made of a list grows with each member; one made of a set has its final size immediately.
    for whole in (frozenset(values), frozenset(members)):
        for share in (0, 1 / len(values), 0.2, 0.4, 1):
            other = values[: round(share * len(values))]
            expected = _native.difference_listing(whole, other)
            if list(whole.difference(dict.fromkeys(other))) != expected:
                return False
            if list(whole - set(other)) != expected:
                return False
    return list(members) == listing == [members.pop() for _ in values]


def native_order(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `order`, which replaces Dask's function."""
    return order
