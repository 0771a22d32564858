"""Programs that `backhaul.doctor` runs in processes of their own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TextIO

__all__ = ["answering"]


@contextlib.contextmanager
def answering() -> Iterator[TextIO]:
    """Give what an answer is written to, which has nothing else in it.

    Libraries that are tried may print, and UCX logs to the standard output: from here on that is
    the standard error.
    """
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        yield answer
