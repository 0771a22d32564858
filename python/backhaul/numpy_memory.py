"""NumPy's arrays in an arena: they are born there, and lent to peers without a copy.

NumPy asks the *handler* of the current context for the memory of each new array (NEP 49). The one
made here takes large blocks from a `backhaul.Arena`, and leaves small ones, and what the arena
refuses, to NumPy::

    with numpy_memory.arrays_in(arena):
        array = np.empty(1 << 24)

An array keeps its memory, wherever it is used or freed later. A block that is freed keeps its
pages, so the next array of that size costs no page faults. Memory that NumPy does not allocate, as
that of a view or of a ``frombuffer``, stays where it is.

The handler is a context variable: `install` is in force in the thread, or the asyncio task, that
calls it, and in the tasks and copies of contexts that come of it. A new thread begins without (but
on free-threaded 3.14, where it inherits its starter's); have it begin with ``install``::

    ThreadPoolExecutor(initializer=numpy_memory.install, initargs=(arena,))

A forked child has its own copy of every array, as always, and its new ones are NumPy's own. What
was in the arena at the time of the fork is not used again, in case the child looks at it; a program
that is started by ``subprocess`` or ``spawn`` costs nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from backhaul import _native
from backhaul._native import Arena

__all__ = ["arrays_in", "install", "installed", "uninstall"]


def install(arena: Arena) -> object:
    """Make NumPy take the memory of large new arrays from an arena, in the current context.

    Parameters
    ----------
    arena : Arena
        Where from. It lives as long as an array in it.

    Returns
    -------
    object
        The handler that was in force, for `uninstall`.

    Raises
    ------
    ImportError
        If there is no NumPy, or none that lets its allocator be replaced (before 1.22).
    """
    return _native.set_numpy_handler(_native.numpy_handler(arena))


def uninstall(previous: object = None) -> None:
    """Make NumPy use another handler again, in the current context.

    Parameters
    ----------
    previous : object, optional
        What `install` returned; by default NumPy's own allocator.

    Raises
    ------
    ImportError
        As `install`.
    """
    _native.set_numpy_handler(previous)


def installed() -> Arena | None:
    """Get the arena that new arrays come from in the current context; None if there is none.

    Raises
    ------
    ImportError
        As `install`.
    """
    return _native.arena_of_numpy_handler(_native.current_numpy_handler())


@contextlib.contextmanager
def arrays_in(arena: Arena) -> Iterator[None]:
    """Make NumPy take memory from an arena for the body of a ``with``.

    Raises
    ------
    ImportError
        As `install`.
    """
    previous = install(arena)
    try:
        yield
    finally:
        uninstall(previous)
