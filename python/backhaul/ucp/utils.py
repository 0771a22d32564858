"""Small functions that programs import from ``ucp.utils``."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
from collections.abc import Sequence

from backhaul.ucp._tags import hash64bits

__all__ = ["get_event_loop", "get_ucxpy_logger", "hash64bits", "hmean", "mp"]

#: Processes that begin anew rather than as a copy of this one.
mp = multiprocessing.get_context("spawn")


def get_event_loop() -> asyncio.AbstractEventLoop:
    """Give the running event loop, or a new one if none runs."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.new_event_loop()


def get_ucxpy_logger() -> logging.Logger:
    """Give the logger ``ucx``, with the level that ``UCXPY_LOG_LEVEL`` names.

    Its records go to the handlers of the program; UCX-Py's had one of its own.
    """
    logger = logging.getLogger("ucx")
    level = os.environ.get("UCXPY_LOG_LEVEL")
    if level is not None:
        logger.setLevel(level)
    return logger


def hmean(values: Sequence[float]) -> float:
    """Give the harmonic mean, 0 of nothing.

    Parameters
    ----------
    values : sequence of float
        Positive numbers.
    """
    return len(values) / sum(1 / value for value in values) if len(values) else 0.0
