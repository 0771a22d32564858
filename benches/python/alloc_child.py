"""The measured process of ``alloc``: ``… NBYTES [MODULE:FUNCTION]``.

Calls the function, then twice makes an array, fills it and drops it. Prints seconds and page
faults of both, as JSON.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time

import numpy as np

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Measure both arrays.

    Parameters
    ----------
    argv : list of str
        Size in bytes; function that installs an allocator, or an empty string.

    Returns
    -------
    int
        Exit status.
    """
    nbytes, install = int(argv[0]), argv[1]
    if install:
        module, _, name = install.partition(":")
        getattr(importlib.import_module(module), name)()
    # The code of a fill is a page fault or two as well.
    _fill(4096)
    sys.stdout.write(json.dumps([_fill(nbytes), _fill(nbytes)]))
    return 0


def _fill(nbytes: int) -> tuple[float, int]:
    faults, start = _page_faults(), time.perf_counter()
    array = np.empty(nbytes // 8)
    array.fill(1.0)
    seconds = time.perf_counter() - start
    return seconds, _page_faults() - faults


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
