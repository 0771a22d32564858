"""The measured process of a plain copy for ``rechunk``: ``… SIZE THREADS REPETITIONS``.

Threads copy equal parts of an array into new memory, as the result of a rechunk is. Prints seconds,
CPU seconds and page faults of each repetition, after one that does not count, as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Measure the copy.

    Parameters
    ----------
    argv : sequence of str
        Rows and columns of the array of float64, threads, repetitions.

    Returns
    -------
    int
        Exit status.
    """
    size, threads, repetitions = map(int, argv)
    parts = [part.copy() for part in np.array_split(np.ones((size, size)), threads)]
    found = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(1 + repetitions):
            before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
            copies = list(pool.map(np.copy, parts))
            seconds = time.perf_counter() - start
            after = resource.getrusage(resource.RUSAGE_SELF)
            cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            found.append((seconds, cpu_seconds, after.ru_minflt - before.ru_minflt))
            # Dropped here, so that the next repetition has new memory
            del copies
    sys.stdout.write(json.dumps(found[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
